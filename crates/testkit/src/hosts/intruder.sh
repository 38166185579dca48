# What another local user of a host has planted before muster comes: run as mallory when the host starts.
# Whatever is executed leaves a mark in /tmp/mallory/taken; whatever is written through a link is a new file in /tmp/mallory.
umask 022
mkdir -p /tmp/mallory/bin
cd /tmp/mallory
printf '#!/bin/sh\necho "$0 $* as $(id -u)" >> /tmp/mallory/taken\n' > bin/muster-0000000000000000
chmod 755 bin/muster-0000000000000000
: > taken
chmod 666 taken
for uid in 0 4242; do
    mkdir -p /var/tmp/muster-$uid
    ln -sfn /tmp/mallory/bin /var/tmp/muster-$uid/bin
    for place in /tmp /dev/shm; do
        for name in muster-$uid tmux-$uid; do ln -sfn /tmp/mallory $place/$name; done
    done
done
for place in /tmp /var/tmp /dev/shm; do
    for name in muster .muster muster-agent muster-secrets; do ln -sfn /tmp/mallory $place/$name; done
done
for place in /tmp /dev/shm; do
    for name in muster.sock muster-agent.sock; do mkfifo -m 666 $place/$name 2>/dev/null; done
done
# Some of it may be there from before the host was started again, and not be mallory's any more.
true
