/* csrc/rows on exact-size heap buffers: rows and keys there and back, each cut of them. */
#include "exact.h"

#include "rows.h"

enum { ROWS = 3, COLUMNS = 5 };

static const uint8_t VALID[] = {0x16}; /* The first item of each column stands before the rows. */
static const uint8_t BITS[] = {0x0c};
static const int32_t OFFSETS[] = {1, 1, 4, 4, 6};
static const uint8_t TEXT[] = {'-', 'a', 0, 'b', 'c', 0xff};

static void make_columns(struct klk_cells *columns, uint8_t *held[]) {
    int64_t numbers[] = {9, -1, 1ll << 40, -70000};
    double floats[] = {9, -0.5, 0, 1e300};
    uint8_t decimals[4][16] = {{9}, {1}, {0}, {0}};
    memset(decimals[3], 0xfe, 16);
    held[0] = exact_copy((const uint8_t *)numbers, sizeof numbers);
    held[1] = exact_copy((const uint8_t *)floats, sizeof floats);
    held[2] = exact_copy(BITS, sizeof BITS);
    held[3] = exact_copy(TEXT, sizeof TEXT);
    held[4] = exact_copy((const uint8_t *)decimals, sizeof decimals);
    held[5] = exact_copy((const uint8_t *)OFFSETS, sizeof OFFSETS);
    held[6] = exact_copy(VALID, sizeof VALID);
    uint32_t kinds[] = {KLK_CELL_I64, KLK_CELL_F64, KLK_CELL_BOOL, KLK_CELL_UTF8, KLK_CELL_DECIMAL};
    for (int c = 0; c < COLUMNS; c++) {
        columns[c] = (struct klk_cells){NULL, held[c], NULL, 1, kinds[c]};
        if (kinds[c] == KLK_CELL_UTF8) columns[c].offsets = (const int32_t *)(void *)held[5];
    }
}

static void free_all(uint8_t *held[], int count) {
    for (int i = 0; i < count; i++) free(held[i]);
}

static void make_wanted(struct klk_wanted *wanted, const struct klk_cells *columns, size_t size) {
    for (uint32_t c = 0; c < COLUMNS; c++) {
        wanted[c] = (struct klk_wanted){exact(1),         exact(size),
                                        exact(ROWS * 4),  exact((ROWS + 1) * 4),
                                        c,                columns[c].kind};
        memset(wanted[c].valid, 0, 1);
        memset(wanted[c].data, 0, size);
    }
}

static void free_wanted(struct klk_wanted *wanted) {
    for (int c = 0; c < COLUMNS; c++) {
        free(wanted[c].valid);
        free(wanted[c].data);
        free(wanted[c].starts);
        free(wanted[c].offsets);
    }
}

static void test_rows(void) {
    struct klk_cells columns[COLUMNS];
    uint8_t *held[7];
    make_columns(columns, held);
    columns[0].valid = held[6]; /* 1, 1, null */
    int32_t *offsets = exact((ROWS + 1) * 4);
    REQUIRE(klk_rows_size(columns, COLUMNS, ROWS, offsets) == KLK_OK);
    size_t size = (size_t)offsets[ROWS];
    uint8_t *out = exact(size);
    klk_rows_encode(columns, COLUMNS, ROWS, out);
    REQUIRE(out[0] == 0x95 && out[1] == 0xff && out[2] == 0xcb);
    REQUIRE(out[offsets[2]] == 0x95 && out[offsets[2] + 1] == 0xc0);

    uint32_t bad[2] = {7, 7};
    struct klk_wanted wanted[COLUMNS];
    make_wanted(wanted, columns, ROWS * 16);
    REQUIRE(klk_rows_decode(offsets, out, ROWS, wanted, COLUMNS, bad) == KLK_OK && bad[0] == 7);
    REQUIRE(wanted[0].valid[0] == 3 && wanted[1].valid[0] == 7);
    REQUIRE(memcmp(wanted[0].data, held[0] + 8, 2 * 8) == 0);
    REQUIRE(memcmp(wanted[1].data, held[1] + 8, ROWS * 8) == 0);
    REQUIRE(wanted[2].data[0] == BITS[0] >> 1);
    REQUIRE(memcmp(wanted[4].data, held[4] + 16, ROWS * 16) == 0);
    REQUIRE(wanted[3].offsets[1] == 3 && wanted[3].offsets[2] == 3 && wanted[3].offsets[3] == 5);
    uint8_t *text = exact(5);
    klk_rows_gather(out, &wanted[3], ROWS, text);
    REQUIRE(memcmp(text, TEXT + 1, 5) == 0);
    free(text);
    free_wanted(wanted);

    for (int32_t end = 0; end < offsets[1]; end++) { /* Each cut of the first row. */
        int32_t cut[] = {0, end};
        uint8_t *part = exact_copy(out, (size_t)end);
        make_wanted(wanted, columns, 16);
        REQUIRE(klk_rows_decode(cut, part, 1, wanted, COLUMNS, bad) == KLK_ECORRUPT);
        REQUIRE(bad[0] == 0 && bad[1] < COLUMNS);
        free_wanted(wanted);
        free(part);
    }
    free(out);
    free(offsets);
    free_all(held, 7);
}

static void test_keys(void) {
    struct klk_cells columns[COLUMNS];
    uint8_t *held[7];
    make_columns(columns, held);
    int32_t *offsets = exact((ROWS + 1) * 4);
    REQUIRE(klk_keys_size(columns, COLUMNS, ROWS, offsets) == KLK_OK);
    REQUIRE(offsets[1] == 8 + 8 + 1 + 6 + 16);
    size_t size = (size_t)offsets[ROWS];
    uint8_t *out = exact(size);
    klk_keys_encode(columns, COLUMNS, ROWS, out);
    REQUIRE(out[0] == 0x7f && out[7] == 0xff && memcmp(out + 17, "a\0\xff" "b\0\0", 6) == 0);

    uint32_t bad[2];
    struct klk_wanted wanted[COLUMNS];
    make_wanted(wanted, columns, size);
    REQUIRE(klk_keys_decode(offsets, out, ROWS, wanted, COLUMNS, bad) == KLK_OK);
    REQUIRE(memcmp(wanted[0].data, held[0] + 8, ROWS * 8) == 0);
    REQUIRE(memcmp(wanted[1].data, held[1] + 8, ROWS * 8) == 0);
    REQUIRE(memcmp(wanted[3].data, TEXT + 1, 5) == 0 && wanted[3].offsets[ROWS] == 5);
    REQUIRE(memcmp(wanted[4].data, held[4] + 16, ROWS * 16) == 0);
    free_wanted(wanted);
    for (int32_t end = 0; end < offsets[1]; end++) {
        int32_t cut[] = {0, end};
        uint8_t *part = exact_copy(out, (size_t)end);
        make_wanted(wanted, columns, size);
        REQUIRE(klk_keys_decode(cut, part, 1, wanted, COLUMNS, bad) == KLK_ECORRUPT);
        free_wanted(wanted);
        free(part);
    }
    free(out);
    free(offsets);
    free_all(held, 7);
}

static void test_wrong_kinds(void) {
    struct klk_cells column = {NULL, NULL, NULL, 0, KLK_CELL_KINDS};
    int32_t offsets[2] = {0, 0};
    REQUIRE(klk_rows_size(&column, 1, 1, offsets) == KLK_EINVAL);
    REQUIRE(klk_keys_size(&column, 1, 1, offsets) == KLK_EINVAL);
    column.kind = KLK_CELL_PACKED;
    REQUIRE(klk_keys_size(&column, 1, 1, offsets) == KLK_EINVAL);
    struct klk_wanted wanted = {.kind = KLK_CELL_KINDS};
    uint32_t bad[2];
    REQUIRE(klk_rows_decode(offsets, NULL, 0, &wanted, 1, bad) == KLK_EINVAL);
    REQUIRE(klk_keys_decode(offsets, NULL, 0, &wanted, 1, bad) == KLK_EINVAL);
}

/* Rows of 2 GiB are refused before a byte of them is written. */
static void test_too_large(void) {
    static const int32_t large[] = {0, 1 << 30, INT32_MAX};
    struct klk_cells columns[] = {{NULL, NULL, large, 0, KLK_CELL_BINARY},
                                  {NULL, NULL, large, 0, KLK_CELL_BINARY}};
    int32_t offsets[3];
    REQUIRE(klk_rows_size(columns, 2, 2, offsets) == KLK_ESPACE);
    REQUIRE(klk_rows_size(columns, 1, 1, offsets) == KLK_OK && offsets[1] == (1 << 30) + 6);
}

int main(void) {
    test_rows();
    test_keys();
    test_wrong_kinds();
    test_too_large();
    return 0;
}
