/* Compressed blocks in RocksDB's files, which a snapshot brings. */
#include "fuzz.h"
#include "sst.h"

enum { DECODED_MAX = 1 << 20 };

size_t fuzz_seed(uint32_t number, uint8_t *out) {
    static const uint8_t streams[][15] = {
        {36, 2 << 2, 'a', 'b', 'c', 5 << 2 | 1, 3, 19 << 2 | 2, 6, 0, 3 << 2 | 3, 1, 0, 0, 0},
        {3, 60 << 2, 2, 'a', 'b', 'c', 0, 0, 0, 0, 0, 0, 0, 0, 0},
    };
    if (number >= 2) return 0;
    memcpy(out, streams[number], 15);
    return number ? 6 : 15;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ssize_t known = klk_snappy_size(data, size);
    if (known < 0 || known > DECODED_MAX) return 0;
    uint8_t *out = exact((size_t)known);
    int code = klk_snappy_decode(data, size, out, (size_t)known);
    REQUIRE(code == KLK_OK || code == KLK_ECORRUPT);
    if (known) REQUIRE(klk_snappy_decode(data, size, out, (size_t)known - 1) != KLK_OK);
    free(out);
    return 0;
}
