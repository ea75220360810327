/* The part of api.h about RocksDB's files of sorted keys (docs/reference/disk-format.md, "Files of
 * the tables"), for the compiler and for cffi. */
#ifndef KLK_SST_H
#define KLK_SST_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum klk_sst_error {
    KLK_EUNKNOWN = -8 /* beside enum klk_error: valid, but of a kind that this code does not read */
};

/* ---- xxh3.c, snappy.c ---- */

/* XXH3 of 64 bits with seed 0 and the default secret (xxHash 0.8). */
uint64_t klk_xxh3(const uint8_t *data, size_t size);

/* The decoded size of Snappy data; KLK_ECORRUPT if it cannot be right. */
ssize_t klk_snappy_size(const uint8_t *data, size_t size);

/* Decodes Snappy data (its format_description.txt) into exactly klk_snappy_size() bytes.
 *
 * Returns KLK_OK, KLK_ESPACE if out_max is less, KLK_ECORRUPT (the output is then undefined). */
int klk_snappy_decode(const uint8_t *data, size_t size, uint8_t *out, size_t out_max);

/* ---- snappy_encode.c ---- */

/* Encodes data by Snappy. out has room for size + size / 6 + KLK_SNAPPY_OVERHEAD bytes. Returns how
 * many are written. */
enum klk_snappy_limit { KLK_SNAPPY_OVERHEAD = 32 };
size_t klk_snappy_encode(const uint8_t *data, size_t size, uint8_t *out);

/* ---- sst.c: blocks ---- */

enum klk_sst_limit {
    KLK_SST_TRAILER_SIZE = 5, /* behind each block: kind of compression, checksum u32 */
    KLK_SST_PLAIN = 0,
    KLK_SST_SNAPPY = 1,
    KLK_SST_STAMP_SIZE = 8 /* at the end of each key: type u8, sequence number u56 */
};

/* Checks a stored block of size bytes, with KLK_SST_TRAILER_SIZE behind it.
 *
 * Returns KLK_SST_PLAIN or KLK_SST_SNAPPY, KLK_ECORRUPT for a wrong checksum, KLK_EUNKNOWN for
 * another compression. */
int klk_sst_block_check(const uint8_t *stored, size_t size);

/* Writes the trailer of a stored block of size bytes behind it. */
void klk_sst_block_seal(uint8_t *stored, size_t size, uint8_t kind);

/* The blocks that an index lists. */
struct klk_sst_blocks {
    uint64_t *offsets; /* count_max */
    uint64_t *sizes;   /* count_max: without trailers */
    uint32_t count;    /* out */
    uint32_t count_max;
};

/* The wanted range of a file: start <= key < end. */
struct klk_sst_bounds {
    const uint8_t *start;
    const uint8_t *end;
    uint32_t start_size;
    uint32_t end_size;    /* 0: no bound */
    uint32_t stamp_size;  /* of the index's keys: 0 or KLK_SST_STAMP_SIZE */
    uint64_t file_size;
};

/* Reads an index block: lists the blocks that may have wanted keys.
 *
 * Returns KLK_OK, KLK_ESPACE if there are more than count_max, KLK_ECORRUPT, or KLK_EUNKNOWN for
 * another form of index. */
int klk_sst_index(const uint8_t *block, size_t size, const struct klk_sst_bounds *bounds,
                  struct klk_sst_blocks *blocks);

/* Checks the blocks of a file from number `first` on, as far as they lie in data: its bytes from
 * offset `base` on.
 *
 * Returns the number of the first block that is not wholly in data, or `count`; KLK_ECORRUPT for a
 * wrong checksum. */
ssize_t klk_sst_blocks_check(const struct klk_sst_blocks *blocks, uint32_t first,
                             const uint8_t *data, size_t size, uint64_t base);

/* ---- sst_merge.c: merges many files into pairs ---- */

enum klk_sst_state {
    KLK_SST_ADVANCE = 0, /* read the next entry */
    KLK_SST_READY = 1,   /* there is an entry */
    KLK_SST_NEXT = 2,    /* the file has ended: the owner gives the next file, or sets OVER */
    KLK_SST_OVER = 3
};

/* A run: consecutive files with ascending keys, of which one is open. */
struct klk_sst_run {
    struct klk_sst_blocks blocks; /* of the file */
    uint8_t *window;              /* window_max: bytes read from it */
    uint8_t *block;               /* block_max: a decompressed block */
    uint8_t *key;                 /* key_max: the entry's key with its stamp */
    const uint8_t *at;            /* behind the entry, in window or block */
    const uint8_t *end;           /* of the block's entries */
    const uint8_t *value;         /* the entry's */
    uint64_t window_offset;       /* in the file */
    uint64_t stamp;               /* the entry's */
    size_t window_max;
    size_t window_size;
    size_t block_max;
    uint32_t next;       /* next block */
    uint32_t key_size;   /* with its stamp */
    uint32_t key_max;
    uint32_t value_size;
    int fd;
    int seeks; /* entries below the start may follow */
    int state; /* enum klk_sst_state */
};

/* Results of a merge without errors. */
enum klk_sst_merged {
    KLK_SST_FULL = 0,   /* the wanted number of pairs or bytes is reached */
    KLK_SST_END = 1,    /* there are no more pairs */
    KLK_SST_FILE = 2,   /* a run's file has ended */
    KLK_SST_WINDOW = 3, /* a run's window needs wants_size bytes */
    KLK_SST_BLOCK = 4,  /* its block needs wants_size bytes */
    KLK_SST_KEYS = 5,   /* the columns' keys need wants_size bytes */
    KLK_SST_VALUES = 6  /* their values need wants_size bytes */
};

/* The merged runs, and the columns of their pairs in Arrow's layout. */
struct klk_sst_merge {
    struct klk_sst_run *runs; /* count */
    uint32_t *order;          /* count: runs with an entry, smallest first */
    uint8_t *last;            /* last_max: the previous key */
    const uint8_t *start;
    const uint8_t *end;
    int32_t *key_offsets;   /* pairs_max + 1; NULL: pairs are only counted, without columns */
    int32_t *value_offsets; /* pairs_max + 1 */
    uint8_t *keys;          /* keys_max, at most INT32_MAX */
    uint8_t *values;        /* values_max, at most INT32_MAX */
    uint64_t sequence;      /* newer entries are ignored */
    uint64_t bytes_max;     /* of keys and values: the pair that reaches it is the last */
    size_t keys_max;
    size_t values_max;
    size_t wants_size; /* out */
    uint32_t count;
    uint32_t ordered;
    uint32_t start_size;
    uint32_t end_size;  /* 0: no bound */
    uint32_t last_size; /* valid if has_last */
    uint32_t last_max;
    uint32_t pairs; /* in, out: number of pairs in the columns */
    uint32_t pairs_max;
    uint32_t wants; /* out: the run; also of an error */
    int has_last;
    int with_values; /* else values are empty */
};

/* Adds pairs behind those in the columns. Of each key the newest entry up to sequence counts; if it
 * deletes the key, there is no pair.
 *
 * Returns one of enum klk_sst_merged; call it again after handling that, after FULL with empty
 * columns. Errors: KLK_ECORRUPT, KLK_EUNKNOWN (an entry of another kind), KLK_EOS, KLK_ETORN (the
 * file has become shorter): the pairs so far are valid, and the merge ends. */
int klk_sst_merge(struct klk_sst_merge *merge);

/* ---- sst_write.c: rows of a bulk load become blocks ---- */

/* Sorted rows, as columns. */
struct klk_sst_rows {
    const uint8_t *key_offsets;   /* u32 little endian, unaligned, count + 1; the first is 0 */
    const uint8_t *value_offsets; /* the same */
    const uint8_t *keys;
    const uint8_t *values;
    size_t keys_size;
    size_t values_size;
    uint32_t count;
};

/* Checks rows, at least one, by klk_offsets_format's rules for columns.
 *
 * Returns KLK_OK; KLK_ECORRUPT for malformed offsets or a value over KLK_VALUE_BYTES_MAX;
 * KLK_EINVAL if keys do not ascend or the first is empty; KLK_ESPACE if one is larger than
 * KLK_KEY_BYTES_MAX. */
int klk_sst_rows_check(const struct klk_sst_rows *rows);

/* A file of rows that is written: its blocks, and the entries of its index. */
struct klk_sst_writer {
    uint8_t *out;       /* out_max: blocks with their trailers */
    uint8_t *block;     /* block_max: the current block */
    uint8_t *index;     /* index_max: entries of the index */
    uint32_t *restarts; /* blocks_max: the offset of each entry in the whole index */
    size_t out_max;
    size_t out_size; /* out */
    size_t block_max;
    size_t index_max;
    size_t index_size;   /* out */
    uint64_t offset;     /* of out in the file */
    uint32_t index_base; /* of index in the whole index */
    uint32_t block_bytes; /* a block ends before it is larger, unless it has one row */
    uint32_t blocks_max;
    uint32_t blocks; /* out */
    int compresses;  /* by Snappy, blocks that become an eighth smaller */
};

/* Writes checked rows into blocks of their own. A row needs at most KLK_SST_ROW_MAX bytes besides
 * its key and value in a block, and as many besides its key in the index. out has room for a sixth
 * more than that and KLK_SNAPPY_OVERHEAD.
 *
 * Returns KLK_OK, an error of klk_sst_rows_check(), or KLK_ESPACE if a buffer is too small. */
enum klk_sst_write_limit { KLK_SST_ROW_MAX = 48 };
int klk_sst_write(struct klk_sst_writer *writer, const struct klk_sst_rows *rows);

#endif
