/* csrc/sst/snappy_encode.c and sst_write.c on exact-size heap buffers. */
#include "bytes.h"
#include "exact.h"
#include "sst.h"

enum { ROUNDS = 400, SIZE_MAX_ENCODED = 70000, ROWS = 100, KEY = 8, VALUE = 30 };

static void test_snappy(void) {
    uint32_t dice = 7;
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t letters = 1u << round % 9;
        size_t size = round % 8 == 7 ? next_random(&dice) % SIZE_MAX_ENCODED
                                     : next_random(&dice) % 300;
        uint8_t *data = exact(size), *again = exact(size);
        for (size_t i = 0; i < size; i++) data[i] = (uint8_t)(next_random(&dice) % letters);
        uint8_t *out = exact(size + size / 6 + KLK_SNAPPY_OVERHEAD);
        size_t used = klk_snappy_encode(data, size, out);
        uint8_t *encoded = exact_copy(out, used);
        REQUIRE(klk_snappy_decode(encoded, used, again, size) == KLK_OK);
        REQUIRE(size == 0 || memcmp(data, again, size) == 0);
        free(data);
        free(again);
        free(out);
        free(encoded);
    }
}

/* The whole range of sorted rows lies in blocks that klk_sst_blocks_check() accepts. */
static void test_write(int compresses) {
    uint8_t *key_offsets = exact(4 * (ROWS + 1)), *value_offsets = exact(4 * (ROWS + 1));
    uint8_t *keys = exact(KEY * ROWS), *values = exact(VALUE * ROWS);
    memset(values, 'v', VALUE * ROWS);
    for (uint32_t i = 0; i <= ROWS; i++) {
        klk_put_u32(key_offsets + 4 * i, KEY * i);
        klk_put_u32(value_offsets + 4 * i, VALUE * i);
        if (i == ROWS) break;
        memset(keys + KEY * i, 'k', KEY);
        keys[KEY * i + KEY - 1] = (uint8_t)i;
    }
    struct klk_sst_rows rows = {key_offsets, value_offsets, keys, values,
                                KEY * ROWS,  VALUE * ROWS,  ROWS};
    size_t room = (KEY + VALUE + KLK_SST_ROW_MAX) * ROWS;
    struct klk_sst_writer writer = {
        .out_max = room + room / 6 + KLK_SNAPPY_OVERHEAD,
        .block_max = room + 4 * ROWS,
        .index_max = (KEY + KLK_SST_ROW_MAX) * ROWS,
        .blocks_max = ROWS,
        .block_bytes = 500,
        .compresses = compresses,
    };
    writer.out = exact(writer.out_max);
    writer.block = exact(writer.block_max);
    writer.index = exact(writer.index_max);
    writer.restarts = exact(4 * ROWS);
    REQUIRE(klk_sst_write(&writer, &rows) == KLK_OK);
    REQUIRE(writer.blocks > 5);

    size_t index_size = writer.index_size + 4 * (size_t)writer.blocks + 4;
    uint8_t *index = exact(index_size);
    memcpy(index, writer.index, writer.index_size);
    for (uint32_t i = 0; i < writer.blocks; i++)
        klk_put_u32(index + writer.index_size + 4 * i, writer.restarts[i]);
    klk_put_u32(index + index_size - 4, writer.blocks);
    uint64_t offsets[ROWS], sizes[ROWS];
    struct klk_sst_blocks blocks = {offsets, sizes, 0, ROWS};
    struct klk_sst_bounds bounds = {.file_size = writer.out_size};
    REQUIRE(klk_sst_index(index, index_size, &bounds, &blocks) == KLK_OK);
    REQUIRE(blocks.count == writer.blocks);
    uint8_t *stored = exact_copy(writer.out, writer.out_size);
    REQUIRE(klk_sst_blocks_check(&blocks, 0, stored, writer.out_size, 0) == blocks.count);
    int kind = klk_sst_block_check(stored, sizes[0]);
    REQUIRE(kind == (compresses ? KLK_SST_SNAPPY : KLK_SST_PLAIN));

    keys[2 * KEY - 1] = 0;
    REQUIRE(klk_sst_write(&writer, &rows) == KLK_EINVAL);
    klk_put_u32(key_offsets + 4, KEY * ROWS + 1);
    REQUIRE(klk_sst_write(&writer, &rows) == KLK_ECORRUPT);
    void *all[] = {key_offsets, value_offsets, keys, values, index, stored,
                   writer.out, writer.block, writer.index, writer.restarts};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

int main(void) {
    test_snappy();
    test_write(0);
    test_write(1);
    return 0;
}
