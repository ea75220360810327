/* The table of request ids, for updates.c: what is called for every update stands inline. */
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
    memcpy(&low, reqid + 8, 4);
    hash = (high ^ reqids->seeds[0]) * 0x9e3779b97f4a7c15ull;
    hash = (hash ^ hash >> 32 ^ low ^ reqids->seeds[1]) * 0xff51afd7ed558ccdull;
    hash = (hash ^ hash >> 33) * 0xc4ceb9fe1a85ec53ull;
    return hash ^ hash >> 29;
}

/* The high bits choose the shard, the low half the slot, so the two are independent. */
static inline int klk_reqid_shard_of(uint64_t hash) { return (int)(hash >> 56); }

static inline uint32_t klk_reqid_home(const struct klk_reqid_shard *shard, uint64_t hash) {
    return (uint32_t)((hash & 0xffffffffu) * shard->size >> 32);
}

/* Brings the slot of an id nearer: a table of a million ids is in no cache. */
static inline void klk_reqids_prefetch(const struct klk_reqids *reqids, const uint8_t *reqid) {
    uint64_t hash = klk_reqid_hash(reqids, reqid);
    const struct klk_reqid_shard *shard = &reqids->shards[klk_reqid_shard_of(hash)];
    __builtin_prefetch(&shard->slots[klk_reqid_home(shard, hash)], 1);
}

/* Whether a shard has room for so many more. */
static inline int klk_reqid_shard_fits(const struct klk_reqid_shard *shard, uint32_t more) {
    return (uint64_t)shard->count + more <= (uint64_t)shard->size * 7 / 10;
}

#endif
