/* Preloaded into a server: all its clocks are paused but for the time in the file that STOPPED_CLOCK_FILE names. It is
 * two numbers of 64 bits: when the wall clock began, in microseconds since the epoch, and how many microseconds have
 * passed since then. The server notices that when it is woken, so never in the middle of a turn of its event loop. A
 * timer of the kernel goes off when the server's own clock says so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

/* The start value of clocks that count from the start of a machine. */
#define UP_US 1000000000
/* The bound on the time until a timer that is due can be read. */
#define FIRES_MS 1000

/* Less than a millisecond: the server's counts of milliseconds are the same. */
#define LOOKS_MAX 999

struct page {
    int64_t began_us, passed_us;
};

static volatile struct page *page;
static volatile int64_t passed_us;
/* The only timer: which descriptor, and when it is due; less than 0: it is not set. A timer that is due in a
 * microsecond is due now: the kernel has no finer one. */
static int timer = -1;
static int64_t due_us = -1;

__attribute__((constructor)) static void map_page(void) {
    const char *path = getenv("STOPPED_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0) abort();
    void *mapped = mmap(NULL, sizeof(struct page), PROT_READ, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) abort();
    page = mapped;
    passed_us = page->passed_us;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    int is_up = clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_MONOTONIC_RAW ||
                clock == CLOCK_BOOTTIME;
    if (!page || (!is_wall && !is_up)) return (int)syscall(SYS_clock_gettime, clock, time);
    int64_t micros = passed_us + (is_wall ? page->began_us : UP_US);
    time->tv_sec = micros / 1000000;
    time->tv_nsec = micros % 1000000 * 1000;
    return 0;
}

/* Two timers of the server never end at the same moment: the second one is postponed by a microsecond, and would not
 * end while time is paused. So within a millisecond each reading of this clock, which is the server's own, is a little
 * later than the one before. The module reads the other one. */
int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    static int64_t last_us, looks;
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    looks = passed_us == last_us ? looks + 1 : 0;
    last_us = passed_us;
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000 + (looks < LOOKS_MAX ? looks : LOOKS_MAX);
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

static int set_timer(int fd, int64_t nanos) {
    struct itimerspec value = {{0, 0}, {0, nanos}};
    return (int)syscall(SYS_timerfd_settime, fd, 0, &value, NULL);
}

int timerfd_settime(int fd, int flags, const struct itimerspec *value, struct itimerspec *old) {
    if (flags != 0 || (timer >= 0 && timer != fd)) abort();
    if (old) memset(old, 0, sizeof *old);
    int64_t left_us = (int64_t)value->it_value.tv_sec * 1000000 + (value->it_value.tv_nsec + 999) / 1000;
    timer = fd;
    due_us = left_us > 0 ? passed_us + left_us - 1 : -1;
    return set_timer(fd, 0);
}

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout) {
    if (timer >= 0 && due_us >= 0 && due_us <= passed_us) {
        struct pollfd fires = {timer, POLLIN, 0};
        due_us = -1;
        set_timer(timer, 1);
        poll(&fires, 1, FIRES_MS);
    }
    int found = (int)syscall(SYS_epoll_pwait, epoll, events, most, timeout, NULL, 8);
    if (found > 0) passed_us = page->passed_us;
    return found;
}

/* Valkey counts the ticks of the processor if this file says that it may. */
FILE *fopen(const char *path, const char *mode) {
    FILE *(*real)(const char *, const char *) =
        (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, "fopen");
    if (strcmp(path, "/proc/cpuinfo") == 0) {
        errno = ENOENT;
        return NULL;
    }
    return real(path, mode);
}

/* Some servers load modules so that they see the C library before anything preloaded. Not here. */
void *dlopen(const char *path, int flags) {
    void *(*real)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    return real(path, flags & ~RTLD_DEEPBIND);
}
