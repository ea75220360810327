/* Messages of the broker protocol in one frame (docs/protocols/majordomo.md, "Bundles"): a part of
 * api.h. libzmq hands over and encrypts each frame by itself, so that a call costs its frames. */
#ifndef KLK_BUNDLES_H
#define KLK_BUNDLES_H
#include "api.h"

enum klk_bundle_limit {
    KLK_BUNDLE_BYTES_MAX = 16383,
    KLK_BUNDLE_HEAD = 6,          /* its first octets, KLKM01 */
    KLK_BUNDLE_FRAMES_MAX = 255   /* of one of its messages */
};

/* A growing bundle. */
struct klk_bundle {
    uint32_t size; /* 0 before the first message */
    uint8_t bytes[16383];
};

/* Adds the frames of a message from skip on. Returns 1, or 0 when it has no frame there, too many,
 * or the bundle has no room: it is unchanged then. */
int klk_bundle_add(struct klk_bundle *bundle, const struct klk_messages *messages, uint32_t message,
                 uint32_t skip);

/* The number of messages in a frame that is a bundle; 0: it is none, or it is malformed.
 *
 *   frames_max   of each of its messages */
uint32_t klk_bundle_count(const uint8_t *data, size_t size, uint32_t frames_max);

/* Measures the message at offset of a counted bundle: its frames, and their octets. Returns the
 * offset of the next one. */
uint32_t klk_bundle_measure(const uint8_t *data, uint32_t offset, uint32_t *frames,
                            uint32_t *bytes);

/* Adds the frames of the measured message to the growing message of out, which has room. */
void klk_bundle_open(const uint8_t *data, uint32_t offset, struct klk_messages *out);

#endif
