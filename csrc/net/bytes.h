/* Little endian numbers in bytes, the same on every processor: for the C files, not for cffi. */
#ifndef KLK_BYTES_H
#define KLK_BYTES_H
#include <stdint.h>
#include <string.h>

static inline void klk_put_u32(uint8_t *out, uint32_t value) {
    for (int i = 0; i < 4; i++) out[i] = (uint8_t)(value >> 8 * i);
}

static inline void klk_put_u64(uint8_t *out, uint64_t value) {
    for (int i = 0; i < 8; i++) out[i] = (uint8_t)(value >> 8 * i);
}

static inline uint32_t klk_get_u32(const uint8_t *data) {
    uint32_t value;
    memcpy(&value, data, sizeof value);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap32(value);
#endif
    return value;
}

/* A hash of an id. The seed is secret, so that no peer can choose ids that collide. */
static inline uint64_t klk_id_hash(uint64_t seed, const uint8_t *id, size_t size) {
    uint64_t hash = seed ^ 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ id[i]) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    return hash;
}

/* Makes all bits of a hash count for all others. */
static inline uint64_t klk_hash_mixed(uint64_t hash) {
    hash = (hash ^ hash >> 33) * 0xff51afd7ed558ccdu;
    hash = (hash ^ hash >> 33) * 0xc4ceb9fe1a85ec53u;
    return hash ^ hash >> 33;
}

static inline uint64_t klk_get_u64(const uint8_t *data) {
    uint64_t value;
    memcpy(&value, data, sizeof value);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    return value;
}

#endif
