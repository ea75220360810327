/* Reads on their way to the table workers of a node, and their answers: a part of api.h. */
#ifndef KLK_CHANNELS_H
#define KLK_CHANNELS_H
#include "api.h"

enum klk_channel_limit {
    KLK_CHANNEL_BATCHES = 16,
    KLK_CHANNEL_READS_MAX = 1024,
    KLK_CHANNEL_CLIENTS = 1024, /* clients that are told apart, by a hash */
    KLK_CHANNEL_STAMP = 4
};

/* Reads that a worker was sent together: [u8 0, u8 envelope, u16 client, u32 epoch, u64 index,
 * u64 ticket][routing id][request frames ..]; or questions for results (plain.h). */
struct klk_read_batch {
    struct klk_messages *requests; /* the caller gives them room */
    struct klk_latency *latency;   /* from their arrival to the last answer */
    uint64_t answered[16];         /* bits, by position */
    uint64_t ticket;
    uint64_t index;                /* that the worker must have applied */
    int64_t arrived_us;
    uint32_t unanswered;
    uint32_t sent;                 /* messages that have left */
};

/* One worker. Its caller gives tickets to other requests, too. */
struct klk_channel {
    struct klk_latency *latency; /* from the arrival of a batch to its last answer */
    uint64_t ticket;             /* the last one given */
    uint32_t epoch;              /* of the worker */
    int32_t is_open;             /* the worker is there, and no earlier request is unsent */
    struct klk_read_batch batches[16]; /* `count` from `first` on, in a ring, by ticket */
    uint32_t first, count;
    uint16_t waiting[1024];      /* by client: requests that are not answered */
    int32_t has_others;          /* the caller has given the worker requests that are not */
    int32_t spare;
    uint64_t taken;              /* reads, ever */
    uint64_t bytes;              /* of answers that klk_channels_done() has passed; to be reset */
};

/* Whether a channel has room for all of these messages, were they all reads of its tables. */
int klk_channel_fits(const struct klk_channel *channel, const struct klk_messages *arena);

/* Adds the reads among these requests to the channel of their tables' worker, as one batch.
 *
 *   number, workers   reads of the tables number, number + workers, ... are meant
 *   positions         scratch: room for all requests
 *   index             that the worker must have applied
 *
 * Returns the batch's messages, or NULL: there are none. klk_channel_fits() was true. */
struct klk_messages *klk_channel_add(struct klk_channel *channel, const struct klk_messages *arena,
                                     const struct klk_request *requests, uint32_t *positions,
                                     uint32_t number, uint32_t workers, uint64_t index,
                                     int64_t now_us);

/* Begins a batch: the caller adds messages to it, whose first frames have room for epoch, index and
 * ticket at KLK_CHANNEL_STAMP, and calls klk_channel_end(). The channel is open, and has less than
 * KLK_CHANNEL_BATCHES. */
struct klk_messages *klk_channel_begin(struct klk_channel *channel);
void klk_channel_end(struct klk_channel *channel, uint64_t index, int64_t arrived_us,
                     struct klk_latency *latency);

/* Which of the clients the sender of a message is. */
uint32_t klk_channel_client(const uint8_t *routing_id, uint32_t size);

/* Forgets all batches: the caller has taken them over. */
void klk_channel_clear(struct klk_channel *channel);

/* The worker's pipe took so many messages of the last batch only: the caller takes it back. */
void klk_channel_stop(struct klk_channel *channel, uint32_t sent);

/* A request of this ticket is answered. Returns 1; 0: its batch is not here. */
int klk_channel_answered(struct klk_channel *channel, uint64_t ticket, uint32_t place,
                         int64_t now_us);

/* All requests up to this ticket are done. */
void klk_channel_handled(struct klk_channel *channel, uint64_t ticket, int64_t now_us);

/* Notes the answers of an arena: [u16 number, u16 0, u32 epoch, u32 position, u64 ticket]
 * [routing id][..]. Returns 1; 0: some are not for reads of these channels, and none was noted. */
int klk_channels_done(struct klk_channel *channels, uint32_t workers,
                      const struct klk_messages *arena, int64_t now_us);

#endif
