/* The part of api.h about entries that only put or delete, and about requests, for the compiler and
 * for cffi. */
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
 *   apart, its count   ascending: tables whose entries do not share a run
 *   runs, runs_max     output; size / KLK_RUN_BYTES_MIN + 1 always suffice
 *   format, capacity   output; 4 * size + 16 always suffice
 *   format_size        out: its characters
 *
 * Returns the number of runs, KLK_ECORRUPT for a malformed record, KLK_ESPACE, KLK_EINVAL. */
ssize_t klk_runs_cut(const uint8_t *block, size_t size, uint64_t marked_last, uint32_t number,
                     uint32_t workers, const uint32_t *apart, uint32_t apart_count,
                     struct klk_run *runs, size_t runs_max, char *format, size_t capacity,
                     size_t *format_size);

/* ---- requests.c: requests of tables in an arena (docs/protocols/zerodb.md) ---- */

enum klk_request_limit { KLK_TTL_S_MAX = 315360000 }; /* ten years */

enum klk_request_shape {
    KLK_REQUEST_OTHER = 0, /* to be decoded one by one: malformed, or of a rare type */
    KLK_REQUEST_READ = 1,  /* of a table; the frames behind its number are not looked at */
    KLK_REQUEST_WRITE = 2, /* well-formed put, delete, delete range or limited delete */
    KLK_REQUEST_TRANSACTION = 3 /* well-formed, of one table, with a request id, no lifetime, no
                                   compare of versions and no read of a range */
};

/* What the header and the table number of a request say. */
struct klk_request {
    uint32_t message;     /* its number in the arena */
    uint32_t table;
    uint32_t deadline_ms; /* of our extension; 0: none */
    uint32_t entry_size;  /* of a write or a transaction: bytes of its entry */
    uint8_t type;
    uint8_t flags;        /* of a write or a transaction */
    uint8_t extension;    /* flags of our extension */
    uint8_t shape;
    uint8_t header;       /* which frame of the message the header is */
    uint8_t extended;     /* it has our extension: the answer echoes reqid */
    uint8_t reqid[12];
    uint8_t has_sessions; /* of a transaction: it has one, or asks for one */
    uint8_t spare[5];
    uint64_t session;     /* of our extension; 0: none */
};

/* Looks at every message of an arena.
 *
 *   routed            1: a message begins with a routing id, and perhaps the empty frame of a REQ
 *                     socket; 0: with the header
 *   entry_bytes_max   a write or a transaction whose entry would be larger has the shape OTHER
 *   out               room for one request a message */
void klk_requests_read(const struct klk_messages *arena, int routed, uint32_t entry_bytes_max,
                       struct klk_request *out);

/* Packs each write among these requests into an entry, one behind the other.
 *
 *   out, capacity   the sum of their entry_size is always enough
 *
 * Returns the bytes written, or KLK_ESPACE. */
ssize_t klk_requests_pack(const struct klk_messages *arena, const struct klk_request *requests,
                          uint32_t count, uint8_t *out, size_t capacity);

/* Packs a transaction into its entry of entry_size bytes. */
void klk_transaction_pack(const struct klk_messages *arena, const struct klk_request *request,
                          uint8_t *out);

/* The sessions that a transaction uses, its own first. Returns their number, or max + 1: there are
 * more. */
uint32_t klk_transaction_sessions(const struct klk_messages *arena,
                                  const struct klk_request *request, uint64_t *out, uint32_t max);

/* Adds [head][routing id][request frames ..] to out for some of the requests; the routing id is
 * empty where there was none.
 *
 *   positions   of these among the requests
 *   done        in, out: how many of them are added, 0 at first
 *   kind        head: u8 kind, u8 1 for the empty frame of a REQ socket, 22 zeros
 *
 * Returns KLK_OK, or KLK_EFULL: out must grow, go on afterwards. */
int klk_requests_forward(const struct klk_messages *arena, const struct klk_request *requests,
                         const uint32_t *positions, uint32_t count, uint32_t *done, uint8_t kind,
                         struct klk_messages *out);

/* Adds [routing id]([empty])[31 01 type 00, echo of our extension] to out, for some requests. For
 * one that asks for its LOG INDEX 8 zeros follow the echo. */
int klk_requests_acknowledge(const struct klk_messages *arena,
                             const struct klk_request *requests, const uint32_t *positions,
                             uint32_t count, uint32_t *done, struct klk_messages *out);

/* Puts a LOG INDEX in the place of the zeros that end a header, in those answers where it has them:
 * the echo of a request that asks, in a message as klk_requests_acknowledge() adds it, with or
 * without further frames.
 *
 *   indexes   one for each message */
void klk_answers_tell(const struct klk_messages *answers, const uint64_t *indexes);

#endif
