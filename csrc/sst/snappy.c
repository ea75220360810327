/* Decodes Snappy in the tables' files (google/snappy, format_description.txt). */
#include "sst_block.h"

enum {
    LITERAL = 0,
    COPY_1 = 1,        /* bytes of the offset behind the tag */
    LITERAL_LONG = 60, /* from here on the size of a literal is behind the tag */
    SHARE_MAX = 32,    /* a byte of input makes no more: three of them copy 64 */
    WIDE = 16          /* bytes copied at once where there is room */
};

ssize_t klk_snappy_size(const uint8_t *data, size_t size) {
    uint32_t found;
    const uint8_t *at = klk_varint_read(data, data + size, &found);
    if (!at || found > (uint64_t)(data + size - at) * SHARE_MAX) return KLK_ECORRUPT;
    return (ssize_t)found;
}

/* A little endian number of 1 to 4 bytes. */
static uint32_t number_read(const uint8_t *data, uint32_t bytes) {
    uint32_t value = 0;
    for (uint32_t i = 0; i < bytes; i++) value |= (uint32_t)data[i] << 8 * i;
    return value;
}

/* Copies bytes; if source and target overlap, the bytes repeat. */
static void copy_back(uint8_t *out, size_t offset, size_t size, size_t room) {
    const uint8_t *from = out - offset;
    if (offset >= WIDE && room >= size + WIDE) {
        for (size_t i = 0; i < size; i += WIDE) memcpy(out + i, from + i, WIDE);
        return;
    }
    for (size_t i = 0; i < size; i++) out[i] = from[i];
}

int klk_snappy_decode(const uint8_t *data, size_t size, uint8_t *out, size_t out_max) {
    uint32_t wanted;
    ssize_t known = klk_snappy_size(data, size);
    if (known < 0) return KLK_ECORRUPT;
    if ((size_t)known > out_max) return KLK_ESPACE;
    const uint8_t *end = data + size, *at = klk_varint_read(data, end, &wanted);
    uint8_t *to = out, *to_end = out + known;
    while (at < end) {
        uint32_t tag = *at++, kind = tag & 3;
        size_t left = (size_t)(end - at), room = (size_t)(to_end - to), count;
        if (kind == LITERAL) {
            uint32_t bytes = tag >> 2 < LITERAL_LONG ? 0 : (tag >> 2) - LITERAL_LONG + 1;
            if (bytes > left) return KLK_ECORRUPT;
            count = (size_t)(bytes ? number_read(at, bytes) : tag >> 2) + 1;
            at += bytes;
            left -= bytes;
            if (count > left || count > room) return KLK_ECORRUPT;
            if (count <= WIDE && left >= WIDE && room >= WIDE)
                memcpy(to, at, WIDE);
            else
                memcpy(to, at, count);
            at += count;
        } else {
            uint32_t bytes = kind == COPY_1 ? 1 : kind == 2 ? 2 : 4;
            if (bytes > left) return KLK_ECORRUPT;
            size_t offset = number_read(at, bytes);
            count = (size_t)(tag >> 2) + 1;
            if (kind == COPY_1) {
                count = (tag >> 2 & 7) + 4;
                offset |= (size_t)(tag >> 5) << 8;
            }
            at += bytes;
            if (offset == 0 || offset > (size_t)(to - out) || count > room) return KLK_ECORRUPT;
            copy_back(to, offset, count, room);
        }
        to += count;
    }
    return to == to_end ? KLK_OK : KLK_ECORRUPT;
}
