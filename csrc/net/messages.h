/* Writing into a struct klk_messages: for the C files, not for cffi. */
#ifndef KLK_MESSAGES_H
#define KLK_MESSAGES_H
#include <string.h>

#include "api.h"
#include "bytes.h"
#include "shares.h"

static inline uint32_t klk_messages_bytes(const struct klk_messages *messages) {
    return messages->offsets[messages->frames];
}

static inline int klk_messages_fit(const struct klk_messages *messages, uint64_t bytes,
                                   uint64_t frames) {
    return klk_messages_bytes(messages) + bytes <= messages->bytes_max &&
           messages->frames + frames <= messages->frames_max;
}

/* Adds a frame to the growing message; the caller has checked that it fits. */
static inline void klk_messages_frame(struct klk_messages *messages, const void *data,
                                      uint32_t size) {
    uint32_t offset = klk_messages_bytes(messages);
    if (size) memcpy(messages->bytes + offset, data, size);
    messages->offsets[++messages->frames] = offset + size;
}

/* Completes the growing message. */
static inline void klk_messages_end(struct klk_messages *messages) {
    if (messages->bundles) messages->bundles[messages->messages] = 0;
    messages->firsts[++messages->messages] = messages->frames;
}

/* The same; whether the message came or may leave in a bundle. */
static inline void klk_messages_end_bundled(struct klk_messages *messages, int is_bundled) {
    klk_messages_end(messages);
    if (messages->bundles) messages->bundles[messages->messages - 1] = is_bundled != 0;
}

/* A frame of message m, counted from 0 within it. */
static inline const uint8_t *klk_messages_at(const struct klk_messages *messages, uint32_t m,
                                             uint32_t frame, uint32_t *size) {
    uint32_t f = messages->firsts[m] + frame;
    *size = messages->offsets[f + 1] - messages->offsets[f];
    return messages->bytes + messages->offsets[f];
}

/* Whether a frame of message m has these bytes. */
static inline int klk_messages_is(const struct klk_messages *messages, uint32_t m, uint32_t frame,
                                  const uint8_t *data, uint32_t size) {
    uint32_t found;
    const uint8_t *at = klk_messages_at(messages, m, frame, &found);
    return found == size && memcmp(at, data, size) == 0;
}

static inline uint32_t klk_messages_frames(const struct klk_messages *messages, uint32_t m) {
    return messages->firsts[m + 1] - messages->firsts[m];
}

/* The number of a message's client, as in shares.h. */
static inline uint32_t klk_client_of(uint64_t seed, uint32_t foreign_slot,
                                     const struct klk_messages *arena, uint32_t message) {
    uint32_t size;
    if (arena->slots && arena->slots[message] != foreign_slot)
        return arena->slots[message] % KLK_SHARES_CLIENTS;
    const uint8_t *id = klk_messages_at(arena, message, 0, &size);
    return (uint32_t)(klk_id_hash(seed, id, size) >> 32) % KLK_SHARES_CLIENTS;
}

#endif
