/* Which messages the grants of a key allow (protocols/access/rights.py has the table). */
#include "guard.h"

#include "messages.h"

enum { OWN_TYPES = 0x6b, MAGIC = 0x31, VERSION = 0x01 };
enum { TABLE_BYTES = 4, USE_BITS = 2, USE_MASK = 3 };

static const uint8_t *frame_at(const struct klk_messages *arena, uint32_t frame, uint32_t *size) {
    *size = arena->offsets[frame + 1] - arena->offsets[frame];
    return arena->bytes + arena->offsets[frame];
}

static int log_allows(const struct klk_guard *guard, const struct klk_key *key,
                      const struct klk_messages *arena, uint32_t first, uint32_t end) {
    uint32_t size, needed = 0;
    if (end - first < 3) return 1;
    const uint8_t *type = frame_at(arena, first + 2, &size);
    if (size == 1) needed = guard->needed[0][type[0]];
    if (size == 2 && type[0] == OWN_TYPES) needed = guard->needed[1][type[1]];
    return (key->rights & needed) != 0;
}

static int table_allows(const struct klk_guard *guard, const struct klk_key *key,
                        const uint8_t *frame, uint32_t size, uint32_t use) {
    if (!size) return (key->rights & guard->all_tables) != 0;
    if (size != TABLE_BYTES) return 1;
    uint32_t table = (uint32_t)frame[0] | (uint32_t)frame[1] << 8 | (uint32_t)frame[2] << 16 |
                     (uint32_t)frame[3] << 24;
    for (uint32_t i = 0; i < key->ranges; i++) {
        const struct klk_table_range *range = &key->tables[i];
        if (range->first <= table && table <= range->last && (range->uses & use)) return 1;
    }
    return 0;
}

static int tables_allows(const struct klk_guard *guard, const struct klk_key *key,
                         const struct klk_messages *arena, uint32_t first, uint32_t end) {
    uint32_t size, frame = first + 1;
    if (frame == end) return 1;
    const uint8_t *header = frame_at(arena, frame, &size);
    if (!size && ++frame < end) header = frame_at(arena, frame, &size); /* Of a REQ socket. */
    if (size < 3 || header[0] != MAGIC || header[1] != VERSION) return 1;
    if (!(key->rights & guard->needed[0][header[2]])) return 0;
    for (uint32_t uses = guard->uses[header[2]]; uses; uses >>= USE_BITS) {
        if (++frame == end) return (key->rights & guard->all_tables) != 0;
        const uint8_t *table = frame_at(arena, frame, &size);
        if ((uses & USE_MASK) && !table_allows(guard, key, table, size, uses & USE_MASK)) return 0;
    }
    return 1;
}

int klk_guard_allows(const struct klk_guard *guard, const struct klk_key *key,
                     const struct klk_messages *arena, uint32_t first, uint32_t end) {
    return guard->kind == KLK_GUARD_LOG ? log_allows(guard, key, arena, first, end)
                                        : tables_allows(guard, key, arena, first, end);
}
