/* Replication without Python while nothing unusual happens: a part of api.h.
 *
 * Python (protocols/raft) stays the truth. A steady state begins with numbers of its core and ends
 * with numbers for it. What these functions do not know they leave to Python, untouched. */
#ifndef KLK_STEADY_H
#define KLK_STEADY_H
#include "api.h"

enum klk_steady_limit {
    KLK_STEADY_BYTES_MAX = 4 << 20,  /* of the blocks of one steady state */
    KLK_STEADY_BLOCKS_MAX = 1024,
    KLK_STEADY_ANSWERS_MAX = 64,     /* that wait for a sync */
    KLK_STEADY_PEERS_MAX = 8,        /* followers of a leader */
    KLK_STEADY_VOTERS_MAX = 16,
    KLK_STEADY_WINDOW_MAX = 64,      /* messages with entries in flight to one follower */
    KLK_STEADY_PENDING_MAX = 256,    /* messages to one follower without an answer */
    KLK_STEADY_ROUNDS_MAX = 256,     /* of reads: the newest that have started */
    KLK_STEADY_MARKS_MAX = 64,       /* batches that wait for their commit */
    KLK_STEADY_MESSAGE_BLOCKS_MAX = 256,
    KLK_STEADY_ROUTE_MAX = 32,       /* bytes of a routing id */
    KLK_STEADY_LEAVE_MS = 2,         /* to wait for a running sync before a return */
    KLK_STEADY_URGENT_MS = 1         /* URGENT_NOTICE_MS of protocols/raft/leader.py */
};

/* Why a steady state has ended. */
enum klk_steady_reason {
    KLK_STEADY_TIME,    /* something is due */
    KLK_STEADY_SOURCE,  /* another source is ready, or a connection has ended */
    KLK_STEADY_MESSAGE, /* a message that only Python knows, at the front of the arena */
    KLK_STEADY_NOTICE,  /* a notice of a commit is due that only Python can write */
    KLK_STEADY_FULL,    /* no room for more blocks, answers or messages */
    KLK_STEADY_SEGMENT, /* the segment has no room: a new one must follow */
    KLK_STEADY_DISK,    /* the disk refused a write, or a sync has failed */
    KLK_STEADY_REASONS,
    KLK_STEADY_ROOM /* none: the caller makes room, and calls again with resume set */
};

/* A block that was appended since the steady state began. */
struct klk_steady_block {
    uint64_t first_index;
    uint32_t count; /* of its entries */
    uint32_t start; /* in the log's bytes */
    uint32_t size;
};

/* The end of the log of one peer. All its entries are of one term. Blocks are in order: the first
 * `durable` ones are durable, those up to `written` are in the segment, the rest only here. */
struct klk_steady_log {
    uint64_t term;
    uint64_t last_index;
    uint64_t durable_index;
    uint8_t *bytes;
    struct klk_steady_block *blocks;
    uint32_t bytes_max;
    uint32_t blocks_max;
    uint32_t used; /* bytes */
    uint32_t count, written, durable; /* blocks */
    uint32_t known;                   /* blocks whose request ids are in reqids */
    struct klk_reqids *reqids;
    struct klk_segment *segment; /* NULL: the caller writes and syncs */
    struct klk_syncer *syncer;
    uint64_t offset; /* where the next block goes in the segment */
    uint64_t synced; /* the segment is durable up to here */
    uint64_t epoch;
    int32_t syncing; /* a sync of the written blocks runs */
    int32_t error;   /* errno of a write or a sync that has failed */
    int32_t sync_failed; /* it was a sync */
};

/* An answer to the leader that waits until the entries up to last_index are durable. */
struct klk_steady_answer {
    uint64_t last_index;
    uint32_t message_id;
    uint32_t route_size;
    uint8_t route[KLK_STEADY_ROUTE_MAX];
};

/* A follower of a leader that all its entries come from. */
struct klk_steady_follower {
    struct klk_steady_log log;
    const uint8_t *ident;
    const uint8_t *leader; /* its PEER ID */
    uint32_t ident_size;
    uint32_t leader_size;
    uint64_t commit_index;
    uint64_t heartbeat_ms;
    uint64_t heard_ms;  /* when a message of the leader last arrived */
    uint64_t gap_ms_max;
    uint64_t missed;    /* heartbeats, since the steady state began */
    uint64_t messages;  /* of the leader, since then */
    int32_t clients_wait; /* clients of this node wait for commits: answers say so */
    uint32_t first;       /* of the answers that wait, a ring */
    uint32_t waiting;
    struct klk_steady_answer answers[KLK_STEADY_ANSWERS_MAX];
};

/* Handles the AppendEntries of an arena, from *position on. now_ms: not before they arrived.
 *
 *   position   in, out: the first message that was not handled
 *   out        gets answers that need not wait for the disk
 *
 * Returns KLK_OK when all were handled. KLK_MORE: the message at *position is for Python, which
 * finds everything as it was before that message; KLK_EFULL: there is no room for it. */
int klk_steady_follow(struct klk_steady_follower *follower, const struct klk_messages *arena,
                      uint32_t *position, uint64_t now_ms, struct klk_messages *out);

/* Adds the answers whose entries are durable to out. KLK_OK or KLK_EFULL: call again. */
int klk_steady_answer(struct klk_steady_follower *follower, struct klk_messages *out);

/* Writes the blocks that are not in the segment yet and starts their sync, unless one runs.
 * Returns KLK_OK; KLK_ESPACE when the segment has no room; KLK_EOS with log->error. */
int klk_steady_write(struct klk_steady_log *log);

/* Takes the end of a sync. Returns KLK_OK, KLK_MORE while it runs, KLK_EOS with log->error. */
int klk_steady_poll_sync(struct klk_steady_log *log);

/* Without a segment: the blocks so far are being written, and then they are durable. */
void klk_steady_start(struct klk_steady_log *log);
void klk_steady_finish(struct klk_steady_log *log);

/* Stores the request ids of durable blocks. Returns KLK_OK, or KLK_EGROW: the table has no room. */
int klk_steady_reqids(struct klk_steady_log *log);

/* ---- a leader ---- */

/* A message to a follower without an answer yet. */
struct klk_steady_pending {
    uint64_t last_index;
    uint64_t round; /* of reads */
    uint32_t message_id;
};

/* A follower that the leader replicates to: the logs are equal up to next_index - 1. */
struct klk_steady_peer {
    struct klk_messages *out; /* to the follower */
    uint64_t next_index;
    uint64_t match_index;
    uint64_t sent_commit_index;
    uint64_t answered_round;
    uint64_t sent_round; /* the newest in a message without entries */
    uint64_t sent_ms;
    uint64_t heard_ms;
    uint64_t bytes_max; /* of the blocks of one message, but one block is always sent */
    uint64_t window[KLK_STEADY_WINDOW_MAX]; /* last indexes in flight, a ring */
    uint32_t window_first, window_count, window_max;
    uint32_t message_id; /* of the last message */
    uint32_t pending_first, pending_count;
    struct klk_steady_pending pending[KLK_STEADY_PENDING_MAX]; /* a ring */
    int32_t counts;       /* it is a voter, and not a learner */
    int32_t answered;     /* it has answered since the steady state began */
    int32_t clients_wait; /* clients of its node wait for commits: it needs notices at once */
    int32_t promises;     /* its answers are promises to elect no other leader */
};

/* A round of reads and when it started. */
struct klk_steady_round {
    uint64_t number;
    uint64_t started_ms;
};

/* The entries up to index have arrived at a time. */
struct klk_steady_mark {
    uint64_t index;
    uint64_t since_us;
};

/* Where updates come from. */
enum klk_steady_source {
    KLK_STEADY_CLIENTS, /* at `url` */
    KLK_STEADY_TABLES,  /* table servers, at `peer_url` */
    KLK_STEADY_INTAKES
};

/* The updates from one endpoint. */
struct klk_steady_intake {
    struct klk_updates *updates;
    struct klk_updates_view view; /* what stays the same; C sets the rest */
    uint32_t *others_found; /* messages that are no updates; room for a whole arena */
    uint32_t others_count;
};

struct klk_steady_leader {
    struct klk_steady_log log;
    const uint8_t *ident;
    const uint8_t *name; /* our PEER ID */
    uint32_t ident_size;
    uint32_t name_size;
    struct klk_steady_intake intakes[KLK_STEADY_INTAKES];
    uint64_t commit_index;
    uint64_t term_start; /* the first entry of our term */
    uint64_t commit_notice_ms;
    uint64_t heartbeat_ms;
    uint64_t round;            /* of reads: the newest; all messages belong to it */
    uint64_t round_started_ms;
    int32_t gives_leases;
    int32_t is_voter;
    uint64_t match_others[KLK_STEADY_VOTERS_MAX]; /* of voters that are not in peers */
    uint32_t others;
    uint64_t others_notice_ms; /* when followers that are not in peers must learn of a commit */
    uint64_t began_index;      /* the commit index that they know */
    uint32_t peers_count;
    struct klk_steady_peer peers[KLK_STEADY_PEERS_MAX];
    struct klk_steady_round rounds[KLK_STEADY_ROUNDS_MAX]; /* the newest, a ring */
    uint32_t rounds_count; /* ever: those that the caller has put there come first */
    struct klk_reads *reads;  /* of clients */
    uint64_t lease_ms;        /* how long a round gives a lease */
    uint64_t lease_answers;   /* times that it has answered reads */
    struct klk_latency *latency; /* from arrival to commit */
    struct klk_steady_mark marks[KLK_STEADY_MARKS_MAX]; /* of uncommitted entries, in order */
    uint32_t marks_count;
    uint64_t counted_index; /* entries up to here are in latency */
};

/* A new round of reads starts, once a millisecond. Call it before messages are sent. */
void klk_steady_tick(struct klk_steady_leader *leader, uint64_t now_ms);

/* Receives the updates of an arena from `source` and appends them, and queues the reads of clients.
 * others_found of that intake gets the numbers of other messages. Returns KLK_OK; KLK_MORE: the
 * blocks have no room, and nothing was received; or what klk_updates_receive() returns when it
 * needs room: call it again, before updates of another intake. */
int klk_steady_propose(struct klk_steady_leader *leader, uint32_t source,
                       const struct klk_messages *arena, uint64_t now_ms, uint32_t unix_s,
                       uint64_t now_us, struct klk_messages *out);

/* Answers the reads that wait, if a lease allows it. Call it after the commit and the tick of a
 * wake. Returns KLK_OK; KLK_MORE: they need Python; or KLK_EFULL: out has no room. */
int klk_steady_reads(struct klk_steady_leader *leader, uint64_t now_ms, struct klk_messages *out);

/* Sends entries to a follower that has room in its window, at most one message; or the commit index
 * that clients of its node wait for. Returns KLK_OK or KLK_EFULL: its out has no room. */
int klk_steady_send(struct klk_steady_leader *leader, uint32_t peer, uint64_t now_ms);

/* Handles the answers of a follower from *position on. Returns KLK_OK, or KLK_MORE: the message at
 * *position is for Python. */
int klk_steady_answers(struct klk_steady_leader *leader, uint32_t peer,
                       const struct klk_messages *arena, uint32_t *position, uint64_t now_ms);

/* Advances the commit index and answers those who have sent updates: outs has one element for each
 * intake. Returns KLK_OK or KLK_EFULL: an out must grow, call again. */
int klk_steady_commit(struct klk_steady_leader *leader, uint64_t now_us,
                      struct klk_messages *const *outs);

/* When a follower needs a message without entries, at the earliest. */
uint64_t klk_steady_beat_ms(const struct klk_steady_leader *leader);

/* Sends those that are due. Returns KLK_OK or KLK_EFULL: an out has no room. */
int klk_steady_beat(struct klk_steady_leader *leader, uint64_t now_ms);

/* When a follower that is not in peers needs a message. */
uint64_t klk_steady_due_ms(const struct klk_steady_leader *leader);

/* Removes the first messages of an arena. */
void klk_messages_drop(struct klk_messages *messages, uint32_t count);

/* Until when reads may rely on this leader; 0: there is no lease. */
uint64_t klk_steady_lease_ms(const struct klk_steady_leader *leader);

/* ---- lease.c: what the processes of a node read instead of a question to their leader ---- */

/* In memory that they share. The peer writes it, others only read. */
struct klk_lease {
    uint64_t version;  /* odd: it is being written */
    uint64_t until_ms; /* when the lease ends, by the clock that a suspend does not stop */
    uint64_t index;    /* all that was acknowledged is committed up to here, at the latest */
};

/* Call it before a message tells anyone of this commit index. until_ms 0: there is no lease. */
void klk_lease_write(struct klk_lease *lease, uint64_t until_ms, uint64_t index);

/* The index behind which nothing was acknowledged before this call; 0: only the leader knows. */
uint64_t klk_lease_read(const struct klk_lease *lease);

/* ---- turn.c: the loop around them ---- */

/* A ROUTER with its drain and its outgoing messages. */
struct klk_steady_router {
    void *socket;
    struct klk_drain *drain;
    struct klk_messages *out;
    uint64_t dropped; /* messages that had no room or no peer, added to */
    int32_t more;     /* the drain has ended early */
};

/* Notices of commits to the processes that apply: one message each, sent once in a while. An urgent
 * one, whose clients wait, gets each commit at once. */
struct klk_steady_notices {
    void *socket;
    struct klk_messages *messages; /* what they get, but for the index */
    struct klk_messages *urgent;   /* what urgent ones get; none: no process is urgent */
    uint32_t index_at;             /* where it goes in each of them: 8 bytes, little endian */
    uint32_t period_ms;
    uint32_t alive_ms;      /* 0, or without a commit all get a notice so long after due_ms */
    uint64_t from_index;    /* an earlier index would need other messages */
    uint64_t noticed_index; /* the last one that all processes know */
    uint64_t urgent_index;  /* the last one that urgent processes know */
    int64_t due_ms;         /* when all may get the next one */
    uint32_t sent;          /* out, added to: notices to all of them */
    uint32_t sent_urgent;   /* out, added to: notices to urgent ones */
};

struct klk_steady_turn {
    struct klk_poll *poll;
    struct klk_steady_follower *follower;
    struct klk_steady_router peers;
    struct klk_steady_notices notices;
    int32_t reason;        /* out: enum klk_steady_reason */
    int32_t handled;       /* out: the arena of the peers holds messages for Python */
    int32_t resume;        /* in: the state goes on after KLK_STEADY_ROOM */
    int64_t end_ms;        /* of the first call */
    uint64_t wakes;        /* out, added to */
};

/* What a leader's turn has left of the arena of an intake. */
enum klk_steady_left {
    KLK_STEADY_NOTHING,
    KLK_STEADY_OTHERS,  /* the messages in its others_found */
    KLK_STEADY_PARTIAL, /* these, and klk_updates_receive() must go on */
    KLK_STEADY_ARENA    /* all messages */
};

struct klk_steady_lead {
    struct klk_poll *poll;
    struct klk_steady_leader *leader;
    struct klk_steady_router intakes[KLK_STEADY_INTAKES]; /* as leader->intakes */
    struct klk_steady_router links[KLK_STEADY_PEERS_MAX]; /* as leader->peers */
    struct klk_steady_notices notices;
    int32_t reason;         /* out: enum klk_steady_reason */
    int32_t left[KLK_STEADY_INTAKES]; /* out: enum klk_steady_left */
    uint32_t links_left;    /* out, a bit a link: its arena holds messages for Python */
    uint32_t unix_s;        /* out: when updates last arrived */
    int32_t resume;         /* in: the state goes on after KLK_STEADY_ROOM */
    int32_t need;           /* out, with that reason: what klk_updates_receive() has returned */
    uint32_t needy;         /* out, with that reason: the number of the intake */
    int64_t suspended_ms;   /* how long the machine was suspended, before the state began */
    struct klk_lease *lease; /* NULL: no other process reads it */
    int64_t end_ms;         /* of the first call */
    uint64_t wakes;         /* out, added to */
};

/* The same for a leader: while only updates of clients, answers of followers and ends of syncs
 * come, it appends, replicates, commits and answers. */
int klk_steady_lead_wait(struct klk_steady_lead *lead, int64_t timeout_ms);

/* Waits like klk_poll_wait(). While only messages of the leader and ends of syncs come it does the
 * follower's work and waits again. It returns for anything else, and after timeout_ms. The reason
 * KLK_STEADY_ROOM asks for room in the table of request ids.
 * Returns KLK_OK with reason, KLK_EINVAL when a source is not in poll, or KLK_EOS. */
int klk_steady_wait(struct klk_steady_turn *turn, int64_t timeout_ms);

#endif
