/* The files of the log, with right and wrong checksums. */
#include "fuzz.h"

size_t fuzz_seed(uint32_t number, uint8_t *out) {
    if (number > 2) return 0;
    size_t used = 0;
    out[used++] = (uint8_t)(number + 1);
    for (uint32_t i = 0; i < 4; i++) {
        used += fuzz_block(out + used, 1 + 3 * i, 1 + i / 2, 3, 10 * number);
        klk_mark_write(out + used, used - 1, 1);
        used += KLK_HEADER_SIZE;
    }
    memset(out + used, 0, number * 600);
    return used + number * 600;
}

/* Repairs the checksums of consecutive blocks and marks, as many as the first byte says. */
static void repair(uint8_t *data, size_t size, uint8_t count) {
    size_t one;
    for (size_t at = 0; count && (one = fuzz_repair(data + at, size - at)); at += one) count--;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz_input in = {data, size};
    uint8_t count = fuzz_u8(&in);
    size = in.left;
    uint8_t *file = fuzz_rest(&in);
    repair(file, size, count);
    struct klk_scan scan = {.next_index = 1};
    uint64_t *runs = exact(2 * 2 * sizeof *runs), offset = 0, used;
    int code;
    do {
        uint64_t before = scan.offset;
        code = klk_segment_scan(file, size, &scan, runs, 2);
        REQUIRE(scan.offset >= before && scan.offset <= size && scan.runs <= 2);
        REQUIRE(code != KLK_ESPACE || scan.runs > 0);
    } while (code == KLK_ESPACE);
    if (code != KLK_OK) {
        code = klk_segment_judge(file, size, scan.offset);
        REQUIRE(code == KLK_ETORN || code == KLK_ECORRUPT);
    }
    for (uint64_t index = 0; index < 8; index++) {
        offset = 0;
        if (klk_segment_find(file, size, index, &offset) == 1)
            REQUIRE(offset + KLK_HEADER_SIZE <= size);
    }
    struct klk_block_info *places = exact(3 * sizeof *places);
    ssize_t found = klk_segment_blocks(file, size, places, 3, &used);
    REQUIRE(found >= 0 && found <= 3 && used <= size);
    for (ssize_t i = 0; i < found; i++) {
        struct klk_header header;
        REQUIRE(places[i].offset + places[i].size <= size);
        REQUIRE(klk_block_check(file + places[i].offset, places[i].size, &header) ==
                (ssize_t)places[i].size);
    }
    REQUIRE(klk_zeros(file, size) <= size);
    free(places);
    free(runs);
    free(file);
    return 0;
}
