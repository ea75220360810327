/* Entries on Garlic Farm's wire, in and out of blocks: a part of api.h. */
#ifndef KLK_FARM_H
#define KLK_FARM_H
#include "api.h"

enum klk_farm_limits {
    KLK_FARM_ENTRY_PREFIX = 13,        /* of an entry on this wire: term, value type, size */
    KLK_FARM_APPLICATION = 1,
    KLK_FARM_CONFIGURATION = 2,
    KLK_FARM_BLOCK_COUNT_MAX = 4096,   /* entries that become one block */
    KLK_FARM_BLOCK_VALUES_MAX = 1 << 20 /* bytes of their values, if one is not larger */
};

/* How many entries fill data exactly, if all of them are Application, of terms up to 2^53 - 1 and
 * of values that a record can hold; KLK_EINVAL if anything is otherwise: another one says what. */
int64_t klk_farm_count(const uint8_t *data, size_t size);

/* Frames entries of data that klk_farm_count() has seen, from *at on, as one block: up to another
 * term, or the limits above. term: of the block, whatever they say; 0: as they say. Returns the
 * block's size, with the number of its entries in count and *at behind them; KLK_EINVAL when no
 * block can hold them, KLK_ESPACE when capacity is short (KLK_HEADER_SIZE + size + 8 is enough). */
ssize_t klk_farm_block(const uint8_t *data, size_t size, size_t *at, uint64_t first_index,
                       uint64_t term, uint32_t *count, uint8_t *out, size_t capacity);

/* Writes a block's records as entries of this wire: states as Application, configurations as
 * Configuration. Returns the bytes written, KLK_EINVAL on a record that is neither, KLK_ESPACE when
 * capacity is short (size + KLK_FARM_ENTRY_PREFIX * count is enough), KLK_ECORRUPT. */
ssize_t klk_farm_entries(const uint8_t *block, size_t size, uint8_t *out, size_t capacity);
#endif
