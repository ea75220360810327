/* Blocks of RocksDB's block-based tables, format 5, and their index. */
#include <string.h>

#include "api.h"
#include "bytes.h"
#include "sst_block.h"

/* The checksum excludes the byte behind the block, which is mixed in separately. */
#define LAST_BYTE_PRIME 0x6b9083d9u

static uint32_t checksum(const uint8_t *stored, size_t size, uint8_t kind) {
    return (uint32_t)klk_xxh3(stored, size) ^ kind * LAST_BYTE_PRIME;
}

int klk_sst_block_check(const uint8_t *stored, size_t size) {
    uint8_t kind = stored[size];
    if (checksum(stored, size, kind) != klk_get_u32(stored + size + 1)) return KLK_ECORRUPT;
    return kind == KLK_SST_PLAIN || kind == KLK_SST_SNAPPY ? kind : KLK_EUNKNOWN;
}

void klk_sst_block_seal(uint8_t *stored, size_t size, uint8_t kind) {
    stored[size] = kind;
    klk_put_u32(stored + size + 1, checksum(stored, size, kind));
}

/* Reads a handle: offset and size of a block. Returns the position behind it, or NULL. */
static const uint8_t *handle_read(const uint8_t *at, const uint8_t *end, uint64_t *handle) {
    for (int i = 0; i < 2; i++) {
        handle[i] = 0;
        for (int shift = 0;; shift += 7) {
            if (at == end || shift > 63) return NULL;
            handle[i] |= (uint64_t)(*at & 0x7f) << shift;
            if (*at++ < 0x80) break;
        }
    }
    return at;
}

static int is_within(const uint64_t *handle, uint64_t file_size) {
    return handle[0] <= file_size && handle[1] <= UINT32_MAX &&
           handle[1] + KLK_SST_TRAILER_SIZE <= file_size - handle[0];
}

int klk_sst_index(const uint8_t *block, size_t size, const struct klk_sst_bounds *bounds,
                  struct klk_sst_blocks *blocks) {
    ssize_t entries = klk_sst_entries_size(block, size);
    if (entries < 0) return (int)entries;
    const uint8_t *at = block, *end = block + entries;
    uint32_t count = 0;
    int behind = 0; /* the keys of the next block are all behind the end */
    while (at < end && !behind) {
        uint32_t shared, own;
        uint64_t handle[2];
        if (!(at = klk_varint_read(at, end, &shared)) || !(at = klk_varint_read(at, end, &own)))
            return KLK_ECORRUPT;
        if (shared != 0) return KLK_EUNKNOWN;
        if (own > (size_t)(end - at) || own < bounds->stamp_size) return KLK_ECORRUPT;
        const uint8_t *key = at;
        uint32_t key_size = own - bounds->stamp_size;
        if (!(at = handle_read(at + own, end, handle)) || !is_within(handle, bounds->file_size))
            return KLK_ECORRUPT;
        /* The separator is not below the last key of its block, and below the first key of the
         * next; for versions of one key in both blocks it may be equal. */
        behind = bounds->end_size != 0 &&
                 klk_key_order(key, key_size, bounds->end, bounds->end_size) >= 0;
        if (klk_key_order(key, key_size, bounds->start, bounds->start_size) < 0) continue;
        if (count == blocks->count_max) return KLK_ESPACE;
        blocks->offsets[count] = handle[0];
        blocks->sizes[count++] = handle[1];
    }
    blocks->count = count;
    return KLK_OK;
}

ssize_t klk_sst_blocks_check(const struct klk_sst_blocks *blocks, uint32_t first,
                             const uint8_t *data, size_t size, uint64_t base) {
    for (; first < blocks->count; first++) {
        uint64_t offset = blocks->offsets[first], block_size = blocks->sizes[first];
        if (offset < base || offset - base > size ||
            block_size + KLK_SST_TRAILER_SIZE > size - (offset - base))
            break;
        if (klk_sst_block_check(data + (offset - base), block_size) == KLK_ECORRUPT)
            return KLK_ECORRUPT;
    }
    return first;
}
