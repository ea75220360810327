/* The layout of a block in a table file, for sst.c and sst_merge.c, not for cffi. */
#ifndef KLK_SST_BLOCK_H
#define KLK_SST_BLOCK_H
#include <string.h>

#include "api.h"
#include "bytes.h"
#include "sst.h"

/* The order of keys: by bytes, a shorter one first. */
static inline int klk_key_order(const uint8_t *a, size_t a_size, const uint8_t *b, size_t b_size) {
    size_t size = a_size < b_size ? a_size : b_size;
    int order = size ? memcmp(a, b, size) : 0;
    if (order) return order;
    return a_size < b_size ? -1 : a_size > b_size;
}

/* A number of at most 32 bits, 7 a byte. Returns the position behind it, or NULL. */
static inline const uint8_t *klk_varint_read(const uint8_t *at, const uint8_t *end,
                                             uint32_t *value) {
    if (at < end && *at < 0x80) {
        *value = *at;
        return at + 1;
    }
    uint64_t found = 0;
    for (int shift = 0; at < end && shift < 35; shift += 7) {
        found |= (uint64_t)(*at & 0x7f) << shift;
        if (*at++ < 0x80) {
            *value = (uint32_t)found;
            return found <= UINT32_MAX ? at : NULL;
        }
    }
    return NULL;
}

/* The size of a block's entries. Behind them are restart points (u32) and their number (u32). */
static inline ssize_t klk_sst_entries_size(const uint8_t *block, size_t size) {
    if (size < 4) return KLK_ECORRUPT;
    uint32_t restarts = klk_get_u32(block + size - 4);
    if (restarts >> 28) return KLK_EUNKNOWN; /* a hash index, or a future form */
    if (restarts > (size - 4) / 4) return KLK_ECORRUPT;
    return (ssize_t)(size - 4 - 4 * (size_t)restarts);
}

#endif
