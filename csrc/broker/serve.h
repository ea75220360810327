/* A broker's wakes without Python, as long as nothing but plain requests and answers comes: a part
 * of api.h. */
#ifndef KLK_SERVE_H
#define KLK_SERVE_H
#include "exchange.h"

enum klk_serve_limit {
    KLK_SERVE_MESSAGES_MAX = 4096, /* that one wake sends at a door */
    KLK_SERVE_HELD_MAX = 24        /* answers that go together */
};

/* What was left to the caller. What the poll's items show besides is the caller's, too, and what
 * waits to be sent. */
enum klk_served {
    KLK_SERVED_ALL,      /* nothing: the time is over, or something else is ready */
    KLK_SERVED_REQUESTS, /* the clients' arena, from position on */
    KLK_SERVED_ANSWERS,  /* the workers' arena, from position on */
    KLK_SERVED_CLIENTS,  /* some messages to clients could not be sent; all were tried */
    KLK_SERVED_WORKERS   /* the same of messages to workers */
};

/* A ROUTER, and what it takes in and sends. */
struct klk_door {
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
    struct klk_poll *poll; /* both doors are in it, and what else the caller waits for */
    struct klk_door clients;
    struct klk_door workers;
    int64_t held_ms;   /* since when answers are held; 0: none are */
    int64_t woke_ms;   /* the last wake */
    int32_t served;    /* out: enum klk_served */
    uint32_t position; /* out */
};

/* Waits as klk_poll_wait() does. While only the doors are ready it does a wake's work: takes in
 * what has come, answers first, dispatches, and sends; then it waits again. It ends when something
 * else is ready, when a message is the caller's, when anything needs more room or could not be
 * sent, and after timeout_ms or when the oldest request expires.
 *
 * Answers of services for which still more requests wait are held for a millisecond, or until they
 * are KLK_SERVE_HELD_MAX: a message alone costs its way through libzmq's thread and a TCP segment,
 * and who waits in a queue for its turn misses nothing. Workers get their requests at once.
 *
 * Returns KLK_OK with served, KLK_EINVAL when a door is not in poll, or KLK_EOS. */
int klk_serve_wait(struct klk_serve *serve, int64_t timeout_ms);

#endif
