/* A table server's wakes without Python, while only plain writes and reads arrive: a part of
 * api.h. */
#ifndef KLK_TABLE_WAIT_H
#define KLK_TABLE_WAIT_H
#include "cached.h"
#include "plain.h"
#include "rounds.h"
#include "serve.h"
#include "steady.h"

/* What the caller must handle after klk_table_wait(). */
enum klk_table_left {
    KLK_TABLE_LEFT_LEADER = 1,   /* the leader's arena, from leader_position on */
    KLK_TABLE_LEFT_CLIENTS = 2,  /* the clients' arena, of which nothing was taken */
    KLK_TABLE_LEFT_DENIED = 4,   /* refused messages of the clients' drain */
    KLK_TABLE_LEFT_UNSENT = 8,   /* unsent answers of the pack that ended last; all were tried */
    KLK_TABLE_LEFT_PACK = 16,    /* the leader's socket took no pack: `sent` is right */
    KLK_TABLE_LEFT_LATE = 32,    /* the first pack, or the asked reads, have no answer in time */
    KLK_TABLE_LEFT_DONE = 64,    /* the workers' arena, of which nothing was noted */
    KLK_TABLE_LEFT_FAILED = 128, /* unsent answers of the workers' arena; all were tried */
    KLK_TABLE_LEFT_READS = 256,  /* some workers' pipes took their last batch in part */
    KLK_TABLE_LEFT_CACHED = 512, /* unsent answers of `cached`; all were tried */
    KLK_TABLE_LEFT_INDEX = 1024  /* the arena of `index`, from index_position on */
};

/* A socket with its drain. */
struct klk_table_source {
    void *socket; /* NULL: there is none */
    struct klk_drain *drain;
    int32_t more; /* the drain has ended early */
    int32_t spare;
};

struct klk_table_wait {
    struct klk_plain *plain;
    struct klk_channel *channels;     /* of plain->workers workers */
    struct klk_row_reader *readers;   /* of their rows in shared memory */
    struct klk_messages *cached;      /* room for answers from these */
    void **workers;                   /* their PUSH sockets */
    uint32_t *positions;              /* scratch: room for plain->rows_max */
    const struct klk_lease *lease;    /* of the node's peer, or NULL: reads ask the leader */
    struct klk_rounds *rounds;
    struct klk_poll *poll;            /* has all sockets that receive, and the caller's others */
    struct klk_served_router clients; /* without `out` */
    struct klk_table_source leader;   /* a DEALER; NULL: no write is plain */
    struct klk_table_source index;    /* where reads ask the leader; NULL: they can't. It may be
                                       * the same socket */
    struct klk_table_source done;     /* a PULL: answers of the workers */
    struct klk_messages *out;         /* room for one pack */
    uint64_t bytes_max;               /* return when a channel has passed so many of answers */
    int32_t passes_done;              /* 0: all answers of the workers are left to the caller */
    int32_t left;                     /* out: enum klk_table_left */
    uint32_t leader_position;         /* out */
    uint32_t index_position;          /* out */
    uint32_t unsent_pack;             /* out: its place in packs */
};

/* Waits like klk_poll_wait(). While only its own sockets are ready, and only plain requests and
 * their answers arrive, it handles these and waits again. It returns when another source is ready,
 * when something is left to the caller, and after timeout_ms. Items of its own sockets are ready
 * only if the caller must receive there.
 *
 * Without a lease reads first ask the leader, all that arrive meanwhile together. Those whose rows
 * are in shared memory are answered here; others go to the workers in bundles. The first packs of
 * writes leave at once. While KLK_PLAIN_AHEAD of them are with the leader, later writes gather in
 * one.
 *
 * Returns KLK_OK with left, KLK_EINVAL when a socket is not in poll, or KLK_EOS. */
int klk_table_wait(struct klk_table_wait *wait, int64_t timeout_ms);

#endif
