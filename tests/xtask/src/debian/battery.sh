# Runs programs of rdma-core and others, alone and in pairs. Each line of the output is `ok`, `FAIL`
# or `absent`, a tab, and the name of the case. A failed case continues with its last output.
# $ROCADE is the command `rocade`, which has started this script.
log=$(mktemp -d)

# Returns true if a program waits for another one: a TCP socket, a listener of the connection
# manager, or udpong's UDP socket.
listens() {
    cat /proc/net/tcp /proc/net/tcp6 2> /dev/null | grep -q ' 0A ' && return
    "$ROCADE" broker status 2> /dev/null | grep -q 'port space' && return
    grep -qi ':1C06 ' /proc/net/udp
}

# Prints the result of the case $1. $2 is its status.
report() {
    if [ "$2" = 0 ]; then
        printf 'ok\t%s\n' "$1"
    else
        printf 'FAIL\t%s\t%s\n' "$1" "$(tail -q -n 2 "$log"/* | tr '\n\t' '  ')"
    fi
}

# Returns false, and says so, if the program of a command is not installed.
has() {
    command -v "${2%% *}" > /dev/null && return
    printf 'absent\t%s\n' "$1"
    return 1
}

# A program alone: name, command.
alone() {
    has "$1" "$2" || return 0
    rm -f "$log"/*
    timeout 60 sh -c "$2" > "$log/output" 2>&1
    report "$1" $?
}

# A server and its client: name, both commands. With `endless` the server is ended.
pair() {
    has "$1" "$2" || return 0
    rm -f "$log"/*
    timeout 90 sh -c "exec $2" > "$log/server" 2>&1 &
    server=$!
    tries=0
    until listens || [ $tries = 300 ] || ! kill -0 $server 2> /dev/null; do
        tries=$((tries + 1))
        sleep 0.1
    done
    timeout 60 sh -c "$3" > "$log/client" 2>&1
    status=$?
    if [ "${4-}" = endless ]; then
        kill $server 2> /dev/null
        wait $server
    else
        wait $server || status=$((status + $?))
    fi
    report "$1" $status
    # The next server must not be mistaken for this one.
    tries=0
    while listens && [ $tries != 100 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
}

# The client has the server's words and the address.
same() {
    pair "$1" "$1" "$1 127.0.0.1"
}

alone 'ibv_devices' 'ibv_devices | grep rocade0'
alone 'ibv_devinfo -v' 'ibv_devinfo -v | grep PORT_ACTIVE'
alone 'ibstat' 'ibstat | grep Active'
alone 'ibstatus' 'ibstatus | grep ACTIVE'
alone 'rdma link' 'rdma link | grep rocade0/1'
for kind in rc uc ud srq xsrq; do
    same "ibv_${kind}_pingpong -g 0"
done
for option in -e -N -t -o; do
    same "ibv_rc_pingpong -g 0 $option"
done
for case in 'rping -C 10' 'rping -q -C 10'; do
    pair "$case" "$case -s -a 127.0.0.1" "$case -c -a 127.0.0.1"
done
pair 'rping over IPv6' 'rping -s -a ::1 -C 10' 'rping -c -a ::1 -C 10'
for case in ucmatose udaddy; do
    pair "$case -C 10" "$case -b 127.0.0.1 -C 10" "$case -s 127.0.0.1 -C 10"
done
pair rdma_server 'rdma_server -s 127.0.0.1' 'rdma_client -s 127.0.0.1'
pair rstream 'rstream -b 127.0.0.1 -T v -S 4096 -C 100' \
    'rstream -s 127.0.0.1 -T v -S 4096 -C 100'
pair riostream 'riostream -b 127.0.0.1 -S 4096 -C 100' 'riostream -s 127.0.0.1 -S 4096 -C 100'
pair udpong 'udpong -b 127.0.0.1 -T e' 'udpong -s 127.0.0.1 -T e -C 100' endless
for program in ib_send_bw ib_send_lat ib_write_bw ib_write_lat ib_read_bw ib_read_lat \
    ib_atomic_bw ib_atomic_lat; do
    for service in RC XRC; do
        same "$program -d rocade0 -x 0 -F -c $service -n 200"
    done
done
for program in ib_send_bw ib_send_lat; do
    for options in '-c UC' '-c UD' -e -R; do
        same "$program -d rocade0 -x 0 -F $options -n 200"
    done
done
pair 'qperf -cm1' 'qperf' 'qperf 127.0.0.1 -t 1 -cm1 rc_lat' endless
rm -rf "$log"
