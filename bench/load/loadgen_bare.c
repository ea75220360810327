/* The least that a broker on libzmq can be, to see what the machine and libzmq leave to any: two
 * ROUTERs, and a worker's request at a time. It takes in all that has come, matches, sends. No
 * request is checked, remembered or bounded, no worker is held dead, and it serves one service.
 *
 * --urls CLIENTS,WORKERS; it runs until it is killed. */
#define _GNU_SOURCE
#include "loadgen.h"
#include "loadgen_zmq.h"

#include <string.h>

enum { FRAMES_MAX = 8, WAITING_MAX = 1 << 12, WORKERS_MAX = 1 << 10 };

static void *clients, *workers;
static zmq_message requests[WAITING_MAX][FRAMES_MAX];
static zmq_message idle[WORKERS_MAX];
static uint32_t first_request, last_request, first_idle, last_idle; /* They only grow. */

static void *bound(const char *url) {
    const int zero = 0;
    void *socket = load_zmq.socket(load_zmq.context, ZMQ_ROUTER);
    if (!socket)
        load_die("zmq_socket");
    load_zmq.setsockopt(socket, ZMQ_SNDHWM, &zero, sizeof zero);
    load_zmq.setsockopt(socket, ZMQ_RCVHWM, &zero, sizeof zero);
    if (load_zmq.bind(socket, url) < 0)
        load_die(url);
    return socket;
}

/* Receives a message of a known shape; returns its frames, 0: none waits. */
static int take(void *socket, zmq_message *frames) {
    int count = 0;
    do {
        if (count == FRAMES_MAX)
            load_die("a message has too many frames");
        load_zmq.msg_init(&frames[count]);
        if (load_zmq.msg_recv(&frames[count], socket, ZMQ_DONTWAIT) < 0)
            return 0;
    } while (load_zmq.msg_more(&frames[count++]));
    return count;
}

static void pass(void *socket, zmq_message *frame, bool more) {
    if (load_zmq.msg_send(frame, socket, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) < 0)
        load_die("zmq_msg_send");
}

static void match(void) {
    for (; first_request != last_request && first_idle != last_idle; first_request++) {
        zmq_message *request = requests[first_request % WAITING_MAX];
        pass(workers, &idle[first_idle++ % WORKERS_MAX], true);
        load_send_frame(workers, "KLKW01", 6, true);
        load_send_frame(workers, "\2", 1, true);
        pass(workers, &request[0], true);
        load_send_frame(workers, "", 0, true);
        pass(workers, &request[4], true);
        pass(workers, &request[5], false);
    }
}

static bool take_answer(void) {
    zmq_message frames[FRAMES_MAX];
    int count = take(workers, frames);
    if (!count)
        return false;
    const uint8_t *command = load_zmq.msg_data(&frames[2]);
    if (load_zmq.msg_size(&frames[2]) != 1) { /* A PING. */
        pass(workers, &frames[0], true);
        load_send_frame(workers, "KLKW01", 6, true);
        load_send_frame(workers, "PONG", 4, false);
        return true;
    }
    if (*command == 4) {
        pass(clients, &frames[3], true);
        load_send_frame(clients, "KLKC01", 6, true);
        load_send_frame(clients, "\3", 1, true);
        load_send_frame(clients, "echo", 4, true);
        pass(clients, &frames[5], true);
        pass(clients, &frames[6], false);
    }
    idle[last_idle++ % WORKERS_MAX] = frames[0];
    return true;
}

_Noreturn void load_bare(void) {
    if (load_options.url_count != 2)
        load_die("--urls CLIENTS,WORKERS");
    load_open_libzmq(load_options.libzmq);
    clients = bound(load_options.urls[0]);
    workers = bound(load_options.urls[1]);
    zmq_item items[] = {{.socket = workers, .events = ZMQ_POLLIN},
                        {.socket = clients, .events = ZMQ_POLLIN}};
    for (;;) {
        load_zmq.poll(items, 2, -1);
        while (take_answer())
            match();
        while (last_request - first_request < WAITING_MAX &&
               take(clients, requests[last_request % WAITING_MAX]))
            last_request++;
        match();
    }
}
