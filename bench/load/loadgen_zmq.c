/* Finds libzmq's functions in pyzmq's shared library (loadgen_zmq.h). */
#define _GNU_SOURCE
#include "loadgen_zmq.h"
#include "loadgen.h"
#include "loadgen_curve.h"

#include <dlfcn.h>
#include <string.h>

enum { SOCKETS_MAX = 4 * LOAD_CLIENTS_MAX };

struct load_zmq load_zmq;

void load_open_libzmq(const char *path) {
    void *library = dlopen(path ? path : "libzmq.so.5", RTLD_NOW);
    if (!library)
        load_die(dlerror());
    const struct {
        void *into;
        const char *name;
    } symbols[] = {
        {&load_zmq.ctx_new, "zmq_ctx_new"},       {&load_zmq.socket, "zmq_socket"},
        {&load_zmq.close, "zmq_close"},           {&load_zmq.setsockopt, "zmq_setsockopt"},
        {&load_zmq.connect, "zmq_connect"},       {&load_zmq.monitor, "zmq_socket_monitor"},
        {&load_zmq.send, "zmq_send"},             {&load_zmq.poll, "zmq_poll"},
        {&load_zmq.msg_init, "zmq_msg_init"},     {&load_zmq.msg_recv, "zmq_msg_recv"},
        {&load_zmq.msg_more, "zmq_msg_more"},     {&load_zmq.msg_data, "zmq_msg_data"},
        {&load_zmq.msg_size, "zmq_msg_size"},     {&load_zmq.msg_send, "zmq_msg_send"},
        {&load_zmq.bind, "zmq_bind"},             {&load_zmq.ctx_set, "zmq_ctx_set"},
    };
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *symbol = dlsym(library, symbols[i].name);
        if (!symbol)
            load_die(symbols[i].name);
        memcpy(symbols[i].into, &symbol, sizeof symbol);
    }
    load_zmq.context = load_zmq.ctx_new();
    /* A closed socket counts until libzmq has removed it, and each has a monitor at most. */
    if (!load_zmq.context || load_zmq.ctx_set(load_zmq.context, ZMQ_MAX_SOCKETS, SOCKETS_MAX) < 0)
        load_die("zmq_ctx_new");
}

static void add_curve(void *socket, const struct load_keys *keys) {
    if (load_zmq.setsockopt(socket, ZMQ_CURVE_SERVERKEY, keys->server, LOAD_KEY_BYTES) < 0 ||
        load_zmq.setsockopt(socket, ZMQ_CURVE_PUBLICKEY, keys->own_public, LOAD_KEY_BYTES) < 0 ||
        load_zmq.setsockopt(socket, ZMQ_CURVE_SECRETKEY, keys->own_secret, LOAD_KEY_BYTES) < 0)
        load_die("this libzmq was built without CURVE");
}

void *load_new_socket(const char *url, bool immediate) {
    const int zero = 0, one = 1, reconnect_ms = 10;
    void *socket = load_zmq.socket(load_zmq.context, ZMQ_DEALER);
    if (!socket)
        load_die("zmq_socket");
    load_zmq.setsockopt(socket, ZMQ_LINGER, &zero, sizeof zero);
    load_zmq.setsockopt(socket, ZMQ_SNDHWM, &zero, sizeof zero);
    load_zmq.setsockopt(socket, ZMQ_RCVHWM, &zero, sizeof zero);
    load_zmq.setsockopt(socket, ZMQ_RECONNECT_IVL, &reconnect_ms, sizeof reconnect_ms);
    if (immediate)
        load_zmq.setsockopt(socket, ZMQ_IMMEDIATE, &one, sizeof one);
    struct load_keys keys;
    if (load_read_keys(&keys, url))
        add_curve(socket, &keys);
    if (load_zmq.connect(socket, url) < 0)
        load_die(url);
    return socket;
}

void load_send_frame(void *socket, const void *data, size_t size, bool more) {
    if (load_zmq.send(socket, data, size, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) < 0)
        load_die("zmq_send");
}
