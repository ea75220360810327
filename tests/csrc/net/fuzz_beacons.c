/* Datagrams of ZRE: any number of them, each with a size of u8. */
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "beacons.h"
#include "fuzz.h"

enum { DATAGRAMS = 8 };

size_t fuzz_seed(uint32_t number, uint8_t *out) {
    uint8_t beacon[KLK_BEACON_KEYED_BYTES] = {'Z', 'R', 'E', number ? 3 : 1};
    if (number > 1) return 0;
    memset(beacon + 4, 7, sizeof beacon - 4);
    uint32_t size = number ? KLK_BEACON_KEYED_BYTES : KLK_BEACON_BYTES;
    uint8_t *at = fuzz_put(out, beacon, size, 1);
    return (size_t)(fuzz_put(at, beacon, size - 1, 1) - out);
}

/* A socket that sends to itself. */
static int open_socket(void) {
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof own;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    REQUIRE(fd >= 0 && bind(fd, (struct sockaddr *)&own, size) == 0);
    REQUIRE(getsockname(fd, (struct sockaddr *)&own, &size) == 0);
    REQUIRE(connect(fd, (struct sockaddr *)&own, size) == 0);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int fd = -1;
    if (fd < 0) fd = open_socket();
    struct fuzz_input in = {data, size};
    struct klk_beacons beacons = {.burst = 6, .per_s = 1, .source_burst = 5, .source_per_s = 1};
    struct klk_beacon *out = exact(2 * sizeof *out);
    const uint8_t *datagram;
    uint32_t datagram_size, sent = 0, taken = 0;
    int last, found;
    int32_t more;
    while (sent < DATAGRAMS && fuzz_frame(&in, &datagram, &datagram_size, &last)) {
        if (!datagram_size) continue; /* Nothing is readable of it. */
        REQUIRE(send(fd, datagram, datagram_size, 0) == (ssize_t)datagram_size);
        sent++;
    }
    do {
        found = klk_beacons_receive(&beacons, fd, 1000, out, 2, &more);
        REQUIRE(found >= 0 && found <= 2);
        taken += (uint32_t)found;
        for (int i = 0; i < found; i++) REQUIRE(out[i].uuid[0] && out[i].port <= 0xffff);
    } while (more);
    REQUIRE(taken + beacons.malformed + beacons.flooded == sent);
    free(out);
    return 0;
}
