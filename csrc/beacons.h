/* Beacons of ZRE, taken in by the batch: a part of api.h. */
#ifndef KLK_BEACONS_H
#define KLK_BEACONS_H
#include "api.h"

enum klk_beacons_limits {
    KLK_BEACON_BYTES = 22,      /* of a datagram: `ZRE`, 01, UUID, port */
    KLK_BEACONS_LOOKED_MAX = 4096 /* datagrams looked at in one call, whatever they are */
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
    int64_t left_micros; /* the bucket: millionths of a beacon that may still come */
    int64_t as_of_ms;
    uint32_t burst;      /* the bucket's size, and what flows into it */
    uint32_t per_s;
};

/* Takes in datagrams without blocking, until nothing waits, `count_max` are taken or
 * KLK_BEACONS_LOOKED_MAX were looked at. What is not a beacon, or begins its UUID with 00, is
 * counted and thrown away; so is what comes faster than the bucket allows.
 *
 *   out      room for count_max
 *   more     out: 1 when something may still wait
 *
 * Returns how many were taken, or KLK_EOS with errno. */
int klk_beacons_take(struct klk_beacons *beacons, int fd, int64_t now_ms, struct klk_beacon *out,
                     uint32_t count_max, int32_t *more);

#endif
