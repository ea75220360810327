/* Limits of accepted connections. libzmq has no limit of their number, of what one of them holds
 * before its message is complete, or of the metadata and subscriptions that it keeps. */
#define _GNU_SOURCE
#include "connections.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/tcp.h>
#else
struct tcp_info {
    uint64_t tcpi_bytes_received, tcpi_bytes_sent;
};
#endif

#include "bytes.h"
#include "guard.h"
#include "messages.h"
#include "refused.h"

#ifndef SO_COOKIE
#define SO_COOKIE 57
#endif
#ifndef TCP_INFO
#define TCP_INFO 11
#endif

enum { CHECK_MS = 100, HOT_CHECK_MS = 10, IDLE_CHECK_MS = 1000 };
enum { HOT_BYTES = 1 << 20, FRAME_MEMORY = 32 };
enum { FEW_BYTES = 4 << 20, LARGE_MEMORY = 2 }; /* above, few hold small frames alone */
enum { FREE_MS = KLK_FREE_SLICES * 25, FREE_WAITS = 2 }; /* in which libzmq frees a connection's */
enum { READ = 0, WRITE = 1 };
enum { STALL_BYTES = 64 << 10, STALL_GROWTH = 16 << 10 };
enum { CONTROL_BYTES_A_SECOND = 16 };  /* PINGs, which no drain sees */
enum { HANDSHAKE_BYTES_MAX = 64 << 10, HANDSHAKE_SENT = 250 }; /* greeting, WELCOME, and of READY */
enum { LONG_FRAME = 256, SHORT_HEADER = 2, LONG_HEADER = 9 };
enum { UNREAD_MS = 1000 }; /* in which a loop reads from each connection, under load */
enum { IDLE_MS = 50 };     /* in which a loop that waits learns of a complete message */
enum { TOKEN = 1000, FILL_MS = 10000, EVENTS_MAX = 4096, CUT_SHARE = 16, FEW_SHARE = 2 };
enum { PENDING_SHARE = 4 };           /* of bytes_max, for all connections without a message */
enum { SUSPECT_BYTES_MAX = 1 << 20 }; /* of one that has sent none, if its address is suspect */

struct klk_connection {
    uint64_t cookie;    /* of the socket; 0: none */
    uint64_t consumed;  /* bytes that libzmq has read */
    uint64_t drained;   /* bytes that drains have received */
    uint64_t counted;   /* of `received`, when it was measured */
    uint64_t held;
    uint64_t mark_consumed, mark_drained;
    uint64_t over_drained;
    uint64_t last_drained;
    int64_t accepted_ms, mark_ms;
    int64_t over_ms;    /* when it was over its limit first, or last received from while it was */
    int64_t drained_ms; /* when it was last received from, or not all was received */
    uint32_t position;  /* in fds */
    uint16_t bucket;
    uint8_t endpoint;
    uint8_t is_plain; /* it came to an address without CURVE beside one with it */
    uint8_t is_cut;
    uint8_t is_suspect; /* its address had made many, or some that held too much */
};

/* The key of a connection: the slot and generation of its last message. Only the thread of the
 * drains uses it. */
struct klk_sender {
    uint64_t cookie; /* of the connection; 0: none */
    uint32_t slot, generation;
};

struct klk_watcher {
    pthread_mutex_t lock;
    pthread_t thread;
    int wake[2];        /* a pipe: something has changed */
    int running, ended;
    int nothing, spare; /* two descriptors, for a duplicate when no descriptor is left */
};

void klk_connections_drained(struct klk_connections *c, int fd, uint64_t size,
                             uint32_t frame_bytes) {
    if (fd < 0 || fd >= KLK_CONNECTION_FDS) return;
    if (!c->by_fd[fd].is_plain) size += frame_bytes;
    size += size < LONG_FRAME ? SHORT_HEADER : LONG_HEADER;
    size += __atomic_load_n(&c->received[fd], __ATOMIC_RELAXED); /* Only drains write it. */
    __atomic_store_n(&c->received[fd], size, __ATOMIC_RELAXED);
}

static uint64_t received_of(const struct klk_connections *c, int fd) {
    return __atomic_load_n(&c->received[fd], __ATOMIC_RELAXED);
}

/* ---- one connection ---- */

/* A number of the socket that no other one has; 0: it is none, or the system has no such number. */
static uint64_t cookie_of(int fd) {
    uint64_t cookie = 0;
    socklen_t size = sizeof cookie;
    return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

void klk_connections_known(struct klk_connections *c, int fd, uint32_t slot,
                           uint32_t generation) {
    if (fd < 0 || fd >= KLK_CONNECTION_FDS) return;
    struct klk_sender *sender = &c->senders[fd];
    uint64_t cookie = __atomic_load_n(&c->by_fd[fd].cookie, __ATOMIC_RELAXED);
    if (cookie && sender->cookie == cookie && sender->slot == slot &&
        sender->generation == generation)
        return;
    *sender = (struct klk_sender){cookie_of(fd), slot, generation}; /* Its event may come later. */
}

static void address_text(int fd, char *out) {
    union klk_peer peer;
    char host[INET6_ADDRSTRLEN] = "";
    unsigned port = 0;
    int family = klk_peer_of(fd, &peer);
    if (family == AF_INET) {
        inet_ntop(AF_INET, &peer.v4.sin_addr, host, sizeof host);
        port = ntohs(peer.v4.sin_port);
    } else if (family == AF_INET6) {
        inet_ntop(AF_INET6, &peer.v6.sin6_addr, host, sizeof host);
        port = ntohs(peer.v6.sin6_port);
    }
    snprintf(out, KLK_ADDRESS_SIZE, "%s:%u", host, port);
}

static uint16_t bucket_of(const struct klk_connections *c, const struct klk_address *address) {
    const uint8_t *bytes = (const uint8_t *)address->words;
    uint64_t hash = klk_id_hash(c->seed, bytes, address->count * sizeof *address->words);
    return (uint16_t)((hash >> 32) % KLK_ADDRESS_BUCKETS);
}

/* Whether a descriptor is still of a connection to a listener, as libzmq names it. The connection
 * may have ended before we read of it, and another socket, even a listener, have its descriptor. */
static int is_from(int fd, const char *listener) {
    const char *port = strrchr(listener, ':');
    union klk_peer own;
    socklen_t size = sizeof own;
    int family = klk_peer_of(fd, &own);
    if (!port || (family != AF_INET && family != AF_INET6)) return 0;
    if (getsockname(fd, &own.any, &size) != 0) return 0;
    in_port_t number = family == AF_INET ? own.v4.sin_port : own.v6.sin6_port;
    return ntohs(number) == strtoul(port + 1, NULL, 10);
}

static void forget(struct klk_connections *c, int fd) {
    struct klk_connection *one = &c->by_fd[fd];
    if (!one->cookie) return;
    one->cookie = 0;
    if (one->held >= STALL_BYTES) c->freeing = 1;
    c->per_address[one->bucket]--;
    int32_t last = c->fds[--c->count];
    c->fds[one->position] = last;
    c->by_fd[last].position = one->position;
}

/* A duplicate of a descriptor; -1: it is closed. */
static int duplicate(const struct klk_connections *c, int fd) {
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own >= 0 || errno != EMFILE) return own;
    own = c->watcher->spare;
    return own >= 0 && dup2(fd, own) == own ? own : -1;
}

static void duplicate_close(const struct klk_connections *c, int own) {
    if (own != c->watcher->spare)
        (void)close(own);
    else if (dup2(c->watcher->nothing, own) == own)
        (void)fcntl(own, F_SETFD, FD_CLOEXEC);
}

/* A connection that held too much costs its address as many as a 16th of those that it may make. */
static void token_fine(struct klk_connections *c, uint16_t bucket) {
    int64_t full = (int64_t)c->address_max * TOKEN, *left = &c->tokens[2 * bucket];
    *left -= full / CUT_SHARE;
    if (*left < -full) *left = -full;
}

/* Memory that the end of a connection may free. */
static uint64_t memory_of(const struct klk_connection *one) {
    return one->held * (one->held > FEW_BYTES ? LARGE_MEMORY : FRAME_MEMORY);
}

/* Ends a connection. libzmq may have closed it meanwhile, and another one may have its descriptor:
 * a duplicate belongs to one socket until we close it. */
static void cut(struct klk_connections *c, int fd, enum klk_cut_reason reason) {
    const struct linger now = {.l_onoff = 1, .l_linger = 0};
    struct klk_connection *one = &c->by_fd[fd];
    one->is_cut = 1;
    c->ending[c->slice_ms / (FREE_MS / KLK_FREE_SLICES) % KLK_FREE_SLICES] += memory_of(one);
    if (cookie_of(fd) != one->cookie) return;
    int own = duplicate(c, fd);
    if (own < 0) return;
    if (cookie_of(own) == one->cookie) {
        c->cut[reason]++;
        if (reason >= KLK_CUT_HANDSHAKE && reason <= KLK_CUT_STALLED)
            token_fine(c, one->bucket);
        if (c->cuts_kept < KLK_CUTS_KEPT) {
            struct klk_cut *kept = &c->cuts[c->cuts_kept++];
            kept->held = one->held;
            kept->reason = reason;
            address_text(own, kept->address);
        }
        /* A sender that waits for room must learn of the end, too: libzmq's close resets it. */
        setsockopt(own, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        shutdown(own, SHUT_RDWR);
    }
    duplicate_close(c, own);
}

/* Takes one of the connections that an address may make; 0: there is none. */
static int token_take(struct klk_connections *c, uint16_t bucket, int64_t now_ms) {
    int64_t *left = &c->tokens[2 * bucket], *counted_ms = &c->tokens[2 * bucket + 1];
    int64_t full = (int64_t)c->address_max * TOKEN;
    if (!*counted_ms) *left = full;
    if (*counted_ms) *left += (now_ms - *counted_ms) * full / FILL_MS;
    if (*left > full) *left = full;
    *counted_ms = now_ms;
    if (*left < TOKEN) return 0;
    *left -= TOKEN;
    return 1;
}

static void accepted(struct klk_connections *c, int fd, uint8_t endpoint, const char *listener,
                     int64_t now_ms) {
    uint64_t cookie = cookie_of(fd);
    if (!cookie || !is_from(fd, listener)) return; /* It is closed already. */
    struct klk_connection *one = &c->by_fd[fd];
    if (one->cookie == cookie) return;
    forget(c, fd);
    /* Some of what drains have received lately may be its own. */
    uint64_t received = received_of(c, fd);
    *one = (struct klk_connection){
        .cookie = cookie, .drained = received - one->counted, .counted = received};
    one->accepted_ms = one->mark_ms = one->drained_ms = now_ms;
    one->endpoint = endpoint;
    one->is_plain = strcmp(listener, c->endpoints[endpoint].foreign) == 0;
    const struct klk_address address = klk_address_of(fd);
    one->bucket = bucket_of(c, &address);
    one->position = c->count;
    c->fds[c->count++] = fd;
    c->per_address[one->bucket]++;
    if (c->count > c->connections_max)
        cut(c, fd, KLK_CUT_CONNECTIONS);
    else if (c->per_address[one->bucket] > c->address_max)
        cut(c, fd, KLK_CUT_ADDRESS);
    else if (!token_take(c, one->bucket, now_ms))
        cut(c, fd, KLK_CUT_RATE);
    if (one->is_cut) klk_refused_count(c, &address, now_ms);
    one->is_suspect = c->tokens[2 * one->bucket] < (int64_t)c->address_max * TOKEN / FEW_SHARE;
}

static void events_read(struct klk_connections *c, uint8_t endpoint, int64_t now_ms) {
    char listener[KLK_LISTENER_SIZE];
    uint32_t event, value;
    for (int i = 0; i < EVENTS_MAX; i++) {
        void *monitor = c->endpoints[endpoint].monitor;
        if (!klk_monitor_receive(monitor, &event, &value, listener)) return;
        if (event & KLK_EVENT_FAILED) c->failed++;
        if (event & KLK_EVENT_FAILED || value >= KLK_CONNECTION_FDS) continue;
        struct klk_endpoint *bound = &c->endpoints[endpoint];
        if (event == KLK_EVENT_LISTENING)
            bound->listeners[bound->bound++ % KLK_LISTENERS_MAX] = (int)value;
        else if (event == KLK_EVENT_ACCEPTED)
            accepted(c, (int)value, endpoint, listener, now_ms);
        else if (event == KLK_EVENT_DISCONNECTED && cookie_of((int)value) != c->by_fd[value].cookie)
            forget(c, (int)value); /* Else libzmq closes it now, or it is another one. */
        else
            continue;
        if (c->due_ms > c->checked_ms + HOT_CHECK_MS) c->due_ms = c->checked_ms + HOT_CHECK_MS;
    }
}

/* ---- what libzmq holds ---- */

/* Measures a connection; 0: it is closed. */
static int measure(struct klk_connections *c, int fd, uint64_t *sent) {
    struct klk_connection *one = &c->by_fd[fd];
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    int unread = 0;
    /* In this order: what arrives or is received in between makes the result smaller. */
    uint64_t before = received_of(c, fd);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
    uint64_t received = info.tcpi_bytes_received;
    *sent = info.tcpi_bytes_sent;
    if (received == one->consumed && before == one->counted) return 1; /* Nothing has happened. */
    if (cookie_of(fd) != one->cookie || ioctl(fd, FIONREAD, &unread) != 0) return 0;
    uint64_t waiting = unread > 0 ? (uint64_t)unread : 0;
    if (received > waiting && received - waiting > one->consumed)
        one->consumed = received - waiting;
    one->drained += before - one->counted;
    one->counted = received_of(c, fd);
    if (one->drained > received) one->drained = received; /* Some was another connection's. */
    one->drained += one->counted - before;
    if (c->endpoints[one->endpoint].keeps) one->drained = 0;
    one->held = one->consumed > one->drained ? one->consumed - one->drained : 0;
    return 1;
}

/* Whether an unfinished message has not grown, although we read all that is complete. */
static int is_stalled(const struct klk_connections *c, struct klk_connection *one,
                      int64_t now_ms) {
    const struct klk_endpoint *endpoint = &c->endpoints[one->endpoint];
    if (now_ms - one->mark_ms < c->stall_ms) return 0;
    int stalled = one->held > STALL_BYTES && one->drained == one->mark_drained &&
                  one->consumed - one->mark_consumed < STALL_GROWTH && endpoint->reads &&
                  endpoint->unread_ms < one->mark_ms;
    one->mark_ms = now_ms;
    one->mark_consumed = one->consumed;
    one->mark_drained = one->drained;
    return stalled;
}

/* Whether a connection over its limit holds an unfinished message. Complete ones wait for us, as
 * many as the socket's RCVHWM: a peer that sends faster than we read is no reason to end it. */
static int is_unfinished(struct klk_connections *c, struct klk_connection *one, int64_t now_ms) {
    const struct klk_endpoint *endpoint = &c->endpoints[one->endpoint];
    if (endpoint->keeps) return 1;
    int reads = endpoint->unread_ms < now_ms;
    int64_t idle_ms = c->idle_ms > endpoint->unread_ms ? c->idle_ms : endpoint->unread_ms;
    struct pollfd arrived = {endpoint->socket_fd, POLLIN, 0};
    /* The loop waits, and nothing has woken it: no message is complete. */
    if (now_ms - idle_ms >= IDLE_MS && poll(&arrived, 1, 0) == 0) return 1;
    if (!one->over_ms || one->drained != one->over_drained || !reads) {
        one->over_ms = now_ms;
        one->over_drained = one->drained;
    }
    return now_ms - one->over_ms >= UNREAD_MS;
}

/* Whether a connection has sent no whole message, or none for a while in which we would have
 * received it: what libzmq holds is an unfinished message, or a handshake. */
static int is_pending(const struct klk_connections *c, const struct klk_connection *one) {
    if (c->endpoints[one->endpoint].keeps) return 0;
    return !one->drained || c->checked_ms - one->drained_ms >= UNREAD_MS;
}

/* Which connections share a limit. A fresh one has sent no whole message, ever: it may be in its
 * handshake, whose metadata libzmq's thread copies several times, while all others wait. */
enum holders { ALL, PENDING, FRESH };

static int is_of(const struct klk_connections *c, const struct klk_connection *one,
                 enum holders holders) {
    if (one->is_cut) return 0;
    if (holders == FRESH) return !one->drained && !c->endpoints[one->endpoint].keeps;
    return holders == ALL || is_pending(c, one);
}

/* Checks a connection; whether it should be checked again soon. */
static int check_one(struct klk_connections *c, int fd, int64_t now_ms) {
    struct klk_connection *one = &c->by_fd[fd];
    const struct klk_endpoint *endpoint = &c->endpoints[one->endpoint];
    uint64_t sent;
    if (!measure(c, fd, &sent)) {
        forget(c, fd);
        return 0;
    }
    if (one->is_cut) return 0;
    if (one->drained != one->last_drained || endpoint->unread_ms == now_ms) {
        one->last_drained = one->drained;
        one->drained_ms = now_ms;
    }
    uint64_t age_s = (uint64_t)(now_ms - one->accepted_ms) / 1000;
    if (endpoint->frame_bytes && !one->is_plain && sent < HANDSHAKE_SENT &&
        one->consumed > HANDSHAKE_BYTES_MAX)
        cut(c, fd, KLK_CUT_HANDSHAKE);
    else if (one->is_suspect && one->held > SUSPECT_BYTES_MAX && !one->drained &&
             !endpoint->keeps)
        cut(c, fd, KLK_CUT_BYTES);
    else if (one->held <= endpoint->bytes_max + CONTROL_BYTES_A_SECOND * age_s)
        one->over_ms = 0;
    else if (is_unfinished(c, one, now_ms))
        cut(c, fd, KLK_CUT_BYTES);
    if (!one->is_cut && is_stalled(c, one, now_ms))
        cut(c, fd, KLK_CUT_STALLED);
    return !one->is_cut && (now_ms - one->accepted_ms < KLK_NEW_MS || one->held >= HOT_BYTES);
}

/* Private memory of the process, in bytes; 0: unknown. */
static uint64_t memory_used(void) {
    char text[128];
    unsigned long resident, shared;
    int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0) return 0;
    text[size] = 0;
    if (sscanf(text, "%*u %lu %lu", &resident, &shared) != 2 || shared > resident) return 0;
    return (uint64_t)(resident - shared) * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* The connection that holds most: of all, or of those of a kind that hold much; or -1. */
static int largest_of(const struct klk_connections *c, enum holders holders) {
    int found = -1;
    for (uint32_t i = 0; i < c->count; i++) {
        int fd = c->fds[i];
        const struct klk_connection *one = &c->by_fd[fd];
        if (one->held < HOT_BYTES / (holders == ALL ? 16 : 1) || !is_of(c, one, holders)) continue;
        if (found < 0 || one->held > c->by_fd[found].held) found = fd;
    }
    return found;
}

/* The connection that holds most; a pending one, if that holds much. */
static int largest(const struct klk_connections *c) {
    int found = largest_of(c, PENDING);
    return found >= 0 ? found : largest_of(c, ALL);
}

/* What connections of a kind may hold together: pending ones a share, and at least what one of them
 * may; fresh ones the largest message. */
static uint64_t share_max(const struct klk_connections *c, enum holders holders) {
    uint64_t most = holders == FRESH ? 0 : c->bytes_max / PENDING_SHARE;
    for (int e = 0; e < KLK_ENDPOINTS_MAX; e++) {
        const struct klk_endpoint *endpoint = &c->endpoints[e];
        uint64_t one = holders == FRESH ? endpoint->message_bytes : endpoint->bytes_max;
        if (endpoint->monitor && one > most) most = one;
    }
    return most;
}

/* Memory of connections that were ended so lately that libzmq may not have freed it. */
static uint64_t ending_bytes(struct klk_connections *c, int64_t now_ms) {
    const int64_t step_ms = FREE_MS / KLK_FREE_SLICES;
    uint64_t bytes = 0;
    for (int64_t ms = c->slice_ms - c->slice_ms % step_ms + step_ms; ms <= now_ms; ms += step_ms) {
        c->ending[ms / step_ms % KLK_FREE_SLICES] = 0;
        if (ms > c->slice_ms + FREE_MS) break; /* All are 0. */
    }
    c->slice_ms = now_ms;
    for (int i = 0; i < KLK_FREE_SLICES; i++) bytes += c->ending[i];
    return bytes;
}

/* Whether libzmq has freed what ended connections held: its thread and the loop have had time. */
static int is_settled(struct klk_connections *c, int64_t now_ms) {
    uint32_t waits = __atomic_load_n(&c->waits, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < c->count && !c->freeing; i++) {
        const struct klk_connection *one = &c->by_fd[c->fds[i]];
        c->freeing = one->is_cut && one->held >= STALL_BYTES;
    }
    if (c->freeing) {
        c->has_holes = 1; /* Else what malloc keeps would count as the process's own. */
        c->freed_ms = now_ms + FREE_MS;
        c->freed_waits = waits + FREE_WAITS;
        c->freeing = 0;
    }
    return now_ms >= c->freed_ms && (int32_t)(waits - c->freed_waits) >= 0;
}

/* Small frames take up to 32 times their bytes: only the process's memory shows them. What exceeds
 * that is the process's own: it raises the base, and ends no connection. */
static void check_memory(struct klk_connections *c, uint64_t held, int64_t now_ms) {
    uint64_t ended = ending_bytes(c, now_ms), most = FRAME_MEMORY * held;
    int settled = is_settled(c, now_ms);
    if (held < HOT_BYTES && settled) {
        c->memory_base = 0;
        return;
    }
#if defined(__GLIBC__)
    if (settled && c->has_holes) (void)malloc_trim(0); /* Between what others hold. */
#endif
    if (settled) c->has_holes = 0;
    uint64_t used = memory_used(), own = __atomic_load_n(&c->own, __ATOMIC_RELAXED);
    uint64_t base = c->memory_base ? c->memory_base : used; /* What is not libzmq's, at most. */
    if (c->memory_base) base = base + own > c->own_base ? base + own - c->own_base : 1;
    if (settled && base > used) base = used;
    if (settled && used > most && base < used - most) base = used - most;
    c->memory_base = base;
    c->own_base = own;
    uint64_t allowed = base + c->memory_max;
    uint64_t kept = held < share_max(c, FRESH) ? held : share_max(c, FRESH);
    if (used <= allowed + held + kept) return; /* libzmq keeps handshakes twice. */
    c->has_holes = 1;
    while (ended < used - allowed) {
        int fd = largest(c);
        if (fd < 0) break;
        ended += memory_of(&c->by_fd[fd]);
        cut(c, fd, KLK_CUT_MEMORY);
    }
}

/* Ends the largest of a kind while together they hold more than their share. One that holds much
 * alone has a limit of its own. */
static void check_share(struct klk_connections *c, enum holders holders) {
    uint64_t held = 0, most = share_max(c, holders);
    uint32_t count = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        const struct klk_connection *one = &c->by_fd[c->fds[i]];
        if (!is_of(c, one, holders)) continue;
        held += one->held;
        count += one->held >= HOT_BYTES;
    }
    while (held > most && count-- > 1) {
        int fd = largest_of(c, holders);
        held -= c->by_fd[fd].held;
        cut(c, fd, KLK_CUT_TOTAL);
    }
}

static void check_all(struct klk_connections *c, int64_t now_ms) {
    uint64_t held = 0;
    check_share(c, FRESH);
    check_share(c, PENDING);
    for (uint32_t i = 0; i < c->count; i++) {
        const struct klk_connection *one = &c->by_fd[c->fds[i]];
        if (!one->is_cut) held += one->held;
    }
    c->held = held;
    while (held > c->bytes_max) {
        int fd = largest(c);
        if (fd < 0) break;
        held -= c->by_fd[fd].held;
        cut(c, fd, KLK_CUT_TOTAL);
    }
    check_memory(c, held, now_ms);
}

static void check(struct klk_connections *c, int64_t now_ms, int events) {
    if (!events && now_ms < c->due_ms) return;
    uint32_t waits = __atomic_load_n(&c->waits, __ATOMIC_RELAXED);
    uint32_t wakes = __atomic_load_n(&c->wakes, __ATOMIC_RELAXED);
    int reads = waits != c->waits_seen || __atomic_load_n(&c->waiting, __ATOMIC_RELAXED);
    if (wakes != c->wakes_seen || !reads) c->idle_ms = now_ms;
    c->waits_seen = waits;
    c->wakes_seen = wakes;
    for (uint8_t e = 0; e < KLK_ENDPOINTS_MAX; e++) {
        struct klk_endpoint *endpoint = &c->endpoints[e];
        if (!endpoint->monitor) continue;
        if (!endpoint->reads || !reads) endpoint->unread_ms = now_ms;
        events_read(c, e, now_ms);
    }
    if (now_ms < c->due_ms) return;
    klk_refused_end(c, now_ms);
    int full = now_ms - c->full_ms >= CHECK_MS, hot = 0;
    c->checked_ms = now_ms;
    if (full) c->full_ms = now_ms;
    for (uint32_t i = c->count; i > 0; i--) { /* A closed one is replaced by the last. */
        int fd = c->fds[i - 1];
        const struct klk_connection *one = &c->by_fd[fd];
        int is_young = now_ms - one->accepted_ms < KLK_NEW_MS;
        if (full || is_young || one->held >= HOT_BYTES) hot |= check_one(c, fd, now_ms);
    }
    check_all(c, now_ms);
    c->due_ms = now_ms + (hot ? HOT_CHECK_MS : CHECK_MS);
}

/* ---- the thread ---- */

static int64_t monotonic_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Checks until the watcher has ended. Sockets of the monitors change threads under the lock. */
static void *run(void *argument) {
    struct klk_connections *c = argument;
    struct klk_watcher *watcher = c->watcher;
    struct pollfd fds[KLK_ENDPOINTS_MAX + 1];
    char woken[64];
    int events = 1;
    pthread_mutex_lock(&watcher->lock);
    while (!watcher->ended) {
        int64_t now_ms = monotonic_ms(), wait_ms = IDLE_CHECK_MS;
        check(c, now_ms, events);
        if (c->count) wait_ms = c->due_ms > now_ms ? c->due_ms - now_ms : 0;
        fds[0] = (struct pollfd){watcher->wake[READ], POLLIN, 0};
        nfds_t count = 1;
        for (uint32_t e = 0; e < KLK_ENDPOINTS_MAX; e++)
            if (c->endpoints[e].monitor)
                fds[count++] = (struct pollfd){c->endpoints[e].fd, POLLIN, 0};
        pthread_mutex_unlock(&watcher->lock);
        events = poll(fds, count, (int)wait_ms) > 0;
        if (events && fds[0].revents)
            while (read(watcher->wake[READ], woken, sizeof woken) > 0) continue;
        pthread_mutex_lock(&watcher->lock);
    }
    pthread_mutex_unlock(&watcher->lock);
    return NULL;
}

static void watcher_wake(const struct klk_watcher *watcher) {
    char byte = 0;
    if (write(watcher->wake[WRITE], &byte, 1) < 0) return; /* It is full: it wakes the thread. */
}

/* Blocks all signals: the owner's thread handles them. */
static int watcher_start(struct klk_connections *c) {
    struct klk_watcher *watcher = c->watcher;
    sigset_t all, before;
    if (pipe(watcher->wake) < 0) return KLK_EOS;
    for (int i = 0; i < 2; i++) {
        (void)fcntl(watcher->wake[i], F_SETFD, FD_CLOEXEC);
        (void)fcntl(watcher->wake[i], F_SETFL, O_NONBLOCK);
    }
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&watcher->thread, NULL, run, c);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) {
        watcher->running = 1;
        return KLK_OK;
    }
    for (int i = 0; i < 2; i++) (void)close(watcher->wake[i]);
    errno = error;
    return KLK_EOS;
}

static void watcher_end(struct klk_watcher *watcher) {
    if (!watcher->running) return;
    pthread_mutex_lock(&watcher->lock);
    watcher->ended = 1;
    pthread_mutex_unlock(&watcher->lock);
    watcher_wake(watcher);
    (void)pthread_join(watcher->thread, NULL);
    for (int i = 0; i < 2; i++) (void)close(watcher->wake[i]);
    watcher->running = 0;
}

/* The descriptors that duplicates use when no other is left. */
static void spares_open(struct klk_watcher *watcher) {
    watcher->nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    watcher->spare = fcntl(watcher->nothing, F_DUPFD_CLOEXEC, 0);
}

int klk_connections_open(struct klk_connections *c) {
    c->watcher = calloc(1, sizeof *c->watcher);
    c->received = calloc(KLK_CONNECTION_FDS, sizeof *c->received);
    c->senders = calloc(KLK_CONNECTION_FDS, sizeof *c->senders);
    c->by_fd = calloc(KLK_CONNECTION_FDS, sizeof *c->by_fd);
    c->fds = calloc(KLK_CONNECTION_FDS, sizeof *c->fds);
    c->per_address = calloc(KLK_ADDRESS_BUCKETS, sizeof *c->per_address);
    c->tokens = calloc(2 * (size_t)KLK_ADDRESS_BUCKETS, sizeof *c->tokens);
    if (c->watcher && c->received && c->senders && c->by_fd && c->fds && c->per_address &&
        c->tokens && pthread_mutex_init(&c->watcher->lock, NULL) == 0) {
        spares_open(c->watcher);
        return KLK_OK;
    }
    free(c->watcher);
    c->watcher = NULL;
    klk_connections_close(c);
    return KLK_EOS;
}

void klk_connections_close(struct klk_connections *c) {
    if (c->watcher) {
        watcher_end(c->watcher);
        pthread_mutex_destroy(&c->watcher->lock);
        if (c->watcher->spare >= 0) (void)close(c->watcher->spare);
        if (c->watcher->nothing >= 0) (void)close(c->watcher->nothing);
    }
    free(c->watcher);
    free(c->received);
    free(c->senders);
    free(c->by_fd);
    free(c->fds);
    free(c->per_address);
    free(c->tokens);
    c->watcher = NULL;
    c->received = NULL;
    c->senders = NULL;
    c->by_fd = NULL;
    c->fds = NULL;
    c->per_address = NULL;
    c->tokens = NULL;
    c->count = 0;
}

int klk_connections_start(struct klk_connections *c) {
    if (!c->watcher->running) return watcher_start(c);
    watcher_wake(c->watcher);
    return KLK_OK;
}

void klk_connections_lock(struct klk_connections *c) { pthread_mutex_lock(&c->watcher->lock); }

void klk_connections_unlock(struct klk_connections *c) {
    pthread_mutex_unlock(&c->watcher->lock);
}

void klk_connections_end(struct klk_connections *c, uint32_t endpoint, int64_t now_ms) {
    klk_connections_lock(c);
    events_read(c, (uint8_t)endpoint, now_ms);
    for (uint32_t i = 0; i < c->count; i++) {
        const struct klk_connection *one = &c->by_fd[c->fds[i]];
        if (one->endpoint == endpoint && !one->is_cut) cut(c, c->fds[i], KLK_CUT_KEYS);
    }
    klk_connections_unlock(c);
}

/* Whether the key of a connection is no longer allowed, or was unknown at the revocation as the
 * connection had sent no message. A handshake at that time may still be refused: it has the time to
 * end. */
static int is_revoked(const struct klk_connections *c, int fd, const struct klk_keys *keys,
                      int64_t revoked_ms, int64_t now_ms) {
    const struct klk_connection *one = &c->by_fd[fd];
    const struct klk_sender *sender = &c->senders[fd];
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    if (one->is_cut || one->is_plain || !c->endpoints[one->endpoint].frame_bytes) return 0;
    if (sender->cookie == one->cookie)
        return sender->slot >= keys->count ||
               keys->keys[sender->slot].generation != sender->generation;
    if (one->accepted_ms > revoked_ms) return 0;
    if (now_ms - revoked_ms >= KLK_NEW_MS) return 1;
    return now_ms == revoked_ms && getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
           info.tcpi_bytes_sent >= HANDSHAKE_SENT;
}

void klk_connections_revoke(struct klk_connections *c, const struct klk_keys *keys,
                            int64_t revoked_ms, int64_t now_ms) {
    klk_connections_lock(c);
    for (uint8_t e = 0; e < KLK_ENDPOINTS_MAX; e++)
        if (c->endpoints[e].monitor) events_read(c, e, now_ms);
    for (uint32_t i = 0; i < c->count; i++)
        if (is_revoked(c, c->fds[i], keys, revoked_ms, now_ms)) cut(c, c->fds[i], KLK_CUT_KEYS);
    klk_connections_unlock(c);
}
