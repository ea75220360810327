/* The part of api.h about the values of typed tables, for the compiler and for cffi.
 *
 * A value is the MessagePack array of a row's columns, in the order of the schema
 * (docs/protocols/zerodb.md, "Rows"). */
#ifndef KLK_ROWS_H
#define KLK_ROWS_H
#include <stddef.h>
#include <stdint.h>

/* The kinds of columns, with the bytes of an item in Arrow's layout. */
enum klk_cell_kind {
    KLK_CELL_BOOL = 0, /* a bit */
    KLK_CELL_I8 = 1,
    KLK_CELL_I16 = 2,
    KLK_CELL_I32 = 3,
    KLK_CELL_I64 = 4,
    KLK_CELL_U8 = 5,
    KLK_CELL_U16 = 6,
    KLK_CELL_U32 = 7,
    KLK_CELL_U64 = 8,
    KLK_CELL_F32 = 9,
    KLK_CELL_F64 = 10,
    KLK_CELL_DECIMAL = 11, /* 16, the lowest first: an integer of 64 bits, else 16 bytes */
    KLK_CELL_UTF8 = 12,    /* with offsets */
    KLK_CELL_BINARY = 13,  /* with offsets */
    KLK_CELL_PACKED = 14,  /* with offsets: any item, in MessagePack already */
    KLK_CELL_KINDS = 15
};

/* A column to encode, in Arrow's layout. */
struct klk_cells {
    const uint8_t *valid;   /* a bit each, lowest first; NULL: no item is null */
    const uint8_t *data;
    const int32_t *offsets; /* of kinds with offsets; ascending, from 0 on */
    uint64_t first;         /* place of the first item in all three */
    uint32_t kind;
};

/* Sizes of the encoded rows.
 *
 *   offsets   out: rows + 1, from 0 on
 *
 * Returns KLK_OK, KLK_EINVAL for a wrong kind, KLK_ESPACE if all rows have 2 GiB or more. */
int klk_rows_size(const struct klk_cells *columns, uint32_t count, uint32_t rows,
                  int32_t *offsets);

/* Encodes rows behind each other.
 *
 *   out   room for offsets[rows] bytes of klk_rows_size() with the same columns */
void klk_rows_encode(const struct klk_cells *columns, uint32_t count, uint32_t rows, uint8_t *out);

/* A column that klk_rows_decode() fills. */
struct klk_wanted {
    uint8_t *valid;    /* a bit each, cleared before */
    uint8_t *data;     /* of kinds without offsets: room for all rows, cleared before */
    uint32_t *starts;  /* of kinds with offsets: place of each item in the encoded rows */
    int32_t *offsets;  /* of kinds with offsets: rows + 1; sizes of the items, summed up */
    uint32_t place;    /* of the column in a row */
    uint32_t kind;
};

/* Decodes some columns of rows; it does not look behind the last of them. A column that a row does
 * not reach is null.
 *
 *   offsets   rows + 1, ascending, within the data; the last one at most INT32_MAX
 *   wanted    count columns, in the order of their places
 *   bad       out: the row and the place in wanted of an item that is malformed or of another kind
 *
 * Returns KLK_OK, KLK_EINVAL for a wrong kind or order, or KLK_ECORRUPT: then bad is set. */
int klk_rows_decode(const int32_t *offsets, const uint8_t *data, uint32_t rows,
                    struct klk_wanted *wanted, uint32_t count, uint32_t *bad);

/* Copies the items of a column with offsets behind each other.
 *
 *   out   room for offsets[rows] bytes */
void klk_rows_gather(const uint8_t *data, const struct klk_wanted *wanted, uint32_t rows,
                     uint8_t *out);

/* ---- keys.c: the key columns of a row, so that keys are in the order of the columns ----
 *
 * Numbers have their size in bytes, the highest first, so that they ascend: signed ones with the
 * sign bit inverted, floats below zero with all bits inverted. -0.0 is 0.0, all NaN are one, behind
 * infinity. Text and bytes end with 00 00, and a 00 within is 00 ff; as the last column they are as
 * they are. KLK_CELL_PACKED is no kind of a key. */

/* Sizes of the keys; as klk_rows_size(). Items are not null. */
int klk_keys_size(const struct klk_cells *columns, uint32_t count, uint32_t rows,
                  int32_t *offsets);

/* Encodes keys behind each other; as klk_rows_encode(). */
void klk_keys_encode(const struct klk_cells *columns, uint32_t count, uint32_t rows, uint8_t *out);

/* Decodes keys; as klk_rows_decode(), but for these differences.
 *
 *   wanted   all columns of the keys; `data` has room for all bytes of the keys if the kind has
 *            offsets; `valid` and `starts` are not used */
int klk_keys_decode(const int32_t *offsets, const uint8_t *data, uint32_t rows,
                    struct klk_wanted *wanted, uint32_t count, uint32_t *bad);

#endif
