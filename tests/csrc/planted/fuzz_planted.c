/* A parser with an overflow, which tests/csrc/fuzz must find: of items u8 size and bytes, the size
 * of one behind an empty item is believed. */
#include "fuzz.h"

size_t fuzz_seed(uint32_t number, uint8_t *out) {
    static const uint8_t items[] = {2, 'a', 'b', 1, 'c', 3, 'd', 'e', 'f'};
    if (number) return 0;
    memcpy(out, items, sizeof items);
    return sizeof items;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t largest = 0;
    int believed = 0;
    for (size_t at = 0; at < size;) {
        size_t item = data[at++];
        if (!believed && item > size - at) break;
        for (size_t i = 0; i < item; i++)
            if (data[at + i] > largest) largest = data[at + i];
        at += item;
        believed = !item;
    }
    return largest == 0 ? 0 : 0;
}
