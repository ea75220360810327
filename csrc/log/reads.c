/* Linearizable reads: queued until the leader is confirmed, answered in batches
 * (docs/protocols/zmq-raft.md, "Read index"). */
#include "bytes.h"
#include "messages.h"
#include "waiters.h"

enum { OTHER = 1 /* not a read */ };

static const uint8_t READ_INDEX[] = {0x6b, 0x52};

/* The status of an answer. */
static const uint8_t ASTRAY[] = {0};
static const uint8_t TAKEN[] = {1};

/* A read that waits. Its routing id follows. */
struct reader {
    struct klk_waiter head;
    uint64_t round;
    uint8_t routing_id_size;
    uint8_t id_size;
    uint8_t id[KLK_READ_ID_MAX];
};

struct request {
    const uint8_t *routing_id;
    const uint8_t *id;
    uint32_t routing_id_size;
    uint32_t id_size;
    uint32_t wait; /* enum klk_reads_wait */
};

/* ---- answers ---- */

/* Sends [id, 6b 52, status, payload]. */
static int answer(struct klk_messages *out, const struct request *to, const uint8_t *status,
                  const uint8_t *payload, uint32_t payload_size) {
    uint64_t size = (uint64_t)to->routing_id_size + to->id_size + 3 + payload_size;
    if (!klk_messages_fit(out, size, 5)) return KLK_EFULL;
    klk_messages_frame(out, to->routing_id, to->routing_id_size);
    klk_messages_frame(out, to->id, to->id_size);
    klk_messages_frame(out, READ_INDEX, sizeof READ_INDEX);
    klk_messages_frame(out, status, 1);
    klk_messages_frame(out, payload, payload_size);
    klk_messages_end(out);
    return KLK_OK;
}

static int answer_index(struct klk_messages *out, const struct request *to, uint64_t index) {
    uint8_t number[8];
    uint32_t size = 1;
    klk_put_u64(number, index);
    while (index >>= 8) size++;
    return answer(out, to, TAKEN, number, size);
}

/* ---- readers ---- */

static int reader_add(struct klk_waiters *readers, const struct request *from,
                      const struct klk_reads_view *view) {
    uint32_t size = (uint32_t)((sizeof(struct reader) + from->routing_id_size + 7) & ~7ull);
    if (!klk_waiters_fit(readers, size)) return KLK_EFULL;
    struct reader *reader = klk_waiters_add(readers, size, view->now_ms);
    reader->round = view->round;
    reader->routing_id_size = (uint8_t)from->routing_id_size;
    reader->id_size = (uint8_t)from->id_size;
    memcpy(reader->id, from->id, from->id_size);
    memcpy(reader + 1, from->routing_id, from->routing_id_size);
    return KLK_OK;
}

static struct request reader_request(const struct reader *reader) {
    return (struct request){.routing_id = (const uint8_t *)(reader + 1),
                            .id = reader->id,
                            .routing_id_size = reader->routing_id_size,
                            .id_size = reader->id_size};
}

static int reader_accept(struct klk_messages *out, const void *reader) {
    struct request to = reader_request(reader);
    return answer(out, &to, TAKEN, NULL, 0);
}

/* ---- messages of an arena ---- */

/* Decodes [routing id, id, 6b 52, ident, wait?]: wait is one byte (enum klk_reads_wait), 0 if it is
 * missing. */
static int request_shape(const struct klk_reads *reads, const struct klk_messages *arena,
                         uint32_t message, struct request *from) {
    uint32_t size, frames = klk_messages_frames(arena, message);
    const uint8_t *frame;
    from->routing_id = klk_messages_at(arena, message, 0, &from->routing_id_size);
    from->id = klk_messages_at(arena, message, 1, &from->id_size);
    if (frames < 4 || frames > 5 || from->routing_id_size > UINT8_MAX) return KLK_EINVAL;
    if (!from->id_size || from->id_size > KLK_READ_ID_MAX) return KLK_EINVAL;
    if (!klk_messages_is(arena, message, 3, reads->ident, reads->ident_size)) return KLK_EINVAL;
    if (frames < 5) return KLK_OK;
    frame = klk_messages_at(arena, message, 4, &size);
    if (size != 1 || *frame >= KLK_READS_WAITS) return KLK_EINVAL;
    from->wait = *frame;
    return KLK_OK;
}

static int take_message(struct klk_reads *reads, const struct klk_messages *arena,
                        uint32_t message, const struct klk_reads_view *view,
                        struct klk_messages *out) {
    struct request from = {0};
    if (klk_messages_frames(arena, message) < 3) return OTHER;
    if (!klk_messages_is(arena, message, 2, READ_INDEX, sizeof READ_INDEX)) return OTHER;
    if (request_shape(reads, arena, message, &from) != KLK_OK) {
        reads->counters[KLK_READS_DROPPED]++;
    } else if (!view->leader) {
        if (answer(out, &from, ASTRAY, view->refusal, view->refusal_size) != KLK_OK)
            return KLK_EFULL;
        reads->counters[KLK_READS_ASTRAY]++;
    } else if (reader_add(&reads->readers[from.wait], &from, view) == KLK_OK) {
        reads->counters[KLK_READS_RECEIVED]++;
    } else {
        reads->counters[KLK_READS_OVER]++;
    }
    return KLK_OK;
}

int klk_reads_receive(struct klk_reads *reads, const struct klk_messages *arena,
                      const struct klk_reads_view *view, struct klk_messages *out,
                      uint32_t *numbers, uint32_t *count) {
    for (uint32_t i = reads->position; i < *count; i++) {
        int result = numbers[i] < arena->messages
                         ? take_message(reads, arena, numbers[i], view, out)
                         : KLK_EINVAL;
        reads->position = i;
        if (result < 0) return result;
        if (result == OTHER) numbers[reads->others++] = numbers[i];
    }
    *count = reads->others;
    reads->position = reads->others = 0;
    return KLK_OK;
}

/* ---- confirmations, reminders, refusals ---- */

int klk_reads_answer(struct klk_reads *reads, int wait, uint64_t round, uint64_t index,
                     struct klk_messages *out) {
    struct klk_waiters *readers = &reads->readers[wait];
    struct reader *reader;
    while ((reader = klk_waiters_next(readers, &readers->head)) && reader->round <= round) {
        struct request to = reader_request(reader);
        if (answer_index(out, &to, index) != KLK_OK) return KLK_EFULL;
        klk_waiters_remove(readers, &reader->head);
    }
    return KLK_OK;
}

int klk_reads_remind(struct klk_reads *reads, uint64_t now_ms, struct klk_messages *out) {
    int result = KLK_OK;
    for (int wait = 0; wait < KLK_READS_WAITS && result == KLK_OK; wait++)
        result = klk_waiters_remind(&reads->readers[wait], now_ms, out, reader_accept);
    return result;
}

int klk_reads_refuse(struct klk_reads *reads, const uint8_t *refusal, uint32_t refusal_size,
                     struct klk_messages *out) {
    for (int wait = 0; wait < KLK_READS_WAITS; wait++) {
        struct klk_waiters *readers = &reads->readers[wait];
        struct reader *reader;
        while ((reader = klk_waiters_next(readers, &readers->head))) {
            struct request to = reader_request(reader);
            if (answer(out, &to, ASTRAY, refusal, refusal_size) != KLK_OK) return KLK_EFULL;
            klk_waiters_remove(readers, &reader->head);
        }
    }
    return KLK_OK;
}
