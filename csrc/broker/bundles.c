/* Bundles: KLKM01, then for each message u8 number of frames, and for each frame u16 size,
 * big-endian, and its octets. */
#include "bundles.h"

#include "messages.h"

enum { COUNT_BYTES = 1, SIZE_BYTES = 2 };

static const uint8_t HEAD[KLK_BUNDLE_HEAD] = "KLKM01";

static uint32_t get_size(const uint8_t *data) { return (uint32_t)data[0] << 8 | data[1]; }

int klk_bundle_add(struct klk_bundle *bundle, const struct klk_messages *messages, uint32_t message,
                 uint32_t skip) {
    uint32_t first = messages->firsts[message], end = messages->firsts[message + 1];
    if (end - first <= skip || end - first - skip > KLK_BUNDLE_FRAMES_MAX) return 0;
    first += skip;
    uint64_t bytes = (uint64_t)messages->offsets[end] - messages->offsets[first];
    uint64_t used = bundle->size ? bundle->size : KLK_BUNDLE_HEAD;
    uint64_t need = COUNT_BYTES + (uint64_t)SIZE_BYTES * (end - first) + bytes;
    if (used + need > KLK_BUNDLE_BYTES_MAX) return 0;
    if (!bundle->size) memcpy(bundle->bytes, HEAD, KLK_BUNDLE_HEAD);
    uint8_t *at = bundle->bytes + used;
    *at++ = (uint8_t)(end - first);
    for (uint32_t f = first; f < end; f++) {
        uint32_t size = messages->offsets[f + 1] - messages->offsets[f];
        *at++ = (uint8_t)(size >> 8);
        *at++ = (uint8_t)size;
        if (size) memcpy(at, messages->bytes + messages->offsets[f], size);
        at += size;
    }
    bundle->size = (uint32_t)(at - bundle->bytes);
    return 1;
}

uint32_t klk_bundle_count(const uint8_t *data, size_t size, uint32_t frames_max) {
    if (size < KLK_BUNDLE_HEAD || size > KLK_BUNDLE_BYTES_MAX) return 0;
    if (memcmp(data, HEAD, KLK_BUNDLE_HEAD) != 0) return 0;
    uint32_t messages = 0;
    for (size_t at = KLK_BUNDLE_HEAD; at < size; messages++) {
        uint32_t frames = data[at++];
        if (!frames || frames > frames_max) return 0;
        for (; frames; frames--) {
            if (size - at < SIZE_BYTES) return 0;
            uint32_t frame = get_size(data + at);
            at += SIZE_BYTES;
            if (frame > size - at) return 0;
            at += frame;
        }
    }
    return messages;
}

uint32_t klk_bundle_measure(const uint8_t *data, uint32_t offset, uint32_t *frames,
                          uint32_t *bytes) {
    *frames = data[offset++];
    *bytes = 0;
    for (uint32_t f = 0; f < *frames; f++) {
        uint32_t size = get_size(data + offset);
        *bytes += size;
        offset += SIZE_BYTES + size;
    }
    return offset;
}

void klk_bundle_open(const uint8_t *data, uint32_t offset, struct klk_messages *out) {
    for (uint32_t frames = data[offset++]; frames; frames--) {
        uint32_t size = get_size(data + offset);
        klk_messages_frame(out, data + offset + SIZE_BYTES, size);
        offset += SIZE_BYTES + size;
    }
}
