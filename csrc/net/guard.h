/* What the keys of a process may send: a part of api.h. */
#ifndef KLK_GUARD_H
#define KLK_GUARD_H
#include "api.h"

enum klk_guard_limit { KLK_TABLE_RANGES_MAX = 16, KLK_DENIED_FRAMES = 4 };

enum klk_table_use { KLK_TABLE_READ = 1, KLK_TABLE_WRITE = 2 };

struct klk_table_range {
    uint32_t first, last;
    uint32_t uses;               /* enum klk_table_use */
};

/* A key that may connect to this process, and its grants (protocols/access/grants.py). */
struct klk_key {
    uint32_t generation;
    uint32_t rights;
    uint32_t ranges;
    struct klk_table_range tables[16];
};

/* The keys by slot. A message's User-Id is SLOT.GENERATION, decimal (protocols/access/zap.py). */
struct klk_keys {
    const struct klk_key *keys;
    uint32_t count;
    uint64_t revoked;            /* messages of keys that are no longer allowed: dropped */
};

enum klk_guard_kind {
    KLK_GUARD_LOG = 1,           /* [routing id][id][type]... */
    KLK_GUARD_TABLES = 2         /* [routing id]([])[header: 0x31 0x01 type][table]... */
};

/* What the messages of an endpoint need (protocols/access/guards.py). */
struct klk_guard {
    int32_t kind;
    uint32_t needed[2][256];     /* one of these rights, by type, and by second byte after 0x6b;
                                  * 0: refused */
    uint8_t uses[256];           /* of the first table, bits 0 and 1, and of the second, 2 and 3 */
    uint32_t all_tables;         /* the right to name no table where a type uses one */
};

/* Whether the sender's key may send the message of the frames first to end - 1. Of tables in
 * further frames it knows nothing. A frame of a wrong size is allowed: the codec refuses it. */
int klk_guard_allows(const struct klk_guard *guard, const struct klk_key *key,
                     const struct klk_messages *arena, uint32_t first, uint32_t end);

#endif
