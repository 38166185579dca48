/* The measured program: says when its first line ran, then ends as asked.
 *
 *   stamp FOLDER exit      write FOLDER/<rank>, end with 0
 *   stamp FOLDER hold      write FOLDER/<rank>, then wait until killed
 *   stamp FOLDER victim    as hold; rank 3 waits for FOLDER/go instead, writes FOLDER/died and ends with 1
 *
 * What it writes: nanoseconds since the epoch, then its process id. Built statically, so that no loader runs first.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char VICTIM[] = "3";

static void write_stamp(const char *folder, const char *name, struct timespec now) {
    char path[4096], text[64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int length = snprintf(text, sizeof text, "%lld %ld\n", now.tv_sec * 1000000000LL + now.tv_nsec, (long)getpid());
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    /* One write: a reader sees an empty file or all of it. */
    if (file < 0 || write(file, text, length) != length) {
        perror(path);
        exit(2);
    }
    close(file);
}

int main(int count, char **arguments) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (count != 3) {
        fputs("usage: stamp FOLDER exit|hold|victim\n", stderr);
        return 2;
    }
    const char *folder = arguments[1], *mode = arguments[2];
    const char *rank = getenv("RANK");
    if (rank == NULL)
        rank = getenv("SLURM_PROCID");
    if (rank == NULL)
        rank = "0";
    write_stamp(folder, rank, now);
    if (strcmp(mode, "exit") == 0)
        return 0;
    if (strcmp(mode, "victim") == 0 && strcmp(rank, VICTIM) == 0) {
        char go[4096];
        snprintf(go, sizeof go, "%s/go", folder);
        const struct timespec pause_for = {0, 500000};
        while (access(go, F_OK) != 0)
            nanosleep(&pause_for, NULL);
        clock_gettime(CLOCK_REALTIME, &now);
        write_stamp(folder, "died", now);
        return 1;
    }
    for (;;)
        pause();
}
