/* Addresses that connect too often, whose SYNs the kernel then drops: on sockets of loopback, which
 * has as many addresses of IPv4 as a test needs. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "exact.h"
#include "refused.h"

enum { NOW_MS = 5000, WAIT_MS = 300 };

static socklen_t address_of(union klk_peer *out, const char *text, uint16_t port) {
    memset(out, 0, sizeof *out);
    if (strchr(text, ':')) {
        out->v6.sin6_family = AF_INET6;
        out->v6.sin6_port = htons(port);
        REQUIRE(inet_pton(AF_INET6, text, &out->v6.sin6_addr) == 1);
        return sizeof out->v6;
    }
    out->v4.sin_family = AF_INET;
    out->v4.sin_port = htons(port);
    REQUIRE(inet_pton(AF_INET, text, &out->v4.sin_addr) == 1);
    return sizeof out->v4;
}

/* A listener at an address, or -1, and its port. */
static int listen_at(const char *text, uint16_t *port) {
    union klk_peer own;
    socklen_t size = address_of(&own, text, 0);
    int fd = socket(own.any.sa_family, SOCK_STREAM, 0), no = 0;
    if (fd < 0) return -1;
    if (own.any.sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    if (bind(fd, &own.any, size) != 0 || listen(fd, 64) != 0) return close(fd), -1;
    REQUIRE(getsockname(fd, &own.any, &size) == 0);
    *port = ntohs(own.any.sa_family == AF_INET6 ? own.v6.sin6_port : own.v4.sin_port);
    return fd;
}

/* A connection from an address; -1: nothing has answered. */
static int connect_from(const char *source, const char *target, uint16_t port) {
    union klk_peer own, other;
    socklen_t size = address_of(&own, source, 0);
    int fd = socket(own.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK, 0), error = 0;
    REQUIRE(fd >= 0 && bind(fd, &own.any, size) == 0);
    size = address_of(&other, target, port);
    if (connect(fd, &other.any, size) == 0) return fd;
    REQUIRE(errno == EINPROGRESS);
    struct pollfd made = {fd, POLLOUT, 0};
    if (poll(&made, 1, WAIT_MS) == 0) return close(fd), -1;
    size = sizeof error;
    REQUIRE(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0);
    return fd;
}

static int may_connect(const char *source, const char *target, uint16_t port) {
    int fd = connect_from(source, target, port);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

/* The accepted end of a connection from an address. */
static int accepted_from(int listener, const char *source, const char *target, uint16_t port) {
    union klk_peer own, other;
    int fd = connect_from(source, target, port), found = -1;
    REQUIRE(fd >= 0);
    socklen_t size = sizeof own;
    REQUIRE(getsockname(fd, &own.any, &size) == 0);
    while (found < 0) { /* Others came before it. */
        size = sizeof other;
        found = accept(listener, &other.any, &size);
        REQUIRE(found >= 0);
        in_port_t wanted = own.any.sa_family == AF_INET ? own.v4.sin_port : own.v6.sin6_port;
        in_port_t got = other.any.sa_family == AF_INET ? other.v4.sin_port : other.v6.sin6_port;
        if (got != wanted) close(found), found = -1;
    }
    return found; /* The other end stays open until the program ends. */
}

static struct klk_connections *made_for(int listener) {
    struct klk_connections *c = calloc(1, sizeof *c);
    REQUIRE(c != NULL);
    c->endpoints[3].monitor = c;
    c->endpoints[3].listeners[0] = listener;
    c->endpoints[3].bound = 1;
    return c;
}

static void exceed(struct klk_connections *c, int fd, int count, int64_t now_ms) {
    const struct klk_address address = klk_address_of(fd);
    for (int i = 0; i < count; i++) klk_refused_count(c, &address, now_ms);
}

static void an_address_is_refused_for_a_while(void) {
    uint16_t port;
    int listener = listen_at("127.0.0.1", &port);
    REQUIRE(listener >= 0);
    struct klk_connections *c = made_for(listener);
    int one = accepted_from(listener, "127.0.0.2", "127.0.0.1", port);
    exceed(c, one, KLK_REFUSED_EXCESS - 1, NOW_MS);
    exceed(c, one, KLK_REFUSED_EXCESS - 1, NOW_MS + KLK_REFUSED_MS); /* Not within the time. */
    REQUIRE(c->refused == 0 && may_connect("127.0.0.2", "127.0.0.1", port));
    int64_t now_ms = NOW_MS + KLK_REFUSED_MS + 1;
    exceed(c, one, 1, now_ms);
    REQUIRE(c->refused == 1 && !may_connect("127.0.0.2", "127.0.0.1", port));
    REQUIRE(may_connect("127.0.0.3", "127.0.0.1", port));
    exceed(c, one, 1000, now_ms); /* Those that came before. */
    REQUIRE(c->refused == 1);
    klk_refused_end(c, now_ms + KLK_REFUSED_MS - 1);
    REQUIRE(!may_connect("127.0.0.2", "127.0.0.1", port));
    klk_refused_end(c, now_ms + KLK_REFUSED_MS);
    REQUIRE(may_connect("127.0.0.2", "127.0.0.1", port));
    exceed(c, one, KLK_REFUSED_EXCESS - 1, now_ms + KLK_REFUSED_MS);
    REQUIRE(c->refused == 1);
    free(c);
    close(listener);
}

static void an_accepted_connection_stays(void) {
    char byte = 0;
    uint16_t port;
    int listener = listen_at("127.0.0.1", &port);
    struct klk_connections *c = made_for(listener);
    int client = connect_from("127.0.0.2", "127.0.0.1", port);
    int one = accept(listener, NULL, NULL);
    REQUIRE(client >= 0 && one >= 0);
    exceed(c, one, KLK_REFUSED_EXCESS, NOW_MS);
    REQUIRE(c->refused == 1 && write(client, "x", 1) == 1);
    struct pollfd arrived = {one, POLLIN, 0};
    REQUIRE(poll(&arrived, 1, 10000) == 1 && read(one, &byte, 1) == 1 && byte == 'x');
    free(c);
    close(listener);
}

/* With all places in use others are not refused; one that is not refused gives up its place. */
static void places_are_bounded(void) {
    char text[32];
    uint16_t port;
    int listener = listen_at("127.0.0.1", &port);
    struct klk_connections *c = made_for(listener);
    for (int i = 1; i <= 2 * KLK_REFUSED_MAX; i++) {
        (void)snprintf(text, sizeof text, "127.0.1.%d", i);
        int one = accepted_from(listener, text, "127.0.0.1", port);
        exceed(c, one, 1, NOW_MS); /* Each once, as of many that connect at times. */
        close(one);
    }
    for (int i = 1; i <= KLK_REFUSED_MAX + 1; i++) {
        (void)snprintf(text, sizeof text, "127.0.2.%d", i);
        int one = accepted_from(listener, text, "127.0.0.1", port);
        exceed(c, one, KLK_REFUSED_EXCESS, NOW_MS + i);
        close(one);
    }
    REQUIRE(c->refused == KLK_REFUSED_MAX);
    REQUIRE(!may_connect("127.0.2.1", "127.0.0.1", port));
    REQUIRE(!may_connect("127.0.2.16", "127.0.0.1", port));
    REQUIRE(may_connect("127.0.2.17", "127.0.0.1", port));
    free(c);
    close(listener);
}

/* A listener of IPv6 has clients of IPv4, too. */
static void both_versions_are_told_apart(void) {
    uint16_t port;
    int listener = listen_at("::", &port);
    if (listener < 0) {
        printf("no IPv6 here\n");
        return;
    }
    struct klk_connections *c = made_for(listener);
    int four = accepted_from(listener, "127.0.0.2", "127.0.0.1", port);
    exceed(c, four, KLK_REFUSED_EXCESS, NOW_MS);
    REQUIRE(!may_connect("127.0.0.2", "127.0.0.1", port));
    REQUIRE(may_connect("127.0.0.3", "127.0.0.1", port) && may_connect("::1", "::1", port));
    int six = accepted_from(listener, "::1", "::1", port);
    exceed(c, six, KLK_REFUSED_EXCESS, NOW_MS + 1);
    REQUIRE(!may_connect("::1", "::1", port) && !may_connect("127.0.0.2", "127.0.0.1", port));
    klk_refused_end(c, NOW_MS + KLK_REFUSED_MS);
    REQUIRE(!may_connect("::1", "::1", port) && may_connect("127.0.0.2", "127.0.0.1", port));
    klk_refused_end(c, NOW_MS + KLK_REFUSED_MS + 1);
    REQUIRE(may_connect("::1", "::1", port));
    free(c);
    close(listener);
}

int main(void) {
    an_address_is_refused_for_a_while();
    an_accepted_connection_stays();
    places_are_bounded();
    both_versions_are_told_apart();
    return 0;
}
