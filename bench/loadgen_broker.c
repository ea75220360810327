/* The load generator's drivers for a broker: clients of the text's framing, and workers that send
 * back what they get (docs/protocols/majordomo.md).
 *
 * `broker`: `window` requests of `size` bytes are outstanding on each of `clients` connections. An
 * id is the request's number, so answers may come in any order.
 * `workers`: `clients` workers in one thread, each with READY and a window of `window`; each
 * answers with one FINAL and says PING when it has heard nothing for a while. With --pack 1 they
 * serve a plain zmq_proxy instead: no READY, and what they answer is a client's FINAL already. They
 * run until they are killed. */
#include "loadgen.h"
#include "loadgen_zmq.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW_MAX = 1 << 12, FRAMES_MAX = 16, FRAME_MAX = 1 << 16, PING_MS = 1000 };

static const char SERVICE[] = "echo";
static zmq_message message;

/* ---- clients ---- */

struct client {
    void *socket;
    uint64_t sent_at[WINDOW_MAX]; /* by number modulo WINDOW_MAX; 0: none is outstanding */
    uint64_t next, outstanding;
};

static struct client clients[LOAD_CLIENTS_MAX];
static uint8_t *body;
static uint64_t outstanding;

static void send_request(struct client *client, uint64_t now) {
    uint64_t number = client->next++;
    load_send_frame(client->socket, "KLKC01", 6, true);
    load_send_frame(client->socket, "\1", 1, true);
    load_send_frame(client->socket, SERVICE, sizeof SERVICE - 1, true);
    load_send_frame(client->socket, &number, sizeof number, true);
    load_send_frame(client->socket, body, load_options.size, false);
    client->sent_at[number % WINDOW_MAX] = now;
    client->outstanding++;
    outstanding++;
    load_counters.sent++;
}

/* Takes in one message; returns its frames, 0: none waits. */
static int receive(void *socket, uint8_t frames[][FRAME_MAX], size_t *sizes) {
    int count = 0;
    do {
        if (load_zmq.msg_recv(&message, socket, ZMQ_DONTWAIT) < 0) {
            if (count)
                load_die("zmq_msg_recv");
            return 0;
        }
        size_t size = load_zmq.msg_size(&message);
        if (count == FRAMES_MAX || size > FRAME_MAX)
            load_die("a message is too large");
        memcpy(frames[count], load_zmq.msg_data(&message), size);
        sizes[count++] = size;
    } while (load_zmq.msg_more(&message));
    return count;
}

static void on_answer(struct client *client, int count, uint8_t frames[][FRAME_MAX],
                      const size_t *sizes) {
    uint64_t number, now = load_now_ns();
    if (count != 5 || sizes[1] != 1 || frames[1][0] != 3 || sizes[3] != sizeof number) {
        load_counters.rejected++;
        return;
    }
    memcpy(&number, frames[3], sizeof number);
    uint64_t *sent_at = &client->sent_at[number % WINDOW_MAX];
    if (number >= client->next || !*sent_at) {
        load_counters.stray++;
        return;
    }
    if (sizes[4] != load_options.size)
        load_counters.malformed++;
    load_commit(*sent_at, now, 1);
    *sent_at = 0;
    client->outstanding--;
    outstanding--;
}

static void clients_open(void) {
    if (load_options.window > WINDOW_MAX / 2 || load_options.size > FRAME_MAX)
        load_die("--window, --size: out of range");
    load_open_libzmq(load_options.libzmq);
    load_zmq.msg_init(&message);
    body = calloc(1, load_options.size);
    if (!body)
        load_die("out of memory");
    for (int i = 0; i < load_options.clients; i++)
        clients[i].socket = load_new_socket(load_options.urls[i % load_options.url_count], false);
}

/* A number is free for another request when its answer has come: the oldest one may be late. */
static bool has_room(const struct client *client) {
    return client->outstanding < (uint64_t)load_options.window &&
           !client->sent_at[client->next % WINDOW_MAX];
}

void load_broker(void) {
    static zmq_item items[LOAD_CLIENTS_MAX];
    static uint8_t frames[FRAMES_MAX][FRAME_MAX];
    size_t sizes[FRAMES_MAX];
    clients_open();
    load_begin();
    uint64_t now = load_now_ns(), heard = now;
    while (!load_is_over(now, outstanding)) {
        for (int i = 0; i < load_options.clients; i++) {
            while (has_room(&clients[i]) && load_wants_more(now))
                send_request(&clients[i], now);
            items[i] = (zmq_item){.socket = clients[i].socket, .events = ZMQ_POLLIN};
        }
        load_zmq.poll(items, load_options.clients, 20);
        now = load_now_ns();
        for (int i = 0; i < load_options.clients; i++) {
            int count;
            while ((items[i].revents & ZMQ_POLLIN) &&
                   (count = receive(clients[i].socket, frames, sizes)) > 0) {
                on_answer(&clients[i], count, frames, sizes);
                heard = now;
            }
        }
        if (outstanding && now > heard + (uint64_t)(load_options.give_up_s * 1e9))
            load_die("no answer");
        now = load_now_ns();
    }
}

/* ---- workers ---- */

static void ready(void *socket) {
    uint8_t window[2] = {(uint8_t)(load_options.window >> 8), (uint8_t)load_options.window};
    load_send_frame(socket, "KLKW01", 6, true);
    load_send_frame(socket, "\1", 1, true);
    load_send_frame(socket, SERVICE, sizeof SERVICE - 1, load_options.window > 1);
    if (load_options.window > 1)
        load_send_frame(socket, window, sizeof window, false);
}

/* Sends frames on as they are, but for the command's octet. */
static void answer(void *socket, int count, uint8_t frames[][FRAME_MAX], const size_t *sizes,
                   int command) {
    frames[command][0] = load_options.pack ? 3 : 4;
    for (int f = 0; f < count; f++)
        load_send_frame(socket, frames[f], sizes[f], f + 1 < count);
}

static bool work(void *socket, uint8_t frames[][FRAME_MAX], size_t *sizes) {
    int count, command = load_options.pack ? 2 : 1;
    bool any = false;
    while ((count = receive(socket, frames, sizes)) > 0) {
        any = true;
        if (count <= command || sizes[command] != 1)
            continue; /* A PONG. */
        if (!load_options.pack && frames[command][0] != 2)
            load_die("the broker says DISCONNECT");
        answer(socket, count, frames, sizes, command);
    }
    return any;
}

_Noreturn void load_workers(void) {
    static zmq_item items[LOAD_CLIENTS_MAX];
    static uint8_t frames[FRAMES_MAX][FRAME_MAX];
    static uint64_t heard[LOAD_CLIENTS_MAX];
    size_t sizes[FRAMES_MAX];
    load_open_libzmq(load_options.libzmq);
    load_zmq.msg_init(&message);
    for (int i = 0; i < load_options.clients; i++) {
        void *socket = load_new_socket(load_options.urls[i % load_options.url_count], false);
        items[i] = (zmq_item){.socket = socket, .events = ZMQ_POLLIN};
        heard[i] = load_now_ns();
        if (!load_options.pack)
            ready(socket);
    }
    for (;;) {
        load_zmq.poll(items, load_options.clients, PING_MS);
        uint64_t now = load_now_ns();
        for (int i = 0; i < load_options.clients; i++) {
            if ((items[i].revents & ZMQ_POLLIN) && work(items[i].socket, frames, sizes)) {
                heard[i] = now;
            } else if (!load_options.pack && now > heard[i] + PING_MS * 1000000ull) {
                load_send_frame(items[i].socket, "KLKW01", 6, true);
                load_send_frame(items[i].socket, "PING", 4, false);
                heard[i] = now;
            }
        }
    }
}
