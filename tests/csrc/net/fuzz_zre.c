/* WHISPERs and SHOUTs of peers, in both versions, and heads of their messages. */
#include "fuzz.h"
#include "zre.h"

enum { PEERS = 3, INDEX = 8 };

size_t fuzz_seed(uint32_t number, uint8_t *out) {
    static const char *const ids[PEERS] = {"peer of one", "peer of two", "silent peer"};
    uint8_t *at = out;
    if (number > 3) return 0;
    *at++ = (uint8_t)(number % 2 ? PEERS : number / 2);
    for (uint8_t sequence = 1; sequence < 5; sequence++) {
        uint8_t header[12] = {0xaa, 0xa1, (uint8_t)(sequence == 3 ? 7 : 2 + sequence % 2)};
        uint32_t version = number / 2 + 1, size = version == 1 ? 5 : 6;
        header[3] = 2;
        header[size - 2] = 0;
        header[size - 1] = sequence;
        if (header[2] == 3) {
            memcpy(header + size, "\3abc", 4);
            size += 4;
        }
        if (number % 2) at = fuzz_put(at, ids[version - 1], 11, 0);
        if (number % 2) at = fuzz_put(at, "127.0.0.1", 9, 0);
        at = fuzz_put(at, header, size, sequence == 3);
        if (sequence != 3) at = fuzz_put(at, "content", 7, 1);
    }
    return (size_t)(at - out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz_input in = {data, size};
    uint32_t sender = fuzz_u8(&in) % (PEERS + 1), index[INDEX];
    struct klk_messages arena = fuzz_messages(&in);
    struct klk_zre_peer all[PEERS] = {{.version = 1, .key_slot = 2}, {.version = 2}, {0}};
    for (int i = 0; i < PEERS; i++) {
        all[i].sequences = 1 << 16;
        all[i].routing_size = 11;
    }
    memcpy(all[0].routing_id, "peer of one", 11);
    memcpy(all[1].routing_id, "peer of two", 11);
    memcpy(all[2].routing_id, "silent peer", 11);
    struct klk_zre_peers peers = {all, index, 1, PEERS, INDEX};
    klk_zre_index(&peers);
    if (size % 2) arena.slots = fuzz_slots(&arena);
    uint32_t *events = exact(arena.messages * sizeof *events * KLK_ZRE_EVENT_NUMBERS);
    for (uint32_t position = 0; position < arena.messages; position++) {
        uint32_t found = klk_zre_take(&peers, &arena, sender, 5, &position, events);
        REQUIRE(position <= arena.messages && found <= arena.messages);
        for (uint32_t i = 0; i < found; i++) {
            const uint32_t *event = events + KLK_ZRE_EVENT_NUMBERS * i;
            REQUIRE(event[0] < PEERS && event[2] <= event[3] && event[3] <= arena.frames);
            REQUIRE(event[5] <= event[4] && event[4] <= event[6]);
            REQUIRE(event[6] <= klk_messages_bytes(&arena));
        }
    }
    uint8_t *heads = exact(12 * (size_t)arena.messages), stamp[12] = {0};
    klk_messages_heads(&arena, 12, heads);
    klk_messages_stamp(&arena, 2, stamp, 10);
    free(heads);
    free(events);
    free(arena.slots);
    messages_free(&arena);
    return 0;
}
