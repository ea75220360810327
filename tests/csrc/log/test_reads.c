/* csrc/log/reads.c on exact-size heap buffers, with full outgoing messages and nearly full rings:
 * no access outside the buffers, and exactly one answer for every received read. */
#include "exact.h"

enum { ROUNDS = 3000, MESSAGES = 20, RING = 2048 };

static const uint8_t READ_INDEX[] = {0x6b, 0x52};
static const uint8_t REFUSAL[] = {0xa2, 'n', '1'};

/* A message of up to six frames, most of them a read or nearly one. */
static void message_add(struct klk_messages *messages) {
    uint8_t bytes[256];
    memset(bytes, 7, sizeof bytes);
    int frames = rand() % 4 ? 4 + rand() % 2 : 1 + rand() % 6;
    for (int frame = 0; frame < frames; frame++) {
        uint32_t any = (uint32_t)(rand() % 256);
        if (rand() % 50 == 0) klk_messages_frame(messages, bytes, any);
        else if (frame == 0) klk_messages_frame(messages, bytes, rand() % 20 ? 5 : any);
        else if (frame == 1) klk_messages_frame(messages, bytes, (uint32_t)(rand() % 14));
        else if (frame == 2) klk_messages_frame(messages, READ_INDEX, sizeof READ_INDEX);
        else if (frame == 3) klk_messages_frame(messages, "demo", 4);
        else {
            bytes[0] = (uint8_t)(rand() % 3);
            klk_messages_frame(messages, bytes, 1);
            bytes[0] = 7;
        }
    }
    klk_messages_end(messages);
}

static uint64_t answered; /* with an index or a refusal, not with a reminder */

/* Removes the answers and makes more room. */
static void answers_take(struct klk_messages *out, int reminders) {
    for (uint32_t m = 0; m < out->messages; m++) {
        uint32_t first = out->firsts[m];
        REQUIRE(out->firsts[m + 1] - first == 5);
        REQUIRE(memcmp(out->bytes + out->offsets[first + 2], READ_INDEX, 2) == 0);
        uint32_t size = out->offsets[first + 5] - out->offsets[first + 4];
        REQUIRE(reminders ? size == 0 : size >= 1 && size <= 8);
        answered += !reminders;
    }
    out->frames = out->messages = 0;
    messages_grow(out, 2 * out->bytes_max, 2 * out->frames_max);
}

static void take_some(struct klk_reads *reads, const struct klk_reads_view *view) {
    struct klk_messages arena = messages_new(1 << 16, 1 << 10), out = messages_new(16, 4);
    int count = rand() % MESSAGES;
    for (int i = 0; i < count; i++) message_add(&arena);
    struct klk_messages exact = messages_copy(&arena, klk_messages_bytes(&arena), arena.frames);
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
        messages_free(&out);
        uint64_t waiting = reads.readers[0].waiting + reads.readers[1].waiting;
        REQUIRE(reads.counters[KLK_READS_RECEIVED] == answered + waiting);
    }
    REQUIRE(reads.counters[KLK_READS_OVER] > 100 && answered > 1000);
    REQUIRE(reads.counters[KLK_READS_DROPPED] > 100 && reads.counters[KLK_READS_ASTRAY] > 100);
    for (int wait = 0; wait < 2; wait++) free(reads.readers[wait].ring);
    return 0;
}
