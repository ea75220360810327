/* A lease in shared memory: one writer, any number of readers, and no lock (a seqlock). */
#define _GNU_SOURCE
#include <time.h>

#include "steady.h"

enum { TRIES_MAX = 64 }; /* The writer needs nanoseconds. It may have died within them. */

void klk_lease_write(struct klk_lease *lease, uint64_t until_ms, uint64_t index) {
    uint64_t writing = lease->version | 1;
    __atomic_store_n(&lease->version, writing, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    __atomic_store_n(&lease->until_ms, until_ms, __ATOMIC_RELAXED);
    __atomic_store_n(&lease->index, index, __ATOMIC_RELAXED);
    __atomic_store_n(&lease->version, writing + 1, __ATOMIC_RELEASE);
}

static uint64_t unsuspended_ms(void) {
#ifdef CLOCK_BOOTTIME
    const clockid_t clock = CLOCK_BOOTTIME;
#else
    const clockid_t clock = CLOCK_MONOTONIC;
#endif
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

uint64_t klk_lease_read(const struct klk_lease *lease) {
    for (int tries = 0; tries < TRIES_MAX; tries++) {
        uint64_t before = __atomic_load_n(&lease->version, __ATOMIC_ACQUIRE);
        uint64_t until_ms = __atomic_load_n(&lease->until_ms, __ATOMIC_RELAXED);
        uint64_t index = __atomic_load_n(&lease->index, __ATOMIC_RELAXED);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (before % 2 || __atomic_load_n(&lease->version, __ATOMIC_RELAXED) != before) continue;
        /* The clock is read last: if this process was stopped before, the lease has ended. */
        return unsuspended_ms() < until_ms ? index : 0;
    }
    return 0;
}
