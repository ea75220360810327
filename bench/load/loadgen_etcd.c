/* The load generator's etcd driver: KV/Put over gRPC, as lean as the ZMQ RAFT one.
 *
 * A gRPC client library costs 60 us of CPU a call in Python and several in Go; on a machine whose
 * two cores etcd needs for itself that would be measured as etcd's slowness. So this speaks the
 * part of HTTP/2 that a unary call needs: cleartext with prior knowledge (RFC 9113, section 3.3),
 * one HEADERS and one DATA frame a call, the header block six bytes of indexes after the first call
 * (RFC 7541), flow control of the connection. A call has succeeded when a gRPC message has come
 * before the end of its stream (a failed one has trailers only), so no header is ever decoded. */
#define _GNU_SOURCE
#include "loadgen.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    FRAME_DATA = 0,
    FRAME_HEADERS = 1,
    FRAME_RST_STREAM = 3,
    FRAME_SETTINGS = 4,
    FRAME_PING = 6,
    FRAME_GOAWAY = 7,
    FRAME_WINDOW_UPDATE = 8,
    FLAG_ACK = 1,
    FLAG_END_STREAM = 1,
    FLAG_END_HEADERS = 4,
    HEAD_SIZE = 9,
    WINDOW_DEFAULT = 65535,
    WINDOW_REFRESH = 1 << 26, /* bytes taken in before the server's send window is topped up */
    IN_SIZE = 1 << 18,
    VALUE_MAX = 32 << 10, /* a call always fits a fresh stream's window */
    ROUND_MS = 10,
    STATUS_TIMEOUT_MS = 200
};

/* A call; its stream id is 2 * (its slot's number + generation * slots) + 1. */
struct slot {
    bool busy, answered;
    uint32_t stream;
    uint64_t first_sent;
    uint64_t key;
};

struct connection {
    int fd;
    uint32_t next_stream;
    int64_t send_window;
    uint32_t taken_in; /* DATA bytes since the last WINDOW_UPDATE of ours */
    bool headers_known, broken;
    uint8_t *in, *out;
    size_t in_used, out_used, out_size;
    struct slot *slots;
    uint32_t slot_mask;
    uint32_t again, again_end; /* slots still to be sent on this new connection */
    int outstanding;
    uint8_t answer[256]; /* the last DATA payload: what a status query wants */
    size_t answer_size;
};

static struct connection clients[LOAD_CLIENTS_MAX];
static uint64_t outstanding, key_next;
static bool leader_lost;
static uint8_t *value;

/* ---- bytes out ---- */

static void put(struct connection *c, const void *data, size_t size) {
    if (c->out_used + size > c->out_size) {
        c->out_size = (c->out_used + size) * 2;
        c->out = realloc(c->out, c->out_size);
        if (!c->out)
            load_die("out of memory");
    }
    memcpy(c->out + c->out_used, data, size);
    c->out_used += size;
}

static void put_u32(struct connection *c, uint32_t v) {
    uint8_t bytes[4];
    for (int i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(v >> (24 - 8 * i));
    put(c, bytes, sizeof bytes);
}

static uint32_t read_u32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void put_head(struct connection *c, size_t size, uint8_t type, uint8_t flags,
                     uint32_t stream) {
    const uint8_t kind[2] = {type, flags};
    const uint8_t length[3] = {(uint8_t)(size >> 16), (uint8_t)(size >> 8), (uint8_t)size};
    put(c, length, sizeof length);
    put(c, kind, sizeof kind);
    put_u32(c, stream);
}

static size_t write_text(uint8_t *at, const char *text) {
    size_t size = strlen(text);
    at[0] = (uint8_t)size;
    memcpy(at + 1, text, size);
    return size + 1;
}

/* The first call's headers enter the dynamic table; the later ones are indexes only. */
static void put_headers(struct connection *c, const char *path, uint32_t stream) {
    static const uint8_t known[] = {0x83, 0x86, 0x80 | 65, 0x80 | 64, 0x80 | 63, 0x80 | 62};
    uint8_t block[256];
    size_t size = 0;
    if (c->headers_known) {
        put_head(c, sizeof known, FRAME_HEADERS, FLAG_END_HEADERS, stream);
        put(c, known, sizeof known);
        return;
    }
    block[size++] = 0x83; /* :method POST */
    block[size++] = 0x86; /* :scheme http */
    block[size++] = 0x44; /* :path, entered: becomes 65 */
    size += write_text(block + size, path);
    block[size++] = 0x41; /* :authority: 64 */
    size += write_text(block + size, "kelek-bench");
    block[size++] = 0x40 | 31; /* content-type: 63 */
    size += write_text(block + size, "application/grpc");
    block[size++] = 0x40; /* te: 62 */
    size += write_text(block + size, "te");
    size += write_text(block + size, "trailers");
    c->headers_known = true;
    put_head(c, size, FRAME_HEADERS, FLAG_END_HEADERS, stream);
    put(c, block, size);
}

static void put_call(struct connection *c, const char *path, const uint8_t *message, size_t size) {
    uint32_t stream = c->next_stream;
    c->next_stream += 2;
    put_headers(c, path, stream);
    put_head(c, 5 + size, FRAME_DATA, FLAG_END_STREAM, stream);
    put(c, "\0", 1); /* Not compressed. */
    put_u32(c, (uint32_t)size);
    put(c, message, size);
    c->send_window -= (int64_t)size + 5;
}

static void flush(struct connection *c) {
    size_t sent = 0;
    while (sent < c->out_used) {
        ssize_t n = send(c->fd, c->out + sent, c->out_used - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            c->broken = true;
        if (n <= 0)
            break;
        sent += (size_t)n;
    }
    memmove(c->out, c->out + sent, c->out_used - sent);
    c->out_used -= sent;
}

/* ---- connections ---- */

static void disconnect(struct connection *c) {
    if (c->fd > 0)
        close(c->fd);
    c->fd = 0;
}

/* Connects to HOST:PORT and says hello; false when no process listens there. */
static bool establish(struct connection *c, const char *url) {
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    static const int one = 1;
    char host[64];
    const char *colon = strrchr(url, ':');
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST}, *found;
    if (!colon || (size_t)(colon - url) >= sizeof host)
        load_die(url);
    memcpy(host, url, (size_t)(colon - url));
    host[colon - url] = 0;
    if (getaddrinfo(host, colon + 1, &hints, &found) != 0)
        load_die(url);
    disconnect(c);
    c->fd = socket(found->ai_family, SOCK_STREAM, 0);
    int refused = connect(c->fd, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    if (refused) {
        disconnect(c);
        return false;
    }
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    if (!c->in)
        c->in = malloc(IN_SIZE);
    if (!c->in)
        load_die("out of memory");
    c->next_stream = 1;
    c->send_window = WINDOW_DEFAULT;
    c->in_used = c->out_used = c->answer_size = 0;
    c->taken_in = 0;
    c->headers_known = c->broken = false;
    put(c, preface, sizeof preface - 1);
    put_head(c, 0, FRAME_SETTINGS, 0, 0);
    put_head(c, 4, FRAME_WINDOW_UPDATE, 0, 0);
    put_u32(c, INT32_MAX - WINDOW_DEFAULT);
    return true;
}

/* ---- bytes in ---- */

static struct slot *slot_of_stream(struct connection *c, uint32_t stream) {
    if (!c->slots)
        return NULL;
    struct slot *slot = &c->slots[stream >> 1 & c->slot_mask];
    return slot->busy && slot->stream == stream ? slot : NULL;
}

static void on_stream_end(struct connection *c, struct slot *slot, uint64_t now) {
    if (!slot->answered) { /* Trailers only: no leader, overload, ...; the window is sent again. */
        load_counters.refused++;
        leader_lost = true;
        return;
    }
    slot->busy = false;
    c->outstanding--;
    outstanding--;
    load_commit(slot->first_sent, now, 1);
}

static void on_data(struct connection *c, struct slot *slot, const uint8_t *data, size_t size) {
    if (size > 5 && slot)
        slot->answered = true;
    if (size <= sizeof c->answer) {
        memcpy(c->answer, data, size);
        c->answer_size = size;
    }
    c->taken_in += (uint32_t)size;
    if (c->taken_in > WINDOW_REFRESH) {
        put_head(c, 4, FRAME_WINDOW_UPDATE, 0, 0);
        put_u32(c, c->taken_in);
        c->taken_in = 0;
    }
}

static void on_frame(struct connection *c, const uint8_t *head, size_t size, uint64_t now) {
    const uint8_t *body = head + HEAD_SIZE;
    uint8_t type = head[3], flags = head[4];
    uint32_t stream = read_u32(head + 5) & INT32_MAX;
    struct slot *slot = slot_of_stream(c, stream);
    if (type == FRAME_DATA) {
        on_data(c, slot, body, size);
    } else if (type == FRAME_SETTINGS && !(flags & FLAG_ACK)) {
        put_head(c, 0, FRAME_SETTINGS, FLAG_ACK, 0);
    } else if (type == FRAME_PING && !(flags & FLAG_ACK)) {
        put_head(c, size, FRAME_PING, FLAG_ACK, 0);
        put(c, body, size);
    } else if (type == FRAME_WINDOW_UPDATE && stream == 0 && size == 4) {
        c->send_window += read_u32(body) & INT32_MAX;
    } else if (type == FRAME_GOAWAY) {
        c->broken = true;
    } else if (type == FRAME_RST_STREAM && slot) {
        on_stream_end(c, slot, now);
    }
    if ((type == FRAME_DATA || type == FRAME_HEADERS) && flags & FLAG_END_STREAM && slot)
        on_stream_end(c, slot, now);
}

/* Reads all that has come; false when there was nothing. */
static bool take_in(struct connection *c, uint64_t now) {
    bool any = false;
    for (;;) {
        ssize_t n = recv(c->fd, c->in + c->in_used, IN_SIZE - c->in_used, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            c->broken = true;
        if (n <= 0)
            return any;
        any = true;
        c->in_used += (size_t)n;
        size_t at = 0;
        while (c->in_used - at >= HEAD_SIZE) {
            const uint8_t *head = c->in + at;
            size_t size = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
            if (HEAD_SIZE + size > IN_SIZE)
                load_die("etcd sent an oversize frame");
            if (c->in_used - at < HEAD_SIZE + size)
                break;
            on_frame(c, head, size, now);
            at += HEAD_SIZE + size;
        }
        memmove(c->in, c->in + at, c->in_used - at);
        c->in_used -= at;
    }
}

/* ---- etcd's messages (protobuf) ---- */

static size_t write_varint(uint8_t *at, uint64_t number) {
    size_t size = 0;
    for (; number > 127; number >>= 7)
        at[size++] = (uint8_t)(number | 128);
    at[size++] = (uint8_t)number;
    return size;
}

/* PutRequest: 1 key, 2 value. */
static void put_update(struct connection *c, const struct slot *slot) {
    static uint8_t message[VALUE_MAX + 64];
    char key[32];
    size_t size = 0;
    int key_size = snprintf(key, sizeof key, "%08llx", (unsigned long long)slot->key);
    message[size++] = 1 << 3 | 2;
    size += write_varint(message + size, (uint64_t)key_size);
    memcpy(message + size, key, (size_t)key_size);
    size += (size_t)key_size;
    message[size++] = 2 << 3 | 2;
    size += write_varint(message + size, load_options.size);
    memcpy(message + size, value, load_options.size);
    put_call(c, "/etcdserverpb.KV/Put", message, size + load_options.size);
}

static const uint8_t *read_varint(const uint8_t *at, const uint8_t *end, uint64_t *number) {
    *number = 0;
    for (unsigned shift = 0; at < end && shift < 64; shift += 7) {
        *number |= (uint64_t)(*at & 127) << shift;
        if (*at++ < 128)
            return at;
    }
    return end;
}

/* The value of a varint field, or where a message field lies; 0 when the field is not there. */
static uint64_t find_field(const uint8_t *at, const uint8_t *end, uint64_t wanted,
                           const uint8_t **inner) {
    uint64_t tag, number;
    while (at < end) {
        at = read_varint(at, end, &tag);
        at = read_varint(at, end, &number);
        if (tag >> 3 == wanted) {
            *inner = at;
            return number;
        }
        if ((tag & 7) == 2)
            at = (uint64_t)(end - at) < number ? end : at + number;
    }
    return 0;
}

/* StatusResponse: 1 header {2 member_id}, 4 leader. */
static bool says_it_leads(const uint8_t *message, size_t size) {
    const uint8_t *header = message, *nothing;
    uint64_t header_size = find_field(message, message + size, 1, &header);
    uint64_t leader_id = find_field(message, message + size, 4, &nothing);
    if (header_size == 0 || leader_id == 0)
        return false;
    return find_field(header, header + header_size, 2, &nothing) == leader_id;
}

/* ---- the leader ---- */

static bool leads(const char *url) {
    static struct connection probe;
    if (!establish(&probe, url))
        return false;
    put_call(&probe, "/etcdserverpb.Maintenance/Status", (const uint8_t *)"", 0);
    uint64_t until = load_now_ns() + STATUS_TIMEOUT_MS * 1000000u;
    while (!probe.answer_size && !probe.broken && load_now_ns() < until) {
        struct pollfd item = {.fd = probe.fd, .events = POLLIN};
        flush(&probe);
        poll(&item, 1, STATUS_TIMEOUT_MS);
        take_in(&probe, load_now_ns());
    }
    disconnect(&probe);
    return probe.answer_size > 5 && says_it_leads(probe.answer + 5, probe.answer_size - 5);
}

static void send_slot(struct connection *c, struct slot *slot) {
    slot->stream = c->next_stream;
    slot->answered = false;
    put_update(c, slot);
}

/* What was unanswered goes first on the new connection, with stream ids from 1 on: fill_window()
 * sends it, since the connection's window may be smaller. */
static bool reconnect(struct connection *c, const char *url) {
    uint32_t count = c->slot_mask + 1;
    struct slot *old = c->slots;
    if (!establish(c, url))
        return false;
    c->slots = calloc(count, sizeof *c->slots);
    if (!c->slots)
        load_die("out of memory");
    c->again = c->again_end = 0;
    for (uint32_t i = 0; old && i < count; i++)
        if (old[i].busy) {
            c->slots[c->again_end] = old[i];
            c->slots[c->again_end++].stream = 0;
        }
    free(old);
    return true;
}

static void find_leader(void) {
    uint64_t until = load_now_ns() + (uint64_t)(load_options.give_up_s * 1e9);
    const struct timespec pause = {.tv_nsec = ROUND_MS * 1000000};
    load_counters.searches++;
    for (int i = 0;; i = (i + 1) % load_options.url_count) {
        if (load_now_ns() > until)
            load_die("no leader");
        bool all = leads(load_options.urls[i]);
        for (int k = 0; all && k < load_options.clients; k++)
            all = reconnect(&clients[k], load_options.urls[i]);
        if (all)
            break;
        if (i + 1 == load_options.url_count)
            nanosleep(&pause, NULL);
    }
    leader_lost = false;
}

/* ---- the loop ---- */

static void fill_window(struct connection *c, uint64_t now) {
    for (; c->again < c->again_end && c->send_window > VALUE_MAX; c->again++) {
        send_slot(c, &c->slots[c->again]);
        load_counters.repeated++;
    }
    while (c->again == c->again_end && c->outstanding < load_options.window &&
           c->send_window > VALUE_MAX && load_wants_more(now)) {
        struct slot *slot = &c->slots[c->next_stream >> 1 & c->slot_mask];
        if (slot->busy)
            return;
        *slot = (struct slot){.busy = true, .first_sent = now, .key = key_next++};
        send_slot(c, slot);
        c->outstanding++;
        outstanding++;
        load_counters.sent++;
    }
}

static void set_up(void) {
    uint32_t slots = 64;
    if (load_options.size > VALUE_MAX)
        load_die("--size: at most 32 KiB for etcd");
    while (slots < (uint32_t)load_options.window * 4)
        slots *= 2;
    for (int i = 0; i < load_options.clients; i++)
        clients[i].slot_mask = slots - 1;
    value = malloc(load_options.size);
    if (!value)
        load_die("out of memory");
    memset(value, 'v', load_options.size);
    key_next = load_now_ns() >> 16 << 24;
}

void load_etcd(void) {
    static struct pollfd items[LOAD_CLIENTS_MAX];
    set_up();
    find_leader();
    load_begin();
    uint64_t now = load_now_ns(), heard = now;
    while (!load_is_over(now, outstanding)) {
        if (leader_lost) {
            find_leader();
            heard = now = load_now_ns();
        }
        for (int i = 0; i < load_options.clients; i++) {
            fill_window(&clients[i], now);
            flush(&clients[i]);
            items[i] = (struct pollfd){.fd = clients[i].fd, .events = POLLIN};
            if (clients[i].out_used)
                items[i].events |= POLLOUT;
        }
        poll(items, (nfds_t)load_options.clients, 20);
        now = load_now_ns();
        for (int i = 0; i < load_options.clients; i++) {
            if (items[i].revents && take_in(&clients[i], now))
                heard = now;
            leader_lost |= clients[i].broken;
        }
        if (outstanding && now > heard + load_options.timeout_ns)
            leader_lost = true;
        now = load_now_ns();
    }
}
