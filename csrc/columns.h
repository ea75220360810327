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

#endif
