/* Encodes Snappy for the tables' files (google/snappy, format_description.txt). */
#include <string.h>

#include "bytes.h"
#include "sst.h"

enum {
    PIECE = 1 << 16, /* offsets of copies do not lead out of it */
    HASH_BITS_MIN = 8,
    HASH_BITS_MAX = 14,
    MARGIN = 15, /* at the end of a piece no copies begin */
    SKIP = 32,   /* so many places without a copy make the step a byte longer */
    COPY_MAX = 64,
    COPY_MIN = 4
};

#define HASH_PRIME 0x1e35a7bdu

static uint8_t *literal_put(uint8_t *out, const uint8_t *data, size_t size) {
    if (!size) return out;
    uint32_t last = (uint32_t)size - 1;
    if (last < 60) {
        *out++ = (uint8_t)(last << 2);
    } else if (last < 256) {
        *out++ = 60 << 2;
        *out++ = (uint8_t)last;
    } else {
        *out++ = 61 << 2;
        *out++ = (uint8_t)last;
        *out++ = (uint8_t)(last >> 8);
    }
    memcpy(out, data, size);
    return out + size;
}

static uint8_t *copy_put(uint8_t *out, uint32_t offset, size_t size) {
    while (size) {
        size_t some = size <= COPY_MAX              ? size
                      : size < COPY_MAX + COPY_MIN ? COPY_MAX - COPY_MIN
                                                   : COPY_MAX;
        if (some < 12 && offset < 2048) {
            *out++ = (uint8_t)(1 | (some - COPY_MIN) << 2 | offset >> 8 << 5);
            *out++ = (uint8_t)offset;
        } else {
            *out++ = (uint8_t)(2 | (some - 1) << 2);
            *out++ = (uint8_t)offset;
            *out++ = (uint8_t)(offset >> 8);
        }
        size -= some;
    }
    return out;
}

/* How many bytes are the same from both places on. */
static size_t same_bytes(const uint8_t *earlier, const uint8_t *at, const uint8_t *end) {
    const uint8_t *start = at;
    for (; end - at >= 8; at += 8, earlier += 8) {
        uint64_t differs = klk_get_u64(at) ^ klk_get_u64(earlier);
        if (differs) return (size_t)(at - start) + (size_t)__builtin_ctzll(differs) / 8;
    }
    while (at < end && *at == *earlier) at++, earlier++;
    return (size_t)(at - start);
}

static uint8_t *piece_encode(const uint8_t *data, size_t size, uint8_t *out) {
    uint16_t table[1 << HASH_BITS_MAX];
    int bits = HASH_BITS_MIN;
    while (bits < HASH_BITS_MAX && (size_t)1 << bits < size) bits++;
    memset(table, 0, sizeof table[0] << bits);
    const uint8_t *end = data + size, *literal = data;
    size_t at = 1, limit = size < MARGIN ? 0 : size - MARGIN;
    for (uint32_t skip = SKIP; at <= limit;) {
        uint32_t word = klk_get_u32(data + at);
        uint16_t *slot = &table[word * HASH_PRIME >> (32 - bits)];
        size_t earlier = *slot;
        *slot = (uint16_t)at;
        if (klk_get_u32(data + earlier) != word) {
            at += skip++ / SKIP;
            continue;
        }
        out = literal_put(out, literal, (size_t)(data + at - literal));
        size_t same = same_bytes(data + earlier, data + at, end);
        out = copy_put(out, (uint32_t)(at - earlier), same);
        at += same;
        literal = data + at;
        skip = SKIP;
        if (at <= limit)
            table[klk_get_u32(literal - 1) * HASH_PRIME >> (32 - bits)] = (uint16_t)(at - 1);
    }
    return literal_put(out, literal, (size_t)(end - literal));
}

size_t klk_snappy_encode(const uint8_t *data, size_t size, uint8_t *out) {
    uint8_t *to = out;
    size_t left = size;
    for (; left >= 0x80; left >>= 7) *to++ = (uint8_t)(left | 0x80);
    *to++ = (uint8_t)left;
    for (size_t at = 0; at < size; at += PIECE)
        to = piece_encode(data + at, size - at < PIECE ? size - at : PIECE, to);
    return (size_t)(to - out);
}
