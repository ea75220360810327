/* Reads on their way to the table workers of a node, and their answers. */
#include "channels.h"

#include "bytes.h"
#include "messages.h"

enum { HEAD_BYTES = 24, TAG_BYTES = 20, STAMP_BYTES = 20 };

static struct klk_read_batch *batch_at(struct klk_channel *channel, uint32_t place) {
    return &channel->batches[(channel->first + place) % KLK_CHANNEL_BATCHES];
}

int klk_channel_fits(const struct klk_channel *channel, const struct klk_messages *arena) {
    if (!channel->is_open || channel->count == KLK_CHANNEL_BATCHES) return 0;
    uint32_t place = (channel->first + channel->count) % KLK_CHANNEL_BATCHES;
    const struct klk_messages *out = channel->batches[place].requests;
    uint64_t heads = (uint64_t)HEAD_BYTES * arena->messages;
    return arena->messages <= KLK_CHANNEL_READS_MAX &&
           klk_messages_bytes(arena) + heads <= out->bytes_max &&
           (uint64_t)arena->frames + arena->messages <= out->frames_max;
}

uint32_t klk_channel_client(const uint8_t *routing_id, uint32_t size) {
    return (uint32_t)klk_hash_mixed(klk_id_hash(0, routing_id, size)) % KLK_CHANNEL_CLIENTS;
}

/* The count of a message's client. */
static uint16_t *waiting_of(struct klk_channel *channel, const struct klk_read_batch *batch,
                            uint32_t place) {
    uint32_t size;
    const uint8_t *id = klk_messages_at(batch->requests, place, 1, &size);
    return &channel->waiting[klk_channel_client(id, size)];
}

void klk_channel_clear(struct klk_channel *channel) {
    channel->count = 0;
    memset(channel->waiting, 0, sizeof channel->waiting);
}

struct klk_messages *klk_channel_begin(struct klk_channel *channel) {
    struct klk_messages *requests = batch_at(channel, channel->count)->requests;
    requests->frames = requests->messages = 0;
    return requests;
}

void klk_channel_end(struct klk_channel *channel, uint64_t index, int64_t arrived_us,
                     struct klk_latency *latency) {
    struct klk_read_batch *batch = batch_at(channel, channel->count++);
    uint8_t stamp[STAMP_BYTES];
    batch->ticket = ++channel->ticket;
    batch->index = index;
    batch->arrived_us = arrived_us;
    batch->latency = latency;
    batch->unanswered = batch->sent = batch->requests->messages;
    memset(batch->answered, 0, sizeof batch->answered);
    for (uint32_t m = 0; m < batch->unanswered; m++) ++*waiting_of(channel, batch, m);
    klk_put_u32(stamp, channel->epoch);
    klk_put_u64(stamp + 4, index);
    klk_put_u64(stamp + 12, batch->ticket);
    klk_messages_stamp(batch->requests, KLK_CHANNEL_STAMP, stamp, sizeof stamp);
}

struct klk_messages *klk_channel_add(struct klk_channel *channel, const struct klk_messages *arena,
                                     const struct klk_request *rows, uint32_t *positions,
                                     uint32_t number, uint32_t workers, uint64_t index,
                                     int64_t now_us) {
    uint32_t count = 0, done = 0;
    for (uint32_t i = 0; i < arena->messages; i++)
        if (rows[i].shape == KLK_REQUEST_READ && rows[i].table % workers == number)
            positions[count++] = i;
    if (!count) return NULL;
    struct klk_messages *requests = klk_channel_begin(channel);
    klk_requests_forward(arena, rows, positions, count, &done, 0, requests);
    klk_channel_end(channel, index, now_us, channel->latency);
    channel->taken += count;
    return requests;
}

void klk_channel_stop(struct klk_channel *channel, uint32_t sent) {
    batch_at(channel, channel->count - 1)->sent = sent;
    channel->is_open = 0;
}

/* Notes an answer. */
static void batch_answered(struct klk_channel *channel, struct klk_read_batch *batch,
                           uint32_t place) {
    uint64_t bit = 1ull << place % 64;
    if (batch->answered[place / 64] & bit) return;
    batch->answered[place / 64] |= bit;
    batch->unanswered--;
    --*waiting_of(channel, batch, place);
}

static void first_end(struct klk_channel *channel, int64_t now_us) {
    struct klk_read_batch *batch = batch_at(channel, 0);
    for (uint32_t m = 0; batch->unanswered; m++) batch_answered(channel, batch, m);
    int64_t took_us = now_us - batch->arrived_us;
    klk_latency_add(batch->latency, took_us > 0 ? (uint64_t)took_us : 0,
                    batch->requests->messages);
    channel->first = (channel->first + 1) % KLK_CHANNEL_BATCHES;
    channel->count--;
}

/* The batch of a ticket, or NULL. */
static struct klk_read_batch *batch_of(struct klk_channel *channel, uint64_t ticket,
                                       uint32_t place) {
    for (uint32_t i = 0; i < channel->count; i++) {
        struct klk_read_batch *batch = batch_at(channel, i);
        if (batch->ticket == ticket) return place < batch->requests->messages ? batch : NULL;
    }
    return NULL;
}

int klk_channel_answered(struct klk_channel *channel, uint64_t ticket, uint32_t place,
                         int64_t now_us) {
    struct klk_read_batch *batch = batch_of(channel, ticket, place);
    if (!batch) return 0;
    batch_answered(channel, batch, place);
    while (channel->count && !batch_at(channel, 0)->unanswered) first_end(channel, now_us);
    return 1;
}

void klk_channel_handled(struct klk_channel *channel, uint64_t ticket, int64_t now_us) {
    while (channel->count && batch_at(channel, 0)->ticket <= ticket) first_end(channel, now_us);
}

int klk_channels_done(struct klk_channel *channels, uint32_t workers,
                      const struct klk_messages *arena, int64_t now_us) {
    for (int notes = 0; notes < 2; notes++) {
        for (uint32_t m = 0; m < arena->messages; m++) {
            uint32_t size;
            const uint8_t *tag = klk_messages_at(arena, m, 0, &size);
            if (size != TAG_BYTES || klk_messages_frames(arena, m) < 3) return 0;
            uint32_t number = klk_get_u32(tag); /* and 0 */
            if (number >= workers || klk_get_u32(tag + 4) != channels[number].epoch) return 0;
            struct klk_channel *channel = &channels[number];
            uint32_t place = klk_get_u32(tag + 8);
            uint64_t ticket = klk_get_u64(tag + 12);
            if (!notes && !batch_of(channel, ticket, place)) return 0;
            if (!notes) continue;
            klk_channel_answered(channel, ticket, place, now_us);
            const uint32_t *firsts = arena->firsts + m;
            channel->bytes += arena->offsets[firsts[1]] - arena->offsets[firsts[0]];
        }
    }
    return 1;
}
