/* The command that the scenario `tool` runs under a lock: it appends when it began and when it ended, in nanoseconds of
 * CLOCK_MONOTONIC, to the file that STAMPS names. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static long long now(void) {
    struct timespec time;
    if (clock_gettime(CLOCK_MONOTONIC, &time) != 0) abort();
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

int main(void) {
    long long began = now();
    const char *path = getenv("STAMPS");
    int file = path ? open(path, O_WRONLY | O_APPEND) : -1;
    if (file < 0) return 1;
    char line[64];
    int length = snprintf(line, sizeof line, "%lld %lld\n", began, now());
    return write(file, line, (size_t)length) == length ? 0 : 1;
}
