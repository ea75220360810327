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

#endif
