/* Addresses that connect so often that the kernel has to refuse them. */
#define _GNU_SOURCE
#include "refused.h"

#include <string.h>
#if defined(__linux__)
#include <linux/filter.h>
#endif

int klk_peer_of(int fd, union klk_peer *peer) {
    socklen_t size = sizeof *peer;
    memset(peer, 0, sizeof *peer);
    return getpeername(fd, &peer->any, &size) == 0 ? peer->any.sa_family : AF_UNSPEC;
}

struct klk_address klk_address_of(int fd) {
    struct klk_address address = {{0}, 1};
    union klk_peer peer;
    const uint8_t *found = (const uint8_t *)&peer.v4.sin_addr;
    if (klk_peer_of(fd, &peer) == AF_INET6) {
        found = (const uint8_t *)&peer.v6.sin6_addr;
        if (IN6_IS_ADDR_V4MAPPED(&peer.v6.sin6_addr))
            found += 12;
        else
            address.count = 2;
    }
    memcpy(address.words, found, address.count * sizeof *address.words);
    return address;
}

#if defined(__linux__)
enum { ACCEPTS = 0x40000, LENGTH_MAX = 8 }; /* Instructions for an address. */

static void add(struct sock_fprog *program, uint16_t code, uint32_t value, uint8_t skip) {
    program->filter[program->len++] = (struct sock_filter){code, 0, skip, value};
}

/* Drops what an address sends. */
static void add_address(struct sock_fprog *program, const struct klk_address *address) {
    int is_4 = address->count == 1;
    uint32_t at = (uint32_t)(SKF_NET_OFF + (is_4 ? 12 : 8)); /* The source, in the header of IP. */
    uint8_t left = (uint8_t)(2 * address->count + 1);
    add(program, BPF_LD | BPF_B | BPF_ABS, (uint32_t)SKF_NET_OFF, 0);
    add(program, BPF_ALU | BPF_RSH | BPF_K, 4, 0);
    add(program, BPF_JMP | BPF_JEQ | BPF_K, is_4 ? 4 : 6, left);
    for (uint32_t w = 0; w < address->count; w++) {
        left = (uint8_t)(left - 2);
        add(program, BPF_LD | BPF_W | BPF_ABS, at + 4 * w, 0);
        add(program, BPF_JMP | BPF_JEQ | BPF_K, ntohl(address->words[w]), left);
    }
    add(program, BPF_RET | BPF_K, 0, 0);
}
#endif

/* Has the kernel drop what refused addresses send to our listeners. An accepted connection keeps
 * the filter of its time, which does not have its own address. Only Linux has such filters. */
static void listeners_filter(const struct klk_connections *c) {
#if defined(__linux__)
    struct sock_filter code[LENGTH_MAX * KLK_REFUSED_MAX + 1];
    struct sock_fprog program = {0, code};
    for (const struct klk_refused *r = c->excess; r < c->excess + KLK_REFUSED_MAX; r++)
        if (r->until_ms) add_address(&program, &r->address);
    add(&program, BPF_RET | BPF_K, ACCEPTS, 0);
    for (const struct klk_endpoint *e = c->endpoints; e < c->endpoints + KLK_ENDPOINTS_MAX; e++)
        for (uint32_t i = 0; e->monitor && i < e->bound && i < KLK_LISTENERS_MAX; i++)
            setsockopt(e->listeners[i], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
#else
    (void)c;
#endif
}

static int is_same(const struct klk_address *one, const struct klk_address *other) {
    return one->count == other->count && !memcmp(one->words, other->words, sizeof one->words);
}

/* The place of an address, or the oldest one that is not refused now. */
static struct klk_refused *place_of(struct klk_connections *c, const struct klk_address *address) {
    struct klk_refused *oldest = c->excess;
    for (struct klk_refused *r = c->excess; r < c->excess + KLK_REFUSED_MAX; r++) {
        if (is_same(&r->address, address)) return r;
        if (!r->until_ms && (oldest->until_ms || r->since_ms < oldest->since_ms)) oldest = r;
    }
    return oldest;
}

void klk_refused_count(struct klk_connections *c, const struct klk_address *address,
                       int64_t now_ms) {
    struct klk_refused *place = place_of(c, address);
    if (place->until_ms) return; /* It connected before that; or all places are in use. */
    if (!is_same(&place->address, address) || now_ms - place->since_ms >= KLK_REFUSED_MS)
        *place = (struct klk_refused){.address = *address, .since_ms = now_ms};
    if (++place->excess < KLK_REFUSED_EXCESS) return;
    place->until_ms = now_ms + KLK_REFUSED_MS;
    c->refused++;
    listeners_filter(c);
}

void klk_refused_end(struct klk_connections *c, int64_t now_ms) {
    int ended = 0;
    for (struct klk_refused *r = c->excess; r < c->excess + KLK_REFUSED_MAX; r++) {
        if (!r->until_ms || r->until_ms > now_ms) continue;
        *r = (struct klk_refused){0};
        ended = 1;
    }
    if (ended) listeners_filter(c);
}
