/* Beacons of ZRE. A flood of beacons or junk costs one system call for each datagram. */
#define _GNU_SOURCE
#include "beacons.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

enum { MICROS = 1000000, MICROS_PER_MS = 1000 };

enum { HEADER_BYTES = 4, PLAIN = 1, KEYED = 3 }; /* The fourth octet is the beacon's version. */

static const uint8_t NAME[3] = {'Z', 'R', 'E'};

static void bucket_fill(struct klk_bucket *bucket, int64_t now_ms, uint32_t burst, uint32_t per_s) {
    int64_t most = (int64_t)burst * MICROS, passed = now_ms - bucket->as_of_ms;
    bucket->as_of_ms = now_ms;
    if (passed <= 0) return;
    if (passed > most / MICROS_PER_MS / (per_s ? per_s : 1)) {
        bucket->left_micros = per_s ? most : bucket->left_micros;
        return;
    }
    bucket->left_micros += passed * per_s * MICROS_PER_MS;
    if (bucket->left_micros > most) bucket->left_micros = most;
}

static struct klk_bucket *bucket_of(struct klk_beacons *beacons, const uint8_t *source) {
    uint64_t halves[2], mixed = beacons->seed;
    memcpy(halves, source, sizeof halves);
    for (int half = 0; half < 2; half++) {
        mixed = (mixed ^ halves[half]) * UINT64_C(0x9e3779b97f4a7c15);
        mixed = (mixed ^ mixed >> 32) * UINT64_C(0xd6e8feb86659fd93);
    }
    return &beacons->sources[(mixed >> 32) % KLK_BEACON_SOURCES];
}

/* Takes a token; returns whether there was one. */
static int beacon_allowed(struct klk_beacons *beacons, const uint8_t *source, int64_t now_ms) {
    struct klk_bucket *own = bucket_of(beacons, source);
    bucket_fill(own, now_ms, beacons->source_burst, beacons->source_per_s);
    if (own->left_micros < MICROS || beacons->all.left_micros < MICROS) return 0;
    own->left_micros -= MICROS;
    beacons->all.left_micros -= MICROS;
    return 1;
}

static int source_write(const struct sockaddr_storage *from, uint8_t *out) {
    static const uint8_t MAPPED[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    if (from->ss_family == AF_INET) {
        memcpy(out, MAPPED, sizeof MAPPED);
        memcpy(out + sizeof MAPPED, &((const struct sockaddr_in *)from)->sin_addr, 4);
        return 1;
    }
    if (from->ss_family != AF_INET6) return 0;
    memcpy(out, &((const struct sockaddr_in6 *)from)->sin6_addr, 16);
    return 1;
}

static int beacon_well_formed(const uint8_t *data, ssize_t size) {
    if (size != KLK_BEACON_BYTES && size != KLK_BEACON_KEYED_BYTES) return 0;
    if (memcmp(data, NAME, sizeof NAME) != 0 || !data[HEADER_BYTES]) return 0;
    if (size == KLK_BEACON_BYTES) return data[3] == PLAIN;
    for (int at = KLK_BEACON_BYTES; at < KLK_BEACON_KEYED_BYTES; at++)
        if (data[at]) return data[3] == KEYED;
    return 0;
}

int klk_beacons_receive(struct klk_beacons *beacons, int fd, int64_t now_ms, struct klk_beacon *out,
                     uint32_t count_max, int32_t *more) {
    uint32_t taken = 0;
    *more = 1;
    bucket_fill(&beacons->all, now_ms, beacons->burst, beacons->per_s);
    for (uint32_t looked = 0; looked < KLK_BEACONS_LOOKED_MAX && taken < count_max; looked++) {
        /* The extra octet shows datagrams that are too long. */
        uint8_t data[KLK_BEACON_KEYED_BYTES + 1];
        struct sockaddr_storage from;
        socklen_t from_size = sizeof from;
        ssize_t size = recvfrom(fd, data, sizeof data, MSG_DONTWAIT, (struct sockaddr *)&from,
                                &from_size);
        if (size < 0) {
            if (errno == EINTR || errno == ECONNREFUSED) continue;
            *more = 0;
            if (errno == EAGAIN || errno == EWOULDBLOCK || taken) return (int)taken;
            return KLK_EOS;
        }
        struct klk_beacon *beacon = &out[taken];
        if (!beacon_well_formed(data, size) || !source_write(&from, beacon->source)) {
            beacons->malformed++;
        } else if (!beacon_allowed(beacons, beacon->source, now_ms)) {
            beacons->flooded++;
        } else {
            memcpy(beacon->uuid, data + HEADER_BYTES, sizeof beacon->uuid);
            beacon->port = (uint32_t)data[20] << 8 | data[21];
            memset(beacon->key, 0, sizeof beacon->key);
            if (size == KLK_BEACON_KEYED_BYTES)
                memcpy(beacon->key, data + KLK_BEACON_BYTES, sizeof beacon->key);
            taken++;
        }
    }
    return (int)taken;
}
