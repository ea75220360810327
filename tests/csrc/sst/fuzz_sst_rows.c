/* The rows of a chunk of a bulk load, which a client sends, and the blocks made of them. */
#include "fuzz.h"
#include "sst.h"

/* The input: u8 rows, u8 bytes of the keys, u8 whether blocks are compressed; offsets of keys and
 * of values, keys, values. */
enum { HEAD = 3, BLOCK_BYTES = 64 };

size_t fuzz_seed(uint32_t number, uint8_t *out) {
    if (number > 1) return 0;
    uint8_t count = number ? 20 : 2;
    size_t used = HEAD;
    out[0] = count;
    out[2] = (uint8_t)number;
    for (uint32_t column = 0; column < 2; column++)
        for (uint32_t i = 0; i <= count; i++, used += 4) klk_put_u32(out + used, (3 - column) * i);
    out[1] = (uint8_t)(3 * count);
    for (uint8_t i = 0; i < count; i++, used += 3) memcpy(out + used, (uint8_t[]){'k', 'e', i}, 3);
    for (uint8_t i = 0; i < count; i++, used += 2) memcpy(out + used, "vv", 2);
    return used;
}

static void write_rows(const struct klk_sst_rows *rows, int compresses, size_t lacks) {
    size_t room = rows->keys_size + rows->values_size + KLK_SST_ROW_MAX * (size_t)rows->count;
    struct klk_sst_writer writer = {
        .out_max = room + room / 6 + KLK_SNAPPY_OVERHEAD,
        .block_max = room + 4 * (size_t)rows->count,
        .index_max = rows->keys_size + KLK_SST_ROW_MAX * (size_t)rows->count,
        .blocks_max = rows->count,
        .block_bytes = BLOCK_BYTES,
        .compresses = compresses,
    };
    writer.out_max /= lacks;
    writer.out = exact(writer.out_max);
    writer.block = exact(writer.block_max);
    writer.index = exact(writer.index_max);
    writer.restarts = exact(4 * (size_t)writer.blocks_max);
    int code = klk_sst_write(&writer, rows);
    REQUIRE(code == KLK_OK || (code == KLK_ESPACE && lacks > 1));
    REQUIRE(writer.out_size <= writer.out_max && writer.index_size <= writer.index_max);
    if (code == KLK_OK) REQUIRE(writer.blocks > 0);
    free(writer.out);
    free(writer.block);
    free(writer.index);
    free(writer.restarts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < HEAD) return 0;
    size_t offsets_size = 4 * ((size_t)data[0] + 1), used = HEAD + 2 * offsets_size;
    if (size < used) return 0;
    size_t keys_size = data[1] < size - used ? data[1] : size - used;
    size_t values_size = size - used - keys_size;
    uint8_t *parts[] = {
        exact_copy(data + HEAD, offsets_size),
        exact_copy(data + HEAD + offsets_size, offsets_size),
        exact_copy(data + used, keys_size),
        exact_copy(data + used + keys_size, values_size),
    };
    struct klk_sst_rows rows = {parts[0], parts[1], parts[2], parts[3], keys_size, values_size,
                                data[0]};
    int code = klk_sst_rows_check(&rows);
    REQUIRE(code == KLK_OK || code == KLK_ECORRUPT || code == KLK_EINVAL);
    if (code == KLK_OK) {
        write_rows(&rows, data[2] & 1, 1);
        write_rows(&rows, data[2] & 1, 2);
    }
    for (int i = 0; i < 4; i++) free(parts[i]);
    return 0;
}
