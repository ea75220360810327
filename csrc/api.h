/* The interface of kelek's C core. The compiler and cffi read it: declarations only.
 *
 * A function returns 0 or a count, or a negative KLK_E*. Results leave by out parameters, which
 * stay unchanged on an error. The caller owns all memory. The only global state is the table of
 * libzmq's symbols.
 *
 * Parts, in this order: log/crc32c.c (checksums), log/frame.c (records, blocks), log/segment.c
 * (files of the log), log/syncer.c (background syncs), net/sockets.c (message batches, polling),
 * log/entries.c (messages of entries), log/reqids.c (request ids), log/updates.c and log/reads.c
 * (updates and linearizable reads at the leader), tables/ops.c (packed operations),
 * tables/mapper.c (input and output of mappers), tables/requests.c (requests of tables).
 * Other headers: log/latency.h, net/{guard,beacons,zre,farm}.h, connections/connections.h,
 * broker/{exchange,serve,budget,bundles}.h, rows/rows.h, tables/{columns,runs,gets}.h, sst/sst.h,
 * server/{plain,channels,table_wait}.h, steady/steady.h. */
#ifndef KLK_API_H
#define KLK_API_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "latency.h"

enum klk_error {
    KLK_OK = 0,
    KLK_EINVAL = -1,   /* an argument breaks the contract */
    KLK_ESPACE = -2,   /* the output does not fit: nothing was written */
    KLK_ECORRUPT = -3, /* a checksum or a length is wrong */
    KLK_ETORN = -4,    /* the data ends early, as after an unfinished write */
    KLK_EOS = -5,      /* the operating system or libzmq refused: see errno */
    KLK_EGROW = -6,    /* a table needs more memory: add it and call again */
    KLK_EFULL = -7     /* the outgoing messages need more room: add it and call again */
};

/* ---- crc32c.c ---- */

/* CRC32C (Castagnoli, RFC 3720 appendix B.4) of size bytes, continued from value (0 at first). */
uint32_t klk_crc32c(uint32_t value, const uint8_t *data, size_t size);

/* The same without special instructions, for tests and other processors. */
uint32_t klk_crc32c_sliced(uint32_t value, const uint8_t *data, size_t size);

/* ---- frame.c: records and blocks (docs/reference/disk-format.md) ---- */

enum klk_frame_limit {
    KLK_REQID_SIZE = 12,
    KLK_KIND_MAX = 127,
    KLK_TAG_REQID = 0x80,          /* in a tag: 12 bytes of reqid follow */
    KLK_RECORD_BYTES_MAX = 10 << 20, /* of data in a record that a client appends */
    KLK_LONE_BYTES_MAX = 64 << 20, /* of data in a record that is alone in its block */
    KLK_RECORD_OVERHEAD_MAX = 17,  /* 4 of varint, 1 of tag, 12 of reqid */
    KLK_HEADER_SIZE = 32,
    KLK_BLOCK_BYTES_MAX = 16 << 20, /* of a block of several records, padding included */
    KLK_BLOCK_COUNT_MAX = 1 << 20, /* of records in one block */
    KLK_ENTRY_PREFIX = 20          /* of an entry in the specification's form: reqid, type, term */
};

enum klk_frame_magic {
    KLK_MAGIC_BLOCK = 0x424b4c4b, /* "KLKB" on disk */
    KLK_MAGIC_MARK = 0x4d4b4c4b   /* "KLKM" on disk */
};

/* A record within the caller's bytes. */
struct klk_record {
    const uint8_t *reqid; /* 12 bytes, or NULL */
    const uint8_t *data;
    uint32_t data_size;
    uint8_t kind;
};

/* The header of a block: 32 bytes. In a mark first_index is the offset up to which the segment was
 * synced, term the writer's epoch; count and payload_size are 0. */
struct klk_header {
    uint64_t first_index;
    uint64_t term;
    uint32_t magic;
    uint32_t crc;
    uint32_t count;
    uint32_t payload_size;
};

/* Reads the record at data. Returns its size in bytes (at least 2), KLK_ETORN when it reaches
 * beyond size, KLK_ECORRUPT when its length is not minimal, over the limit or too short. */
ssize_t klk_record_read(const uint8_t *data, size_t size, struct klk_record *record);

/* The size of a record. data_size is at most KLK_LONE_BYTES_MAX. */
size_t klk_record_size(uint32_t data_size, int has_reqid);

/* Writes a record of klk_record_size() bytes to out and returns its size. reqid may be NULL. */
size_t klk_record_write(uint8_t *out, uint8_t kind, const uint8_t *reqid, const uint8_t *data,
                        uint32_t data_size);

/* Writes what stands before the data of a record, and returns its size. reqid may be NULL. */
size_t klk_record_head(uint8_t *out, uint8_t kind, const uint8_t *reqid, uint32_t data_size);

/* The size of a block with this payload: with header, and padding to a multiple of 8. */
size_t klk_block_size(size_t payload_size);

/* Writes header and padding around a payload at block + 32, without checking its records. The block
 * has room for klk_block_size(payload_size). Returns that size, or KLK_EINVAL: first_index, term or
 * count are 0 or over their limits, or payload_size is over its limit. */
ssize_t klk_block_seal(uint8_t *block, uint64_t first_index, uint64_t term, uint32_t count,
                       size_t payload_size);

/* Reads a header without checks. data has 32 bytes. */
void klk_header_read(const uint8_t *data, struct klk_header *header);

/* Reads the header of a checked block. Returns KLK_OK, or KLK_ECORRUPT when the block was not
 * checked: it is larger than size, or exceeds a limit. */
int klk_block_header(const uint8_t *block, size_t size, struct klk_header *header);

/* Writes a mark (32 bytes) to out. */
void klk_mark_write(uint8_t *out, uint64_t synced_offset, uint64_t epoch);

/* Checks the mark or block at data: magic, limits, checksum, padding, every record. It ignores the
 * bytes after it. Returns its size, KLK_ETORN when it reaches beyond size, or KLK_ECORRUPT. header
 * is filled on success. */
ssize_t klk_block_check(const uint8_t *data, size_t size, struct klk_header *header);

/* Writes count records as one block.
 *
 *   tags     kind and KLK_TAG_REQID of each record
 *   sizes    bytes of data of each record
 *   reqids   the ids of the tagged records, joined
 *   data     the data of all records, joined
 *
 * Returns the block's size, KLK_EINVAL on a wrong limit or sum, KLK_ESPACE above capacity. */
ssize_t klk_block_encode(uint64_t first_index, uint64_t term, uint32_t count, const uint8_t *tags,
                         const uint32_t *sizes, const uint8_t *reqids, size_t reqids_size,
                         const uint8_t *data, size_t data_size, uint8_t *out, size_t capacity);

/* Lists the records of a checked block: out gets 3 numbers each (tag, offset of the data in the
 * block, size of the data) and has room for 3 * count. Returns KLK_OK or KLK_ECORRUPT. */
int klk_block_walk(const uint8_t *block, size_t size, uint32_t *out);

/* Copies records first_index to last_index of a checked block into a new block. out has room for
 * size bytes. Returns the new block's size, or KLK_EINVAL when the range is not in the block. */
ssize_t klk_block_slice(const uint8_t *block, size_t size, uint64_t first_index,
                        uint64_t last_index, uint8_t *out);

/* Copies the data of all records of this kind: each as u32 little endian size and data, joined.
 * counts has KLK_KIND_MAX + 1 elements and gets the number of records of each kind. out has room
 * for 2 * size bytes. Returns the bytes written, or KLK_ECORRUPT. */
ssize_t klk_block_states(const uint8_t *block, size_t size, uint8_t kind, uint8_t *out,
                         uint32_t *counts);

/* Makes one block of the first run of equal terms among count entries in the specification's form
 * (sizes, joined data), within a block's limits. out has room for klk_block_size(data_size). used
 * gets the number of entries in the block. Returns the block's size, or KLK_ECORRUPT: an entry
 * without data, over the limit, of an unknown kind (above 127) or of term 0. */
ssize_t klk_block_from_entries(uint64_t first_index, const uint8_t *data, size_t data_size,
                               const uint32_t *sizes, uint32_t count, uint8_t *out,
                               uint32_t *used);

/* ---- segment.c: files of the log (docs/reference/disk-format.md) ---- */

/* An open file of fixed size, allocated and written. The caller owns and closes fd. */
struct klk_segment {
    uint64_t size;
    int fd;
};

/* The state of klk_segment_scan(). */
struct klk_scan {
    uint64_t offset;     /* in: where to continue; out: the end of the sound part */
    uint64_t next_index; /* in, out: the first index of the next block */
    uint64_t term;       /* in, out: the term of the entry before it */
    uint64_t synced;     /* in, out: the largest synced offset of a mark */
    uint64_t epoch;      /* in, out: the epoch of the last mark */
    uint32_t runs;       /* out: runs of equal terms that were written */
    int order;           /* out: 1 when a sound block or mark does not follow the one before */
};

/* A checked block within a buffer. */
struct klk_block_info {
    uint64_t offset; /* in the buffer */
    uint64_t first_index;
    uint64_t term;
    uint32_t size;
    uint32_t count;
};

/* Writes count parts one after the other at offset. klk_segment_sync() makes them durable.
 * Returns KLK_ESPACE when they reach beyond the segment's size, KLK_EOS when the system refused:
 * then some of the bytes may be written. */
int klk_segment_write(const struct klk_segment *segment, uint64_t offset,
                      const uint8_t *const *parts, const size_t *sizes, size_t count);

/* Makes written bytes durable by fdatasync. KLK_EOS: the contents of the disk are unknown, even if
 * a later sync succeeds. */
int klk_segment_sync(const struct klk_segment *segment);

/* Writes size zeros at offset and starts their writeback. KLK_EOS. */
int klk_segment_zero(int fd, uint64_t offset, uint64_t size);

/* Gives blocks back to the file system; they read as zeros. KLK_EOS: nothing has changed. */
int klk_segment_free(int fd, uint64_t offset, uint64_t size);

/* Starts the writeback of written bytes, where the system can, so that a later sync is short. It
 * makes nothing durable. KLK_EOS: the system refused. */
int klk_segment_write_back(int fd, uint64_t offset, uint64_t size);

/* Checks marks and blocks from scan->offset on. runs gets (first index, term) of each run of equal
 * terms that starts here; capacity counts runs.
 * Returns KLK_OK when only zeros are left, KLK_ESPACE when runs is full (read them and call again),
 * KLK_ETORN when the data ends within a block, KLK_ECORRUPT for anything else at scan->offset
 * (scan->order says whether it is sound, but does not follow). */
int klk_segment_scan(const uint8_t *data, size_t size, struct klk_scan *scan, uint64_t *runs,
                     uint32_t capacity);

/* Decides whether the bytes that klk_segment_scan() refused at offset are an unfinished write.
 * Returns KLK_ETORN if they are: then nothing from offset on was synced. Returns KLK_ECORRUPT when
 * a later mark says that they were synced, when one flipped bit explains the fault, or when no
 * sector is missing. */
int klk_segment_judge(const uint8_t *data, size_t size, uint64_t offset);

/* Finds the block that holds index. It reads headers only.
 *
 *   offset   in: the start of a block or mark; out: the start of the block, or the end of the walk
 *
 * Returns 1 when found; 0 when the data ends, at bytes that are no header, or when index is before
 * the first block. */
int klk_segment_find(const uint8_t *data, size_t size, uint64_t index, uint64_t *offset);

/* Lists the sound blocks at the start of data. places gets at most capacity blocks; used gets the
 * bytes checked, marks included. Returns the number of blocks. It stops without an error at the end
 * of the data or at the first fault. */
ssize_t klk_segment_blocks(const uint8_t *data, size_t size, struct klk_block_info *places,
                           uint32_t capacity, uint64_t *used);

/* The number of zero bytes at the start of data. */
size_t klk_zeros(const uint8_t *data, size_t size);

/* ---- syncer.c: a thread that syncs and fills segments in the background ---- */

enum klk_syncer_limit {
    KLK_SYNCS_MAX = 16,             /* started and not ended */
    KLK_FILL_PIECE_BYTES = 1 << 18, /* between two syncs of a fill */
};

/* A thread and two pipes to it. One thread, the owner, makes all calls. A forked process must not
 * call these functions: it has the pipes, but not the thread. */
struct klk_syncer {
    uint64_t thread;  /* a pthread_t */
    uint32_t running; /* syncs started and not ended */
    int orders[2];
    int answers[2];   /* poll the first: readable when a sync has ended; never read it */
    int pace;         /* of fills: 0 with rests, 1 without, 2 it ends at once */
    struct klk_latency latency; /* of the syncs whose end was reported */
};

/* Starts the thread, which blocks all signals. KLK_EOS: the system gave no pipe or thread. */
int klk_syncer_open(struct klk_syncer *syncer);

/* Queues a klk_segment_sync() in the thread. Do not use the segment until klk_syncer_poll() has
 * reported the end. KLK_EINVAL: too many; KLK_EOS. */
int klk_syncer_start(struct klk_syncer *syncer, struct klk_segment *segment);

/* Queues zeros from offset `from` up to `to`. They are written and synced in pieces, with rests
 * between: one long sync would hold up those of other files. As klk_syncer_start(). */
int klk_syncer_fill(struct klk_syncer *syncer, struct klk_segment *segment, uint64_t from,
                    uint64_t to);

/* Reports the end of the sync or fill that was started first.
 *
 *   wait   1: block until it has ended; a fill takes no rests then
 *
 * Returns KLK_OK, KLK_MORE when it still runs, KLK_EINVAL when none runs, KLK_EOS when a sync has
 * failed with errno, KLK_ESPACE when zeros could not be written: with errno, and it may be filled
 * again. */
int klk_syncer_poll(struct klk_syncer *syncer, int wait);

/* Waits for running syncs, ends fills, drops their results, ends the thread and closes the
 * pipes. */
int klk_syncer_close(struct klk_syncer *syncer);

/* ---- sockets.c: whole messages in and out of pyzmq's own sockets ---- */

/* Whole messages in one buffer, received or to be sent. Frame f is bytes[offsets[f]] up to
 * bytes[offsets[f + 1]]; message m has the frames firsts[m] up to firsts[m + 1]. A growing
 * message follows the last whole one: its frames are counted, the message is not. */
struct klk_keys;

struct klk_messages {
    uint8_t *bytes;
    uint32_t *offsets;   /* frames_max + 1; the first is 0 */
    uint32_t *firsts;    /* frames_max + 1; the first is 0 */
    uint32_t *slots;     /* of the senders' keys, by message; NULL: keys are not asked for */
    uint8_t *bundles;    /* by message: it came or may leave in a bundle (bundles.h), or NULL */
    const struct klk_keys *keys; /* by slot, or NULL */
    struct klk_messages *senders; /* addresses of some messages' connections, a frame each; slots:
                                   * the messages' numbers. NULL: they are not asked for */
    uint32_t bytes_max, frames_max, frames, messages;
};

/* One receiving socket. */
struct klk_drain {
    struct klk_messages *arena;
    uint64_t message[8];         /* libzmq's zmq_msg_t, 64 bytes aligned to 8 */
    uint32_t message_bytes_max;  /* of all frames; a message over either limit is dropped */
    uint32_t message_frames_max;
    uint32_t bytes_need, frames_need; /* out, on KLK_ESPACE: what this message needs */
    int32_t held;                /* message holds a frame for which arena had no room */
    int32_t discarding;          /* the rest of a message over a limit is still to come */
    int32_t addressed;           /* put a frame with the address behind the first frame */
    uint64_t dropped;            /* messages over a limit */
    struct klk_keys *keys;       /* guard.h; of an endpoint with CURVE, whose arena has slots */
    const struct klk_guard *guard; /* NULL: each allowed key may send all messages */
    const struct klk_guard *audit; /* of commands whose addresses arena->senders has, or NULL */
    struct klk_messages *denied; /* the first frames of refused messages; long frames are empty */
    uint64_t denied_lost;        /* for which denied had no room */
    struct klk_connections *connections; /* connections.h; NULL: frames are not counted */
    uint32_t frame_bytes;        /* that the encryption adds to each frame */
    int32_t routed;              /* messages begin with a routing id */
    int32_t within;              /* the next frame is not the first of a message */
    uint32_t bundles;              /* which frame may be a bundle, from 1 on; 0: none is opened */
    uint32_t opened, bundles_opened; /* octets of the held bundle in the arena; bundles so far */
    int32_t fd;                  /* of the connection of the message, or -1 */
};

enum klk_sockets {
    KLK_MORE = 1,   /* not the end: call again */
    KLK_DROP = 0,   /* klk_send: drop and count a message that would block */
    KLK_KEEP = 1,   /* klk_send: stop at it and return the position */
    KLK_BUNDLED = 2  /* klk_send: added to these, in bundles (bundles.h); dropped counts messages */
};

/* Binds to the libzmq that is already loaded in this process as, or linked into, the shared object
 * at path (NULL: the program itself). Never loads one: a second copy could not share its sockets.
 *
 *   version   out: major * 10000 + minor * 100 + patch, of the library found
 *
 * Returns KLK_OK, or KLK_EOS when the object is not loaded or lacks a symbol. */
int klk_sockets_bind(const char *path, int *version);

/* Initialises drain->message, and releases what it holds. Call close once for each open. */
int klk_drain_open(struct klk_drain *drain);
void klk_drain_close(struct klk_drain *drain);

/* Receives what waits on the socket, without blocking, whole messages only.
 *
 *   fresh   1: remove the whole messages of the last call, move a growing one to the front;
 *           0: continue behind them (after KLK_ESPACE and a larger arena)
 *
 * Returns KLK_OK when nothing more waits; KLK_MORE when messages may wait (no room, interrupted,
 * many frames dropped); KLK_ESPACE when the arena is empty and too small for the next message:
 * enlarge it to bytes_need and frames_need and continue; KLK_EOS with errno. */
int klk_drain_receive(struct klk_drain *drain, void *socket, int fresh);

/* Sends the messages from *position on, without blocking.
 *
 *   skip       leading frames of each that are not sent; a message without others is dropped
 *   mode       KLK_DROP or KLK_KEEP, on EAGAIN; EHOSTUNREACH always drops
 *   position   in, out: the first message that has not been sent or dropped
 *   dropped    out, added to: messages dropped
 *
 * Returns KLK_OK when all were sent or dropped, KLK_MORE when KLK_KEEP stopped, KLK_EOS on other
 * errors. */
int klk_send(void *socket, const struct klk_messages *out, uint32_t skip, int mode,
             uint32_t *position, uint32_t *dropped);

/* The first frames of all messages, joined into out, which has room for size bytes of each.
 * Returns KLK_OK, or KLK_EINVAL when one of them has another size. */
int klk_messages_heads(const struct klk_messages *messages, uint32_t size, uint8_t *out);

/* Writes size bytes of data over each message's first frame, offset bytes behind its beginning.
 * Returns KLK_OK, or KLK_EINVAL when a first frame ends before that: nothing was written. */
int klk_messages_stamp(struct klk_messages *messages, uint32_t offset, const uint8_t *data,
                       uint32_t size);

/* ---- entries.c: a block's records as frames of a message ---- */

/* The state of a message of entries. */
struct klk_entries {
    uint64_t index;      /* in, out: the next entry */
    uint64_t last_index; /* the last entry of the message */
    uint64_t bytes;      /* in, out: bytes of entries in the message, 0 at first */
    uint64_t bytes_max;  /* the first entry of a message may exceed it */
    uint32_t count;      /* in, out: entries in the message, 0 at first */
    uint32_t count_max;
};

/* Adds the records of a checked block, from entries->index on, to the growing message at the end of
 * out: one frame each, in the specification's form: 12 bytes reqid, zeros if there is none | 1
 * kind | 7 term, little endian | data. With out NULL it only counts.
 *
 * Returns KLK_OK at the end of the block or after last_index, KLK_MORE when the next entry exceeds
 * the message's limits, KLK_EFULL when out must grow (then call again), KLK_EINVAL when the index
 * is not in the block, KLK_ECORRUPT. */
int klk_entries_add(struct klk_entries *entries, const uint8_t *block, size_t size,
                    struct klk_messages *out);

/* ---- sockets.c: waiting for many sockets ---- */

enum klk_poll_event { KLK_POLL_IN = 1, KLK_POLL_OUT = 2 }; /* ZMQ_POLLIN, ZMQ_POLLOUT */

/* A socket or a file descriptor to wait for. A socket's own descriptor shows only that something
 * has happened since the last query. Set check after a send, and a receive that left messages. */
struct klk_poll_item {
    void *socket;   /* libzmq's; NULL: fd is an ordinary descriptor */
    int fd;         /* of a socket: its ZMQ_FD */
    int16_t wanted; /* klk_poll_event; 0: leave it out */
    int16_t ready;  /* out */
    uint8_t check;  /* query the socket before waiting */
    uint8_t drained; /* its reader receives until nothing is left: no query */
    uint8_t lazy;    /* what arrives may wait for KLK_LAZY_MS, or another event; for reading only */
};

enum klk_poll_time { KLK_LAZY_MS = 2 };

struct pollfd;

struct klk_poll {
    struct klk_poll_item *items;
    struct pollfd *fds; /* room for count of them: 8 bytes each */
    struct klk_connections *connections; /* of the process, whose thread learns that we wait, or
                                          * NULL */
    uint32_t count, last; /* last: out, the last item that is ready */
    int64_t checked_ms; /* when all sockets were last queried */
};

/* Waits for a wanted event, timeout_ms or a signal; sets ready.
 * Returns the number of ready items, KLK_EINVAL without libzmq, or KLK_EOS. */
int klk_poll_wait(struct klk_poll *poll_state, int64_t timeout_ms);

/* ---- reqids.c: known request ids, each with the index of its entry ---- */

enum klk_reqid_limit {
    KLK_REQID_SHARDS = 256,
    KLK_REQID_SECONDS = 65536, /* between the oldest and the newest id: 18 hours */
    KLK_REQID_NEED_MAX = 65535 /* ids of one shard in one pack, or block */
};

/* 16 bytes per id. A free slot is all zeros: the table stores no id of zero bytes (of a checkpoint
 * entry). */
struct klk_reqid_slot {
    uint8_t reqid[12];
    uint32_t index; /* the low 32 bits: all stored indexes are within 2^32 of last_index */
};

/* Open addressing; full at seven tenths. */
struct klk_reqid_shard {
    struct klk_reqid_slot *slots;
    uint32_t size;
    uint32_t count; /* used slots; those of forgotten ids become free when the shard moves */
};

struct klk_reqids {
    struct klk_reqid_shard shards[256];
    uint16_t need[256];   /* out, on KLK_EGROW: how many more ids each shard needs */
    uint32_t *seconds;    /* a ring of KLK_REQID_SECONDS numbers: the ids of each second */
    uint64_t seeds[2];    /* secret, so that clients can't choose colliding ids */
    uint64_t count;       /* ids that are not forgotten */
    uint64_t last_index;  /* the largest index of any id */
    uint32_t newest_s;    /* the largest time of any id */
    uint32_t forgotten_s; /* ids of this second and before are forgotten */
};

/* A shard that is too small for its `need`, or -1. */
int klk_reqids_crowded(const struct klk_reqids *reqids);

/* Ids of a shard that are not forgotten. */
uint32_t klk_reqids_live(const struct klk_reqids *reqids, int shard);

/* Moves the ids of a shard that are not forgotten to size uninitialised slots: a multiple of 8, and
 * more than its live ids. Align them to 64 bytes for speed. The caller may free the old slots.
 * Returns KLK_OK or KLK_EINVAL. */
int klk_reqids_move(struct klk_reqids *reqids, int shard, struct klk_reqid_slot *slots,
                    uint32_t size);

/* The index of an id, or 0. */
uint64_t klk_reqids_find(const struct klk_reqids *reqids, const uint8_t *reqid);

/* Asks for room in the shard of an id. Returns KLK_OK if there is enough, or KLK_EGROW. */
int klk_reqids_want(struct klk_reqids *reqids, uint64_t hash);

/* Stores an id in its free slot. The shard must have room, and the id's time not be forgotten. */
void klk_reqids_keep(struct klk_reqids *reqids, struct klk_reqid_slot *slot, const uint8_t *reqid,
                     uint64_t hash, uint64_t index);

/* Stores the ids of a checked block. A known id keeps its smaller index.
 *
 *   offset, index   in, out: where to continue; at first KLK_HEADER_SIZE and the first index
 *   newest_s        in, out: the largest time of any id so far
 *
 * Returns KLK_OK, KLK_ECORRUPT, or KLK_EGROW: make room in the crowded shards and call again. */
int klk_reqids_add(struct klk_reqids *reqids, const uint8_t *block, size_t size, size_t *offset,
                   uint64_t *index, uint32_t *newest_s);

/* Removes the ids of entries after last_index, which are no longer in the log. */
void klk_reqids_truncate(struct klk_reqids *reqids, uint64_t last_index);

/* Forgets the ids of this second and before, for good. */
void klk_reqids_forget(struct klk_reqids *reqids, uint32_t seconds);

/* Forgets whole seconds, oldest first, until at most count_max ids are left. */
void klk_reqids_bound(struct klk_reqids *reqids, uint64_t count_max);

/* Writes the ids of entries up to last_index to out, ordered by index. The index field of each slot
 * holds last_index - index, little endian (docs/reference/disk-format.md, "Request ids").
 *
 *   room   slots of out: the table's count is always enough
 *
 * Returns the number of ids, or KLK_ESPACE. */
int64_t klk_reqids_export(const struct klk_reqids *reqids, uint64_t last_index,
                          struct klk_reqid_slot *out, uint64_t room);

/* Stores ids as klk_reqids_export() writes them, in any number of pieces.
 *
 *   reqids       its forgotten_s and newest_s are already those of the exported table
 *   data, size   whole slots
 *   offset       in, out: where to continue in data; 0 at first
 *   index        in, out: the index of the last stored id; 0 at first
 *
 * Returns KLK_OK, KLK_EINVAL, KLK_ECORRUPT (an id that is forgotten, newer than newest_s or known,
 * or an index out of order), or KLK_EGROW: make room in the crowded shards and call again. */
int klk_reqids_import(struct klk_reqids *reqids, uint64_t last_index, const uint8_t *data,
                      size_t size, size_t *offset, uint64_t *index);

/* ---- updates.c: updates at the leader ---- */

enum klk_updates_limit {
    KLK_PACK_BYTES_MAX = 1 << 20, /* of records; a single one may be larger */
    KLK_PACK_COUNT_MAX = 4096,
    KLK_PACK_SENDERS = 16384,     /* routing ids with the same hash share a bit */
    KLK_INTAKE_BYTES = 1 << 20,   /* of records in one block; a single one may be larger */
    KLK_REQID_AHEAD_S = 900,
    KLK_REMIND_MS = 100
};

enum klk_updates_counter {
    KLK_UPDATES_TAKEN,
    KLK_UPDATES_REPEATED, /* known: answered with their index, or waiting for it */
    KLK_UPDATES_REFUSED,  /* for good: empty, over a limit, expired, too early */
    KLK_UPDATES_DROPPED,  /* messages without an answer: malformed, or of another cluster */
    KLK_UPDATES_OVER,     /* messages without an answer: over the limits in flight */
    KLK_UPDATES_GAPS,     /* packs whose previous update is unknown */
    KLK_UPDATES_ASTRAY,   /* messages refused because this peer is not the leader */
    KLK_UPDATES_COUNTERS
};

/* The state of the peer during klk_updates_receive(). */
struct klk_updates_view {
    const uint8_t *refusal; /* msgpack of the leader's PEER ID or of nil, for refused clients */
    uint32_t refusal_size;
    int32_t leader;
    uint64_t next_index;    /* the log's last index + 1; updates in `blocks` follow it */
    uint64_t commit_index;
    uint64_t now_ms;
    uint32_t unix_s;
    uint32_t marked;        /* enum klk_updates_marked */
    uint32_t kind;          /* of the records that are written */
};

/* How to treat updates whose data start with the mark of packed operations. */
enum klk_updates_marked {
    KLK_MARKED_ACCEPTED = 0, /* like other data */
    KLK_MARKED_REFUSED = 1,  /* from clients, once table entries have a kind of their own */
    KLK_MARKED_ALONE = 2,    /* from table servers: accept them in packs, and no other data */
};

/* Requests that wait for an answer, in the order of arrival. */
struct klk_waiters {
    uint64_t *ring;
    size_t ring_max;     /* bytes, a power of two */
    uint64_t head, tail; /* bytes, never wrapped */
    uint64_t waiting;
    uint64_t remind_ms;  /* no reminder is due before */
};

struct klk_updates {
    struct klk_reqids *reqids;
    const uint8_t *ident;
    uint32_t ident_size;
    uint32_t record_bytes_max;
    uint32_t ttl_s;
    uint32_t position;       /* the next message of the arena; 0 between arenas */
    uint64_t inflight_max;   /* updates that wait for a commit, and their bytes */
    uint64_t inflight_bytes_max;
    uint64_t inflight, inflight_bytes;
    struct klk_loads *loads; /* shares.h; NULL: a client may have all of it */
    /* Accepted updates, as blocks without headers. */
    uint8_t *blocks;
    size_t blocks_max;
    size_t blocks_need;      /* out, on KLK_ESPACE */
    size_t first;            /* the first block */
    size_t open;             /* the last block, which grows */
    size_t used;
    uint32_t open_count;     /* its records */
    uint64_t first_index;    /* of the first update in blocks */
    uint64_t records;        /* updates in blocks */
    struct klk_waiters waiters;
    uint64_t counters[8];    /* enum klk_updates_counter */
    uint8_t runs[49152];     /* of the current pack: 12 * KLK_PACK_COUNT_MAX */
    /* Bits: a pack of this sender was not taken. Until one comes that is behind none, all others
     * are behind a gap, even if the id before them is known, of an earlier try. */
    uint8_t untaken[2048];
};

/* Handles the messages of an arena, from updates->position on (docs/protocols/zmq-raft.md).
 *
 *   others         out: the numbers of messages that are not updates; room for all messages
 *   others_count   in, out: 0 at first
 *
 * Returns KLK_OK; KLK_EGROW when shards of the table are crowded; KLK_ESPACE when `blocks` is
 * smaller than blocks_need; KLK_EFULL when out must grow: make room and call again. KLK_EINVAL when
 * next_index is not that of the first update in `blocks`. */
int klk_updates_receive(struct klk_updates *updates, const struct klk_messages *arena,
                        const struct klk_updates_view *view, struct klk_messages *out,
                        uint32_t *others, uint32_t *others_count);

/* Seals the next block of accepted updates. It is valid until the next call.
 * Returns its size, 0 without a block, KLK_EINVAL when first_index does not follow. */
ssize_t klk_updates_block(struct klk_updates *updates, uint64_t first_index, uint64_t term,
                          const uint8_t **block, uint32_t *count);

/* Answers the requests for entries up to index. Returns KLK_OK, or KLK_EFULL: out must grow. */
int klk_updates_commit(struct klk_updates *updates, uint64_t index, struct klk_messages *out);

/* Sends "accepted" to requests that wait for KLK_REMIND_MS, and again after each such time.
 * Returns KLK_OK, or KLK_EFULL: out must grow. */
int klk_updates_remind(struct klk_updates *updates, uint64_t now_ms, struct klk_messages *out);

/* Refuses all waiting requests, naming the leader in refusal, and drops the updates in `blocks`.
 * Returns KLK_OK, or KLK_EFULL: out must grow. */
int klk_updates_refuse(struct klk_updates *updates, const uint8_t *refusal, uint32_t refusal_size,
                       struct klk_messages *out);

/* ---- reads.c: linearizable reads at the leader ---- */

enum klk_reads_limit { KLK_READ_ID_MAX = 12 };

/* The event that a read waits for. */
enum klk_reads_wait {
    KLK_READS_APPLIED = 0,   /* the leader has applied the index */
    KLK_READS_CONFIRMED = 1, /* the index is confirmed */
    KLK_READS_WAITS = 2
};

enum klk_reads_counter {
    KLK_READS_RECEIVED,
    KLK_READS_DROPPED, /* without an answer: malformed, or of another cluster */
    KLK_READS_OVER,    /* without an answer: the queue is full */
    KLK_READS_ASTRAY,  /* refused because this peer is not the leader */
    KLK_READS_COUNTERS
};

/* The state of the peer during klk_reads_receive(). */
struct klk_reads_view {
    const uint8_t *refusal; /* msgpack of the leader's PEER ID or of nil, for refused clients */
    uint32_t refusal_size;
    int32_t leader;
    uint64_t round; /* the round that will confirm these reads; never goes back */
    uint64_t now_ms;
};

struct klk_reads {
    const uint8_t *ident;
    uint32_t ident_size;
    uint32_t position;   /* where klk_reads_receive() continues; 0 between arenas */
    uint32_t others;
    struct klk_waiters readers[2]; /* enum klk_reads_wait */
    uint64_t counters[4];          /* enum klk_reads_counter */
};

/* Handles the reads among some messages of an arena.
 *
 *   numbers   in: the messages to examine; out: those that are not reads
 *   count     in, out: the size of numbers
 *
 * Returns KLK_OK; KLK_EFULL when out must grow: make room and call again with the same arguments;
 * KLK_EINVAL when the arena has no such message. */
int klk_reads_receive(struct klk_reads *reads, const struct klk_messages *arena,
                      const struct klk_reads_view *view, struct klk_messages *out,
                      uint32_t *numbers, uint32_t *count);

/* Answers the reads of one queue (enum klk_reads_wait) up to this round with index.
 * Returns KLK_OK, or KLK_EFULL: out must grow. */
int klk_reads_answer(struct klk_reads *reads, int wait, uint64_t round, uint64_t index,
                     struct klk_messages *out);

/* Sends "accepted" to reads that wait for KLK_REMIND_MS, and again after each such time.
 * Returns KLK_OK, or KLK_EFULL: out must grow. */
int klk_reads_remind(struct klk_reads *reads, uint64_t now_ms, struct klk_messages *out);

/* Refuses all waiting reads, naming the leader in refusal. Returns KLK_OK; KLK_EFULL: grow out. */
int klk_reads_refuse(struct klk_reads *reads, const uint8_t *refusal, uint32_t refusal_size,
                     struct klk_messages *out);

/* ---- ops.c: packed operations of tables (docs/protocols/zerodb.md, "Entries") ---- */

enum klk_ops_limit {
    KLK_KEY_BYTES_MAX = 64 << 10,
    KLK_VALUE_BYTES_MAX = 64 << 20,
    KLK_FORMAT_ITEM_MAX = 9, /* characters of one size in a format: "67108864s" */
    KLK_FORMAT_FRAME_MAX = 11 /* the same of any size of 32 bits */
};

/* Whether sizes (count of u32 little endian) are those of keys (columns 1), or of keys and values
 * in turns (2): KLK_OK, or KLK_ECORRUPT on an empty key or one over a limit. */
int klk_sizes_check(const uint8_t *sizes, uint64_t count, int columns);

/* Writes the format by which Python's struct module cuts keys, or keys and values, that lie one
 * behind the other: "<16s100s16s100s". It makes the objects several times faster than slices do.
 *
 *   data, size     count * columns sizes (u32 little endian), then the bytes, and perhaps more
 *   columns        1 key, or 2 key and value
 *   out, capacity  1 + KLK_FORMAT_ITEM_MAX for each size is always enough
 *   bytes          out: of all keys and values
 *
 * Returns the characters written; KLK_ETORN when size ends before the sizes, or the bytes, do;
 * KLK_ECORRUPT on an empty key or one over a limit; KLK_ESPACE; KLK_EINVAL on other columns. */
ssize_t klk_sizes_format(const uint8_t *data, size_t size, uint32_t count, int columns, char *out,
                         size_t capacity, uint64_t *bytes);

/* The same of a column: offsets of its items within it, count + 1 of u32 little endian.
 *
 *   size   bytes of the column: each item lies from one offset to the next
 *
 * Returns the characters written; KLK_ECORRUPT unless the offsets begin with 0, never go back, end
 * at size, and no item has more than KLK_VALUE_BYTES_MAX bytes; KLK_ESPACE. */
ssize_t klk_offsets_format(const uint8_t *offsets, uint32_t count, size_t size, char *out,
                           size_t capacity);

/* The same of frames where they lie one behind the other: from one offset to the next, count + 1.
 * out has room for 1 + KLK_FORMAT_FRAME_MAX * count characters. Returns how many are written. */
size_t klk_frames_format(const uint32_t *offsets, uint32_t count, char *out);

/* Adds count frames to the message that grows at the end of out: their sizes, their joined bytes.
 * Returns KLK_OK, KLK_EINVAL when the sizes don't sum up to size, KLK_EFULL: out must grow. */
int klk_messages_add(struct klk_messages *out, const uint32_t *sizes, uint32_t count,
                     const uint8_t *data, size_t size);

/* ---- mapper.c: what goes into a mapper and what comes out of it (docs/guides/mapper.md) ---- */

/* Packs count records: of each u32 key size, u32 value size, key, value.
 *
 *   sizes          key size and value size of each
 *   joined, size   the keys and values, one behind the other
 *
 * Returns what it wrote, size + 8 * count; KLK_EINVAL when size is not the sum of sizes; KLK_ESPACE
 * when capacity is short. */
ssize_t klk_records_pack(const uint32_t *sizes, uint32_t count, const uint8_t *joined, size_t size,
                         uint8_t *out, size_t capacity);

/* Turns a mapper's output (of each record u8 0 put or 1 delete, u32 key size, u32 value size, key,
 * value) into the packed operations of one table, a run of equal kind to each, in its order.
 *
 *   capacity   at least 2 * size
 *   counts     out: puts, deletes, and with KLK_ECORRUPT where the malformed record stands
 *
 * Returns what it wrote; KLK_ECORRUPT for a record that is cut short or of no kind, an empty or
 * over-long key, or a delete with a value; KLK_ESPACE when capacity is short. */
ssize_t klk_output_ops(const uint8_t *output, size_t size, uint32_t table, uint8_t *out,
                       size_t capacity, uint64_t *counts);

#include "columns.h"
#include "runs.h"

#endif
