/* Conversion of Garlic Farm's wire entries to log blocks and back. */
#ifndef KLK_FARM_H
#define KLK_FARM_H
#include "api.h"

enum klk_farm_limits {
    KLK_FARM_ENTRY_PREFIX = 13,        /* bytes before a value: term, value type, size */
    KLK_FARM_APPLICATION = 1,
    KLK_FARM_CONFIGURATION = 2,
    KLK_FARM_BLOCK_COUNT_MAX = 4096,   /* entries of one block */
    KLK_FARM_BLOCK_VALUES_MAX = 1 << 20 /* their values; one larger value is allowed */
};

/* Returns the number of entries that fill data exactly. All must be Application entries with terms
 * up to 2^53 - 1 and values that a record can hold; otherwise KLK_EINVAL. */
int64_t klk_farm_count(const uint8_t *data, size_t size);

/* Frames the entries of data from *at on as one block, up to a change of term or the limits above.
 * klk_farm_count() must have accepted data. term replaces the entries' terms unless 0. Returns the
 * block's size, sets count to its entries and moves *at behind them. Returns KLK_EINVAL if a block
 * cannot hold them, KLK_ESPACE if capacity is short (KLK_HEADER_SIZE + size + 8 is enough). */
ssize_t klk_farm_block(const uint8_t *data, size_t size, size_t *at, uint64_t first_index,
                       uint64_t term, uint32_t *count, uint8_t *out, size_t capacity);

/* Writes a block's records as wire entries: state records as Application, config records as
 * Configuration. Returns the bytes written; KLK_EINVAL on another record, KLK_ECORRUPT on a damaged
 * block, KLK_ESPACE if capacity is short (size + KLK_FARM_ENTRY_PREFIX * count is enough). */
ssize_t klk_farm_entries(const uint8_t *block, size_t size, uint8_t *out, size_t capacity);
#endif
