#!/bin/sh
# Links with zig, for the C library of $ROCADE_GLIBC. rustc calls it as its linker.
#
# * Build scripts and macros, which run here, are linked as usual.
# * libgcc_s stays a shared library: a cancelled thread unwinds through Rocade with the C library's
#   own copy of it.
# * Zig takes one version script. If there are two, the second one declares all nodes
#   (verbs-api/symbols), and the first one hides the rest. A node without symbols does that here: in
#   another node, it would also hide symbols like `ibv_alloc_pd@IBVERBS_1.0`.
set -eu

scripts=0
before=
for arg; do
    case $arg in -Wl,--version-script=*) scripts=$((scripts + 1)) ;; esac
    if [ "$before" = -o ]; then
        case $arg in
            "$ROCADE_OUT"/*) ;;
            *) exec cc "$@" ;;
        esac
    fi
    before=$arg
done

seen=0
count=$#
while [ "$count" -gt 0 ]; do
    arg=$1
    shift
    count=$((count - 1))
    case $arg in
        -lgcc_s) arg=$ROCADE_LIBGCC ;;
        -lgcc | -fuse-ld=* | --target=*) continue ;;
        -Wl,--version-script=*)
            seen=$((seen + 1))
            if [ "$scripts" -gt 1 ]; then
                [ "$seen" -lt "$scripts" ] && continue
                nodes=${arg#*=}
                { cat "$nodes"; echo 'ROCADE_HIDDEN { local: *; };'; } > "$nodes.zig"
                arg=-Wl,--version-script=$nodes.zig
            fi
            ;;
    esac
    set -- "$@" "$arg"
done
# Zig compiles parts of the C library, whose debug information names the current directory and that
# of zig's library. Both have the same name on each machine. The other paths are absolute.
exec 9< "${ROCADE_ZIG%/*}/lib"
export ZIG_LIB_DIR=/proc/self/fd/9
cd /
# libgcc_s itself may be of a later C library than that of the target.
exec "$ROCADE_ZIG" cc -target "$ROCADE_TARGET" -Wl,--allow-shlib-undefined "$@"
