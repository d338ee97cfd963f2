# Runs each program under each recipe. A line of the output is the recipe, the program, the verdict
# and a detail, separated by tabs. The verdicts:
#   recovers   the tested side ended with status 0
#   error      it ended with another status
#   hangs      it did not end within $LIMIT seconds
#   crashes    a signal ended it, which the recipe did not send
#   unhit      the rules were not applied, so that nothing was tested
#   absent     the program is not installed
# $ROCADE is the command `rocade`, $EXAMPLES the directory of the Rust examples, $PYPI that of the
# packages of `cargo xtask install`, $VALKEY that of a built Valkey, and the arguments are the
# recipes. The script needs a network namespace of its own, in which it may make an interface.
LIMIT=${LIMIT:-45}
IP=192.0.2.1
runs=0
PROGRAMS=${PROGRAMS:-rping ib_write_bw ib_send_bw ucx_perftest mpirun fi_pingpong fi_rdm_pingpong
    qperf mooncake nixl valkey rc_pingpong}
dir=$(mktemp -d)
trap '[ -n "${KEEP-}" ] || rm -rf "$dir"' EXIT

ip link set lo up
ip link add vt0 type veth peer name vt1
ip link set vt0 addrgenmode none
ip addr add $IP/24 dev vt0
ip link set vt0 up
ip link set vt1 up
until ip -o link show vt0 | grep -q LOWER_UP; do sleep 0.05; done

# The usual timeout of a second makes UCX' retries last for half a minute.
export UCX_RC_VERBS_TIMEOUT=200ms
export UCX_NET_DEVICES=rocade0:1 UCX_TLS=rc_verbs,ud_verbs FI_VERBS_GID_IDX=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# Sets $server and $client to the commands of a program, and $needs to what has to be installed. The
# rates of losses and the delays suit the program: one that waits for each answer loses a timeout
# with each packet. $at is the beginning of recipes that have one, while the program is at work.
commands() {
    server=
    needs=
    at=1s
    loss=1% ber=1e-6 delay=20ms
    plain=
    case $1 in
    rping)
        at=100ms
        loss=0.02% ber=1e-8 delay=1ms
        server="rping -s -a $IP -S 1000"
        client="rping -c -a $IP -C 3000 -S 1000"
        ;;
    ib_write_bw | ib_send_bw)
        server="$1 -d rocade0 -F -x 0 -s 65536 -D 3"
        client="$server $IP"
        ;;
    ucx_perftest)
        at=500ms
        loss=0.1% ber=1e-7 delay=1ms
        server='ucx_perftest'
        client="ucx_perftest $IP -t tag_bw -s 65536 -n 10000 -w 10"
        ;;
    mpirun)
        needs=/usr/lib/python3/dist-packages/mpi4py/bench.py
        at=300ms
        loss=0.1% ber=1e-7 delay=1ms
        # Only one of the two ranks has the rules.
        client="mpirun --oversubscribe -np 2 --mca pml ucx --mca pml_ucx_tls any \
            --mca pml_ucx_devices any --mca btl self sh $dir/rank \
            /usr/bin/python3 -m mpi4py.bench ringtest -l 3000 -n 100000"
        ;;
    fi_pingpong)
        at=100ms
        loss=0.1% ber=1e-7 delay=1ms
        server='fi_pingpong -p verbs -e msg -S 4096 -I 4000'
        client="$server $IP"
        ;;
    fi_rdm_pingpong)
        # That of fabtests is in no package.
        at=300ms
        loss=0.1% ber=1e-7 delay=1ms
        needs=fi_pingpong
        server='fi_pingpong -p verbs;ofi_rxm -e rdm -S 4096 -I 10000'
        client="$server $IP"
        ;;
    qperf)
        server='qperf -lp 19765'
        client="qperf -lp 19765 -cm1 -t 3 $IP rc_bw"
        ;;
    mooncake)
        at=500ms
        plain=yes
        needs=$PYPI/mooncake-0.3.13.post1
        client="sh tests/interop/mooncake/run $ROCADE $needs"
        ;;
    nixl)
        at=500ms
        needs=$PYPI/nixl-1.5.1
        server="env PYTHONPATH=$needs LD_PRELOAD=$("$ROCADE" libdir)/libibverbs.so.1 \
            /usr/bin/python3 tests/interop/nixl/transfer.py target 18600 rc_verbs,ud_verbs"
        client=$(echo "$server" | sed 's/ target / initiator /')
        ;;
    valkey)
        # A source tree of Valkey after `make BUILD_RDMA=module` and `make -C tests/rdma`.
        at=300ms
        loss=0.1% ber=1e-7 delay=1ms
        needs=${VALKEY:-/nonexistent}/tests/rdma/rdma-test
        server="$VALKEY/src/valkey-server --port 0 --protected-mode no --dir $dir --dbfilename $runs.rdb
            --loadmodule $VALKEY/src/valkey-rdma.so port=6379 bind=$IP"
        client="$needs --thread 4 -h $IP"
        ;;
    rc_pingpong)
        at=30ms
        delay=1ms
        server="$EXAMPLES/rc_pingpong"
        client="$EXAMPLES/rc_pingpong $IP"
        ;;
    esac
    needs=${needs:-${client%% *}}
}

# Sets $rules to a recipe with parameters that suit short runs, and $side to the process that has it.
recipe() {
    side=client
    case $1 in
    bit-errors) rules=$1,ber=$ber ;;
    lossy-1pct) rules=$1,p=$loss ;;
    reordering-paths) rules=$1,at=$at,for=500ms ;;
    cq-overrun) rules=$1,nth=20 ;;
    cable-pull | gid-change | nic-reset) rules=$1,at=$at ;;
    port-flap) rules=$1,at=$at,for=300ms,every=1s ;;
    switch-reboot) rules=$1,at=$at,for=1s ;;
    peer-crash | peer-hang | half-open) rules=$1,at=$at side=server ;;
    # The side that receives and answers.
    rnr-storm) rules=$1 side=server ;;
    slow-peer) rules=$1,by=$delay side=server ;;
    out-of-mr | out-of-qp) rules=$1,max=1 ;;
    memlock) rules=$1,limit=4K ;;
    *) rules=$1 ;;
    esac
    rules=recipe:$rules
}

listens() {
    cat /proc/net/tcp /proc/net/tcp6 2> /dev/null | grep -q ' 0A ' && return
    "$ROCADE" broker status 2> /dev/null | grep -q 'port space'
}

run_one() {
    # A broker for each run, because it keeps the reports.
    runs=$((runs + 1))
    export ROCADE_RUNTIME_DIR=$dir/run$runs
    rm -f "$dir"/*.log
    commands "$2"
    recipe "$1"
    if ! command -v "$needs" > /dev/null && [ ! -e "$needs" ]; then
        printf '%s\t%s\tabsent\t\n' "$1" "$2"
        return
    fi
    with="--fault $rules"
    of_server= of_client=
    unset OPTIONS
    if [ -n "$plain" ]; then
        # Both sides have the rules.
        export OPTIONS="$with"
    elif [ -z "$server" ]; then
        printf 'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then export ROCADE_FAULT="%s"; fi\nexec "$@"\n' \
            "$rules" > "$dir/rank"
    elif [ $side = server ]; then
        of_server=$with
    else
        of_client=$with
    fi
    waits=
    if [ -n "$server" ]; then
        # shellcheck disable=SC2086 # words of commands
        timeout -k 2 $((LIMIT + 20)) "$ROCADE" run --dev rocade0=vt0 $of_server -- $server \
            > "$dir/server.log" 2>&1 &
        waits=$!
        tries=0
        until listens || [ $tries = 200 ] || ! kill -0 $waits 2> /dev/null; do
            tries=$((tries + 1))
            sleep 0.05
        done
    fi
    # shellcheck disable=SC2086 # words of commands
    began=$(date +%s)
    if [ -n "$plain" ]; then
        timeout -k 2 "$LIMIT" $client > "$dir/client.log" 2>&1
    else
        timeout -k 2 "$LIMIT" "$ROCADE" run --dev rocade0=vt0 $of_client -- $client \
            > "$dir/client.log" 2>&1
    fi
    status=$?
    "$ROCADE" fault report > "$dir/report.log" 2> /dev/null
    if [ -n "$waits" ]; then
        # The peer is not what is tested. timeout(1) passes the signal on, with SIGKILL behind it.
        kill $waits 2> /dev/null
        wait $waits 2> /dev/null
    fi
    verdict "$1" "$2" $status
    "$ROCADE" broker stop > /dev/null 2>&1
}

verdict() {
    case $3 in
    0) word=recovers ;;
    124) word=hangs ;;
    # SIGKILL comes from timeout(1), or from the rule, which mpirun passes on.
    137) [ $(($(date +%s) - began)) -ge "$LIMIT" ] && word=hangs || word=error ;;
    129 | 13[0-6] | 13[89] | 14?) word=crashes ;;
    *) word=error ;;
    esac
    grep -q '^ *[1-9][0-9]*  *[0-9]' "$dir/report.log" || word=unhit
    detail=$(grep -v '^  \|fault rules: ' "$dir/client.log" | grep -i 'error\|fail\|status\|abort\|rocade\[' |
        tail -n 1 | tr '\t' ' ' | cut -c 1-160)
    printf '%s\t%s\t%s\t%s: %s\n' "$1" "$2" "$word" "$3" "$detail"
}

# shellcheck disable=SC2046 # names without spaces
[ $# -gt 0 ] || set -- $("$ROCADE" fault recipes --json | sed -n 's/^      "name": "\(.*\)",$/\1/p')
for recipe in "$@"; do
    for program in $PROGRAMS; do
        run_one "$recipe" "$program"
    done
done
