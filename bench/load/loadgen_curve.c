/* CURVE for the drivers (loadgen_curve.h). */
#define _GNU_SOURCE
#include "loadgen_curve.h"
#include "loadgen.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { NONCE_BYTES = 24, MAC_BYTES = 16, COOKIE_BYTES = 96, FILE_BYTES = 4096 };
enum { HELLO_BYTES = 200, WELCOME_BYTES = 168, FLAG_COMMAND = 4, COMMAND_BYTES_MAX = 1 << 9 };
enum { Z85_CHARACTERS = 40 };

static struct {
    int (*init)(void);
    void (*random)(void *, size_t);
    int (*keypair)(uint8_t *, uint8_t *);
    int (*shared)(uint8_t *, const uint8_t *, const uint8_t *);
    int (*box)(uint8_t *, const uint8_t *, unsigned long long, const uint8_t *, const uint8_t *);
    int (*open)(uint8_t *, const uint8_t *, unsigned long long, const uint8_t *, const uint8_t *);
} sodium;

/* ---- key files ---- */

static void decode_z85(uint8_t *key, const char *text) {
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                 ".-:+=^!/*?&<>()[]{}@%$#";
    for (int i = 0; i < Z85_CHARACTERS; i += 5) {
        uint32_t value = 0;
        for (int k = 0; k < 5; k++) {
            const char *digit = strchr(digits, text[i + k]);
            if (!text[i + k] || !digit)
                load_die("a key file has a malformed key");
            value = value * 85 + (uint32_t)(digit - digits);
        }
        for (int k = 0; k < 4; k++)
            *key++ = (uint8_t)(value >> (24 - 8 * k));
    }
}

/* Reads a key of a file in the format of czmq: NAME = "40 characters of Z85". */
static void read_key(uint8_t *key, const char *path, const char *name) {
    char text[FILE_BYTES + 1] = {0};
    FILE *file = fopen(path, "r");
    if (!file)
        load_die(path);
    size_t size = fread(text, 1, FILE_BYTES, file);
    fclose(file);
    const char *at = strstr(text, name), *quote = at ? strchr(at, '"') : NULL;
    if (!quote || quote + 1 + Z85_CHARACTERS >= text + size)
        load_die("a key file has no key");
    decode_z85(key, quote + 1);
}

bool load_read_keys(struct load_keys *keys, const char *url) {
    const struct load_options *o = &load_options;
    if (!o->own_key)
        return false;
    if (o->server_key_count != o->url_count)
        load_die("--server-keys: as many as --urls");
    read_key(keys->own_public, o->own_key, "public-key");
    read_key(keys->own_secret, o->own_key, "secret-key");
    for (int i = 0; i < o->url_count; i++)
        if (!strcmp(url, o->urls[i])) {
            read_key(keys->server, o->server_keys[i], "public-key");
            return true;
        }
    load_die("no key of this server is known");
}

/* ---- the handshake ---- */

static void open_libsodium(void) {
    if (sodium.init)
        return;
    void *library = dlopen(load_options.libzmq, RTLD_NOW); /* It has libsodium's functions, too. */
    if (!load_options.libzmq || !library)
        load_die("--libzmq: needed for CURVE");
    const struct {
        void *into;
        const char *name;
    } symbols[] = {
        {&sodium.random, "randombytes_buf"},     {&sodium.keypair, "crypto_box_keypair"},
        {&sodium.shared, "crypto_box_beforenm"}, {&sodium.box, "crypto_box_easy_afternm"},
        {&sodium.init, "sodium_init"},           {&sodium.open, "crypto_box_open_easy_afternm"},
    };
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *symbol = dlsym(library, symbols[i].name);
        if (!symbol)
            load_die("this libzmq was built without libsodium");
        memcpy(symbols[i].into, &symbol, sizeof symbol);
    }
    if (sodium.init() < 0)
        load_die("sodium_init");
}

/* A short nonce: 16 characters and a number; a long one: 8 characters and 16 bytes. */
static void short_nonce(uint8_t *nonce, const char *prefix, uint64_t number) {
    memcpy(nonce, prefix, 16);
    for (int i = 0; i < 8; i++)
        nonce[16 + i] = (uint8_t)(number >> (56 - 8 * i));
}

static void long_nonce(uint8_t *nonce, const char *prefix, const uint8_t *rest) {
    memcpy(nonce, prefix, 8);
    memcpy(nonce + 8, rest, 16);
}

static void send_command(int fd, const uint8_t *data, size_t size) {
    uint8_t command[COMMAND_BYTES_MAX + 9] = {FLAG_COMMAND, (uint8_t)size};
    size_t head = 2;
    if (size > UINT8_MAX) {
        command[0] |= 2;
        memset(command + 1, 0, 8);
        command[7] = (uint8_t)(size >> 8);
        command[8] = (uint8_t)size;
        head = 9;
    }
    memcpy(command + head, data, size);
    if (send(fd, command, head + size, MSG_NOSIGNAL) < 0)
        load_die("send");
}

static size_t receive_command(int fd, uint8_t *data, const char *name) {
    uint8_t head[2];
    if (recv(fd, head, 2, MSG_WAITALL) != 2 || head[0] != FLAG_COMMAND ||
        recv(fd, data, head[1], MSG_WAITALL) != head[1])
        load_die("the server has ended the handshake of CURVE");
    if (head[1] < 24 || memcmp(data, name, strlen(name)) != 0)
        load_die("the server has refused the key");
    return head[1];
}

static void make_box(uint8_t *into, const uint8_t *data, size_t size, const uint8_t *nonce,
                     const uint8_t *theirs, const uint8_t *ours) {
    uint8_t key[LOAD_KEY_BYTES];
    if (sodium.shared(key, theirs, ours) || sodium.box(into, data, size, nonce, key))
        load_die("a box cannot be made");
}

/* What INITIATE says in its box: our key, that it vouches for the short-term one, our socket. */
static size_t write_initiate(uint8_t *plain, const struct load_keys *keys,
                             const uint8_t *short_public, const uint8_t *short_server) {
    static const uint8_t METADATA[] = "\13Socket-Type\0\0\0\6DEALER\10Identity\0\0\0\0";
    uint8_t nonce[NONCE_BYTES], vouch[2 * LOAD_KEY_BYTES];
    memcpy(plain, keys->own_public, LOAD_KEY_BYTES);
    sodium.random(plain + 32, 16);
    long_nonce(nonce, "VOUCH---", plain + 32);
    memcpy(vouch, short_public, LOAD_KEY_BYTES);
    memcpy(vouch + LOAD_KEY_BYTES, keys->server, LOAD_KEY_BYTES);
    make_box(plain + 48, vouch, sizeof vouch, nonce, short_server, keys->own_secret);
    memcpy(plain + 128, METADATA, sizeof METADATA - 1);
    return 128 + sizeof METADATA - 1;
}

void load_curve_open(struct load_curve *curve, int fd, const char *url) {
    struct load_keys keys;
    uint8_t ours[LOAD_KEY_BYTES], secret[LOAD_KEY_BYTES], nonce[NONCE_BYTES];
    uint8_t hello[HELLO_BYTES] = "\5HELLO\1", command[COMMAND_BYTES_MAX], zeros[64] = {0};
    uint8_t welcome[LOAD_KEY_BYTES + COOKIE_BYTES], plain[256];
    open_libsodium();
    if (!load_read_keys(&keys, url) || sodium.keypair(ours, secret))
        load_die("--own-key: needed for CURVE");
    memcpy(hello + 80, ours, LOAD_KEY_BYTES);
    short_nonce(nonce, "CurveZMQHELLO---", 1);
    memcpy(hello + 112, nonce + 16, 8);
    make_box(hello + 120, zeros, sizeof zeros, nonce, keys.server, secret);
    send_command(fd, hello, sizeof hello);
    if (receive_command(fd, command, "\7WELCOME") != WELCOME_BYTES)
        load_die("WELCOME is malformed");
    long_nonce(nonce, "WELCOME-", command + 8);
    uint8_t key[LOAD_KEY_BYTES];
    if (sodium.shared(key, keys.server, secret) ||
        sodium.open(welcome, command + 24, sizeof welcome + MAC_BYTES, nonce, key))
        load_die("the server has another key than the one given");
    if (sodium.shared(curve->key, welcome, secret))
        load_die("the server's short-term key is weak");
    size_t size = write_initiate(plain, &keys, ours, welcome);
    memcpy(command, "\10INITIATE", 9);
    memcpy(command + 9, welcome + LOAD_KEY_BYTES, COOKIE_BYTES);
    short_nonce(nonce, "CurveZMQINITIATE", 2);
    memcpy(command + 105, nonce + 16, 8);
    sodium.box(command + 113, plain, size, nonce, curve->key);
    send_command(fd, command, 113 + size + MAC_BYTES);
    receive_command(fd, command, "\5READY");
    curve->nonce = 2;
}

/* ---- messages ---- */

void load_curve_seal(struct load_curve *curve, uint8_t *into, const void *data, size_t size,
                     bool more) {
    uint8_t nonce[NONCE_BYTES], *plain = into + LOAD_CURVE_HEAD + MAC_BYTES;
    short_nonce(nonce, "CurveZMQMESSAGEC", ++curve->nonce);
    memcpy(into, "\7MESSAGE", 8);
    memcpy(into + 8, nonce + 16, 8);
    plain[0] = more;
    if (size)
        memcpy(plain + 1, data, size);
    sodium.box(into + LOAD_CURVE_HEAD, plain, size + 1, nonce, curve->key);
}

uint8_t *load_curve_unseal(const struct load_curve *curve, uint8_t *message, size_t size) {
    uint8_t nonce[NONCE_BYTES], *box = message + LOAD_CURVE_HEAD;
    if (size < LOAD_CURVE_MORE || memcmp(message, "\7MESSAGE", 8) != 0)
        return NULL;
    memcpy(nonce, "CurveZMQMESSAGES", 16);
    memcpy(nonce + 16, message + 8, 8);
    if (sodium.open(box + MAC_BYTES, box, size - LOAD_CURVE_HEAD, nonce, curve->key))
        return NULL;
    return box + MAC_BYTES;
}
