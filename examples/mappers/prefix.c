/* A mapper that puts pairs whose key begins with the parameter `prefix` into the output table and
 * deletes all others from it; kelek_end() stores how many there were under the key "count". */
#include "kelek_mapper.h"

enum { INPUT_BYTES_MAX = 4 << 20, PREFIX_BYTES_MAX = 64 };

static uint8_t input[INPUT_BYTES_MAX];
static uint8_t output[3 * INPUT_BYTES_MAX]; /* Of 8 bytes of a record's head come 9. */
static uint8_t prefix[PREFIX_BYTES_MAX];
static uint32_t prefix_size;
static uint64_t count;

static int equal(const uint8_t *a, const uint8_t *b, uint32_t size) {
    uint32_t i = 0;
    while (i < size && a[i] == b[i]) i++;
    return i == size;
}

uint8_t *KELEK_EXPORT(kelek_alloc)(uint32_t size) {
    return size <= INPUT_BYTES_MAX ? input : NULL;
}

const uint8_t *KELEK_EXPORT(kelek_output)(void) {
    return output;
}

int32_t KELEK_EXPORT(kelek_start)(const uint8_t *parameters, uint32_t size) {
    struct kelek_record one;
    for (const uint8_t *at = parameters; at < parameters + size;) {
        at = kelek_read(at, &one);
        if (one.key_size == 6 && equal(one.key, (const uint8_t *)"prefix", 6)) {
            if (one.value_size > PREFIX_BYTES_MAX) return 2;
            prefix_size = one.value_size;
            kelek_bytes(prefix, one.value, one.value_size);
        }
    }
    return prefix_size ? 0 : 1;
}

int32_t KELEK_EXPORT(kelek_map)(const uint8_t *records, uint32_t size) {
    uint8_t *out = output;
    struct kelek_record one;
    for (const uint8_t *at = records; at < records + size;) {
        at = kelek_read(at, &one);
        if (one.key_size >= prefix_size && equal(one.key, prefix, prefix_size)) {
            out = kelek_write(out, KELEK_PUT, one);
            count++;
        } else {
            one.value_size = 0;
            out = kelek_write(out, KELEK_DELETE, one);
        }
    }
    return (int32_t)(out - output);
}

int32_t KELEK_EXPORT(kelek_end)(void) {
    uint8_t number[8];
    for (int i = 0; i < 8; i++) number[i] = (uint8_t)(count >> 8 * i);
    struct kelek_record one = {(const uint8_t *)"count", number, 5, 8};
    return (int32_t)(kelek_write(output, KELEK_PUT, one) - output);
}
