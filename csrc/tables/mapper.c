/* Input and output of mappers, by the batch (docs/guides/mapper.md). */
#include "api.h"
#include "bytes.h"
#include "table_mark.h"

enum {
    OUTPUT_PUT = 0,
    OUTPUT_DELETE = 1,
    OUTPUT_HEAD = 9 /* u8 operation, u32 key size, u32 value size */
};

ssize_t klk_records_pack(const uint32_t *sizes, uint32_t count, const uint8_t *joined, size_t size,
                         uint8_t *out, size_t capacity) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 2 * (uint64_t)count; i++) sum += sizes[i];
    if (sum != size) return KLK_EINVAL;
    if (capacity < size + 8 * (size_t)count) return KLK_ESPACE;
    uint8_t *at = out;
    for (uint32_t i = 0; i < count; i++) {
        size_t record = (size_t)sizes[2 * (size_t)i] + sizes[2 * (size_t)i + 1];
        klk_put_u32(at, sizes[2 * (size_t)i]);
        klk_put_u32(at + 4, sizes[2 * (size_t)i + 1]);
        if (record > 0) memcpy(at + 8, joined, record);
        joined += record;
        at += 8 + record;
    }
    return at - out;
}

/* The size of key and value of the record at data, or KLK_ECORRUPT. */
static int64_t output_read(const uint8_t *data, size_t size) {
    if (size < OUTPUT_HEAD) return KLK_ECORRUPT;
    uint64_t key = klk_get_u32(data + 1), value = klk_get_u32(data + 5);
    int delete = data[0] == OUTPUT_DELETE;
    if (!delete && data[0] != OUTPUT_PUT) return KLK_ECORRUPT;
    if (key == 0 || key > KLK_KEY_BYTES_MAX || (delete && value)) return KLK_ECORRUPT;
    if (value > KLK_VALUE_BYTES_MAX || key + value > size - OUTPUT_HEAD) return KLK_ECORRUPT;
    return (int64_t)(key + value);
}

/* The number of consecutive records of one kind at data; end is set behind them. */
static uint32_t output_run(const uint8_t *data, size_t size, size_t *end) {
    uint32_t count = 0;
    size_t at = 0;
    while (at < size && data[at] == data[0]) {
        int64_t record = output_read(data + at, size - at);
        if (record < 0) break;
        at += OUTPUT_HEAD + (size_t)record;
        count++;
    }
    *end = at;
    return count;
}

/* Writes a run of checked records as one operation; returns its size. */
static size_t output_write(const uint8_t *data, uint32_t count, uint32_t table, uint8_t *out) {
    int delete = data[0] == OUTPUT_DELETE;
    size_t sizes = delete ? 4 : 8;
    uint8_t *at = out + KLK_OP_HEAD, *bytes = at + sizes * count;
    out[0] = delete ? KLK_OP_DELETE : KLK_OP_PUT;
    klk_put_u32(out + 1, table);
    klk_put_u32(out + 5, count);
    for (uint32_t i = 0; i < count; i++) {
        size_t record = (size_t)klk_get_u32(data + 1) + klk_get_u32(data + 5);
        memcpy(at, data + 1, sizes);
        memcpy(bytes, data + OUTPUT_HEAD, record);
        at += sizes;
        bytes += record;
        data += OUTPUT_HEAD + record;
    }
    return (size_t)(bytes - out);
}

ssize_t klk_output_ops(const uint8_t *output, size_t size, uint32_t table, uint8_t *out,
                       size_t capacity, uint64_t *counts) {
    if (capacity < 2 * size) return KLK_ESPACE;
    size_t used = 0, written = 0;
    counts[0] = counts[1] = counts[2] = 0;
    while (used < size) {
        size_t end;
        uint32_t count = output_run(output + used, size - used, &end);
        if (count == 0) {
            counts[2] = used;
            return KLK_ECORRUPT;
        }
        counts[output[used] == OUTPUT_DELETE] += count;
        written += output_write(output + used, count, table, out + written);
        used += end;
    }
    return (ssize_t)written;
}
