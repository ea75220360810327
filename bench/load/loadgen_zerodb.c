/* The load generator's ZeroDB driver: Put, Read and Scan in the text framing, packed scans, and
 * with --columns packed puts and reads (docs/protocols/zerodb.md).
 *
 * `window` requests of `batch` rows are outstanding on each connection. All of them are of one type
 * and about one table, so a connection's answers come in the order of its requests; with several
 * tables latencies are those of the order of arrival. Key number n
 * is "%016x" of it, spread over the table by a multiplication: neighbours in time are none in the
 * table. A scan begins where the last one of its connection has ended and counts the rows that
 * come. There is no failover: a refusal voids the run. */
#define _GNU_SOURCE
#include "loadgen.h"
#include "loadgen_zmq.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { KEY_SIZE = 16, WINDOW_MAX = 1 << 12, HEADER_MAX = 64 };
enum { TYPE_READ = 0x10, TYPE_SCAN = 0x13, TYPE_PUT = 0x20, PARTSYNC = 1 };
enum { EXTENSION_SIZE = 25, REQID_SIZE = 12, PACKED = 2, PACKED_BYTES_MAX = 8 << 20 };

struct client {
    void *socket;
    uint64_t sent_at[WINDOW_MAX]; /* a ring: request n of this client is at n % WINDOW_MAX */
    uint64_t next, done;
    char from[KEY_SIZE]; /* scans: where the next one begins, */
    size_t from_size;    /* 0: at the first row */
};

/* What an answer says, as far as it is looked at. */
struct answer {
    bool good;
    uint64_t frames, packed_rows;
    char last_key[KEY_SIZE];
    char next_key[KEY_SIZE];
    size_t next_size;
};

static struct client clients[LOAD_CLIENTS_MAX];
static zmq_message message;
static uint8_t *value;
/* --columns: the offsets and items of a request */
static uint32_t *key_offsets, *value_offsets;
static char *column_keys;
static uint8_t *column_values, reqid[REQID_SIZE];
static uint64_t keys_used, requests, outstanding;

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
    if (load_options.op == LOAD_PACKED || load_options.columns) {
        const uint32_t bytes_max = PACKED_BYTES_MAX;
        memset(header + size, 0, EXTENSION_SIZE);
        memcpy(header + size, "\x6b\x4c\x4b\x01", 4);
        header[size + 4] = PACKED;
        memcpy(header + size + 9, reqid, REQID_SIZE);
        memcpy(header + size + 21, &bytes_max, sizeof bytes_max);
        size += EXTENSION_SIZE;
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

static void send_columns(struct client *client) {
    size_t rows = (size_t)load_options.batch, offsets = (rows + 1) * sizeof *key_offsets;
    bool put = load_options.op == LOAD_PUT;
    for (size_t i = 0; i < rows; i++)
        write_key(column_keys + i * KEY_SIZE, keys_used++);
    load_send_frame(client->socket, key_offsets, offsets, true);
    load_send_frame(client->socket, column_keys, rows * KEY_SIZE, put);
    if (!put)
        return;
    load_send_frame(client->socket, value_offsets, offsets, true);
    load_send_frame(client->socket, column_values, rows * load_options.size, false);
}

static void send_scan(struct client *client) {
    uint64_t limit = (uint64_t)load_options.batch;
    load_send_frame(client->socket, &limit, sizeof limit, true); /* Little endian, as we are. */
    load_send_frame(client->socket, client->from, client->from_size, true);
    load_send_frame(client->socket, "", 0, false);
}

static void send_request(struct client *client, uint64_t now) {
    uint8_t header[HEADER_MAX];
    uint32_t table = (uint32_t)(load_options.table + requests++ % load_options.tables);
    for (int i = 0; i < 3; i++) /* Seconds and process, from set_up(), and this counter. */
        reqid[9 + i] = (uint8_t)(requests >> (16 - 8 * i));
    load_send_frame(client->socket, header, write_header(header), true);
    load_send_frame(client->socket, &table, sizeof table, true);
    if (load_options.op >= LOAD_SCAN)
        send_scan(client);
    else if (load_options.columns)
        send_columns(client);
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
static uint64_t scan_on(struct client *client, const struct answer *answer) {
    if (load_options.op == LOAD_PACKED) {
        memcpy(client->from, answer->next_key, KEY_SIZE);
        client->from_size = answer->next_size;
        return answer->packed_rows;
    }
    uint64_t rows = answer->frames / 2;
    memcpy(client->from, answer->last_key, KEY_SIZE);
    client->from_size = rows < (uint64_t)load_options.batch ? 0 : KEY_SIZE;
    for (int i = KEY_SIZE; i-- > 0 && ++client->from[i] > 'f';)
        client->from[i] = '0';
    return rows;
}

static void on_answer(struct client *client, const struct answer *answer) {
    uint64_t now = load_now_ns(), batch = (uint64_t)load_options.batch, rows = batch;
    uint64_t wanted = load_options.op != LOAD_GET ? 0 : load_options.columns ? 3 : batch;
    if (client->done == client->next) {
        load_counters.stray++;
        return;
    }
    outstanding -= batch;
    uint64_t sent_at = client->sent_at[client->done++ % WINDOW_MAX];
    if (!answer->good) {
        load_counters.rejected += batch;
        return;
    }
    if (load_options.op >= LOAD_SCAN) {
        rows = scan_on(client, answer);
        load_counters.sent -= batch - rows;
    } else if (answer->frames != wanted) {
        load_counters.malformed++;
    }
    load_commit(sent_at, now, rows);
}

/* Keys and values: frames 1, 3, 5 .. and 2, 4, 6 ..; packed: key offsets, keys, value offsets,
 * values, the key to go on from. */
static void look_at(struct answer *answer, const void *data, size_t size) {
    if (load_options.op == LOAD_PACKED && answer->frames == 1)
        answer->packed_rows = size / 4 - 1;
    if (load_options.op == LOAD_PACKED && answer->frames == 5) {
        if (size != 0 && size != KEY_SIZE)
            load_die("the key to go on from is none of ours");
        answer->next_size = size;
        memcpy(answer->next_key, data, size);
    }
    if (answer->frames % 2 == 1 && size == KEY_SIZE)
        memcpy(answer->last_key, data, KEY_SIZE);
}

/* Takes in all that waits. */
static bool drain(struct client *client) {
    bool any = false;
    while (load_zmq.msg_recv(&message, client->socket, ZMQ_DONTWAIT) >= 0) {
        struct answer answer = {0};
        answer.good = is_good(load_zmq.msg_data(&message), load_zmq.msg_size(&message));
        any = true;
        while (load_zmq.msg_more(&message)) {
            if (load_zmq.msg_recv(&message, client->socket, ZMQ_DONTWAIT) < 0)
                load_die("zmq_msg_recv");
            answer.frames++;
            look_at(&answer, load_zmq.msg_data(&message), load_zmq.msg_size(&message));
        }
        on_answer(client, &answer);
    }
    return any;
}

/* The offsets and values of all requests, and what their reqids have in common. */
static void set_up_columns(void) {
    size_t rows = (size_t)load_options.batch, size = load_options.size;
    key_offsets = malloc((rows + 1) * sizeof *key_offsets);
    value_offsets = malloc((rows + 1) * sizeof *value_offsets);
    column_keys = malloc(rows * KEY_SIZE);
    column_values = malloc(rows * size);
    if (!key_offsets || !value_offsets || !column_keys || !column_values)
        load_die("out of memory");
    for (size_t i = 0; i <= rows; i++) {
        key_offsets[i] = (uint32_t)(i * KEY_SIZE);
        value_offsets[i] = (uint32_t)(i * size);
    }
    for (size_t i = 0; i < rows; i++)
        memcpy(column_values + i * size, value, size);
    uint32_t seconds = (uint32_t)time(NULL);
    for (int i = 0; i < 4; i++)
        reqid[i] = (uint8_t)(seconds >> (24 - 8 * i));
    uint64_t now = load_now_ns();
    memcpy(reqid + 4, &now, 5);
}

static void set_up(void) {
    if (load_options.batch < 1 || load_options.window > WINDOW_MAX || load_options.keys < 1 ||
        load_options.tables < 1)
        load_die("--batch, --window, --keys, --tables: out of range");
    if (load_options.op >= LOAD_SCAN && load_options.window != 1)
        load_die("a scan goes on where the last one ended: --window 1");
    load_open_libzmq(load_options.libzmq);
    value = malloc(load_options.size);
    if (!value)
        load_die("out of memory");
    uint64_t seed = load_now_ns();
    for (size_t i = 0; i < load_options.size; i++) /* Half of it random: compressible by half. */
        value[i] = i % 2 ? 'v' : (uint8_t)((seed = seed * 6364136223846793005u + 1) >> 56);
    set_up_columns();
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
