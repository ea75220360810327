/* A limit in bytes for the unread messages of a ROUTER's clients: a part of api.h. */
#ifndef KLK_BUDGET_H
#define KLK_BUDGET_H
#include "api.h"

enum klk_budget_limits {
    KLK_BUDGET_SLOTS = 4096, /* clients with the same hash of the routing id share a budget */
    KLK_BUDGET_BYTES_MIN = 1024     /* smaller ones are not counted; the HWM bounds them */
};

struct klk_budget;

/* A new budget, or NULL when there is no memory; the seed is secret, so that clients can't choose
 * their slot. in_order: after an unsent message, later ones of the same call to the same client are
 * not sent either, as if there were no room. */
struct klk_budget *klk_budget_open(uint64_t seed, int in_order);

/* Releases the budget; it is freed after the last message that it counts. */
void klk_budget_close(struct klk_budget *budget);

/* Bytes of messages to this client that libzmq holds. */
uint64_t klk_budget_queued(const struct klk_budget *budget, const uint8_t *routing_id, size_t size);

/* Why a message was not sent. */
enum klk_unsent {
    KLK_UNSENT_OVER, /* its client would have more than bytes_max unread */
    KLK_UNSENT_FULL, /* the socket has no room for its client */
    KLK_UNSENT_GONE, /* its client is not connected, or the message ends before a routing id */
    KLK_UNSENT_REASONS
};

/* Like klk_send with KLK_DROP, for messages whose first frame behind skip is a routing id. A
 * message that brings its client's unread bytes above bytes_max is not sent, unless nothing else is
 * unread. A bundle counts as one message.
 *
 *   unsent     room for 2 numbers for each message: positions of unsent messages, and why
 *   unsents    out: their number
 *
 * Returns as klk_send. */
int klk_budget_send(struct klk_budget *budget, void *socket, const struct klk_messages *out,
                    uint32_t skip, uint64_t bytes_max, uint32_t *position, uint32_t *unsent,
                    uint32_t *unsents);

#endif
