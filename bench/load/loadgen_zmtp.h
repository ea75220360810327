/* A DEALER's connection to a ROUTER, without libzmq: ZMTP 3.0 (RFC 23) with the NULL mechanism, or
 * with CURVE if there are keys.
 *
 * libzmq gives each side a thread for its sockets, and each message two hand-overs between threads.
 * On a machine whose two cores are for what is measured that would be measured as its slowness:
 * here a message costs its system calls, and many share them. */
#ifndef LOADGEN_ZMTP_H
#define LOADGEN_ZMTP_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "loadgen_curve.h"

enum { LOAD_ZMTP_FRAMES_MAX = 16 }; /* of a message that is received */
enum { LOAD_BUNDLE_BYTES_MAX = 16383 };

struct load_frame {
    uint8_t *data; /* into the connection's buffer, until it is filled again */
    size_t size;
};

struct load_zmtp {
    int fd;
    bool has_curve;
    struct load_curve curve;
    uint8_t *in, *out, *sealed; /* sealed: received with CURVE, not opened yet */
    size_t in_from, in_to, in_size;
    size_t out_from, out_to, out_size;
    size_t sealed_from, sealed_to, sealed_size;
    bool sends_bundles; /* of the broker protocol; those that come are opened always */
    uint8_t bundle[LOAD_BUNDLE_BYTES_MAX + 1];
    size_t bundle_size, message_at; /* 0: nothing is in it; no message grows */
    struct load_frame opened;       /* what is left of a bundle that came */
};

/* Connects to tcp://HOST:PORT, and tries until a server listens; ends the process when
 * load_options.give_up_s have passed. */
void load_zmtp_open(struct load_zmtp *connection, const char *url);
/* What was not sent and what was not taken is lost; it may be opened again. */
void load_zmtp_close(struct load_zmtp *connection);
/* Adds a frame to what load_zmtp_flush() sends. */
void load_zmtp_frame(struct load_zmtp *connection, const void *data, size_t size, bool more);
/* Sends as much as the other side takes; returns whether something is left. */
bool load_zmtp_flush(struct load_zmtp *connection);
/* Receives once, as much as there is; ends the process when the other side has gone. */
void load_zmtp_fill(struct load_zmtp *connection);
/* The next whole message: returns its frames, 0: none is there. */
int load_zmtp_take(struct load_zmtp *connection, struct load_frame *frames);

#endif
