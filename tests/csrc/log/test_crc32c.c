/* klk_crc32c against the vectors of RFC 3720, appendix B.4, on exact-size heap buffers. */
#include "exact.h"

static int check(const char *name, const uint8_t *data, size_t size, uint32_t expected) {
    uint8_t *copy = exact_copy(data, size);
    uint32_t found = klk_crc32c(0, copy, size);
    uint32_t pieces = klk_crc32c(klk_crc32c(0, copy, size / 3), copy + size / 3, size - size / 3);
    free(copy);
    if (found == expected && pieces == expected) return 0;
    printf("%s: expected %08x, found %08x, in two pieces %08x\n", name, expected, found, pieces);
    return 1;
}

/* The instructions of the processor against tables: around the lengths of the three streams, and
 * with every alignment. */
static void test_sliced(void) {
    uint32_t state = 1;
    for (uint32_t size = 0; size < 20000; size += size < 400 ? 1 : 1 + next_random(&state) % 200) {
        uint32_t offset = next_random(&state) % 8, before = next_random(&state);
        uint8_t *data = exact(size + offset);
        for (uint32_t i = 0; i < size; i++) data[offset + i] = (uint8_t)next_random(&state);
        REQUIRE(klk_crc32c(before, data + offset, size) ==
                klk_crc32c_sliced(before, data + offset, size));
        free(data);
    }
}

int main(void) {
    uint8_t zeros[32] = {0}, ones[32], up[32], down[32];
    test_sliced();
    memset(ones, 0xff, sizeof ones);
    for (size_t i = 0; i < 32; i++) {
        up[i] = (uint8_t)i;
        down[i] = (uint8_t)(31 - i);
    }
    return check("zeros", zeros, 32, 0x8a9136aau) + check("ones", ones, 32, 0x62a8ab43u) +
           check("up", up, 32, 0x46dd794eu) + check("down", down, 32, 0x113fdb5cu) +
           check("digits", (const uint8_t *)"123456789", 9, 0xe3069283u);
}
