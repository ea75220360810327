/* A broker's wakes without Python, while only ordinary requests and answers arrive: a part of
 * api.h. */
#ifndef KLK_SERVE_H
#define KLK_SERVE_H
#include "exchange.h"

enum klk_serve_limit {
    KLK_SERVE_MESSAGES_MAX = 4096, /* messages of one wake to a ROUTER */
    KLK_SERVE_HELD_MAX = 24,       /* answers that are sent together */
    KLK_SERVE_GATHERED_MAX = 64,   /* messages of several wakes that are sent together, .. */
    KLK_SERVE_GATHERS_MAX = 8      /* .. and their wakes */
};

/* What the caller must handle, besides the ready items of the poll and outgoing messages. */
enum klk_served {
    KLK_SERVED_ALL,      /* nothing: timeout, or another source is ready */
    KLK_SERVED_REQUESTS, /* the clients' arena, from position on */
    KLK_SERVED_ANSWERS,  /* the workers' arena, from position on */
    KLK_SERVED_CLIENTS,  /* unsent messages to clients; all were tried */
    KLK_SERVED_WORKERS   /* unsent messages to workers; all were tried */
};

/* A ROUTER with its drain and outgoing messages. */
struct klk_served_router {
    void *socket;
    struct klk_drain *drain;
    struct klk_messages *out;
    struct klk_budget *budget;
    uint64_t bytes_max; /* of the budget, for each peer */
    uint32_t *unsent;   /* room for 2 * KLK_SERVE_MESSAGES_MAX: as klk_budget_send() fills it */
    uint32_t unsents;   /* out, on KLK_SERVED_CLIENTS or KLK_SERVED_WORKERS */
    int32_t more;       /* the drain has ended early */
};

struct klk_serve {
    struct klk_exchange *exchange;
    struct klk_poll *poll; /* has both ROUTERs, and the caller's other sources */
    struct klk_served_router clients;
    struct klk_served_router workers;
    int64_t held_ms;   /* since when answers are held; 0: none */
    int64_t woke_ms;   /* the last wake */
    uint32_t gathers;  /* wakes in a row whose messages were not sent yet */
    int32_t served;    /* out: enum klk_served */
    uint32_t position; /* out */
};

/* Waits like klk_poll_wait(). While only the two ROUTERs are ready it runs a broker's wake: it
 * receives answers, then requests, dispatches, and sends; then it waits again. It returns when
 * another source is ready, when the caller must handle a message, when something needs more room or
 * was not sent, and after timeout_ms or when the oldest request expires.
 *
 * A wake with two or more outgoing messages first looks whether more has arrived meanwhile. Then
 * these leave together: in busy times bundles get larger, and nothing waits for what is not there.
 *
 * Answers of services with more waiting requests are held for a millisecond, or up to
 * KLK_SERVE_HELD_MAX: each separate send costs a hand-over to libzmq's thread and a TCP segment,
 * and their clients wait in a queue anyway. Workers get their requests at once.
 *
 * Returns KLK_OK with served, KLK_EINVAL when a ROUTER is not in poll, or KLK_EOS. */
int klk_serve_wait(struct klk_serve *serve, int64_t timeout_ms);

#endif
