/* Durations of operations, counted in buckets. */
#define _GNU_SOURCE
#include "latency.h"

#include <time.h>

static const uint64_t BOUNDS_US[] = {50,     100,    250,     500,     1000,    2500,
                                     5000,   10000,  25000,   50000,   100000,  250000,
                                     500000, 1000000, 2500000, 5000000, 10000000};

enum { BOUNDS = sizeof BOUNDS_US / sizeof *BOUNDS_US };

_Static_assert(BOUNDS + 1 == KLK_LATENCY_BUCKETS, "the last bucket has no bound");

uint64_t klk_latency_bound_us(uint32_t bucket) {
    return bucket < BOUNDS ? BOUNDS_US[bucket] : UINT64_MAX;
}

void klk_latency_add(struct klk_latency *latency, uint64_t us, uint64_t count) {
    uint32_t bucket = 0;
    while (bucket < BOUNDS && us > BOUNDS_US[bucket]) bucket++;
    latency->counts[bucket] += count;
    latency->sum_us += us * count;
}

uint64_t klk_monotonic_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}
