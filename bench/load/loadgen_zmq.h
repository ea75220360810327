/* pyzmq's shared library, found by path, for the drivers that speak ZeroMQ.
 *
 * The few declarations here are libzmq's stable ABI: no header, no Debian package is needed. */
#ifndef LOADGEN_ZMQ_H
#define LOADGEN_ZMQ_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ZMQ_MAX_SOCKETS = 2, /* Of a context. */
    ZMQ_PAIR = 0,
    ZMQ_DEALER = 5,
    ZMQ_ROUTER = 6,
    ZMQ_LINGER = 17,
    ZMQ_RECONNECT_IVL = 18,
    ZMQ_SNDHWM = 23,
    ZMQ_RCVHWM = 24,
    ZMQ_IMMEDIATE = 39,
    ZMQ_CURVE_PUBLICKEY = 48,
    ZMQ_CURVE_SECRETKEY = 49,
    ZMQ_CURVE_SERVERKEY = 50,
    ZMQ_POLLIN = 1,
    ZMQ_DONTWAIT = 1,
    ZMQ_SNDMORE = 2,
    ZMQ_EVENT_DISCONNECTED = 0x0200
};

typedef struct {
    _Alignas(8) unsigned char opaque[64];
} zmq_message;

typedef struct {
    void *socket;
    int fd;
    short events, revents;
} zmq_item;

struct load_zmq {
    void *context;
    void *(*ctx_new)(void);
    int (*ctx_set)(void *, int, int);
    void *(*socket)(void *, int);
    int (*close)(void *);
    int (*setsockopt)(void *, int, const void *, size_t);
    int (*connect)(void *, const char *);
    int (*bind)(void *, const char *);
    int (*monitor)(void *, const char *, int);
    int (*send)(void *, const void *, size_t, int);
    int (*poll)(zmq_item *, int, long);
    int (*msg_init)(zmq_message *);
    int (*msg_recv)(zmq_message *, void *, int);
    int (*msg_send)(zmq_message *, void *, int);
    int (*msg_more)(const zmq_message *);
    void *(*msg_data)(zmq_message *);
    size_t (*msg_size)(const zmq_message *);
};

extern struct load_zmq load_zmq;

/* Finds the library's functions and makes a context; ends the process when it is not there. */
void load_open_libzmq(const char *path);
/* A DEALER that is connected to url, with CURVE if there are keys. `immediate`: it queues nothing
 * before the connection is there. */
void *load_new_socket(const char *url, bool immediate);
void load_send_frame(void *socket, const void *data, size_t size, bool more);

#endif
