/* Reads of keys that a worker answers together: a part of api.h. */
#ifndef KLK_GETS_H
#define KLK_GETS_H
#include "api.h"

/* The reads of an arena of a table worker, and how far their answers are. */
struct klk_gets {
    uint32_t table;       /* out: of all of them */
    uint32_t keys;        /* out: in all */
    uint32_t number;      /* of the worker */
    uint32_t epoch;       /* of the worker */
    uint64_t ticket;      /* in, out: of the last request */
    uint32_t position;    /* in, out: its position within the ticket */
    uint32_t message;     /* answers: the next message, 0 at first, */
    uint32_t key;         /* the next key, */
    uint32_t spare;
    uint64_t byte;        /* and the first byte of its value */
};

/* Looks whether all messages of an arena are reads of keys of one table that need not wait:
 * [u8 0, u8 envelope, u16 client, u32 epoch, u64 index, u64 ticket][routing id][request frames ..].
 *
 *   applied     the index that must be applied is this one at most
 *   requests    out: one a message
 *   counts      out: keys of each message
 *   places      out: position and size of each key in the arena's bytes
 *   keys_max    room for so many keys
 *
 * Returns 1; 0: some are not, or there are more keys. */
int klk_gets_read(const struct klk_messages *arena, uint64_t applied, struct klk_gets *gets,
                  struct klk_request *requests, uint32_t *counts, uint32_t *places,
                  uint32_t keys_max);

/* Adds [u16 number, u16 0, u32 epoch, u32 position, u64 ticket][routing id]([empty])[31 01 10 00,
 * echo of our extension][value ..] for each of these requests; packed ones get the values as a
 * column and a frame with 1 for each key that exists, else 0.
 *
 *   sizes    of each value; UINT32_MAX: there is no such key
 *   values   joined
 *
 * Returns KLK_OK, or KLK_EFULL: out must grow, go on afterwards. */
int klk_gets_answer(const struct klk_messages *arena, const struct klk_request *requests,
                    const uint32_t *counts, const uint32_t *sizes, const uint8_t *values,
                    struct klk_gets *gets, struct klk_messages *out);

#endif
