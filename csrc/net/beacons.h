/* Beacons of ZRE, received by the batch: a part of api.h. */
#ifndef KLK_BEACONS_H
#define KLK_BEACONS_H
#include "api.h"

enum klk_beacons_limits {
    KLK_BEACON_BYTES = 22,      /* of a datagram: `ZRE`, 01, UUID, port */
    KLK_BEACON_KEYED_BYTES = 54,   /* `ZRE`, 03, UUID, port, public key */
    KLK_BEACONS_LOOKED_MAX = 4096, /* datagrams received in one call, valid or not */
    KLK_BEACON_SOURCES = 64        /* token buckets; a hash selects a source's */
};

/* A token bucket. */
struct klk_bucket {
    int64_t left_micros; /* millionths of a beacon */
    int64_t as_of_ms;
};

/* A valid beacon. */
struct klk_beacon {
    uint8_t source[16]; /* the sender's address; IPv4 as ::ffff:a.b.c.d */
    uint8_t uuid[16];
    uint8_t key[32];    /* CURVE public key; zeros without one */
    uint32_t port;      /* of its mailbox; 0: a goodbye */
};

/* The limits and counts of a socket. */
struct klk_beacons {
    uint64_t malformed;  /* count of datagrams that are no beacon */
    uint64_t flooded;    /* count of valid beacons over the rate */
    struct klk_bucket all;
    /* so that a flooding source leaves room for others */
    struct klk_bucket sources[KLK_BEACON_SOURCES];
    uint64_t seed;       /* secret, so that no source can choose its bucket */
    uint32_t burst;      /* the size of a bucket, and its rate: of all sources ... */
    uint32_t per_s;
    uint32_t source_burst; /* ... and of one */
    uint32_t source_per_s;
};

/* Receives datagrams without blocking, until none waits, `count_max` are valid or
 * KLK_BEACONS_LOOKED_MAX were received. It counts and drops datagrams that are no beacon, whose
 * UUID begins with 00, or that exceed the rate of their source or of all.
 *
 *   out      room for count_max
 *   more     out: 1 when more may wait
 *
 * Returns the number of valid beacons, or KLK_EOS with errno. */
int klk_beacons_receive(struct klk_beacons *beacons, int fd, int64_t now_ms, struct klk_beacon *out,
                     uint32_t count_max, int32_t *more);

#endif
