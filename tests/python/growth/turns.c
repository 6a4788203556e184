/* Preloaded into a server: measures the turns of its event loop. A turn lies between two calls of epoll_wait by the
 * main thread. It is measured by the processor time of that thread, so other work of the machine does not count. The
 * figures stand in the file that TURNS_FILE names, as `meter.py` reads them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct figures {
    uint64_t turns, total_ns, longest_ns, is_asleep;
};

static volatile struct figures *figures;
static int (*real_wait)(int, struct epoll_event *, int, int);
static __thread int is_main;
static uint64_t began_ns;

__attribute__((constructor)) static void map_figures(void) {
    const char *path = getenv("TURNS_FILE");
    int file = path ? open(path, O_RDWR) : -1;
    if (file < 0) abort();
    void *page = mmap(NULL, sizeof(struct figures), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) abort();
    figures = page;
    close(file);
    real_wait = (int (*)(int, struct epoll_event *, int, int))dlsym(RTLD_NEXT, "epoll_wait");
    if (!real_wait) abort();
    is_main = 1;
}

static uint64_t used_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

int epoll_wait(int set, struct epoll_event *events, int most, int timeout_ms) {
    if (!is_main) return real_wait(set, events, most, timeout_ms);
    if (began_ns) {
        uint64_t turn_ns = used_ns() - began_ns;
        figures->turns++;
        figures->total_ns += turn_ns;
        if (turn_ns > figures->longest_ns) figures->longest_ns = turn_ns;
    }
    figures->is_asleep = 1;
    int ready = real_wait(set, events, most, timeout_ms);
    figures->is_asleep = 0;
    began_ns = used_ns();
    return ready;
}
