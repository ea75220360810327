/* What a mapper in C defines and how it reads and writes records (docs/guides/mapper.md).
 *
 * As WebAssembly:    clang --target=wasm32 -O2 -nostdlib -Wl,--no-entry -o prefix.wasm prefix.c
 * As LLVM bitcode:   clang -O2 -c -emit-llvm -o prefix.bc prefix.c
 */
#ifndef KELEK_MAPPER_H
#define KELEK_MAPPER_H
#include <stddef.h>
#include <stdint.h>

#ifdef __wasm__
#define KELEK_EXPORT(name) __attribute__((export_name(#name))) name
#else
#define KELEK_EXPORT(name) name
#endif

enum kelek_operation { KELEK_PUT = 0, KELEK_DELETE = 1 };

struct kelek_record {
    const uint8_t *key, *value;
    uint32_t key_size, value_size;
};

static inline uint32_t kelek_u32(const uint8_t *data) {
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
           (uint32_t)data[3] << 24;
}

/* Reads the record at data; returns where the next one stands. */
static inline const uint8_t *kelek_read(const uint8_t *data, struct kelek_record *record) {
    record->key_size = kelek_u32(data);
    record->value_size = kelek_u32(data + 4);
    record->key = data + 8;
    record->value = record->key + record->key_size;
    return record->value + record->value_size;
}

/* Writes bytes one by one: a mapper has no library to copy for it. */
static inline uint8_t *kelek_bytes(uint8_t *out, const uint8_t *data, uint32_t size) {
    for (uint32_t i = 0; i < size; i++) out[i] = data[i];
    return out + size;
}

/* Writes one record of the output, 9 bytes and those of key and value; returns where it ends. */
static inline uint8_t *kelek_write(uint8_t *out, enum kelek_operation operation,
                                   struct kelek_record record) {
    *out++ = (uint8_t)operation;
    for (int i = 0; i < 4; i++) *out++ = (uint8_t)(record.key_size >> 8 * i);
    for (int i = 0; i < 4; i++) *out++ = (uint8_t)(record.value_size >> 8 * i);
    return kelek_bytes(kelek_bytes(out, record.key, record.key_size), record.value,
                       record.value_size);
}

#endif
