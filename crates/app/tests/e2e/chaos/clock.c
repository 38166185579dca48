/* A clock that can be set: the machine's, and as many seconds more as the file says that MUSTER_CHAOS_CLOCK names. Waits of the
 * monotonic clock are left alone, as they are where somebody sets the clock of a machine. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const char *file;

__attribute__((constructor)) static void find_file(void) { file = getenv("MUSTER_CHAOS_CLOCK"); }

static long long ahead(void) {
    char text[32] = "";
    int error = errno;
    int opened = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
    if (opened >= 0) {
        if (read(opened, text, sizeof text - 1) < 0) text[0] = 0;
        close(opened);
    }
    errno = error;
    return atoll(text);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += ahead();
    return failed;
}
