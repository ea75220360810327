/* Compressed blocks in RocksDB's files, which a snapshot brings, and rows of a client as such. */
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

/* What is encoded is what is decoded. */
static void encode(const uint8_t *data, size_t size) {
    size_t room = size + size / 6 + KLK_SNAPPY_OVERHEAD;
    uint8_t *encoded = exact(room), *decoded = exact(size);
    size_t used = klk_snappy_encode(data, size, encoded);
    REQUIRE(used <= room && klk_snappy_size(encoded, used) == (ssize_t)size);
    REQUIRE(klk_snappy_decode(encoded, used, decoded, size) == KLK_OK);
    REQUIRE(!memcmp(data, decoded, size));
    free(encoded);
    free(decoded);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size) encode(data, size);
    ssize_t known = klk_snappy_size(data, size);
    if (known < 0 || known > DECODED_MAX) return 0;
    uint8_t *out = exact((size_t)known);
    int code = klk_snappy_decode(data, size, out, (size_t)known);
    REQUIRE(code == KLK_OK || code == KLK_ECORRUPT);
    if (known) REQUIRE(klk_snappy_decode(data, size, out, (size_t)known - 1) != KLK_OK);
    free(out);
    return 0;
}
