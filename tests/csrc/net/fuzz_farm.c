/* Entries of Garlic Farm's wire. */
#include "farm.h"
#include "fuzz.h"

size_t fuzz_seed(uint32_t number, uint8_t *out) {
    if (number > 1) return 0;
    size_t used = 0;
    for (uint8_t i = 0; i < 5; i++) {
        memset(out + used, 0, KLK_FARM_ENTRY_PREFIX);
        out[used + 7] = number ? 1 + i / 2 : 4;
        out[used + 8] = KLK_FARM_APPLICATION;
        out[used + 12] = i;
        memset(out + used + KLK_FARM_ENTRY_PREFIX, 'v', i);
        used += KLK_FARM_ENTRY_PREFIX + i;
    }
    return used;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int64_t count = klk_farm_count(data, size), found = 0;
    REQUIRE(count == KLK_EINVAL || (count >= 0 && (count == 0) == (size == 0)));
    for (uint64_t term = 0; count > 0 && term < 2; term++) {
        size_t at = 0, capacity = KLK_HEADER_SIZE + size + 8;
        uint8_t *out = exact(capacity), *entries = exact(size + 64);
        for (found = 0; at < size;) {
            uint32_t used = 0;
            struct klk_header header;
            ssize_t made = klk_farm_block(data, size, &at, 1, term, &used, out, capacity);
            REQUIRE(made == KLK_EINVAL || (made > 0 && used > 0));
            if (made < 0) break;
            REQUIRE(klk_block_check(out, (size_t)made, &header) == made);
            REQUIRE(klk_farm_entries(out, (size_t)made, entries, size) >= 0);
            found += used;
        }
        REQUIRE(at < size || found == count);
        free(entries);
        free(out);
    }
    return 0;
}
