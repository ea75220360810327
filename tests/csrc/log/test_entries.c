/* csrc/log/entries.c on exact-size heap buffers: every limit, every cut, every wrong byte. */
#include "exact.h"

enum { COUNT = 5, SIZE = 40 };

static struct klk_entries wanted(uint64_t index, uint64_t last_index, uint64_t bytes_max,
                                 uint32_t count_max) {
    struct klk_entries entries = {index, last_index, 0, bytes_max, 0, count_max};
    return entries;
}

static void test_room(const uint8_t *block, size_t size) {
    enum { ENTRY = KLK_ENTRY_PREFIX + SIZE };
    struct klk_entries entries = wanted(7, 99, 2 * ENTRY, 99);
    REQUIRE(klk_entries_add(&entries, block, size, NULL) == KLK_MORE);
    REQUIRE(entries.index == 9 && entries.bytes == 2 * ENTRY && entries.count == 2);
    entries = wanted(8, 99, 1, 99); /* The first entry always fits. */
    REQUIRE(klk_entries_add(&entries, block, size, NULL) == KLK_MORE && entries.index == 9);
    entries = wanted(7, 9, 1 << 20, 2);
    REQUIRE(klk_entries_add(&entries, block, size, NULL) == KLK_MORE && entries.index == 9);
    entries = wanted(7, 99, 1 << 20, 99);
    REQUIRE(klk_entries_add(&entries, block, size, NULL) == KLK_OK && entries.index == 12);
    for (uint64_t index = 0; index < 20; index++) {
        entries = wanted(index, 99, 1 << 20, 99);
        int within = index >= 7 && index < 12;
        REQUIRE(klk_entries_add(&entries, block, size, NULL) == (within ? KLK_OK : KLK_EINVAL));
    }
    /* out grows by one frame or a few bytes at a time; no entry is written twice. */
    entries = wanted(7, 11, 1 << 20, 99);
    struct klk_messages out = messages_new(ENTRY, COUNT);
    REQUIRE(klk_entries_add(&entries, block, size, &out) == KLK_EFULL);
    REQUIRE(entries.index == 8 && out.frames == 1 && out.messages == 0);
    messages_free(&out);
    entries = wanted(7, 11, 1 << 20, 99);
    out = messages_new(COUNT * ENTRY, COUNT);
    REQUIRE(klk_entries_add(&entries, block, size, &out) == KLK_OK);
    REQUIRE(out.frames == COUNT && out.offsets[COUNT] == COUNT * ENTRY);
    REQUIRE(out.bytes[KLK_REQID_SIZE] == 2 && out.bytes[KLK_REQID_SIZE + 1] == 3);
    REQUIRE(out.bytes[ENTRY] == 'r' && out.bytes[0] == 0);
    messages_free(&out);
}

static void test_damage(const uint8_t *block, size_t size) {
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *copy = exact_copy(block, cut);
        struct klk_entries entries = wanted(7, 99, 1 << 20, 99);
        (void)klk_entries_add(&entries, copy, cut, NULL);
        free(copy);
    }
    for (size_t at = 0; at < size; at++) {
        for (int bit = 0; bit < 8; bit++) {
            uint8_t *copy = exact_copy(block, size);
            copy[at] = (uint8_t)(copy[at] ^ 1u << bit);
            struct klk_entries entries = wanted(7, 99, 1 << 20, 99);
            struct klk_messages out = messages_new(4096, 64);
            (void)klk_entries_add(&entries, copy, size, &out);
            messages_free(&out);
            free(copy);
        }
    }
}

int main(void) {
    size_t size;
    uint8_t *block = exact_block(7, COUNT, SIZE, (const uint8_t *)"rrrrrrrrrrrr", &size);
    test_room(block, size);
    test_damage(block, size);
    free(block);
    return 0;
}
