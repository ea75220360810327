/* The part of api.h about entries as columns in Arrow's layout, for the compiler and for cffi. */
#ifndef KLK_COLUMNS_H
#define KLK_COLUMNS_H
#include <stddef.h>
#include <stdint.h>

/* The columns, their capacity, and how much of it is used. */
struct klk_columns {
    int64_t *indexes;       /* count_max */
    int64_t *terms;         /* count_max */
    int64_t *times;         /* count_max: seconds of the reqid, in microseconds; 0 without */
    int8_t *kinds;          /* count_max */
    uint8_t *valid;         /* a bit each, lowest first: there is a reqid */
    uint8_t *reqids;        /* count_max * KLK_REQID_SIZE, joined */
    int32_t *reqid_offsets; /* count_max + 1 */
    int32_t *data_offsets;  /* count_max + 1 */
    uint8_t *data;          /* bytes_max, joined */
    uint32_t count;         /* in, out: entries in the columns, 0 at first */
    uint32_t count_max;
    uint32_t bytes_max; /* at most INT32_MAX */
};

/* Adds the records of a checked block behind the existing ones. Returns KLK_OK; KLK_ESPACE if the
 * columns are too short, or KLK_ECORRUPT: then count is unchanged. */
int klk_columns_add(struct klk_columns *columns, const uint8_t *block, size_t size);

/* A column of items; the caller ensures the capacity. */
struct klk_column {
    int32_t *offsets;
    uint8_t *data;
};

/* Splits consecutive frames alternately into two columns: a message of pairs into keys and values.
 *
 *   offsets   count + 1, ascending; the last at most INT32_MAX above the first
 *   data      the bytes from the first offset on
 *   columns   two: out, each with room for count / 2 + 1 offsets and for all bytes
 *
 * Returns KLK_OK, or KLK_EINVAL: count is odd, or the offsets are malformed; nothing was written.
 */
int klk_columns_part(const uint32_t *offsets, uint32_t count, const uint8_t *data,
                     struct klk_column *columns);

/* A column of items, received from a pipe or sent to a client. */
struct klk_packed {
    const uint8_t *offsets; /* u32 of this machine, unaligned; the first is 0 */
    const uint8_t *data;
    size_t offsets_size; /* in bytes: 4 for each item, and 4 */
    size_t data_size;
};

/* Adds the items of two columns alternately to the message at the end of out, a frame each. Returns
 * KLK_OK; KLK_EINVAL if the counts differ or offsets are malformed, KLK_EFULL if out must grow:
 * then nothing was written. */
int klk_columns_join(struct klk_messages *out, const struct klk_packed *columns);

#endif
