/* Rows of tables in memory that a table worker shares with the zerodb_server of its node, which
 * answers reads from it: a part of api.h. The worker writes, others only read, without a lock.
 *
 * The rows are those of the state up to `applied`, or of a later one. So the order of a write is:
 * the database takes it, klk_row_cache_put() its rows, klk_row_cache_apply() its index. */
#ifndef KLK_ROW_CACHE_H
#define KLK_ROW_CACHE_H
#include "gets.h"

enum klk_row_cache_limit {
    KLK_ROW_CACHE_HEAD = 128,         /* bytes before the buckets */
    KLK_ROW_CACHE_BYTES_MIN = 1 << 13,
    KLK_ROW_CACHE_ROW_MAX = 1 << 14,  /* bytes of a row: its head, key and value */
    KLK_ROWS_NONE = 1
};

/* The beginning of the memory. Behind it: the buckets of 8 slots, and a ring of rows, in which new
 * rows replace the oldest ones. Positions count the bytes ever written to the ring. */
struct klk_row_cache {
    uint64_t magic;
    uint64_t size;       /* of the whole memory */
    uint64_t buckets;    /* a power of two */
    uint64_t ring;       /* bytes */
    uint64_t seed;       /* of the hashes of keys */
    uint64_t generation; /* changes with each write; odd: it is being made */
    uint64_t applied;    /* all entries up to this index are in the rows */
    uint64_t head;       /* where the next row may begin */
    uint64_t first;      /* rows before it are overwritten */
};

/* How a process reads one: with the sizes as it has checked them. */
struct klk_row_reader {
    const struct klk_row_cache *cache; /* NULL: there is none */
    uint64_t buckets, ring, seed;
    uint64_t answered; /* requests, ever */
};

/* Begins an empty cache in zeroed memory of `size` bytes: a multiple of 8, KLK_ROW_CACHE_BYTES_MIN
 * at least. */
void klk_row_cache_make(struct klk_row_cache *cache, uint64_t size, uint64_t seed);

/* Keeps the keys of these reads with the values that they have now. Rows of more than
 * KLK_ROW_CACHE_ROW_MAX bytes are left out.
 *
 *   places   of the keys in the arena's bytes, as klk_gets_read() makes them
 *   sizes    of each value; UINT32_MAX: there is no such key
 *   values   joined */
void klk_row_cache_keep(struct klk_row_cache *cache, const struct klk_messages *arena,
                        const struct klk_gets *gets, const uint32_t *places,
                        const uint32_t *sizes, const uint8_t *values);

/* A write has changed rows: between begin and end readers take none. */
void klk_row_cache_begin(struct klk_row_cache *cache);
void klk_row_cache_end(struct klk_row_cache *cache);

/* Keeps rows of a table as a write has left them, in its order, between begin and end. Of those of
 * more than KLK_ROW_CACHE_ROW_MAX bytes it only forgets what they were.
 *
 *   keys, values   joined
 *   value_sizes    UINT32_MAX: the key was deleted */
void klk_row_cache_put(struct klk_row_cache *cache, uint32_t table, const uint8_t *keys,
                       const uint32_t *key_sizes, const uint8_t *values,
                       const uint32_t *value_sizes, uint32_t count);

/* Forgets all rows, and what was applied: the database is another one, or a range of keys was
 * removed. */
void klk_row_cache_clear(struct klk_row_cache *cache);

/* All entries up to this index are applied, and their rows put. */
void klk_row_cache_apply(struct klk_row_cache *cache, uint64_t index);

/* Begins to read a cache in memory of `size` bytes. Returns 1; 0: there is none. */
int klk_row_reader_open(struct klk_row_reader *reader, const struct klk_row_cache *cache,
                        uint64_t size);

/* Begins to read rows that belong together, of the state of `index` or a later one. Returns what
 * klk_row_reader_end() takes; KLK_ROWS_NONE: the cache is being changed, or `index` is not applied.
 */
uint64_t klk_row_reader_begin(const struct klk_row_reader *reader, uint64_t index);

/* Reads a row.
 *
 *   out        room for `room` bytes of the value
 *   size       out: of the value; UINT32_MAX: there is no such key
 *
 * Returns 1; 0: it is not here, or is larger. */
int klk_row_reader_get(const struct klk_row_reader *reader, uint32_t table, const uint8_t *key,
                       uint32_t key_size, uint8_t *out, uint32_t room, uint32_t *size);

/* Whether the rows that were read are of one state. */
int klk_row_reader_end(const struct klk_row_reader *reader, uint64_t begun);

#endif
