/* RocksDB's files of sorted keys behind right checksums: an index, and a merge of two runs. */
#define _XOPEN_SOURCE 700 /* fileno */
#include <unistd.h>

#include "fuzz.h"
#include "sst.h"

enum { RUNS = 2, PAIRS = 4, BLOCKS_MAX = 8, KEY_MAX = 64, INDEX_BYTES = 120 };

/* The input: u8 sizes of the index and of each of two blocks of both files, u8 whether they are
 * compressed, then these bytes. */
enum { HEAD = 6 };

static size_t put_entries(uint8_t *out, uint8_t first) {
    size_t used = 0;
    for (uint8_t i = 0; i < 3; i++) {
        out[used++] = i ? 1 : 0; /* bytes shared with the key before */
        out[used++] = (uint8_t)((i ? 1 : 2) + KLK_SST_STAMP_SIZE);
        out[used++] = i % 2 ? 0 : 3;
        if (!i) out[used++] = 'k';
        out[used++] = (uint8_t)(first + i);
        klk_put_u64(out + used, (uint64_t)(5 + i) << 8 | !(i % 2));
        used += 8;
        memcpy(out + used, "val", 3);
        used += i % 2 ? 0 : 3;
    }
    klk_put_u32(out + used, 0);
    klk_put_u32(out + used + 4, 1);
    return used + 8;
}

size_t fuzz_seed(uint32_t number, uint8_t *out) {
    static const uint8_t index[] = {0, 1, 'k', 0, 40, 0, 1, 'm', 45, 30, 0, 0, 0, 0};
    if (number > 1) return 0;
    size_t used = HEAD;
    memcpy(out + used, index, sizeof index);
    out[0] = sizeof index;
    used += sizeof index;
    for (uint8_t block = 0; block < 4; block++) {
        size_t size = put_entries(out + used, (uint8_t)('a' + 2 * block));
        out[1 + block] = (uint8_t)size;
        used += size;
    }
    out[5] = 0;
    return used;
}

static void read_index(const uint8_t *data, size_t size) {
    uint64_t offsets[BLOCKS_MAX], sizes[BLOCKS_MAX];
    uint8_t *copy = exact_copy(data, size);
    for (uint32_t i = 0; i < 4; i++) {
        struct klk_sst_blocks blocks = {offsets, sizes, 0, i ? BLOCKS_MAX : 1};
        struct klk_sst_bounds bounds = {.start = (const uint8_t *)"k",
                                        .end = (const uint8_t *)"l",
                                        .start_size = i % 2,
                                        .end_size = i / 2,
                                        .stamp_size = i == 3 ? KLK_SST_STAMP_SIZE : 0,
                                        .file_size = 100};
        int code = klk_sst_index(copy, size, &bounds, &blocks);
        REQUIRE(code == KLK_OK || code == KLK_ECORRUPT || code == KLK_EUNKNOWN ||
                code == KLK_ESPACE);
        for (uint32_t b = 0; code == KLK_OK && b < blocks.count; b++)
            REQUIRE(offsets[b] <= 100 && sizes[b] + KLK_SST_TRAILER_SIZE <= 100 - offsets[b]);
    }
    free(copy);
}

/* Two blocks of the input with right trailers. */
struct file {
    uint8_t data[600];
    size_t size;
    uint64_t offsets[2], sizes[2];
};

static void add_block(struct file *file, uint32_t b, struct fuzz_input *in, size_t size,
                      uint8_t kind) {
    if (size > in->left) size = in->left;
    uint8_t *at = file->data + file->size;
    memcpy(at, in->at, size);
    in->at += size;
    in->left -= size;
    at[size] = kind;
    klk_put_u32(at + size + 1, (uint32_t)klk_xxh3(at, size) ^ kind * 0x6b9083d9u);
    uint8_t *copy = exact_copy(at, size + KLK_SST_TRAILER_SIZE);
    REQUIRE(klk_sst_block_check(copy, size) == kind);
    free(copy);
    file->offsets[b] = file->size;
    file->sizes[b] = size;
    file->size += size + KLK_SST_TRAILER_SIZE;
}

/* All blocks of a part of the file, from a random one on; a changed byte in one is found. */
static void check_blocks(struct file *file, uint8_t base, uint8_t change) {
    struct klk_sst_blocks blocks = {file->offsets, file->sizes, 2, 2};
    uint8_t *copy = exact_copy(file->data, file->size);
    REQUIRE(klk_sst_blocks_check(&blocks, 0, copy, file->size, 0) == 2);
    REQUIRE(klk_sst_blocks_check(&blocks, 0, copy, file->size - 1, 0) == 1);
    size_t from = base % file->size;
    uint8_t *part = exact_copy(file->data + from, file->size - from);
    ssize_t reached = klk_sst_blocks_check(&blocks, 1, part, file->size - from, from);
    REQUIRE(reached == (from <= file->offsets[1] ? 2 : 1));
    copy[change % file->size] ^= 1;
    REQUIRE(klk_sst_blocks_check(&blocks, 0, copy, file->size, 0) == KLK_ECORRUPT);
    free(part);
    free(copy);
}

static void grow(uint8_t **data, size_t *max, size_t size, size_t used) {
    uint8_t *larger = exact(size);
    memcpy(larger, *data, used);
    free(*data);
    *data = larger;
    *max = size;
}

/* Gives what the merge asks for; 0: it is full, has ended or failed. */
static int give(struct klk_sst_merge *merge, int state) {
    struct klk_sst_run *run = &merge->runs[merge->wants];
    REQUIRE(merge->wants_size <= 1 << 24 || state < KLK_SST_WINDOW);
    switch (state) {
    case KLK_SST_FILE: run->state = KLK_SST_OVER; return 1;
    case KLK_SST_WINDOW:
        grow(&run->window, &run->window_max, merge->wants_size, 0);
        run->window_size = 0;
        return 1;
    case KLK_SST_BLOCK: grow(&run->block, &run->block_max, merge->wants_size, 0); return 1;
    case KLK_SST_KEYS:
        grow(&merge->keys, &merge->keys_max, merge->wants_size,
             (size_t)merge->key_offsets[merge->pairs]);
        return 1;
    case KLK_SST_VALUES:
        grow(&merge->values, &merge->values_max, merge->wants_size,
             (size_t)merge->value_offsets[merge->pairs]);
        return 1;
    default: return 0;
    }
}

static void merge_files(struct file *files, const int *fds) {
    struct klk_sst_run runs[RUNS];
    struct klk_sst_merge merge = {.runs = runs,
                                  .count = RUNS,
                                  .order = exact(RUNS * 4),
                                  .last = exact(KEY_MAX),
                                  .last_max = KEY_MAX,
                                  .start = (const uint8_t *)"a",
                                  .start_size = 1,
                                  .end = (const uint8_t *)"z",
                                  .end_size = 1,
                                  .sequence = 100,
                                  .with_values = 1,
                                  .pairs_max = PAIRS,
                                  .bytes_max = UINT32_MAX,
                                  .key_offsets = exact((PAIRS + 1) * 4),
                                  .value_offsets = exact((PAIRS + 1) * 4),
                                  .keys = exact(1),
                                  .values = exact(1),
                                  .keys_max = 1,
                                  .values_max = 1};
    for (int i = 0; i < RUNS; i++) {
        struct klk_sst_blocks blocks = {files[i].offsets, files[i].sizes, 2, 2};
        runs[i] = (struct klk_sst_run){.blocks = blocks,
                                       .fd = fds[i],
                                       .key = exact(KEY_MAX),
                                       .key_max = KEY_MAX,
                                       .window = exact(1),
                                       .window_max = 1,
                                       .block = exact(1),
                                       .block_max = 1,
                                       .seeks = 1,
                                       .state = KLK_SST_ADVANCE};
    }
    int state;
    do {
        merge.pairs = 0;
        while (give(&merge, state = klk_sst_merge(&merge))) continue;
        REQUIRE(merge.pairs <= PAIRS && state != KLK_EINVAL);
    } while (state == KLK_SST_FULL);
    for (int i = 0; i < RUNS; i++) {
        free(runs[i].key);
        free(runs[i].window);
        free(runs[i].block);
    }
    free(merge.order);
    free(merge.last);
    free(merge.key_offsets);
    free(merge.value_offsets);
    free(merge.keys);
    free(merge.values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static FILE *made[RUNS];
    int fds[RUNS];
    struct file files[RUNS] = {0};
    struct fuzz_input in = {data, size};
    uint8_t head[HEAD];
    for (int i = 0; i < HEAD; i++) head[i] = fuzz_u8(&in);
    size_t index = head[0] < INDEX_BYTES ? head[0] : INDEX_BYTES;
    if (index > in.left) index = in.left;
    read_index(in.at, index);
    in.at += index;
    in.left -= index;
    for (uint32_t i = 0; i < RUNS; i++) {
        for (uint32_t b = 0; b < 2; b++)
            add_block(&files[i], b, &in, head[1 + 2 * i + b],
                      head[5] & 1u << (2 * i + b) ? KLK_SST_SNAPPY : KLK_SST_PLAIN);
        check_blocks(&files[i], head[1 + i], head[2 + i]);
        if (!made[i]) made[i] = tmpfile();
        REQUIRE(made[i]);
        fds[i] = fileno(made[i]);
        REQUIRE(ftruncate(fds[i], 0) == 0);
        REQUIRE(pwrite(fds[i], files[i].data, files[i].size, 0) == (ssize_t)files[i].size);
    }
    merge_files(files, fds);
    return 0;
}
