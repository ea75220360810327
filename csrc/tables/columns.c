/* Entries as columns, for readers of millions of entries. */
#include <string.h>

#include "api.h"
#include "messages.h"
#include "reqids.h"
#include "walk.h"

static void reqid_write(struct klk_columns *columns, uint32_t at, const uint8_t *reqid) {
    int32_t offset = columns->reqid_offsets[at];
    if (at % 8 == 0) columns->valid[at / 8] = 0;
    columns->times[at] = 0;
    if (reqid) {
        columns->valid[at / 8] = (uint8_t)(columns->valid[at / 8] | 1u << at % 8);
        columns->times[at] = (int64_t)klk_reqid_seconds(reqid) * 1000000;
        memcpy(columns->reqids + offset, reqid, KLK_REQID_SIZE);
        offset += KLK_REQID_SIZE;
    }
    columns->reqid_offsets[at + 1] = offset;
}

int klk_columns_add(struct klk_columns *columns, const uint8_t *block, size_t size) {
    struct klk_header header;
    struct klk_record record;
    struct klk_walk walk;
    if (klk_walk_start(block, size, &header, &walk) != KLK_OK) return KLK_ECORRUPT;
    if (header.count > columns->count_max - columns->count) return KLK_ESPACE;
    uint32_t row = columns->count;
    if (row == 0) columns->reqid_offsets[0] = columns->data_offsets[0] = 0;
    for (uint32_t i = 0; i < header.count; i++, row++) {
        if (klk_walk_next(&walk, &record) != KLK_OK) return KLK_ECORRUPT;
        uint32_t offset = (uint32_t)columns->data_offsets[row];
        if (record.data_size > columns->bytes_max - offset) return KLK_ESPACE;
        columns->indexes[row] = (int64_t)(header.first_index + i);
        columns->terms[row] = (int64_t)header.term;
        columns->kinds[row] = (int8_t)record.kind;
        reqid_write(columns, row, record.reqid);
        if (record.data_size) memcpy(columns->data + offset, record.data, record.data_size);
        columns->data_offsets[row + 1] = (int32_t)(offset + record.data_size);
    }
    columns->count = row;
    return KLK_OK;
}

int klk_columns_part(const uint32_t *offsets, uint32_t count, const uint8_t *data,
                     struct klk_column *columns) {
    if (count % 2) return KLK_EINVAL;
    for (uint32_t i = 0; i < count; i++)
        if (offsets[i + 1] < offsets[i] || offsets[i + 1] - offsets[0] > INT32_MAX)
            return KLK_EINVAL;
    columns[0].offsets[0] = columns[1].offsets[0] = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct klk_column *column = &columns[i % 2];
        uint32_t size = offsets[i + 1] - offsets[i];
        int32_t end = column->offsets[i / 2];
        if (size) memcpy(column->data + end, data + (offsets[i] - offsets[0]), size);
        column->offsets[i / 2 + 1] = (int32_t)((uint32_t)end + size);
    }
    return KLK_OK;
}

static uint32_t offset_at(const struct klk_packed *column, size_t i) {
    uint32_t offset;
    memcpy(&offset, column->offsets + 4 * i, sizeof offset);
    return offset;
}

static int is_ascending(const struct klk_packed *column, size_t count) {
    if (offset_at(column, 0) != 0) return 0;
    for (size_t i = 0; i < count; i++)
        if (offset_at(column, i + 1) < offset_at(column, i)) return 0;
    return offset_at(column, count) == column->data_size;
}

int klk_columns_join(struct klk_messages *out, const struct klk_packed *columns) {
    size_t size = columns[0].offsets_size;
    if (size < 4 || size % 4 || size != columns[1].offsets_size) return KLK_EINVAL;
    size_t count = size / 4 - 1;
    if (!is_ascending(&columns[0], count) || !is_ascending(&columns[1], count)) return KLK_EINVAL;
    if (!klk_messages_fit(out, (uint64_t)columns[0].data_size + columns[1].data_size, 2 * count))
        return KLK_EFULL;
    for (size_t i = 0; i < count; i++)
        for (int c = 0; c < 2; c++) {
            uint32_t start = offset_at(&columns[c], i), end = offset_at(&columns[c], i + 1);
            klk_messages_frame(out, columns[c].data + start, end - start);
        }
    return KLK_OK;
}
