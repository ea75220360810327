/* The connections that a process has accepted, and their limits: a part of api.h. */
#ifndef KLK_CONNECTIONS_H
#define KLK_CONNECTIONS_H
#include "api.h"

enum klk_connection_limit {
    KLK_ENDPOINTS_MAX = 8,        /* of one process */
    KLK_CONNECTION_FDS = 65536,   /* connections with a larger descriptor have no limits */
    KLK_ADDRESS_BUCKETS = 4096,   /* addresses of the same bucket share the limits of an address */
    KLK_CUTS_KEPT = 16,
    KLK_ADDRESS_SIZE = 64,
    KLK_LISTENER_SIZE = 128,
    KLK_NEW_MS = 3000,            /* a connection is new for so long; handshakes end earlier */
    KLK_LISTENERS_MAX = 2,        /* of an endpoint */
    KLK_REFUSED_MAX = 16,         /* addresses whose connections are counted, or refused */
    KLK_REFUSED_EXCESS = 64,      /* connections that are ended at once, in ... */
    KLK_REFUSED_MS = 1000,        /* ... this time, and how long the kernel then refuses others */
    KLK_FREE_SLICES = 8           /* of the time in which libzmq frees what a connection held */
};

/* Events of libzmq's monitors. The value is the descriptor of the connection. */
enum klk_monitor_event {
    KLK_EVENT_LISTENING = 0x08,
    KLK_EVENT_ACCEPTED = 0x20,
    KLK_EVENT_DISCONNECTED = 0x200,
    KLK_EVENT_FAILED = 0x6800     /* one of three: the handshake has failed; another value */
};

/* Why a connection was ended. */
enum klk_cut_reason {
    KLK_CUT_CONNECTIONS, /* more than connections_max */
    KLK_CUT_ADDRESS,     /* more than address_max of one address */
    KLK_CUT_RATE,        /* its address connects too often */
    KLK_CUT_HANDSHAKE,   /* too many bytes before the end of a CURVE handshake */
    KLK_CUT_BYTES,       /* it holds more of an unfinished message than its endpoint allows */
    KLK_CUT_TOTAL,       /* all hold more than bytes_max, those without a message for a second more
                          * than a share of it, or those without one ever more than the largest
                          * message; it holds most */
    KLK_CUT_MEMORY,      /* the process has grown by more than memory_max; it holds most */
    KLK_CUT_STALLED,     /* an unfinished message does not grow */
    KLK_CUT_KEYS,        /* its key was revoked, or is unknown as it has sent no message: allowed
                          * ones connect again */
    KLK_CUT_REASONS
};

struct klk_cut {
    uint64_t held;
    uint32_t reason;
    char address[64];
};

struct klk_endpoint {
    void *monitor;         /* libzmq's PAIR; NULL: free */
    int fd;                /* its ZMQ_FD */
    int socket_fd;         /* the ZMQ_FD of the socket that is bound */
    uint32_t frame_bytes;  /* that the encryption adds to each frame; 0: none */
    uint64_t bytes_max;    /* that libzmq may hold of one connection, if no message waits for us */
    uint64_t message_bytes; /* the largest message */
    int32_t keeps;         /* libzmq keeps what arrives: of PUB and XPUB */
    int32_t reads;         /* its drain reads until nothing is left */
    int64_t unread_ms;     /* when it last did not */
    char foreign[128];     /* its address without CURVE, as libzmq names it; empty: none */
    int listeners[2];      /* their descriptors */
    uint32_t bound;        /* how many */
};

/* What counts as one address: all of IPv4, one word, or a /64 network of IPv6, two. */
struct klk_address {
    uint32_t words[2];
    uint32_t count;        /* 0: none */
};

/* An address that connects too often. */
struct klk_refused {
    struct klk_address address;
    uint32_t excess;       /* connections that were ended at once since then */
    int64_t since_ms;
    int64_t until_ms;      /* the kernel drops what it sends to listeners until then; 0: not */
};

struct klk_connection; /* connections.c has them */
struct klk_watcher;
struct klk_sender;

struct klk_connections {
    /* limits, set by the caller */
    uint32_t connections_max;
    uint32_t address_max;  /* connections of one address, and new ones in ten seconds after that */
    uint64_t bytes_max;    /* that libzmq may hold of all connections */
    uint64_t memory_max;   /* growth of the process while libzmq holds much, beside that, one
                            * largest message and its own queues */
    int64_t stall_ms;      /* in which an unfinished message must grow */

    /* results */
    uint32_t count;        /* connections now */
    uint32_t cuts_kept;    /* the caller reads cuts, and sets this to 0 */
    uint64_t held;         /* bytes that libzmq holds of all connections */
    uint64_t failed;       /* handshakes that failed */
    uint64_t cut[9];       /* by reason */
    uint64_t refused;      /* how often the kernel had to refuse an address */
    struct klk_cut cuts[16];

    struct klk_endpoint endpoints[8];
    struct klk_refused excess[16];
    uint64_t seed;         /* secret, so that addresses can't be chosen for one bucket */
    uint32_t waiting;      /* the loop that reads waits for sockets now */
    uint32_t waits, wakes; /* how often it did, and how often something had arrived then */
    uint32_t waits_seen, wakes_seen;
    int64_t idle_ms;       /* when it was last known to work */
    int64_t due_ms;        /* of the next check */
    int64_t checked_ms;    /* the last one, and the last one of all connections */
    int64_t full_ms;
    uint64_t own;          /* bytes in the process's own queues, set by its loop at any time */
    uint64_t memory_base;  /* what the process had without libzmq, at most */
    uint64_t own_base;     /* `own`, when it was last read */
    uint64_t ending[8];    /* memory of ended connections, by time */
    int64_t slice_ms;      /* the last of these times */
    int32_t freeing;       /* libzmq frees what ended connections held, ... */
    uint32_t freed_waits;  /* ... until the loop has waited so often, and this time has come */
    int64_t freed_ms;
    int32_t has_holes;     /* free memory may lie between what others hold */
    struct klk_watcher *watcher;
    uint64_t *received;    /* bytes that drains have received, by descriptor */
    struct klk_sender *senders; /* keys, by descriptor */
    struct klk_connection *by_fd;
    int32_t *fds;          /* of all connections */
    uint32_t *per_address; /* connections by bucket */
    int64_t *tokens;       /* by bucket: thousandths of a connection, and when they were counted */
};

/* Makes the tables, whose unused parts take no memory. KLK_EOS: there is no memory. */
int klk_connections_open(struct klk_connections *connections);

/* Ends the thread, and frees the tables; a second call does nothing. */
void klk_connections_close(struct klk_connections *connections);

/* Starts a thread that reads the events of the endpoints, measures what libzmq holds of each
 * connection, and ends connections over a limit, also while the process computes. Or tells it that
 * there is another endpoint. KLK_EOS: no thread can be made.
 *
 * What libzmq holds is what it has read from the socket less what drains have received from it. The
 * thread checks every 100 ms, or every 10 ms while a connection is new or holds much. */
int klk_connections_start(struct klk_connections *connections);

/* The caller must hold the lock while it changes limits or endpoints, or reads cuts. */
void klk_connections_lock(struct klk_connections *connections);
void klk_connections_unlock(struct klk_connections *connections);

/* Ends all connections of an endpoint, also those whose events were not read yet. */
void klk_connections_end(struct klk_connections *connections, uint32_t endpoint, int64_t now_ms);

/* Counts bytes of a frame that a drain has received from the connection fd. */
void klk_connections_drained(struct klk_connections *connections, int fd, uint64_t size,
                             uint32_t frame_bytes);

/* Notes the key of the connection fd: the slot and generation of one of its messages. */
void klk_connections_known(struct klk_connections *connections, int fd, uint32_t slot,
                           uint32_t generation);

/* Ends the connections of keys that are no longer allowed, and at revoked_ms those that have sent
 * no message: their keys are unknown. A connection in its handshake at that time has 3 s to send
 * one: call it once more then. The connections of allowed keys, and those without CURVE, stay. In
 * the thread of the drains. */
void klk_connections_revoke(struct klk_connections *connections, const struct klk_keys *keys,
                            int64_t revoked_ms, int64_t now_ms);

/* Receives one event from a monitor: its number and value, and the listener's address, up to
 * KLK_LISTENER_SIZE with its 0. Returns 0 if none waits. */
int klk_monitor_receive(void *monitor, uint32_t *event, uint32_t *value, char *listener);

#endif
