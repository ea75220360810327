/* Joins consecutive entries of a block that only put or delete, for Python. */
#include <string.h>

#include "api.h"
#include "bytes.h"
#include "format.h"
#include "table_mark.h"
#include "walk.h"

/* The output. */
struct cut {
    const uint8_t *block;
    struct klk_run *runs;
    size_t runs_max;
    size_t count;
    char *format;
    size_t capacity;
    size_t used;
    size_t reached; /* end of the format within the block */
    uint32_t number;
    uint32_t workers;
    const uint32_t *apart;
    uint32_t apart_count;
};

/* A put or delete: its keys and values are at data, their sizes before them. */
struct change {
    const uint8_t *sizes;
    const uint8_t *data;
    uint32_t operation;
    uint32_t table;
    uint32_t items;
};

/* Reads a put or delete. Returns its size, or 0: it is another operation, or malformed. */
static size_t change_read(const uint8_t *data, size_t size, struct change *change) {
    if (size < KLK_OP_HEAD || (data[0] != KLK_OP_PUT && data[0] != KLK_OP_DELETE)) return 0;
    int columns = data[0] == KLK_OP_PUT ? 2 : 1;
    uint64_t items = (uint64_t)klk_get_u32(data + 5) * (uint64_t)columns, bytes = 0;
    if (items > (size - KLK_OP_HEAD) / 4) return 0;
    size_t room = size - KLK_OP_HEAD - (size_t)items * 4;
    change->operation = data[0];
    change->table = klk_get_u32(data + 1);
    change->items = (uint32_t)items;
    change->sizes = data + KLK_OP_HEAD;
    change->data = change->sizes + items * 4;
    if (klk_sizes_check(change->sizes, items, columns) != KLK_OK) return 0;
    for (uint64_t i = 0; i < items; i++) bytes += klk_get_u32(change->sizes + 4 * i);
    if (bytes > room) return 0;
    return KLK_OP_HEAD + (size_t)items * 4 + (size_t)bytes;
}

/* Whether an entry holds only well-formed puts and deletes. */
static int entry_plain(const uint8_t *data, size_t size) {
    struct change change;
    for (size_t at = KLK_TABLE_MARK_SIZE; at < size;) {
        size_t taken = change_read(data + at, size - at, &change);
        if (!taken) return 0;
        at += taken;
    }
    return 1;
}

/* Whether entries of a table must not share a run. */
static int is_apart(const struct cut *cut, uint32_t table) {
    uint32_t low = 0, high = cut->apart_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (cut->apart[middle] == table) return 1;
        if (cut->apart[middle] < table)
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

/* A new run, or the last one if the entry continues it. */
static struct klk_run *cut_run(struct cut *cut, uint64_t log_index, uint32_t operation,
                               uint32_t table) {
    struct klk_run *last = cut->count ? &cut->runs[cut->count - 1] : NULL;
    if (last && operation && last->operation == operation && last->table == table &&
        (last->log_index == log_index || !is_apart(cut, table))) {
        last->log_index = log_index;
        return last;
    }
    if (cut->count == cut->runs_max) return NULL;
    last = &cut->runs[cut->count++];
    *last = (struct klk_run){.log_index = log_index, .operation = operation, .table = table};
    return last;
}

static int cut_change(struct cut *cut, uint64_t log_index, const struct change *change) {
    if (change->table % cut->workers != cut->number || !change->items) return KLK_OK;
    struct klk_run *run = cut_run(cut, log_index, change->operation, change->table);
    uint64_t need = ((uint64_t)change->items + 1) * KLK_FORMAT_FRAME_MAX;
    if (!run || need > cut->capacity - cut->used) return KLK_ESPACE;
    size_t start = (size_t)(change->data - cut->block);
    char *out = cut->format + cut->used;
    out += klk_format_item(out, (uint32_t)(start - cut->reached), 'x');
    cut->reached = start;
    for (uint32_t i = 0; i < change->items; i++) {
        uint32_t bytes = klk_get_u32(change->sizes + 4 * (size_t)i);
        out += klk_format_item(out, bytes, 's');
        cut->reached += bytes;
    }
    cut->used = (size_t)(out - cut->format);
    run->items += change->items;
    return KLK_OK;
}

static int cut_entry(struct cut *cut, uint64_t log_index, const uint8_t *data, uint32_t size) {
    if (!entry_plain(data, size)) {
        struct klk_run *run = cut_run(cut, log_index, 0, 0);
        if (!run) return KLK_ESPACE;
        run->offset = (uint32_t)(data - cut->block);
        run->size = size;
        return KLK_OK;
    }
    struct change change;
    for (size_t at = KLK_TABLE_MARK_SIZE; at < size;) {
        at += change_read(data + at, size - at, &change);
        int result = cut_change(cut, log_index, &change);
        if (result != KLK_OK) return result;
    }
    return KLK_OK;
}

ssize_t klk_runs_cut(const uint8_t *block, size_t size, uint64_t marked_last, uint32_t number,
                     uint32_t workers, const uint32_t *apart, uint32_t apart_count,
                     struct klk_run *runs, size_t runs_max, char *format, size_t capacity,
                     size_t *format_size) {
    struct klk_header header;
    struct klk_record record;
    struct cut cut = {.block = block, .runs = runs, .runs_max = runs_max, .format = format,
                      .capacity = capacity, .number = number, .workers = workers,
                      .apart = apart, .apart_count = apart_count};
    struct klk_walk walk;
    if (!workers) return KLK_EINVAL;
    if (klk_walk_start(block, size, &header, &walk) != KLK_OK) return KLK_ECORRUPT;
    if (!capacity) return KLK_ESPACE;
    format[cut.used++] = '<';
    for (uint32_t i = 0; i < header.count; i++) {
        if (klk_walk_next(&walk, &record) != KLK_OK) return KLK_ECORRUPT;
        int is_believed = record.kind == KLK_KIND_TABLES ||
                          (record.kind == KLK_KIND_STATE && header.first_index + i <= marked_last);
        if (!is_believed || !klk_is_marked(record.data, record.data_size)) continue;
        int result = cut_entry(&cut, header.first_index + i, record.data, record.data_size);
        if (result != KLK_OK) return result;
    }
    *format_size = cut.used;
    return (ssize_t)cut.count;
}
