/* Which messages the grants of a key allow (protocols/access/rights.py has the table), and how many
 * of each client wait. */
#include "guard.h"

#include <string.h>

#include "bytes.h"
#include "messages.h"
#include "shares.h"

enum { OWN_TYPES = 0x6b, MAGIC = 0x31, VERSION = 0x01 };
enum { TABLE_BYTES = 4, USE_BITS = 2, USE_MASK = 3 };
/* Requests with tables in further frames (protocols/zerodb/wire/requests.py). */
enum { WRITE_TABLES = 0x24, TRANSACTION = 0x25, LEASE = 0x43 };
enum { PART_BYTES = 9, COUNTS_BYTES = 12, STEP_BYTES = 5, RANGE_BYTES = 13, STEPS_MAX = 1024 };
enum { GET = 0x10, GET_RANGE = 0x12 };
enum { LEASE_OPEN = 2 };
enum { MDP_BYTES = 6, READY = 0x01, READY_CREDIT = 0x07 }; /* Of a broker's workers. */

static const uint8_t *frame_at(const struct klk_messages *arena, uint32_t frame, uint32_t *size) {
    *size = arena->offsets[frame + 1] - arena->offsets[frame];
    return arena->bytes + arena->offsets[frame];
}

/* The type of a message of the log of 3 frames or more, and its bytes; NULL: there is none. */
static const uint8_t *log_type(const struct klk_messages *arena, uint32_t first, uint32_t *size) {
    const uint8_t *type = frame_at(arena, first + 2, size);
    return *size < 1 || *size > 2 || (*size == 2 && type[0] != OWN_TYPES) ? NULL : type;
}

static int log_allows(const struct klk_guard *guard, const struct klk_key *key,
                      const struct klk_messages *arena, uint32_t first, uint32_t end) {
    uint32_t size;
    if (end - first < 3) return 1;
    const uint8_t *type = log_type(arena, first, &size);
    if (!type) return 0;
    if (!(key->rights & guard->needed[size - 1][type[size - 1]])) return 0;
    uint32_t sender = guard->senders[size - 1][type[size - 1]];
    if (!sender || sender >= end - first || !key->name_size) return 1;
    const uint8_t *name = frame_at(arena, first + sender, &size);
    return !size || (size == key->name_size && !memcmp(name, key->name, size));
}

static int table_allows(const struct klk_key *key, uint32_t table, uint32_t use) {
    for (uint32_t i = 0; i < key->ranges; i++) {
        const struct klk_table_range *range = &key->tables[i];
        if (range->first <= table && table <= range->last && (range->uses & use)) return 1;
    }
    return 0;
}

static int frame_allows(const struct klk_guard *guard, const struct klk_key *key,
                        const uint8_t *frame, uint32_t size, uint32_t use) {
    if (!size) return (key->rights & guard->all_tables) != 0;
    return size != TABLE_BYTES || table_allows(key, klk_get_u32(frame), use);
}

/* A batch: for each part a frame u32 table, u32 count, u8 0 put or 1 delete, then its pairs or
 * keys. */
static int batch_allows(const struct klk_key *key, const struct klk_messages *arena,
                        uint64_t frame, uint32_t end) {
    while (frame < end) {
        uint32_t size;
        const uint8_t *part = frame_at(arena, (uint32_t)frame, &size);
        if (size != PART_BYTES || part[8] > 1) return 1;
        if (!table_allows(key, klk_get_u32(part), KLK_TABLE_WRITE)) return 0;
        frame += 1 + (uint64_t)klk_get_u32(part + 4) * (part[8] ? 1 : 2);
    }
    return 1;
}

/* A transaction: the frame u32 compares, u32 then, u32 else; then for each of them the frames u8
 * kind and u32 table, key, operand; a range has its limit behind the table. */
static int transaction_allows(const struct klk_key *key, const struct klk_messages *arena,
                              uint32_t frame, uint32_t end) {
    uint32_t size, steps = 0, compares = 0;
    if (frame == end) return 1;
    const uint8_t *counts = frame_at(arena, frame, &size);
    if (size != COUNTS_BYTES) return 1;
    for (int i = 0; i < 3; i++) {
        uint32_t count = klk_get_u32(counts + 4 * i);
        if (count > STEPS_MAX) return 1;
        if (!i) compares = count;
        steps += count;
    }
    if (1 + 3 * steps > end - frame) return 1;
    for (uint32_t i = 0; i < steps; i++) {
        const uint8_t *step = frame_at(arena, frame + 1 + 3 * i, &size);
        if (size != STEP_BYTES && size != RANGE_BYTES) return 1;
        int reads = i < compares || step[0] == GET || step[0] == GET_RANGE;
        uint32_t use = reads ? KLK_TABLE_READ : KLK_TABLE_WRITE;
        if (!table_allows(key, klk_get_u32(step + 1), use)) return 0;
    }
    return 1;
}

/* The lease of a table is opened by the frames lease, u8 2, table. */
static int lease_allows(const struct klk_guard *guard, const struct klk_key *key,
                        const struct klk_messages *arena, uint32_t frame, uint32_t end) {
    uint32_t size;
    if (end - frame < 3) return 1;
    const uint8_t *action = frame_at(arena, frame + 1, &size);
    if (size != 1 || action[0] != LEASE_OPEN) return 1;
    const uint8_t *table = frame_at(arena, frame + 2, &size);
    return frame_allows(guard, key, table, size, KLK_TABLE_READ);
}

/* The header of a request, and its frame; NULL: there is none. */
static const uint8_t *tables_header(const struct klk_guard *guard,
                                    const struct klk_messages *arena, uint32_t first, uint32_t end,
                                    uint32_t *frame) {
    uint32_t size;
    *frame = first + !guard->unrouted;
    if (*frame == end) return NULL;
    const uint8_t *header = frame_at(arena, *frame, &size);
    if (!size && !guard->unrouted && ++*frame < end)
        header = frame_at(arena, *frame, &size); /* Of a REQ socket. */
    return size < 3 || header[0] != MAGIC || header[1] != VERSION ? NULL : header;
}

static int tables_allows(const struct klk_guard *guard, const struct klk_key *key,
                         const struct klk_messages *arena, uint32_t first, uint32_t end) {
    uint32_t size, frame;
    const uint8_t *header = tables_header(guard, arena, first, end, &frame);
    if (!header) return 1;
    uint8_t type = header[2];
    if (!(key->rights & guard->needed[0][type])) return 0;
    if (type == WRITE_TABLES) return batch_allows(key, arena, frame + 1, end);
    if (type == TRANSACTION) return transaction_allows(key, arena, frame + 1, end);
    if (type == LEASE) return lease_allows(guard, key, arena, frame + 1, end);
    for (uint32_t uses = guard->uses[type]; uses; uses >>= USE_BITS) {
        if (++frame == end) return (key->rights & guard->all_tables) != 0;
        const uint8_t *table = frame_at(arena, frame, &size);
        if ((uses & USE_MASK) && !frame_allows(guard, key, table, size, uses & USE_MASK)) return 0;
    }
    return 1;
}

/* ---- brokers ---- */

/* A frame of a message; empty behind the last one. */
struct frame {
    const uint8_t *data;
    uint32_t size;
};

static struct frame frame_of(const struct klk_messages *arena, uint32_t frame, uint32_t end) {
    struct frame found = {NULL, 0};
    if (frame < end) found.data = frame_at(arena, frame, &found.size);
    return found;
}

static int is_like(struct frame frame, const struct klk_pattern *pattern) {
    if (pattern->is_prefix ? frame.size < pattern->size : frame.size != pattern->size) return 0;
    return !pattern->size || memcmp(frame.data, pattern->bytes, pattern->size) == 0;
}

static int is_among(struct frame service, const struct klk_patterns *all) {
    for (uint32_t i = 0; i < all->count; i++)
        if (is_like(service, &all->patterns[i])) return 1;
    return 0;
}

static int is_header(struct frame frame, const char *header) {
    return frame.size == MDP_BYTES && memcmp(frame.data, header, MDP_BYTES) == 0;
}

/* The row of a service of the broker itself; NULL: it is none. */
static const struct klk_own_service *own_find(const struct klk_broker_guard *guard,
                                              struct frame name) {
    if (!name.size || !guard->own_first[name.data[0]]) return NULL;
    for (uint32_t i = 0; i < guard->own_count; i++)
        if (is_like(name, &guard->own[i].name)) return &guard->own[i];
    return NULL;
}

/* service: the number of its frame; body: of the first frame of the body. */
static int call_allows(const struct klk_broker_guard *guard, const struct klk_key *key,
                       const struct klk_messages *arena, uint32_t service, uint32_t body,
                       uint32_t end) {
    struct frame name = frame_of(arena, service, end);
    const struct klk_own_service *own = own_find(guard, name);
    if (!own) return (key->rights & guard->call) && is_among(name, &key->services);
    if (!(key->rights & own->needed)) return 0;
    if (!own->names_another || (key->rights & own->sees_all)) return 1;
    struct frame another = frame_of(arena, body, end);
    /* No name and own services have no workers: the broker says so. */
    return !another.size || own_find(guard, another) || is_among(another, &key->services);
}

static int broker_allows(const struct klk_broker_guard *guard, const struct klk_key *key,
                         const struct klk_messages *arena, uint32_t first, uint32_t end) {
    const struct klk_pattern *headers = guard->headers;
    uint32_t place = first + 1;
    struct frame header = frame_of(arena, place++, end);
    int is_first_version = place < end && !header.size; /* MDP/0.1 */
    if (is_first_version) header = frame_of(arena, place++, end);
    int is_own = !is_first_version && is_like(header, &headers[KLK_GUARD_WORKER]);
    if (is_own || is_header(header, is_first_version ? "MDPW01" : "MDPW02")) {
        struct frame command = frame_of(arena, place++, end);
        if (!(key->rights & guard->work)) return 0;
        if (command.size != 1 || (command.data[0] != READY && command.data[0] != READY_CREDIT))
            return 1;
        return is_among(frame_of(arena, place, end), &key->offers);
    }
    if (is_first_version)
        return !is_header(header, "MDPC01") ||
               call_allows(guard, key, arena, place, place + 1, end);
    if (is_header(header, "MDPC02"))
        return call_allows(guard, key, arena, place + 1, place + 2, end);
    if (is_like(header, &headers[KLK_GUARD_CLIENT]))
        return call_allows(guard, key, arena, place + 1, place + 3, end);
    /* With a frame of options behind the request id. */
    return (!is_like(header, &headers[KLK_GUARD_NAMED]) &&
            !is_like(header, &headers[KLK_GUARD_DEADLINE])) ||
           call_allows(guard, key, arena, place + 1, place + 4, end);
}

int klk_guard_allows(const struct klk_guard *guard, const struct klk_key *key,
                     const struct klk_messages *arena, uint32_t first, uint32_t end) {
    switch (guard->kind) {
    case KLK_GUARD_LOG: return log_allows(guard, key, arena, first, end);
    case KLK_GUARD_TABLES: return tables_allows(guard, key, arena, first, end);
    default: return broker_allows(guard->broker, key, arena, first, end);
    }
}

int klk_guard_audits(const struct klk_guard *guard, const struct klk_key *key,
                     const struct klk_messages *arena, uint32_t first, uint32_t end) {
    uint32_t needed = 0, size, frame;
    if (guard->kind == KLK_GUARD_LOG && end - first >= 3) {
        const uint8_t *type = log_type(arena, first, &size);
        if (type) needed = guard->needed[size - 1][type[size - 1]];
    } else if (guard->kind == KLK_GUARD_TABLES) {
        const uint8_t *header = tables_header(guard, arena, first, end, &frame);
        if (header) needed = guard->needed[0][header[2]];
    }
    if (!(needed & KLK_RIGHT_ADMIN) || (needed & KLK_RIGHT_INTERNAL)) return 0;
    return needed == KLK_RIGHT_ADMIN || (key && (key->rights & KLK_RIGHT_ADMIN));
}

/* ---- what waits of each client ---- */

void klk_shares_take(struct klk_shares *shares, const struct klk_messages *arena,
                     uint32_t *numbers, uint32_t *clients, uint32_t *count) {
    uint32_t taken = 0;
    for (uint32_t i = 0; i < *count; i++) {
        uint32_t client = klk_client_of(shares->seed, shares->foreign_slot, arena, numbers[i]);
        uint32_t has = shares->counts[client];
        uint32_t most = shares->count < shares->crowded ? shares->client_max : KLK_SHARES_FEW;
        if (has >= most || shares->count >= shares->all_max) {
            shares->refused++;
            continue;
        }
        shares->counts[client]++;
        shares->count++;
        clients[taken] = client;
        numbers[taken++] = numbers[i];
    }
    *count = taken;
}

void klk_shares_release(struct klk_shares *shares, uint32_t client) {
    if (client >= KLK_SHARES_CLIENTS || !shares->counts[client]) return;
    shares->counts[client]--;
    shares->count--;
}
