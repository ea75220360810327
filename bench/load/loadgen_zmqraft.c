/* The load generator's ZMQ RAFT driver: RequestUpdate in text or node form, or packs of our own.
 *
 * The leader is looked for with RequestConfig on
 * connections to all peers that stay open; that it is gone is noticed by the socket monitor (the
 * connection broke) or by load_options.timeout_ns without an answer. */
#define _GNU_SOURCE
#include "loadgen.h"
#include "loadgen_zmq.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/timerfd.h>
#endif
#include <time.h>
#include <unistd.h>

/* ---- one request: an update, or a pack of them ---- */

enum { ID_SIZE = 12, FRAMES_MAX = 8, ROUND_MS = 10, PAUSE_US = 50 };

struct slot {
    uint8_t id[ID_SIZE];
    uint8_t previous[ID_SIZE]; /* packs: the update of this client that must be known before */
    bool busy, has_previous;
    int client;
    uint32_t counter; /* the 3 bytes at the end of the first update's id */
    uint32_t seconds; /* the 4 bytes at its start: ids are made again for a repeat */
    uint64_t first_sent, heard;
};

struct client {
    void *socket;
    int outstanding; /* updates */
    bool in_order;   /* packs: something was sent before */
    uint8_t last_id[ID_SIZE];
};

static void *probes[LOAD_URLS_MAX];
static void *monitor;
static int monitors_made;
static struct client clients[LOAD_CLIENTS_MAX];
static struct slot *slots; /* the request numbered n is in slots[n & slot_mask] */
static uint32_t slot_mask;
static uint64_t low, next; /* requests below `low` are done; `next` is the next one's number */
static uint64_t outstanding;
static uint8_t machine[5];
static uint8_t question_id[ID_SIZE]; /* new for each search: older answers don't count */
static uint8_t *payload, *pack;
static int leader;
static bool leader_lost;
static zmq_message frames[FRAMES_MAX];

static uint32_t records_of_request(void) {
    return load_options.pack ? (uint32_t)load_options.pack : 1u;
}

/* Seconds, machine and process, counter; all big endian, so that ids sort by time. */
static void write_id(uint8_t *id, uint32_t seconds, uint32_t counter) {
    for (int i = 0; i < 4; i++)
        id[i] = (uint8_t)(seconds >> (24 - 8 * i));
    memcpy(id + 4, machine, sizeof machine);
    for (int i = 0; i < 3; i++)
        id[9 + i] = (uint8_t)(counter >> (16 - 8 * i));
}

static size_t write_varint(uint8_t *at, size_t value) {
    size_t size = 0;
    for (; value > 127; value >>= 7)
        at[size++] = (uint8_t)(value | 128);
    at[size++] = (uint8_t)value;
    return size;
}

/* The records of a pack: varint size | tag 0x80 (state, a reqid follows) | reqid | data. */
static size_t write_pack(const struct slot *slot) {
    size_t size = 0;
    for (uint32_t i = 0; i < records_of_request(); i++) {
        size += write_varint(pack + size, 1 + ID_SIZE + load_options.size);
        pack[size++] = 0x80;
        write_id(pack + size, slot->seconds, slot->counter + i);
        memcpy(pack + size + ID_SIZE, payload, load_options.size);
        size += ID_SIZE + load_options.size;
    }
    return size;
}

static void send_request(struct slot *slot, uint64_t now) {
    void *socket = clients[slot->client].socket;
    const char *ident = load_options.ident;
    slot->heard = now;
    load_send_frame(socket, slot->id, ID_SIZE, true);
    if (load_options.reads) {
        load_send_frame(socket, "kR", 2, true);
        load_send_frame(socket, ident, strlen(ident), false);
        return;
    }
    load_send_frame(socket, load_options.pack ? "k=" : "=", load_options.pack ? 2 : 1, true);
    if (ident)
        load_send_frame(socket, ident, strlen(ident), true);
    if (load_options.pack) {
        load_send_frame(socket, slot->previous, slot->has_previous ? ID_SIZE : 0, true);
        load_send_frame(socket, pack, write_pack(slot), false);
    } else {
        load_send_frame(socket, payload, load_options.size, false);
    }
}

/* One new request on a client; false when its slot is still held by an old one. */
static bool send_new(int number, uint64_t now) {
    struct slot *slot = &slots[next & slot_mask];
    struct client *client = &clients[number];
    uint32_t records = records_of_request();
    if (slot->busy)
        return false;
    slot->busy = true;
    slot->client = number;
    slot->seconds = (uint32_t)time(NULL);
    slot->counter = (uint32_t)(next * records) & 0xffffffu;
    slot->first_sent = load_due_ns(now);
    if (load_options.rate)
        load_note_late(slot->first_sent, now, records);
    write_id(slot->id, slot->seconds, slot->counter);
    slot->has_previous = client->in_order && client->outstanding != 0;
    memcpy(slot->previous, client->last_id, ID_SIZE);
    write_id(client->last_id, slot->seconds, slot->counter + records - 1);
    client->in_order = true;
    client->outstanding += (int)records;
    outstanding += records;
    load_counters.sent += records;
    next++;
    send_request(slot, now);
    return true;
}

/* A pack larger than the window goes out alone. */
static bool has_room(const struct client *client) {
    int records = (int)records_of_request();
    return client->outstanding == 0 || client->outstanding + records <= load_options.window;
}

static void fill_windows(uint64_t now) {
    for (int i = 0; i < load_options.clients; i++)
        while (has_room(&clients[i]) && load_may_send(now)) {
            if (!send_new(i, now))
                return;
            if (load_options.rate)
                break; /* The next one is another client's. */
        }
}

/* ---- answers ---- */

/* Reads one message into `frames`; the number of its frames, or 0 when nothing waits. */
static int receive(void *socket) {
    if (load_zmq.msg_recv(&frames[0], socket, ZMQ_DONTWAIT) < 0)
        return 0;
    int count = 1;
    for (const zmq_message *last = &frames[0]; load_zmq.msg_more(last); count++) {
        int into = count < FRAMES_MAX ? count : FRAMES_MAX - 1;
        if (load_zmq.msg_recv(&frames[into], socket, ZMQ_DONTWAIT) < 0)
            break;
        last = &frames[into];
    }
    return count;
}

static const uint8_t *frame(int i) { return load_zmq.msg_data(&frames[i]); }
static size_t frame_size(int i) { return load_zmq.msg_size(&frames[i]); }

static struct slot *slot_of_answer(void) {
    if (frame_size(0) != ID_SIZE)
        return NULL;
    const uint8_t *id = frame(0);
    uint32_t counter = (uint32_t)id[9] << 16 | (uint32_t)id[10] << 8 | id[11];
    struct slot *slot = &slots[counter / records_of_request() & slot_mask];
    return slot->busy && !memcmp(slot->id, id, ID_SIZE) ? slot : NULL;
}

static void release(struct slot *slot) {
    slot->busy = false;
    clients[slot->client].outstanding -= (int)records_of_request();
    outstanding -= records_of_request();
    while (low < next && !slots[low & slot_mask].busy)
        low++;
}

static void finish(struct slot *slot, uint64_t now, uint64_t index) {
    if (index > load_counters.last_index)
        load_counters.last_index = index;
    load_commit(slot->first_sent, now, records_of_request());
    release(slot);
}

/* A msgpack unsigned integer; 0 when it is none. */
static uint64_t read_msgpack_uint(const uint8_t *data, size_t size) {
    if (size == 1 && data[0] < 128)
        return data[0];
    if (size < 2 || data[0] < 0xcc || data[0] > 0xcf || size != 1 + ((size_t)1 << (data[0] - 0xcc)))
        return 0;
    uint64_t value = 0;
    for (size_t i = 1; i < size; i++)
        value = value << 8 | data[i];
    return value;
}

static void resend_client(int number, uint64_t now) {
    for (uint64_t n = low; n < next; n++) {
        struct slot *slot = &slots[n & slot_mask];
        if (slot->busy && slot->client == number) {
            send_request(slot, now);
            load_counters.repeated += records_of_request();
        }
    }
}

/* [id, status, index or leader?]: the answer to a plain update. */
static void on_update_answer(struct slot *slot, int count, uint64_t now) {
    bool taken = frame_size(1) != 0 && frame(1)[0] != 0;
    slot->heard = now;
    if (taken && count == 2) {
        load_counters.accepted++;
    } else if (taken) {
        uint64_t index = read_msgpack_uint(frame(2), frame_size(2));
        if (index != 0)
            finish(slot, now, index);
        else
            load_counters.malformed++;
    } else if (count == 2) {
        load_counters.rejected++;
        release(slot);
    } else {
        load_counters.refused++;
        leader_lost = true;
    }
}

/* [id, 6b 3d, status, payload]: the answer to a pack. */
static void on_pack_answer(struct slot *slot, uint64_t now) {
    uint8_t status = frame_size(2) ? frame(2)[0] : 255;
    const uint8_t *runs = frame(3);
    size_t size = frame_size(3);
    slot->heard = now;
    if (status == 1 && size == 0) {
        load_counters.accepted++;
    } else if (status == 1 && size % 12 == 0) {
        uint64_t records = 0, last_index = 0;
        for (size_t i = 0; i < size; i += 12) {
            uint32_t length;
            uint64_t first_index;
            memcpy(&length, runs + i, sizeof length);
            memcpy(&first_index, runs + i + 4, sizeof first_index);
            records += length;
            last_index = first_index + length - 1;
        }
        if (records == records_of_request())
            finish(slot, now, last_index);
        else
            load_counters.malformed++;
    } else if (status == 0) {
        load_counters.refused++;
        leader_lost = true;
    } else if (status == 2) {
        resend_client(slot->client, now);
    } else if (status == 3) {
        load_counters.rejected += records_of_request();
        release(slot);
    } else {
        load_counters.malformed++;
    }
}

/* [id, 6b 52, status, payload]: the answer to a read. */
static void on_read_answer(struct slot *slot, uint64_t now) {
    uint8_t status = frame_size(2) ? frame(2)[0] : 255;
    size_t size = frame_size(3);
    slot->heard = now;
    if (status == 1 && size == 0) {
        load_counters.accepted++;
    } else if (status == 1 && size <= sizeof(uint64_t)) {
        uint64_t index = 0;
        memcpy(&index, frame(3), size);
        finish(slot, now, index);
    } else if (status == 0) {
        load_counters.refused++;
        leader_lost = true;
    } else {
        load_counters.malformed++;
    }
}

static void drain_client(int number, uint64_t now) {
    for (int count; (count = receive(clients[number].socket)) != 0;) {
        struct slot *slot = slot_of_answer();
        if (!slot)
            load_counters.stray++;
        else if (load_options.reads && count == 4)
            on_read_answer(slot, now);
        else if (load_options.pack ? count == 4 : count == 2 || count == 3)
            load_options.pack ? on_pack_answer(slot, now) : on_update_answer(slot, count, now);
        else
            load_counters.malformed++;
    }
}

/* ---- the leader ---- */

/* Asks a peer who leads; with ZMQ_IMMEDIATE nothing is queued for one that is not there. */
static void ask(void *probe) {
    const char *ident = load_options.ident;
    if (load_zmq.send(probe, question_id, ID_SIZE, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0)
        return;
    load_send_frame(probe, "^", 1, ident != NULL);
    if (ident)
        load_send_frame(probe, ident, strlen(ident), false);
}

/* Only a peer that says of itself that it leads counts: no third party's word is needed. */
static bool says_it_leads(void) {
    if (frame_size(0) != ID_SIZE || memcmp(frame(0), question_id, ID_SIZE) != 0)
        return false;
    return frame_size(1) != 0 && frame(1)[0] != 0;
}

static int round_of_questions(void) {
    zmq_item items[LOAD_URLS_MAX];
    for (int i = 0; i < load_options.url_count; i++) {
        items[i] = (zmq_item){.socket = probes[i], .events = ZMQ_POLLIN};
        ask(probes[i]);
    }
    uint64_t until = load_now_ns() + ROUND_MS * 1000000u;
    for (uint64_t now = load_now_ns(); now < until; now = load_now_ns()) {
        load_zmq.poll(items, load_options.url_count, (long)((until - now) / 1000000u) + 1);
        for (int i = 0; i < load_options.url_count; i++)
            for (int count; (count = receive(probes[i])) != 0;)
                if (count >= 3 && says_it_leads())
                    return i;
    }
    return -1;
}

static void watch(void *socket) {
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "inproc://monitor-%d", monitors_made++);
    if (monitor)
        load_zmq.close(monitor);
    if (load_zmq.monitor(socket, endpoint, ZMQ_EVENT_DISCONNECTED) < 0)
        load_die("zmq_socket_monitor");
    monitor = load_zmq.socket(load_zmq.context, ZMQ_PAIR);
    if (!monitor || load_zmq.connect(monitor, endpoint) < 0)
        load_die("monitor");
}

/* Finds the leader, connects every client to it and sends again what is unanswered, in order. */
static void find_leader(void) {
    uint64_t until = load_now_ns() + (uint64_t)(load_options.give_up_s * 1e9);
    write_id(question_id, (uint32_t)time(NULL), (uint32_t)load_counters.searches++);
    do {
        if (load_now_ns() > until)
            load_die("no leader");
        leader = round_of_questions();
    } while (leader < 0);
    for (int i = 0; i < load_options.clients; i++) {
        if (clients[i].socket)
            load_zmq.close(clients[i].socket);
        clients[i].socket = load_new_socket(load_options.urls[leader], false);
    }
    watch(clients[0].socket);
    uint64_t now = load_now_ns();
    for (int i = 0; i < load_options.clients; i++)
        resend_client(i, now);
    leader_lost = false;
}

/* A single request may get no answer at all (the peer's intake was full): it is sent again. */
static void repeat_overdue(uint64_t now, uint64_t any_heard) {
    if (outstanding && now > any_heard + load_options.timeout_ns) {
        leader_lost = true;
        return;
    }
    for (uint64_t n = low; n < next; n++) {
        struct slot *slot = &slots[n & slot_mask];
        if (slot->busy && now > slot->heard + load_options.timeout_ns) {
            if (load_options.pack) {
                resend_client(slot->client, now);
            } else {
                send_request(slot, now);
                load_counters.repeated++;
            }
        }
    }
}

static uint64_t window_of_all(void) {
    return (uint64_t)load_options.clients * (uint64_t)load_options.window;
}

/* The next update of an open loop may be due sooner than poll can wait: a timer, as one more item,
 * ends the poll then. Without timers the loop looks every PAUSE_US. */
static void wait_for(zmq_item *items, int count, uint64_t now) {
    if (!load_options.rate) {
        load_zmq.poll(items, count, 20);
        return;
    }
#ifdef __linux__
    static int timer = -1;
    if (timer < 0 && (timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) < 0)
        load_die("timerfd_create");
    uint64_t due = load_due_ns(now);
    struct itimerspec at = {.it_value = {(time_t)(due / 1000000000u), (long)(due % 1000000000u)}};
    if (load_wants_more(now) && outstanding < window_of_all())
        timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
    items[count] = (zmq_item){.fd = timer, .events = ZMQ_POLLIN};
    load_zmq.poll(items, count + 1, 20);
    at.it_value = (struct timespec){0};
    timerfd_settime(timer, 0, &at, NULL);
#else
    const struct timespec pause = {.tv_nsec = PAUSE_US * 1000};
    if (!load_zmq.poll(items, count, 0))
        nanosleep(&pause, NULL);
#endif
}

static void set_up(void) {
    load_open_libzmq(load_options.libzmq);
    uint32_t requests = 1024;
    uint32_t updates = (uint32_t)(load_options.clients * load_options.window);
    while (requests < updates * 4 / records_of_request())
        requests *= 2;
    slot_mask = requests - 1;
    slots = calloc(requests, sizeof *slots);
    payload = malloc(load_options.size);
    pack = malloc((size_t)records_of_request() * (load_options.size + ID_SIZE + 8));
    if (!slots || !payload || !pack)
        load_die("out of memory");
    memset(payload, 'v', load_options.size);
    uint64_t now = load_now_ns();
    uint32_t process = (uint32_t)getpid();
    for (int i = 0; i < 3; i++)
        machine[i] = (uint8_t)(now >> (10 + 8 * i)); /* Differs from run to run. */
    machine[3] = (uint8_t)(process >> 8);
    machine[4] = (uint8_t)process;
    for (int i = 0; i < FRAMES_MAX; i++)
        load_zmq.msg_init(&frames[i]);
    for (int i = 0; i < load_options.url_count; i++)
        probes[i] = load_new_socket(load_options.urls[i], true);
}

void load_zmqraft(void) {
    static zmq_item items[LOAD_CLIENTS_MAX + 2];
    set_up();
    find_leader();
    load_begin();
    uint64_t now = load_now_ns(), heard = now, scanned = now;
    while (!load_is_over(now, outstanding)) {
        if (leader_lost) {
            find_leader();
            heard = load_now_ns();
        }
        do {
            fill_windows(now);
        } while (load_options.rate && load_may_send(now) && outstanding < window_of_all());
        for (int i = 0; i < load_options.clients; i++)
            items[i] = (zmq_item){.socket = clients[i].socket, .events = ZMQ_POLLIN};
        items[load_options.clients] = (zmq_item){.socket = monitor, .events = ZMQ_POLLIN};
        wait_for(items, load_options.clients + 1, now);
        now = load_now_ns();
        for (int i = 0; i < load_options.clients; i++)
            if (items[i].revents & ZMQ_POLLIN) {
                heard = now;
                drain_client(i, now);
            }
        if (items[load_options.clients].revents & ZMQ_POLLIN)
            while (receive(monitor))
                leader_lost = true;
        if (now > scanned + 50000000u) {
            repeat_overdue(now, heard);
            scanned = now;
        }
        now = load_now_ns();
    }
}
