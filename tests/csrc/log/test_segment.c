/* csrc/log/segment.c on exact-size heap buffers and small files: writing, scanning, judging. */
#define _GNU_SOURCE
#include <unistd.h>

#include "exact.h"

enum { START = 64, BLOCKS = 6 };

/* A block with one record of this size. */
static size_t put_block(uint8_t *out, uint64_t index, uint64_t term, uint32_t size, uint8_t byte) {
    uint8_t *data = exact(size);
    memset(data, byte, size);
    size_t payload = klk_record_write(out + KLK_HEADER_SIZE, 0, NULL, data, size);
    free(data);
    ssize_t whole = klk_block_seal(out, index, term, 1, payload);
    REQUIRE(whole > 0);
    return (size_t)whole;
}

/* Marks and blocks in turn, then zeros; the last mark says that everything before it is synced. */
static uint8_t *make_segment(size_t size, size_t *end) {
    uint8_t *data = exact(size);
    size_t at = START;
    memset(data, 0, size);
    for (uint64_t i = 0; i < BLOCKS; i++) {
        klk_mark_write(data + at, at, 1);
        at += KLK_HEADER_SIZE;
        at += put_block(data + at, 10 + i, 1 + i / 4, 600, (uint8_t)(i % 2 ? 0 : 'x'));
    }
    *end = at;
    return data;
}

static int scan(const uint8_t *data, size_t size, struct klk_scan *found, uint32_t capacity) {
    uint64_t *runs = exact(capacity * 2 * sizeof *runs);
    *found = (struct klk_scan){.offset = START, .next_index = 10, .term = 0, .synced = START};
    int code = klk_segment_scan(data, size, found, runs, capacity);
    if (found->next_index == 10 + BLOCKS) {
        REQUIRE(found->runs == 2 && runs[0] == 10 && runs[1] == 1 && runs[2] == 14 && runs[3] == 2);
    }
    free(runs);
    return code;
}

static void test_scan(void) {
    size_t end;
    struct klk_scan found;
    uint8_t *data = make_segment(8192, &end);
    REQUIRE(scan(data, 8192, &found, 2) == KLK_OK);
    REQUIRE(found.offset == end && found.next_index == 10 + BLOCKS && found.term == 2);
    REQUIRE(scan(data, 8192, &found, 1) == KLK_ESPACE);
    REQUIRE(found.next_index == 14);
    for (size_t size = START; size <= 8192; size += size < end ? 1 : 97) {
        uint8_t *cut = exact_copy(data, size);
        int code = scan(cut, size, &found, 2);
        REQUIRE(found.offset <= size);
        if (size >= end) REQUIRE(code == KLK_OK);
        if (code < 0) REQUIRE(klk_segment_judge(cut, size, found.offset) == KLK_ETORN);
        free(cut);
    }
    free(data);
}

/* No flipped bit looks like an unfinished write, even if the block holds zeros. */
static void test_flips(void) {
    size_t end;
    struct klk_scan found;
    uint8_t *data = make_segment(8192, &end);
    for (size_t bit = START * 8; bit < end * 8; bit++) {
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        int code = scan(data, 8192, &found, 2);
        REQUIRE(code < 0);
        REQUIRE(found.order || klk_segment_judge(data, 8192, found.offset) == KLK_ECORRUPT);
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    free(data);
}

/* Sectors of the last block that never arrived: torn; of one before a later mark: corrupt. */
static void test_sectors(void) {
    size_t end;
    struct klk_scan found;
    uint8_t *data = make_segment(8192, &end);
    for (size_t sector = 0; sector < end / 512; sector++) {
        uint8_t *lost = exact_copy(data, 8192);
        memset(lost + (sector ? sector * 512 : START), 0, sector ? 512 : 512 - START);
        int code = scan(lost, 8192, &found, 2);
        if (code < 0) {
            int marked = 0;
            struct klk_header header;
            for (size_t at = found.offset + 8; at + KLK_HEADER_SIZE <= 8192; at += 8) {
                klk_header_read(lost + at, &header);
                marked |= header.magic == KLK_MAGIC_MARK && header.payload_size == 0 &&
                          header.first_index == at && header.term == 1 &&
                          klk_block_check(lost + at, KLK_HEADER_SIZE, &header) > 0;
            }
            int judged = klk_segment_judge(lost, 8192, found.offset);
            REQUIRE(judged == (marked ? KLK_ECORRUPT : KLK_ETORN));
        }
        free(lost);
    }
    free(data);
}

static void test_random_damage(void) {
    size_t end;
    struct klk_scan found;
    uint32_t state = 99;
    uint8_t *data = make_segment(8192, &end);
    for (int round = 0; round < 2000; round++) {
        size_t size = START + next_random(&state) % (8192 - START);
        uint8_t *bad = exact_copy(data, size);
        for (int i = 0; i < 3; i++) {
            bad[START + next_random(&state) % (size - START)] = (uint8_t)next_random(&state);
        }
        int code = scan(bad, size, &found, 2);
        if (code < 0 && !found.order) (void)klk_segment_judge(bad, size, found.offset);
        uint64_t at = START, used = 0;
        (void)klk_segment_find(bad, size, 13, &at);
        struct klk_block_info *places = exact(3 * sizeof *places);
        ssize_t count = klk_segment_blocks(bad + START, size - START, places, 3, &used);
        REQUIRE(count >= 0 && count <= 3 && used <= size - START);
        free(places);
        free(bad);
    }
    free(data);
}

static void test_find(void) {
    size_t end;
    uint8_t *data = make_segment(8192, &end);
    uint64_t at = START;
    REQUIRE(klk_segment_find(data, 8192, 12, &at) == 1);
    struct klk_header header;
    REQUIRE(klk_block_check(data + at, 8192 - at, &header) > 0 && header.first_index == 12);
    REQUIRE(klk_segment_find(data, 8192, 11, &at) == 0);
    at = START;
    REQUIRE(klk_segment_find(data, 8192, 99, &at) == 0 && at == end);
    REQUIRE(klk_zeros(data + end, 8192 - end) == 8192 - end);
    REQUIRE(klk_zeros(data + end - 1, 1) == (data[end - 1] == 0));
    REQUIRE(klk_zeros(data, 0) == 0);
    free(data);
}

static void test_file(void) {
    char path[] = ".build/csrc/segmentXXXXXX";
    int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    REQUIRE(unlink(path) == 0);
    REQUIRE(klk_segment_zero(fd, 0, 100000) == KLK_OK);
    REQUIRE(klk_segment_write_back(fd, 4096, 50000) == KLK_OK);
    struct klk_segment segment = {.fd = fd, .size = 100000};
    const uint8_t *parts[200];
    size_t sizes[200], total = 0;
    for (size_t i = 0; i < 200; i++) {
        sizes[i] = i % 7 * 31;
        uint8_t *part = exact(sizes[i]);
        memset(part, (int)i, sizes[i]);
        parts[i] = part;
        total += sizes[i];
    }
    REQUIRE(klk_segment_write(&segment, 100001, parts, sizes, 0) == KLK_ESPACE);
    REQUIRE(klk_segment_write(&segment, 100000 - total + 1, parts, sizes, 200) == KLK_ESPACE);
    REQUIRE(klk_segment_write(&segment, 5000, parts, sizes, 200) == KLK_OK);
    REQUIRE(klk_segment_write(&segment, 100000 - total, parts, sizes, 200) == KLK_OK);
    REQUIRE(klk_segment_sync(&segment) == KLK_OK);
    REQUIRE(klk_segment_sync(&segment) == KLK_OK);
    uint8_t *found = exact(100000);
    REQUIRE(pread(fd, found, 100000, 0) == 100000);
    REQUIRE(klk_zeros(found, 5000) == 5000);
    size_t at = 5000;
    for (size_t i = 0; i < 200; i++) {
        REQUIRE(memcmp(found + at, parts[i], sizes[i]) == 0);
        REQUIRE(memcmp(found + at - 5000 + 100000 - total, parts[i], sizes[i]) == 0);
        at += sizes[i];
        free((void *)(uintptr_t)parts[i]);
    }
    /* Freed blocks read as zeros; what is before them stays, and the size. */
    REQUIRE(klk_segment_free(fd, 8192, 100000 - 8192) == KLK_OK);
    uint8_t *after = exact(100000);
    REQUIRE(pread(fd, after, 100000, 0) == 100000);
    REQUIRE(memcmp(after, found, 8192) == 0);
    REQUIRE(klk_zeros(after + 8192, 100000 - 8192) == 100000 - 8192);
    free(after);
    free(found);
    REQUIRE(close(fd) == 0);
    REQUIRE(klk_segment_free(fd, 0, 4096) == KLK_EOS);
    const uint8_t byte = 1, *one = &byte;
    size_t one_size = 1;
    REQUIRE(klk_segment_write(&segment, 0, &one, &one_size, 1) == KLK_EOS);
    REQUIRE(klk_segment_sync(&segment) == KLK_EOS);
}

int main(void) {
    test_scan();
    test_flips();
    test_sectors();
    test_random_damage();
    test_find();
    test_file();
    return 0;
}
