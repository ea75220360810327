/* csrc/tables/requests.c on exact-size heap buffers: random requests, many of them wrong. */
#include "exact.h"

enum { ROUNDS = 20000, FRAMES_MAX = 40, BYTES_MAX = 4096 };

static uint32_t seed = 2463534242u;
static unsigned shapes[3], told;

static uint32_t dice(uint32_t sides) { return next_random(&seed) % sides; }

/* A header that is right more often than not. */
static void add_header(struct klk_messages *out, int packed) {
    uint8_t header[48] = {0x31, 0x01};
    static const uint8_t types[] = {0x10, 0x13, 0x16, 0x20, 0x20, 0x21, 0x22, 0x23, 0x24, 0x42};
    static const uint8_t sizes[] = {2, 3, 4, 25, 25, 25, 29, 37, 45, 30};
    header[2] = types[dice(sizeof types)];
    uint32_t at = header[2] < 0x20 ? 3 : 4;
    memcpy(header + at, "\x6b\x4c\x4b\x01", 4);
    header[at + 4] = (uint8_t)((packed ? 2 : 0) | (dice(3) ? 0 : 0x40));
    if (!dice(20)) header[dice(48)] ^= (uint8_t)(1u << dice(8));
    uint32_t size = sizes[dice(sizeof sizes)];
    if (packed) size = at + 21;
    klk_messages_frame(out, header, size);
}

static void add_column(struct klk_messages *out, uint32_t items) {
    uint32_t offsets[8] = {0}, size = 0;
    for (uint32_t i = 1; i <= items; i++) offsets[i] = size += 1 + dice(5);
    if (!dice(10)) offsets[dice(8)] = dice(3) ? dice(40) : UINT32_MAX;
    uint8_t junk[64] = {'c'};
    klk_messages_frame(out, offsets, 4 * (items + 1) - (dice(20) ? 0 : dice(4)));
    klk_messages_frame(out, junk, size);
}

static void add_message(struct klk_messages *out, int routed) {
    uint8_t junk[300] = {'j'};
    int packed = dice(3) == 0;
    if (routed) klk_messages_frame(out, "id", 2);
    if (routed && dice(2)) klk_messages_frame(out, NULL, 0);
    if (dice(30)) add_header(out, packed);
    if (dice(30)) klk_messages_frame(out, junk, dice(20) ? 4 : dice(9));
    if (packed) {
        uint32_t items = dice(7);
        add_column(out, items);
        add_column(out, dice(10) ? items : dice(7));
    } else {
        for (uint32_t frames = dice(7); frames; frames--)
            klk_messages_frame(out, junk, dice(9) ? 8 : dice(300));
    }
    if (out->frames == out->firsts[out->messages]) klk_messages_frame(out, junk, 1);
    klk_messages_end(out);
}

/* Each header of 28 bytes gets its index, once. */
static void tell(const struct klk_messages *answers) {
    uint64_t *indexes = exact(answers->messages * sizeof *indexes);
    for (int again = 0; again < 2; again++) {
        for (uint32_t m = 0; m < answers->messages; m++) indexes[m] = again ? 7 : 1000 + m;
        klk_answers_tell(answers, indexes);
    }
    for (uint32_t m = 0; m < answers->messages; m++) {
        uint32_t size, last = klk_messages_frames(answers, m) - 1;
        const uint8_t *header = klk_messages_at(answers, m, last, &size);
        if (size != 28) continue;
        told++;
        REQUIRE(klk_get_u64(header + 20) == 1000 + m);
    }
    free(indexes);
}

static void forward(const struct klk_messages *arena, const struct klk_request *requests,
                    const uint32_t *positions, uint32_t count) {
    struct klk_messages out = messages_new(dice(2) ? BYTES_MAX : dice(200), FRAMES_MAX + 2 * count);
    uint32_t done = 0;
    int result = klk_requests_forward(arena, requests, positions, count, &done, 1, &out);
    REQUIRE(result == (done == count ? KLK_OK : KLK_EFULL) && out.messages == done);
    messages_free(&out);
    out = messages_new(dice(2) ? BYTES_MAX : dice(60), dice(3 * count + 1));
    done = 0;
    result = klk_requests_acknowledge(arena, requests, positions, count, &done, &out);
    REQUIRE(result == (done == count ? KLK_OK : KLK_EFULL) && out.messages == done);
    tell(&out);
    messages_free(&out);
}

static void one_round(void) {
    int routed = (int)dice(2);
    struct klk_messages building = messages_new(BYTES_MAX, FRAMES_MAX);
    uint32_t messages = dice(3);
    while (building.messages < messages) add_message(&building, routed);
    struct klk_messages arena =
        messages_copy(&building, klk_messages_bytes(&building), building.frames);
    struct klk_request *requests = exact(messages * sizeof *requests);
    uint32_t positions[2], usual = 0;
    size_t total = 0;
    klk_requests_read(&arena, routed, dice(2) ? 1u << 20 : dice(100), requests);
    for (uint32_t i = 0; i < messages; i++) {
        shapes[requests[i].shape]++;
        total += requests[i].entry_size;
        if (requests[i].shape != KLK_REQUEST_OTHER) positions[usual++] = i;
        REQUIRE((requests[i].shape == KLK_REQUEST_WRITE) == (requests[i].entry_size != 0));
    }
    uint8_t *out = exact(total);
    REQUIRE(klk_requests_pack(&arena, requests, messages, out, total) == (ssize_t)total);
    free(out);
    if (total) {
        out = exact(total - 1);
        REQUIRE(klk_requests_pack(&arena, requests, messages, out, total - 1) == KLK_ESPACE);
        free(out);
    }
    if (usual) forward(&arena, requests, positions, usual);
    free(requests);
    messages_free(&arena);
    messages_free(&building);
}

int main(void) {
    for (int i = 0; i < ROUNDS; i++) one_round();
    for (int shape = 0; shape < 3; shape++) REQUIRE(shapes[shape] > ROUNDS / 20);
    REQUIRE(told > ROUNDS / 100);
    return 0;
}
