/* Merges files of sorted keys into pairs: the newest entry of each key, in columns. */
#define _XOPEN_SOURCE 700 /* pread */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "api.h"
#include "sst_block.h"

enum { DELETION = 0, VALUE = 1 }; /* the lowest byte of a stamp; other types are unsupported */

/* ---- one run ---- */

/* Makes size bytes from offset on available in the window. */
static int window_fill(struct klk_sst_run *run, uint64_t offset, size_t size) {
    uint64_t in = offset - run->window_offset;
    if (offset >= run->window_offset && in <= run->window_size && size <= run->window_size - in)
        return KLK_OK;
    if (size > run->window_max) return KLK_SST_WINDOW;
    run->window_offset = offset;
    run->window_size = 0;
    while (run->window_size < size) {
        ssize_t got = pread(run->fd, run->window + run->window_size,
                            run->window_max - run->window_size,
                            (off_t)(offset + run->window_size));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return got < 0 ? KLK_EOS : KLK_ETORN;
        run->window_size += (size_t)got;
    }
    return KLK_OK;
}

/* Reads the next block. wants: the required size of a buffer that is too small. */
static int block_load(struct klk_sst_run *run, size_t *wants) {
    uint64_t offset = run->blocks.offsets[run->next];
    size_t size = (size_t)run->blocks.sizes[run->next];
    *wants = size + KLK_SST_TRAILER_SIZE;
    int code = window_fill(run, offset, *wants);
    if (code != KLK_OK) return code;
    const uint8_t *stored = run->window + (offset - run->window_offset);
    int kind = klk_sst_block_check(stored, size);
    if (kind < 0) return kind;
    if (kind == KLK_SST_SNAPPY) {
        ssize_t known = klk_snappy_size(stored, size);
        if (known < 0) return KLK_ECORRUPT;
        *wants = (size_t)known;
        if (*wants > run->block_max) return KLK_SST_BLOCK;
        code = klk_snappy_decode(stored, size, run->block, run->block_max);
        if (code != KLK_OK) return code;
        stored = run->block;
        size = *wants;
    }
    ssize_t entries = klk_sst_entries_size(stored, size);
    if (entries < 0) return (int)entries;
    run->at = stored;
    run->end = stored + entries;
    run->key_size = 0; /* the first entry of a block shares nothing */
    run->next++;
    return KLK_OK;
}

static int entry_read(struct klk_sst_run *run) {
    uint32_t shared, own, value_size;
    const uint8_t *at = run->at, *end = run->end;
    if (end - at >= 3 && (at[0] | at[1] | at[2]) < 0x80) {
        shared = at[0], own = at[1], value_size = at[2];
        at += 3;
    } else if (!(at = klk_varint_read(at, end, &shared)) ||
               !(at = klk_varint_read(at, end, &own)) ||
               !(at = klk_varint_read(at, end, &value_size))) {
        return KLK_ECORRUPT;
    }
    size_t left = (size_t)(end - at);
    if (shared > run->key_size || own > left || value_size > left - own) return KLK_ECORRUPT;
    if (own > run->key_max - shared) return KLK_EUNKNOWN; /* longer than any key of a table */
    if (shared + own < KLK_SST_STAMP_SIZE) return KLK_ECORRUPT;
    memcpy(run->key + shared, at, own);
    run->key_size = shared + own;
    run->stamp = klk_get_u64(run->key + run->key_size - KLK_SST_STAMP_SIZE);
    if ((run->stamp & 0xff) > VALUE) return KLK_EUNKNOWN;
    run->value = at + own;
    run->value_size = value_size;
    run->at = run->value + value_size;
    return KLK_OK;
}

static int is_below(const struct klk_sst_merge *merge, const struct klk_sst_run *run) {
    return klk_key_order(run->key, run->key_size - KLK_SST_STAMP_SIZE, merge->start,
                         merge->start_size) < 0;
}

/* Reads the next entry, or returns what is missing. */
static int run_next(struct klk_sst_merge *merge, struct klk_sst_run *run) {
    for (;;) {
        while (run->at == run->end) {
            if (run->next == run->blocks.count) {
                run->state = KLK_SST_NEXT;
                return KLK_SST_FILE;
            }
            int code = block_load(run, &merge->wants_size);
            if (code != KLK_OK) return code;
        }
        int code = entry_read(run);
        if (code != KLK_OK) return code;
        if (!run->seeks || !is_below(merge, run)) break;
    }
    run->seeks = 0;
    run->state = KLK_SST_READY;
    return KLK_OK;
}

/* ---- all runs ---- */

/* By key, and of equal keys the newest first. */
static int is_before(const struct klk_sst_run *a, const struct klk_sst_run *b) {
    int order = klk_key_order(a->key, a->key_size - KLK_SST_STAMP_SIZE, b->key,
                              b->key_size - KLK_SST_STAMP_SIZE);
    return order ? order < 0 : a->stamp > b->stamp;
}

/* Moves a run to its place in order, from first on; it stands before its place. */
static void run_place(struct klk_sst_merge *merge, uint32_t number, uint32_t first) {
    const struct klk_sst_run *run = &merge->runs[number];
    uint32_t *order = merge->order, low = first, high = merge->ordered;
    if (low < high && is_before(run, &merge->runs[order[low]])) high = low;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (is_before(run, &merge->runs[order[middle]]))
            high = middle;
        else
            low = middle + 1;
    }
    if (first) {
        memmove(order, order + first, (low - first) * sizeof *order);
        order[low - first] = number;
    } else {
        memmove(order + low + 1, order + low, (merge->ordered - low) * sizeof *order);
        order[low] = number;
        merge->ordered++;
    }
}

/* Gives each run an entry, or returns the run that lacks one and what it needs. */
static int runs_fill(struct klk_sst_merge *merge) {
    for (uint32_t i = 0; i < merge->count; i++) {
        struct klk_sst_run *run = &merge->runs[i];
        if (run->state == KLK_SST_READY || run->state == KLK_SST_OVER) continue;
        merge->wants = i;
        if (run->state == KLK_SST_NEXT) return KLK_SST_FILE;
        int code = run_next(merge, run);
        if (code != KLK_OK) return code;
        run_place(merge, i, 0);
    }
    return KLK_OK;
}

static int pair_add(struct klk_sst_merge *merge, const struct klk_sst_run *run) {
    if (!merge->key_offsets) {
        merge->pairs++;
        return KLK_OK;
    }
    uint32_t key_size = run->key_size - KLK_SST_STAMP_SIZE;
    uint32_t value_size = merge->with_values ? run->value_size : 0;
    size_t keys = (size_t)merge->key_offsets[merge->pairs];
    size_t values = (size_t)merge->value_offsets[merge->pairs];
    if (key_size > merge->keys_max - keys) {
        merge->wants_size = keys + key_size;
        return KLK_SST_KEYS;
    }
    if (value_size > merge->values_max - values) {
        merge->wants_size = values + value_size;
        return KLK_SST_VALUES;
    }
    memcpy(merge->keys + keys, run->key, key_size);
    if (value_size) memcpy(merge->values + values, run->value, value_size);
    merge->pairs++;
    merge->key_offsets[merge->pairs] = (int32_t)(keys + key_size);
    merge->value_offsets[merge->pairs] = (int32_t)(values + value_size);
    return KLK_OK;
}

/* Takes the smallest entry: it becomes a pair, hides older entries of its key, or is hidden. */
static int entry_take(struct klk_sst_merge *merge, const struct klk_sst_run *run) {
    uint32_t size = run->key_size - KLK_SST_STAMP_SIZE;
    if (run->stamp >> 8 > merge->sequence) return KLK_OK;
    if (merge->has_last && size == merge->last_size && memcmp(run->key, merge->last, size) == 0)
        return KLK_OK;
    if ((run->stamp & 0xff) == VALUE) {
        int code = pair_add(merge, run);
        if (code != KLK_OK) return code;
    }
    if (size > merge->last_max) return KLK_EINVAL;
    memcpy(merge->last, run->key, size);
    merge->last_size = size;
    merge->has_last = 1;
    return KLK_OK;
}

static int is_full(const struct klk_sst_merge *merge) {
    if (!merge->key_offsets) return merge->pairs == merge->pairs_max;
    uint64_t size = (uint64_t)merge->key_offsets[merge->pairs] +
                    (uint64_t)merge->value_offsets[merge->pairs];
    return merge->pairs == merge->pairs_max || size >= merge->bytes_max;
}

int klk_sst_merge(struct klk_sst_merge *merge) {
    if (merge->pairs == 0 && merge->key_offsets)
        merge->key_offsets[0] = merge->value_offsets[0] = 0;
    for (;;) {
        int code = runs_fill(merge);
        if (code != KLK_OK) return code;
        for (;;) {
            if (merge->ordered == 0) return KLK_SST_END;
            if (is_full(merge)) return KLK_SST_FULL;
            uint32_t number = merge->order[0];
            struct klk_sst_run *run = &merge->runs[number];
            if (merge->end_size &&
                klk_key_order(run->key, run->key_size - KLK_SST_STAMP_SIZE, merge->end,
                              merge->end_size) >= 0)
                return KLK_SST_END;
            code = entry_take(merge, run);
            if (code != KLK_OK) return code;
            run->state = KLK_SST_ADVANCE;
            merge->wants = number;
            code = run_next(merge, run);
            if (code != KLK_OK) break;
            run_place(merge, number, 1);
        }
        memmove(merge->order, merge->order + 1, --merge->ordered * sizeof *merge->order);
        if (code < 0) return code;
    }
}
