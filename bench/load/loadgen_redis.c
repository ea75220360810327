/* The load generator's Redis driver: SET, MSET, MGET in RESP, each write with a WAIT if wished.
 *
 * As lean as the ZeroDB one: the requests of one connection travel together and their answers are
 * only measured out and looked at for errors. A WAIT that was answered by too few replicas counts
 * as refused and voids the run. */
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
#include <unistd.h>

enum { KEY_SIZE = 16, WINDOW_MAX = 1 << 12, LINE_MAX_SIZE = 64, IN_STEP = 1 << 18 };

struct buffer {
    uint8_t *data;
    size_t used, size;
};

struct client {
    int fd;
    struct buffer in, out;
    uint64_t sent_at[WINDOW_MAX];
    uint64_t next, done;
    bool half; /* the write's own answer is there, its WAIT's is not */
};

static struct client clients[LOAD_CLIENTS_MAX];
static uint8_t *value;
static uint64_t keys_used, outstanding;

static void make_room(struct buffer *buffer, size_t size) {
    if (buffer->used + size <= buffer->size)
        return;
    buffer->size = (buffer->used + size) * 2;
    buffer->data = realloc(buffer->data, buffer->size);
    if (!buffer->data)
        load_die("out of memory");
}

static void put(struct buffer *out, const void *data, size_t size) {
    make_room(out, size);
    memcpy(out->data + out->used, data, size);
    out->used += size;
}

static void put_bulk(struct buffer *out, const void *data, size_t size) {
    char line[LINE_MAX_SIZE];
    put(out, line, (size_t)snprintf(line, sizeof line, "$%zu\r\n", size));
    put(out, data, size);
    put(out, "\r\n", 2);
}

static void put_text(struct buffer *out, const char *text) { put_bulk(out, text, strlen(text)); }

static void put_array(struct buffer *out, int count) {
    char line[LINE_MAX_SIZE];
    put(out, line, (size_t)snprintf(line, sizeof line, "*%d\r\n", count));
}

/* The keys of the ZeroDB driver. */
static void put_key(struct buffer *out) {
    char key[KEY_SIZE + 1];
    uint64_t place = keys_used++ % load_options.keys * 0x9e3779b97f4a7c15u;
    snprintf(key, sizeof key, "%016llx", (unsigned long long)place);
    put_bulk(out, key, KEY_SIZE);
}

static void put_request(struct client *client, uint64_t now) {
    struct buffer *out = &client->out;
    bool is_put = load_options.op == LOAD_PUT;
    put_array(out, 1 + load_options.batch * (is_put ? 2 : 1));
    put_text(out, is_put ? (load_options.batch == 1 ? "SET" : "MSET") : "MGET");
    for (int i = 0; i < load_options.batch; i++) {
        put_key(out);
        if (is_put)
            put_bulk(out, value, load_options.size);
    }
    if (is_put && load_options.wait) {
        char replicas[LINE_MAX_SIZE];
        snprintf(replicas, sizeof replicas, "%d", load_options.wait);
        put_array(out, 3);
        put_text(out, "WAIT");
        put_text(out, replicas);
        put_text(out, "1000"); /* ms, as shared/peers has it */
    }
    client->sent_at[client->next++ % WINDOW_MAX] = now;
    outstanding += (uint64_t)load_options.batch;
    load_counters.sent += (uint64_t)load_options.batch;
}

static void flush(struct client *client) {
    struct buffer *out = &client->out;
    size_t sent = 0;
    while (sent < out->used) {
        ssize_t n = send(client->fd, out->data + sent, out->used - sent, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            load_die("send");
        if (n < 0)
            break;
        sent += (size_t)n;
    }
    memmove(out->data, out->data + sent, out->used - sent);
    out->used -= sent;
}

/* The size of the reply at `at`, or 0 when not all of it is there. */
static size_t reply_size(const uint8_t *at, size_t size) {
    const uint8_t *end = memchr(at, '\n', size);
    if (!end)
        return 0;
    size_t line = (size_t)(end - at) + 1;
    long count = strtol((const char *)at + 1, NULL, 10); /* It ends at the \r. */
    if (at[0] == '$')
        return count < 0 ? line : line + (size_t)count + 2 <= size ? line + (size_t)count + 2 : 0;
    if (at[0] != '*')
        return line;
    for (; count > 0; count--) {
        size_t part = line < size ? reply_size(at + line, size - line) : 0;
        if (!part)
            return 0;
        line += part;
    }
    return line;
}

static void on_reply(struct client *client, const uint8_t *at, uint64_t now) {
    uint64_t batch = (uint64_t)load_options.batch;
    bool waits = load_options.op == LOAD_PUT && load_options.wait;
    if (at[0] == '-')
        load_counters.rejected += batch;
    if (waits && !client->half) {
        client->half = true;
        return;
    }
    if (waits && (at[0] != ':' || strtol((const char *)at + 1, NULL, 10) < load_options.wait))
        load_counters.refused += batch;
    client->half = false;
    outstanding -= batch;
    load_commit(client->sent_at[client->done++ % WINDOW_MAX], now, batch);
}

static void take_in(struct client *client, uint64_t now) {
    struct buffer *in = &client->in;
    size_t at = 0;
    make_room(in, IN_STEP);
    ssize_t n = recv(client->fd, in->data + in->used, in->size - in->used, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        load_die("recv");
    if (n < 0)
        return;
    in->used += (size_t)n;
    for (size_t size; at < in->used && (size = reply_size(in->data + at, in->used - at)) != 0;) {
        if (client->done == client->next)
            load_die("a reply to nothing");
        on_reply(client, in->data + at, now);
        at += size;
    }
    memmove(in->data, in->data + at, in->used - at);
    in->used -= at;
}

static int connect_to(const char *url) {
    char host[256];
    const int one = 1;
    const char *colon = strrchr(url, ':');
    if (!colon || (size_t)(colon - url) >= sizeof host)
        load_die(url);
    memcpy(host, url, (size_t)(colon - url));
    host[colon - url] = 0;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    if (getaddrinfo(host, colon + 1, &hints, &found))
        load_die(url);
    int fd = socket(found->ai_family, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen))
        load_die(url);
    freeaddrinfo(found);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void set_up(void) {
    if (load_options.batch < 1 || load_options.window > WINDOW_MAX || load_options.keys < 1)
        load_die("--batch, --window, --keys: out of range");
    if (load_options.op >= LOAD_SCAN)
        load_die("Redis has no ordered scan");
    value = malloc(load_options.size);
    if (!value)
        load_die("out of memory");
    memset(value, 'v', load_options.size);
    for (int i = 0; i < load_options.clients; i++)
        clients[i].fd = connect_to(load_options.urls[i % load_options.url_count]);
}

void load_redis(void) {
    static struct pollfd items[LOAD_CLIENTS_MAX];
    set_up();
    load_begin();
    uint64_t now = load_now_ns();
    while (!load_is_over(now, outstanding)) {
        for (int i = 0; i < load_options.clients; i++) {
            struct client *client = &clients[i];
            while (client->next - client->done < (uint64_t)load_options.window &&
                   load_wants_more(now))
                put_request(client, now);
            flush(client);
            items[i] = (struct pollfd){.fd = client->fd, .events = POLLIN};
            if (client->out.used)
                items[i].events |= POLLOUT;
        }
        poll(items, (nfds_t)load_options.clients, 20);
        now = load_now_ns();
        for (int i = 0; i < load_options.clients; i++)
            if (items[i].revents & (POLLIN | POLLERR | POLLHUP))
                take_in(&clients[i], now);
        now = load_now_ns();
    }
}
