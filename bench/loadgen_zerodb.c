/* The load generator's ZeroDB driver: Put, Read and Scan in the text's framing, and packed scans.
 *
 * `window` requests of `batch` rows are outstanding on each connection. All of them are about one
 * table and of one type, so a connection's answers come in the order of its requests. Key number n
 * is "%016x" of it, spread over the table by a multiplication: neighbours in time are none in the
 * table. A scan begins where the last one of its connection has ended and counts the rows that
 * come. Nobody fails over here: an answer that says no voids the run. */
#define _GNU_SOURCE
#include "loadgen.h"
#include "loadgen_zmq.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_SIZE = 16, WINDOW_MAX = 1 << 12, HEADER_MAX = 64 };
enum { TYPE_READ = 0x10, TYPE_SCAN = 0x13, TYPE_PUT = 0x20, PARTSYNC = 1 };

struct client {
    void *socket;
    uint64_t sent_at[WINDOW_MAX]; /* a ring: request n of this client is at n % WINDOW_MAX */
    uint64_t next, done;
    char from[KEY_SIZE + 1]; /* scans: where the next one begins */
};

static struct client clients[LOAD_CLIENTS_MAX];
static zmq_message message;
static uint8_t *value;
static uint64_t keys_used, outstanding;

/* Each number below `keys` has a place of its own: the factor is odd, the sum modulo 2^64. */
static void write_key(char *at, uint64_t n) {
    uint64_t place = n % load_options.keys * 0x9e3779b97f4a7c15u;
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < KEY_SIZE; i++)
        at[i] = digits[place >> (60 - 4 * i) & 15];
}

static size_t write_header(uint8_t *header) {
    size_t size = 3;
    memcpy(header, "\x31\x01", 2);
    switch (load_options.op) {
    case LOAD_PUT:
        header[2] = TYPE_PUT;
        header[size++] = PARTSYNC;
        break;
    case LOAD_GET:
        header[2] = TYPE_READ;
        break;
    default:
        header[2] = TYPE_SCAN;
    }
    return size;
}

static void send_rows(struct client *client) {
    char key[KEY_SIZE];
    for (int i = 0; i < load_options.batch; i++) {
        bool last = i + 1 == load_options.batch;
        write_key(key, keys_used++);
        if (load_options.op == LOAD_PUT) {
            load_send_frame(client->socket, key, KEY_SIZE, true);
            load_send_frame(client->socket, value, load_options.size, !last);
        } else {
            load_send_frame(client->socket, key, KEY_SIZE, !last);
        }
    }
}

static void send_scan(struct client *client) {
    uint64_t limit = (uint64_t)load_options.batch;
    load_send_frame(client->socket, &limit, sizeof limit, true); /* Little endian, as we are. */
    load_send_frame(client->socket, client->from, strlen(client->from), true);
    load_send_frame(client->socket, "", 0, false);
}

static void send_request(struct client *client, uint64_t now) {
    uint8_t header[HEADER_MAX];
    uint32_t table = (uint32_t)load_options.table;
    load_send_frame(client->socket, header, write_header(header), true);
    load_send_frame(client->socket, &table, sizeof table, true);
    if (load_options.op == LOAD_SCAN)
        send_scan(client);
    else
        send_rows(client);
    client->sent_at[client->next++ % WINDOW_MAX] = now;
    outstanding += (uint64_t)load_options.batch;
    load_counters.sent += (uint64_t)load_options.batch;
}

static bool is_good(const uint8_t *header, size_t size) {
    uint8_t wanted[HEADER_MAX];
    write_header(wanted);
    return size >= 4 && !memcmp(header, wanted, 3) && header[3] == 0;
}

/* A scan goes on behind its last key; at the table's end it begins again. */
static void scan_on(struct client *client, uint64_t rows, const char *last) {
    memcpy(client->from, last, KEY_SIZE);
    client->from[KEY_SIZE] = 0;
    if (rows < (uint64_t)load_options.batch)
        client->from[0] = 0;
    else
        for (int i = KEY_SIZE; i-- > 0 && ++client->from[i] > 'f';)
            client->from[i] = '0';
}

static void on_answer(struct client *client, bool good, uint64_t frames, const char *last) {
    uint64_t now = load_now_ns(), batch = (uint64_t)load_options.batch, rows = batch;
    if (client->done == client->next) {
        load_counters.stray++;
        return;
    }
    outstanding -= batch;
    uint64_t sent_at = client->sent_at[client->done++ % WINDOW_MAX];
    if (!good) {
        load_counters.rejected += batch;
        return;
    }
    if (load_options.op == LOAD_SCAN) {
        rows = frames / 2;
        load_counters.sent -= batch - rows;
        scan_on(client, rows, last);
    } else if (frames != (load_options.op == LOAD_GET ? batch : 0)) {
        load_counters.malformed++;
    }
    load_commit(sent_at, now, rows);
}

/* Takes in all that waits: only the last key of a scan is looked at. */
static bool drain(struct client *client) {
    bool any = false;
    while (load_zmq.msg_recv(&message, client->socket, ZMQ_DONTWAIT) >= 0) {
        char last[KEY_SIZE] = {0};
        uint64_t frames = 0;
        bool good = is_good(load_zmq.msg_data(&message), load_zmq.msg_size(&message));
        any = true;
        for (; load_zmq.msg_more(&message); frames++) {
            if (load_zmq.msg_recv(&message, client->socket, ZMQ_DONTWAIT) < 0)
                load_die("zmq_msg_recv");
            if (frames % 2 == 0 && load_zmq.msg_size(&message) == KEY_SIZE)
                memcpy(last, load_zmq.msg_data(&message), KEY_SIZE);
        }
        on_answer(client, good, frames, last);
    }
    return any;
}

static void set_up(void) {
    if (load_options.batch < 1 || load_options.window > WINDOW_MAX || load_options.keys < 1)
        load_die("--batch, --window, --keys: out of range");
    if (load_options.op == LOAD_SCAN && load_options.window != 1)
        load_die("a scan goes on where the last one ended: --window 1");
    load_open_libzmq(load_options.libzmq);
    value = malloc(load_options.size);
    if (!value)
        load_die("out of memory");
    uint64_t seed = load_now_ns();
    for (size_t i = 0; i < load_options.size; i++) /* Half of it random: compressible by half. */
        value[i] = i % 2 ? 'v' : (uint8_t)((seed = seed * 6364136223846793005u + 1) >> 56);
    load_zmq.msg_init(&message);
    for (int i = 0; i < load_options.clients; i++)
        clients[i].socket =
            load_new_socket(load_options.urls[i % load_options.url_count], false);
}

void load_zerodb(void) {
    static zmq_item items[LOAD_CLIENTS_MAX];
    set_up();
    load_begin();
    uint64_t now = load_now_ns(), heard = now;
    while (!load_is_over(now, outstanding)) {
        for (int i = 0; i < load_options.clients; i++) {
            struct client *client = &clients[i];
            while (client->next - client->done < (uint64_t)load_options.window &&
                   load_wants_more(now))
                send_request(client, now);
            items[i] = (zmq_item){.socket = client->socket, .events = ZMQ_POLLIN};
        }
        load_zmq.poll(items, load_options.clients, 20);
        now = load_now_ns();
        for (int i = 0; i < load_options.clients; i++)
            if ((items[i].revents & ZMQ_POLLIN) && drain(&clients[i]))
                heard = now;
        if (outstanding && now > heard + (uint64_t)(load_options.give_up_s * 1e9))
            load_die("no answer");
        now = load_now_ns();
    }
}
