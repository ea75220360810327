/* The part of api.h about entries that only put or delete, for the compiler and for cffi. */
#ifndef KLK_RUNS_H
#define KLK_RUNS_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Keys, or keys and values, that consecutive entries put into or delete from one table; or an entry
 * with other or malformed operations. */
struct klk_run {
    uint64_t log_index; /* of the last entry */
    uint32_t offset;    /* operation 0: position of the entry's data in the block */
    uint32_t size;      /* and their size in bytes */
    uint32_t table;
    uint32_t items;     /* number of keys, or of keys and values, in the format */
    uint32_t operation; /* 0x20 put, 0x21 delete, 0 another entry */
    uint32_t spare;
};

enum klk_runs_limit { KLK_RUN_BYTES_MIN = 7 }; /* of a block, for one run */

/* Cuts the entries with packed operations (docs/protocols/zerodb.md, "Entries") of a checked block:
 * entries of the tables' own type, and state entries up to marked_last that begin with the magic.
 * Operations on other workers' tables are left out, except for entries with operation 0.
 *
 *   marked_last        last index at which the magic alone is enough
 *   number, workers    the tables number, number + workers, ... are wanted
 *   runs, runs_max     output; size / KLK_RUN_BYTES_MIN + 1 always suffice
 *   format, capacity   output; 4 * size + 16 always suffice
 *   format_size        out: its characters
 *
 * Returns the number of runs, KLK_ECORRUPT for a malformed record, KLK_ESPACE, KLK_EINVAL. */
ssize_t klk_runs_cut(const uint8_t *block, size_t size, uint64_t marked_last, uint32_t number,
                     uint32_t workers, struct klk_run *runs, size_t runs_max, char *format,
                     size_t capacity, size_t *format_size);

#endif
