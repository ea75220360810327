/* Beacons of ZRE, taken in by the batch: a part of api.h. */
#ifndef KLK_BEACONS_H
#define KLK_BEACONS_H
#include "api.h"

enum klk_beacons_limits {
    KLK_BEACON_BYTES = 22,      /* of a datagram: `ZRE`, 01, UUID, port */
    KLK_BEACONS_LOOKED_MAX = 4096, /* datagrams looked at in one call, whatever they are */
    KLK_BEACON_SOURCES = 64        /* buckets of sources, which they fall into by chance */
};

/* How much may still come. */
struct klk_bucket {
    int64_t left_micros; /* millionths of a beacon */
    int64_t as_of_ms;
};

/* One that is valid. */
struct klk_beacon {
    uint8_t source[16]; /* the address that it came from; IPv4 as ::ffff:a.b.c.d */
    uint8_t uuid[16];
    uint32_t port;      /* of its mailbox; 0: a goodbye */
};

/* What a socket's beacons are held against. */
struct klk_beacons {
    uint64_t malformed;  /* counts: datagrams that are no beacon */
    uint64_t flooded;    /* valid ones over the rate */
    struct klk_bucket all;
    struct klk_bucket sources[KLK_BEACON_SOURCES]; /* one that floods leaves room for others */
    uint64_t seed;       /* which source falls where: nobody shall know */
    uint32_t burst;      /* the size of a bucket, and what flows into it: of all ... */
    uint32_t per_s;
    uint32_t source_burst; /* ... and of a source */
    uint32_t source_per_s;
};

/* Takes in datagrams without blocking, until nothing waits, `count_max` are taken or
 * KLK_BEACONS_LOOKED_MAX were looked at. What is not a beacon, or begins its UUID with 00, is
 * counted and thrown away; so is what comes faster than the buckets allow, of its
 * source and of all.
 *
 *   out      room for count_max
 *   more     out: 1 when something may still wait
 *
 * Returns how many were taken, or KLK_EOS with errno. */
int klk_beacons_take(struct klk_beacons *beacons, int fd, int64_t now_ms, struct klk_beacon *out,
                     uint32_t count_max, int32_t *more);

#endif
