/* What a block of a table's file is made of: for sst.c and sst_merge.c, not for cffi. */
#ifndef KLK_SST_BLOCK_H
#define KLK_SST_BLOCK_H
#include <string.h>

#include "api.h"
#include "bytes.h"
#include "sst.h"

/* The order of keys: by bytes, the shorter one first. */
static inline int klk_key_order(const uint8_t *a, size_t a_size, const uint8_t *b, size_t b_size) {
    size_t size = a_size < b_size ? a_size : b_size;
    int order = size ? memcmp(a, b, size) : 0;
    if (order) return order;
    return a_size < b_size ? -1 : a_size > b_size;
}

/* A number of at most 32 bits, 7 a byte. Returns what lies behind it, or NULL. */
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

/* How many bytes the entries of a block have: behind them stand u32 for places to begin at, and how
 * many these are. */
static inline ssize_t klk_sst_entries_size(const uint8_t *block, size_t size) {
    if (size < 4) return KLK_ECORRUPT;
    uint32_t restarts = klk_get_u32(block + size - 4);
    if (restarts >> 28) return KLK_EUNKNOWN; /* A hash index, or what later versions may add. */
    if (restarts > (size - 4) / 4) return KLK_ECORRUPT;
    return (ssize_t)(size - 4 - 4 * (size_t)restarts);
}

#endif
