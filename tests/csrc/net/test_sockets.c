/* The drain and the send against a libzmq of our own that fails where we want it to: this program
 * exports the symbols that klk_sockets_bind() looks for. */
#include <errno.h>
#include "budget.h"
#include "bundles.h"
#include "exact.h"
#include "guard.h"

enum { FRAMES_MAX = 4096 };

/* What a receive or a send meets, one after the other: a frame, or an errno. */
struct step {
    uint32_t size;
    int more;
    int error;
    const uint8_t *data; /* NULL: any */
};

static struct step steps[FRAMES_MAX];
static int step_count, step_next, sent_frames, sent_messages, last_error;

struct fake_message {
    uint8_t *data;
    size_t size;
    void (*done)(void *data, void *hint);
    void *hint;
    int more;
};

static struct fake_message held[8]; /* What was sent and is not done with. */
static int held_count;

int zmq_msg_init_data(struct fake_message *message, void *data, size_t size,
                      void (*done)(void *, void *), void *hint);
int zmq_msg_send(struct fake_message *message, void *socket, int flags);
int zmq_msg_init(struct fake_message *message);
int zmq_msg_close(struct fake_message *message);
int zmq_msg_recv(struct fake_message *message, void *socket, int flags);
int zmq_msg_more(const struct fake_message *message);
void *zmq_msg_data(struct fake_message *message);
size_t zmq_msg_size(const struct fake_message *message);
const char *zmq_msg_gets(const struct fake_message *message, const char *name);
int zmq_send(void *socket, const void *data, size_t size, int flags);
int zmq_errno(void);
int zmq_getsockopt(void *socket, int option, void *value, size_t *size);
void zmq_version(int *major, int *minor, int *patch);

int zmq_msg_init(struct fake_message *message) {
    memset(message, 0, sizeof *message);
    return 0;
}

int zmq_msg_close(struct fake_message *message) {
    if (message->done)
        message->done(message->data, message->hint);
    else
        free(message->data);
    return zmq_msg_init(message);
}

int zmq_msg_init_data(struct fake_message *message, void *data, size_t size,
                      void (*done)(void *, void *), void *hint) {
    zmq_msg_init(message);
    message->data = data;
    message->size = size;
    message->done = done;
    message->hint = hint;
    return 0;
}

int zmq_msg_send(struct fake_message *message, void *socket, int flags) {
    int sent = zmq_send(socket, message->data, message->size, flags);
    if (sent >= 0) held[held_count++] = *message;
    return sent;
}

int zmq_msg_recv(struct fake_message *message, void *socket, int flags) {
    REQUIRE(socket == steps && flags == 1);
    zmq_msg_close(message);
    if (step_next == step_count) {
        last_error = EAGAIN;
        return -1;
    }
    struct step step = steps[step_next++];
    if (step.error) {
        last_error = step.error;
        return -1;
    }
    /* An exact size: whoever reads or copies one byte more is caught. */
    message->data = malloc(step.size);
    memset(message->data, step_next, step.size);
    if (step.data) memcpy(message->data, step.data, step.size);
    message->size = step.size;
    message->more = step.more;
    return (int)step.size;
}

int zmq_msg_more(const struct fake_message *message) { return message->more; }
void *zmq_msg_data(struct fake_message *message) { return message->data; }
size_t zmq_msg_size(const struct fake_message *message) { return message->size; }

static const char *peer_address; /* Of every connection. */

/* A message's first frame has its size as number of its sender: some are no longer allowed. */
static const char *const user_ids[] = {"0.7",  "1.0", "2.4294967295", "0.6",  "3.0", NULL,
                                       "",     ".",   "0.",           ".7",   "0.7 ", "0.70",
                                       "00.7", "-1.0", "12345678901.0", "0.12345678901"};
enum { ALLOWED = 3, USERS = sizeof user_ids / sizeof *user_ids };

static const char *user_id(int step) { return user_ids[steps[step].size % USERS]; }

const char *zmq_msg_gets(const struct fake_message *message, const char *name) {
    REQUIRE(message->data);
    if (strcmp(name, "User-Id") == 0) return user_id(step_next - 1);
    REQUIRE(strcmp(name, "Peer-Address") == 0);
    return peer_address;
}

int zmq_send(void *socket, const void *data, size_t size, int flags) {
    REQUIRE(socket == steps && (flags & 1));
    (void)data;
    if (step_next < step_count && steps[step_next++].error) {
        last_error = steps[step_next - 1].error;
        return -1;
    }
    sent_frames++;
    sent_messages += !(flags & 2);
    return (int)size;
}

int zmq_errno(void) { return last_error; }

/* Its events; a step may fail. */
int zmq_getsockopt(void *socket, int option, void *value, size_t *size) {
    REQUIRE(socket == steps && option == 15 && *size == sizeof(int));
    if (step_next < step_count && steps[step_next++].error) {
        last_error = errno = steps[step_next - 1].error;
        return -1;
    }
    *(int *)value = KLK_POLL_IN;
    return 0;
}

void zmq_version(int *major, int *minor, int *patch) {
    *major = 4;
    *minor = 3;
    *patch = 5;
}

/* ---- what the owner does ---- */

static uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* Adds the sizes of the frames of every message in the arena to seen; returns how many. */
static int messages_note(const struct klk_messages *arena, struct step *seen) {
    int count = 0;
    for (uint32_t m = 0; m < arena->messages; m++) {
        for (uint32_t f = arena->firsts[m]; f < arena->firsts[m + 1]; f++) {
            uint32_t size = arena->offsets[f + 1] - arena->offsets[f];
            uint8_t *frame = arena->bytes + arena->offsets[f];
            for (uint32_t i = 0; i < size; i++) REQUIRE(frame[i] == frame[0]);
            seen[count++] = (struct step){.size = size, .more = f + 1 < arena->firsts[m + 1]};
        }
    }
    return count;
}

/* Drains all the steps through an arena of this size; returns the frames seen. */
static int drain_all(uint32_t bytes_max, uint32_t frames_max, uint32_t message_bytes_max,
                     uint32_t message_frames_max, struct step *seen, uint64_t *dropped) {
    struct klk_messages arena = messages_new(bytes_max, frames_max);
    struct klk_drain drain = {.arena = &arena,
                              .message_bytes_max = message_bytes_max,
                              .message_frames_max = message_frames_max};
    int count = 0, result = KLK_MORE;
    REQUIRE(klk_drain_open(&drain) == KLK_OK);
    step_next = 0;
    while (result == KLK_MORE) {
        int fresh = 1;
        while ((result = klk_drain_receive(&drain, steps, fresh)) == KLK_ESPACE) {
            fresh = 0;
            REQUIRE(arena.messages == 0);
            REQUIRE(drain.bytes_need <= message_bytes_max);
            REQUIRE(drain.frames_need <= message_frames_max);
            messages_grow(&arena, larger(drain.bytes_need, arena.bytes_max),
                          larger(drain.frames_need, arena.frames_max));
        }
        REQUIRE(result >= 0);
        count += messages_note(&arena, seen + count);
    }
    klk_drain_close(&drain);
    messages_free(&arena);
    *dropped = drain.dropped;
    return count;
}

static void test_random_streams(unsigned seed) {
    static struct step seen[FRAMES_MAX];
    struct step kept[FRAMES_MAX];
    uint32_t message_bytes_max = 200, message_frames_max = 6;
    int kept_count = 0;
    uint64_t dropped = 0, dropped_seen;
    srand(seed);
    step_count = 0;
    for (int message = 0; message < 200; message++) {
        uint32_t frames = 1 + (uint32_t)(rand() % 8), bytes = 0;
        int first = kept_count;
        for (uint32_t f = 0; f < frames; f++) {
            if (rand() % 10 == 0) steps[step_count++] = (struct step){.error = EINTR};
            struct step step = {.size = (uint32_t)(rand() % 60), .more = f + 1 < frames};
            steps[step_count++] = kept[kept_count++] = step;
            bytes += step.size;
        }
        if (frames > message_frames_max || bytes > message_bytes_max) {
            kept_count = first;
            dropped++;
        }
    }
    uint32_t bytes_max = 1 + (uint32_t)(rand() % 400), frames_max = 1 + (uint32_t)(rand() % 20);
    int count = drain_all(bytes_max, frames_max, message_bytes_max, message_frames_max, seen,
                          &dropped_seen);
    REQUIRE(count == kept_count && dropped_seen == dropped);
    for (int i = 0; i < count; i++)
        REQUIRE(seen[i].size == kept[i].size && seen[i].more == kept[i].more);
}

static void test_errors_come_after_what_there_is(void) {
    struct klk_messages arena = messages_new(100, 10);
    struct klk_drain drain = {.arena = &arena, .message_bytes_max = 100, .message_frames_max = 10};
    REQUIRE(klk_drain_open(&drain) == KLK_OK);
    step_next = step_count = 0;
    steps[step_count++] = (struct step){.size = 3};
    steps[step_count++] = (struct step){.error = ENOTSOCK};
    steps[step_count++] = (struct step){.error = ENOTSOCK};
    REQUIRE(klk_drain_receive(&drain, steps, 1) == KLK_MORE && arena.messages == 1);
    REQUIRE(klk_drain_receive(&drain, steps, 1) == KLK_EOS && errno == ENOTSOCK);
    klk_drain_close(&drain);
    messages_free(&arena);
}

/* The address stands behind the first frame, and counts for the limits as any other. */
static void test_addresses(const char *address, uint32_t frames_max, uint32_t bytes_max) {
    uint32_t size = address ? (uint32_t)strlen(address) : 0;
    struct klk_messages arena = messages_new(1, 1);
    struct klk_drain drain = {.arena = &arena,
                              .message_bytes_max = bytes_max,
                              .message_frames_max = frames_max,
                              .addressed = 1};
    int fits = frames_max >= 3 && bytes_max >= 5 + size, result, fresh = 1;
    REQUIRE(klk_drain_open(&drain) == KLK_OK);
    peer_address = address;
    step_next = step_count = 0;
    steps[step_count++] = (struct step){.size = 3, .more = 1};
    steps[step_count++] = (struct step){.size = 2};
    while ((result = klk_drain_receive(&drain, steps, fresh)) == KLK_ESPACE) {
        messages_grow(&arena, drain.bytes_need, drain.frames_need);
        fresh = 0;
    }
    REQUIRE(result == KLK_OK && arena.messages == (uint32_t)fits && drain.dropped == !fits);
    if (fits) {
        REQUIRE(arena.frames == 3 && arena.offsets[1] == 3 && arena.offsets[2] == 3 + size);
        REQUIRE(!size || memcmp(arena.bytes + 3, address, size) == 0);
    }
    klk_drain_close(&drain);
    messages_free(&arena);
}

/* A drain of an endpoint with CURVE keeps the messages of allowed keys alone, and their slots. */
static void test_keys(unsigned seed) {
    struct klk_key rows[] = {{.generation = 7}, {.generation = 0}, {.generation = UINT32_MAX}};
    struct klk_keys keys = {.keys = rows, .count = 3};
    uint32_t slots[FRAMES_MAX] = {0};
    struct klk_messages arena = messages_new(64, 3);
    arena.slots = slots;
    struct klk_drain drain = {
        .arena = &arena, .message_bytes_max = 1000, .message_frames_max = 9, .keys = &keys};
    uint32_t kept[FRAMES_MAX], kept_count = 0, seen = 0, revoked = 0;
    srand(seed);
    step_count = step_next = 0;
    for (int message = 0; message < 300; message++) {
        uint32_t frames = 1 + (uint32_t)(rand() % 5), user = (uint32_t)(rand() % USERS);
        for (uint32_t f = 0; f < frames; f++)
            steps[step_count++] = (struct step){.size = f ? 5 : user, .more = f + 1 < frames};
        if (user < ALLOWED || strcmp(user_ids[user] ? user_ids[user] : "", "00.7") == 0)
            kept[kept_count++] = user < ALLOWED ? user : 0;
        else
            revoked++;
    }
    REQUIRE(klk_drain_open(&drain) == KLK_OK);
    for (int result = KLK_MORE; result == KLK_MORE;) {
        for (int fresh = 1; (result = klk_drain_receive(&drain, steps, fresh)) == KLK_ESPACE;) {
            fresh = 0;
            messages_grow(&arena, drain.bytes_need, drain.frames_need);
            arena.slots = slots;
        }
        REQUIRE(result >= 0);
        for (uint32_t m = 0; m < arena.messages; m++) REQUIRE(arena.slots[m] == kept[seen++]);
    }
    REQUIRE(seen == kept_count && keys.revoked == revoked && drain.dropped == 0);
    klk_drain_close(&drain);
    messages_free(&arena);
}

/* A bundle that the arena has no room for is opened in pieces; none follows a revocation. */
static void test_revoked_within_a_bundle(uint32_t before) {
    enum { MESSAGES = 10, SIZE = 6 }; /* 96 octets: user 0. */
    struct klk_key rows[] = {{.generation = 7}};
    struct klk_keys keys = {.keys = rows, .count = 1};
    uint8_t bundle[KLK_BUNDLE_HEAD + MESSAGES * (3 + SIZE)] = "KLKM01", *at = bundle + 6;
    uint32_t slots[FRAMES_MAX] = {0};
    for (uint8_t m = 0; m < MESSAGES; m++) {
        *at++ = 1, *at++ = 0, *at++ = SIZE;
        memset(at, m, SIZE);
        at += SIZE;
    }
    for (uint32_t revoked = 0; revoked < 2; revoked++) {
        struct klk_messages arena = messages_new(24, 8);
        arena.slots = slots;
        struct klk_drain drain = {.arena = &arena, .message_bytes_max = 1000,
                                  .message_frames_max = 9, .keys = &keys, .bundles = 1 + before};
        memset(steps, 0, sizeof steps);
        steps[before] = (struct step){.size = sizeof bundle, .data = bundle};
        steps[0].more = before != 0;
        step_next = 0, step_count = (int)before + 1;
        rows[0].generation = 7, keys.revoked = 0;
        REQUIRE(klk_drain_open(&drain) == KLK_OK);
        REQUIRE(klk_drain_receive(&drain, steps, 1) == KLK_MORE);
        uint32_t seen = arena.messages;
        REQUIRE(seen && seen < MESSAGES);
        rows[0].generation += revoked;
        for (int result = KLK_MORE; result == KLK_MORE; seen += arena.messages) {
            result = klk_drain_receive(&drain, steps, 1);
            REQUIRE(result == KLK_MORE || result == KLK_OK);
            REQUIRE(!revoked || (result == KLK_OK && arena.messages == 0));
        }
        REQUIRE(revoked ? seen < MESSAGES && keys.revoked == 1 : seen == MESSAGES);
        REQUIRE(arena.frames == 0 || !revoked);
        klk_drain_close(&drain);
        messages_free(&arena);
    }
}

static void test_send(int mode, int error, uint32_t position_after, int result_after) {
    struct klk_messages out = messages_new(8, 8);
    uint32_t position = 0, dropped = 0;
    for (uint32_t f = 0; f < 6; f++) out.offsets[f + 1] = f + 1;
    for (uint32_t m = 0; m < 3; m++) out.firsts[m + 1] = 2 * (m + 1);
    memset(out.bytes, 0, 8);
    out.frames = 6;
    out.messages = 3;
    step_next = sent_frames = sent_messages = 0;
    /* The second message fails, at its first frame; interruptions do not matter. */
    step_count = 5;
    memset(steps, 0, sizeof steps);
    steps[1].error = EINTR;
    steps[3].error = error;
    REQUIRE(klk_send(steps, &out, 0, mode, &position, &dropped) == result_after);
    REQUIRE(position == position_after);
    if (result_after == KLK_OK) REQUIRE(dropped == 1 && sent_messages == 2 && sent_frames == 4);
    if (result_after == KLK_EOS) REQUIRE(errno == error);
    step_count = 0;
    REQUIRE(klk_send(steps, &out, 0, mode, &position, &dropped) == KLK_OK && position == 3);
    messages_free(&out);
}

/* Each client has room for two messages of 20,000 bytes, or for one of any size. */
static void test_budget(void) {
    enum { SIZE = 20000, MESSAGES = 4 };
    struct klk_messages out = messages_new(MESSAGES * SIZE, 2 * MESSAGES);
    struct klk_budget *budget = klk_budget_open(7, 0);
    uint32_t position = 0, unsents = 0, unsent[2 * MESSAGES];
    memset(out.bytes, 'a', MESSAGES * SIZE);
    for (uint32_t m = 0; m < MESSAGES; m++) {
        out.offsets[2 * m + 1] = m * SIZE + 1;
        out.offsets[2 * m + 2] = out.offsets[out.firsts[m + 1] = 2 * m + 2] = (m + 1) * SIZE;
    }
    out.frames = 2 * MESSAGES;
    out.messages = MESSAGES;
    /* The first is interrupted, the second fails at its first frame, the third at its last. */
    memset(steps, 0, sizeof steps);
    steps[1].error = EINTR;
    steps[3].error = EHOSTUNREACH;
    steps[5].error = EAGAIN;
    step_next = 0, step_count = 6;
    REQUIRE(klk_budget_send(budget, steps, &out, 0, 2 * SIZE, &position, unsent, &unsents) ==
          KLK_OK);
    REQUIRE(position == MESSAGES && unsents == 2 && held_count == 2);
    REQUIRE(unsent[0] == 1 && unsent[1] == KLK_UNSENT_GONE);
    REQUIRE(unsent[2] == 2 && unsent[3] == KLK_UNSENT_FULL);
    REQUIRE(klk_budget_queued(budget, (const uint8_t *)"a", 1) == 2 * SIZE);
    position = 0;
    REQUIRE(klk_budget_send(budget, steps, &out, 0, 2 * SIZE, &position, unsent, &unsents) ==
          KLK_OK);
    REQUIRE(unsents == MESSAGES && held_count == 2);
    REQUIRE(unsent[6] == 3 && unsent[7] == KLK_UNSENT_OVER);
    klk_budget_close(budget); /* It must live until the last of them is done with. */
    while (held_count) zmq_msg_close(&held[--held_count]);
    budget = klk_budget_open(7, 0);
    position = 3;
    REQUIRE(klk_budget_send(budget, steps, &out, 0, 1, &position, unsent, &unsents) == KLK_OK);
    REQUIRE(unsents == 0 && held_count == 1);
    zmq_msg_close(&held[--held_count]);
    REQUIRE(klk_budget_queued(budget, (const uint8_t *)"a", 1) == 0);
    position = 3, step_count = 1, step_next = 0;
    steps[0].error = ENOTSOCK;
    REQUIRE(klk_budget_send(budget, steps, &out, 0, 1, &position, unsent, &unsents) == KLK_EOS);
    klk_budget_close(budget);
    messages_free(&out);
}

/* Messages of two clients by turns: each client's leave in one frame behind its routing id, but for
 * one that may not, which keeps its place. */
static void test_bundles(void) {
    enum { MESSAGES = 8, PLAIN = 4 };
    struct klk_messages out = messages_new(16 * MESSAGES, 3 * MESSAGES);
    struct klk_budget *budget = klk_budget_open(7, 1);
    uint32_t position = 0, unsents = 0, unsent[2 * MESSAGES], dropped = 0;
    out.bundles = exact(MESSAGES + 1);
    for (uint32_t m = 0; m < MESSAGES; m++) {
        klk_messages_frame(&out, m % 2 ? "b" : "a", 1);
        klk_messages_frame(&out, "", 0);
        klk_messages_frame(&out, "body", m % 5);
        klk_messages_end_bundled(&out, m != PLAIN);
    }
    memset(steps, 0, sizeof steps);
    step_next = step_count = sent_frames = sent_messages = 0;
    REQUIRE(klk_budget_send(budget, steps, &out, 0, 1, &position, unsent, &unsents) == KLK_OK);
    /* 0 2, 1 3 5 7, 4 alone, 6. */
    REQUIRE(unsents == 0 && sent_messages == 4 && sent_frames == 2 + 2 + 3 + 2);
    position = 0, step_next = 0, step_count = 1;
    steps[0].error = EAGAIN;
    REQUIRE(klk_budget_send(budget, steps, &out, 0, 1, &position, unsent, &unsents) == KLK_OK);
    REQUIRE(unsents == 4 && position == MESSAGES);
    for (uint32_t i = 0; i < unsents; i++)
        REQUIRE(unsent[2 * i] == 2 * i && unsent[2 * i + 1] == KLK_UNSENT_FULL);
    step_next = step_count = sent_messages = sent_frames = 0;
    position = 1;
    REQUIRE(klk_send(steps, &out, 1, KLK_KEEP | KLK_BUNDLED, &position, &dropped) == KLK_OK);
    REQUIRE(position == MESSAGES && !dropped && sent_messages == 1 && sent_frames == 1);
    position = 1, step_count = 1;
    REQUIRE(klk_send(steps, &out, 1, KLK_KEEP | KLK_BUNDLED, &position, &dropped) == KLK_MORE);
    REQUIRE(position == 1);
    klk_budget_close(budget);
    free(out.bundles);
    messages_free(&out);
}

/* A signal that comes as a socket is asked is no failure; a closed socket is one. */
static void test_poll_asks_again(void) {
    uint64_t fds[1];
    struct klk_poll_item item = {.socket = steps, .fd = -1, .wanted = KLK_POLL_IN, .check = 1};
    struct klk_poll poll_state = {.items = &item, .fds = (struct pollfd *)(void *)fds, .count = 1};
    memset(steps, 0, sizeof steps);
    steps[0].error = steps[1].error = EINTR;
    step_next = 0, step_count = 3;
    REQUIRE(klk_poll_wait(&poll_state, 0) == 1 && item.ready == KLK_POLL_IN && step_next == 3);
    item.check = 1;
    steps[0].error = ENOTSOCK;
    step_next = 0, step_count = 1;
    REQUIRE(klk_poll_wait(&poll_state, 0) == KLK_EOS && errno == ENOTSOCK);
}

int main(void) {
    int version = 0;
    REQUIRE(klk_sockets_bind("/nowhere/libzmq.so", &version) == KLK_EOS && version == 0);
    REQUIRE(klk_sockets_bind(NULL, &version) == KLK_OK && version == 40305);
    for (unsigned seed = 0; seed < 300; seed++) test_random_streams(seed);
    test_errors_come_after_what_there_is();
    test_addresses("10.1.2.3", 9, 100);
    test_addresses("10.1.2.3", 2, 100);
    test_addresses("10.1.2.3", 9, 12);
    test_addresses(NULL, 9, 100);
    for (unsigned seed = 0; seed < 100; seed++) test_keys(seed);
    test_revoked_within_a_bundle(0);
    test_revoked_within_a_bundle(1);
    test_send(KLK_DROP, EAGAIN, 3, KLK_OK);
    test_send(KLK_DROP, EHOSTUNREACH, 3, KLK_OK);
    test_send(KLK_KEEP, EHOSTUNREACH, 3, KLK_OK);
    test_send(KLK_KEEP, EAGAIN, 1, KLK_MORE);
    test_send(KLK_DROP, ENOTSOCK, 1, KLK_EOS);
    test_budget();
    test_bundles();
    test_poll_asks_again();
    return 0;
}
