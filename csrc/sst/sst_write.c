/* Writes sorted rows into blocks of RocksDB's block-based tables, format 5. */
#include <string.h>

#include "api.h"
#include "bytes.h"
#include "sst_block.h"

enum { RESTART_ROWS = 16, ROW_KIND = 1 /* a value; the rest of its stamp is sequence number 0 */ };

/* The block that is built in writer->block. */
struct building {
    uint8_t *restarts; /* u32 little endian: the offset of each RESTART_ROWS-th entry */
    size_t size;
    uint32_t rows;
    const uint8_t *last; /* its last key */
    uint32_t last_size;
};

static uint32_t offset_at(const uint8_t *offsets, uint32_t i) {
    return klk_get_u32(offsets + 4 * (size_t)i);
}

static uint32_t size_at(const uint8_t *offsets, uint32_t i) {
    return offset_at(offsets, i + 1) - offset_at(offsets, i);
}

static int column_check(const uint8_t *offsets, uint32_t count, size_t size) {
    if (offset_at(offsets, 0) != 0 || offset_at(offsets, count) != size) return KLK_ECORRUPT;
    for (uint32_t i = 0; i < count; i++) {
        if (offset_at(offsets, i + 1) < offset_at(offsets, i)) return KLK_ECORRUPT;
        if (size_at(offsets, i) > KLK_VALUE_BYTES_MAX) return KLK_ECORRUPT;
    }
    return KLK_OK;
}

int klk_sst_rows_check(const struct klk_sst_rows *rows) {
    if (!rows->count || column_check(rows->key_offsets, rows->count, rows->keys_size) != KLK_OK ||
        column_check(rows->value_offsets, rows->count, rows->values_size) != KLK_OK)
        return KLK_ECORRUPT;
    const uint8_t *last = rows->keys;
    uint32_t last_size = 0, size_max = 0; /* An empty first key does not ascend either. */
    for (uint32_t i = 0; i < rows->count; i++) {
        const uint8_t *key = rows->keys + offset_at(rows->key_offsets, i);
        uint32_t size = size_at(rows->key_offsets, i);
        if (klk_key_order(last, last_size, key, size) >= 0) return KLK_EINVAL;
        if (size > size_max) size_max = size;
        last = key;
        last_size = size;
    }
    return size_max > KLK_KEY_BYTES_MAX ? KLK_ESPACE : KLK_OK;
}

static uint8_t *varint_put(uint8_t *out, uint64_t value) {
    for (; value >= 0x80; value >>= 7) *out++ = (uint8_t)(value | 0x80);
    *out++ = (uint8_t)value;
    return out;
}

static uint32_t shared_bytes(const struct building *block, const uint8_t *key, uint32_t size) {
    uint32_t most = block->last_size < size ? block->last_size : size, shared = 0;
    while (shared < most && block->last[shared] == key[shared]) shared++;
    return shared;
}

static uint32_t restart_count(uint32_t rows) { return (rows + RESTART_ROWS - 1) / RESTART_ROWS; }

/* Adds the entry of the block to the index. */
static int index_add(struct klk_sst_writer *writer, const struct building *block, size_t size) {
    if (writer->blocks == writer->blocks_max ||
        writer->index_max - writer->index_size < (size_t)block->last_size + KLK_SST_ROW_MAX)
        return KLK_ESPACE;
    writer->restarts[writer->blocks++] = writer->index_base + (uint32_t)writer->index_size;
    uint8_t *out = varint_put(writer->index + writer->index_size, 0);
    out = varint_put(out, block->last_size);
    memcpy(out, block->last, block->last_size);
    out = varint_put(out + block->last_size, writer->offset + writer->out_size);
    out = varint_put(out, size);
    writer->index_size = (size_t)(out - writer->index);
    return KLK_OK;
}

/* Ends the block and stores it. */
static int block_end(struct klk_sst_writer *writer, struct building *block) {
    uint32_t restarts = restart_count(block->rows);
    memcpy(writer->block + block->size, block->restarts, 4 * (size_t)restarts);
    klk_put_u32(writer->block + block->size + 4 * (size_t)restarts, restarts);
    size_t size = block->size + 4 * (size_t)restarts + 4, stored = size;
    if (writer->out_max - writer->out_size <
        size + size / 6 + KLK_SNAPPY_OVERHEAD + KLK_SST_TRAILER_SIZE)
        return KLK_ESPACE;
    uint8_t *out = writer->out + writer->out_size;
    if (writer->compresses) stored = klk_snappy_encode(writer->block, size, out);
    int kind = stored < size - size / 8 ? KLK_SST_SNAPPY : KLK_SST_PLAIN;
    if (kind == KLK_SST_PLAIN) {
        stored = size;
        memcpy(out, writer->block, size);
    }
    int code = index_add(writer, block, stored);
    if (code != KLK_OK) return code;
    klk_sst_block_seal(out, stored, (uint8_t)kind);
    writer->out_size += stored + KLK_SST_TRAILER_SIZE;
    block->size = block->rows = block->last_size = 0;
    return KLK_OK;
}

int klk_sst_write(struct klk_sst_writer *writer, const struct klk_sst_rows *rows) {
    writer->out_size = writer->index_size = writer->blocks = 0;
    int code = klk_sst_rows_check(rows);
    if (code != KLK_OK) return code;
    /* Offsets of restarts are collected at the end of the block's buffer. */
    size_t restarts_size = 4 * (size_t)restart_count(rows->count);
    size_t wanted = rows->keys_size + rows->values_size + KLK_SST_ROW_MAX * (size_t)rows->count;
    if (wanted > INT32_MAX || writer->block_max < wanted + restarts_size) return KLK_ESPACE;
    struct building block = {.restarts = writer->block + wanted};
    for (uint32_t i = 0; i < rows->count; i++) {
        const uint8_t *key = rows->keys + offset_at(rows->key_offsets, i);
        uint32_t key_size = size_at(rows->key_offsets, i);
        uint32_t value_size = size_at(rows->value_offsets, i);
        size_t most = block.size + key_size + value_size + KLK_SST_ROW_MAX / 2 +
                      4 * (size_t)(restart_count(block.rows + 1) + 1);
        if (block.rows && most > writer->block_bytes &&
            (code = block_end(writer, &block)) != KLK_OK)
            return code;
        uint32_t shared = 0;
        if (block.rows % RESTART_ROWS)
            shared = shared_bytes(&block, key, key_size);
        else
            klk_put_u32(block.restarts + 4 * (block.rows / RESTART_ROWS), (uint32_t)block.size);
        uint8_t *out = varint_put(writer->block + block.size, shared);
        out = varint_put(out, key_size - shared + KLK_SST_STAMP_SIZE);
        out = varint_put(out, value_size);
        memcpy(out, key + shared, key_size - shared);
        klk_put_u64(out += key_size - shared, ROW_KIND);
        out += KLK_SST_STAMP_SIZE;
        if (value_size)
            memcpy(out, rows->values + offset_at(rows->value_offsets, i), value_size);
        block.size = (size_t)(out + value_size - writer->block);
        block.rows++;
        block.last = key;
        block.last_size = key_size;
    }
    return block_end(writer, &block);
}
