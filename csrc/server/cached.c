/* Reads that rows in shared memory answer. */
#include "cached.h"

#include "bytes.h"
#include "frames.h"
#include "messages.h"

enum { KEYS_MAX = 1024 }; /* of a read */

/* Adds the values of keys as frames, or as a column and a frame with 1 for each key that exists; 0:
 * a row is not here, or they have no room. */
static int values_add(const struct klk_row_reader *reader, const struct klk_messages *arena,
                      const struct klk_request *row, const uint32_t *places, uint32_t count,
                      struct klk_messages *answers) {
    uint8_t there[KEYS_MAX];
    int packed = row->extension & KLK_READ_PACKED;
    uint32_t offsets = klk_messages_bytes(answers), at = offsets, extra = packed ? count : 0;
    uint32_t *ends = answers->offsets + answers->frames + 1;
    if (packed) at += 4 * (count + 1);
    uint32_t first = at;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t *place = places + 2 * (size_t)i;
        if (packed) klk_put_u32(answers->bytes + offsets + 4 * (size_t)i, at - first);
        uint32_t size, room = answers->bytes_max - at - extra;
        if (!klk_row_reader_get(reader, row->table, arena->bytes + place[0], place[1],
                                answers->bytes + at, room, &size))
            return 0;
        there[i] = size != UINT32_MAX;
        if (there[i]) at += size;
        if (!packed) *ends++ = at;
    }
    if (packed) {
        klk_put_u32(answers->bytes + offsets + 4 * (size_t)count, at - first);
        klk_put_bytes(answers->bytes + at, there, count);
        ends[0] = first;
        ends[1] = at;
        ends[2] = at + count;
    }
    answers->frames += packed ? 3 : count;
    return 1;
}

/* Adds the answer to a read; 0: a row is not here, or the answer has no room. */
static int read_answer(const struct klk_row_reader *reader, const struct klk_messages *arena,
                       const struct klk_request *row, uint64_t index,
                       struct klk_messages *answers) {
    struct klk_frames frames = klk_frames_of(arena, row);
    uint8_t header[KLK_READ_HEADER_MAX];
    uint32_t places[2 * KEYS_MAX], id_size, count, header_size = klk_read_header(row, header);
    const uint8_t *id = klk_messages_at(arena, row->message, 0, &id_size);
    if (!klk_read_keys(row, &frames, places, KEYS_MAX, &count)) return 0;
    uint64_t bytes = (uint64_t)id_size + header_size + 5ull * count + 4; /* at least */
    if (!klk_messages_fit(answers, bytes, 5ull + count)) return 0;
    uint64_t begun = klk_row_reader_begin(reader, index);
    if (begun == KLK_ROWS_NONE) return 0;
    klk_messages_frame(answers, id, id_size);
    if (row->header == 2) klk_messages_frame(answers, NULL, 0);
    klk_messages_frame(answers, header, header_size);
    return values_add(reader, arena, row, places, count, answers) &&
           klk_row_reader_end(reader, begun);
}

uint32_t klk_cached_answer(struct klk_row_reader *readers, struct klk_channel *channels,
                           uint32_t workers, const struct klk_messages *arena,
                           struct klk_request *rows, uint64_t index, int64_t now_us,
                           struct klk_messages *answers) {
    uint64_t waits[KLK_CHANNEL_CLIENTS / 64] = {0}; /* bits: clients of reads that are left */
    uint32_t left = 0, size;
    int64_t took_us = (int64_t)klk_monotonic_us() - now_us;
    if (took_us < 0) took_us = 0;
    answers->frames = answers->messages = 0;
    for (uint32_t m = 0; m < arena->messages; m++) {
        struct klk_request *row = &rows[m];
        if (row->shape != KLK_REQUEST_READ) continue;
        uint32_t number = row->table % workers, frames = answers->frames;
        struct klk_row_reader *reader = &readers[number];
        struct klk_channel *channel = &channels[number];
        const uint8_t *id = klk_messages_at(arena, row->message, 0, &size);
        uint32_t client = klk_channel_client(id, size);
        int in_order = row->extended || !(channel->has_others || channel->waiting[client] ||
                                          waits[client / 64] >> client % 64 & 1);
        if (reader->cache && in_order && read_answer(reader, arena, row, index, answers)) {
            klk_messages_end(answers);
            row->shape = KLK_REQUEST_OTHER;
            reader->answered++;
            channel->taken++;
            klk_latency_add(channel->latency, (uint64_t)took_us, 1);
            continue;
        }
        answers->frames = frames;
        waits[client / 64] |= 1ull << client % 64;
        left++;
    }
    return left;
}
