/* Messages to a follower in a steady state: of its leader, or of any client of `peer_url`. And to a
 * leader: answers of a follower. */
#include "fuzz.h"
#include "steady.h"

enum { TERM = 7, LAST = 40, BLOCKS = 3, BYTES = 400 };

static uint8_t *put_append(uint8_t *at, uint64_t last_index, uint32_t blocks) {
    uint8_t numbers[32], block[128], reqid[KLK_REQID_SIZE];
    klk_put_u64(numbers, TERM);
    klk_put_u64(numbers + 8, last_index);
    klk_put_u64(numbers + 16, TERM);
    klk_put_u64(numbers + 24, last_index);
    at = fuzz_put(at, "route", 5, 0);
    at = fuzz_put(at, "\5\6", 2, 0);
    at = fuzz_put(at, "k+", 2, 0);
    at = fuzz_put(at, "demo", 4, 0);
    at = fuzz_put(at, "n1", 2, 0);
    at = fuzz_put(at, numbers, sizeof numbers, !blocks);
    for (uint32_t b = 0; b < blocks; b++) {
        size_t size = klk_record_write(block + KLK_HEADER_SIZE, b ? 3 : 0,
                                       fuzz_reqid(reqid, 1000, (uint8_t)(last_index + b)), reqid,
                                       7);
        ssize_t sealed = klk_block_seal(block, last_index + 1 + b, TERM, 1, size);
        at = fuzz_put(at, block, (uint32_t)sealed, b + 1 == blocks);
    }
    return at;
}

static uint8_t *put_answer(uint8_t *at, uint8_t id, uint64_t match_index) {
    static const uint8_t term = TERM, success = 1;
    uint8_t numbers[24] = {0};
    klk_put_u64(numbers, match_index);
    at = fuzz_put(at, &id, 1, 0);
    at = fuzz_put(at, &term, 1, 0);
    at = fuzz_put(at, &success, 1, 0);
    return fuzz_put(at, numbers, sizeof numbers, 1);
}

size_t fuzz_seed(uint32_t number, uint8_t *out) {
    if (number > 3) return 0;
    uint8_t *at = out;
    *at++ = (uint8_t)number;
    if (number == 3) {
        for (uint64_t id = 1; id < 4; id++) at = put_answer(at, (uint8_t)id, LAST - 4 + id);
        return (size_t)(at - out);
    }
    at = put_append(at, LAST, number);
    at = put_append(at, LAST + number, 1);
    return (size_t)(put_append(at, LAST + number + 1, 0) - out);
}

static void check(const struct klk_steady_follower *follower) {
    const struct klk_steady_log *log = &follower->log;
    uint64_t index = LAST;
    uint32_t used = 0;
    for (uint32_t b = 0; b < log->count; b++) {
        REQUIRE(log->blocks[b].first_index == index + 1 && log->blocks[b].start == used);
        index += log->blocks[b].count;
        used += log->blocks[b].size;
    }
    REQUIRE(log->last_index == index && log->used == used);
    REQUIRE(log->durable <= log->written && log->written <= log->count);
    REQUIRE(log->durable_index <= log->last_index && follower->commit_index <= log->last_index);
    REQUIRE(!follower->waiting || log->durable < log->count);
}

/* Half of the messages before a sync begins, the others while it runs. */
static void run(struct klk_steady_follower *follower, struct klk_messages *arena,
                struct klk_messages *out, uint8_t mode) {
    struct klk_steady_log *log = &follower->log;
    uint32_t position = 0, all = arena->messages;
    arena->messages = all / 2;
    int result = klk_steady_follow(follower, arena, &position, 1000 + mode, out);
    arena->messages = all;
    klk_steady_start(log);
    if (result == KLK_OK) result = klk_steady_follow(follower, arena, &position, 2000, out);
    REQUIRE(result == KLK_OK || result == KLK_MORE || result == KLK_EFULL);
    REQUIRE(position <= all && (result == KLK_OK) == (position == all));
    check(follower);
    klk_messages_drop(arena, position);
    REQUIRE(arena->messages == all - position && arena->offsets[0] == 0);
    klk_steady_finish(log);
    while (klk_steady_answer(follower, out) == KLK_EFULL)
        messages_grow(out, 2 * out->bytes_max + 64, 2 * out->frames_max + 8);
    while (klk_steady_reqids(log) == KLK_EGROW) fuzz_reqids_grow(log->reqids);
    REQUIRE(log->known == log->durable);
    klk_steady_start(log);
    klk_steady_finish(log);
    REQUIRE(klk_steady_answer(follower, out) == KLK_OK || out->messages);
    REQUIRE(log->durable_index == log->last_index);
}

/* A leader with three messages in flight takes the answers. */
static void run_leader(const struct klk_messages *arena) {
    struct klk_steady_leader *leader = exact(sizeof *leader);
    memset(leader, 0, sizeof *leader);
    struct klk_steady_peer *peer = &leader->peers[0];
    leader->log.term = TERM;
    leader->log.last_index = LAST;
    leader->peers_count = 1;
    peer->next_index = LAST + 1;
    for (uint32_t i = 0; i < 3; i++) {
        peer->window[i] = LAST - 2 + i;
        peer->pending[i] = (struct klk_steady_pending){LAST - 2 + i, i, i + 1};
    }
    peer->window_count = peer->pending_count = 3;
    uint32_t position = 0;
    int result = klk_steady_answers(leader, 0, arena, &position, 5);
    REQUIRE(result == KLK_OK || result == KLK_MORE);
    REQUIRE((result == KLK_OK) == (position == arena->messages));
    REQUIRE(peer->match_index <= LAST && peer->next_index == LAST + 1);
    REQUIRE(peer->pending_count + position == 3 || position > 3 || result == KLK_MORE);
    REQUIRE(peer->pending_count <= 3 && peer->window_count <= 3);
    free(leader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz_input in = {data, size};
    uint8_t mode = fuzz_u8(&in);
    struct klk_messages arena = fuzz_messages(&in);
    struct klk_messages out = messages_new(mode & 1 ? 60 : 4096, 64);
    struct klk_steady_follower *follower = exact(sizeof *follower);
    *follower = (struct klk_steady_follower){
        .ident = (const uint8_t *)"demo",
        .ident_size = 4,
        .leader = (const uint8_t *)"n1",
        .leader_size = 2,
        .heartbeat_ms = 70,
        .clients_wait = mode & 2,
        .log = {.term = TERM, .last_index = LAST, .durable_index = LAST,
                .bytes = exact(BYTES), .bytes_max = BYTES,
                .blocks = exact(BLOCKS * sizeof(struct klk_steady_block)), .blocks_max = BLOCKS,
                .reqids = fuzz_reqids_new()}};
    run_leader(&arena);
    run(follower, &arena, &out, mode);
    fuzz_reqids_free(follower->log.reqids);
    free(follower->log.blocks);
    free(follower->log.bytes);
    free(follower);
    messages_free(&out);
    messages_free(&arena);
    return 0;
}
