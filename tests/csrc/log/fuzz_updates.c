/* Messages of clients to the leader of the log: updates, packs and reads. */
#include "fuzz.h"
#include "guard.h"

enum { NOW_S = 1000 };

size_t fuzz_seed(uint32_t number, uint8_t *out) {
    uint8_t reqid[KLK_REQID_SIZE], records[100], other[KLK_REQID_SIZE], *at = out;
    if (number > 11) return 0;
    *at++ = (uint8_t)number;
    fuzz_reqid(reqid, NOW_S, 2);
    size_t size = klk_record_write(records, 0, fuzz_reqid(other, NOW_S, 1), reqid, 12);
    size += klk_record_write(records + size, 0, reqid, reqid, 5);
    for (int i = 0; i < 2; i++) {
        at = fuzz_put(at, "client", 6, 0); /* an update of the specification's form */
        at = fuzz_put(at, fuzz_reqid(reqid, NOW_S, (uint8_t)(3 + number)), 12, 0);
        at = fuzz_put(at, "=", 1, 0);
        if (i) at = fuzz_put(at, "demo", 4, 0);
        at = fuzz_put(at, "data", 4, 1);
        at = fuzz_put(at, "other", 5, 0); /* a pack, whose id is that of its first record */
        at = fuzz_put(at, other, 12, 0);
        at = fuzz_put(at, "k=", 2, 0);
        at = fuzz_put(at, "demo", 4, 0);
        at = fuzz_put(at, reqid, i ? 12 : 0, 0);
        at = fuzz_put(at, records, (uint32_t)size, 1);
        at = fuzz_put(at, "reader", 6, 0);
        at = fuzz_put(at, "id", 2, 0);
        at = fuzz_put(at, "kR", 2, 0);
        at = fuzz_put(at, "demo", 4, 0);
        at = fuzz_put(at, "\1", 1, 1);
    }
    return (size_t)(at - out);
}

struct leader {
    struct klk_reqids *reqids;
    struct klk_updates *updates;
    struct klk_messages out;
};

static void make_room(struct leader *leader, int code) {
    struct klk_updates *updates = leader->updates;
    REQUIRE(code == KLK_EGROW || code == KLK_EFULL || code == KLK_ESPACE);
    if (code == KLK_EGROW) fuzz_reqids_grow(leader->reqids);
    if (code == KLK_EFULL)
        messages_grow(&leader->out, 2 * leader->out.bytes_max, 2 * leader->out.frames_max);
    if (code != KLK_ESPACE) return;
    uint8_t *blocks = exact(updates->blocks_need);
    if (updates->records) memcpy(blocks, updates->blocks, updates->used);
    free(updates->blocks);
    updates->blocks = blocks;
    updates->blocks_max = updates->blocks_need;
}

static void take_updates(struct leader *leader, const struct klk_messages *arena,
                         const struct klk_updates_view *view, uint32_t *others, uint32_t *count) {
    int code;
    while ((code = klk_updates_receive(leader->updates, arena, view, &leader->out, others,
                                       count)) != KLK_OK)
        make_room(leader, code);
    REQUIRE(*count <= arena->messages);
}

static uint64_t take_blocks(struct leader *leader, uint64_t next_index) {
    const uint8_t *block;
    uint32_t count;
    ssize_t size;
    while ((size = klk_updates_block(leader->updates, next_index, 3, &block, &count)) > 0) {
        struct klk_header header;
        uint8_t *copy = exact_copy(block, (size_t)size);
        REQUIRE(klk_block_check(copy, (size_t)size, &header) == size && header.count == count);
        free(copy);
        next_index += count;
    }
    REQUIRE(size == 0);
    return next_index;
}

static void take_reads(struct leader *leader, const struct klk_messages *arena, uint32_t *numbers,
                       uint32_t count, int32_t is_leader) {
    struct klk_reads reads = {.ident = (const uint8_t *)"demo", .ident_size = 4};
    struct klk_reads_view view = {
        .refusal = (const uint8_t *)"\xc0", .refusal_size = 1, .leader = is_leader, .round = 4};
    for (int i = 0; i < KLK_READS_WAITS; i++) {
        reads.readers[i].ring_max = 512;
        reads.readers[i].ring = exact(512);
    }
    while (klk_reads_receive(&reads, arena, &view, &leader->out, numbers, &count) == KLK_EFULL)
        make_room(leader, KLK_EFULL);
    for (int wait = 0; wait < KLK_READS_WAITS; wait++)
        while (klk_reads_answer(&reads, wait, wait ? 4 : 3, 9, &leader->out) == KLK_EFULL)
            make_room(leader, KLK_EFULL);
    while (klk_reads_remind(&reads, 1000, &leader->out) == KLK_EFULL) make_room(leader, KLK_EFULL);
    while (klk_reads_refuse(&reads, view.refusal, 1, &leader->out) == KLK_EFULL)
        make_room(leader, KLK_EFULL);
    for (int i = 0; i < KLK_READS_WAITS; i++) free(reads.readers[i].ring);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz_input in = {data, size};
    uint8_t mode = fuzz_u8(&in);
    struct klk_messages arena = fuzz_messages(&in);
    struct klk_updates *updates = calloc(1, sizeof *updates);
    struct leader leader = {fuzz_reqids_new(), updates, messages_new(64, 4)};
    struct klk_updates_view view = {.refusal = (const uint8_t *)"\xc0",
                                    .refusal_size = 1,
                                    .leader = !(mode & 4),
                                    .next_index = 5,
                                    .unix_s = NOW_S,
                                    .marked = mode & 3,
                                    .kind = 2};
    updates->reqids = leader.reqids;
    updates->ident = (const uint8_t *)"demo";
    updates->ident_size = 4;
    updates->record_bytes_max = 64;
    updates->ttl_s = 500;
    updates->inflight_max = 20;
    updates->inflight_bytes_max = 2000;
    updates->loads = calloc(1, sizeof *updates->loads);
    updates->waiters.ring_max = 1024;
    updates->waiters.ring = exact(1024);
    struct klk_key all[FUZZ_SLOTS] = {{.rights = 1}, {.rights = KLK_RIGHT_INTERNAL}};
    struct klk_keys keys = {all, FUZZ_SLOTS, 0};
    if (mode & 8) {
        arena.keys = &keys;
        arena.slots = fuzz_slots(&arena);
    }
    uint32_t *others = exact(arena.messages * sizeof *others);
    for (int round = 0; round < 2; round++) { /* All of them twice: then most are known. */
        uint32_t count = 0;
        take_updates(&leader, &arena, &view, others, &count);
        view.next_index = take_blocks(&leader, view.next_index);
        take_reads(&leader, &arena, others, count, view.leader);
        while (klk_updates_commit(updates, round ? view.next_index : 5, &leader.out) != KLK_OK)
            make_room(&leader, KLK_EFULL);
        while (klk_updates_remind(updates, 1000, &leader.out) != KLK_OK)
            make_room(&leader, KLK_EFULL);
    }
    while (klk_updates_refuse(updates, view.refusal, 1, &leader.out) != KLK_OK)
        make_room(&leader, KLK_EFULL);
    REQUIRE(!updates->inflight && !updates->inflight_bytes && !updates->waiters.waiting);
    free(others);
    free(arena.slots);
    free(updates->waiters.ring);
    free(updates->loads);
    free(updates->blocks);
    free(updates);
    fuzz_reqids_free(leader.reqids);
    messages_free(&leader.out);
    messages_free(&arena);
    return 0;
}
