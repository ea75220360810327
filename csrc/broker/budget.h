/* What the clients of a ROUTER leave unread, bounded by bytes: a part of api.h. */
#ifndef KLK_BUDGET_H
#define KLK_BUDGET_H
#include "api.h"

enum klk_budget_limits {
    KLK_BUDGET_SLOTS = 4096,        /* clients whose routing ids fall into one share its budget */
    KLK_BUDGET_BYTES_MIN = 16384    /* smaller messages are not counted, the HWM bounds them */
};

struct klk_budget;

/* A new budget, or NULL when there is no memory; seed keeps others from finding ids of one slot.
 * in_order: what stands behind a message that was not sent, for the same client and in the same
 * call, is not sent either, as if there were no room. */
struct klk_budget *klk_budget_open(uint64_t seed, int in_order);

/* Its owner needs it no more. It lives on until the last message that it counts has left. */
void klk_budget_close(struct klk_budget *budget);

/* Bytes of messages to this client that libzmq holds. */
uint64_t klk_budget_queued(const struct klk_budget *budget, const uint8_t *routing_id, size_t size);

/* Why a message was not sent. */
enum klk_unsent {
    KLK_UNSENT_OVER, /* it would bring what its client leaves unread above bytes_max */
    KLK_UNSENT_FULL, /* the socket has no room for its client */
    KLK_UNSENT_GONE, /* its client is not there; it has nothing behind skip */
    KLK_UNSENT_REASONS
};

/* As klk_send with KLK_DROP, of messages whose first frame behind skip is a routing id. One that
 * would bring what its client leaves unread above bytes_max, where there is something already, is
 * not sent.
 *
 *   unsent     room for 2 numbers of each message: positions of those that were not sent, and why
 *   unsents    out: how many they are
 *
 * Returns as klk_send. */
int klk_budget_send(struct klk_budget *budget, void *socket, const struct klk_messages *out,
                    uint32_t skip, uint64_t bytes_max, uint32_t *position, uint32_t *unsent,
                    uint32_t *unsents);

#endif
