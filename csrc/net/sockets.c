/* Batched receive and send on pyzmq's own sockets: one call a batch, never one a frame. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "budget.h"
#include "bytes.h"
#include "connections.h"
#include "guard.h"
#include "messages.h"
#include "bundles.h"

enum { DONTWAIT = 1, EVENTS = 15, SNDMORE = 2 };
enum { CHECK_ALL_MS = 100, CHECK_IDLE_MS = 800, INTERRUPTED_MAX = 64, DISCARDED_MAX = 1 << 18 };
enum { DENIED_BYTES_MAX = 1024 };

static struct {
    int (*msg_init)(void *);
    int (*msg_init_data)(void *, void *, size_t, void (*)(void *, void *), void *);
    int (*msg_send)(void *, void *, int);
    int (*msg_recv)(void *, void *, int);
    int (*msg_close)(void *);
    int (*msg_more)(const void *);
    void *(*msg_data)(void *);
    size_t (*msg_size)(const void *);
    const char *(*msg_gets)(const void *, const char *);
    int (*send)(void *, const void *, size_t, int);
    int (*getsockopt)(void *, int, void *, size_t *);
    int (*error)(void);
} zmq;

static int symbol_find(void *object, const char *name, void *function) {
    void *found = dlsym(object, name);
    /* ISO C has no conversion from object to function pointers; POSIX says that this works. */
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

int klk_sockets_bind(const char *path, int *version) {
    void *object = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    void (*version_read)(int *, int *, int *);
    if (!object) return KLK_EOS;
    int found = symbol_find(object, "zmq_msg_init", &zmq.msg_init) &&
                symbol_find(object, "zmq_msg_init_data", &zmq.msg_init_data) &&
                symbol_find(object, "zmq_msg_send", &zmq.msg_send) &&
                symbol_find(object, "zmq_msg_recv", &zmq.msg_recv) &&
                symbol_find(object, "zmq_msg_close", &zmq.msg_close) &&
                symbol_find(object, "zmq_msg_more", &zmq.msg_more) &&
                symbol_find(object, "zmq_msg_data", &zmq.msg_data) &&
                symbol_find(object, "zmq_msg_size", &zmq.msg_size) &&
                symbol_find(object, "zmq_msg_gets", &zmq.msg_gets) &&
                symbol_find(object, "zmq_send", &zmq.send) &&
                symbol_find(object, "zmq_getsockopt", &zmq.getsockopt) &&
                symbol_find(object, "zmq_errno", &zmq.error) &&
                symbol_find(object, "zmq_version", &version_read);
    if (!found) {
        dlclose(object);
        return KLK_EOS;
    }
    int major = 0, minor = 0, patch = 0;
    version_read(&major, &minor, &patch);
    *version = major * 10000 + minor * 100 + patch;
    return KLK_OK;
}

int klk_drain_open(struct klk_drain *drain) {
    if (!zmq.msg_init || (uintptr_t)drain->message % 8 != 0) return KLK_EINVAL;
    drain->held = drain->discarding = 0;
    drain->opened = 0;
    return zmq.msg_init(drain->message) == 0 ? KLK_OK : KLK_EOS;
}

void klk_drain_close(struct klk_drain *drain) {
    if (zmq.msg_close) zmq.msg_close(drain->message);
    drain->held = 0;
}

/* The address of the held frame's connection, or nothing. */
static const char *drain_address(const struct klk_drain *drain, size_t *size) {
    const char *address = zmq.msg_gets(drain->message, "Peer-Address");
    *size = address ? strlen(address) : 0;
    return address;
}

static void senders_clear(struct klk_messages *of) {
    if (of->senders) of->senders->frames = of->senders->messages = 0;
}

/* Keeps the address of the growing message's connection. */
static void sender_add(const struct klk_drain *drain, const struct klk_messages *of) {
    struct klk_messages *senders = of->senders;
    size_t size;
    if (!senders) return;
    const char *address = drain_address(drain, &size);
    if (!klk_messages_fit(senders, size, 1)) return;
    klk_messages_frame(senders, address, (uint32_t)size);
    senders->slots[senders->messages] = of->messages;
    klk_messages_end(senders);
}

/* Removes the whole messages; the frames of a growing one move to the front. */
static void drain_shift(struct klk_messages *in) {
    uint32_t first = in->firsts[in->messages];
    uint32_t start = in->offsets[first];
    uint32_t frames = in->frames - first;
    if (start) memmove(in->bytes, in->bytes + start, klk_messages_bytes(in) - start);
    for (uint32_t i = 0; i <= frames; i++) in->offsets[i] = in->offsets[first + i] - start;
    if (in->slots) in->slots[0] = in->slots[in->messages];
    in->frames = frames;
    in->messages = 0;
    senders_clear(in);
}

/* A number of at most 10 digits that ends at this character; returns what follows, or NULL. */
static const char *drain_number(const char *text, char end, uint64_t *number) {
    const char *first = text;
    for (*number = 0; *text >= '0' && *text <= '9' && text - first < 10; text++)
        *number = *number * 10 + (uint64_t)(*text - '0');
    return text > first && *text == end ? text + 1 : NULL;
}

/* Whether the key of the held frame's connection is still allowed; its slot. */
static int drain_allowed(const struct klk_drain *drain, uint32_t *slot) {
    const struct klk_keys *keys = drain->keys;
    const char *id = zmq.msg_gets(drain->message, "User-Id");
    uint64_t number, generation;
    if (!id || !(id = drain_number(id, '.', &number)) || !drain_number(id, 0, &generation))
        return 0;
    if (drain->connections)
        klk_connections_known(drain->connections, drain->fd, (uint32_t)number,
                              (uint32_t)generation);
    if (number >= keys->count || keys->keys[number].generation != generation) return 0;
    *slot = (uint32_t)number;
    return 1;
}

/* Completes the growing message, or moves it to the refused ones if its sender may not send it. */
static void drain_end(struct klk_drain *drain) {
    struct klk_messages *in = drain->arena, *denied = drain->denied;
    uint32_t first = in->firsts[in->messages];
    const struct klk_key *key = drain->keys ? &drain->keys->keys[in->slots[in->messages]] : NULL;
    int allowed = !drain->guard || klk_guard_allows(drain->guard, key, in, first, in->frames);
    if ((allowed || drain->guard->reports_only) && drain->audit &&
        klk_guard_audits(drain->audit, key, in, first, in->frames))
        sender_add(drain, in);
    if (allowed) {
        klk_messages_end(in);
        return;
    }
    uint32_t slot = in->slots[in->messages];
    uint32_t frames = in->frames - first, bytes = 0, sizes[KLK_DENIED_FRAMES];
    if (frames > KLK_DENIED_FRAMES) frames = KLK_DENIED_FRAMES;
    for (uint32_t f = 0; f < frames; f++) {
        sizes[f] = in->offsets[first + f + 1] - in->offsets[first + f];
        if (sizes[f] > DENIED_BYTES_MAX) sizes[f] = 0;
        bytes += sizes[f];
    }
    if (klk_messages_fit(denied, bytes, frames)) {
        for (uint32_t f = 0; f < frames; f++)
            klk_messages_frame(denied, in->bytes + in->offsets[first + f], sizes[f]);
        denied->slots[denied->messages] = slot;
        sender_add(drain, denied);
        klk_messages_end(denied);
    } else {
        drain->denied_lost++;
    }
    if (drain->guard->reports_only)
        klk_messages_end(in);
    else
        in->frames = first;
}

/* Begins the next message of a bundle with the frames before the bundle. */
static void drain_repeat(struct klk_messages *in, uint32_t first, uint32_t before) {
    if (in->frames == first) { /* The last message was refused. */
        in->frames += before;
        return;
    }
    for (uint32_t f = first; f < first + before; f++)
        klk_messages_frame(in, in->bytes + in->offsets[f], in->offsets[f + 1] - in->offsets[f]);
    if (in->slots) in->slots[in->messages] = in->slots[in->messages - 1];
}

/* Puts the messages of the held bundle into the arena, as far as there is room. */
static int drain_open(struct klk_drain *drain) {
    struct klk_messages *in = drain->arena;
    const uint8_t *data = zmq.msg_data(drain->message);
    size_t size = zmq.msg_size(drain->message);
    uint32_t before = drain->bundles - 1, frames, bytes;
    while (drain->opened < size) {
        uint32_t first = in->firsts[in->messages], messages = in->messages;
        uint32_t next = klk_bundle_measure(data, drain->opened, &frames, &bytes);
        uint32_t address = klk_messages_bytes(in) - in->offsets[first];
        /* With room for the frames before the next message. */
        if (!klk_messages_fit(in, (uint64_t)bytes + address, (uint64_t)frames + before)) {
            if (messages) return KLK_MORE;
            drain->bytes_need = 2 * address + bytes;
            drain->frames_need = 2 * before + frames;
            return KLK_ESPACE;
        }
        klk_bundle_open(data, drain->opened, in);
        drain->opened = next;
        drain_end(drain);
        if (in->bundles && in->messages > messages) in->bundles[messages] = 1;
        if (next < size) drain_repeat(in, first, before);
    }
    drain->opened = 0;
    return KLK_OK;
}

/* Opens the rest of the held bundle, unless its key was revoked since its first messages. */
static int drain_resume(struct klk_drain *drain) {
    struct klk_messages *in = drain->arena;
    if (!drain->keys || drain_allowed(drain, &in->slots[in->messages])) return drain_open(drain);
    in->frames = in->firsts[in->messages];
    drain->opened = 0;
    drain->keys->revoked++;
    return KLK_OK;
}

/* Puts the held frame into the arena, or drops it as part of a message over a limit. */
static int drain_place(struct klk_drain *drain) {
    struct klk_messages *in = drain->arena;
    size_t size = zmq.msg_size(drain->message), address_size = 0;
    const char *address = NULL;
    int more = zmq.msg_more(drain->message);
    if (drain->discarding) {
        drain->discarding = more;
        return KLK_OK;
    }
    uint32_t first = in->firsts[in->messages];
    if (drain->keys && in->frames == first && !drain_allowed(drain, &in->slots[in->messages])) {
        drain->discarding = more;
        drain->keys->revoked++;
        return KLK_OK;
    }
    uint32_t added = drain->addressed && in->frames == first ? 2 : 1;
    if (added == 2) address = drain_address(drain, &address_size);
    uint64_t bytes = (uint64_t)klk_messages_bytes(in) - in->offsets[first] + size + address_size;
    uint32_t frames = in->frames - first + added;
    if (bytes > drain->message_bytes_max || frames > drain->message_frames_max) {
        in->frames = first;
        drain->discarding = more;
        drain->dropped++;
        return KLK_OK;
    }
    uint32_t inside_max = drain->message_frames_max - frames + 1;
    if (!more && added == 1 && frames == drain->bundles &&
        klk_bundle_count(zmq.msg_data(drain->message), size, inside_max)) {
        drain->opened = KLK_BUNDLE_HEAD;
        drain->bundles_opened++;
        return drain_open(drain);
    }
    if (!klk_messages_fit(in, size + address_size, added)) {
        if (in->messages) return KLK_MORE;
        drain->bytes_need = (uint32_t)bytes;
        drain->frames_need = frames;
        return KLK_ESPACE;
    }
    klk_messages_frame(in, zmq.msg_data(drain->message), (uint32_t)size);
    if (added == 2) klk_messages_frame(in, address, (uint32_t)address_size);
    if (!more) drain_end(drain);
    return KLK_OK;
}

/* Counts the held frame for its connection: libzmq no longer holds it. */
static void drain_count(struct klk_drain *drain) {
    int first = !drain->within;
    drain->within = zmq.msg_more(drain->message);
    if (first) {
        const char *text = zmq.msg_gets(drain->message, "__fd");
        uint64_t fd;
        int known = text && drain_number(text, 0, &fd) && fd < KLK_CONNECTION_FDS;
        drain->fd = known ? (int32_t)fd : -1;
        if (drain->routed) return; /* The routing id did not come with the message. */
    }
    klk_connections_drained(drain->connections, drain->fd, zmq.msg_size(drain->message),
                            drain->frame_bytes);
}

int klk_monitor_receive(void *monitor, uint32_t *event, uint32_t *value, char *listener) {
    uint64_t message[8]; /* libzmq's zmq_msg_t */
    uint16_t number;
    int more = 0, found = 0;
    *listener = 0;
    if (zmq.msg_init(message) != 0) return 0;
    do {
        if (zmq.msg_recv(message, monitor, DONTWAIT) < 0) break;
        size_t size = zmq.msg_size(message);
        const uint8_t *data = zmq.msg_data(message);
        if (!more && size == sizeof number + sizeof *value) {
            memcpy(&number, data, sizeof number);
            memcpy(value, data + sizeof number, sizeof *value);
            *event = number;
            found = 1;
        } else if (more && size < KLK_LISTENER_SIZE) {
            memcpy(listener, data, size);
            listener[size] = 0;
        }
        more = zmq.msg_more(message);
    } while (more);
    zmq.msg_close(message);
    return found;
}

int klk_drain_receive(struct klk_drain *drain, void *socket, int fresh) {
    struct klk_messages *in = drain->arena;
    if (fresh) drain_shift(in);
    if (fresh && drain->denied) {
        drain->denied->frames = drain->denied->messages = 0;
        senders_clear(drain->denied);
    }
    for (uint32_t received = 0;;) {
        if (!drain->held) {
            /* Very many frames are dropped in pieces: the caller has heartbeats to send. */
            if (received++ == in->frames_max + DISCARDED_MAX) return KLK_MORE;
            if (zmq.msg_recv(drain->message, socket, DONTWAIT) < 0) {
                int error = zmq.error();
                if (error == EAGAIN) return KLK_OK;
                if (error == EINTR || in->messages) return KLK_MORE;
                errno = error;
                return KLK_EOS;
            }
            drain->held = 1;
            if (drain->connections) drain_count(drain);
        }
        int result = drain->opened ? drain_resume(drain) : drain_place(drain);
        if (result != KLK_OK) return result;
        drain->held = 0;
    }
}

/* Sends a frame; returns 0 or an errno. */
static int send_frame(void *socket, const uint8_t *data, size_t size, int more) {
    for (uint32_t interrupted = 0;;) {
        if (zmq.send(socket, data, size, DONTWAIT | (more ? SNDMORE : 0)) >= 0) return 0;
        int error = zmq.error();
        if (error != EINTR || interrupted++ == INTERRUPTED_MAX) return error;
    }
}

/* Sends the frames from first up to but without end of a message whose last frame is last; returns
 * 0 or an errno. */
static int send_frames(void *socket, const struct klk_messages *out, uint32_t first, uint32_t end,
                       uint32_t last) {
    for (uint32_t f = first; f < end; f++) {
        size_t size = out->offsets[f + 1] - out->offsets[f];
        int error = send_frame(socket, out->bytes + out->offsets[f], size, f < last);
        if (error) return error;
    }
    return 0;
}

/* Sends one message whole; returns 0 or an errno. libzmq removes a message that fails
 * part way, so the next one begins cleanly. */
static int send_message(void *socket, const struct klk_messages *out, uint32_t message,
                        uint32_t skip) {
    uint32_t last = out->firsts[message + 1] - 1;
    if (last - out->firsts[message] < skip) return EHOSTUNREACH;
    return send_frames(socket, out, out->firsts[message] + skip, last + 1, last);
}

/* Sends messages from one on as a bundle, or this one alone if it does not fit; returns 0 or an
 * errno.
 *
 *   count   out: how many */
static int send_bundle(void *socket, const struct klk_messages *out, uint32_t first,
                       uint32_t skip, uint32_t *count) {
    struct klk_bundle bundle;
    bundle.size = *count = 0;
    while (first + *count < out->messages && klk_bundle_add(&bundle, out, first + *count, skip))
        ++*count;
    if (*count) return send_frame(socket, bundle.bytes, bundle.size, 0);
    *count = 1;
    return send_message(socket, out, first, skip);
}

int klk_send(void *socket, const struct klk_messages *out, uint32_t skip, int mode,
             uint32_t *position, uint32_t *dropped) {
    while (*position < out->messages) {
        uint32_t count = 1;
        int error = mode & KLK_BUNDLED ? send_bundle(socket, out, *position, skip, &count)
                                      : send_message(socket, out, *position, skip);
        if (error == EAGAIN && mode & KLK_KEEP) return KLK_MORE;
        if (error && error != EAGAIN && error != EHOSTUNREACH) {
            errno = error;
            return KLK_EOS;
        }
        *dropped += error ? count : 0;
        *position += count;
    }
    return KLK_OK;
}

/* ---- bytes that clients have not read ---- */

struct klk_budget {
    atomic_uint_fast64_t holders; /* its owner, and every counted message */
    uint32_t *peers;              /* of the messages of one call (struct grouping) */
    uint32_t peers_max;
    uint64_t seed;
    int in_order;
    uint64_t calls;
    uint64_t lost[KLK_BUDGET_SLOTS]; /* the last call in which a message was not sent; in_order */
    atomic_uint_fast64_t queued[KLK_BUDGET_SLOTS];
};

/* The last frame of a counted message: libzmq calls back when it releases the frame, after the
 * message was sent or dropped. */
struct tail {
    struct klk_budget *budget;
    atomic_uint_fast64_t *queued;
    uint64_t bytes; /* of the whole message */
    uint8_t data[];
};

struct klk_budget *klk_budget_open(uint64_t seed, int in_order) {
    struct klk_budget *budget = calloc(1, sizeof *budget);
    if (!budget) return NULL;
    atomic_init(&budget->holders, 1);
    budget->seed = seed;
    budget->in_order = in_order;
    for (size_t i = 0; i < KLK_BUDGET_SLOTS; i++) atomic_init(&budget->queued[i], 0);
    return budget;
}

static void budget_release(struct klk_budget *budget) {
    if (atomic_fetch_sub(&budget->holders, 1) == 1) free(budget);
}

void klk_budget_close(struct klk_budget *budget) {
    free(budget->peers);
    budget->peers = NULL;
    budget_release(budget);
}

static uint32_t budget_slot(const struct klk_budget *budget, const uint8_t *id, size_t size) {
    return (uint32_t)(klk_id_hash(budget->seed, id, size) >> 32) % KLK_BUDGET_SLOTS;
}

uint64_t klk_budget_queued(const struct klk_budget *budget, const uint8_t *routing_id,
                           size_t size) {
    return atomic_load(&budget->queued[budget_slot(budget, routing_id, size)]);
}

/* Called by libzmq, in any thread. */
static void tail_free(void *data, void *hint) {
    struct tail *tail = hint;
    (void)data;
    atomic_fetch_sub(tail->queued, tail->bytes);
    budget_release(tail->budget);
    free(tail);
}

static int tail_send(void *socket, struct tail *tail, size_t size) {
    uint64_t message[8]; /* libzmq's zmq_msg_t */
    atomic_fetch_add(tail->queued, tail->bytes);
    atomic_fetch_add(&tail->budget->holders, 1);
    if (zmq.msg_init_data(message, tail->data, size, tail_free, tail) < 0) {
        tail_free(tail->data, tail);
        return ENOMEM;
    }
    for (uint32_t interrupted = 0; zmq.msg_send(message, socket, DONTWAIT) < 0; interrupted++) {
        int error = zmq.error();
        if (error == EINTR && interrupted < INTERRUPTED_MAX) continue;
        zmq.msg_close(message);
        return error;
    }
    return 0;
}

/* Frames from first, the routing id, up to but without end, and then the last frame. */
struct budget_message {
    uint32_t first, end;
    const uint8_t *last;
    size_t size; /* of the last one */
};

/* Sends a message, and counts it unless it is small; returns 0 or an errno.
 *
 *   reason   out, on EAGAIN: enum klk_unsent */
static int budget_send(struct klk_budget *budget, void *socket, const struct klk_messages *out,
                       const struct budget_message *message, uint64_t bytes_max,
                       uint32_t *reason) {
    uint32_t first = message->first, end = message->end;
    uint64_t bytes = (uint64_t)out->offsets[end] - out->offsets[first] + message->size;
    size_t size = message->size;
    if (bytes < KLK_BUDGET_BYTES_MIN) {
        int error = send_frames(socket, out, first, end, end);
        return error ? error : send_frame(socket, message->last, size, 0);
    }
    uint32_t slot = budget_slot(budget, out->bytes + out->offsets[first],
                                out->offsets[first + 1] - out->offsets[first]);
    uint64_t queued = atomic_load(&budget->queued[slot]);
    if (queued && queued + bytes > bytes_max) {
        *reason = KLK_UNSENT_OVER;
        return EAGAIN;
    }
    struct tail *tail = malloc(sizeof *tail + size);
    if (!tail) return EAGAIN; /* As if there were no room in the socket. */
    tail->budget = budget;
    tail->queued = &budget->queued[slot];
    tail->bytes = bytes;
    if (size) memcpy(tail->data, message->last, size);
    int error = send_frames(socket, out, first, end, end);
    if (error) {
        free(tail);
        return error;
    }
    return tail_send(socket, tail, size);
}

/* The messages of one call by peer, so that those of one peer share bundles. */
struct grouping {
    const struct klk_messages *out;
    uint32_t skip;
    uint32_t *next;    /* by message: the next with the same hash of the routing id, or NONE */
    uint32_t *members; /* of the last bundle, in order */
    uint8_t *is_done;  /* by message: it went with an earlier one */
};

enum { GROUPS = 256 };
static const uint32_t NONE = UINT32_MAX;

/* The routing id of a message; NULL: it has none. */
static const uint8_t *peer_of(const struct klk_messages *out, uint32_t message, uint32_t skip,
                              uint32_t *size) {
    if (klk_messages_frames(out, message) <= skip) return NULL;
    return klk_messages_at(out, message, skip, size);
}

/* Returns 0: no message may leave in a bundle, or there is no memory. */
static int grouping_make(struct klk_budget *budget, struct grouping *grouping) {
    const struct klk_messages *out = grouping->out;
    uint32_t count = out->messages, heads[GROUPS], size;
    if (!out->bundles || !memchr(out->bundles, 1, count)) return 0;
    if (count > budget->peers_max) {
        free(budget->peers);
        budget->peers = malloc((2 * sizeof *budget->peers + 1) * 2 * (size_t)count);
        budget->peers_max = budget->peers ? 2 * count : 0;
        if (!budget->peers) return 0;
    }
    grouping->next = budget->peers;
    grouping->members = budget->peers + count;
    grouping->is_done = (uint8_t *)(budget->peers + 2 * (size_t)count);
    memset(grouping->is_done, 0, count);
    memset(heads, 0xff, sizeof heads);
    for (uint32_t m = count; m-- > 0;) {
        const uint8_t *id = peer_of(out, m, grouping->skip, &size);
        grouping->next[m] = NONE;
        if (!id) continue;
        uint32_t *head = &heads[klk_id_hash(budget->seed, id, size) >> 32 & (GROUPS - 1)];
        grouping->next[m] = *head;
        *head = m;
    }
    return 1;
}

/* Bundles a message with those behind it that the same peer may get so; returns their number. One
 * that may not leave in a bundle ends it, so that their order stays. */
static uint32_t grouping_bundle(struct grouping *grouping, uint32_t first,
                                struct klk_bundle *bundle) {
    const struct klk_messages *out = grouping->out;
    uint32_t count = 0, size;
    const uint8_t *id = peer_of(out, first, grouping->skip, &size);
    bundle->size = 0;
    for (uint32_t m = first; id && m != NONE; m = grouping->next[m]) {
        if (!klk_messages_is(out, m, grouping->skip, id, size)) continue;
        if (!out->bundles[m] || !klk_bundle_add(bundle, out, m, grouping->skip + 1)) break;
        grouping->is_done[m] = 1;
        grouping->members[count++] = m;
    }
    return count;
}

/* Sends one message, or a bundle; returns 0 or an errno.
 *
 *   count    out: of the messages that were bundled; 0: it was sent alone
 *   reason   out, on EAGAIN: enum klk_unsent */
static int peer_send(struct klk_budget *budget, void *socket, struct grouping *grouping,
                     uint32_t message, uint64_t bytes_max, int is_late, uint32_t *count,
                     uint32_t *reason) {
    const struct klk_messages *out = grouping->out;
    uint32_t first = out->firsts[message] + grouping->skip, last = out->firsts[message + 1] - 1;
    *count = 0;
    *reason = KLK_UNSENT_FULL;
    if (grouping->next && out->bundles[message]) {
        struct klk_bundle bundle;
        *count = grouping_bundle(grouping, message, &bundle);
        if (*count) {
            if (is_late) return EAGAIN;
            struct budget_message whole = {first, first + 1, bundle.bytes, bundle.size};
            return budget_send(budget, socket, out, &whole, bytes_max, reason);
        }
    }
    if (is_late) return EAGAIN;
    if (out->firsts[message + 1] - out->firsts[message] <= grouping->skip + 1)
        return send_message(socket, out, message, grouping->skip);
    struct budget_message whole = {first, last, out->bytes + out->offsets[last],
                                   out->offsets[last + 1] - out->offsets[last]};
    return budget_send(budget, socket, out, &whole, bytes_max, reason);
}

int klk_budget_send(struct klk_budget *budget, void *socket, const struct klk_messages *out,
                    uint32_t skip, uint64_t bytes_max, uint32_t *position, uint32_t *unsent,
                    uint32_t *unsents) {
    struct grouping grouping = {.out = out, .skip = skip};
    if (!grouping_make(budget, &grouping)) grouping.next = NULL;
    *unsents = 0;
    budget->calls++;
    for (; *position < out->messages; ++*position) {
        uint32_t size, count, reason, slot = 0;
        if (grouping.next && grouping.is_done[*position]) continue;
        const uint8_t *id = peer_of(out, *position, skip, &size);
        if (id && budget->in_order && *unsents) slot = budget_slot(budget, id, size);
        int is_late = *unsents && budget->in_order && budget->lost[slot] == budget->calls;
        int error = peer_send(budget, socket, &grouping, *position, bytes_max, is_late, &count,
                              &reason);
        if (error && error != EAGAIN && error != EHOSTUNREACH && error != ENOMEM) {
            errno = error;
            return KLK_EOS;
        }
        if (!error) continue;
        if (id && budget->in_order && error != EHOSTUNREACH)
            budget->lost[budget_slot(budget, id, size)] = budget->calls;
        if (error == EHOSTUNREACH) reason = KLK_UNSENT_GONE;
        for (uint32_t i = 0; i < (count ? count : 1); i++) {
            unsent[2 * *unsents] = count ? grouping.members[i] : *position;
            unsent[2 * (*unsents)++ + 1] = reason;
        }
    }
    return KLK_OK;
}

int klk_messages_stamp(struct klk_messages *messages, uint32_t offset, const uint8_t *data,
                       uint32_t size) {
    uint64_t end = (uint64_t)offset + size;
    for (uint32_t m = 0; m < messages->messages; m++) {
        const uint32_t *frame = messages->offsets + messages->firsts[m];
        if (messages->firsts[m] == messages->firsts[m + 1] || frame[1] - frame[0] < end)
            return KLK_EINVAL;
    }
    for (uint32_t m = 0; m < messages->messages && size; m++)
        memcpy(messages->bytes + messages->offsets[messages->firsts[m]] + offset, data, size);
    return KLK_OK;
}

int klk_messages_heads(const struct klk_messages *messages, uint32_t size, uint8_t *out) {
    for (uint32_t m = 0; m < messages->messages; m++) {
        const uint32_t *frame = messages->offsets + messages->firsts[m];
        if (messages->firsts[m] == messages->firsts[m + 1] || frame[1] - frame[0] != size)
            return KLK_EINVAL;
        memcpy(out + (size_t)m * size, messages->bytes + frame[0], size);
    }
    return KLK_OK;
}

static int64_t monotonic_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* The wanted events that a socket has; the query also clears its file descriptor. */
static int poll_ask(struct klk_poll_item *item) {
    int events = 0;
    size_t size = sizeof events;
    uint32_t interrupted = 0;
    item->check = 0;
    while (zmq.getsockopt(item->socket, EVENTS, &events, &size) < 0)
        if (zmq.error() != EINTR || interrupted++ == INTERRUPTED_MAX) return -1;
    item->ready = (int16_t)(events & item->wanted);
    return item->ready != 0;
}

/* Queries the sockets that may have events which their descriptors do not show. */
static int poll_check(struct klk_poll *poll_state, int64_t now_ms) {
    int found = 0, all = now_ms - poll_state->checked_ms >= CHECK_ALL_MS;
    if (all) poll_state->checked_ms = now_ms;
    for (uint32_t i = 0; i < poll_state->count; i++) {
        struct klk_poll_item *item = &poll_state->items[i];
        item->ready = 0;
        if (!item->socket || !item->wanted || !(all || item->check)) continue;
        int asked = poll_ask(item);
        if (asked < 0) return -1;
        found += asked;
        if (asked) poll_state->last = i;
    }
    return found;
}

/* Evaluates the result of poll(); a socket's descriptor shows only that something happened. */
static int poll_take(struct klk_poll *poll_state) {
    int found = 0;
    for (uint32_t i = 0; i < poll_state->count; i++) {
        struct klk_poll_item *item = &poll_state->items[i];
        short seen = poll_state->fds[i].revents;
        if (!item->ready && seen) {
            if (item->socket && item->drained && item->wanted == KLK_POLL_IN) {
                item->ready = KLK_POLL_IN;
            } else if (item->socket) {
                if (poll_ask(item) < 0) return -1;
            } else {
                if (seen & ~POLLOUT) item->ready |= KLK_POLL_IN;
                if (seen & POLLOUT) item->ready |= KLK_POLL_OUT;
            }
        }
        if (!item->ready) continue;
        poll_state->last = i;
        found++;
    }
    return found;
}

/* Whether a lazy source is ready. */
static int poll_ask_lazy(struct klk_poll_item *item) {
    if (item->socket) return poll_ask(item);
    struct pollfd one = {item->fd, POLLIN, 0};
    item->ready = poll(&one, 1, 0) > 0 ? KLK_POLL_IN : 0;
    return item->ready != 0;
}

/* Queries the lazy sources that are not ready yet. Returns how many are now. */
static int poll_lazy(struct klk_poll *poll_state) {
    int found = 0;
    for (uint32_t i = 0; i < poll_state->count; i++) {
        struct klk_poll_item *item = &poll_state->items[i];
        if (!item->lazy || !item->wanted || item->ready) continue;
        int asked = poll_ask_lazy(item);
        if (asked < 0) return -1;
        found += asked;
        if (asked) poll_state->last = i;
    }
    return found;
}

/* The descriptors to wait for, without those of lazy sources or with them. Returns whether some are
 * left out. */
static int poll_choose(struct klk_poll *poll_state, int with_lazy) {
    int left_out = 0;
    for (uint32_t i = 0; i < poll_state->count; i++) {
        const struct klk_poll_item *item = &poll_state->items[i];
        int later = item->lazy && item->wanted && !with_lazy;
        short events = item->wanted & KLK_POLL_IN || item->socket ? POLLIN : 0;
        if (!item->socket && item->wanted & KLK_POLL_OUT) events = (short)(events | POLLOUT);
        poll_state->fds[i] = (struct pollfd){item->wanted && !later ? item->fd : -1, events, 0};
        left_out |= later;
    }
    return left_out;
}

/* poll(), of which the thread of the connections learns. A loop that may wait has read all that had
 * arrived before; one that may not has more to read. */
static int poll_fds(struct klk_poll *poll_state, int timeout_ms) {
    struct klk_connections *connections = poll_state->connections;
    if (!connections) return poll(poll_state->fds, poll_state->count, timeout_ms);
    __atomic_fetch_add(&connections->waits, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&connections->waiting, timeout_ms != 0, __ATOMIC_RELAXED);
    int seen = poll(poll_state->fds, poll_state->count, timeout_ms);
    __atomic_store_n(&connections->waiting, 0, __ATOMIC_RELAXED);
    if (seen > 0 || timeout_ms == 0) __atomic_fetch_add(&connections->wakes, 1, __ATOMIC_RELAXED);
    return seen;
}

int klk_poll_wait(struct klk_poll *poll_state, int64_t timeout_ms) {
    if (!zmq.getsockopt) return KLK_EINVAL;
    int64_t now_ms = monotonic_ms(), end_ms = now_ms + timeout_ms, lazy_ms = now_ms + KLK_LAZY_MS;
    int64_t check_ms = CHECK_ALL_MS; /* Longer once a query of all sockets has found nothing. */
    int lazy = poll_choose(poll_state, 0);
    for (;;) {
        int found = poll_check(poll_state, now_ms);
        if (found < 0) return KLK_EOS;
        int64_t left_ms = found || end_ms <= now_ms ? 0 : end_ms - now_ms;
        if (left_ms > (lazy ? KLK_LAZY_MS : check_ms)) left_ms = lazy ? KLK_LAZY_MS : check_ms;
        if (!lazy && check_ms < CHECK_IDLE_MS) check_ms *= 2;
        int seen = poll_fds(poll_state, (int)left_ms);
        if (seen < 0 && errno != EINTR) return KLK_EOS;
        if (seen < 0) return found;
        if (seen > 0) found = poll_take(poll_state);
        if (found < 0) return KLK_EOS;
        if (found && !lazy) return found;
        now_ms = monotonic_ms();
        if (lazy && (found || now_ms >= lazy_ms || now_ms >= end_ms)) {
            int late = poll_lazy(poll_state);
            if (late < 0) return KLK_EOS;
            found += late;
            if (!found) lazy = poll_choose(poll_state, 1);
        }
        if (found || now_ms >= end_ms) return found;
    }
}
