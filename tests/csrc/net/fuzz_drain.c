/* The drain of an endpoint with CURVE on any frames, bundles, limits and User-Ids, against a libzmq
 * of our own: this program exports the symbols that klk_sockets_bind() looks for. */
#include <errno.h>

#include "fuzz.h"
#include "guard.h"

struct fuzz_message {
    uint8_t *data;
    size_t size;
    int more;
};

int zmq_msg_init(struct fuzz_message *message);
int zmq_msg_close(struct fuzz_message *message);
int zmq_msg_init_data(void *message, void *data, size_t size, void *done, void *hint);
int zmq_msg_send(void *message, void *socket, int flags);
int zmq_msg_recv(struct fuzz_message *message, void *socket, int flags);
int zmq_msg_more(const struct fuzz_message *message);
void *zmq_msg_data(struct fuzz_message *message);
size_t zmq_msg_size(const struct fuzz_message *message);
const char *zmq_msg_gets(const struct fuzz_message *message, const char *name);
int zmq_send(void *socket, const void *data, size_t size, int flags);
int zmq_getsockopt(void *socket, int option, void *value, size_t *size);
int zmq_errno(void);
void zmq_version(int *major, int *minor, int *patch);

static struct fuzz_input *socket_input;
static char user_id[32];

int zmq_msg_init(struct fuzz_message *message) {
    memset(message, 0, sizeof *message);
    return 0;
}

int zmq_msg_close(struct fuzz_message *message) {
    free(message->data);
    return zmq_msg_init(message);
}

/* Of a first frame the User-Id is what precedes its last byte 0, if there is one. */
int zmq_msg_recv(struct fuzz_message *message, void *socket, int flags) {
    const uint8_t *data;
    uint32_t size;
    int last;
    REQUIRE(socket == &socket_input && flags == 1);
    zmq_msg_close(message);
    if (!fuzz_frame(socket_input, &data, &size, &last)) return -1;
    message->data = exact_copy(data, size);
    message->size = size;
    message->more = !last;
    uint32_t text = size < sizeof user_id - 1 ? size : (uint32_t)sizeof user_id - 1;
    memcpy(user_id, data, text);
    user_id[text] = 0;
    return (int)size;
}

int zmq_msg_more(const struct fuzz_message *message) { return message->more; }
void *zmq_msg_data(struct fuzz_message *message) { return message->data; }
size_t zmq_msg_size(const struct fuzz_message *message) { return message->size; }
int zmq_errno(void) { return EAGAIN; }

const char *zmq_msg_gets(const struct fuzz_message *message, const char *name) {
    REQUIRE(message->data);
    if (strcmp(name, "User-Id") == 0) return user_id[0] == '-' ? NULL : user_id;
    return message->size % 2 ? "127.0.0.1" : NULL;
}

int zmq_msg_init_data(void *message, void *data, size_t size, void *done, void *hint) {
    (void)message, (void)data, (void)size, (void)done, (void)hint;
    return -1;
}

int zmq_msg_send(void *message, void *socket, int flags) {
    (void)message, (void)socket, (void)flags;
    return -1;
}

int zmq_send(void *socket, const void *data, size_t size, int flags) {
    (void)socket, (void)data, (void)size, (void)flags;
    return -1;
}

int zmq_getsockopt(void *socket, int option, void *value, size_t *size) {
    (void)socket, (void)option, (void)value, (void)size;
    return -1;
}

void zmq_version(int *major, int *minor, int *patch) {
    *major = 4;
    *minor = 3;
    *patch = 5;
}

size_t fuzz_seed(uint32_t number, uint8_t *out) {
    if (number > 63) return 0;
    uint8_t *at = out;
    *at++ = (uint8_t)number;
    if (number & 48) {
        static const char bundle[] = "KLKM01\3\0\2id\0\1=\0\4data\2\0\1x\0\1-\1\0\0";
        at = fuzz_put(at, "1.0", 3, number & 16);
        at = fuzz_put(at, "0.7", 3, 0);
        at = fuzz_put(at, bundle, sizeof bundle - 1, 1);
        at = fuzz_put(at, bundle, sizeof bundle - 1, 1);
        at = fuzz_put(at, "0.7", 3, 0);
        at = fuzz_put(at, bundle, sizeof bundle - 3, 1);
    }
    for (uint32_t i = 0; i < 4; i++) {
        at = fuzz_put(at, i % 2 ? "0.7" : "1.0", 3, 0);
        at = fuzz_put(at, "id", 2, 0);
        at = fuzz_put(at, "=", 1, 0);
        at = fuzz_put(at, "data that may be too long", 8 * i, 1);
    }
    at = fuzz_put(at, "4294967295.0", 12, 0);
    return (size_t)(fuzz_put(at, "-", 1, 1) - out);
}

static void look(const struct klk_messages *arena, uint32_t keys, const struct klk_drain *drain) {
    for (uint32_t m = 0; m < arena->messages; m++) {
        uint32_t frames = klk_messages_frames(arena, m), bytes = 0;
        for (uint32_t f = 0; f < frames; f++) {
            uint32_t size;
            klk_messages_at(arena, m, f, &size);
            bytes += size;
        }
        REQUIRE(frames > 0 && frames <= drain->message_frames_max);
        REQUIRE(bytes <= drain->message_bytes_max);
        if (arena->slots) REQUIRE(arena->slots[m] < keys);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int is_bound;
    int version;
    if (!is_bound) REQUIRE(klk_sockets_bind(NULL, &version) == KLK_OK);
    is_bound = 1;
    struct fuzz_input in = {data, size};
    uint8_t mode = fuzz_u8(&in);
    struct klk_messages arena = messages_new(16, 2), denied = messages_new(300, 6);
    struct klk_key all[] = {{.generation = 7, .rights = 1}, {.generation = 0}};
    struct klk_keys keys = {all, 2, 0};
    struct klk_guard guard = {.kind = KLK_GUARD_LOG};
    guard.needed[0]['='] = 1;
    guard.reports_only = mode & 8;
    struct klk_drain *drain = calloc(1, sizeof *drain);
    *drain = (struct klk_drain){.arena = &arena,
                                .message_bytes_max = 64,
                                .message_frames_max = 6,
                                .addressed = mode & 1,
                                .bundles = (mode >> 4 & 3) % 3, /* of a DEALER or a ROUTER */
                                .keys = mode & 2 ? &keys : NULL,
                                .guard = (mode & 6) == 6 ? &guard : NULL,
                                .denied = (mode & 6) == 6 ? &denied : NULL};
    if (drain->denied) denied.slots = exact((denied.frames_max + 1) * sizeof *denied.slots);
    if (mode & 64) arena.bundles = exact((arena.frames_max + 1) * sizeof *arena.bundles);
    if (drain->keys) arena.slots = exact((arena.frames_max + 1) * sizeof *arena.slots);
    socket_input = &in;
    REQUIRE(klk_drain_open(drain) == KLK_OK);
    for (int result = KLK_MORE, fresh = 1; result != KLK_OK; fresh = result != KLK_ESPACE) {
        result = klk_drain_receive(drain, &socket_input, fresh);
        look(&arena, keys.count, drain);
        REQUIRE(result == KLK_OK || result == KLK_MORE || result == KLK_ESPACE);
        if (result != KLK_ESPACE) continue;
        REQUIRE(drain->bytes_need > arena.bytes_max || drain->frames_need > arena.frames_max);
        uint32_t bytes = drain->bytes_need > arena.bytes_max ? drain->bytes_need : arena.bytes_max;
        uint32_t frames =
            drain->frames_need > arena.frames_max ? drain->frames_need : arena.frames_max;
        uint8_t *bundles = arena.bundles;
        uint32_t slot = arena.slots ? arena.slots[0] : 0, *slots = arena.slots;
        messages_grow(&arena, bytes, frames);
        arena.bundles = bundles ? exact((frames + 1) * sizeof *bundles) : NULL;
        free(bundles);
        arena.slots = slots ? exact((frames + 1) * sizeof *slots) : NULL;
        if (slots) arena.slots[0] = slot;
        free(slots);
    }
    klk_drain_close(drain);
    free(drain);
    free(arena.slots);
    free(arena.bundles);
    free(denied.slots);
    messages_free(&arena);
    messages_free(&denied);
    return 0;
}
