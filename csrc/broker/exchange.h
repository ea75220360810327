/* The broker's requests and workers, and the match between them: a part of api.h. */
#ifndef KLK_EXCHANGE_H
#define KLK_EXCHANGE_H
#include "api.h"

enum klk_exchange_limit {
    KLK_EXCHANGE_NAME_MAX = 255,  /* of a service, a request id, a routing id, a header */
    KLK_EXCHANGE_WINDOW_MAX = 65535,
    KLK_EXCHANGE_PART_COST = 8192, /* credit that a part costs besides its octets */
    KLK_EXCHANGE_PROBE_MS = 1000,   /* between two probes of waiting clients */
    KLK_EXCHANGE_NO_SLOT = -1       /* of peers at an endpoint without keys */
};

/* What a worker wants with a request. */
enum klk_wants {
    KLK_WANTS_NOTHING = 0,
    KLK_WANTS_DEADLINE = 1,
    KLK_WANTS_CREDIT = 2,
    KLK_WANTS_BUNDLES = 3 /* and credit */
};

/* A peer's framing: the specification's with request ids, RFC 7, RFC 18. */
enum klk_framing { KLK_FRAMING_TEXT = 0, KLK_FRAMING_MDP1 = 1, KLK_FRAMING_MDP2 = 2 };

enum klk_exchange_counter {
    KLK_EXCHANGE_REQUESTS,   /* received from clients */
    KLK_EXCHANGE_REPEATED,   /* with the id of a request in work: dropped */
    KLK_EXCHANGE_REFUSED,    /* over a limit of the client or service: answered with an error */
    KLK_EXCHANGE_EXPIRED,    /* waited too long: answered with an error */
    KLK_EXCHANGE_DISPATCHED, /* sent to a worker, including repeats */
    KLK_EXCHANGE_RESENT,     /* taken back from a lost worker */
    KLK_EXCHANGE_PARTIALS,
    KLK_EXCHANGE_FINALS,
    KLK_EXCHANGE_DISCARDED,  /* answers for disconnected clients, or beyond what is collected */
    KLK_EXCHANGE_CANCELLED,  /* of disconnected clients, or withdrawn */
    KLK_EXCHANGE_COUNTERS
};

/* Why a call stopped at a message that the caller must handle. */
enum klk_exchange_stop {
    KLK_STOP_INVALID = 1, /* not a message of any framing */
    KLK_STOP_INTERNAL,    /* a request for the broker itself: mmi., titanic., klk. */
    KLK_STOP_UNKNOWN_WORKER,    /* a valid command of an unknown worker */
    KLK_STOP_COMMAND,     /* READY or DISCONNECT of a worker */
    KLK_STOP_UNEXPECTED,  /* an answer to a request that the worker does not have */
    KLK_STOP_DURABLE         /* a request for a durable service */
};

/* A service, a routing id, a header: up to KLK_EXCHANGE_NAME_MAX octets. */
struct klk_name {
    uint8_t size;
    uint8_t bytes[255];
};

/* The headers of the specification's framing. */
enum klk_exchange_header {
    KLK_HEADER_CLIENT,
    KLK_HEADER_WORKER,
    KLK_HEADER_DEADLINE, /* of clients that send a deadline */
    KLK_HEADER_NAMED,    /* of clients that send deadline, credit and name */
    KLK_HEADERS
};

/* An error for a client: two frames of a FINAL. */
enum klk_refusal {
    KLK_REFUSAL_CLIENT,
    KLK_REFUSAL_QUEUE,
    KLK_REFUSAL_EXPIRED,    /* no worker had the request */
    KLK_REFUSAL_UNFINISHED, /* it expired after it was taken back from a lost worker */
    KLK_REFUSALS
};

struct klk_exchange_setup {
    uint64_t seed;               /* secret, so that no client can choose names that collide */
    uint64_t first_number;       /* of clients, workers and runs, as peers see them */
    uint64_t bytes_max;          /* of all requests, with their overhead */
    uint64_t service_bytes_max;  /* of the waiting requests of one service */
    uint64_t key_bytes_max;      /* of the requests of all clients of a key */
    uint32_t key_inflight_max;   /* requests of all clients of a key */
    uint32_t inflight_max;       /* requests of one client */
    uint32_t services_max;
    uint32_t request_ttl_ms;     /* the longest wait for a worker */
    struct klk_name headers[KLK_HEADERS];
    struct klk_name refusals[KLK_REFUSALS]; /* the second body frame; the first one is KLK-ERROR */
};

struct klk_worker_info {
    uint64_t done; /* FINALs */
    uint64_t number;
    int64_t last_seen_ms;
    uint32_t window;
    uint32_t load;
    uint32_t framing;
    int32_t slot; /* of its key */
    struct klk_name routing_id;
    struct klk_name service;
};

struct klk_service_info {
    uint64_t waiting_bytes;
    uint64_t done;    /* FINALs */
    int64_t oldest_ms; /* when the oldest waiting request arrived; -1: none waits */
    uint32_t workers;
    uint32_t waiting;
    uint32_t working;
    struct klk_name name;
};

struct klk_exchange;

/* A new exchange; NULL: no memory, or an invalid limit. */
struct klk_exchange *klk_exchange_open(const struct klk_exchange_setup *setup);
void klk_exchange_close(struct klk_exchange *exchange);

/* Leaves the requests for this service to the caller. Returns KLK_OK, KLK_EINVAL or KLK_ESPACE. */
int klk_exchange_add_durable(struct klk_exchange *exchange, const uint8_t *service, uint32_t size);

/* The number of consecutive messages from `position` on that are requests of durable services;
 * klk_exchange_receive_requests() stops at the first of them. */
uint32_t klk_exchange_count_durable(const struct klk_exchange *exchange,
                                    const struct klk_messages *in,
                           uint32_t position);

/* KLK_EXCHANGE_COUNTERS counts. */
const uint64_t *klk_exchange_counters(const struct klk_exchange *exchange);

/* From the arrival of each request to its answer by a worker. */
const struct klk_latency *klk_exchange_latency(const struct klk_exchange *exchange);

/* Receives messages of clients, from message *position on. Clients, names and requests belong to
 * the slot of their key: no other key finds them. Requests wait for
 * klk_exchange_dispatch().
 *
 *   clients    out: immediate answers
 *   workers    out: credit and cancellations
 *   stop       out, on KLK_MORE: why the caller must handle the message at *position
 *              (klk_exchange_stop)
 *
 * Returns KLK_OK at the end, KLK_MORE, or KLK_EFULL when clients must grow: go on at *position. */
int klk_exchange_receive_requests(struct klk_exchange *exchange, const struct klk_messages *in,
                               uint32_t *position, int64_t now_ms, struct klk_messages *clients,
                               struct klk_messages *workers, int32_t *stop);

/* Receives messages of workers: forwards PARTIALs and FINALs to clients, and answers PINGs. Returns
 * as klk_exchange_receive_requests(). */
int klk_exchange_receive_answers(struct klk_exchange *exchange, const struct klk_messages *in,
                              uint32_t *position, int64_t now_ms, struct klk_messages *clients,
                              struct klk_messages *workers, int32_t *stop);

/* Sends waiting requests to workers with room. Of a service it takes redeliveries first, oldest
 * first, then one request of each client in turn; each goes to the worker that has had room the
 * longest. Returns KLK_OK or KLK_EFULL. */
int klk_exchange_dispatch(struct klk_exchange *exchange, int64_t now_ms,
                          struct klk_messages *clients, struct klk_messages *workers);

/* Ends requests that have waited for request_ttl_ms, or until their client's deadline. Returns
 * KLK_OK or KLK_EFULL. */
int klk_exchange_expire(struct klk_exchange *exchange, int64_t now_ms,
                        struct klk_messages *clients);

/* Adds a worker for a service. KLK_EINVAL: the routing id is a worker's, or a limit is broken;
 * KLK_ESPACE: no memory, or too many services.
 *
 *   slot   of its key: commands of others are those of an unknown worker */
int klk_exchange_worker_add(struct klk_exchange *exchange, const uint8_t *id, uint32_t id_size,
                            const uint8_t *service, uint32_t service_size, uint32_t framing,
                            uint32_t window, int wants, int32_t slot, int64_t now_ms);

/* Removes a lost worker and gives its requests to others. Returns their number; KLK_EINVAL: no such
 * worker. */
int64_t klk_exchange_worker_remove(struct klk_exchange *exchange, const uint8_t *id,
                                   uint32_t id_size,
                                int64_t now_ms);

/* When the worker with the longest silence was last seen; -1: no workers. Writes its routing id. */
int64_t klk_exchange_last_seen_ms(const struct klk_exchange *exchange, struct klk_name *id);

/* When the next waiting request expires; -1: none waits. */
int64_t klk_exchange_expires_ms(const struct klk_exchange *exchange);

/* Writes HEARTBEATs for MDP workers that were sent nothing since before_ms. Returns KLK_OK or
 * KLK_EFULL. */
int klk_exchange_heartbeat(struct klk_exchange *exchange, int64_t before_ms, int64_t now_ms,
                      struct klk_messages *workers);

/* Removes the queued requests of an unreachable client; it gets no answers. Returns their number.
 * */
uint32_t klk_exchange_client_remove(struct klk_exchange *exchange, const uint8_t *id,
                                 uint32_t id_size, int64_t now_ms);

/* The same for all clients with a key's slot. */
uint32_t klk_exchange_slot_remove(struct klk_exchange *exchange, int32_t slot, int64_t now_ms);

/* Call it every KLK_EXCHANGE_PROBE_MS: sends a sign of life to waiting clients with a name, which
 * shows lost connections, and cancels the requests in work of disconnected clients. Returns KLK_OK
 * or KLK_EFULL. */
int klk_exchange_probe(struct klk_exchange *exchange, int64_t now_ms, struct klk_messages *clients,
                      struct klk_messages *workers);

/* A part for a client was dropped: cancels the request of this id. MDP's parts have no id: cancels
 * all of the client's requests in work. Returns their number, or KLK_EFULL. */
int klk_exchange_drop_part(struct klk_exchange *exchange, const uint8_t *client,
                           uint32_t client_size, const uint8_t *id, uint32_t id_size,
                           struct klk_messages *workers);
int klk_exchange_drop_mdp_part(struct klk_exchange *exchange, const uint8_t *client,
                               uint32_t client_size, struct klk_messages *workers);

/* The number of requests, and their bytes. */
uint64_t klk_exchange_held(const struct klk_exchange *exchange, uint64_t *bytes);

/* The number of a service's workers. */
uint32_t klk_exchange_service_workers(const struct klk_exchange *exchange, const uint8_t *name,
                                      uint32_t size);

/* All services, or workers: up to room of them. Returns the total number. */
uint32_t klk_exchange_services(const struct klk_exchange *exchange, struct klk_service_info *infos,
                               uint32_t room);
uint32_t klk_exchange_workers(const struct klk_exchange *exchange, struct klk_worker_info *infos,
                              uint32_t room);

#endif
