/* Fuzz targets: programs that give any bytes to functions that parse bytes of peers, clients and
 * disks. Each defines LLVMFuzzerTestOneInput(), as libFuzzer wants it, and fuzz_seed(). */
#ifndef KLK_TESTS_FUZZ_H
#define KLK_TESTS_FUZZ_H
#include "bytes.h"
#include "exact.h"

/* Feeds one input. Returns 0; what is wrong ends the process. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_INPUT_MAX = 4096 };

/* Writes the valid input of this number, at most FUZZ_INPUT_MAX bytes, and returns its size;
 * 0: there are no more. */
size_t fuzz_seed(uint32_t number, uint8_t *out);

/* The input from its beginning; zeros behind its end. */
struct fuzz_input {
    const uint8_t *at;
    size_t left;
};

static inline uint8_t fuzz_u8(struct fuzz_input *in) {
    if (!in->left) return 0;
    in->left--;
    return *in->at++;
}

static inline uint32_t fuzz_u32(struct fuzz_input *in) {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) value |= (uint32_t)fuzz_u8(in) << 8 * i;
    return value;
}

/* What is left, in a buffer of exactly that size, which the caller frees. */
static inline uint8_t *fuzz_rest(struct fuzz_input *in) { return exact_copy(in->at, in->left); }

/* ---- messages: of each frame u8 size and FUZZ_LAST, its bytes ---- */

enum { FUZZ_LAST = 0x80, FUZZ_LONG = 0x7f, FUZZ_LONG_BYTES = 300 };

/* One frame of the input; FUZZ_LONG stands for a size above 255. Returns whether there is one. */
static inline int fuzz_frame(struct fuzz_input *in, const uint8_t **data, uint32_t *size,
                             int *last) {
    if (!in->left) return 0;
    uint8_t head = fuzz_u8(in);
    *size = head & FUZZ_LONG;
    if (*size == FUZZ_LONG) *size = FUZZ_LONG_BYTES;
    if (*size > in->left) *size = (uint32_t)in->left;
    *last = head & FUZZ_LAST || *size == in->left;
    *data = in->at;
    in->at += *size;
    in->left -= *size;
    return 1;
}

/* The rest of the input as an arena without a byte or frame to spare; messages_free() it. */
static inline struct klk_messages fuzz_messages(struct fuzz_input *in) {
    struct klk_messages all = messages_new((uint32_t)in->left, (uint32_t)in->left);
    const uint8_t *data;
    uint32_t size;
    int last;
    while (fuzz_frame(in, &data, &size, &last)) {
        klk_messages_frame(&all, data, size);
        if (last) klk_messages_end(&all);
    }
    struct klk_messages arena = messages_copy(&all, klk_messages_bytes(&all), all.frames);
    messages_free(&all);
    return arena;
}

enum { FUZZ_SLOTS = 3 };

/* The slot of the key of each message, below FUZZ_SLOTS, by the third byte of its first frame. */
static inline uint32_t *fuzz_slots(const struct klk_messages *arena) {
    uint32_t *slots = exact((arena->messages + 1) * sizeof *slots), size;
    for (uint32_t m = 0; m < arena->messages; m++) {
        const uint8_t *first = klk_messages_at(arena, m, 0, &size);
        slots[m] = size > 2 ? first[2] % FUZZ_SLOTS : 0;
    }
    return slots;
}

static inline uint8_t *fuzz_put(uint8_t *at, const void *data, uint32_t size, int last) {
    *at++ = (uint8_t)(size | (last ? FUZZ_LAST : 0u));
    memcpy(at, data, size);
    return at + size;
}

/* Adds a message whose frames are C strings, up to NULL. A frame "#4" has 4 bytes: 1, 0, 0 .. */
static inline uint8_t *fuzz_put_texts(uint8_t *at, const char *const *frames) {
    static const uint8_t numbers[64] = {1};
    for (; *frames; frames++) {
        const char *text = *frames;
        if (text[0] == '#')
            at = fuzz_put(at, numbers, (uint32_t)atoi(text + 1), !frames[1]);
        else
            at = fuzz_put(at, text, (uint32_t)strlen(text), !frames[1]);
    }
    return at;
}

/* Adds a transaction of table 1, behind its routing id: a compare, a put, two increments. */
static inline uint8_t *fuzz_put_transaction(uint8_t *at, uint64_t session) {
    static const char *const parts[] = {"\0key", "\x20value", "\x28" "12", "\x28-7"};
    uint8_t header[45] = {0x31, 1, 0x25, 1, 0x6b, 0x4c, 0x4b, 1};
    uint8_t counts[12] = {1, 0, 0, 0, 1, 0, 0, 0, 2};
    memcpy(header + 13, "its reqid...", 12);
    klk_put_u64(header + 37, session);
    at = fuzz_put(at, header, sizeof header, 0);
    at = fuzz_put(at, counts, sizeof counts, 0);
    for (int i = 0; i < 4; i++) {
        uint8_t head[5] = {(uint8_t)parts[i][0], 1};
        at = fuzz_put(at, head, sizeof head, 0);
        at = fuzz_put(at, "a key", 5, 0);
        at = fuzz_put(at, parts[i] + 1, (uint32_t)strlen(parts[i] + 1), i == 3);
    }
    return at;
}

/* ---- request ids ---- */

static inline void fuzz_shard_move(struct klk_reqids *reqids, int shard, uint32_t size) {
    struct klk_reqid_slot *old = reqids->shards[shard].slots;
    REQUIRE(klk_reqids_move(reqids, shard, malloc(size * sizeof *old), size) == KLK_OK);
    free(old);
}

static inline void fuzz_reqids_grow(struct klk_reqids *reqids) {
    int shard;
    while ((shard = klk_reqids_crowded(reqids)) >= 0) {
        uint32_t ids = klk_reqids_live(reqids, shard) + reqids->need[shard];
        fuzz_shard_move(reqids, shard, (2 * ids + 15) / 8 * 8);
    }
}

static inline struct klk_reqids *fuzz_reqids_new(void) {
    struct klk_reqids *reqids = calloc(1, sizeof *reqids);
    reqids->seconds = calloc(KLK_REQID_SECONDS, sizeof(uint32_t));
    for (int shard = 0; shard < KLK_REQID_SHARDS; shard++) fuzz_shard_move(reqids, shard, 8);
    return reqids;
}

static inline void fuzz_reqids_free(struct klk_reqids *reqids) {
    for (int shard = 0; shard < KLK_REQID_SHARDS; shard++) free(reqids->shards[shard].slots);
    free(reqids->seconds);
    free(reqids);
}

/* Writes a request id of this time. */
static inline uint8_t *fuzz_reqid(uint8_t *reqid, uint32_t seconds, uint8_t number) {
    memset(reqid, 0, KLK_REQID_SIZE);
    for (int i = 0; i < 4; i++) reqid[i] = (uint8_t)(seconds >> (24 - 8 * i));
    reqid[11] = number;
    return reqid;
}

/* ---- blocks ---- */

/* Repairs magic, checksum and padding of the block or mark at data, if it fits. Returns its size,
 * or 0. */
static inline size_t fuzz_repair(uint8_t *data, size_t size) {
    if (size < KLK_HEADER_SIZE) return 0;
    uint64_t payload = klk_get_u32(data + 28), end = KLK_HEADER_SIZE + payload;
    if (end > size || klk_block_size(payload) > size) return 0;
    klk_put_u32(data, klk_get_u32(data + 24) ? KLK_MAGIC_BLOCK : KLK_MAGIC_MARK);
    klk_put_u32(data + 4, klk_crc32c(0, data + 8, end - 8));
    memset(data + end, 0, klk_block_size(payload) - end);
    return klk_block_size(payload);
}

/* Writes a block of this size, whose records are of all forms. */
static inline size_t fuzz_block(uint8_t *out, uint64_t first_index, uint64_t term, uint32_t count,
                                uint32_t size) {
    uint8_t data[256], reqid[KLK_REQID_SIZE];
    size_t used = KLK_HEADER_SIZE;
    memset(data, 'd', sizeof data);
    for (uint32_t i = 0; i < count; i++)
        used += klk_record_write(out + used, (uint8_t)(i % 3),
                                 i % 2 ? fuzz_reqid(reqid, 1000 + i, (uint8_t)i) : NULL, data,
                                 size);
    ssize_t made = klk_block_seal(out, first_index, term, count, used - KLK_HEADER_SIZE);
    REQUIRE(made > 0);
    return (size_t)made;
}

#endif
