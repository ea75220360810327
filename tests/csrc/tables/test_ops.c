/* csrc/tables/ops.c on exact-size heap buffers: every cut, every capacity, every wrong size. */
#include "bytes.h"
#include "exact.h"

enum { PAIRS = 3, SIZES = 2 * PAIRS };

static const uint32_t PAIR_SIZES[SIZES] = {3, 0, 1, 12, 65536, 100};

static ssize_t format(const uint8_t *data, size_t size, uint32_t count, int columns,
                      size_t capacity, const char *expected) {
    uint8_t *in = exact_copy(data, size);
    char *out = exact(capacity);
    uint64_t bytes = 77;
    ssize_t used = klk_sizes_format(in, size, count, columns, out, capacity, &bytes);
    REQUIRE((used >= 0) == (bytes != 77));
    if (expected) {
        REQUIRE(used == (ssize_t)strlen(expected));
        REQUIRE(memcmp(out, expected, (size_t)used) == 0);
    }
    free(in);
    free(out);
    return used;
}

static void test_sizes(void) {
    size_t total = 4 * SIZES + 3 + 1 + 12 + 65536 + 100;
    uint8_t *data = exact(total);
    for (int i = 0; i < SIZES; i++) klk_put_u32(data + 4 * i, PAIR_SIZES[i]);
    const char *expected = "<3s0s1s12s65536s100s";
    size_t room = 1 + SIZES * KLK_FORMAT_ITEM_MAX;
    format(data, total, PAIRS, 2, room, expected);
    for (size_t capacity = 0; capacity < room; capacity++) {
        ssize_t used = format(data, total, PAIRS, 2, capacity, NULL);
        REQUIRE(used == KLK_ESPACE || used == (ssize_t)strlen(expected));
    }
    for (size_t size = 0; size < total; size += size < 4 * SIZES ? 1 : 997)
        REQUIRE(format(data, size, PAIRS, 2, room, NULL) == KLK_ETORN);
    REQUIRE(format(data, total - 1, PAIRS, 2, room, NULL) == KLK_ETORN);
    REQUIRE(format(data, total, UINT32_MAX, 2, room, NULL) == KLK_ETORN);
    REQUIRE(format(data, total, PAIRS, 3, room, NULL) == KLK_EINVAL);
    /* As keys alone the second one is empty. */
    REQUIRE(format(data, total, PAIRS, 1, room, NULL) == KLK_ECORRUPT);
    REQUIRE(klk_sizes_check(data, SIZES, 2) == KLK_OK);
    REQUIRE(klk_sizes_check(data, SIZES, 1) == KLK_ECORRUPT);
    klk_put_u32(data, KLK_KEY_BYTES_MAX + 1);
    REQUIRE(format(data, total, PAIRS, 2, room, NULL) == KLK_ECORRUPT);
    REQUIRE(klk_sizes_check(data, SIZES, 2) == KLK_ECORRUPT);
    klk_put_u32(data, 3);
    klk_put_u32(data + 4, KLK_VALUE_BYTES_MAX + 1);
    REQUIRE(format(data, total, PAIRS, 2, room, NULL) == KLK_ECORRUPT);
    REQUIRE(klk_sizes_check(data, SIZES, 2) == KLK_ECORRUPT);
    free(data);
    format(NULL, 0, 0, 1, 1, "<");
}

static void test_offsets(void) {
    enum { COUNT = 3, SIZE = 107 };
    uint8_t *offsets = exact(4 * (COUNT + 1));
    const uint32_t right[] = {0, 7, 7, SIZE};
    for (int i = 0; i <= COUNT; i++) klk_put_u32(offsets + 4 * i, right[i]);
    for (size_t capacity = 0; capacity <= 1 + COUNT * KLK_FORMAT_ITEM_MAX; capacity++) {
        char *out = exact(capacity);
        ssize_t used = klk_offsets_format(offsets, COUNT, SIZE, out, capacity);
        REQUIRE(used == KLK_ESPACE || used == 9);
        if (used > 0) REQUIRE(memcmp(out, "<7s0s100s", 9) == 0);
        free(out);
    }
    char out[64];
    REQUIRE(klk_offsets_format(offsets, COUNT, SIZE + 1, out, sizeof out) == KLK_ECORRUPT);
    REQUIRE(klk_offsets_format(offsets, COUNT, SIZE - 1, out, sizeof out) == KLK_ECORRUPT);
    klk_put_u32(offsets + 8, 6);
    REQUIRE(klk_offsets_format(offsets, COUNT, SIZE, out, sizeof out) == KLK_ECORRUPT);
    klk_put_u32(offsets + 8, 7);
    klk_put_u32(offsets, 1);
    REQUIRE(klk_offsets_format(offsets, COUNT, SIZE, out, sizeof out) == KLK_ECORRUPT);
    free(offsets);
    uint8_t *long_item = exact(8);
    klk_put_u32(long_item, 0);
    klk_put_u32(long_item + 4, KLK_VALUE_BYTES_MAX + 1);
    REQUIRE(klk_offsets_format(long_item, 1, KLK_VALUE_BYTES_MAX + 1u, out, sizeof out) ==
            KLK_ECORRUPT);
    klk_put_u32(long_item + 4, KLK_VALUE_BYTES_MAX);
    REQUIRE(klk_offsets_format(long_item, 1, KLK_VALUE_BYTES_MAX, out, sizeof out) ==
            1 + KLK_FORMAT_ITEM_MAX);
    free(long_item);
}

static void test_frames(void) {
    const uint32_t ends[] = {5, 5, 6, 16, UINT32_MAX};
    uint32_t *offsets = (uint32_t *)(void *)exact_copy((const uint8_t *)ends, sizeof ends);
    for (uint32_t count = 0; count < 5; count++) {
        char *out = exact(1 + count * KLK_FORMAT_FRAME_MAX);
        size_t used = klk_frames_format(offsets, count, out);
        REQUIRE(used <= 1 + count * KLK_FORMAT_FRAME_MAX);
        REQUIRE(memcmp(out, "<0s1s10s4294967279s", used) == 0);
        free(out);
    }
    free(offsets);
}

static void test_messages(void) {
    enum { FRAMES = 4, SIZE = 9 };
    const uint32_t sizes[FRAMES] = {2, 0, 6, 1};
    uint8_t *data = exact_copy((const uint8_t *)"aabbbbbbc", SIZE);
    for (uint32_t bytes = 0; bytes <= SIZE + 1; bytes++)
        for (uint32_t frames = 0; frames <= FRAMES + 1; frames++) {
            struct klk_messages out = messages_new(bytes, frames);
            int fits = bytes >= SIZE && frames >= FRAMES;
            REQUIRE(klk_messages_add(&out, sizes, FRAMES, data, SIZE - 1) == KLK_EINVAL);
            REQUIRE(klk_messages_add(&out, sizes, FRAMES, data, SIZE) ==
                    (fits ? KLK_OK : KLK_EFULL));
            REQUIRE(out.frames == (fits ? FRAMES : 0) && out.messages == 0);
            if (fits) REQUIRE(out.offsets[3] == 8 && memcmp(out.bytes, data, SIZE) == 0);
            messages_free(&out);
        }
    free(data);
}

int main(void) {
    test_sizes();
    test_offsets();
    test_frames();
    test_messages();
    return 0;
}
