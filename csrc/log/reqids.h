/* Functions of the request id table that updates.c calls for every update: inline. */
#ifndef KLK_REQIDS_H
#define KLK_REQIDS_H
#include <string.h>

#include "api.h"

static inline uint32_t klk_reqid_seconds(const uint8_t *reqid) {
    return (uint32_t)reqid[0] << 24 | (uint32_t)reqid[1] << 16 | (uint32_t)reqid[2] << 8 | reqid[3];
}

static inline uint64_t klk_reqid_hash(const struct klk_reqids *reqids, const uint8_t *reqid) {
    uint64_t high, hash;
    uint32_t low;
    memcpy(&high, reqid, 8);
    low = (uint32_t)reqid[8] | (uint32_t)reqid[9] << 8 | (uint32_t)reqid[10] << 16 |
          (uint32_t)(reqid[11] >> 3) << 24;
    hash = (high ^ reqids->seeds[0]) * 0x9e3779b97f4a7c15ull;
    hash = (hash ^ hash >> 32 ^ low ^ reqids->seeds[1]) * 0xff51afd7ed558ccdull;
    hash = (hash ^ hash >> 33) * 0xc4ceb9fe1a85ec53ull;
    return hash ^ hash >> 29;
}

/* The high bits choose the shard and the low half the slot, so the two are independent. */
static inline int klk_reqid_shard_of(uint64_t hash) { return (int)(hash >> 56); }

/* Ids that differ in their last three bits only, as from a client's counter, have neighbouring
 * slots: eight of them cost two cache lines instead of eight. */
static inline uint32_t klk_reqid_home(const struct klk_reqid_shard *shard, const uint8_t *reqid,
                                      uint64_t hash) {
    return (uint32_t)((hash & 0xffffffffu) * (shard->size / 8) >> 32) * 8 + (reqid[11] & 7);
}

static inline const struct klk_reqid_shard *klk_reqid_shard_at(const struct klk_reqids *reqids,
                                                               uint64_t hash) {
    return &reqids->shards[klk_reqid_shard_of(hash)];
}

/* Prefetches the slot of an id: a table of a million ids fits no cache. A caller that does nothing
 * else needs the same attribute: gcc treats a function that only prefetches as one without effect,
 * and drops its calls before it inlines them. */
#define KLK_PREFETCHES __attribute__((always_inline)) static inline
KLK_PREFETCHES void klk_reqids_prefetch(const struct klk_reqids *reqids, const uint8_t *reqid,
                                        uint64_t hash) {
    const struct klk_reqid_shard *shard = klk_reqid_shard_at(reqids, hash);
    __builtin_prefetch(&shard->slots[klk_reqid_home(shard, reqid, hash)], 1);
}

static inline int klk_reqid_is_forgotten(const struct klk_reqids *reqids, const uint8_t *reqid) {
    return klk_reqid_seconds(reqid) <= reqids->forgotten_s;
}

static inline int klk_reqid_is(const struct klk_reqid_slot *slot, const uint8_t *reqid) {
    uint64_t high[2];
    uint32_t low[2];
    memcpy(high, slot->reqid, 8);
    memcpy(high + 1, reqid, 8);
    memcpy(low, slot->reqid + 8, 4);
    memcpy(low + 1, reqid + 8, 4);
    return high[0] == high[1] && low[0] == low[1];
}

static inline int klk_reqid_is_free(const struct klk_reqid_slot *slot) {
    static const uint8_t zeros[KLK_REQID_SIZE];
    return klk_reqid_is(slot, zeros);
}

/* The slot of an id, or the free slot where it belongs. A shard is never full. */
static inline struct klk_reqid_slot *klk_reqid_slot_of(const struct klk_reqids *reqids,
                                                       const uint8_t *reqid, uint64_t hash) {
    const struct klk_reqid_shard *shard = klk_reqid_shard_at(reqids, hash);
    struct klk_reqid_slot *slot = shard->slots + klk_reqid_home(shard, reqid, hash);
    const struct klk_reqid_slot *end = shard->slots + shard->size;
    while (!klk_reqid_is(slot, reqid) && !klk_reqid_is_free(slot))
        if (++slot == end) slot = shard->slots;
    return slot;
}

static inline uint64_t klk_reqid_index(const struct klk_reqids *reqids,
                                       const struct klk_reqid_slot *slot) {
    return reqids->last_index - (uint32_t)((uint32_t)reqids->last_index - slot->index);
}

/* Whether a shard has room for this many more ids. */
static inline int klk_reqid_shard_fits(const struct klk_reqid_shard *shard, uint32_t more) {
    return (uint64_t)shard->count + more <= (uint64_t)shard->size * 7 / 10;
}

#endif
