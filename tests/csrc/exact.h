/* Buffers of exactly the size that is used, so that the sanitizers see every byte too many. */
#ifndef KLK_TESTS_EXACT_H
#define KLK_TESTS_EXACT_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"

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

static inline uint32_t next_random(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

#endif
