/* The magic of entries for tables (docs/protocols/zerodb.md, "Entries"), for C files, not for cffi.
 */
#ifndef KLK_TABLE_MARK_H
#define KLK_TABLE_MARK_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    KLK_KIND_STATE = 0,
    KLK_KIND_TABLES = 3,
    KLK_TABLE_MARK_SIZE = 4,
    KLK_OP_PUT = 0x20,
    KLK_OP_DELETE = 0x21,
    KLK_OP_HEAD = 9 /* operation u8, table u32, count u32 */
};

static const uint8_t klk_table_mark[KLK_TABLE_MARK_SIZE] = {0x6b, 0x4c, 0x54, 0x01};

/* Whether the data of a record begins with the magic of packed operations. */
static inline int klk_is_marked(const uint8_t *data, size_t size) {
    return size >= KLK_TABLE_MARK_SIZE && memcmp(data, klk_table_mark, KLK_TABLE_MARK_SIZE) == 0;
}

#endif
