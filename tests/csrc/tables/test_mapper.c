/* csrc/tables/mapper.c on exact-size heap buffers: every cut and every wrong byte of an output. */
#include "exact.h"

static const uint8_t OUTPUT[] = {
    0, 3, 0, 0, 0, 2, 0, 0, 0, 'k', 'e', 'y', 'v', 'a', /* put */
    0, 1, 0, 0, 0, 0, 0, 0, 0, 'k',                     /* put of an empty value */
    1, 2, 0, 0, 0, 0, 0, 0, 0, 'd', 'e',                /* delete */
};

static ssize_t ops(const uint8_t *output, size_t size, uint64_t *counts) {
    uint8_t *copy = exact_copy(output, size), *out = exact(2 * size);
    ssize_t written = klk_output_ops(copy, size, 7, out, 2 * size, counts);
    REQUIRE(written <= (ssize_t)(2 * size));
    free(copy);
    free(out);
    return written;
}

static void test_outputs(void) {
    uint64_t counts[3];
    REQUIRE(ops(OUTPUT, sizeof OUTPUT, counts) == 9 + 16 + 6 + 9 + 4 + 2);
    REQUIRE(counts[0] == 2 && counts[1] == 1 && counts[2] == 0);
    for (size_t cut = 0; cut < sizeof OUTPUT; cut++) {
        int whole = cut == 0 || cut == 14 || cut == 24;
        REQUIRE((ops(OUTPUT, cut, counts) >= 0) == whole);
    }
    for (size_t at = 0; at < sizeof OUTPUT; at++) {
        for (int bit = 0; bit < 8; bit++) {
            uint8_t copy[sizeof OUTPUT];
            memcpy(copy, OUTPUT, sizeof copy);
            copy[at] = (uint8_t)(copy[at] ^ 1u << bit);
            (void)ops(copy, sizeof copy, counts);
        }
    }
    uint8_t out[2 * sizeof OUTPUT - 1];
    REQUIRE(klk_output_ops(OUTPUT, sizeof OUTPUT, 7, out, sizeof out, counts) == KLK_ESPACE);
}

static void test_records(void) {
    uint32_t *sizes = exact(4 * sizeof *sizes);
    uint8_t *joined = exact_copy((const uint8_t *)"keyval", 6), *out = exact(22);
    sizes[0] = 3, sizes[1] = 2, sizes[2] = 1, sizes[3] = 0;
    REQUIRE(klk_records_pack(sizes, 2, joined, 6, out, 22) == 22);
    REQUIRE(out[0] == 3 && out[4] == 2 && out[13] == 1 && out[21] == 'l');
    REQUIRE(klk_records_pack(sizes, 2, joined, 6, out, 21) == KLK_ESPACE);
    REQUIRE(klk_records_pack(sizes, 2, joined, 5, out, 22) == KLK_EINVAL);
    REQUIRE(klk_records_pack(sizes, 0, joined, 0, out, 0) == 0);
    sizes[0] = sizes[1] = sizes[2] = sizes[3] = UINT32_MAX;
    REQUIRE(klk_records_pack(sizes, 2, joined, 6, out, 22) == KLK_EINVAL);
    free(sizes);
    free(joined);
    free(out);
}

int main(void) {
    test_outputs();
    test_records();
    return 0;
}
