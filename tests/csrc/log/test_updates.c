/* csrc/log/updates.c and reqids.c on exact-size heap buffers that grow on request, with valid and
 * invalid packs and updates: no access outside the buffers, and every accepted update is in exactly
 * one block, in the table, and answered once. */
#include "exact.h"

enum { NOW_S = 1800000000, ROUNDS = 200, MESSAGES = 40 };

static void shard_move(struct klk_reqids *reqids, int shard, uint32_t size) {
    struct klk_reqid_slot *old = reqids->shards[shard].slots;
    REQUIRE(klk_reqids_move(reqids, shard, malloc(size * sizeof *old), size) == KLK_OK);
    free(old);
}

static void reqids_grow(struct klk_reqids *reqids) {
    int shard;
    while ((shard = klk_reqids_crowded(reqids)) >= 0) {
        uint32_t ids = klk_reqids_live(reqids, shard) + reqids->need[shard];
        shard_move(reqids, shard, (2 * ids + 15) / 8 * 8);
    }
}

static uint8_t *reqid_random(uint8_t *reqid) {
    uint32_t seconds = (uint32_t)(NOW_S + rand() % 200 - 100);
    for (int i = 0; i < 4; i++) reqid[i] = (uint8_t)(seconds >> (24 - 8 * i));
    for (int i = 4; i < 12; i++) reqid[i] = 0;
    reqid[10] = (uint8_t)(rand() % 4);
    reqid[11] = (uint8_t)rand();
    return reqid;
}

static uint32_t reqid_seconds(const uint8_t *reqid) {
    return (uint32_t)reqid[0] << 24 | (uint32_t)reqid[1] << 16 | (uint32_t)reqid[2] << 8 | reqid[3];
}

static size_t records_random(uint8_t *out, size_t *first) {
    uint8_t reqid[12], data[200] = {0};
    size_t size = 0, count = 1 + (size_t)(rand() % 10);
    *first = 0;
    for (size_t i = 0; i < count; i++) {
        uint8_t kind = rand() % 50 ? 0 : 1;
        uint32_t data_size = rand() % 50 ? (uint32_t)(1 + rand() % 199) : 0;
        size_t written = klk_record_write(out + size, kind, reqid_random(reqid), data, data_size);
        if (i == 0) *first = written - data_size - 12;
        size += written;
    }
    if (rand() % 20 == 0) size -= 1 + (size_t)rand() % (size - 1);
    return size;
}

static void message_random(struct klk_messages *messages) {
    static uint8_t bytes[4096];
    uint8_t reqid[12];
    size_t first = 0, size;
    klk_messages_frame(messages, "routing id", (uint32_t)(1 + rand() % 10));
    switch (rand() % 5) {
        case 0:
        case 1:
            klk_messages_frame(messages, reqid_random(reqid), rand() % 20 ? 12 : 11);
            klk_messages_frame(messages, "=", 1);
            if (rand() % 2) klk_messages_frame(messages, "demo", rand() % 10 ? 4 : 3);
            klk_messages_frame(messages, bytes, (uint32_t)(rand() % 300));
            break;
        case 2:
        case 3:
            size = records_random(bytes, &first);
            klk_messages_frame(messages, bytes + first, 12);
            klk_messages_frame(messages, "k=", 2);
            klk_messages_frame(messages, "demo", 4);
            klk_messages_frame(messages, reqid_random(reqid), rand() % 3 ? 0 : 12);
            klk_messages_frame(messages, bytes, (uint32_t)size);
            break;
        default:
            for (int i = rand() % 5; i > 0; i--) {
                const char *text = i % 2 ? "k=demo_______" : "=123456789abc";
                klk_messages_frame(messages, text, (uint32_t)(rand() % 13));
            }
    }
    klk_messages_end(messages);
}

struct intake {
    struct klk_reqids *reqids;
    struct klk_updates *updates;
    struct klk_messages out;
    uint64_t next_index, answered;
    uint32_t others;
};

static void make_room(struct intake *intake, int code) {
    struct klk_updates *updates = intake->updates;
    REQUIRE(code == KLK_EGROW || code == KLK_EFULL || code == KLK_ESPACE);
    if (code == KLK_EGROW) reqids_grow(intake->reqids);
    if (code == KLK_EFULL)
        messages_grow(&intake->out, 2 * intake->out.bytes_max, 2 * intake->out.frames_max);
    if (code != KLK_ESPACE) return;
    uint8_t *blocks = malloc(updates->blocks_need);
    if (updates->records) memcpy(blocks, updates->blocks, updates->used);
    free(updates->blocks);
    updates->blocks = blocks;
    updates->blocks_max = updates->blocks_need;
}

static void take(struct intake *intake, uint64_t now_ms) {
    struct klk_messages messages = messages_new(1 << 18, 1 << 12);
    int count = rand() % MESSAGES;
    for (int i = 0; i < count; i++) message_random(&messages);
    struct klk_messages arena =
        messages_copy(&messages, klk_messages_bytes(&messages), messages.frames);
    struct klk_updates_view view = {.refusal = (const uint8_t *)"\xc0",
                                    .refusal_size = 1,
                                    .leader = rand() % 20 != 0,
                                    .next_index = intake->next_index,
                                    .commit_index = intake->next_index / 2,
                                    .now_ms = now_ms,
                                    .unix_s = NOW_S};
    uint32_t *others = calloc((size_t)count + 1, sizeof *others), others_count = 0;
    uint64_t taken = intake->updates->counters[KLK_UPDATES_TAKEN];
    uint64_t records = intake->updates->records;
    int code;
    while ((code = klk_updates_receive(intake->updates, &arena, &view, &intake->out, others,
                                    &others_count)) != KLK_OK)
        make_room(intake, code);
    REQUIRE(others_count <= (uint32_t)count);
    REQUIRE(intake->updates->counters[KLK_UPDATES_TAKEN] - taken ==
          intake->updates->records - records);
    intake->others += others_count;
    free(others);
    messages_free(&arena);
    messages_free(&messages);
}

/* Every block is sound and follows, and the table knows the index of each of its ids. */
static void propose(struct intake *intake) {
    const uint8_t *block;
    uint32_t count;
    ssize_t size;
    while ((size = klk_updates_block(intake->updates, intake->next_index, 7, &block, &count)) > 0) {
        struct klk_header header;
        uint8_t *exact = malloc((size_t)size);
        memcpy(exact, block, (size_t)size);
        REQUIRE(klk_block_check(exact, (size_t)size, &header) == size);
        REQUIRE(header.count == count && header.first_index == intake->next_index);
        size_t offset = KLK_HEADER_SIZE;
        for (uint32_t i = 0; i < count; i++) {
            struct klk_record record;
            ssize_t used = klk_record_read(exact + offset, (size_t)size - offset, &record);
            REQUIRE(used > 0 && record.reqid);
            uint64_t found = klk_reqids_find(intake->reqids, record.reqid);
            REQUIRE(found == intake->next_index + i ||
                  (!found && reqid_seconds(record.reqid) <= intake->reqids->forgotten_s));
            offset += (size_t)used;
        }
        size_t at = KLK_HEADER_SIZE;
        uint64_t index = intake->next_index;
        uint32_t newest_s = 0;
        int code;
        while ((code = klk_reqids_add(intake->reqids, exact, (size_t)size, &at, &index,
                                      &newest_s)) == KLK_EGROW)
            reqids_grow(intake->reqids);
        REQUIRE(code == KLK_OK && index == intake->next_index + count);
        free(exact);
        intake->next_index += count;
    }
    REQUIRE(size == 0);
}

static void answer(struct intake *intake, int what, uint64_t now_ms) {
    const uint8_t *refusal = (const uint8_t *)"\xa2n1";
    uint64_t index = intake->next_index / 2;
    int code = KLK_OK;
    do {
        if (what == 0) code = klk_updates_commit(intake->updates, index, &intake->out);
        if (what == 1) code = klk_updates_remind(intake->updates, now_ms, &intake->out);
        if (what == 2) code = klk_updates_refuse(intake->updates, refusal, 3, &intake->out);
        if (code != KLK_OK) make_room(intake, code);
    } while (code != KLK_OK);
    if (what == 2) {
        REQUIRE(!intake->updates->waiters.waiting && !intake->updates->inflight);
        REQUIRE(!intake->updates->inflight_bytes);
        klk_reqids_truncate(intake->reqids, intake->next_index - 1);
    }
}

static struct klk_reqids *reqids_new(unsigned seed) {
    struct klk_reqids *reqids = calloc(1, sizeof *reqids);
    reqids->seconds = calloc(KLK_REQID_SECONDS, sizeof(uint32_t));
    reqids->seeds[0] = seed;
    for (int shard = 0; shard < KLK_REQID_SHARDS; shard++) shard_move(reqids, shard, 8);
    return reqids;
}

static void reqids_free(struct klk_reqids *reqids) {
    for (int shard = 0; shard < KLK_REQID_SHARDS; shard++) free(reqids->shards[shard].slots);
    free(reqids->seconds);
    free(reqids);
}

/* A table that is exported to an exact buffer and imported again is equal. With a flipped bit it is
 * refused, or another valid table. */
static void carry(const struct klk_reqids *reqids, uint64_t last_index, unsigned seed) {
    size_t size = reqids->count * sizeof(struct klk_reqid_slot), offset = 0;
    struct klk_reqid_slot *slots = malloc(size), *again = malloc(size);
    int64_t count = klk_reqids_export(reqids, last_index, slots, reqids->count);
    REQUIRE(count >= 0 && (uint64_t)count == reqids->count);
    if (count > 0) REQUIRE(klk_reqids_export(reqids, last_index, again, (uint64_t)count - 1) < 0);
    for (int flipped = 0; flipped < 2; flipped++) {
        struct klk_reqids *other = reqids_new(seed + 1);
        uint64_t index = 0;
        int code;
        offset = 0;
        if (flipped && size > 0) {
            uint8_t *byte = (uint8_t *)slots + (size_t)rand() % size;
            *byte ^= (uint8_t)(1 << rand() % 8);
        }
        klk_reqids_forget(other, reqids->forgotten_s);
        other->newest_s = reqids->newest_s;
        while ((code = klk_reqids_import(other, last_index, (uint8_t *)slots, size, &offset,
                                         &index)) == KLK_EGROW)
            reqids_grow(other);
        REQUIRE(code == KLK_OK || (flipped && code == KLK_ECORRUPT));
        if (code == KLK_OK) {
            REQUIRE(other->count == reqids->count && index <= last_index);
            REQUIRE(klk_reqids_export(other, last_index, again, other->count) == count);
            REQUIRE(size == 0 || memcmp(slots, again, size) == 0);
        }
        reqids_free(other);
    }
    free(slots);
    free(again);
}

static void run(unsigned seed, uint64_t *reached) {
    srand(seed);
    struct intake intake = {.reqids = reqids_new(seed),
                            .updates = calloc(1, sizeof(struct klk_updates)),
                            .out = messages_new(1, 1),
                            .next_index = 1};
    uint8_t *ident = malloc(4);
    memcpy(ident, "demo", 4);
    *intake.updates = (struct klk_updates){.reqids = intake.reqids,
                                           .ident = ident,
                                           .ident_size = 4,
                                           .record_bytes_max = 180,
                                           .ttl_s = 90,
                                           .inflight_max = 300,
                                           .inflight_bytes_max = 40000,
                                           .loads = calloc(1, sizeof(struct klk_loads)),
                                           .waiters = {malloc(4096), 4096, 0, 0, 0, 0}};
    intake.updates->loads->foreign_slot = UINT32_MAX;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        take(&intake, round * 30);
        if (rand() % 2) propose(&intake);
        if (rand() % 2) answer(&intake, rand() % 2, round * 30);
        if (rand() % 30 == 0) answer(&intake, 2, 0);
        if (rand() % 40 == 0) klk_reqids_bound(intake.reqids, 1500);
        if (rand() % 10 == 0) carry(intake.reqids, intake.reqids->last_index, seed);
        intake.out.frames = intake.out.messages = 0;
    }
    for (int counter = 0; counter < KLK_UPDATES_COUNTERS; counter++)
        reached[counter] += intake.updates->counters[counter];
    REQUIRE(intake.others > 0);
    reqids_free(intake.reqids);
    free(intake.updates->blocks);
    free(intake.updates->waiters.ring);
    free(intake.updates->loads);
    free(intake.updates);
    messages_free(&intake.out);
    free(ident);
}

int main(void) {
    uint64_t reached[KLK_UPDATES_COUNTERS] = {0};
    for (unsigned seed = 1; seed <= 20; seed++) run(seed, reached);
    for (int counter = 0; counter < KLK_UPDATES_COUNTERS; counter++) REQUIRE(reached[counter] > 20);
    return 0;
}
