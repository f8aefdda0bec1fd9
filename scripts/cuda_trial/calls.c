/* What a call and a turn take: without the hook, and with it. Usage: calls COUNT */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void *driver;

static void *find(const char *name) {
    void *found = dlsym(driver, name);
    if (!found) {
        fprintf(stderr, "no %s\n", name);
        exit(1);
    }
    return found;
}

int main(int count_given, char **given) {
    long count = count_given > 1 ? atol(given[1]) : 1000000;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 1;
    int (*init)(unsigned) = find("cuInit");
    int (*retain)(void **, int) = find("cuDevicePrimaryCtxRetain");
    int (*set)(void *) = find("cuCtxSetCurrent");
    int (*allocate)(uint64_t *, size_t) = find("cuMemAlloc_v2");
    int (*release)(uint64_t) = find("cuMemFree_v2");
    int (*attribute)(void *, int, uint64_t) = find("cuPointerGetAttribute");
    void *context;
    uint64_t at;
    if (init(0) || retain(&context, 0) || set(context) || allocate(&at, 1 << 20)) return 1;
    unsigned kind;
    double best = 1e9;
    for (int round = 0; round < 5; round++) {
        double start = now();
        for (long i = 0; i < count; i++)
            if (attribute(&kind, 2, at)) return 1;
        double each = (now() - start) / count * 1e9;
        if (each < best) best = each;
    }
    printf("call: %.1f ns\n", best);
    double start = now();
    uint64_t small[256];
    for (int i = 0; i < 256; i++)
        if (allocate(&small[i], 100000)) return 1;
    printf("allocation: %.2f us\n", (now() - start) / 256 * 1e6);
    for (int i = 0; i < 256; i++) release(small[i]);
    int (*begin)(void) = dlsym(RTLD_DEFAULT, "neap_job_begin");
    int (*end)(void) = dlsym(RTLD_DEFAULT, "neap_job_end");
    if (begin && end && getenv("NEAP_GPU_SOCKET")) {
        start = now();
        for (int i = 0; i < 2000; i++) {
            if (begin()) return 1;
            end();
        }
        printf("turn asked for and given back: %.1f us\n", (now() - start) / 2000 * 1e6);
    }
    return 0;
}
