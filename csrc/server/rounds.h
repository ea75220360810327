/* Reads of a table server that ask the leader first, how far they must see the log: a part of
 * api.h. All that arrive while a question is with the leader share the next one. */
#ifndef KLK_ROUNDS_H
#define KLK_ROUNDS_H
#include "api.h"

enum klk_rounds_limit {
    KLK_ROUNDS_READS_MAX = 1024, /* of a round */
    KLK_ROUNDS_ID = 9            /* bytes of a question's id: no other maker's has so many */
};

struct klk_rounds {
    /* What the caller sets. */
    const uint8_t *ident; /* of the cluster */
    uint32_t ident_size;
    uint8_t maker[5];     /* begins the ids of questions */
    uint8_t spare[3];
    struct klk_messages *asked, *next; /* the reads; room for KLK_ROUNDS_READS_MAX */
    uint32_t *asked_slots, *next_slots; /* their senders' keys: the same room */
    struct klk_request *rows;           /* room for as many */
    /* The rest begins with zeros. */
    uint32_t number;      /* of the last question */
    int32_t is_asked;     /* `asked` waits for its answer */
    int64_t asked_us, next_us; /* when the first of them has arrived */
};

enum klk_rounds_result { KLK_ROUNDS_OTHER = 1, KLK_ROUNDS_ANSWERED = 2 };

/* Copies the reads among these requests of an arena. Returns 1; 0: there is no room. */
int klk_rounds_add(struct klk_rounds *rounds, const struct klk_messages *arena,
                   const struct klk_request *rows, int64_t now_us);

/* Adds a question for the reads that wait, if none is with the leader:
 * [id][6b 52][ident][01]. Returns 1; 0: there are none; KLK_EFULL: out must grow. */
int klk_rounds_ask(struct klk_rounds *rounds, struct klk_messages *out);

/* The last question did not leave. */
void klk_rounds_unask(struct klk_rounds *rounds);

/* Handles a message of the leader.
 *
 *   index   out: what the asked reads must see
 *
 * Returns KLK_ROUNDS_ANSWERED: `rows` are those of `asked`, serve them and call klk_rounds_end();
 * KLK_OK: the answer comes later; KLK_ROUNDS_OTHER: the caller handles it. */
int klk_rounds_answer(struct klk_rounds *rounds, const struct klk_messages *arena,
                      uint32_t message, uint64_t *index);

/* The asked reads are served. */
void klk_rounds_end(struct klk_rounds *rounds);

/* When the first of the reads has arrived; INT64_MAX: there is none. */
int64_t klk_rounds_since_us(const struct klk_rounds *rounds);

#endif
