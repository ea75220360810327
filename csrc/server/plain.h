/* Plain writes of a table server, from its clients to the leader of the log and back, without
 * Python: a part of api.h. Plain are puts and deletes of keys, and transactions of one table, that
 * need no check and whose clients expect an answer. Puts and deletes are answered at the commit
 * (docs/decisions/0050-plain-writes-at-commit.md), transactions by the worker of their table. */
#ifndef KLK_PLAIN_H
#define KLK_PLAIN_H
#include "channels.h"

enum klk_plain_limit {
    KLK_PLAIN_PACKS = 16,
    KLK_PLAIN_AHEAD = 2,           /* unanswered packs above which a pack gathers more writes */
    KLK_PLAIN_WRITES_MAX = 1024,   /* of a pack, */
    KLK_PLAIN_BYTES_MAX = 1 << 18, /* and bytes of its entries */
    KLK_PLAIN_ANSWERS_BYTES = 1 << 16,
    KLK_PLAIN_WORKERS_MAX = 64,
    KLK_PLAIN_DEADLINE_MS = 500,   /* a write that has less time is not plain */
    KLK_PLAIN_APART_MS = 20,       /* writes with closer deadlines share a pack and the first's */
    KLK_PLAIN_LATE_MS = 250        /* the caller takes over what is not answered for so long */
};

/* Writes that are sent in one message, in order. Each has one entry and one answer. */
struct klk_plain_pack {
    uint8_t *records;             /* room for KLK_PLAIN_WRITES_MAX records and their entries */
    struct klk_messages *answers; /* room for KLK_PLAIN_ANSWERS_BYTES, 3 frames a write */
    uint64_t workers;             /* bits: the workers of their tables */
    int64_t arrived_us;           /* the first of them */
    int64_t deadline_ms;          /* of the first */
    uint32_t size;                /* of the records */
    uint32_t bytes;               /* of the entries */
    uint32_t count;
    int32_t asks_index;           /* some answers tell the index of their entry */
    uint32_t transactions;        /* how many of the writes are */
    uint8_t first[12];            /* request ids of the first and the last entry */
    uint8_t last[12];
    uint8_t asked[1024];          /* of each write: 0, or the worker that has its result, + 1 */
};

/* A session, and the name of the key that may use it. */
struct klk_plain_session {
    uint64_t number;
    uint32_t name; /* its place in klk_plain.names, */
    uint32_t size; /* and size */
};

struct klk_plain {
    /* What the caller sets. */
    const uint8_t *ident;       /* of the cluster */
    const uint32_t *tables;     /* ascending: replicated ones, which need no check */
    const struct klk_plain_session *sessions; /* ascending: with keys a transaction may use them */
    const uint8_t *names;
    struct klk_request *rows;   /* room for rows_max */
    struct klk_latency *latency;
    uint64_t applied_max;       /* writes up to this index are answered at once */
    uint32_t ident_size, tables_count, sessions_count, rows_max;
    uint32_t entry_bytes_max;   /* at most KLK_PLAIN_BYTES_MAX */
    uint32_t workers;           /* at most KLK_PLAIN_WORKERS_MAX */
    uint32_t timeout_ms;        /* of a request */
    uint8_t maker[5];           /* bytes 4 to 8 of the request ids that are made here */
    uint8_t spare[7];
    uint32_t unix_s;            /* bytes 0 to 3 of these; klk_table_wait() sets it */
    uint32_t made;              /* such ids, ever: the last 3 bytes */
    /* The packs: `count` from `first` on, in a ring. `sent` of them are with the leader; of the
     * others there is one at most that still grows. */
    struct klk_plain_pack packs[16];
    uint32_t first, count, sent;
    /* The rows of the arena of clients that are not in a pack yet. */
    uint32_t row, row_count;
    uint64_t indexes[1024];     /* scratch */
    uint64_t taken;             /* writes, ever */
};

enum klk_plain_result { KLK_PLAIN_OTHER = 1, KLK_PLAIN_ANSWERED = 2 };

/* What an arena of clients has. */
enum klk_plain_found { KLK_PLAIN_WRITES = 1, KLK_PLAIN_READS = 2, KLK_PLAIN_OTHERS = 4 };

/* Reads the requests of an arena into rows. A read is plain if it asks for keys, and the leader's
 * lease tells what it must see. Returns flags of klk_plain_found. */
int klk_plain_read(struct klk_plain *plain, const struct klk_messages *arena);

/* Takes the writes among these rows into packs. Some may have no room yet: row < row_count; call
 * klk_plain_take() after an answer, and receive nothing meanwhile. */
void klk_plain_receive(struct klk_plain *plain, const struct klk_messages *arena, int64_t now_us);

/* Takes rows of the same arena that had no room. */
void klk_plain_take(struct klk_plain *plain, const struct klk_messages *arena, int64_t now_us);

/* Adds the next pack that may leave to out, and counts it as sent:
 * [first reqid][6b 3d][ident][reqid before it, or empty][records].
 *
 * Returns 1; 0: none may; KLK_EFULL: out must grow. */
int klk_plain_pack(struct klk_plain *plain, struct klk_messages *out);

/* Handles a message of the leader.
 *
 * Returns KLK_PLAIN_ANSWERED: the first pack is committed, send its answers and call
 * klk_plain_end(); KLK_OK: the leader has accepted it; KLK_PLAIN_OTHER: the message is another one,
 * or the answers must wait, or a worker does not take the questions of klk_plain_ask(), and the
 * caller handles it. */
int klk_plain_answer(struct klk_plain *plain, const struct klk_channel *channels,
                     const struct klk_messages *arena, uint32_t message);

/* After klk_plain_answer(): makes the transactions of the first pack that this worker has applied,
 * or will, a batch of questions for their results:
 * [u8 7, u8 envelope, u16 0, u32 epoch, u64 index, u64 ticket][routing id][request id][header of
 * the answer]. Returns the batch's messages, or NULL: there are none. */
struct klk_messages *klk_plain_ask(struct klk_plain *plain, struct klk_channel *channels,
                                   uint32_t number);

/* The answers of the first pack to be sent now: without those of transactions. */
struct klk_messages *klk_plain_answers(struct klk_plain *plain);

/* Ends the first pack. */
void klk_plain_end(struct klk_plain *plain, int64_t now_us);

#endif
