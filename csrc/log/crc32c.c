/* CRC32C by the processor's fastest instructions, selected once when the library is loaded. */
#include "api.h"

#include <string.h>

#if defined(__x86_64__)
#define KLK_CRC_X86 1
#include <immintrin.h>
#elif defined(__aarch64__)
#define KLK_CRC_ARM 1
#include <arm_acle.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#endif

typedef uint32_t crc_function(uint32_t crc, const uint8_t *data, size_t size);

/* crc_load() fills them before main(); constant afterwards. */
static uint32_t table[8][256];
static crc_function *crc_fastest;

static uint64_t load_u64(const uint8_t *data) {
    uint64_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

static void table_fill(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1u)));
        table[0][byte] = crc;
    }
    for (int slice = 1; slice < 8; slice++) {
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = table[slice - 1][byte];
            table[slice][byte] = before >> 8 ^ table[0][before & 0xff];
        }
    }
}

/* Slice-by-8: eight table lookups for eight bytes, on any processor and byte order. */
static uint32_t crc_sliced(uint32_t crc, const uint8_t *data, size_t size) {
    while (size >= 8) {
        uint32_t low = crc ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 |
                              (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24);
        crc = table[7][low & 0xff] ^ table[6][low >> 8 & 0xff] ^ table[5][low >> 16 & 0xff] ^
              table[4][low >> 24] ^ table[3][data[4]] ^ table[2][data[5]] ^ table[1][data[6]] ^
              table[0][data[7]];
        data += 8;
        size -= 8;
    }
    while (size-- > 0) crc = crc >> 8 ^ table[0][(crc ^ *data++) & 0xff];
    return crc;
}

#if defined(KLK_CRC_X86)
/* The crc32 instruction takes three cycles and one can start in each cycle, so three streams run
 * side by side. Their results are joined by a carry-less multiplication with x^(8 n - 33) modulo
 * the polynomial, bits reversed; the crc32 instruction then reduces the 64-bit product. */
enum { LONG_BYTES = 1024, SHORT_BYTES = 128 };
#define LONG_TWO 0xa51b6135u /* x^(8 * 2 * 1024 - 33) */
#define LONG_ONE 0x170076fau /* x^(8 * 1024 - 33) */
#define SHORT_TWO 0xb9e02b86u
#define SHORT_ONE 0x0d3b6092u

__attribute__((target("sse4.2,pclmul"))) static uint32_t
crc_three(uint32_t crc, const uint8_t *data, size_t stream_bytes, uint64_t shift_two,
          uint64_t shift_one) {
    uint64_t first = crc, second = 0, third = 0;
    for (size_t at = 0; at < stream_bytes; at += 8) {
        first = _mm_crc32_u64(first, load_u64(data + at));
        second = _mm_crc32_u64(second, load_u64(data + stream_bytes + at));
        third = _mm_crc32_u64(third, load_u64(data + 2 * stream_bytes + at));
    }
    __m128i far = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)first),
                                       _mm_cvtsi64_si128((long long)shift_two), 0);
    __m128i near = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)second),
                                        _mm_cvtsi64_si128((long long)shift_one), 0);
    uint64_t product = (uint64_t)_mm_cvtsi128_si64(_mm_xor_si128(far, near));
    return (uint32_t)(_mm_crc32_u64(0, product) ^ third);
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t
crc_sse42(uint32_t crc, const uint8_t *data, size_t size) {
    for (; size >= 3 * LONG_BYTES; data += 3 * LONG_BYTES, size -= 3 * LONG_BYTES) {
        crc = crc_three(crc, data, LONG_BYTES, LONG_TWO, LONG_ONE);
    }
    for (; size >= 3 * SHORT_BYTES; data += 3 * SHORT_BYTES, size -= 3 * SHORT_BYTES) {
        crc = crc_three(crc, data, SHORT_BYTES, SHORT_TWO, SHORT_ONE);
    }
    uint64_t wide = crc;
    for (; size >= 8; data += 8, size -= 8) wide = _mm_crc32_u64(wide, load_u64(data));
    crc = (uint32_t)wide;
    while (size-- > 0) crc = _mm_crc32_u8(crc, *data++);
    return crc;
}
#endif

#if defined(KLK_CRC_ARM)
#if defined(__clang__)
__attribute__((target("crc")))
#else
__attribute__((target("+crc")))
#endif
static uint32_t crc_arm(uint32_t crc, const uint8_t *data, size_t size) {
    for (; size >= 8; data += 8, size -= 8) crc = __crc32cd(crc, load_u64(data));
    while (size-- > 0) crc = __crc32cb(crc, *data++);
    return crc;
}

static int arm_has_crc(void) {
#if defined(__linux__)
    enum { HWCAP_CRC32_BIT = 1 << 7 };
    return (getauxval(AT_HWCAP) & HWCAP_CRC32_BIT) != 0;
#else
    return 1; /* every other 64-bit Arm system that kelek supports has it */
#endif
}
#endif

__attribute__((constructor)) static void crc_load(void) {
    table_fill();
    crc_fastest = crc_sliced;
#if defined(KLK_CRC_X86)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) {
        crc_fastest = crc_sse42;
    }
#elif defined(KLK_CRC_ARM)
    if (arm_has_crc()) {
        crc_fastest = crc_arm;
    }
#endif
}

uint32_t klk_crc32c(uint32_t value, const uint8_t *data, size_t size) {
    return ~crc_fastest(~value, data, size);
}

uint32_t klk_crc32c_sliced(uint32_t value, const uint8_t *data, size_t size) {
    return ~crc_sliced(~value, data, size);
}
