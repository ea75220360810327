/* csrc/tables/columns.c on exact-size heap buffers: blocks behind each other, too little
 * room, damage. */
#include "exact.h"

enum { COUNT = 11, SIZE = 5 };

static struct klk_columns make_columns(uint32_t count_max, uint32_t bytes_max) {
    struct klk_columns columns = {0};
    columns.indexes = exact(count_max * sizeof *columns.indexes);
    columns.terms = exact(count_max * sizeof *columns.terms);
    columns.times = exact(count_max * sizeof *columns.times);
    columns.kinds = exact(count_max);
    columns.valid = exact((count_max + 7) / 8);
    columns.reqids = exact((size_t)count_max * KLK_REQID_SIZE);
    columns.reqid_offsets = exact((count_max + 1) * sizeof *columns.reqid_offsets);
    columns.data_offsets = exact((count_max + 1) * sizeof *columns.data_offsets);
    columns.data = exact(bytes_max);
    columns.count_max = count_max;
    columns.bytes_max = bytes_max;
    return columns;
}

static void free_columns(struct klk_columns *columns) {
    free(columns->indexes);
    free(columns->terms);
    free(columns->times);
    free(columns->kinds);
    free(columns->valid);
    free(columns->reqids);
    free(columns->reqid_offsets);
    free(columns->data_offsets);
    free(columns->data);
}

/* Every second record has a reqid of 2^24 + 2 s. */
static uint8_t *make_block(uint64_t first_index, size_t *size) {
    static const uint8_t reqid[KLK_REQID_SIZE] = {1, 0, 0, 2};
    return exact_block(first_index, COUNT, SIZE, reqid, size);
}

static void test_two_blocks(void) {
    size_t size, next_size;
    uint8_t *block = make_block(7, &size), *next = make_block(7 + COUNT, &next_size);
    struct klk_columns columns = make_columns(2 * COUNT, 2 * COUNT * SIZE);
    REQUIRE(klk_columns_add(&columns, block, size) == KLK_OK && columns.count == COUNT);
    REQUIRE(klk_columns_add(&columns, next, next_size) == KLK_OK && columns.count == 2 * COUNT);
    REQUIRE(klk_columns_add(&columns, next, next_size) == KLK_ESPACE);
    int32_t reqids = 0;
    for (uint32_t i = 0; i < 2 * COUNT; i++) {
        int has_reqid = i % COUNT % 2;
        REQUIRE(columns.indexes[i] == 7 + (int64_t)i && columns.terms[i] == 3);
        REQUIRE(columns.kinds[i] == (has_reqid ? 0 : 2));
        REQUIRE((columns.valid[i / 8] >> i % 8 & 1) == has_reqid);
        REQUIRE(columns.times[i] == (has_reqid ? 16777218000000 : 0));
        REQUIRE(columns.reqid_offsets[i] == reqids);
        REQUIRE(columns.data_offsets[i] == (int32_t)(i * SIZE));
        reqids += has_reqid ? KLK_REQID_SIZE : 0;
    }
    REQUIRE(columns.reqid_offsets[2 * COUNT] == reqids);
    REQUIRE(columns.reqids[0] == 1 && columns.reqids[reqids - KLK_REQID_SIZE + 3] == 2);
    REQUIRE(columns.data[2 * COUNT * SIZE - 1] == 'd');
    free_columns(&columns);
    free(block);
    free(next);
}

static void test_room(void) {
    size_t size;
    uint8_t *block = make_block(1, &size);
    for (uint32_t count = 0; count <= COUNT; count++) {
        for (uint32_t bytes = 0; bytes <= COUNT * SIZE; bytes++) {
            struct klk_columns columns = make_columns(count, bytes);
            int fits = count == COUNT && bytes == COUNT * SIZE;
            REQUIRE(klk_columns_add(&columns, block, size) == (fits ? KLK_OK : KLK_ESPACE));
            REQUIRE(columns.count == (fits ? COUNT : 0));
            free_columns(&columns);
        }
    }
    free(block);
}

static void test_damage(void) {
    size_t size;
    uint8_t *block = make_block(1, &size);
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *copy = exact_copy(block, cut);
        struct klk_columns columns = make_columns(COUNT, COUNT * SIZE);
        (void)klk_columns_add(&columns, copy, cut);
        free_columns(&columns);
        free(copy);
    }
    for (size_t at = 0; at < size; at++) {
        for (int bit = 0; bit < 8; bit++) {
            uint8_t *copy = exact_copy(block, size);
            copy[at] = (uint8_t)(copy[at] ^ 1u << bit);
            struct klk_columns columns = make_columns(64, 4096);
            (void)klk_columns_add(&columns, copy, size);
            free_columns(&columns);
            free(copy);
        }
    }
    free(block);
}

static void test_parts(void) {
    uint32_t ends[] = {7, 8, 8, 11, 12};
    const uint8_t bytes[] = {'k', 'v', 'v', 'v', 'l'};
    for (uint32_t count = 0; count <= 4; count++) {
        uint32_t size = ends[count] - ends[0], half = count / 2;
        uint32_t *offsets = exact((count + 1) * sizeof *ends);
        memcpy(offsets, ends, (count + 1) * sizeof *ends);
        uint8_t *data = exact_copy(bytes, size);
        struct klk_column columns[2];
        for (int i = 0; i < 2; i++)
            columns[i] = (struct klk_column){exact((half + 1) * sizeof(int32_t)), exact(size)};
        int result = klk_columns_part(offsets, count, data, columns);
        REQUIRE(result == (count % 2 ? KLK_EINVAL : KLK_OK));
        if (result == KLK_OK)
            REQUIRE((uint32_t)(columns[0].offsets[half] + columns[1].offsets[half]) == size);
        if (count) {
            offsets[count] = 6; /* It goes back. */
            REQUIRE(klk_columns_part(offsets, count, data, columns) == KLK_EINVAL);
            offsets[count] = 7u + INT32_MAX + 1u;
            REQUIRE(klk_columns_part(offsets, count, data, columns) == KLK_EINVAL);
        }
        for (int i = 0; i < 2; i++) {
            free(columns[i].offsets);
            free(columns[i].data);
        }
        free(offsets);
        free(data);
    }
}

static void test_join(void) {
    /* Two items of each, of 1 and 2, and of 0 and 3 bytes. */
    uint32_t numbers[2][3] = {{0, 1, 3}, {0, 0, 3}}, offsets[8] = {0}, firsts[8] = {0};
    struct klk_packed columns[2];
    uint8_t *held[4];
    for (int c = 0; c < 2; c++) {
        held[2 * c] = exact_copy((const uint8_t *)numbers[c], sizeof numbers[c]);
        held[2 * c + 1] = exact_copy((const uint8_t *)(c ? "xyz" : "abc"), 3);
        columns[c] = (struct klk_packed){held[2 * c], held[2 * c + 1], sizeof numbers[c], 3};
    }
    uint8_t *bytes = exact(6);
    struct klk_messages out = {.bytes = bytes, .offsets = offsets, .firsts = firsts};
    out.bytes_max = 5;
    out.frames_max = 4;
    REQUIRE(klk_columns_join(&out, columns) == KLK_EFULL && out.frames == 0);
    out.bytes_max = 6;
    out.frames_max = 3;
    REQUIRE(klk_columns_join(&out, columns) == KLK_EFULL && out.frames == 0);
    out.frames_max = 4;
    uint32_t dice = 5;
    for (int round = 0; round < 2000; round++) {
        struct klk_packed bad[2] = {columns[0], columns[1]};
        uint8_t *junk = exact_copy((const uint8_t *)numbers[round % 2], 12);
        junk[next_random(&dice) % 12] = (uint8_t)next_random(&dice);
        bad[round % 2].offsets = junk;
        bad[round % 2].offsets_size = next_random(&dice) % 13;
        int code = klk_columns_join(&out, bad);
        REQUIRE(code == KLK_OK || code == KLK_EINVAL);
        out.frames = 0;
        free(junk);
    }
    REQUIRE(klk_columns_join(&out, columns) == KLK_OK && out.frames == 4);
    REQUIRE(offsets[1] == 1 && offsets[2] == 1 && offsets[3] == 3 && offsets[4] == 6);
    REQUIRE(memcmp(bytes, "abcxyz", 6) == 0);
    for (int i = 0; i < 4; i++) free(held[i]);
    free(bytes);
}

int main(void) {
    test_join();
    test_parts();
    test_two_blocks();
    test_room();
    test_damage();
    return 0;
}
