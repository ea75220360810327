/* How many things of one kind each client has: a part of api.h. */
#ifndef KLK_SHARES_H
#define KLK_SHARES_H
#include "api.h"

enum klk_shares_limit { KLK_SHARES_CLIENTS = 16384, KLK_SHARES_FEW = 4, KLK_LOAD_SHARE = 3 };

/* A client is the slot of its key. Without keys, and at foreign_slot, it is its routing id. Clients
 * may share a number: slots of 16384 apart, and routing ids whose hashes do. */
struct klk_shares {
    uint64_t seed;            /* secret, so that routing ids can't be chosen for one number */
    uint32_t foreign_slot;    /* of all that have no key; UINT32_MAX: none */
    uint32_t client_max;
    uint32_t crowded;         /* above so many in all, a client may have few */
    uint32_t all_max;
    uint32_t count;           /* of all */
    uint64_t refused;
    uint32_t counts[16384];
};

/* Counts some messages of an arena that wait from now on, and leaves out those for which there is
 * no room.
 *
 *   numbers   in: the messages; out: those that wait
 *   clients   out: the number of each one's client, for klk_shares_release()
 *   count     in, out: the size of numbers */
void klk_shares_take(struct klk_shares *shares, const struct klk_messages *arena,
                     uint32_t *numbers, uint32_t *clients, uint32_t *count);

/* A message of a client no longer waits. */
void klk_shares_release(struct klk_shares *shares, uint32_t client);

struct klk_load {
    uint64_t bytes;
    uint64_t count;
};

/* What each client has in flight: at most KLK_LOAD_SHARE times what it leaves free for others. */
struct klk_loads {
    uint64_t seed;            /* as of klk_shares, and foreign_slot */
    uint32_t foreign_slot;
    struct klk_load of[16384];
};

#endif
