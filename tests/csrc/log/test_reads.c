/* csrc/log/reads.c on exact-size heap buffers, with full outgoing messages and nearly full rings:
 * no access outside the buffers, and exactly one answer for every received read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"

#define CHECK(condition)                                           \
    do {                                                           \
        if (!(condition)) {                                        \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                               \
        }                                                          \
    } while (0)

enum { ROUNDS = 3000, MESSAGES = 20, RING = 2048 };

static const uint8_t READ_INDEX[] = {0x6b, 0x52};
static const uint8_t REFUSAL[] = {0xa2, 'n', '1'};

static struct klk_messages messages_new(uint32_t bytes_max, uint32_t frames_max) {
    struct klk_messages messages = {.bytes = malloc(bytes_max),
                                    .offsets = calloc(frames_max + 1, sizeof(uint32_t)),
                                    .firsts = calloc(frames_max + 1, sizeof(uint32_t)),
                                    .bytes_max = bytes_max,
                                    .frames_max = frames_max};
    return messages;
}

static void messages_free(struct klk_messages *messages) {
    free(messages->bytes);
    free(messages->offsets);
    free(messages->firsts);
}

static void messages_clear(struct klk_messages *messages) {
    messages->frames = messages->messages = 0;
}

static void frame_add(struct klk_messages *messages, const void *data, size_t size) {
    uint32_t offset = messages->offsets[messages->frames];
    if (size) memcpy(messages->bytes + offset, data, size);
    messages->offsets[++messages->frames] = offset + (uint32_t)size;
}

/* A copy in a buffer of exactly this size. */
static struct klk_messages messages_exact(const struct klk_messages *from) {
    struct klk_messages exact = messages_new(from->offsets[from->frames], from->frames);
    memcpy(exact.bytes, from->bytes, exact.bytes_max);
    memcpy(exact.offsets, from->offsets, (from->frames + 1) * sizeof(uint32_t));
    memcpy(exact.firsts, from->firsts, (from->messages + 1) * sizeof(uint32_t));
    exact.frames = from->frames;
    exact.messages = from->messages;
    return exact;
}

/* A message of up to six frames, most of them a read or nearly one. */
static void message_add(struct klk_messages *messages) {
    uint8_t bytes[256];
    memset(bytes, 7, sizeof bytes);
    int frames = rand() % 4 ? 4 + rand() % 2 : 1 + rand() % 6;
    for (int frame = 0; frame < frames; frame++) {
        if (rand() % 50 == 0) frame_add(messages, bytes, (size_t)(rand() % 256));
        else if (frame == 0) frame_add(messages, bytes, rand() % 20 ? 5 : (size_t)(rand() % 256));
        else if (frame == 1) frame_add(messages, bytes, (size_t)(rand() % 14));
        else if (frame == 2) frame_add(messages, READ_INDEX, sizeof READ_INDEX);
        else if (frame == 3) frame_add(messages, "demo", 4);
        else {
            bytes[0] = (uint8_t)(rand() % 3);
            frame_add(messages, bytes, 1);
            bytes[0] = 7;
        }
    }
    messages->firsts[++messages->messages] = messages->frames;
}

static uint64_t answered; /* with an index or a refusal, not with a reminder */

/* Removes the answers and makes more room. */
static void answers_take(struct klk_messages *out, int reminders) {
    for (uint32_t m = 0; m < out->messages; m++) {
        uint32_t first = out->firsts[m];
        CHECK(out->firsts[m + 1] - first == 5);
        CHECK(memcmp(out->bytes + out->offsets[first + 2], READ_INDEX, 2) == 0);
        uint32_t size = out->offsets[first + 5] - out->offsets[first + 4];
        CHECK(reminders ? size == 0 : size >= 1 && size <= 8);
        answered += !reminders;
    }
    uint32_t bytes_max = 2 * out->bytes_max, frames_max = 2 * out->frames_max;
    messages_free(out);
    *out = messages_new(bytes_max, frames_max);
}

static void take_some(struct klk_reads *reads, const struct klk_reads_view *view) {
    struct klk_messages arena = messages_new(1 << 16, 1 << 10), out = messages_new(16, 4);
    int count = rand() % MESSAGES;
    for (int i = 0; i < count; i++) message_add(&arena);
    struct klk_messages exact = messages_exact(&arena);
    uint32_t *numbers = malloc(sizeof *numbers * (size_t)count);
    uint32_t left = (uint32_t)count;
    for (uint32_t i = 0; i < left; i++) numbers[i] = i;
    uint64_t refused = reads->counters[KLK_READS_ASTRAY];
    while (klk_reads_receive(reads, &exact, view, &out, numbers, &left) == KLK_EFULL)
        answers_take(&out, 0);
    answers_take(&out, 0);
    answered -= reads->counters[KLK_READS_ASTRAY] - refused;
    free(numbers);
    messages_free(&exact);
    messages_free(&arena);
    messages_free(&out);
}

int main(void) {
    struct klk_reads reads = {.ident = (const uint8_t *)"demo", .ident_size = 4};
    struct klk_reads_view view = {.refusal = REFUSAL, .refusal_size = sizeof REFUSAL, .round = 1};
    for (int wait = 0; wait < 2; wait++) {
        reads.readers[wait].ring = malloc(RING);
        reads.readers[wait].ring_max = RING;
    }
    srand(1);
    for (int i = 0; i < ROUNDS; i++) {
        struct klk_messages out = messages_new(16, 4);
        view.leader = rand() % 10 != 0;
        view.now_ms += (uint64_t)(rand() % 60);
        take_some(&reads, &view);
        int what = rand() % 20, reminders = what < 10;
        int wait = rand() % 2;
        uint64_t round = view.round - (uint64_t)(rand() % 2);
        while ((reminders ? klk_reads_remind(&reads, view.now_ms, &out)
                : what == 10
                    ? klk_reads_refuse(&reads, REFUSAL, sizeof REFUSAL, &out)
                    : klk_reads_answer(&reads, wait, round, view.round << rand() % 50, &out)) ==
               KLK_EFULL)
            answers_take(&out, reminders);
        answers_take(&out, reminders);
        view.round += (uint64_t)(rand() % 2);
        messages_clear(&out);
        messages_free(&out);
        uint64_t waiting = reads.readers[0].waiting + reads.readers[1].waiting;
        CHECK(reads.counters[KLK_READS_RECEIVED] == answered + waiting);
    }
    CHECK(reads.counters[KLK_READS_OVER] > 100 && answered > 1000);
    CHECK(reads.counters[KLK_READS_DROPPED] > 100 && reads.counters[KLK_READS_ASTRAY] > 100);
    for (int wait = 0; wait < 2; wait++) free(reads.readers[wait].ring);
    return 0;
}
