/* The part of api.h about files of sorted keys, as RocksDB writes them (docs/disk-format.md, "Files
 * of the tables"): for compiler and cffi alike. */
#ifndef KLK_SST_H
#define KLK_SST_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum klk_sst_error {
    KLK_EUNKNOWN = -8 /* beside enum klk_error: it may be right, but is of a kind we don't read */
};

/* ---- xxh3.c, snappy.c ---- */

/* XXH3 of 64 bits with seed 0 and the default secret (xxHash 0.8). */
uint64_t klk_xxh3(const uint8_t *data, size_t size);

/* How many bytes Snappy data says that it has; KLK_ECORRUPT when it can't have so many. */
ssize_t klk_snappy_size(const uint8_t *data, size_t size);

/* Decodes Snappy data (its format_description.txt) into exactly klk_snappy_size() bytes.
 *
 * Returns KLK_OK, KLK_ESPACE when out_max is less, KLK_ECORRUPT: out is then of no use. */
int klk_snappy_decode(const uint8_t *data, size_t size, uint8_t *out, size_t out_max);

/* ---- sst.c: blocks ---- */

enum klk_sst_limit {
    KLK_SST_TRAILER_SIZE = 5, /* behind each block: how it is compressed, checksum u32 */
    KLK_SST_PLAIN = 0,
    KLK_SST_SNAPPY = 1,
    KLK_SST_STAMP_SIZE = 8 /* at the end of each key: type u8, sequence number u56 */
};

/* Checks a stored block of size bytes, with KLK_SST_TRAILER_SIZE behind it.
 *
 * Returns KLK_SST_PLAIN or KLK_SST_SNAPPY, KLK_ECORRUPT when the checksum is another, KLK_EUNKNOWN
 * when it is compressed in another way. */
int klk_sst_block_check(const uint8_t *stored, size_t size);

/* Where an index says that blocks lie. */
struct klk_sst_blocks {
    uint64_t *offsets; /* count_max */
    uint64_t *sizes;   /* count_max: without their trailers */
    uint32_t count;    /* out */
    uint32_t count_max;
};

/* What of a file is wanted: start <= key < end. */
struct klk_sst_bounds {
    const uint8_t *start;
    const uint8_t *end;
    uint32_t start_size;
    uint32_t end_size;    /* 0: there is no end */
    uint32_t stamp_size;  /* of the index's keys: 0 or KLK_SST_STAMP_SIZE */
    uint64_t file_size;
};

/* Reads an index block: the blocks in which wanted keys may be.
 *
 * Returns KLK_OK, KLK_ESPACE when they are more than count_max, KLK_ECORRUPT, or KLK_EUNKNOWN when
 * the index is of another form. */
int klk_sst_index(const uint8_t *block, size_t size, const struct klk_sst_bounds *bounds,
                  struct klk_sst_blocks *blocks);

/* ---- sst_merge.c: from many files to one row of pairs ---- */

enum klk_sst_state {
    KLK_SST_ADVANCE = 0, /* go on to the next entry */
    KLK_SST_READY = 1,   /* there is an entry */
    KLK_SST_NEXT = 2,    /* the file has ended: its owner gives another one, or says OVER */
    KLK_SST_OVER = 3
};

/* Files whose keys ascend, one behind the other; one of them is open. */
struct klk_sst_run {
    struct klk_sst_blocks blocks; /* of the file */
    uint8_t *window;              /* window_max: what was read of it */
    uint8_t *block;               /* block_max: a block that was decompressed */
    uint8_t *key;                 /* key_max: the entry's, with its stamp */
    const uint8_t *at;            /* behind the entry, in window or block */
    const uint8_t *end;           /* of the block's entries */
    const uint8_t *value;         /* the entry's */
    uint64_t window_offset;       /* in the file */
    uint64_t stamp;               /* the entry's */
    size_t window_max;
    size_t window_size;
    size_t block_max;
    uint32_t next;       /* block */
    uint32_t key_size;   /* with its stamp */
    uint32_t key_max;
    uint32_t value_size;
    int fd;
    int seeks; /* entries below the start may come */
    int state; /* enum klk_sst_state */
};

/* What a merge returns when nothing is wrong. */
enum klk_sst_merged {
    KLK_SST_FULL = 0,   /* there are so many pairs, or bytes, as were wanted */
    KLK_SST_END = 1,    /* no pair is left */
    KLK_SST_FILE = 2,   /* a run's file has ended */
    KLK_SST_WINDOW = 3, /* a run's window needs wants_size bytes, ... */
    KLK_SST_BLOCK = 4,  /* ... its block does, ... */
    KLK_SST_KEYS = 5,   /* ... the columns' keys do, ... */
    KLK_SST_VALUES = 6  /* ... or their values */
};

/* Runs that are merged, and the columns of pairs that come out, in Arrow's layout. */
struct klk_sst_merge {
    struct klk_sst_run *runs; /* count */
    uint32_t *order;          /* count: runs with an entry, the smallest first */
    uint8_t *last;            /* last_max: the key before */
    const uint8_t *start;
    const uint8_t *end;
    int32_t *key_offsets;   /* pairs_max + 1 */
    int32_t *value_offsets; /* pairs_max + 1 */
    uint8_t *keys;          /* keys_max, at most INT32_MAX */
    uint8_t *values;        /* values_max, at most INT32_MAX */
    uint64_t sequence;      /* what is newer is not seen */
    uint64_t bytes_max;     /* of keys and values: the pairs end with the one that reaches it */
    size_t keys_max;
    size_t values_max;
    size_t wants_size; /* out */
    uint32_t count;
    uint32_t ordered;
    uint32_t start_size;
    uint32_t end_size;  /* 0: there is no end */
    uint32_t last_size; /* meaningful once has_last */
    uint32_t last_max;
    uint32_t pairs; /* in, out: how many are in the columns */
    uint32_t pairs_max;
    uint32_t wants; /* out: which run; also of an error */
    int has_last;
    int with_values; /* else all values are empty */
};

/* Adds pairs behind those that are in the columns. Of each key the newest entry counts that is not
 * newer than sequence; where it deletes the key there is no pair.
 *
 * Returns one of enum klk_sst_merged, and is called again when what it says was seen to; after
 * FULL, with empty columns. Or KLK_ECORRUPT, KLK_EUNKNOWN (an entry of another kind), KLK_EOS,
 * KLK_ETORN (the file is shorter than it was): the pairs so far are right, and no more come. */
int klk_sst_merge(struct klk_sst_merge *merge);

#endif
