/* Formats for Python's struct module. Only C files include it, not cffi. */
#ifndef KLK_FORMAT_H
#define KLK_FORMAT_H
#include <stddef.h>
#include <stdint.h>

/* Writes a number and a letter, at most 11 characters. printf would cost more than the rest. */
static inline size_t klk_format_item(char *out, uint32_t number, char letter) {
    char digits[10];
    size_t count = 0, at = 0;
    do {
        digits[count++] = (char)('0' + number % 10);
    } while (number /= 10);
    while (count) out[at++] = digits[--count];
    out[at++] = letter;
    return at;
}

#endif
