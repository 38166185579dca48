# The first process of a host. Runs in the host's own namespaces, which still show the launcher's files.
# $1: the host's directory; $2: its name. When its standard input ends, so does the host.
set -eu
cd "$1"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/disk/upper,workdir=$1/disk/work" root
for place in root home var/tmp; do mount --bind "disk/$place" "root/$place"; done
mount --bind ../shared root/shared
cd root
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm run/sshd run/lock
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mknod -m 666 dev/null c 1 3
mknod -m 666 dev/zero c 1 5
mknod -m 666 dev/full c 1 7
mknod -m 666 dev/random c 1 8
mknod -m 666 dev/urandom c 1 9
mknod -m 666 dev/tty c 5 0
mknod -m 660 dev/fuse c 10 229 || true
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s fd/0 dev/stdin
ln -s fd/1 dev/stdout
ln -s fd/2 dev/stderr
intruder=$(cat "$1/intruder.sh")
# A chroot would do for the files, but a process in one may make no user namespace, which people's accounts do.
pivot_root . mnt
cd /
umount -l /mnt
hostname "$2"
ip link set lo up
setpriv --reuid 4343 --regid 4343 --clear-groups sh -c "$intruder"
/usr/sbin/sshd -E /var/log/sshd
cat >/dev/null
