/* The contract of kelek's C core, read by the compiler and by cffi: declarations only.
 *
 * Functions return 0 (or a count) or a negative KLK_E*; results go through out parameters and stay
 * untouched on error; the caller owns all memory; there is no global state but the libzmq symbols. */
#ifndef KLK_API_H
#define KLK_API_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum klk_error {
    KLK_OK = 0,
    KLK_EINVAL = -1,   /* an argument breaks the contract */
    KLK_ESPACE = -2,   /* the output does not fit: nothing was written */
    KLK_ECORRUPT = -3, /* a checksum or a length is wrong */
    KLK_ETORN = -4,    /* the data ends early, as a write that never finished would */
    KLK_EOS = -5       /* the operating system refused: see errno */
};

/* ---- crc32c.c ---- */

/* CRC32C (Castagnoli, RFC 3720 appendix B.4) of size bytes, continued from value (0 at first). */
uint32_t klk_crc32c(uint32_t value, const uint8_t *data, size_t size);

#endif
