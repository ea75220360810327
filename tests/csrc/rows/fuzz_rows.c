/* Values and keys of typed tables, which come from clients by way of tables. */
#include "fuzz.h"

#include "rows.h"

enum { COLUMNS_MAX = 8, ROWS_MAX = 4 };

size_t fuzz_seed(uint32_t number, uint8_t *out) {
    static const uint8_t ROW[] = {0x93, 5, 0xa1, 'a', 0xc0}, KEY[] = {0x80, 'a', 0, 0xff, 0, 0, 1};
    if (number > 5) return 0;
    size_t used = 0;
    out[used++] = (uint8_t)number; /* A key if it is odd. */
    out[used++] = 3;               /* Columns, and of each its kind. */
    out[used++] = KLK_CELL_I8;
    out[used++] = number % 3 ? KLK_CELL_UTF8 : KLK_CELL_PACKED;
    out[used++] = KLK_CELL_BOOL;
    memcpy(out + used, number % 2 ? KEY : ROW, number % 2 ? sizeof KEY : sizeof ROW);
    return used + (number % 2 ? sizeof KEY : sizeof ROW);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz_input in = {data, size};
    int is_key = fuzz_u8(&in) % 2;
    uint32_t count = fuzz_u8(&in) % COLUMNS_MAX + 1, bad[2] = {0, 0};
    struct klk_wanted wanted[COLUMNS_MAX];
    uint8_t kinds[COLUMNS_MAX];
    for (uint32_t c = 0; c < count; c++) kinds[c] = fuzz_u8(&in) % KLK_CELL_KINDS;
    size_t left = in.left;
    uint8_t *rest = fuzz_rest(&in);
    int32_t offsets[ROWS_MAX + 1] = {0};
    for (uint32_t row = 1; row <= ROWS_MAX; row++)
        offsets[row] = (int32_t)(left * row / ROWS_MAX);
    for (uint32_t c = 0; c < count; c++) {
        size_t bytes = is_key ? left : 0;
        if (kinds[c] < KLK_CELL_UTF8) bytes = 16 * ROWS_MAX;
        wanted[c] = (struct klk_wanted){exact(1), exact(bytes), exact(4 * ROWS_MAX),
                                        exact(4 * (ROWS_MAX + 1)), 2 * c, kinds[c]};
        memset(wanted[c].valid, 0, 1);
        if (kinds[c] < KLK_CELL_UTF8) memset(wanted[c].data, 0, bytes);
    }
    int code = is_key ? klk_keys_decode(offsets, rest, ROWS_MAX, wanted, count, bad)
                      : klk_rows_decode(offsets, rest, ROWS_MAX, wanted, count, bad);
    REQUIRE(code == KLK_OK || code == KLK_ECORRUPT || code == KLK_EINVAL);
    REQUIRE(bad[0] < ROWS_MAX && bad[1] < count);
    for (uint32_t c = 0; c < count; c++) {
        if (code == KLK_OK && !is_key && kinds[c] >= KLK_CELL_UTF8) {
            REQUIRE((size_t)wanted[c].offsets[ROWS_MAX] <= left);
            uint8_t *out = exact((size_t)wanted[c].offsets[ROWS_MAX]);
            klk_rows_gather(rest, &wanted[c], ROWS_MAX, out);
            free(out);
        }
        free(wanted[c].valid);
        free(wanted[c].data);
        free(wanted[c].starts);
        free(wanted[c].offsets);
    }
    free(rest);
    return 0;
}
