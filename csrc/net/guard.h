/* What the keys of a process may send: a part of api.h. */
#ifndef KLK_GUARD_H
#define KLK_GUARD_H
#include "api.h"

enum klk_guard_limit {
    KLK_TABLE_RANGES_MAX = 16,
    KLK_KEY_NAME_MAX = 128,
    KLK_DENIED_FRAMES = 5
};

/* Of the processes of a node (protocols/access/grants.py). */
enum klk_right { KLK_RIGHT_ADMIN = 256, KLK_RIGHT_INTERNAL = 2048 };

enum klk_table_use { KLK_TABLE_READ = 1, KLK_TABLE_WRITE = 2 };

struct klk_table_range {
    uint32_t first, last;
    uint32_t uses;               /* enum klk_table_use */
};

/* A name, or the beginning of names. */
struct klk_pattern {
    uint8_t size;
    uint8_t is_prefix;
    uint8_t bytes[255];
};

struct klk_patterns {
    const struct klk_pattern *patterns;
    uint32_t count;
};

/* A key that may connect to this process, and its grants (protocols/access/grants.py). */
struct klk_key {
    uint32_t generation;
    uint32_t rights;
    uint32_t ranges;
    struct klk_table_range tables[16];
    struct klk_patterns services; /* that it may call */
    struct klk_patterns offers;   /* services that it may offer */
    uint32_t name_size;          /* 0: it may use all names */
    uint8_t name[128];
};

/* The keys by slot. A message's User-Id is SLOT.GENERATION, decimal (protocols/access/zap.py). */
struct klk_keys {
    const struct klk_key *keys;
    uint32_t count;
    uint64_t revoked;            /* messages of keys that are no longer allowed: dropped */
};

enum klk_guard_kind {
    KLK_GUARD_LOG = 1,           /* [routing id][id][type]... */
    KLK_GUARD_TABLES = 2,        /* ([routing id]([]))[header: 0x31 0x01 type][table].. */
    KLK_GUARD_BROKER = 3         /* as csrc/broker/exchange_wire.c reads them */
};

/* Headers of the broker's own framing. */
enum klk_guard_header {
    KLK_GUARD_CLIENT,
    KLK_GUARD_WORKER,
    KLK_GUARD_DEADLINE,
    KLK_GUARD_NAMED,
    KLK_GUARD_HEADERS
};

/* A service of the broker itself. */
struct klk_own_service {
    struct klk_pattern name;
    uint32_t needed;             /* one of these rights; 0: refused */
    uint32_t names_another;      /* the first frame of the body is a service that is used, too */
    uint32_t sees_all;           /* the rights by which that one may be any service */
};

/* What the messages of a broker's clients and workers need. */
struct klk_broker_guard {
    struct klk_pattern headers[4];
    uint32_t call, work;         /* the rights of clients, but for the own services, and workers */
    uint32_t own_count;
    uint8_t own_first[256];      /* whether names of own services may begin with this octet */
    struct klk_own_service own[16]; /* the first that matches counts */
};

/* What the messages of an endpoint need (protocols/access/guards.py). */
struct klk_guard {
    int32_t kind;
    int32_t unrouted;            /* messages have no routing id: of PULL and SUB */
    uint32_t needed[2][256];     /* one of these rights, by type, and by second byte after 0x6b;
                                  * 0: refused */
    uint8_t uses[256];           /* of the first table, bits 0 and 1, and of the second, 2 and 3 */
    uint32_t all_tables;         /* the right to name no table where a type uses one */
    const struct klk_broker_guard *broker; /* of KLK_GUARD_BROKER */
    uint8_t senders[2][256];     /* which frame must be empty or the key's name; 0: none. Types as
                                  * in `needed` */
    int32_t reports_only;        /* refused messages are received all the same */
};

/* Whether the sender's key may send the message of the frames first to end - 1. A frame of a wrong
 * size or number is allowed where no table or service is seen: the codec refuses the message. */
int klk_guard_allows(const struct klk_guard *guard, const struct klk_key *key,
                     const struct klk_messages *arena, uint32_t first, uint32_t end);

/* Whether the message is an administrative command: its type needs the right ADMIN, or allows it
 * and the sender has it. key: NULL: the endpoint has no keys. */
int klk_guard_audits(const struct klk_guard *guard, const struct klk_key *key,
                     const struct klk_messages *arena, uint32_t first, uint32_t end);

#endif
