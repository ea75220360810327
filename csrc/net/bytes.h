/* Little endian numbers in bytes, the same on every processor: for the C files, not for cffi. */
#ifndef KLK_BYTES_H
#define KLK_BYTES_H
#include <stdint.h>

static inline void klk_put_u32(uint8_t *out, uint32_t value) {
    for (int i = 0; i < 4; i++) out[i] = (uint8_t)(value >> 8 * i);
}

static inline void klk_put_u64(uint8_t *out, uint64_t value) {
    for (int i = 0; i < 8; i++) out[i] = (uint8_t)(value >> 8 * i);
}

static inline uint32_t klk_get_u32(const uint8_t *data) {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) value |= (uint32_t)data[i] << 8 * i;
    return value;
}

static inline uint64_t klk_get_u64(const uint8_t *data) {
    return (uint64_t)klk_get_u32(data) | (uint64_t)klk_get_u32(data + 4) << 32;
}

#endif
