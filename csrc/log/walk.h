/* The records of a block in turn: for the C files, not for cffi. */
#ifndef KLK_WALK_H
#define KLK_WALK_H
#include "api.h"

struct klk_walk {
    const uint8_t *at;
    const uint8_t *end; /* of the payload */
};

/* Reads the header; returns KLK_OK or what klk_block_header() does. */
static inline int klk_walk_start(const uint8_t *block, size_t size, struct klk_header *header,
                                 struct klk_walk *walk) {
    const uint8_t *at = block + KLK_HEADER_SIZE;
    if (klk_block_header(block, size, header) != KLK_OK) return KLK_ECORRUPT;
    *walk = (struct klk_walk){at, at + header->payload_size};
    return KLK_OK;
}

/* The next of header->count records. Returns KLK_OK or KLK_ECORRUPT. */
static inline int klk_walk_next(struct klk_walk *walk, struct klk_record *record) {
    ssize_t record_size = klk_record_read(walk->at, (size_t)(walk->end - walk->at), record);
    if (record_size < 0) return KLK_ECORRUPT;
    walk->at += record_size;
    return KLK_OK;
}

#endif
