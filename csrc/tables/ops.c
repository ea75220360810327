/* Packed operations of tables: cut for Python, and packed from the frames of requests. */
#include "bytes.h"
#include "format.h"
#include "messages.h"

/* Appends the format of one item if the longest one fits. */
static int format_add(char *out, size_t capacity, size_t *at, uint32_t size) {
    if (capacity - *at < KLK_FORMAT_ITEM_MAX) return KLK_ESPACE;
    *at += klk_format_item(out + *at, size, 's');
    return KLK_OK;
}

/* Whether item i of keys, or of keys and values alternately, may have this size. */
static int size_fits(uint32_t size, uint64_t i, int columns) {
    if (columns == 2 && i % 2) return size <= KLK_VALUE_BYTES_MAX;
    return size && size <= KLK_KEY_BYTES_MAX;
}

int klk_sizes_check(const uint8_t *sizes, uint64_t count, int columns) {
    for (uint64_t i = 0; i < count; i++)
        if (!size_fits(klk_get_u32(sizes + 4 * i), i, columns)) return KLK_ECORRUPT;
    return KLK_OK;
}

ssize_t klk_sizes_format(const uint8_t *data, size_t size, uint32_t count, int columns, char *out,
                         size_t capacity, uint64_t *bytes) {
    if (columns != 1 && columns != 2) return KLK_EINVAL;
    uint64_t sizes = (uint64_t)count * (uint64_t)columns, sum = 0;
    if (sizes > size / 4) return KLK_ETORN;
    if (!capacity) return KLK_ESPACE;
    size_t at = 0, room = size - (size_t)sizes * 4;
    out[at++] = '<';
    for (uint64_t i = 0; i < sizes; i++) {
        uint32_t one = klk_get_u32(data + 4 * i);
        if (!size_fits(one, i, columns)) return KLK_ECORRUPT;
        sum += one;
        if (sum > room) return KLK_ETORN;
        if (format_add(out, capacity, &at, one) != KLK_OK) return KLK_ESPACE;
    }
    *bytes = sum;
    return (ssize_t)at;
}

ssize_t klk_offsets_format(const uint8_t *offsets, uint32_t count, size_t size, char *out,
                           size_t capacity) {
    if (!capacity) return KLK_ESPACE;
    if (klk_get_u32(offsets) != 0) return KLK_ECORRUPT;
    size_t at = 0;
    uint32_t before = 0;
    out[at++] = '<';
    for (uint64_t i = 1; i <= count; i++) {
        uint32_t offset = klk_get_u32(offsets + 4 * i);
        if (offset < before || offset > size || offset - before > KLK_VALUE_BYTES_MAX)
            return KLK_ECORRUPT;
        if (format_add(out, capacity, &at, offset - before) != KLK_OK) return KLK_ESPACE;
        before = offset;
    }
    return before == size ? (ssize_t)at : KLK_ECORRUPT;
}

size_t klk_frames_format(const uint32_t *offsets, uint32_t count, char *out) {
    size_t at = 0;
    out[at++] = '<';
    for (uint32_t i = 0; i < count; i++)
        at += klk_format_item(out + at, offsets[i + 1] - offsets[i], 's');
    return at;
}

int klk_messages_add(struct klk_messages *out, const uint32_t *sizes, uint32_t count,
                     const uint8_t *data, size_t size) {
    uint32_t offset = klk_messages_bytes(out);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) sum += sizes[i];
    if (sum != size) return KLK_EINVAL;
    if (!klk_messages_fit(out, size, count)) return KLK_EFULL;
    if (size) memcpy(out->bytes + offset, data, size);
    for (uint32_t i = 0; i < count; i++)
        out->offsets[++out->frames] = offset += sizes[i];
    return KLK_OK;
}
