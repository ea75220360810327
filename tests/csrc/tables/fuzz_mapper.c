/* The output of a client's mapper, and records for its input. */
#include "fuzz.h"

size_t fuzz_seed(uint32_t number, uint8_t *out) {
    if (number > 1) return 0;
    size_t used = 0;
    for (uint8_t i = 0; i < 6; i++) {
        uint8_t deletes = number ? i % 2 : i / 3;
        out[used] = deletes;
        klk_put_u32(out + used + 1, 3);
        klk_put_u32(out + used + 5, deletes ? 0 : i);
        memset(out + used + 9, 'k', 3u + i);
        used += 9u + 3u + (deletes ? 0u : i);
    }
    return used;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *out = exact(2 * size);
    uint64_t counts[3];
    ssize_t written = klk_output_ops(data, size, 7, out, 2 * size, counts);
    REQUIRE(written == KLK_ECORRUPT ? counts[2] < size : written >= 0);
    REQUIRE(written <= (ssize_t)(2 * size));
    free(out);
    uint32_t count = (uint32_t)(size / 16), *sizes = exact(8 * (size_t)count);
    for (uint32_t i = 0; i < 2 * count; i++) sizes[i] = klk_get_u32(data + 4 * i);
    size_t left = size - 8 * (size_t)count, capacity = left + 8 * (size_t)count;
    uint8_t *joined = exact_copy(data + 8 * (size_t)count, left);
    out = exact(capacity);
    written = klk_records_pack(sizes, count, joined, left, out, capacity);
    REQUIRE(written == KLK_EINVAL || written == (ssize_t)capacity);
    free(out);
    free(joined);
    free(sizes);
    return 0;
}
