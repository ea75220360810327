/* Requests of clients to a table server, and the guard that reads their tables before it. */
#include "fuzz.h"
#include "gets.h"

enum { ENTRY_BYTES_MAX = 600, KEYS_MAX = 8 };

enum { EXTENSIONS = 3, PACKED = 2 };

/* A request whose header has this type and one of the extensions: none, all, columns. */
static uint8_t *put_request(uint8_t *at, int routed, uint8_t type, uint32_t extension,
                            const char *const *frames) {
    static const uint8_t columns[][12] = {{0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0}, "kee"};
    uint8_t header[45] = {0x31, 1, type, 0, 0x6b, 0x4c, 0x4b, 1, extension == 2 ? PACKED : 0, 9};
    uint32_t size = extension == 1 ? 45 : extension == 2 ? 25 : 4;
    if (type < 0x20) { /* A read has no flags. */
        memmove(header + 3, header + 4, 41);
        size--;
    }
    if (routed) at = fuzz_put(at, "client", 6, 0);
    if (routed == 2) at = fuzz_put(at, "", 0, 0);
    at = fuzz_put(at, header, size, 0);
    if (extension < 2) return fuzz_put_texts(at, frames);
    at = fuzz_put(at, "\1\0\0\0", 4, 0);
    for (int i = 0; i < 2; i++) {
        at = fuzz_put(at, columns[0], 12, 0);
        at = fuzz_put(at, columns[1], 3, i);
    }
    return at;
}

size_t fuzz_seed(uint32_t number, uint8_t *out) {
    static const char *const put[] = {"#4", "key", "value", "other", "more", NULL};
    static const char *const drop[] = {"#4", "key", "other", NULL};
    static const char *const range[] = {"#4", "a", "b", NULL};
    static const char *const limited[] = {"#4", "a", "#8", NULL};
    static const char *const read[] = {"#4", "key", "other", NULL};
    static const char *const batch[] = {"#9", "key", "value", "#9", "key", "value", NULL};
    static const struct {
        uint8_t type;
        const char *const *frames;
    } all[] = {{0x20, put},  {0x21, drop}, {0x22, range}, {0x23, limited},
               {0x10, read}, {0x24, batch}};
    enum { COUNT = sizeof all / sizeof *all };
    uint8_t *at = out;
    if (number == 3 * COUNT) {
        *at++ = 1;
        for (uint32_t i = 0; i < 2; i++) {
            at = fuzz_put(at, "client", 6, 0);
            at = fuzz_put_transaction(at, 7 * i);
        }
        return (size_t)(at - out);
    }
    if (number > 3 * COUNT) return 0;
    *at++ = (uint8_t)(number / COUNT);
    for (uint32_t i = 0; i < EXTENSIONS; i++)
        at = put_request(at, (int)(number / COUNT), all[number % COUNT].type, i,
                         all[number % COUNT].frames);
    return (size_t)(at - out);
}

static uint32_t of_shape(const struct klk_request *requests, uint32_t count, uint8_t shape,
                         struct klk_request *out, uint32_t *positions) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++)
        if (requests[i].shape == shape) {
            positions[found] = i;
            out[found++] = requests[i];
        }
    return found;
}

static void pack(const struct klk_messages *arena, const struct klk_request *writes,
                 uint32_t count) {
    size_t capacity = 0;
    for (uint32_t i = 0; i < count; i++) {
        REQUIRE(writes[i].entry_size <= ENTRY_BYTES_MAX);
        capacity += writes[i].entry_size;
    }
    uint8_t *out = exact(capacity);
    REQUIRE(klk_requests_pack(arena, writes, count, out, capacity) == (ssize_t)capacity);
    if (capacity)
        REQUIRE(klk_requests_pack(arena, writes, count, out, capacity - 1) == KLK_ESPACE);
    free(out);
}

static void transact(const struct klk_messages *arena, const struct klk_request *transactions,
                     uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        REQUIRE(transactions[i].entry_size <= ENTRY_BYTES_MAX);
        uint8_t *out = exact(transactions[i].entry_size);
        memset(out, 0xee, transactions[i].entry_size);
        klk_transaction_pack(arena, &transactions[i], out);
        REQUIRE(out[4] == 0x80 && klk_get_u32(out + 5) == transactions[i].table);
        free(out);
        uint64_t sessions[3];
        uint32_t found = klk_transaction_sessions(arena, &transactions[i], sessions, 3);
        REQUIRE(found <= 4 && (found > 0) == transactions[i].has_sessions);
        if (transactions[i].session) REQUIRE(sessions[0] == transactions[i].session);
    }
}

/* Puts LOG INDEXes into a copy of messages, as if all were answers. */
static void tell(const struct klk_messages *messages) {
    struct klk_messages answers =
        messages_copy(messages, klk_messages_bytes(messages), messages->frames);
    uint64_t *indexes = exact(messages->messages * sizeof *indexes);
    for (uint32_t i = 0; i < messages->messages; i++) indexes[i] = i + 1;
    klk_answers_tell(&answers, indexes);
    REQUIRE(klk_messages_bytes(&answers) == klk_messages_bytes(messages));
    free(indexes);
    messages_free(&answers);
}

static void answer(const struct klk_messages *arena, int routed, const struct klk_request *requests,
                   const uint32_t *positions, uint32_t count) {
    struct klk_messages out = messages_new(16, 2);
    uint32_t done = 0;
    while (klk_requests_forward(arena, requests, positions, count, &done, 3, &out) == KLK_EFULL)
        messages_grow(&out, 2 * out.bytes_max, 2 * out.frames_max);
    REQUIRE(done == count);
    for (done = 0; routed && done < count;)
        if (klk_requests_acknowledge(arena, requests, positions, count, &done, &out) == KLK_EFULL)
            messages_grow(&out, 2 * out.bytes_max, 2 * out.frames_max);
    REQUIRE(out.messages == count * (routed ? 2u : 1u));
    tell(&out);
    tell(arena);
    messages_free(&out);
}

/* The reads as a table worker gets them, whose head says no more than zeros. */
static void get(const struct klk_messages *arena, const struct klk_request *requests,
                const uint32_t *positions, uint32_t count) {
    struct klk_messages piped = messages_new(16, 2), out = messages_new(16, 2);
    uint32_t done = 0;
    while (klk_requests_forward(arena, requests, positions, count, &done, 0, &piped) == KLK_EFULL)
        messages_grow(&piped, 2 * piped.bytes_max, 2 * piped.frames_max);
    struct klk_request *reads = exact(count * sizeof *reads);
    uint32_t *counts = exact(count * sizeof *counts);
    uint32_t *places = exact(2 * KEYS_MAX * sizeof *places);
    uint32_t *sizes = exact(KEYS_MAX * sizeof *sizes);
    struct klk_gets gets = {.number = 3, .ticket = 1};
    if (klk_gets_read(&piped, 0, &gets, reads, counts, places, KEYS_MAX)) {
        uint64_t size = 0;
        for (uint32_t i = 0; i < gets.keys; i++) {
            REQUIRE(places[2 * i] + places[2 * i + 1] <= klk_messages_bytes(&piped));
            sizes[i] = places[2 * i + 1] % 2 ? places[2 * i + 1] : UINT32_MAX;
            if (sizes[i] != UINT32_MAX) size += sizes[i];
        }
        uint8_t *values = exact(size);
        while (klk_gets_answer(&piped, reads, counts, sizes, values, &gets, &out) == KLK_EFULL)
            messages_grow(&out, 2 * out.bytes_max, 2 * out.frames_max);
        REQUIRE(out.messages == count && gets.position == count - 1 && gets.byte == size);
        free(values);
    }
    free(sizes);
    free(places);
    free(counts);
    free(reads);
    messages_free(&out);
    messages_free(&piped);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz_input in = {data, size};
    int routed = fuzz_u8(&in) % 3 != 0;
    struct klk_messages arena = fuzz_messages(&in);
    struct klk_request *requests = exact(arena.messages * sizeof *requests);
    struct klk_request *some = exact(arena.messages * sizeof *some);
    uint32_t *positions = exact(arena.messages * sizeof *positions);
    if (size % 2) arena.slots = fuzz_slots(&arena);
    klk_requests_read(&arena, routed, ENTRY_BYTES_MAX, requests);
    uint32_t writes = of_shape(requests, arena.messages, KLK_REQUEST_WRITE, some, positions);
    pack(&arena, some, writes);
    answer(&arena, routed, requests, positions, writes);
    uint32_t all = of_shape(requests, arena.messages, KLK_REQUEST_TRANSACTION, some, positions);
    transact(&arena, some, all);
    answer(&arena, routed, requests, positions, all);
    uint32_t reads = of_shape(requests, arena.messages, KLK_REQUEST_READ, some, positions);
    answer(&arena, routed, requests, positions, reads);
    get(&arena, requests, positions, reads);
    free(arena.slots);
    free(positions);
    free(some);
    free(requests);
    messages_free(&arena);
    return 0;
}
