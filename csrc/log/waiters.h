/* A ring of requests that wait for an answer: for updates.c and reads.c, not for cffi. */
#ifndef KLK_WAITERS_H
#define KLK_WAITERS_H
#include "api.h"

/* The head of each waiter. What its request needs follows. */
struct klk_waiter {
    uint32_t size;   /* in the ring, a multiple of 8 */
    uint32_t skip;   /* unused space: continue at the ring's start */
    uint64_t due_ms; /* of the next reminder */
};

static inline struct klk_waiter *klk_waiters_at(const struct klk_waiters *waiters,
                                                uint64_t position) {
    return (struct klk_waiter *)(void *)((uint8_t *)waiters->ring +
                                         (position & (waiters->ring_max - 1)));
}

static inline uint64_t klk_waiters_to_end(const struct klk_waiters *waiters) {
    return waiters->ring_max - (waiters->tail & (waiters->ring_max - 1));
}

/* Whether a waiter fits, even if the end of the ring stays empty. */
static inline int klk_waiters_fit(const struct klk_waiters *waiters, uint32_t size) {
    uint64_t to_end = klk_waiters_to_end(waiters), need = size <= to_end ? size : to_end + size;
    return waiters->tail - waiters->head + need <= waiters->ring_max;
}

/* Adds a waiter. The caller has checked that it fits, and fills what follows the head. */
static inline void *klk_waiters_add(struct klk_waiters *waiters, uint32_t size, uint64_t now_ms) {
    uint64_t to_end = klk_waiters_to_end(waiters);
    struct klk_waiter *waiter = klk_waiters_at(waiters, waiters->tail);
    if (size > to_end) {
        waiter->size = (uint32_t)to_end; /* There may be no room for a whole head. */
        waiter->skip = 1;
        waiters->tail += to_end;
        waiter = klk_waiters_at(waiters, waiters->tail);
    }
    *waiter = (struct klk_waiter){.size = size, .due_ms = now_ms + KLK_REMIND_MS};
    if (!waiters->waiting++) waiters->remind_ms = waiter->due_ms;
    waiters->tail += size;
    return waiter;
}

/* The waiter at a position, which may be the empty end of the ring; NULL after the last one. */
static inline void *klk_waiters_next(const struct klk_waiters *waiters, uint64_t *position) {
    if (*position == waiters->tail) return NULL;
    struct klk_waiter *waiter = klk_waiters_at(waiters, *position);
    if (!waiter->skip) return waiter;
    *position += waiter->size;
    return klk_waiters_at(waiters, *position);
}

/* Removes the first one. */
static inline void klk_waiters_remove(struct klk_waiters *waiters, const struct klk_waiter *first) {
    waiters->head += first->size;
    /* An empty ring starts over: its first pages are in the cache, later ones may be untouched. */
    if (!--waiters->waiting) waiters->head = waiters->tail = 0;
}

/* Calls accept for each waiter that is due; it returns KLK_OK, or KLK_EFULL: out must grow. */
static inline int klk_waiters_remind(struct klk_waiters *waiters, uint64_t now_ms,
                                     struct klk_messages *out,
                                     int (*accept)(struct klk_messages *, const void *)) {
    struct klk_waiter *waiter;
    uint64_t position = waiters->head, next_ms = UINT64_MAX;
    if (!waiters->waiting || now_ms < waiters->remind_ms) return KLK_OK;
    for (; (waiter = klk_waiters_next(waiters, &position)); position += waiter->size) {
        if (waiter->due_ms <= now_ms) {
            if (accept(out, waiter) != KLK_OK) return KLK_EFULL;
            waiter->due_ms = now_ms + KLK_REMIND_MS;
        }
        if (waiter->due_ms < next_ms) next_ms = waiter->due_ms;
    }
    waiters->remind_ms = next_ms;
    return KLK_OK;
}

#endif
