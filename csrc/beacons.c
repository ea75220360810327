/* Beacons of ZRE: a flood of them, or of junk, costs a system call each and nothing more. */
#define _GNU_SOURCE
#include "beacons.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

enum { MICROS = 1000000, MICROS_PER_MS = 1000 };

static const uint8_t HEADER[4] = {'Z', 'R', 'E', 1};

/* One more: is it within the rate? */
static int beacon_allowed(struct klk_beacons *beacons) {
    if (beacons->left_micros < MICROS) return 0;
    beacons->left_micros -= MICROS;
    return 1;
}

static void bucket_fill(struct klk_beacons *beacons, int64_t now_ms) {
    int64_t most = (int64_t)beacons->burst * MICROS, passed = now_ms - beacons->as_of_ms;
    beacons->as_of_ms = now_ms;
    if (passed <= 0) return;
    if (passed > most / MICROS_PER_MS / (beacons->per_s ? beacons->per_s : 1)) {
        beacons->left_micros = beacons->per_s ? most : beacons->left_micros;
        return;
    }
    beacons->left_micros += passed * beacons->per_s * MICROS_PER_MS;
    if (beacons->left_micros > most) beacons->left_micros = most;
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

int klk_beacons_take(struct klk_beacons *beacons, int fd, int64_t now_ms, struct klk_beacon *out,
                     uint32_t count_max, int32_t *more) {
    uint32_t taken = 0;
    *more = 1;
    bucket_fill(beacons, now_ms);
    for (uint32_t looked = 0; looked < KLK_BEACONS_LOOKED_MAX && taken < count_max; looked++) {
        uint8_t data[KLK_BEACON_BYTES + 1]; /* One more shows what is too long. */
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
        if (size != KLK_BEACON_BYTES || memcmp(data, HEADER, sizeof HEADER) != 0 || !data[4] ||
            !source_write(&from, beacon->source)) {
            beacons->malformed++;
        } else if (!beacon_allowed(beacons)) {
            beacons->flooded++;
        } else {
            memcpy(beacon->uuid, data + sizeof HEADER, sizeof beacon->uuid);
            beacon->port = (uint32_t)data[20] << 8 | data[21];
            taken++;
        }
    }
    return (int)taken;
}
