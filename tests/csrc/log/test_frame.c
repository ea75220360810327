/* csrc/log/frame.c on exact-size heap buffers: round trips, every cut, every wrong byte. */
#include "exact.h"

enum { COUNT = 9 };

struct block {
    uint8_t *data;
    size_t size;
};

/* Records of 0, 37, 74, ... bytes, each second one with a reqid, kinds 0 to 2. */
static struct block make_block(uint64_t first_index, uint64_t term) {
    uint8_t tags[COUNT];
    uint32_t sizes[COUNT];
    size_t reqids_size = 0, data_size = 0, payload = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        tags[i] = (uint8_t)(i % 3 | (i % 2 ? KLK_TAG_REQID : 0u));
        sizes[i] = 37 * i;
        reqids_size += i % 2 ? KLK_REQID_SIZE : 0;
        data_size += sizes[i];
        payload += klk_record_size(sizes[i], (int)(i % 2));
    }
    uint8_t *reqids = exact(reqids_size), *data = exact(data_size);
    memset(reqids, 'r', reqids_size);
    memset(data, 'd', data_size);
    struct block block = {exact(klk_block_size(payload)), klk_block_size(payload)};
    REQUIRE(klk_block_encode(first_index, term, COUNT, tags, sizes, reqids, reqids_size, data,
                             data_size, block.data, block.size - 1) == KLK_ESPACE);
    REQUIRE(klk_block_encode(first_index, term, COUNT, tags, sizes, reqids, reqids_size - 1, data,
                             data_size, block.data, block.size) == KLK_EINVAL);
    REQUIRE(klk_block_encode(first_index, term, COUNT, tags, sizes, reqids, reqids_size, data,
                             data_size, block.data, block.size) == (ssize_t)block.size);
    free(reqids);
    free(data);
    return block;
}

/* Calls every function that reads a block: none may access bytes outside the buffers. */
static void read_everything(const uint8_t *data, size_t size) {
    struct klk_header header = {0};
    uint32_t counts[KLK_KIND_MAX + 1];
    uint8_t *copy = exact_copy(data, size);
    ssize_t checked = klk_block_check(copy, size, &header);
    uint32_t count = 0;
    if (size >= KLK_HEADER_SIZE) {
        klk_header_read(copy, &header);
        count = header.count <= size ? header.count : 0;
    }
    if (checked > 0) REQUIRE((size_t)checked <= size);
    uint32_t *walked = exact(3 * sizeof *walked * (count + 1));
    if (header.count == count) {
        (void)klk_block_walk(copy, size, walked);
        uint8_t *states = exact(2 * size);
        (void)klk_block_states(copy, size, 0, states, counts);
        free(states);
    }
    free(walked);
    uint64_t last = header.first_index + count - 1;
    uint8_t *slice = exact(size + 1);
    (void)klk_block_slice(copy, size, header.first_index, last, slice);
    (void)klk_block_slice(copy, size, header.first_index + 1, last, slice);
    free(slice);
    struct klk_record record;
    (void)klk_record_read(copy, size, &record);
    free(copy);
}

static void test_round_trip(void) {
    struct block block = make_block(5, 7);
    struct klk_header header;
    REQUIRE(klk_block_check(block.data, block.size, &header) == (ssize_t)block.size);
    REQUIRE(header.first_index == 5 && header.term == 7 && header.count == COUNT);
    uint8_t *slice = exact(block.size);
    REQUIRE(klk_block_slice(block.data, block.size, 5, 5 + COUNT - 1, slice) ==
            (ssize_t)block.size);
    REQUIRE(memcmp(slice, block.data, block.size) == 0);
    ssize_t size = klk_block_slice(block.data, block.size, 7, 9, slice);
    REQUIRE(klk_block_check(slice, (size_t)size, &header) == size);
    REQUIRE(header.first_index == 7 && header.count == 3);
    REQUIRE(klk_block_slice(block.data, block.size, 4, 9, slice) == KLK_EINVAL);
    REQUIRE(klk_block_slice(block.data, block.size, 7, 5 + COUNT, slice) == KLK_EINVAL);
    REQUIRE(klk_block_slice(block.data, block.size, 9, 8, slice) == KLK_EINVAL);
    free(slice);
    free(block.data);
}

/* Block -> entries in the specification's form -> blocks; an entry without data is refused. */
static void test_entries(void) {
    struct block block = make_block(1, 3);
    struct klk_entries entries = {2, COUNT, 0, UINT64_MAX, 0, COUNT};
    struct klk_messages frames = messages_new(4096, COUNT);
    REQUIRE(klk_entries_add(&entries, block.data, block.size, &frames) == KLK_OK);
    uint32_t sizes[COUNT], used = 0, size = klk_messages_bytes(&frames);
    for (int i = 0; i < COUNT - 1; i++) sizes[i] = frames.offsets[i + 1] - frames.offsets[i];
    uint8_t *joined = exact_copy(frames.bytes, size);
    uint8_t *back = exact(klk_block_size(size));
    uint8_t *slice = exact(block.size);
    ssize_t found = klk_block_from_entries(2, joined, size, sizes, COUNT - 1, back, &used);
    REQUIRE(used == COUNT - 1);
    REQUIRE(found == klk_block_slice(block.data, block.size, 2, COUNT, slice));
    REQUIRE(memcmp(slice, back, (size_t)found) == 0);
    REQUIRE(klk_block_from_entries(2, joined, size - 1, sizes, COUNT - 1, back, &used) ==
            KLK_EINVAL);
    sizes[0] = KLK_ENTRY_PREFIX;
    REQUIRE(klk_block_from_entries(2, joined, size, sizes, COUNT - 1, back, &used) ==
            KLK_ECORRUPT);
    free(joined);
    free(back);
    free(slice);
    messages_free(&frames);
    free(block.data);
}

static void test_damage(void) {
    struct block block = make_block(2, 9);
    struct klk_header header;
    for (size_t size = 0; size < block.size; size++) {
        uint8_t *cut = exact_copy(block.data, size);
        REQUIRE(klk_block_check(cut, size, &header) == KLK_ETORN);
        free(cut);
        read_everything(block.data, size);
    }
    uint32_t state = 17;
    for (size_t at = 0; at < block.size; at++) {
        uint8_t before = block.data[at];
        block.data[at] ^= (uint8_t)(next_random(&state) | 1);
        REQUIRE(klk_block_check(block.data, block.size, &header) < 0);
        read_everything(block.data, block.size);
        block.data[at] = before;
    }
    free(block.data);
}

/* Wrong bytes with a correct checksum, as a faulty or hostile peer can send. */
static void test_sealed_junk(void) {
    uint32_t state = 4711;
    for (int round = 0; round < 20000; round++) {
        size_t payload = 2 + next_random(&state) % 60;
        size_t size = klk_block_size(payload);
        uint8_t *data = exact(size);
        for (size_t i = 0; i < payload; i++) {
            uint32_t dice = next_random(&state);
            data[KLK_HEADER_SIZE + i] = (uint8_t)(dice % 3 ? dice >> 8 & 15 : dice >> 8);
        }
        uint32_t count = 1 + next_random(&state) % (uint32_t)(payload / 2);
        REQUIRE(klk_block_seal(data, 1 + next_random(&state), 1, count, payload) ==
                (ssize_t)size);
        read_everything(data, size);
        free(data);
    }
}

static void test_limits(void) {
    uint8_t *data = exact(40);
    memset(data + KLK_HEADER_SIZE, 1, 8);
    uint64_t top = (1ull << 53) - 1;
    REQUIRE(klk_block_seal(data, 0, 1, 1, 2) == KLK_EINVAL);
    REQUIRE(klk_block_seal(data, 1, 0, 1, 2) == KLK_EINVAL);
    REQUIRE(klk_block_seal(data, 1, 1, 0, 2) == KLK_EINVAL);
    REQUIRE(klk_block_seal(data, 1, 1, 2, 2) == KLK_EINVAL);
    REQUIRE(klk_block_seal(data, 1, 1, 2, KLK_BLOCK_BYTES_MAX) == KLK_EINVAL);
    size_t lone = KLK_LONE_BYTES_MAX + KLK_RECORD_OVERHEAD_MAX;
    REQUIRE(klk_block_seal(data, 1, 1, 1, lone + 1) == KLK_EINVAL);
    REQUIRE(klk_block_seal(data, 1, 1, KLK_BLOCK_COUNT_MAX + 1, 3 << 20) == KLK_EINVAL);
    REQUIRE(klk_block_seal(data, top + 1, 1, 1, 2) == KLK_EINVAL);
    REQUIRE(klk_block_seal(data, 1, top + 1, 1, 2) == KLK_EINVAL);
    REQUIRE(klk_block_seal(data, top, 1, 2, 8) == KLK_EINVAL);
    REQUIRE(klk_block_seal(data, top, top, 1, 8) == 40);
    klk_mark_write(data, 4096, 3);
    struct klk_header header;
    REQUIRE(klk_block_check(data, 40, &header) == KLK_HEADER_SIZE);
    REQUIRE(header.magic == KLK_MAGIC_MARK && header.first_index == 4096 && header.term == 3);
    free(data);
}

int main(void) {
    test_round_trip();
    test_entries();
    test_damage();
    test_sealed_junk();
    test_limits();
    return 0;
}
