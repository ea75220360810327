/* A table server without Python: requests of clients, answers of the leader and of workers. */
#include "channels.h"
#include "fuzz.h"
#include "plain.h"
#include "rounds.h"

enum { WORKERS = 2, EPOCH = 9, ROWS_MAX = 64, INDEX = 50, BYTES = 1 << 14, FRAMES = 1 << 9 };

static const uint32_t tables[] = {1, 2};

/* [route]([empty])[header][table][key]([value]) */
static uint8_t *put_request(uint8_t *at, uint8_t type, uint32_t table, int enveloped) {
    uint8_t header[25] = {0x31, 1, type, 1, 0x6b, 0x4c, 0x4b, 1, 0, 0, 0, 0, 0, 'r', table & 1};
    uint8_t number[4];
    uint32_t size = type == 0x20 ? 25 : type == 0x21 ? 4 : 3;
    klk_put_u32(number, table);
    at = fuzz_put(at, "client", 6, 0);
    if (enveloped) at = fuzz_put(at, "", 0, 0);
    at = fuzz_put(at, header, size, 0);
    at = fuzz_put(at, number, sizeof number, 0);
    at = fuzz_put(at, "key", 3, type != 0x20);
    return type == 0x20 ? fuzz_put(at, "value", 5, 1) : at;
}

static uint8_t *put_pack_answer(uint8_t *at, uint32_t count, uint64_t index) {
    uint8_t run[12];
    klk_put_u32(run, count);
    klk_put_u64(run + 4, index);
    at = fuzz_put(at, "first reqid.", 12, 0);
    at = fuzz_put(at, "\x6b\x3d", 2, 0);
    at = fuzz_put(at, "\1", 1, 0);
    return fuzz_put(at, run, count ? sizeof run : 0, 1);
}

static uint8_t *put_done(uint8_t *at, uint32_t number, uint32_t place, uint64_t ticket) {
    uint8_t tag[20];
    klk_put_u32(tag, number);
    klk_put_u32(tag + 4, EPOCH);
    klk_put_u32(tag + 8, place);
    klk_put_u64(tag + 12, ticket);
    at = fuzz_put(at, tag, sizeof tag, 0);
    at = fuzz_put(at, "client", 6, 0);
    return fuzz_put(at, "answer", 6, 1);
}

size_t fuzz_seed(uint32_t number, uint8_t *out) {
    uint8_t *at = out;
    *at++ = (uint8_t)number;
    switch (number) {
    case 0:
    case 1:
        at = put_request(at, 0x20, 1, 0);
        at = put_request(at, 0x21, 2, 1);
        if (number) at = put_request(at, 0x10, 2, 1);
        at = fuzz_put(at, "client", 6, 0);
        at = fuzz_put_transaction(at, number);
        return (size_t)(at - out);
    case 2:
        at = put_pack_answer(at, 0, 0);
        return (size_t)(put_pack_answer(at, 2, INDEX - 1) - out);
    case 4:
        for (uint32_t i = 1; i < 4; i++) { /* The three questions of rounds(). */
            uint8_t id[] = {'m', 'a', 'k', 'e', 'r', (uint8_t)i, 0, 0, 0};
            at = fuzz_put(at, id, sizeof id, 0);
            at = fuzz_put(at, "\x6b\x52", 2, 0);
            at = fuzz_put(at, "\1", 1, 0);
            at = fuzz_put(at, "\1\2", i < 3 ? 2 : 0, 1);
        }
        out[0] = 2;
        return (size_t)(at - out);
    case 3:
        at = put_done(at, 0, 1, 1);
        return (size_t)(put_done(at, 1, 0, 1) - out);
    default:
        return 0;
    }
}

static struct klk_plain *plain_new(struct klk_latency *latency, int small) {
    struct klk_plain *plain = exact(sizeof *plain);
    *plain = (struct klk_plain){.ident = (const uint8_t *)"demo", .tables = tables};
    plain->rows = exact(ROWS_MAX * sizeof *plain->rows);
    plain->latency = latency;
    plain->applied_max = INDEX;
    plain->ident_size = 4;
    plain->tables_count = 2;
    plain->rows_max = ROWS_MAX;
    plain->entry_bytes_max = 1000;
    plain->workers = WORKERS;
    plain->timeout_ms = 5000;
    for (int i = 0; i < KLK_PLAIN_PACKS; i++) {
        struct klk_plain_pack *pack = &plain->packs[i];
        pack->records = exact(small ? 4096 : 1 << 17);
        pack->answers = exact(sizeof *pack->answers);
        *pack->answers = messages_new(small ? 600 : 1 << 13, small ? 9 : 3 * ROWS_MAX);
    }
    return plain;
}

static void plain_free(struct klk_plain *plain) {
    for (int i = 0; i < KLK_PLAIN_PACKS; i++) {
        free(plain->packs[i].records);
        messages_free(plain->packs[i].answers);
        free(plain->packs[i].answers);
    }
    free(plain->rows);
    free(plain);
}

static struct klk_channel *channels_new(struct klk_latency *latency,
                                        struct klk_messages out[WORKERS][KLK_CHANNEL_BATCHES]) {
    struct klk_channel *channels = exact(WORKERS * sizeof *channels);
    for (uint32_t i = 0; i < WORKERS; i++) {
        channels[i] = (struct klk_channel){.latency = latency, .epoch = EPOCH, .is_open = 1};
        for (int b = 0; b < KLK_CHANNEL_BATCHES; b++) {
            out[i][b] = messages_new(BYTES, FRAMES);
            channels[i].batches[b].requests = &out[i][b];
        }
    }
    return channels;
}

static void channels_free(struct klk_channel *channels,
                          struct klk_messages out[WORKERS][KLK_CHANNEL_BATCHES]) {
    for (uint32_t i = 0; i < WORKERS; i++)
        for (int b = 0; b < KLK_CHANNEL_BATCHES; b++) messages_free(&out[i][b]);
    free(channels);
}

/* Ends the first pack, each of whose writes has an answer or a question. */
static uint32_t pack_end(struct klk_plain *plain, struct klk_channel *channels) {
    const struct klk_plain_pack *pack = &plain->packs[plain->first];
    uint32_t count = pack->count, asked = 0;
    for (uint32_t i = 0; i < WORKERS; i++) {
        const struct klk_messages *batch = klk_plain_ask(plain, channels, i);
        if (!batch) continue;
        REQUIRE(batch->frames == 4 * batch->messages);
        asked += batch->messages;
        klk_channel_handled(&channels[i], UINT64_MAX, 2000);
    }
    REQUIRE(asked == pack->transactions);
    REQUIRE(klk_plain_answers(plain)->messages == count - asked);
    klk_plain_end(plain, 2000);
    return count;
}

/* Takes the requests, and has the leader answer all packs that they make. */
static void writes(const struct klk_messages *arena, int small) {
    struct klk_latency latency = {0};
    struct klk_plain *plain = plain_new(&latency, small);
    struct klk_messages questions[WORKERS][KLK_CHANNEL_BATCHES];
    struct klk_channel *channels = channels_new(&latency, questions);
    uint32_t taken = 0, ended = 0;
    if (!(klk_plain_read(plain, arena) & KLK_PLAIN_OTHERS)) {
        for (uint32_t i = 0; i < arena->messages; i++)
            taken += plain->rows[i].shape >= KLK_REQUEST_WRITE;
        klk_plain_receive(plain, arena, 1000);
        for (int again = 1; again;) {
            struct klk_messages out = messages_new(1 << 18, 8);
            int added;
            while ((added = klk_plain_pack(plain, &out)) == 1) {
                const struct klk_plain_pack *pack =
                    &plain->packs[(plain->first + plain->sent - 1) % KLK_PLAIN_PACKS];
                uint32_t size;
                klk_messages_at(&out, 0, 4, &size);
                REQUIRE(size == pack->size && pack->count == pack->answers->messages);
                out.frames = out.messages = 0;
            }
            REQUIRE(added == 0);
            messages_free(&out);
            again = plain->count != 0;
            if (!again) break;
            uint8_t bytes[128], *end = put_pack_answer(bytes, plain->packs[plain->first].count, 1);
            memcpy(bytes + 1, plain->packs[plain->first].first, KLK_REQID_SIZE);
            struct fuzz_input in = {bytes, (size_t)(end - bytes)};
            struct klk_messages answer = fuzz_messages(&in);
            plain->applied_max = UINT64_MAX;
            REQUIRE(klk_plain_answer(plain, channels, &answer, 0) == KLK_PLAIN_ANSWERED);
            ended += pack_end(plain, channels);
            klk_plain_take(plain, arena, 2000);
            messages_free(&answer);
        }
        REQUIRE(ended == taken && plain->row == plain->row_count && plain->taken == taken);
    }
    channels_free(channels, questions);
    plain_free(plain);
}

/* Answers of a leader that has one pack with two writes. */
static void leader(const struct klk_messages *arena) {
    struct klk_latency latency = {0};
    struct klk_plain *plain = plain_new(&latency, 1);
    struct klk_plain_pack *pack = &plain->packs[0];
    plain->count = plain->sent = 1;
    pack->count = 2;
    pack->asks_index = 1;
    pack->transactions = 0;
    memcpy(pack->first, "first reqid.", KLK_REQID_SIZE);
    for (uint32_t m = 0; m < arena->messages; m++) {
        int result = klk_plain_answer(plain, NULL, arena, m);
        if (result != KLK_PLAIN_ANSWERED) continue;
        for (int i = 0; i < 2; i++) REQUIRE(plain->indexes[i] && plain->indexes[i] <= INDEX);
    }
    plain_free(plain);
}

static void reads(const struct klk_messages *requests, const struct klk_messages *done) {
    struct klk_latency latency = {0};
    struct klk_request *rows = exact(requests->messages * sizeof *rows);
    uint32_t *positions = exact(requests->messages * sizeof *positions);
    struct klk_messages out[WORKERS][KLK_CHANNEL_BATCHES];
    struct klk_channel *channels = channels_new(&latency, out);
    uint32_t found = 0, all = 0;
    klk_requests_read(requests, 1, 1000, rows);
    for (uint32_t i = 0; i < requests->messages; i++) all += rows[i].shape == KLK_REQUEST_READ;
    for (uint32_t i = 0; i < WORKERS; i++) {
        while (klk_channel_fits(&channels[i], requests)) {
            struct klk_messages *batch = klk_channel_add(&channels[i], requests, rows, positions, i,
                                                         WORKERS, INDEX, 10);
            if (!batch) break;
            if (channels[i].count == 1) found += batch->messages;
        }
    }
    if (requests->messages <= KLK_CHANNEL_READS_MAX && klk_channel_fits(&channels[0], requests))
        REQUIRE(found == all || klk_messages_bytes(requests) > BYTES / 2);
    uint64_t before = channels[0].bytes + channels[1].bytes;
    int known = klk_channels_done(channels, WORKERS, done, 20);
    REQUIRE(known || channels[0].bytes + channels[1].bytes == before);
    for (uint32_t i = 0; i < WORKERS; i++) {
        klk_channel_answered(&channels[i], 1, 1, 20);
        klk_channel_handled(&channels[i], UINT64_MAX, 30);
        REQUIRE(!channels[i].count);
    }
    channels_free(channels, out);
    free(positions);
    free(rows);
}

/* Reads that wait for the leader, and what it says. */
static void rounds(const struct klk_messages *requests, const struct klk_messages *answers) {
    struct klk_messages asked = messages_new(BYTES, FRAMES), next = messages_new(BYTES, FRAMES);
    struct klk_rounds made = {.ident = (const uint8_t *)"demo", .ident_size = 4, .maker = "maker"};
    struct klk_request *rows = exact((requests->messages + 1) * sizeof *rows);
    uint32_t slots[2][KLK_ROUNDS_READS_MAX];
    made.rows = exact(KLK_ROUNDS_READS_MAX * sizeof *made.rows);
    made.asked = &asked;
    made.next = &next;
    made.asked_slots = slots[0];
    made.next_slots = slots[1];
    klk_requests_read(requests, 1, 1000, rows);
    for (int i = 0; i < 3; i++) {
        struct klk_messages out = messages_new(100, 4);
        int added = klk_rounds_add(&made, requests, rows, i);
        uint32_t waiting = made.next->messages;
        REQUIRE(klk_rounds_ask(&made, &out) == (waiting && added));
        if (made.is_asked) REQUIRE(klk_rounds_since_us(&made) <= i);
        messages_free(&out);
        for (uint32_t m = 0; m < answers->messages && made.is_asked; m++) {
            uint64_t index;
            if (klk_rounds_answer(&made, answers, m, &index) != KLK_ROUNDS_ANSWERED) continue;
            REQUIRE(index && index < 1ull << 53 && made.asked->messages == waiting);
            klk_rounds_end(&made);
        }
        if (made.is_asked && i == 1) klk_rounds_unask(&made);
        else if (made.is_asked) klk_rounds_end(&made);
    }
    free(made.rows);
    free(rows);
    messages_free(&asked);
    messages_free(&next);
}

/* Four reads of two tables, of which the input may hold the answers. */
static struct klk_messages some_reads(void) {
    uint8_t bytes[256], *at = bytes;
    for (uint32_t i = 0; i < 4; i++) at = put_request(at, 0x10, 1 + i % 2, (int)(i / 2));
    struct fuzz_input in = {bytes, (size_t)(at - bytes)};
    return fuzz_messages(&in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz_input in = {data, size};
    uint8_t kind = fuzz_u8(&in);
    struct klk_messages arena = fuzz_messages(&in), asked = some_reads();
    if (kind % 4 < 2 && arena.messages <= ROWS_MAX) {
        if (size % 2) arena.slots = fuzz_slots(&arena);
        writes(&arena, kind & 4);
        reads(&arena, &asked);
        rounds(&arena, &asked);
        free(arena.slots);
        arena.slots = NULL;
    } else if (kind % 4 == 2) {
        leader(&arena);
        rounds(&asked, &arena);
    } else {
        reads(&asked, &arena);
    }
    messages_free(&asked);
    messages_free(&arena);
    return 0;
}
