#include "api.h"

uint32_t klk_crc32c(uint32_t value, const uint8_t *data, size_t size) {
    uint32_t crc = ~value;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1u)));
    }
    return ~crc;
}
