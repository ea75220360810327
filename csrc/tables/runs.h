/* The part of api.h about entries that only put or delete, cut by the block: for compiler and cffi
 * alike. */
#ifndef KLK_RUNS_H
#define KLK_RUNS_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Keys, or keys and values, that consecutive entries put into or delete from one table; or an
 * entry with other operations, or malformed ones. */
struct klk_run {
    uint64_t log_index; /* of the last entry */
    uint32_t offset;    /* operation 0: where in the block the entry's data lie */
    uint32_t size;      /* and how many bytes they have */
    uint32_t table;
    uint32_t items;     /* keys, or keys and values: they follow in the format */
    uint32_t operation; /* 0x20 put, 0x21 delete, 0 another entry */
    uint32_t spare;
};

enum klk_runs_limit { KLK_RUN_BYTES_MIN = 7 }; /* of a block, for one run */

/* Cuts the entries with packed operations (docs/protocols/zerodb.md, "Entries") of a checked block:
 * those of the tables' own kind, and state entries up to marked_last that begin with the mark.
 * What other workers' tables concern is left out, but for entries with operation 0.
 *
 *   marked_last        the last index up to which the mark alone is believed
 *   number, workers    the tables number, number + workers, ... are wanted
 *   runs, runs_max     room: size / KLK_RUN_BYTES_MIN + 1 are always enough
 *   format, capacity   out: how Python's struct module cuts the items from the block's start on;
 *                      room: 4 * size + 16 is always enough
 *   format_size        out: characters of it
 *
 * Returns the number of runs, KLK_ECORRUPT when a record is, KLK_ESPACE, KLK_EINVAL. */
ssize_t klk_runs_cut(const uint8_t *block, size_t size, uint64_t marked_last, uint32_t number,
                     uint32_t workers, struct klk_run *runs, size_t runs_max, char *format,
                     size_t capacity, size_t *format_size);

#endif
