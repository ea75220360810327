/* csrc/sst/xxh3.c, snappy.c, sst.c and sst_merge.c on exact-size heap buffers: known answers,
 * and junk behind right checksums, which must end in an error or in pairs. */
#define _XOPEN_SOURCE 700 /* fileno */
#include <unistd.h>

#include "bytes.h"
#include "exact.h"
#include "sst.h"

enum { ROUNDS = 3000, FILE_MAX = 1 << 14, BLOCKS = 3, ENTRIES = 20, KEY_MAX = 64 };

static void test_hash(void) {
    /* From a plain Python twin; the last one has more than one block of stripes. */
    static const struct {
        size_t size;
        uint64_t hash;
    } known[] = {
        {0, 0x2d06800538d394c2u}, {1, 0xe12ef9d2eb86ceebu}, {3, 0x5c83885a0fb5d516u},
        {4, 0x244f36de481e7522u}, {8, 0x96cc97a6768fd7a9u}, {9, 0x4781d83b8e99d495u},
        {16, 0x913bd4a8038027a7u}, {17, 0x2bf6f66973a6179du}, {128, 0xc4399c7829d0628fu},
        {129, 0x8433489056750b32u}, {240, 0x3c0bb96864e543a1u}, {241, 0xbff7215089202d8fu},
        {1024, 0xac8e32e4ea3ba062u}, {2200, 0xfac17860ff80df86u},
    };
    uint8_t all[2200];
    for (size_t i = 0; i < sizeof all; i++) all[i] = (uint8_t)(i * 7 + 1);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint8_t *data = exact_copy(all, known[i].size);
        REQUIRE(klk_xxh3(data, known[i].size) == known[i].hash);
        free(data);
    }
}

static void test_snappy(void) {
    /* A literal abc, a copy of 9 from 3 back, one of 20 with an offset of 2 bytes, one of 4. */
    static const uint8_t stream[] = {36, 2 << 2, 'a', 'b', 'c', 5 << 2 | 1, 3, 19 << 2 | 2, 6, 0,
                                     3 << 2 | 3, 1, 0, 0, 0};
    uint8_t *data = exact_copy(stream, sizeof stream), *out = exact(36);
    REQUIRE(klk_snappy_size(data, sizeof stream) == 36);
    REQUIRE(klk_snappy_decode(data, sizeof stream, out, 36) == KLK_OK);
    REQUIRE(memcmp(out, "abcabcabcabcabcabcabcabcabcabcabbbbb", 36) == 0);
    REQUIRE(klk_snappy_decode(data, sizeof stream, out, 35) == KLK_ESPACE);
    for (size_t size = 0; size < sizeof stream; size++) {
        uint8_t *part = exact_copy(stream, size);
        REQUIRE(klk_snappy_decode(part, size, out, 36) == KLK_ECORRUPT);
        free(part);
    }
    free(data);
    free(out);
}

static void test_snappy_on_junk(void) {
    uint32_t dice = 7;
    for (int round = 0; round < 20 * ROUNDS; round++) {
        size_t size = next_random(&dice) % 40;
        uint8_t *data = exact(size);
        for (size_t i = 0; i < size; i++) {
            data[i] = (uint8_t)next_random(&dice);
            if (next_random(&dice) % 2) data[i] &= 0x17; /* Short literals and copies. */
        }
        if (size && round % 2) data[0] &= 0x7f;
        ssize_t known = klk_snappy_size(data, size);
        if (known >= 0) {
            uint8_t *out = exact((size_t)known);
            int code = klk_snappy_decode(data, size, out, (size_t)known);
            REQUIRE(code == KLK_OK || code == KLK_ECORRUPT);
            free(out);
        }
        free(data);
    }
}

/* ---- files ---- */

struct file {
    uint8_t data[FILE_MAX];
    size_t size;
    uint64_t offsets[BLOCKS], sizes[BLOCKS];
    uint8_t index[FILE_MAX];
    size_t index_size;
};

/* Writes the trailer of a block that begins at start. */
static void seal(struct file *file, size_t start, uint8_t kind) {
    size_t size = file->size - start;
    uint32_t checksum = (uint32_t)klk_xxh3(file->data + start, size) ^ kind * 0x6b9083d9u;
    file->data[file->size] = kind;
    klk_put_u32(file->data + file->size + 1, checksum);
    file->size += KLK_SST_TRAILER_SIZE;
}

static size_t put_varint(uint8_t *out, uint64_t value) {
    size_t size = 0;
    for (; value >= 0x80; value >>= 7) out[size++] = (uint8_t)(value | 0x80);
    out[size++] = (uint8_t)value;
    return size;
}

/* Keys of 4 digits, step apart, each with a sequence number; every third one deletes. */
static void make_file(struct file *file, uint32_t first, uint32_t step, uint64_t sequence) {
    file->size = file->index_size = 0;
    uint32_t number = first;
    char key[8] = "", before[8] = "";
    for (uint32_t b = 0; b < BLOCKS; b++) {
        size_t start = file->size;
        for (uint32_t i = 0; i < ENTRIES; i++, number += step) {
            snprintf(key, sizeof key, "%04u", number % 10000);
            size_t shared = 0;
            while (i && shared < 4 && key[shared] == before[shared]) shared++;
            memcpy(before, key, sizeof key);
            uint8_t *out = file->data + file->size, deletes = number % 3 == 0;
            out[0] = (uint8_t)shared;
            out[1] = (uint8_t)(4 - shared + KLK_SST_STAMP_SIZE);
            out[2] = deletes ? 0 : 4;
            memcpy(out + 3, key + shared, 4 - shared);
            klk_put_u64(out + 3 + 4 - shared, sequence << 8 | !deletes);
            if (!deletes) memcpy(out + out[1] + 3, key, 4);
            file->size += 3u + out[1] + out[2];
        }
        klk_put_u32(file->data + file->size, 0);
        klk_put_u32(file->data + file->size + 4, 1);
        file->size += 8;
        file->offsets[b] = start;
        file->sizes[b] = file->size - start;
        seal(file, start, KLK_SST_PLAIN);
        uint8_t *out = file->index + file->index_size;
        out[0] = 0;
        out[1] = 4;
        memcpy(out + 2, key, 4);
        size_t size = 6 + put_varint(out + 6, start);
        file->index_size += size + put_varint(out + size, file->sizes[b]);
    }
    klk_put_u32(file->index + file->index_size, 0);
    file->index_size += 4;
}

static int on_disk(const struct file *file) {
    FILE *made = tmpfile();
    REQUIRE(made && fwrite(file->data, 1, file->size, made) == file->size && fflush(made) == 0);
    int fd = dup(fileno(made));
    REQUIRE(fd >= 0 && fclose(made) == 0);
    return fd;
}

static void test_index(void) {
    struct file file;
    make_file(&file, 1, 2, 5);
    uint8_t *block = exact_copy(file.index, file.index_size), *key = exact_copy((void *)"0041", 4);
    struct klk_sst_blocks blocks = {exact(BLOCKS * 8), exact(BLOCKS * 8), 0, BLOCKS};
    struct klk_sst_bounds bounds = {.start = key, .end = key, .file_size = file.size};
    REQUIRE(klk_sst_index(block, file.index_size, &bounds, &blocks) == KLK_OK);
    REQUIRE(blocks.count == BLOCKS && blocks.offsets[1] == file.offsets[1] &&
            blocks.sizes[2] == file.sizes[2]);
    bounds.start_size = 4; /* The first block ends with 0039. */
    REQUIRE(klk_sst_index(block, file.index_size, &bounds, &blocks) == KLK_OK);
    REQUIRE(blocks.count == 2 && blocks.offsets[0] == file.offsets[1]);
    bounds.start_size = 0;
    bounds.end_size = 4; /* Behind 0039 there may be 0040. */
    REQUIRE(klk_sst_index(block, file.index_size, &bounds, &blocks) == KLK_OK);
    REQUIRE(blocks.count == 2 && blocks.offsets[0] == file.offsets[0]);
    bounds.end_size = 0;
    blocks.count_max = 2;
    REQUIRE(klk_sst_index(block, file.index_size, &bounds, &blocks) == KLK_ESPACE);
    blocks.count_max = BLOCKS;
    bounds.file_size = file.size - 1; /* The last trailer is cut. */
    REQUIRE(klk_sst_index(block, file.index_size, &bounds, &blocks) == KLK_ECORRUPT);
    bounds.file_size = file.size;
    uint32_t dice = 3;
    for (int round = 0; round < ROUNDS; round++) {
        uint8_t *bad = exact_copy(file.index, file.index_size);
        size_t size = file.index_size;
        for (int i = round % 4; i >= 0; i--)
            bad[next_random(&dice) % size] = (uint8_t)next_random(&dice);
        bounds.start_size = next_random(&dice) % 2 * 4;
        bounds.stamp_size = next_random(&dice) % 2 * KLK_SST_STAMP_SIZE;
        int code = klk_sst_index(bad, size, &bounds, &blocks);
        REQUIRE(code == KLK_OK || code == KLK_ECORRUPT || code == KLK_EUNKNOWN ||
                code == KLK_ESPACE);
        for (uint32_t i = 0; code == KLK_OK && i < blocks.count; i++)
            REQUIRE(blocks.offsets[i] + blocks.sizes[i] + KLK_SST_TRAILER_SIZE <= file.size);
        free(bad);
    }
    free(blocks.offsets);
    free(blocks.sizes);
    free(block);
    free(key);
}

/* ---- merges ---- */

enum { RUNS = 2, PAIRS = 8 };

struct world {
    struct klk_sst_merge merge;
    struct klk_sst_run runs[RUNS];
    int given[RUNS];
};

static struct world *make_world(struct file *files) {
    struct world *world = exact(sizeof *world);
    memset(world, 0, sizeof *world);
    struct klk_sst_merge *merge = &world->merge;
    merge->runs = world->runs;
    merge->count = RUNS;
    merge->order = exact(RUNS * sizeof *merge->order);
    merge->last = exact(KEY_MAX);
    merge->last_max = KEY_MAX;
    merge->start = merge->end = (const uint8_t *)"";
    merge->sequence = 100;
    merge->with_values = 1;
    merge->pairs_max = PAIRS;
    merge->bytes_max = UINT32_MAX;
    merge->key_offsets = exact((PAIRS + 1) * 4);
    merge->value_offsets = exact((PAIRS + 1) * 4);
    merge->keys = exact(merge->keys_max = 1);
    merge->values = exact(merge->values_max = 1);
    for (uint32_t i = 0; i < RUNS; i++) {
        struct klk_sst_run *run = &world->runs[i];
        run->fd = on_disk(&files[i]);
        run->blocks = (struct klk_sst_blocks){files[i].offsets, files[i].sizes, BLOCKS, BLOCKS};
        run->key = exact(run->key_max = KEY_MAX);
        run->window = exact(run->window_max = 1);
        run->block = exact(run->block_max = 1);
        run->state = KLK_SST_NEXT;
    }
    return world;
}

static void free_world(struct world *world) {
    for (uint32_t i = 0; i < RUNS; i++) {
        struct klk_sst_run *run = &world->runs[i];
        close(run->fd);
        free(run->key);
        free(run->window);
        free(run->block);
    }
    free(world->merge.order);
    free(world->merge.last);
    free(world->merge.key_offsets);
    free(world->merge.value_offsets);
    free(world->merge.keys);
    free(world->merge.values);
    free(world);
}

static void grow(uint8_t **data, size_t *max, size_t size, size_t used) {
    uint8_t *larger = exact(size);
    memcpy(larger, *data, used);
    free(*data);
    *data = larger;
    *max = size;
}

/* Does what the merge asks for, until it is full or ends, or fails. */
static int take(struct world *world) {
    struct klk_sst_merge *merge = &world->merge;
    merge->pairs = 0;
    for (;;) {
        int state = klk_sst_merge(merge);
        struct klk_sst_run *run = &world->runs[merge->wants];
        REQUIRE(state != KLK_EINVAL && merge->wants_size <= UINT32_MAX);
        if (state < 0 || state == KLK_SST_FULL || state == KLK_SST_END) return state;
        if (state == KLK_SST_FILE) {
            run->state = world->given[merge->wants]++ ? KLK_SST_OVER : KLK_SST_ADVANCE;
        } else if (state == KLK_SST_WINDOW) {
            grow(&run->window, &run->window_max, merge->wants_size, 0);
            run->window_size = 0;
        } else if (state == KLK_SST_BLOCK) {
            grow(&run->block, &run->block_max, merge->wants_size, 0);
        } else if (state == KLK_SST_KEYS) {
            size_t used = (size_t)merge->key_offsets[merge->pairs];
            grow(&merge->keys, &merge->keys_max, merge->wants_size, used);
        } else {
            size_t used = (size_t)merge->value_offsets[merge->pairs];
            grow(&merge->values, &merge->values_max, merge->wants_size, used);
        }
    }
}

static void test_merge(void) {
    /* Odd numbers that were written first, then multiples of 5. */
    struct file files[RUNS];
    make_file(&files[0], 1, 2, 7);
    make_file(&files[1], 0, 5, 9);
    struct world *world = make_world(files);
    uint32_t number = 0, pairs = 0;
    int state;
    do {
        state = take(world);
        REQUIRE(state >= 0);
        for (uint32_t i = 0; i < world->merge.pairs; i++, pairs++) {
            int in = 0;
            for (; !in; number++) {
                int is_there = (number % 2 && number < 120) || (number % 5 == 0 && number < 300);
                in = is_there && number % 3;
            }
            char wanted[8];
            snprintf(wanted, sizeof wanted, "%04u", number - 1);
            REQUIRE(world->merge.key_offsets[i + 1] == (int32_t)(4 * (i + 1)));
            REQUIRE(memcmp(world->merge.keys + 4 * i, wanted, 4) == 0);
            REQUIRE(memcmp(world->merge.values + 4 * i, wanted, 4) == 0);
        }
        REQUIRE(state == KLK_SST_END || world->merge.pairs == PAIRS);
    } while (state != KLK_SST_END);
    REQUIRE(pairs == 40 + 40 - 8);
    free_world(world);
}

/* Without columns the same pairs are counted, PAIRS at once. */
static void test_count(void) {
    struct file files[RUNS];
    make_file(&files[0], 1, 2, 7);
    make_file(&files[1], 0, 5, 9);
    struct world *world = make_world(files);
    struct klk_sst_merge *merge = &world->merge;
    free(merge->key_offsets);
    merge->key_offsets = NULL;
    uint32_t pairs = 0;
    int state;
    do {
        state = take(world);
        REQUIRE(state == KLK_SST_END || (state == KLK_SST_FULL && merge->pairs == PAIRS));
        pairs += merge->pairs;
    } while (state != KLK_SST_END);
    REQUIRE(pairs == 40 + 40 - 8);
    free_world(world);
}

static void test_merge_on_junk(void) {
    uint32_t dice = 11;
    for (int round = 0; round < ROUNDS; round++) {
        struct file files[RUNS];
        for (uint32_t r = 0; r < RUNS; r++) {
            make_file(&files[r], next_random(&dice) % 50, 1 + next_random(&dice) % 5, 1 + r);
            for (uint32_t i = next_random(&dice) % 4; i > 0; i--) {
                uint32_t b = next_random(&dice) % BLOCKS;
                size_t start = files[r].offsets[b], size = files[r].sizes[b];
                files[r].data[start + next_random(&dice) % size] = (uint8_t)next_random(&dice);
                size_t end = files[r].size;
                files[r].size = start + size;
                seal(&files[r], start, next_random(&dice) % 8 ? KLK_SST_PLAIN : KLK_SST_SNAPPY);
                files[r].size = end;
            }
            if (next_random(&dice) % 16 == 0) files[r].size -= next_random(&dice) % 600;
        }
        struct world *world = make_world(files);
        if (round % 4 == 0) {
            free(world->merge.key_offsets);
            world->merge.key_offsets = NULL;
        }
        int state;
        uint32_t pairs = 0;
        do {
            state = take(world);
            pairs += world->merge.pairs;
            REQUIRE(pairs <= RUNS * FILE_MAX);
        } while (state == KLK_SST_FULL);
        REQUIRE(state == KLK_SST_END || state == KLK_ECORRUPT || state == KLK_EUNKNOWN ||
                state == KLK_ETORN);
        free_world(world);
    }
}

int main(void) {
    test_hash();
    test_snappy();
    test_snappy_on_junk();
    test_index();
    test_merge();
    test_count();
    test_merge_on_junk();
    return 0;
}
