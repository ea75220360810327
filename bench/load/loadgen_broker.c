/* The load generator's drivers for a broker: clients of the text framing, and workers that send
 * back what they get (docs/protocols/majordomo.md).
 *
 * `broker`: `window` requests of `size` bytes are outstanding on each of `clients` connections. An
 * id is the request's number, so answers may come in any order.
 * `workers`: `clients` workers in one thread, each with READY and a window of `window`; each
 * answers with one FINAL, after --hold-ms, and says PING when it has heard nothing for a while.
 * With --pack 1 they serve a plain zmq_proxy instead: no READY, and what they answer is a client's
 * FINAL already. They run until they are killed. */
#define _GNU_SOURCE
#include "loadgen.h"
#include "loadgen_zmtp.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum { OPTIONS_FRAME = 5 }; /* Of a REQUEST to a worker with bundles: time and credit. */
enum { WINDOW_MAX = 1 << 12, SIZE_MAX_BYTES = 1 << 20, PING_MS = 1000, LOOK_MS = 20 };

static const char *service; /* Plain and bundled workers serve different ones. */
static struct pollfd polled[LOAD_CLIENTS_MAX];

/* ---- clients ---- */

struct client {
    struct load_zmtp connection;
    uint64_t sent_at[WINDOW_MAX]; /* by number modulo WINDOW_MAX; 0: none is outstanding */
    uint64_t next, outstanding;
};

static struct client clients[LOAD_CLIENTS_MAX];
static uint8_t *body;
static uint64_t outstanding;

static void send_request(struct client *client, uint64_t now) {
    uint64_t number = client->next++;
    struct load_zmtp *connection = &client->connection;
    load_zmtp_frame(connection, "KLKC01", 6, true);
    load_zmtp_frame(connection, "\1", 1, true);
    load_zmtp_frame(connection, service, strlen(service), true);
    load_zmtp_frame(connection, &number, sizeof number, true);
    load_zmtp_frame(connection, body, load_options.size, false);
    client->sent_at[number % WINDOW_MAX] = now;
    client->outstanding++;
    outstanding++;
    load_counters.sent++;
}

static void on_answer(struct client *client, int count, const struct load_frame *frames,
                      uint64_t now) {
    uint64_t number;
    if (count != 5 || frames[1].size != 1 || frames[1].data[0] != 3 ||
        frames[3].size != sizeof number) {
        load_counters.rejected++;
        return;
    }
    memcpy(&number, frames[3].data, sizeof number);
    uint64_t *sent_at = &client->sent_at[number % WINDOW_MAX];
    if (number >= client->next || !*sent_at) {
        load_counters.stray++;
        return;
    }
    if (frames[4].size != load_options.size)
        load_counters.malformed++;
    load_commit(*sent_at, now, 1);
    *sent_at = 0;
    client->outstanding--;
    outstanding--;
}

static void clients_open(void) {
    if (load_options.window > WINDOW_MAX / 2 || load_options.size > SIZE_MAX_BYTES)
        load_die("--window, --size: out of range");
    service = load_options.bundles ? "bundled" : "echo";
    body = calloc(1, load_options.size);
    if (!body)
        load_die("out of memory");
    for (int i = 0; i < load_options.clients; i++)
        load_zmtp_open(&clients[i].connection, load_options.urls[i % load_options.url_count]);
    for (int i = 0; i < load_options.clients; i++)
        clients[i].connection.sends_bundles = load_options.bundles;
}

/* A number is free for another request when its answer has come: the oldest one may be late. */
static bool has_room(const struct client *client) {
    return client->outstanding < (uint64_t)load_options.window &&
           !client->sent_at[client->next % WINDOW_MAX];
}

/* Sends what the other side takes, and tells what to wait for. */
static struct pollfd flushed(struct load_zmtp *connection) {
    short events = POLLIN;
    if (load_zmtp_flush(connection))
        events |= POLLOUT;
    return (struct pollfd){.fd = connection->fd, .events = events};
}

static void clients_send(uint64_t now) {
    for (int i = 0; i < load_options.clients; i++) {
        while (has_room(&clients[i]) && load_wants_more(now))
            send_request(&clients[i], now);
        polled[i] = flushed(&clients[i].connection);
    }
}

/* Returns whether there was any answer. */
static bool clients_receive(uint64_t now) {
    struct load_frame frames[LOAD_ZMTP_FRAMES_MAX];
    bool any = false;
    for (int i = 0; i < load_options.clients; i++) {
        int count;
        if (!(polled[i].revents & ~POLLOUT))
            continue;
        load_zmtp_fill(&clients[i].connection);
        while ((count = load_zmtp_take(&clients[i].connection, frames)) > 0) {
            on_answer(&clients[i], count, frames, now);
            any = true;
        }
    }
    return any;
}

void load_broker(void) {
    clients_open();
    load_begin();
    uint64_t now = load_now_ns(), heard = now;
    while (!load_is_over(now, outstanding)) {
        clients_send(now);
        poll(polled, (nfds_t)load_options.clients, LOOK_MS);
        now = load_now_ns();
        if (clients_receive(now))
            heard = now;
        if (outstanding && now > heard + (uint64_t)(load_options.give_up_s * 1e9))
            load_die("no answer");
    }
}

/* ---- workers ---- */

static void ready(struct load_zmtp *connection) {
    uint8_t window[2] = {(uint8_t)(load_options.window >> 8), (uint8_t)load_options.window};
    bool bundles = load_options.bundles;
    load_zmtp_frame(connection, "KLKW01", 6, true);
    load_zmtp_frame(connection, bundles ? "\7" : "\1", 1, true);
    load_zmtp_frame(connection, service, strlen(service), bundles || load_options.window > 1);
    if (bundles || load_options.window > 1)
        load_zmtp_frame(connection, window, sizeof window, bundles);
    if (bundles)
        load_zmtp_frame(connection, "B", 1, false);
    connection->sends_bundles = bundles;
}

/* Sends frames back as they are, but for the command's octet. Returns false when the broker wants
 * to hear no more of this connection. */
static bool work(struct load_zmtp *connection) {
    struct load_frame frames[LOAD_ZMTP_FRAMES_MAX];
    int count, command = load_options.pack ? 2 : 1;
    while ((count = load_zmtp_take(connection, frames)) > 0) {
        if (count <= command || frames[command].size != 1)
            continue; /* A PONG. */
        if (!load_options.pack && frames[command].data[0] != 2)
            return false;
        frames[command].data[0] = load_options.pack ? 3 : 4;
        for (int f = 0; f < count; f++)
            if (!load_options.bundles || f != OPTIONS_FRAME)
                load_zmtp_frame(connection, frames[f].data, frames[f].size, f + 1 < count);
    }
    return true;
}

static struct worker {
    struct load_zmtp connection;
    const char *url;
    uint64_t heard, due; /* ns; before that it keeps what it answers */
} workers[LOAD_CLIENTS_MAX];

static void worker_open(struct worker *worker) {
    load_zmtp_open(&worker->connection, worker->url);
    worker->heard = load_now_ns();
    if (!load_options.pack)
        ready(&worker->connection);
}

/* Takes in what has come, says PING when nothing has, and sends what is due; returns when that is
 * for what it keeps. */
static uint64_t worker_turn(struct worker *worker, struct pollfd *item, uint64_t now) {
    if (item->revents & ~POLLOUT) {
        load_zmtp_fill(&worker->connection);
        worker->heard = now;
        if (!work(&worker->connection)) {
            load_zmtp_close(&worker->connection);
            worker_open(worker);
        }
        worker->due = now + (uint64_t)load_options.hold_ms * 1000000u;
    } else if (!load_options.pack && now > worker->heard + PING_MS * 1000000ull) {
        load_zmtp_frame(&worker->connection, "KLKW01", 6, true);
        load_zmtp_frame(&worker->connection, "PING", 4, false);
        worker->heard = now;
    }
    *item = (struct pollfd){.fd = worker->connection.fd, .events = POLLIN};
    if (now < worker->due)
        return worker->due;
    *item = flushed(&worker->connection);
    return UINT64_MAX;
}

_Noreturn void load_workers(void) {
    service = load_options.bundles ? "bundled" : "echo";
    for (int i = 0; i < load_options.clients; i++) {
        workers[i].url = load_options.urls[i % load_options.url_count];
        worker_open(&workers[i]);
        polled[i] = flushed(&workers[i].connection);
    }
    for (int timeout_ms = PING_MS;;) {
        poll(polled, (nfds_t)load_options.clients, timeout_ms);
        uint64_t now = load_now_ns(), due = now + PING_MS * 1000000ull;
        for (int i = 0; i < load_options.clients; i++) {
            uint64_t at = worker_turn(&workers[i], &polled[i], now);
            if (at < due)
                due = at;
        }
        timeout_ms = (int)((due - now) / 1000000u) + (due - now < PING_MS * 1000000ull);
    }
}
