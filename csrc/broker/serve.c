/* The inner loop of a broker: poll, drain, match and send, without a return to Python. */
#define _GNU_SOURCE
#include "serve.h"

#include <time.h>

#include "budget.h"
#include "exchange_state.h"

typedef int (*receive_batch)(struct klk_exchange *, const struct klk_messages *, uint32_t *,
                             int64_t, struct klk_messages *, struct klk_messages *, int32_t *);

enum { LEFT = 1 }; /* The caller must handle something. */
enum { HELD_MS = 1 };

static int64_t monotonic_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static struct klk_poll_item *item_of(const struct klk_serve *serve,
                                     const struct klk_served_router *router) {
    for (uint32_t i = 0; i < serve->poll->count; i++)
        if (serve->poll->items[i].socket == router->socket) return &serve->poll->items[i];
    return NULL;
}

/* Whether a source other than the two ROUTERs is ready. */
static int others_ready(const struct klk_poll *poll, const struct klk_poll_item *clients,
                        const struct klk_poll_item *workers) {
    for (uint32_t i = 0; i < poll->count; i++) {
        const struct klk_poll_item *item = &poll->items[i];
        int expected = item == clients || item == workers ? KLK_POLL_IN : 0;
        if (item->ready & ~expected) return 1;
    }
    return 0;
}

/* Receives from a ROUTER. An item that stays ready tells the caller to continue there. Returns
 * KLK_OK, LEFT when the caller must handle messages from serve->position on, or KLK_EOS. */
static int router_receive(struct klk_serve *serve, struct klk_served_router *router,
                          struct klk_poll_item *item, receive_batch receive, int64_t now_ms) {
    if (!item->ready && !router->more) return KLK_OK;
    uint64_t dropped = router->drain->dropped;
    int result = klk_drain_receive(router->drain, router->socket, 1);
    if (result < 0 && result != KLK_ESPACE) return result;
    router->more = result == KLK_MORE;
    /* A message that needs more room is read by the caller, which also counts dropped ones. */
    item->ready = result == KLK_ESPACE || router->drain->dropped != dropped ? KLK_POLL_IN : 0;
    serve->position = 0;
    int32_t stop;
    result = receive(serve->exchange, router->drain->arena, &serve->position, now_ms,
                     serve->clients.out, serve->workers.out, &stop);
    int has_denied = router->drain->denied && router->drain->denied->messages;
    return result == KLK_OK && !has_denied ? KLK_OK : LEFT;
}

/* Sends a ROUTER's messages. Returns KLK_OK, LEFT when some were not sent, or KLK_EOS. */
static int router_send(struct klk_served_router *router, struct klk_poll_item *item) {
    uint32_t position = 0;
    if (!router->out->messages) return KLK_OK;
    item->check = 1; /* Sending consumes the event that the descriptor would have shown. */
    int result = klk_budget_send(router->budget, router->socket, router->out, 0, router->bytes_max,
                                 &position, router->unsent, &router->unsents);
    if (result != KLK_OK) return result;
    if (router->unsents) return LEFT;
    router->out->frames = router->out->messages = 0;
    return KLK_OK;
}

/* Whether answers are held for the next wake: when wakes follow fast, and all answers are of
 * services with more waiting requests. */
static int holds(struct klk_serve *serve, int64_t now_ms) {
    uint32_t count = serve->clients.out->messages, patient = serve->exchange->patient;
    int is_fast = now_ms - serve->woke_ms <= HELD_MS;
    serve->woke_ms = now_ms;
    if (count && !serve->held_ms) serve->held_ms = now_ms;
    if (count && count == patient && count < KLK_SERVE_HELD_MAX && is_fast &&
        now_ms - serve->held_ms < HELD_MS)
        return 1;
    serve->held_ms = 0;
    serve->exchange->patient = 0;
    return 0;
}

/* Whether the next wake sends what this one has to send, because more may have arrived. */
static int gathers(struct klk_serve *serve, int has_input) {
    uint32_t count = serve->clients.out->messages + serve->workers.out->messages;
    if (has_input && count > 1 && count < KLK_SERVE_GATHERED_MAX &&
        serve->gathers < KLK_SERVE_GATHERS_MAX)
        return ++serve->gathers != 0;
    serve->gathers = 0;
    return 0;
}

static int is_too_much(const struct klk_serve *serve) {
    return serve->clients.out->messages > KLK_SERVE_MESSAGES_MAX ||
           serve->workers.out->messages > KLK_SERVE_MESSAGES_MAX;
}

/* One wake. Returns KLK_OK, LEFT with serve->served, or KLK_EOS. */
static int wake(struct klk_serve *serve, struct klk_poll_item *clients,
                struct klk_poll_item *workers, int64_t now_ms) {
    int has_input = clients->ready || workers->ready;
    /* Answers first, because they make room for requests. */
    serve->served = KLK_SERVED_ANSWERS;
    int result = router_receive(serve, &serve->workers, workers, klk_exchange_receive_answers,
                                now_ms);
    if (result != KLK_OK) return result;
    serve->served = KLK_SERVED_REQUESTS;
    result = router_receive(serve, &serve->clients, clients, klk_exchange_receive_requests, now_ms);
    if (result != KLK_OK) return result;
    serve->served = KLK_SERVED_ALL;
    result = klk_exchange_dispatch(serve->exchange, now_ms, serve->clients.out, serve->workers.out);
    if (result != KLK_OK || is_too_much(serve)) return LEFT; /* The caller can make more room. */
    if (gathers(serve, has_input)) return KLK_OK;
    serve->served = KLK_SERVED_WORKERS;
    result = router_send(&serve->workers, workers);
    if (result != KLK_OK) return result;
    serve->served = KLK_SERVED_CLIENTS;
    result = holds(serve, now_ms) ? KLK_OK : router_send(&serve->clients, clients);
    if (result != KLK_OK) return result;
    serve->served = KLK_SERVED_ALL;
    return KLK_OK;
}

/* Reports what a drain has left as if it had just arrived. */
static void router_leave(struct klk_served_router *router, struct klk_poll_item *item) {
    if (router->more) item->ready = KLK_POLL_IN;
    router->more = 0;
}

int klk_serve_wait(struct klk_serve *serve, int64_t timeout_ms) {
    struct klk_poll_item *clients = item_of(serve, &serve->clients);
    struct klk_poll_item *workers = item_of(serve, &serve->workers);
    if (!clients || !workers) return KLK_EINVAL;
    int64_t now_ms = monotonic_ms(), end_ms = now_ms + timeout_ms;
    serve->served = KLK_SERVED_ALL;
    serve->held_ms = serve->gathers = 0; /* The caller has sent them. */
    serve->exchange->patient = 0;
    for (;;) {
        int more = serve->clients.more || serve->workers.more;
        int64_t left_ms = more || serve->gathers || now_ms >= end_ms ? 0 : end_ms - now_ms;
        if (serve->held_ms && left_ms > HELD_MS) left_ms = HELD_MS;
        int found = klk_poll_wait(serve->poll, left_ms);
        if (found < 0) return found;
        if (others_ready(serve->poll, clients, workers)) break;
        if (!found && !more && !serve->held_ms && !serve->gathers) break;
        now_ms = monotonic_ms();
        int result = wake(serve, clients, workers, now_ms);
        if (result < 0) return result;
        if (result == LEFT || clients->ready || workers->ready) break;
        int64_t expires_ms = klk_exchange_expires_ms(serve->exchange);
        if (expires_ms >= 0 && expires_ms < end_ms) end_ms = expires_ms;
        if (now_ms >= end_ms) break;
    }
    router_leave(&serve->clients, clients);
    router_leave(&serve->workers, workers);
    return KLK_OK;
}
