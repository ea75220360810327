/* The frames of a request, for C files, not for cffi. */
#ifndef KLK_FRAMES_H
#define KLK_FRAMES_H
#include <string.h>

#include "api.h"

enum {
    KLK_READ_HEADER_MAX = 4 + 4 + 12,
    KLK_READ_PACKED = 0x02, /* flag of our extension: keys and values are columns */
    KLK_ENTRY_HEAD = 4 + 5, /* of an entry: magic, operation, table */
    KLK_TRANSACTION = 0x25  /* the type of the request */
};

/* The frames of a request, beginning with its header. */
struct klk_frames {
    const uint8_t *bytes;
    const uint32_t *offsets;
    uint32_t count;
};

static inline struct klk_frames klk_frames_of(const struct klk_messages *arena,
                                              const struct klk_request *request) {
    uint32_t first = arena->firsts[request->message] + request->header;
    return (struct klk_frames){arena->bytes, arena->offsets + first,
                               arena->firsts[request->message + 1] - first};
}

static inline const uint8_t *klk_frame_at(const struct klk_frames *frames, uint32_t i,
                                          uint32_t *size) {
    *size = frames->offsets[i + 1] - frames->offsets[i];
    return frames->bytes + frames->offsets[i];
}

/* Writes the header of the answer to a read of keys; KLK_READ_HEADER_MAX bytes at most. Returns its
 * size. */
uint32_t klk_read_header(const struct klk_request *request, uint8_t *header);

/* The keys of a read.
 *
 *   places   out: position and size of each key in the arena's bytes; room for keys_max keys
 *   count    out
 *
 * Returns 1; 0: they are malformed, or too many. */
int klk_read_keys(const struct klk_request *request, const struct klk_frames *frames,
                  uint32_t *places, uint32_t keys_max, uint32_t *count);

/* Reads the frames behind the header of a transaction. Its shape stays OTHER if it is malformed, of
 * several tables, without a request id, or has a rare part. */
void klk_transaction_read(const struct klk_frames *frames, uint32_t entry_bytes_max,
                          struct klk_request *request);

static inline int klk_is_key(uint32_t size) { return size && size <= KLK_KEY_BYTES_MAX; }

static inline uint8_t *klk_put_bytes(uint8_t *out, const void *data, size_t size) {
    if (size) memcpy(out, data, size);
    return out + size;
}

#endif
