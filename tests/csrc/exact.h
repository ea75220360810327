/* Buffers of exactly the size that is used, so that the sanitizers see every byte too many. */
#ifndef KLK_TESTS_EXACT_H
#define KLK_TESTS_EXACT_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "messages.h"

#define REQUIRE(condition)                                                    \
    do {                                                                      \
        if (!(condition)) {                                                   \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);    \
            exit(1);                                                          \
        }                                                                     \
    } while (0)

static inline void *exact(size_t size) {
    void *data = malloc(size);
    REQUIRE(data != NULL);
    memset(data, 0xa5, size);
    return data;
}

static inline uint8_t *exact_copy(const uint8_t *from, size_t size) {
    uint8_t *data = exact(size);
    if (size > 0) memcpy(data, from, size);
    return data;
}

static inline struct klk_messages messages_new(uint32_t bytes_max, uint32_t frames_max) {
    struct klk_messages messages = {.bytes = exact(bytes_max),
                                    .offsets = exact((frames_max + 1) * sizeof(uint32_t)),
                                    .firsts = exact((frames_max + 1) * sizeof(uint32_t)),
                                    .bytes_max = bytes_max,
                                    .frames_max = frames_max};
    messages.offsets[0] = messages.firsts[0] = 0;
    return messages;
}

static inline void messages_free(struct klk_messages *messages) {
    free(messages->bytes);
    free(messages->offsets);
    free(messages->firsts);
}

/* A copy in buffers of exactly these sizes. */
static inline struct klk_messages messages_copy(const struct klk_messages *from, uint32_t bytes_max,
                                                uint32_t frames_max) {
    struct klk_messages copy = messages_new(bytes_max, frames_max);
    memcpy(copy.bytes, from->bytes, klk_messages_bytes(from));
    memcpy(copy.offsets, from->offsets, (from->frames + 1) * sizeof(uint32_t));
    memcpy(copy.firsts, from->firsts, (from->messages + 1) * sizeof(uint32_t));
    copy.frames = from->frames;
    copy.messages = from->messages;
    return copy;
}

static inline void messages_grow(struct klk_messages *messages, uint32_t bytes_max,
                                 uint32_t frames_max) {
    struct klk_messages grown = messages_copy(messages, bytes_max, frames_max);
    messages_free(messages);
    *messages = grown;
}

/* A block of count records of size bytes: of kind 2, or each second one of kind 0 with this id. */
static inline uint8_t *exact_block(uint64_t first_index, uint32_t count, uint32_t size,
                                   const uint8_t *reqid, size_t *block_size) {
    uint8_t *payload = exact((size_t)count * (size + KLK_RECORD_OVERHEAD_MAX) + 40);
    uint8_t *data = exact(size);
    size_t used = KLK_HEADER_SIZE;
    memset(data, 'd', size);
    for (uint32_t i = 0; i < count; i++)
        used += klk_record_write(payload + used, i % 2 ? 0 : 2, i % 2 ? reqid : NULL, data, size);
    ssize_t made = klk_block_seal(payload, first_index, 3, count, used - KLK_HEADER_SIZE);
    REQUIRE(made > 0);
    *block_size = (size_t)made;
    uint8_t *block = exact_copy(payload, *block_size);
    free(payload);
    free(data);
    return block;
}

static inline uint32_t next_random(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

#endif
