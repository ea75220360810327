/* What the drivers of the load generator share: the options, the accounting, the report.
 *
 * A driver (loadgen_zmqraft.c, loadgen_zerodb.c, ...) owns its sockets and its loop: it finds whom
 * to ask, keeps `window` requests outstanding on each of `clients` connections, sends again what a
 * dead leader left unanswered, and tells the accounting of each update that is committed. */
#ifndef LOADGEN_H
#define LOADGEN_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LOAD_URLS_MAX = 16,
    LOAD_CLIENTS_MAX = 1024,
    LOAD_SLOTS_MAX = 1 << 20, /* outstanding requests over all clients, with room to spare */
    LOAD_PACK_MAX = 4096,
    LOAD_GAPS_MAX = 256,
    LOAD_GAP_MS_MIN = 20 /* shorter pauses between commits are not listed */
};

enum load_op { LOAD_PUT, LOAD_GET, LOAD_SCAN, LOAD_PACKED };

struct load_options {
    char *urls[LOAD_URLS_MAX];
    int url_count;
    int clients;
    int window; /* updates outstanding on each client, also when they travel in packs */
    size_t size;
    int pack;          /* updates in one message of our own form; 0: the plain form */
    bool reads;        /* linearizable reads instead of updates, in kelek's own form */
    const char *ident; /* node form when given, else text form */
    const char *libzmq;
    const char *own_key;               /* CURVE: the file of the client's key, */
    char *server_keys[LOAD_URLS_MAX]; /* ... and of each url's public key */
    int server_key_count;
    enum load_op op;        /* tables: what is asked */
    int batch;              /* tables: rows in a request */
    bool columns;           /* ... as packed columns, in kelek's own form */
    uint64_t keys;          /* tables: so many different keys */
    unsigned long table;    /* ZeroDB: the first one's number */
    unsigned long tables;   /* ... and how many are asked in turn */
    int wait;               /* Redis: replicas that must have a write */
    int hold_ms;            /* workers: so long each keeps what it was asked */
    bool bundles;           /* broker, workers: small messages share a frame, in kelek's own form */
    uint64_t count; /* send so many and end; 0: send for warmup_s + secs */
    uint64_t rate;  /* zmqraft: updates a second in all, an open loop; 0: a closed loop */
    double secs, warmup_s, drain_s, give_up_s;
    uint64_t timeout_ns; /* without any answer for so long: the leader is looked for again */
};

/* What happened; the driver counts, load_report() prints. */
struct load_counters {
    uint64_t sent;     /* updates, first sends only */
    uint64_t done;     /* updates committed */
    uint64_t accepted; /* answers "taken, not yet committed" */
    uint64_t refused;  /* answers "not the leader" */
    uint64_t rejected; /* refused for good: the result is void when this is not 0 */
    uint64_t repeated; /* updates sent again */
    uint64_t stray;    /* answers without a request (the second answer to a repeat) */
    uint64_t malformed;
    uint64_t searches; /* for a leader, the first one included */
    uint64_t last_index;
};

extern struct load_options load_options;
extern struct load_counters load_counters;

uint64_t load_now_ns(void); /* CLOCK_MONOTONIC, which is Python's time.monotonic() */
_Noreturn void load_die(const char *what);

/* The leader is known and the clients are connected: the clock starts here, and only once. */
void load_begin(void);
/* True while new updates are to be sent. */
bool load_wants_more(uint64_t now);
/* True while one may be sent now: in an open loop when it is due. */
bool load_may_send(uint64_t now);
/* From when the latency of the next update counts: in an open loop from when it was due. */
uint64_t load_due_ns(uint64_t now);
/* `records` updates of an open loop, due at due_ns, are sent now. */
void load_note_late(uint64_t due_ns, uint64_t now, uint64_t records);
/* True when the run is over: nothing more to send, and nothing outstanding or drain_s gone by. */
bool load_is_over(uint64_t now, uint64_t outstanding);
/* `records` updates, first sent at sent_ns, are committed. */
void load_commit(uint64_t sent_ns, uint64_t now, uint64_t records);

void load_zmqraft(void);
void load_etcd(void);
void load_zerodb(void);
void load_redis(void);
void load_broker(void);
_Noreturn void load_workers(void);
_Noreturn void load_bare(void);

#endif
