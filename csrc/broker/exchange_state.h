/* The state of an exchange: for the C files, not for cffi.
 *
 * Each request is in exactly one list: a client queue (of one client for one service), the
 * redelivery list of its service (its worker was lost), or the list of its worker. */
#ifndef KLK_EXCHANGE_STATE_H
#define KLK_EXCHANGE_STATE_H
#include "exchange.h"

/* An element of a list; the list's head is one, too. An empty list's head points to itself. */
struct link {
    struct link *next;
    struct link *prev;
};

/* An element of a hash table. */
struct node {
    struct node *next;
    uint64_t hash;
};

struct table {
    struct node **buckets; /* the number is a power of two */
    uint32_t size;
    uint32_t count;
};

/* An element that is found by its name; most structs begin with it. */
struct named {
    struct node node;
    struct klk_name name;
};

struct service {
    struct named named;
    struct link dirty; /* of services that may have something to dispatch */
    struct link ready; /* workers with room, the one that has had it the longest first */
    struct link client_queues; /* with requests, the one whose turn it is first */
    struct link redelivery; /* requests of lost workers, the oldest first */
    uint64_t bytes;
    uint64_t done;
    uint32_t workers;
    uint32_t waiting;
    uint32_t working;
};

struct client {
    struct named by_id;   /* the routing id of its newest connection; several may have the same */
    struct named by_name; /* its name, a secret; empty: none, and in no table */
    struct node by_number;
    struct link client_queues;
    uint64_t previous_hash; /* the hash of its previous routing id */
    int64_t last_seen_ms;
    int64_t sent_ms;
    int64_t gone_since_ms; /* when it became unreachable */
    uint32_t inflight;
    int32_t slot;      /* of its key */
    uint8_t is_gone;   /* it can't be reached */
    uint8_t number[8]; /* as workers see it, big-endian */
};

struct client_queue {
    struct link of_service;
    struct link of_client;
    struct link requests;
    struct service *service;
};

struct worker {
    struct named named; /* by its routing id */
    struct link ready; /* alone while it has no room */
    struct link by_last_seen; /* in the exchange's list */
    struct link requests;
    struct service *service;
    uint64_t number;
    uint64_t done;
    int64_t last_seen_ms;
    int64_t sent_ms;
    uint32_t window;
    uint32_t load;
    int32_t slot; /* of its key */
    uint8_t framing;
    uint8_t wants; /* enum klk_wants */
};

/* PARTIALs that an RFC 7 client gets with the last answer. */
struct collected {
    uint8_t *bytes; /* of each frame a u32 size, and its bytes */
    uint32_t frames;
    int overflowed;
    uint64_t used;
    uint64_t bytes_max;
};

/* How a request's client accepts parts. */
enum klk_parts {
    KLK_PARTS_PLAIN,    /* all parts, as they come */
    KLK_PARTS_NUMBERED, /* as many as it gives credit for, each with its position */
    KLK_PARTS_UNWANTED
};

struct request {
    struct node node;
    struct link place; /* in its client queue, redelivery or its worker */
    struct client *client;
    struct service *service;
    struct worker *worker; /* NULL while it waits */
    struct client_queue *client_queue;     /* NULL in redelivery and in work */
    struct collected *collected;
    uint64_t number;  /* in order of arrival */
    uint64_t since_us; /* its arrival */
    uint64_t bytes;   /* its cost */
    int64_t credit;   /* of its client, not used up by parts */
    uint32_t run;     /* counts the workers that have had it */
    uint32_t parts;   /* of this run */
    int64_t expires_ms;  /* request_ttl_ms after it began to wait */
    int64_t deadline_ms; /* of its client; INT64_MAX: none */
    uint32_t heap_index;  /* in the expiry heap; 0: in work */
    uint32_t body_size;
    uint32_t frames;
    uint8_t framing; /* of its client */
    uint8_t parts_mode; /* enum klk_parts */
    uint8_t is_abandoned; /* in work, but its answers are dropped */
    uint8_t is_bundled;    /* it came in a bundle, and its answers may leave so */
    uint8_t id_size;
    /* u32 sizes of the frames, their bytes, the id */
    uint32_t sizes[];
};

/* What the requests of all clients of a key use. */
struct key_use {
    uint64_t bytes;
    uint32_t inflight;
};

struct klk_exchange {
    struct klk_exchange_setup setup;
    struct table services;
    struct table clients;
    struct table clients_by_number;
    struct table clients_by_name;
    struct table requests;
    struct table workers;
    struct table durable; /* services whose requests the caller handles */
    struct link dirty;
    struct link by_last_seen;
    struct key_use *keys; /* by slot */
    uint32_t keys_count;
    struct request **expiry_heap; /* from 1 on: waiting requests by expiry */
    uint32_t expiry_count;
    uint32_t expiry_max;
    uint64_t number; /* of the last request */
    uint64_t next_client; /* its number for workers */
    uint64_t next_worker; /* its number in lists of workers */
    uint32_t run;
    uint64_t bytes;
    uint64_t counters[KLK_EXCHANGE_COUNTERS];
    uint64_t now_us; /* when the messages arrived that are handled now */
    struct klk_latency latency;
    uint32_t patient; /* answers since serve.c last sent some, of services with waiting requests */
};

#define KLK_OF(link, type, member) ((type *)(void *)((char *)(link) - offsetof(type, member)))

static inline void klk_link_init(struct link *link) { link->next = link->prev = link; }

static inline int klk_link_is_empty(const struct link *link) { return link->next == link; }

static inline void klk_link_remove(struct link *link) {
    link->prev->next = link->next;
    link->next->prev = link->prev;
    klk_link_init(link);
}

/* Inserts a link before another one; before a list's head means at its end. */
static inline void klk_link_insert(struct link *link, struct link *other) {
    link->next = other;
    link->prev = other->prev;
    other->prev->next = link;
    other->prev = link;
}

static inline void klk_link_move_last(struct link *link, struct link *head) {
    klk_link_remove(link);
    klk_link_insert(link, head);
}

static inline uint8_t *klk_request_body(struct request *request) {
    return (uint8_t *)(request->sizes + request->frames);
}

static inline uint8_t *klk_request_id(struct request *request) {
    return klk_request_body(request) + request->body_size;
}

static inline void klk_put_u64_big(uint8_t *out, uint64_t value) {
    for (int i = 0; i < 8; i++) out[i] = (uint8_t)(value >> (56 - 8 * i));
}

static inline uint64_t klk_get_u64_big(const uint8_t *data) {
    uint64_t value = 0;
    for (int i = 0; i < 8; i++) value = value << 8 | data[i];
    return value;
}

/* Octets of a message. */
struct klk_octets {
    const uint8_t *data;
    uint32_t size;
};

/* A client's message, as it was read. */
struct klk_asking {
    struct klk_octets client;
    struct klk_octets name; /* empty: it has no name */
    struct klk_octets service;
    struct klk_octets id;
    const uint8_t *body;
    const uint32_t *offsets; /* of the body's frames, and the end of the last one */
    uint32_t frames;
    int64_t deadline_ms;
    int64_t credit;
    int framing;
    int32_t slot; /* of its key */
    uint8_t command;
    uint8_t is_bundled; /* it came in a bundle */
};

/* Whether the caller handles the requests for this service. */
int klk_service_is_durable(const struct klk_exchange *exchange, struct klk_octets name);
/* Finds or makes it; NULL: no memory, or too many. */
struct service *klk_service_get(struct klk_exchange *exchange, struct klk_octets name);
/* Frees a service without workers and requests. */
void klk_service_free_unused(struct klk_exchange *exchange, struct service *service);

/* Finds the client of a message by routing id and name, or by name alone after a new connection,
 * which it then uses. NULL: none. Clients of other keys with this routing id are lost: a ROUTER
 * gives it to another connection only when the first one has ended. */
struct client *klk_client_find(struct klk_exchange *exchange, const struct klk_asking *asking,
                               int64_t now_ms);
/* Finds or makes it; NULL: no memory, or too many names on one connection. */
struct client *klk_client_get(struct klk_exchange *exchange, const struct klk_asking *asking,
                              int64_t now_ms);
struct client *klk_client_numbered(const struct klk_exchange *exchange, struct klk_octets number);
/* The next client with this routing id after another one; behind NULL: the first. */
struct client *klk_client_next(const struct klk_exchange *exchange, struct klk_octets id,
                               const struct client *behind);
/* Frees a client without requests. */
void klk_client_free_unused(struct klk_exchange *exchange, struct client *client);

struct worker *klk_worker_find(const struct klk_exchange *exchange, struct klk_octets id);
/* Marks a worker as seen. */
void klk_worker_touch(struct klk_exchange *exchange, struct worker *worker, int64_t now_ms);

struct request *klk_request_find(const struct klk_exchange *exchange, const struct client *client,
                                 struct klk_octets id);

/* When a waiting request ends: its client's deadline, or request_ttl_ms. */
static inline int64_t klk_request_due_ms(const struct request *request) {
    return request->deadline_ms < request->expires_ms ? request->deadline_ms : request->expires_ms;
}
/* The waiting request that ends next; NULL: none waits. */
static inline struct request *klk_request_due(const struct klk_exchange *exchange) {
    return exchange->expiry_count ? exchange->expiry_heap[1] : NULL;
}

/* The use of the key in a slot; NULL: none, or it has had no request. */
static inline struct key_use *klk_key_use(const struct klk_exchange *exchange, int32_t slot) {
    if (slot < 0 || (uint32_t)slot >= exchange->keys_count) return NULL;
    return exchange->keys + slot;
}

/* The cost of a new request in bytes. */
uint64_t klk_request_cost(const struct client *client, const struct klk_asking *asking);
/* Queues a request. Returns KLK_OK or KLK_ESPACE. */
int klk_request_add(struct klk_exchange *exchange, struct client *client, struct service *service,
                    const struct klk_asking *asking, int64_t now_ms);
/* Gives a request to a worker with room. */
void klk_request_assign(struct klk_exchange *exchange, struct request *request,
                        struct worker *worker);
/* Ends a request; its worker has room again. Its client and service may be freed. */
void klk_request_end(struct klk_exchange *exchange, struct request *request);

/* Stores frames of a PARTIAL for an RFC 7 client. */
void klk_request_collect(struct klk_exchange *exchange, struct request *request,
                         const uint8_t *bytes, const uint32_t *offsets, uint32_t frames);

#endif
