/* How long operations take: a part of api.h. */
#ifndef KLK_LATENCY_H
#define KLK_LATENCY_H
#include <stdint.h>

enum klk_latency_limit { KLK_LATENCY_BUCKETS = 18 };

/* Durations of one kind of operation. counts[i] took at most klk_latency_bound_us(i), and more than
 * the bound before; the last bucket has no bound. */
struct klk_latency {
    uint64_t sum_us;
    uint64_t counts[KLK_LATENCY_BUCKETS];
};

/* The bound of a bucket in microseconds; UINT64_MAX for the last one and beyond. */
uint64_t klk_latency_bound_us(uint32_t bucket);

/* Adds `count` operations that took us microseconds each. */
void klk_latency_add(struct klk_latency *latency, uint64_t us, uint64_t count);

/* The monotonic clock in microseconds. */
uint64_t klk_monotonic_us(void);

#endif
