/* XXH3 of 64 bits with seed 0 (xxHash 0.8, doc/xxhash_spec.md): the checksum of the tables' files.
 */
#include "bytes.h"
#include "sst.h"

enum { STRIPE = 64, SECRET = 192, LANES = 8, BLOCK_STRIPES = (SECRET - STRIPE) / 8 };

#define PRIME32_1 0x9E3779B1u
#define PRIME32_2 0x85EBCA77u
#define PRIME32_3 0xC2B2AE3Du
#define PRIME64_1 0x9E3779B185EBCA87u
#define PRIME64_2 0xC2B2AE3D27D4EB4Fu
#define PRIME64_3 0x165667B19E3779F9u
#define PRIME64_4 0x85EBCA77C2B2AE63u
#define PRIME64_5 0x27D4EB2F165667C5u
#define MIX_1 0x165667919E3779F9u
#define MIX_2 0x9FB21C651E98DF25u

__extension__ typedef unsigned __int128 u128;

static const uint8_t secret[SECRET] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

/* Folds a product of 128 bits. */
static uint64_t folded(uint64_t a, uint64_t b) {
    u128 product = (u128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t avalanche(uint64_t hash) {
    hash = (hash ^ hash >> 37) * MIX_1;
    return hash ^ hash >> 32;
}

static uint64_t avalanche_64(uint64_t hash) {
    hash = (hash ^ hash >> 33) * PRIME64_2;
    hash = (hash ^ hash >> 29) * PRIME64_3;
    return hash ^ hash >> 32;
}

static uint64_t rotated(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

static uint64_t mixed(const uint8_t *data, const uint8_t *key) {
    return folded(klk_get_u64(data) ^ klk_get_u64(key),
                  klk_get_u64(data + 8) ^ klk_get_u64(key + 8));
}

static uint64_t short_hash(const uint8_t *data, size_t size) {
    if (size > 8) {
        uint64_t low = klk_get_u64(data) ^ klk_get_u64(secret + 24) ^ klk_get_u64(secret + 32);
        uint64_t high = klk_get_u64(data + size - 8) ^ klk_get_u64(secret + 40) ^
                        klk_get_u64(secret + 48);
        return avalanche(size + __builtin_bswap64(low) + high + folded(low, high));
    }
    if (size >= 4) {
        uint64_t hash = klk_get_u32(data + size - 4) + ((uint64_t)klk_get_u32(data) << 32);
        hash ^= klk_get_u64(secret + 8) ^ klk_get_u64(secret + 16);
        hash = (hash ^ rotated(hash, 49) ^ rotated(hash, 24)) * MIX_2;
        hash = (hash ^ ((hash >> 35) + size)) * MIX_2;
        return hash ^ hash >> 28;
    }
    if (size == 0) return avalanche_64(klk_get_u64(secret + 56) ^ klk_get_u64(secret + 64));
    uint32_t all = (uint32_t)data[0] << 16 | (uint32_t)data[size / 2] << 24 | data[size - 1] |
                   (uint32_t)size << 8;
    return avalanche_64(all ^ (uint64_t)(klk_get_u32(secret) ^ klk_get_u32(secret + 4)));
}

/* Inputs of 17 to 128 bytes: pairs of 16 bytes from both ends inwards. */
static uint64_t middle_hash(const uint8_t *data, size_t size) {
    uint64_t hash = size * PRIME64_1;
    for (size_t i = (size - 1) / 32 + 1; i-- > 0;) {
        hash += mixed(data + 16 * i, secret + 32 * i);
        hash += mixed(data + size - 16 * (i + 1), secret + 32 * i + 16);
    }
    return avalanche(hash);
}

/* Inputs of 129 to 240 bytes. */
static uint64_t upper_hash(const uint8_t *data, size_t size) {
    uint64_t hash = size * PRIME64_1;
    for (size_t i = 0; i < 8; i++) hash += mixed(data + 16 * i, secret + 16 * i);
    hash = avalanche(hash);
    for (size_t i = 8; i < size / 16; i++)
        hash += mixed(data + 16 * i, secret + 16 * (i - 8) + 3);
    return avalanche(hash + mixed(data + size - 16, secret + 136 - 17));
}

static void stripe_add(uint64_t *lanes, const uint8_t *data, const uint8_t *key) {
    for (int i = 0; i < LANES; i++) {
        uint64_t value = klk_get_u64(data + 8 * i), keyed = value ^ klk_get_u64(key + 8 * i);
        lanes[i ^ 1] += value;
        lanes[i] += (keyed & UINT32_MAX) * (keyed >> 32);
    }
}

static uint64_t long_hash(const uint8_t *data, size_t size) {
    uint64_t lanes[LANES] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                             PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
    size_t stripes = (size - 1) / STRIPE; /* the last bytes are mixed separately */
    const uint8_t *at = data;
    for (size_t done = 0; done < stripes; at += STRIPE) {
        stripe_add(lanes, at, secret + 8 * (done % BLOCK_STRIPES));
        if (++done % BLOCK_STRIPES != 0) continue;
        for (int i = 0; i < LANES; i++) {
            uint64_t key = klk_get_u64(secret + SECRET - STRIPE + 8 * i);
            lanes[i] = (lanes[i] ^ lanes[i] >> 47 ^ key) * PRIME32_1;
        }
    }
    stripe_add(lanes, data + size - STRIPE, secret + SECRET - STRIPE - 7);
    uint64_t hash = size * PRIME64_1;
    for (int i = 0; i < LANES; i += 2) {
        const uint8_t *key = secret + 11 + 8 * i;
        hash += folded(lanes[i] ^ klk_get_u64(key), lanes[i + 1] ^ klk_get_u64(key + 8));
    }
    return avalanche(hash);
}

uint64_t klk_xxh3(const uint8_t *data, size_t size) {
    if (size > 240) return long_hash(data, size);
    if (size > 128) return upper_hash(data, size);
    return size > 16 ? middle_hash(data, size) : short_hash(data, size);
}
