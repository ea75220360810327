/* ZMTP 3.0 by hand (loadgen_zmtp.h). */
#define _GNU_SOURCE
#include "loadgen_zmtp.h"
#include "loadgen.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    GREETING_BYTES = 64,
    MECHANISM_OFFSET = 12,
    FLAG_MORE = 1,
    FLAG_LONG = 2,
    FLAG_COMMAND = 4,
    RETRY_MS = 10,
    IN_BYTES = 1 << 16,
    FRAME_BYTES_MAX = 1 << 24 /* of a message that is received */
};

static const uint8_t BUNDLE[6] = "KLKM01"; /* docs/protocols/majordomo.md, "Bundles" */
/* The command READY of a DEALER: its name, then Socket-Type. */
static const uint8_t READY[] = "\4\34\5READY\13Socket-Type\0\0\0\6DEALER";

/* ---- connecting ---- */

static int connected(const struct addrinfo *address) {
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        load_die("socket");
    if (connect(fd, address->ai_addr, address->ai_addrlen) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Finds out who HOST:PORT is. */
static struct addrinfo *resolved(const char *url) {
    char host[256];
    const char *start = strncmp(url, "tcp://", 6) ? NULL : url + 6;
    const char *colon = start ? strrchr(start, ':') : NULL;
    if (!colon || (size_t)(colon - start) >= sizeof host)
        load_die("--urls: tcp://HOST:PORT");
    memcpy(host, start, (size_t)(colon - start));
    host[colon - start] = 0;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    if (getaddrinfo(host, colon + 1, &hints, &found))
        load_die(url);
    return found;
}

static void receive_all(int fd, uint8_t *data, size_t size) {
    while (size) {
        ssize_t got = recv(fd, data, size, 0);
        if (got <= 0)
            load_die("the other side has ended the handshake");
        data += got;
        size -= (size_t)got;
    }
}

/* What the other side says of itself is read, and not looked at: it would have ended this. */
static void shake_hands(struct load_zmtp *c, const char *url) {
    int fd = c->fd;
    uint8_t greeting[GREETING_BYTES] = {0xff, [8] = 1, [9] = 0x7f, [10] = 3, [12] = 'N',
                                        [13] = 'U',    [14] = 'L', [15] = 'L'};
    uint8_t head[2], rest[UINT8_MAX];
    c->has_curve = load_options.own_key != NULL;
    if (c->has_curve)
        memcpy(greeting + MECHANISM_OFFSET, "CURVE", 5);
    if (send(fd, greeting, sizeof greeting, MSG_NOSIGNAL) < 0)
        load_die("send");
    receive_all(fd, greeting, sizeof greeting);
    if (c->has_curve) {
        load_curve_open(&c->curve, fd, url);
        return;
    }
    if (send(fd, READY, sizeof READY - 1, MSG_NOSIGNAL) < 0)
        load_die("send");
    receive_all(fd, head, sizeof head);
    if (head[0] != FLAG_COMMAND)
        load_die("the other side does not speak ZMTP 3 with NULL");
    receive_all(fd, rest, head[1]);
}

void load_zmtp_open(struct load_zmtp *connection, const char *url) {
    const int one = 1;
    const struct timespec pause = {.tv_nsec = RETRY_MS * 1000000};
    struct addrinfo *address = resolved(url);
    uint64_t until = load_now_ns() + (uint64_t)(load_options.give_up_s * 1e9);
    while ((connection->fd = connected(address)) < 0) {
        if (load_now_ns() > until)
            load_die(url);
        nanosleep(&pause, NULL);
    }
    freeaddrinfo(address);
    setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    shake_hands(connection, url);
    if (fcntl(connection->fd, F_SETFL, O_NONBLOCK) < 0)
        load_die("fcntl");
}

void load_zmtp_close(struct load_zmtp *connection) {
    close(connection->fd);
    connection->in_from = connection->in_to = connection->out_from = connection->out_to = 0;
    connection->sealed_from = connection->sealed_to = 0;
    connection->bundle_size = connection->message_at = connection->opened.size = 0;
    connection->sends_bundles = false;
}

/* ---- sending ---- */

/* Room for so many bytes behind what a buffer holds, which moves to the front. */
static void make_room(uint8_t **data, size_t *from, size_t *to, size_t *size, size_t more) {
    if (*to + more <= *size)
        return;
    size_t used = *to - *from;
    if (used)
        memmove(*data, *data + *from, used);
    *from = 0;
    *to = used;
    if (used + more <= *size)
        return;
    *size = 2 * (used + more);
    *data = realloc(*data, *size);
    if (!*data)
        load_die("out of memory");
}

static uint8_t *write_head(uint8_t *at, uint8_t flags, size_t size) {
    if (size <= UINT8_MAX) {
        *at++ = flags;
        *at++ = (uint8_t)size;
        return at;
    }
    *at++ = flags | FLAG_LONG;
    for (int shift = 56; shift >= 0; shift -= 8)
        *at++ = (uint8_t)((uint64_t)size >> shift);
    return at;
}

static void put_frame(struct load_zmtp *c, const void *data, size_t size, bool more) {
    size_t sent = size + (c->has_curve ? LOAD_CURVE_MORE : 0);
    make_room(&c->out, &c->out_from, &c->out_to, &c->out_size, sent + 9);
    uint8_t *at = write_head(c->out + c->out_to, more && !c->has_curve ? FLAG_MORE : 0, sent);
    if (c->has_curve)
        load_curve_seal(&c->curve, at, data, size, more);
    else if (size)
        memcpy(at, data, size);
    c->out_to = (size_t)(at - c->out) + sent;
}

static void end_bundle(struct load_zmtp *c) {
    if (c->bundle_size)
        put_frame(c, c->bundle, c->bundle_size, false);
    c->bundle_size = 0;
}

/* Adds a frame to the bundle; a message that has no room begins the next one. */
static void bundle_frame(struct load_zmtp *c, const void *data, size_t size, bool more) {
    if (!c->bundle_size)
        memcpy(c->bundle, BUNDLE, c->bundle_size = sizeof BUNDLE);
    if (!c->message_at) {
        c->message_at = c->bundle_size;
        c->bundle[c->bundle_size++] = 0; /* Its number of frames. */
    }
    if (c->bundle_size + 2 + size > LOAD_BUNDLE_BYTES_MAX) {
        uint8_t part[LOAD_BUNDLE_BYTES_MAX];
        size_t held = c->bundle_size - c->message_at;
        if (c->message_at == sizeof BUNDLE)
            load_die("--bundles: --size is too large");
        memcpy(part, c->bundle + c->message_at, held);
        c->bundle_size = c->message_at;
        end_bundle(c);
        memcpy(c->bundle + sizeof BUNDLE, part, held);
        c->message_at = sizeof BUNDLE;
        c->bundle_size = sizeof BUNDLE + held;
        bundle_frame(c, data, size, more);
        return;
    }
    uint8_t *at = c->bundle + c->bundle_size;
    c->bundle[c->message_at]++;
    *at++ = (uint8_t)(size >> 8);
    *at++ = (uint8_t)size;
    if (size)
        memcpy(at, data, size);
    c->bundle_size += 2 + size;
    if (!more)
        c->message_at = 0;
}

void load_zmtp_frame(struct load_zmtp *c, const void *data, size_t size, bool more) {
    if (c->sends_bundles)
        bundle_frame(c, data, size, more);
    else
        put_frame(c, data, size, more);
}

bool load_zmtp_flush(struct load_zmtp *c) {
    end_bundle(c);
    while (c->out_from < c->out_to) {
        ssize_t sent = send(c->fd, c->out + c->out_from, c->out_to - c->out_from, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno == EAGAIN)
            return true;
        if (sent < 0)
            load_die("send");
        c->out_from += (size_t)sent;
    }
    c->out_from = c->out_to = 0;
    return false;
}

/* ---- receiving ---- */

/* Reads a frame's head; returns its bytes, 0: the frame is not all there. */
static size_t head_read(const uint8_t *data, size_t left, uint8_t *flags, size_t *size) {
    size_t head = 2;
    if (left < head)
        return 0;
    *flags = data[0];
    *size = data[1];
    if (*flags & FLAG_LONG) {
        head = 9;
        if (left < head)
            return 0;
        uint64_t value = 0;
        for (size_t i = 1; i < head; i++)
            value = value << 8 | data[i];
        if (value > FRAME_BYTES_MAX)
            load_die("a message is too large");
        *size = (size_t)value;
    }
    return *size <= left - head ? head : 0;
}

static void receive_some(int fd, uint8_t **data, size_t *from, size_t *to, size_t *size) {
    if (*from == *to)
        *from = *to = 0;
    make_room(data, from, to, size, IN_BYTES);
    ssize_t got = recv(fd, *data + *to, *size - *to, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0)
        load_die("the other side has ended the connection");
    *to += (size_t)got;
}

/* Opens all that is there, and leaves it as it would have come without CURVE. */
static void unseal(struct load_zmtp *c) {
    uint8_t flags;
    size_t size, head;
    while ((head = head_read(c->sealed + c->sealed_from, c->sealed_to - c->sealed_from, &flags,
                             &size)) != 0) {
        uint8_t *plain = load_curve_unseal(&c->curve, c->sealed + c->sealed_from + head, size);
        if (!plain)
            load_die("a message of CURVE is malformed");
        c->sealed_from += head + size;
        size -= LOAD_CURVE_MORE;
        make_room(&c->in, &c->in_from, &c->in_to, &c->in_size, size + 9);
        flags = (uint8_t)((plain[0] & 1 ? FLAG_MORE : 0) | (plain[0] & 2 ? FLAG_COMMAND : 0));
        uint8_t *at = write_head(c->in + c->in_to, flags, size);
        memcpy(at, plain + 1, size);
        c->in_to = (size_t)(at - c->in) + size;
    }
}

void load_zmtp_fill(struct load_zmtp *c) {
    if (!c->has_curve) {
        receive_some(c->fd, &c->in, &c->in_from, &c->in_to, &c->in_size);
        return;
    }
    if (c->in_from == c->in_to)
        c->in_from = c->in_to = 0;
    receive_some(c->fd, &c->sealed, &c->sealed_from, &c->sealed_to, &c->sealed_size);
    unseal(c);
}

/* The next message of the opened bundle. */
static int take_opened(struct load_zmtp *c, struct load_frame *frames) {
    uint8_t *at = c->opened.data, *end = at + c->opened.size;
    int count = *at++;
    if (!count || count > LOAD_ZMTP_FRAMES_MAX)
        load_die("a message of a bundle has too many frames");
    for (int f = 0; f < count; f++) {
        size_t size = end - at < 2 ? SIZE_MAX : (size_t)(at[0] << 8 | at[1]);
        if (end - at < 2 || size > (size_t)(end - at - 2))
            load_die("a bundle is malformed");
        frames[f] = (struct load_frame){at + 2, size};
        at += 2 + size;
    }
    c->opened = (struct load_frame){at, (size_t)(end - at)};
    return count;
}

int load_zmtp_take(struct load_zmtp *c, struct load_frame *frames) {
    if (c->opened.size)
        return take_opened(c, frames);
    size_t at = c->in_from;
    for (int count = 0;;) {
        uint8_t flags;
        size_t size, head = head_read(c->in + at, c->in_to - at, &flags, &size);
        if (!head)
            return 0;
        if (count == LOAD_ZMTP_FRAMES_MAX)
            load_die("a message has too many frames");
        frames[count] = (struct load_frame){c->in + at + head, size};
        at += head + size;
        if (flags & FLAG_COMMAND) {
            c->in_from = at; /* None that a DEALER must answer. */
            continue;
        }
        count++;
        if (flags & FLAG_MORE)
            continue;
        c->in_from = at;
        if (count == 1 && frames[0].size > sizeof BUNDLE &&
            !memcmp(frames[0].data, BUNDLE, sizeof BUNDLE)) {
            c->opened = (struct load_frame){frames[0].data + sizeof BUNDLE,
                                            frames[0].size - sizeof BUNDLE};
            return take_opened(c, frames);
        }
        return count;
    }
}
