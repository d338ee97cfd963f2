# Runs a command in the root directory $ROOT, with mounts and a network of its own. $MOUNTED is /mnt.
# $AS is `root`, or `user` for the ordinary user 1000.
set -eu
ip link set lo up
mount --make-rprivate /
mount --bind "$ROOT" "$ROOT"
mount --bind "$MOUNTED" "$ROOT/mnt"
mount -t proc proc "$ROOT/proc"
mount --rbind /sys "$ROOT/sys"
mount --rbind /dev "$ROOT/dev"
# A system empties these when it starts.
mount -t tmpfs -o mode=1777 tmpfs "$ROOT/tmp"
mount -t tmpfs -o mode=755 tmpfs "$ROOT/run"
cd "$ROOT"
# Not chroot(2), after which the kernel allows no user namespace.
pivot_root . .
umount -l .
cd /
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8
if [ "$AS" = root ]; then
    export HOME=/root
    exec "$@"
fi
export HOME=/home/user
cd "$HOME"
exec setpriv --reuid=1000 --regid=1000 --clear-groups --inh-caps=-all --bounding-set=-all "$@"
