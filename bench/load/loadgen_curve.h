/* CURVE (ZMTP RFC 26) for the drivers: the key files, and a client's side of it without libzmq.
 *
 * The cryptography is that of libsodium, from the library that pyzmq's libzmq uses. */
#ifndef LOADGEN_CURVE_H
#define LOADGEN_CURVE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LOAD_KEY_BYTES = 32, LOAD_CURVE_HEAD = 16, LOAD_CURVE_MORE = LOAD_CURVE_HEAD + 16 + 1 };

/* The keys of one connection, as libzmq's socket options take them. */
struct load_keys {
    uint8_t own_public[LOAD_KEY_BYTES], own_secret[LOAD_KEY_BYTES], server[LOAD_KEY_BYTES];
};

struct load_curve {
    uint8_t key[LOAD_KEY_BYTES]; /* of both sides' short-term keys */
    uint64_t nonce;              /* of the last command sent */
};

/* Reads the keys for a connection to a server: --own-key, and the one of --server-keys that stands
 * where the url stands in --urls. Returns false without --own-key. */
bool load_read_keys(struct load_keys *keys, const char *url);
/* The greeting is done: HELLO to READY over a blocking socket. Ends the process when the server
 * refuses. */
void load_curve_open(struct load_curve *curve, int fd, const char *url);
/* Writes a MESSAGE of size + LOAD_CURVE_MORE bytes. */
void load_curve_seal(struct load_curve *curve, uint8_t *into, const void *data, size_t size,
                     bool more);
/* Opens a MESSAGE in place: returns the flags in front of its data, NULL: it is malformed. */
uint8_t *load_curve_unseal(const struct load_curve *curve, uint8_t *message, size_t size);

#endif
