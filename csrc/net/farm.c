/* Converts entries of Garlic Farm's wire to log blocks and back, a batch per call. */
#include "farm.h"
#include "bytes.h"
#include "walk.h"

#include <string.h>

#define TERM_MAX ((1ull << 53) - 1)
#define KIND_STATE 0
#define KIND_CONFIG 1

static uint64_t get_number(const uint8_t *data, size_t size) {
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++) value = value << 8 | data[i];
    return value;
}

static void put_number(uint8_t *out, size_t size, uint64_t value) {
    for (size_t i = size; i > 0; i--) {
        out[i - 1] = (uint8_t)value;
        value >>= 8;
    }
}

struct entry {
    uint64_t term;
    const uint8_t *value;
    uint32_t size;
    uint8_t type;
};

/* Reads the entry at data. Returns 0 if it is incomplete. */
static int entry_read(const uint8_t *data, size_t size, struct entry *entry) {
    if (size < KLK_FARM_ENTRY_PREFIX) return 0;
    entry->term = get_number(data, 8);
    entry->type = data[8];
    entry->size = (uint32_t)get_number(data + 9, 4);
    entry->value = data + KLK_FARM_ENTRY_PREFIX;
    return entry->size <= size - KLK_FARM_ENTRY_PREFIX;
}

int64_t klk_farm_count(const uint8_t *data, size_t size) {
    struct entry entry;
    int64_t count = 0;
    for (size_t at = 0; at < size; count++) {
        if (!entry_read(data + at, size - at, &entry) || entry.type != KLK_FARM_APPLICATION ||
            entry.term > TERM_MAX || entry.size > KLK_LONE_BYTES_MAX) {
            return KLK_EINVAL;
        }
        at += KLK_FARM_ENTRY_PREFIX + entry.size;
    }
    return count;
}

ssize_t klk_farm_block(const uint8_t *data, size_t size, size_t *at, uint64_t first_index,
                       uint64_t term, uint32_t *count, uint8_t *out, size_t capacity) {
    struct entry entry;
    size_t position = *at, values = 0, used = KLK_HEADER_SIZE;
    uint64_t block_term = term;
    uint32_t used_count = 0;
    while (position < size && used_count < KLK_FARM_BLOCK_COUNT_MAX) {
        if (!entry_read(data + position, size - position, &entry)) return KLK_EINVAL;
        if (used_count == 0 && term == 0) block_term = entry.term;
        if (used_count > 0 && ((term == 0 && entry.term != block_term) ||
                          values + entry.size > KLK_FARM_BLOCK_VALUES_MAX)) {
            break;
        }
        if (entry.size > KLK_LONE_BYTES_MAX) return KLK_EINVAL;
        if (used > capacity || capacity - used < klk_record_size(entry.size, 0)) return KLK_ESPACE;
        used += klk_record_write(out + used, KIND_STATE, NULL, entry.value, entry.size);
        values += entry.size;
        position += KLK_FARM_ENTRY_PREFIX + entry.size;
        used_count++;
    }
    if (klk_block_size(used - KLK_HEADER_SIZE) > capacity) return KLK_ESPACE;
    ssize_t sealed =
        klk_block_seal(out, first_index, block_term, used_count, used - KLK_HEADER_SIZE);
    if (sealed < 0) return sealed;
    *at = position;
    *count = used_count;
    return sealed;
}

ssize_t klk_farm_entries(const uint8_t *block, size_t size, uint8_t *out, size_t capacity) {
    struct klk_header header;
    struct klk_record record;
    struct klk_walk walk;
    size_t used = 0;
    if (klk_walk_start(block, size, &header, &walk) != KLK_OK) return KLK_ECORRUPT;
    for (uint32_t i = 0; i < header.count; i++) {
        if (klk_walk_next(&walk, &record) != KLK_OK) return KLK_ECORRUPT;
        if (record.kind != KIND_STATE && record.kind != KIND_CONFIG) return KLK_EINVAL;
        size_t bytes = KLK_FARM_ENTRY_PREFIX + (size_t)record.data_size;
        if (capacity - used < bytes) return KLK_ESPACE;
        put_number(out + used, 8, header.term);
        out[used + 8] = record.kind == KIND_STATE ? KLK_FARM_APPLICATION : KLK_FARM_CONFIGURATION;
        put_number(out + used + 9, 4, record.data_size);
        if (record.data_size > 0) {
            memcpy(out + used + KLK_FARM_ENTRY_PREFIX, record.data, record.data_size);
        }
        used += bytes;
    }
    return (ssize_t)used;
}
