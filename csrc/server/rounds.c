/* Questions to the leader how far reads must see the log. */
#include "rounds.h"

#include "bytes.h"
#include "messages.h"

static const uint8_t READ_INDEX[] = {0x6b, 0x52}, CONFIRMED[] = {1}, ACCEPTED[] = {1};

enum { INDEX_BYTES_MAX = 7 }; /* A log index is below 2^53. */

int klk_rounds_add(struct klk_rounds *rounds, const struct klk_messages *arena,
                   const struct klk_request *rows, int64_t now_us) {
    struct klk_messages *next = rounds->next;
    if (!klk_messages_fit(next, klk_messages_bytes(arena), arena->frames) ||
        arena->messages > KLK_ROUNDS_READS_MAX - next->messages)
        return 0;
    if (!next->messages) rounds->next_us = now_us;
    next->slots = arena->slots ? rounds->next_slots : NULL;
    for (uint32_t m = 0; m < arena->messages; m++) {
        if (rows[m].shape != KLK_REQUEST_READ) continue;
        for (uint32_t f = 0; f < klk_messages_frames(arena, m); f++) {
            uint32_t size;
            const uint8_t *data = klk_messages_at(arena, m, f, &size);
            klk_messages_frame(next, data, size);
        }
        if (next->slots) next->slots[next->messages] = arena->slots[m];
        klk_messages_end(next);
    }
    return 1;
}

static void id_put(const struct klk_rounds *rounds, uint8_t *id) {
    memcpy(id, rounds->maker, sizeof rounds->maker);
    klk_put_u32(id + sizeof rounds->maker, rounds->number);
}

static void swap(struct klk_rounds *rounds) {
    struct klk_messages *reads = rounds->asked;
    uint32_t *slots = rounds->asked_slots;
    rounds->asked = rounds->next;
    rounds->asked_slots = rounds->next_slots;
    rounds->next = reads;
    rounds->next_slots = slots;
}

int klk_rounds_ask(struct klk_rounds *rounds, struct klk_messages *out) {
    if (rounds->is_asked || !rounds->next->messages) return 0;
    uint64_t bytes = KLK_ROUNDS_ID + sizeof READ_INDEX + sizeof CONFIRMED + rounds->ident_size;
    if (!klk_messages_fit(out, bytes, 4)) return KLK_EFULL;
    uint8_t id[KLK_ROUNDS_ID];
    rounds->number++;
    id_put(rounds, id);
    klk_messages_frame(out, id, sizeof id);
    klk_messages_frame(out, READ_INDEX, sizeof READ_INDEX);
    klk_messages_frame(out, rounds->ident, rounds->ident_size);
    klk_messages_frame(out, CONFIRMED, sizeof CONFIRMED);
    klk_messages_end(out);
    swap(rounds);
    rounds->asked_us = rounds->next_us;
    rounds->is_asked = 1;
    return 1;
}

void klk_rounds_unask(struct klk_rounds *rounds) {
    swap(rounds);
    rounds->next_us = rounds->asked_us;
    rounds->is_asked = 0;
}

int klk_rounds_answer(struct klk_rounds *rounds, const struct klk_messages *arena,
                      uint32_t message, uint64_t *index) {
    uint8_t id[KLK_ROUNDS_ID];
    id_put(rounds, id);
    if (!rounds->is_asked || klk_messages_frames(arena, message) != 4 ||
        !klk_messages_is(arena, message, 0, id, sizeof id) ||
        !klk_messages_is(arena, message, 1, READ_INDEX, sizeof READ_INDEX) ||
        !klk_messages_is(arena, message, 2, ACCEPTED, sizeof ACCEPTED))
        return KLK_ROUNDS_OTHER;
    uint32_t size;
    const uint8_t *data = klk_messages_at(arena, message, 3, &size);
    if (!size) return KLK_OK;
    *index = 0;
    for (uint32_t i = 0; i < size && i < INDEX_BYTES_MAX; i++) *index |= (uint64_t)data[i] << 8 * i;
    if (size > INDEX_BYTES_MAX || !*index || *index >> 53) return KLK_ROUNDS_OTHER;
    klk_requests_read(rounds->asked, 1, 0, rounds->rows);
    return KLK_ROUNDS_ANSWERED;
}

void klk_rounds_end(struct klk_rounds *rounds) {
    rounds->asked->frames = rounds->asked->messages = 0;
    rounds->is_asked = 0;
}

int64_t klk_rounds_since_us(const struct klk_rounds *rounds) {
    if (rounds->is_asked) return rounds->asked_us;
    return rounds->next->messages ? rounds->next_us : INT64_MAX;
}
