/* The broker's requests and workers, and how they meet: a part of api.h. */
#ifndef KLK_EXCHANGE_H
#define KLK_EXCHANGE_H
#include "api.h"

enum klk_exchange_limit {
    KLK_EXCHANGE_NAME_MAX = 255,  /* of a service, a request id, a routing id, a header */
    KLK_EXCHANGE_WINDOW_MAX = 65535,
    KLK_EXCHANGE_PART_COST = 8192, /* credit that a part takes besides its octets */
    KLK_EXCHANGE_PROBE_MS = 1000    /* between two looks whether a client is there */
};

/* What a worker wants to hear with a request. */
enum klk_wants { KLK_WANTS_NOTHING = 0, KLK_WANTS_DEADLINE = 1, KLK_WANTS_CREDIT = 2 };

/* Which protocol a peer speaks: the text's with request ids, RFC 7, RFC 18. */
enum klk_framing { KLK_FRAMING_TEXT = 0, KLK_FRAMING_MDP1 = 1, KLK_FRAMING_MDP2 = 2 };

enum klk_exchange_counter {
    KLK_EXCHANGE_REQUESTS,   /* taken from clients */
    KLK_EXCHANGE_REPEATED,   /* with the id of one that is in work: dropped */
    KLK_EXCHANGE_REFUSED,    /* of a client or service over its limit: told so */
    KLK_EXCHANGE_EXPIRED,    /* waited too long: told so */
    KLK_EXCHANGE_DISPATCHED, /* sent to a worker, repeatedly too */
    KLK_EXCHANGE_RESENT,     /* taken back from a worker that is gone */
    KLK_EXCHANGE_PARTIALS,
    KLK_EXCHANGE_FINALS,
    KLK_EXCHANGE_DISCARDED,  /* answers for clients that are gone, or beyond what is collected */
    KLK_EXCHANGE_CANCELLED,  /* of clients that are gone, or want it no more */
    KLK_EXCHANGE_COUNTERS
};

/* Why a call stopped at a message that is for its caller to handle. */
enum klk_exchange_stop {
    KLK_STOP_INVALID = 1, /* no message of any of the protocols */
    KLK_STOP_INTERNAL,    /* a request for the broker's own: mmi., titanic., klk. */
    KLK_STOP_UNKNOWN_WORKER,    /* a valid command of a peer that is no worker */
    KLK_STOP_COMMAND,     /* READY or DISCONNECT of a worker */
    KLK_STOP_UNEXPECTED,  /* an answer to nothing that it was asked */
    KLK_STOP_DURABLE         /* a request for a service whose requests its caller keeps */
};

struct klk_exchange_setup {
    uint64_t seed;               /* secret, so that nobody can choose names that collide */
    uint64_t first_number;       /* of clients and workers, as others are told of them, and runs */
    uint64_t bytes_max;          /* of all requests that are held, each with what it costs */
    uint64_t service_bytes_max;  /* of requests that wait for one service */
    uint64_t collected_bytes_max; /* of PARTIALs kept for one client of RFC 7 */
    uint32_t inflight_max;       /* requests of one client */
    uint32_t services_max;
    uint32_t request_ttl_ms;     /* so long at most a request waits for a worker */
    uint32_t client_header_size;
    uint32_t worker_header_size;
    uint32_t deadline_header_size;
    uint32_t named_header_size;
    uint8_t client_header[255];
    uint8_t worker_header[255];
    uint8_t deadline_header[255]; /* of clients whose requests have 8 bytes of deadline */
    uint8_t named_header[255];    /* of clients that say deadline, credit and their name */
};

/* What a client is told instead of an answer: two frames of a FINAL. */
enum klk_refusal { KLK_REFUSAL_CLIENT, KLK_REFUSAL_QUEUE, KLK_REFUSAL_EXPIRED, KLK_REFUSALS };

struct klk_worker_info {
    uint64_t done; /* FINALs */
    uint64_t number;
    int64_t last_seen_ms;
    uint32_t window;
    uint32_t load;
    uint32_t framing;
    uint32_t id_size;
    uint32_t service_size;
    uint8_t id[255];
    uint8_t service[255];
};

struct klk_service_info {
    uint64_t bytes;   /* of the requests that wait */
    uint64_t done;    /* FINALs */
    int64_t oldest_ms; /* when the one that waits longest came; -1: none waits */
    uint32_t workers;
    uint32_t waiting;
    uint32_t working;
    uint32_t name_size;
    uint8_t name[255];
};

struct klk_exchange;

/* A new exchange, or NULL when there is no memory or a limit breaks the contract. */
struct klk_exchange *klk_exchange_open(const struct klk_exchange_setup *setup);
void klk_exchange_close(struct klk_exchange *exchange);

/* The second body frame of a refusal, at most 512 bytes; the first one is KLK-ERROR.
 * Returns KLK_OK or KLK_EINVAL. */
int klk_exchange_refusal(struct klk_exchange *exchange, int refusal, const uint8_t *data,
                         uint32_t size);

/* Requests for this service are left to the caller from now on. Returns KLK_OK, KLK_EINVAL or
 * KLK_ESPACE. */
int klk_exchange_add_durable(struct klk_exchange *exchange, const uint8_t *service, uint32_t size);

/* How many messages from `position` on are requests for such services, one behind the other:
 * klk_exchange_take_requests() stops at the first of them. */
uint32_t klk_exchange_count_durable(const struct klk_exchange *exchange,
                                    const struct klk_messages *in,
                           uint32_t position);

/* KLK_EXCHANGE_COUNTERS numbers that only grow. */
const uint64_t *klk_exchange_counters(const struct klk_exchange *exchange);

/* Takes in what clients send, from message *position on; a request waits until
 * klk_exchange_dispatch().
 *
 *   clients    out: what they are told at once
 *   workers    out: how many more parts they may send, and which requests they may leave
 *   stop       out, on KLK_MORE: why the message at *position is the caller's (klk_exchange_stop)
 *
 * Returns KLK_OK at the end, KLK_MORE, or KLK_EFULL when clients must grow: go on at *position. */
int klk_exchange_receive_requests(struct klk_exchange *exchange, const struct klk_messages *in,
                               uint32_t *position, int64_t now_ms, struct klk_messages *clients,
                               struct klk_messages *workers, int32_t *stop);

/* Takes in what workers send. PARTIALs and FINALs go to their clients, a PING is answered.
 * Returns as klk_exchange_take_requests(). */
int klk_exchange_receive_answers(struct klk_exchange *exchange, const struct klk_messages *in,
                              uint32_t *position, int64_t now_ms, struct klk_messages *clients,
                              struct klk_messages *workers, int32_t *stop);

/* Sends requests to workers while there are both: of a service the oldest of those that another
 * worker had first, then one of each client in turn, to the worker that has been free the longest.
 * Returns KLK_OK or KLK_EFULL. */
int klk_exchange_dispatch(struct klk_exchange *exchange, int64_t now_ms,
                          struct klk_messages *clients, struct klk_messages *workers);

/* Ends the requests that have waited for request_ttl_ms, or as long as their clients do. Returns
 * KLK_OK or KLK_EFULL. */
int klk_exchange_expire(struct klk_exchange *exchange, int64_t now_ms,
                        struct klk_messages *clients);

/* A worker for a service. KLK_EINVAL: there is one of this routing id, or a limit is broken;
 * KLK_ESPACE: no memory, or too many services. */
int klk_exchange_worker_add(struct klk_exchange *exchange, const uint8_t *id, uint32_t id_size,
                            const uint8_t *service, uint32_t service_size, uint32_t framing,
                            uint32_t window, int wants, int64_t now_ms);

/* A worker is gone: others get its requests. Returns how many it had, or KLK_EINVAL: no worker. */
int64_t klk_exchange_worker_remove(struct klk_exchange *exchange, const uint8_t *id,
                                   uint32_t id_size,
                                int64_t now_ms);

/* The worker that was not heard for the longest, if that is not since before_ms: its routing id
 * into id, which has room for 255 bytes. Returns its size, or 0. */
uint32_t klk_exchange_silent_worker(const struct klk_exchange *exchange, int64_t before_ms,
                                    uint8_t *id);

/* When that worker was heard last; -1: there is none. */
int64_t klk_exchange_last_seen_ms(const struct klk_exchange *exchange);

/* When the next request that waits is ended; -1: none waits. */
int64_t klk_exchange_expires_ms(const struct klk_exchange *exchange);

/* HEARTBEATs for the workers of RFC 7 and 18 to whom nothing was sent since before_ms.
 * Returns KLK_OK or KLK_EFULL. */
int klk_exchange_heartbeat(struct klk_exchange *exchange, int64_t before_ms, int64_t now_ms,
                      struct klk_messages *workers);

/* A client can't be reached: what it has in the queues goes, and nobody answers it. Returns how
 * many requests were queued. */
uint32_t klk_exchange_client_remove(struct klk_exchange *exchange, const uint8_t *id,
                                 uint32_t id_size, int64_t now_ms);

/* Each KLK_EXCHANGE_LOOK_MS: clients that have said their name and wait are sent a word, so that a
 * lost connection shows, and requests of clients that are gone are cancelled at their workers.
 * Returns KLK_OK or KLK_EFULL. */
int klk_exchange_probe(struct klk_exchange *exchange, int64_t now_ms, struct klk_messages *clients,
                      struct klk_messages *workers);

/* A part for a client was dropped: the request of this id is cancelled. MDP's parts name none: all
 * of the client that workers have are. Returns how many were cancelled, or KLK_EFULL. */
int klk_exchange_drop_part(struct klk_exchange *exchange, const uint8_t *client,
                           uint32_t client_size,
                      const uint8_t *id, uint32_t id_size, struct klk_messages *workers);
int klk_exchange_drop_mdp_part(struct klk_exchange *exchange, const uint8_t *client,
                          uint32_t client_size, struct klk_messages *workers);

/* Requests that are held, and bytes of them. */
uint64_t klk_exchange_held(const struct klk_exchange *exchange, uint64_t *bytes);

/* What is known of a service by its name. Returns KLK_OK, or KLK_EINVAL: nothing. */
int klk_exchange_service(const struct klk_exchange *exchange, const uint8_t *name, uint32_t size,
                         struct klk_service_info *info);

/* All services, or workers: up to room of them. Returns how many there are. */
uint32_t klk_exchange_services(const struct klk_exchange *exchange, struct klk_service_info *infos,
                               uint32_t room);
uint32_t klk_exchange_workers(const struct klk_exchange *exchange, struct klk_worker_info *infos,
                              uint32_t room);

#endif
