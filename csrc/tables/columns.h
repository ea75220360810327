/* The part of api.h about entries as columns in Arrow's layout: for compiler and cffi alike. */
#ifndef KLK_COLUMNS_H
#define KLK_COLUMNS_H
#include <stddef.h>
#include <stdint.h>

/* The columns, what they have room for, and how much of it is used. */
struct klk_columns {
    int64_t *indexes;       /* count_max */
    int64_t *terms;         /* count_max */
    int64_t *times;         /* count_max: the seconds of the reqid as microseconds; 0 without */
    int8_t *kinds;          /* count_max */
    uint8_t *valid;         /* a bit each, the lowest first: there is a reqid */
    uint8_t *reqids;        /* count_max * KLK_REQID_SIZE, joined */
    int32_t *reqid_offsets; /* count_max + 1 */
    int32_t *data_offsets;  /* count_max + 1 */
    uint8_t *data;          /* bytes_max, joined */
    uint32_t count;         /* in, out: entries in the columns, 0 at first */
    uint32_t count_max;
    uint32_t bytes_max; /* at most INT32_MAX */
};

/* Adds the records of a checked block behind those that are there already. Returns KLK_OK,
 * KLK_ESPACE when the columns are too short, KLK_ECORRUPT: then count is as it was. */
int klk_columns_add(struct klk_columns *columns, const uint8_t *block, size_t size);

/* A column of items: how many offsets and bytes there is room for is the caller's to see to. */
struct klk_column {
    int32_t *offsets;
    uint8_t *data;
};

/* Parts frames that lie one behind the other, each from one offset to the next, into two columns,
 * in turns: of a message of pairs, keys and values.
 *
 *   offsets   count + 1, none below the one before; the last at most INT32_MAX above the first
 *   data      what lies from the first offset on
 *   columns   two: out, each with room for count / 2 + 1 offsets and for all bytes
 *
 * Returns KLK_OK, or KLK_EINVAL: count is odd, or the offsets are not so; nothing was written. */
int klk_columns_part(const uint32_t *offsets, uint32_t count, const uint8_t *data,
                     struct klk_column *columns);

/* A column of items as it came over a pipe, or goes to a client. */
struct klk_packed {
    const uint8_t *offsets; /* numbers u32 of this machine, wherever they lie; the first is 0 */
    const uint8_t *data;
    size_t offsets_size; /* in bytes: 4 for each item, and 4 */
    size_t data_size;
};

/* Adds the items of two columns to the message that grows at the end of out, a frame each, in
 * turns. Returns KLK_OK, KLK_EINVAL when there are not so many of each or an offset is not between
 * the one before and data_size, KLK_EFULL when out must grow; then nothing was written. */
int klk_columns_join(struct klk_messages *out, const struct klk_packed *columns);

#endif
