/* The contract of kelek's C core, read by the compiler and by cffi: declarations only.
 *
 * Functions return 0 (or a count) or a negative KLK_E*; results go through out parameters and stay
 * untouched on error; the caller owns all memory; no global state but the libzmq symbols. */
#ifndef KLK_API_H
#define KLK_API_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum klk_error {
    KLK_OK = 0,
    KLK_EINVAL = -1,   /* an argument breaks the contract */
    KLK_ESPACE = -2,   /* the output does not fit: nothing was written */
    KLK_ECORRUPT = -3, /* a checksum or a length is wrong */
    KLK_ETORN = -4,    /* the data ends early, as a write that never finished would */
    KLK_EOS = -5,      /* the operating system or libzmq refused: see errno */
    KLK_EGROW = -6,    /* a table wants more memory from its owner: call again afterwards */
    KLK_EFULL = -7     /* the outgoing messages want more room: call again afterwards */
};

/* ---- crc32c.c ---- */

enum klk_crc32c_kind { KLK_CRC32C_SLICED = 0, KLK_CRC32C_SSE42 = 1, KLK_CRC32C_ARM = 2 };

/* CRC32C (Castagnoli, RFC 3720 appendix B.4) of size bytes, continued from value (0 at first). */
uint32_t klk_crc32c(uint32_t value, const uint8_t *data, size_t size);

/* The same without the processor's instructions, for the tests and for other processors. */
uint32_t klk_crc32c_sliced(uint32_t value, const uint8_t *data, size_t size);

/* Which of enum klk_crc32c_kind klk_crc32c() uses on this processor. */
int klk_crc32c_kind(void);

/* ---- frame.c: records and blocks (docs/disk-format.md) ---- */

enum klk_frame_limit {
    KLK_REQID_SIZE = 12,
    KLK_KIND_MAX = 127,
    KLK_TAG_REQID = 0x80,          /* in a tag: 12 bytes of reqid follow */
    KLK_RECORD_BYTES_MAX = 10 << 20, /* of data in a record that a client of the log may append */
    KLK_LONE_BYTES_MAX = 64 << 20, /* of data in a record that is alone in its block */
    KLK_RECORD_OVERHEAD_MAX = 17,  /* 4 of varint, 1 of tag, 12 of reqid */
    KLK_HEADER_SIZE = 32,
    KLK_BLOCK_BYTES_MAX = 16 << 20, /* of a block of several records, padding included */
    KLK_BLOCK_COUNT_MAX = 1 << 20, /* of records in one block */
    KLK_ENTRY_PREFIX = 20          /* of an entry on the text's wire: reqid, type, term */
};

enum klk_frame_magic {
    KLK_MAGIC_BLOCK = 0x424b4c4b, /* "KLKB" on disk */
    KLK_MAGIC_MARK = 0x4d4b4c4b   /* "KLKM" on disk */
};

/* One record where it lies; the pointers are into the caller's bytes. */
struct klk_record {
    const uint8_t *reqid; /* 12 bytes, or NULL */
    const uint8_t *data;
    uint32_t data_size;
    uint8_t kind;
};

/* What the 32 bytes before a block's records say. Of a mark: first_index is the offset up to
 * which its segment was synced, term the writer's epoch; count and payload_size are 0. */
struct klk_header {
    uint64_t first_index;
    uint64_t term;
    uint32_t magic;
    uint32_t crc;
    uint32_t count;
    uint32_t payload_size;
};

/* Reads the record at data. Returns the bytes that it takes (at least 2), KLK_ETORN when size ends
 * before it does, KLK_ECORRUPT when its length is not minimal, over the limit or too short. */
ssize_t klk_record_read(const uint8_t *data, size_t size, struct klk_record *record);

/* Bytes that a record takes; data_size up to KLK_LONE_BYTES_MAX. */
size_t klk_record_size(uint32_t data_size, int has_reqid);

/* Writes a record of klk_record_size() bytes to out and returns how many. reqid may be NULL. */
size_t klk_record_write(uint8_t *out, uint8_t kind, const uint8_t *reqid, const uint8_t *data,
                        uint32_t data_size);

/* Bytes of a block with that much payload: header and padding to 8 added. */
size_t klk_block_size(size_t payload_size);

/* Writes header and padding around a payload that stands already at block + 32; the block has room
 * for klk_block_size(payload_size). Returns that, or KLK_EINVAL (first_index, term or count 0 or
 * over their limits, payload_size over the limit). Does not look at the records. */
ssize_t klk_block_seal(uint8_t *block, uint64_t first_index, uint64_t term, uint32_t count,
                       size_t payload_size);

/* Reads a header without judging it. data has 32 bytes. */
void klk_header_read(const uint8_t *data, struct klk_header *header);

/* Writes a mark (32 bytes) to out. */
void klk_mark_write(uint8_t *out, uint64_t synced_offset, uint64_t epoch);

/* Checks that a mark or block stands at data: magic, limits, checksum, padding, every record.
 * Returns its size (the rest of data is not looked at), KLK_ETORN when size ends before it does,
 * KLK_ECORRUPT when anything is wrong. header is filled on success. */
ssize_t klk_block_check(const uint8_t *data, size_t size, struct klk_header *header);

/* Frames count records into one block. tags: kind and KLK_TAG_REQID of each; sizes: bytes of data
 * of each; reqids: those of the tagged ones, joined; data: all of it, joined.
 * Returns the size, KLK_EINVAL on a wrong limit or sum, KLK_ESPACE when capacity is short. */
ssize_t klk_block_encode(uint64_t first_index, uint64_t term, uint32_t count, const uint8_t *tags,
                         const uint32_t *sizes, const uint8_t *reqids, size_t reqids_size,
                         const uint8_t *data, size_t data_size, uint8_t *out, size_t capacity);

/* The records of a checked block: 3 numbers for each into out (tag, offset of the data from the
 * block's start, size of the data). out has room for 3 * count. Returns KLK_OK or KLK_ECORRUPT. */
int klk_block_walk(const uint8_t *block, size_t size, uint32_t *out);

/* Copies the records first..last of a checked block into a block of their own. out has room for
 * size bytes. Returns the new block's size, KLK_EINVAL when the range is not within the block. */
ssize_t klk_block_slice(const uint8_t *block, size_t size, uint64_t first_index,
                        uint64_t last_index, uint8_t *out);

/* What the records with this kind hold, each as u32 little endian size and data, joined. counts has
 * KLK_KIND_MAX + 1 places and gets the number of records of every kind in the block.
 * out has room for klk_block_states_size(). Returns the bytes written, or KLK_ECORRUPT. */
ssize_t klk_block_states(const uint8_t *block, size_t size, uint8_t kind, uint8_t *out,
                         uint32_t *counts);
size_t klk_block_states_size(const uint8_t *block, size_t size);

/* The records first..last of a checked block as entries of the text's wire (12 reqid, zero when
 * there is none | 1 kind | 7 term, little endian | data), joined into out; the size of each into
 * sizes (last - first + 1 places). Returns the bytes written, KLK_EINVAL on a range that is not
 * within the block, KLK_ESPACE when capacity is short (klk_block_entries_size() says what fits). */
ssize_t klk_block_entries(const uint8_t *block, size_t size, uint64_t first_index,
                          uint64_t last_index, uint8_t *out, size_t capacity, uint32_t *sizes);
size_t klk_block_entries_size(const uint8_t *block, size_t size);

/* One block of the longest run of equal terms at the start of count entries of the text's wire
 * (sizes, joined data), within a block's limits. out has room for klk_block_size() of
 * data_size; used gets the number of entries taken. Returns the block's size, KLK_ECORRUPT on an
 * entry without data, over the limit, of an unknown kind (above 127) or of term 0. */
ssize_t klk_block_from_entries(uint64_t first_index, const uint8_t *data, size_t data_size,
                               const uint32_t *sizes, uint32_t count, uint8_t *out,
                               uint32_t *used);

/* ---- segment.c: files of the log (docs/disk-format.md) ---- */

enum klk_segment_io { KLK_IO_PWRITE = 0, KLK_IO_MMAP = 1 };

/* An open file that is written in place. The caller owns and closes fd. */
struct klk_segment {
    uint8_t *map; /* NULL with KLK_IO_PWRITE */
    uint64_t size;
    uint64_t dirty_from; /* written and not yet synced: dirty_from to dirty_to */
    uint64_t dirty_to;
    int fd;
};

/* What a walk over a segment's marks and blocks knows; see klk_segment_scan(). */
struct klk_scan {
    uint64_t offset;     /* in: where to go on; out: the end of what is good */
    uint64_t next_index; /* in and out: the index that the next block must begin with */
    uint64_t term;       /* in and out: the term of the entry before it */
    uint64_t synced;     /* in and out: the largest synced offset that a mark gave */
    uint64_t epoch;      /* in and out: the epoch of the last mark */
    uint32_t runs;       /* out: how many runs of equal terms were written */
    int order;           /* out: 1 when a sound block or mark stands where it must not */
};

/* A checked block within a buffer. */
struct klk_block_info {
    uint64_t offset; /* from the buffer's start */
    uint64_t first_index;
    uint64_t term;
    uint32_t size;
    uint32_t count;
};

/* Opens size bytes of fd, all of them allocated and written before. KLK_EOS: mmap failed. */
int klk_segment_open(struct klk_segment *segment, int fd, uint64_t size, int io);

/* Writes count parts one behind the other at offset. Durable only after klk_segment_sync().
 * Returns KLK_ESPACE when they reach beyond the segment's size, KLK_EOS when the system refused:
 * some of the bytes may then be written. */
int klk_segment_write(struct klk_segment *segment, uint64_t offset, const uint8_t *const *parts,
                      const size_t *sizes, size_t count);

/* Makes what was written durable: fdatasync, or msync of the pages that were touched. KLK_EOS: it
 * is unknown what is on the disk, and no later success says otherwise. */
int klk_segment_sync(struct klk_segment *segment);

/* Ends the mapping; syncs nothing. */
int klk_segment_close(struct klk_segment *segment);

/* Writes size zeros at offset and has the system begin to carry them to the disk. KLK_EOS. */
int klk_segment_zero(int fd, uint64_t offset, uint64_t size);

/* Walks marks and blocks from scan->offset on, checking everything. runs gets (first index, term)
 * of each run of equal terms that begins here; capacity is in runs.
 * Returns KLK_OK when only zeros are left, KLK_ESPACE when runs is full (take them and call again),
 * KLK_ETORN when the data ends within a block, KLK_ECORRUPT when something else stands at
 * scan->offset (scan->order says whether it was sound in itself). */
int klk_segment_scan(const uint8_t *data, size_t size, struct klk_scan *scan, uint64_t *runs,
                     uint32_t capacity);

/* Whether what klk_segment_scan() refused at offset is a write that never finished.
 * Returns KLK_ETORN when it is: then everything from offset on was never synced.
 * Returns KLK_ECORRUPT when a mark behind it says that it was synced, when one flipped bit explains
 * it, or when no sector of it is missing. */
int klk_segment_judge(const uint8_t *data, size_t size, uint64_t offset);

/* Finds the block that holds index, by headers alone. offset: in, where a block or mark begins;
 * out, where the block begins, or how far the walk came. Returns 1 when found, 0 when data ends
 * or what stands there is no header of a block (also when index lies before it). */
int klk_segment_find(const uint8_t *data, size_t size, uint64_t index, uint64_t *offset);

/* Checks marks and blocks from data on. places gets the blocks, at most capacity; used gets the
 * bytes walked, marks included. Returns their number; it stops without an error where the data ends
 * or nothing sound stands. */
ssize_t klk_segment_blocks(const uint8_t *data, size_t size, struct klk_block_info *places,
                           uint32_t capacity, uint64_t *used);

/* The number of zero bytes that data begins with. */
size_t klk_zeros(const uint8_t *data, size_t size);

/* ---- syncer.c: a thread that syncs segments beside its owner ---- */

enum klk_syncer_limit { KLK_SYNCS_MAX = 16 }; /* begun and not ended */

/* One thread and two pipes to talk to it; all calls come from one thread, its owner. A process
 * forked from the owner's must not call anything here: it has the pipes and not the thread. */
struct klk_syncer {
    uint64_t thread;  /* a pthread_t */
    uint32_t running; /* syncs begun and not ended */
    int orders[2];
    int answers[2];   /* the first is readable when a sync has ended: to be watched, never read */
};

/* Starts the thread, which takes no signals. KLK_EOS: no pipe or thread is to be had. */
int klk_syncer_open(struct klk_syncer *syncer);

/* Has the thread call klk_segment_sync(), behind those begun before. Nobody else may touch the
 * segment until klk_syncer_poll() has said that it ended. KLK_EINVAL: too many; KLK_EOS. */
int klk_syncer_start(struct klk_syncer *syncer, struct klk_segment *segment);

/* Takes in the end of the sync that was begun first.
 *
 *   wait   1: blocks until it has ended
 *
 * Returns KLK_OK, KLK_MORE when it still runs, KLK_EINVAL when none does, KLK_EOS when it failed:
 * errno says why, and it has ended all the same. */
int klk_syncer_poll(struct klk_syncer *syncer, int wait);

/* Waits for what runs, ends the thread and closes the pipes; how the syncs ended is lost. */
int klk_syncer_close(struct klk_syncer *syncer);

/* ---- sockets.c: whole messages in and out of pyzmq's own sockets ---- */

/* Whole messages in one buffer, taken in or to be sent. Frame f is bytes[offsets[f]] up to
 * bytes[offsets[f + 1]]; message m has the frames firsts[m] up to firsts[m + 1]. A message that is
 * still growing lies behind the last whole one: its frames are counted, it is not. */
struct klk_messages {
    uint8_t *bytes;
    uint32_t *offsets;   /* frames_max + 1; the first is 0 */
    uint32_t *firsts;    /* frames_max + 1; the first is 0 */
    uint32_t bytes_max;
    uint32_t frames_max;
    uint32_t frames;
    uint32_t messages;
};

/* One receiving socket. */
struct klk_drain {
    struct klk_messages *arena;
    uint64_t message[8];         /* libzmq's zmq_msg_t, 64 bytes aligned to 8 */
    uint32_t message_bytes_max;  /* over all frames; what is beyond either is dropped */
    uint32_t message_frames_max;
    uint32_t bytes_need;         /* out, on KLK_ESPACE: what arena must have for this message */
    uint32_t frames_need;
    int32_t held;                /* message holds a frame that arena had no room for */
    int32_t discarding;          /* the rest of a message over a limit is still to come */
    int32_t addressed;           /* behind a message's first frame put one with its address */
    uint64_t dropped;            /* messages over a limit */
};

enum klk_sockets {
    KLK_MORE = 1,   /* not the end: call again */
    KLK_DROP = 0,   /* klk_send: a message that can't leave now is dropped and counted */
    KLK_KEEP = 1    /* klk_send: stop at it and say where */
};

/* Binds to the libzmq that is already loaded in this process as, or linked into, the shared object
 * at path (NULL: the program itself). Never loads one: a second copy could not share its sockets.
 *
 *   version   out: major * 10000 + minor * 100 + patch, of the library found
 *
 * Returns KLK_OK, or KLK_EOS when the object is not loaded or lacks a symbol. */
int klk_sockets_bind(const char *path, int *version);

/* Makes drain->message usable and gives back what it holds. Call close once for each open. */
int klk_drain_open(struct klk_drain *drain);
void klk_drain_close(struct klk_drain *drain);

/* Receives what waits on the socket, without blocking, whole messages only.
 *
 *   fresh   1: the whole messages of the last call are done with, a growing one moves to the front;
 *           0: go on behind them (after KLK_ESPACE and more room)
 *
 * Returns KLK_OK when nothing more waits; KLK_MORE when something may (no room, interrupted, many
 * frames thrown away); KLK_ESPACE when the arena is empty and too small for the next message: give
 * it bytes_need and frames_need and go on; KLK_EOS when there is nothing to return but errno. */
int klk_drain_receive(struct klk_drain *drain, void *socket, int fresh);

/* Sends the messages from *position on, without blocking.
 *
 *   skip       frames at the start of each that stay here; a message that has no others is dropped
 *   mode       KLK_DROP or KLK_KEEP, on EAGAIN; EHOSTUNREACH always drops
 *   position   in, out: the first message that has not been sent or dropped
 *   dropped    out, added to: messages dropped
 *
 * Returns KLK_OK when all are done with, KLK_MORE when KLK_KEEP stopped, KLK_EOS on other
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

/* A message of entries, and what of it is written. */
struct klk_entries {
    uint64_t index;      /* in, out: the next entry */
    uint64_t last_index; /* no entry behind it is wanted */
    uint64_t bytes;      /* in, out: bytes of entries in the message, 0 at first */
    uint64_t bytes_max;  /* the first entry of a message goes beyond it when it must */
    uint32_t count;      /* in, out: entries in the message, 0 at first */
    uint32_t count_max;
};

/* Adds the records of a checked block, from entries->index on, to the message that grows at the
 * end of out: one frame each, as an entry of the text's wire (klk_block_entries()). With out NULL
 * it only counts.
 *
 * Returns KLK_OK when the block or what is wanted of it has ended, KLK_MORE when the next entry is
 * over the message's limits, KLK_EFULL when out must grow (go on afterwards), KLK_EINVAL when the
 * index is not within the block, KLK_ECORRUPT. */
int klk_entries_add(struct klk_entries *entries, const uint8_t *block, size_t size,
                    struct klk_messages *out);

/* ---- sockets.c: waiting for many sockets ---- */

enum klk_poll_event { KLK_POLL_IN = 1, KLK_POLL_OUT = 2 }; /* ZMQ_POLLIN, ZMQ_POLLOUT */

/* A socket or a file descriptor to wait for. A socket's own descriptor shows only that something
 * has happened since it was last asked: who sends on it, or does not receive until nothing is left,
 * sets check. */
struct klk_poll_item {
    void *socket;   /* of libzmq; NULL: fd is an ordinary one */
    int fd;         /* of a socket: its ZMQ_FD */
    int16_t wanted; /* klk_poll_event; 0: leave it out */
    int16_t ready;  /* out */
    uint8_t check;  /* ask the socket before waiting */
    uint8_t drained; /* whoever is told of it receives until nothing is left: no need to ask */
};

struct pollfd;

struct klk_poll {
    struct klk_poll_item *items;
    struct pollfd *fds; /* room for count of them: 8 bytes each */
    uint32_t count, last; /* last: out, the last item that is ready */
    int64_t checked_ms; /* when all sockets were asked last, whatever they show */
};

/* Waits until a wanted event is there, timeout_ms have passed or a signal comes; sets ready.
 * Returns how many items are ready, KLK_EINVAL without libzmq, or KLK_EOS. */
int klk_poll_wait(struct klk_poll *poll_state, int64_t timeout_ms);

/* ---- reqids.c: request ids seen, each with the index of its entry ---- */

enum klk_reqid_limit {
    KLK_REQID_SHARDS = 256,
    KLK_REQID_SECONDS = 65536, /* between the oldest and the newest id: 18 hours */
    KLK_REQID_NEED_MAX = 65535 /* ids of one shard in one pack, or block */
};

/* 16 bytes an id. All zero is a free slot: an id of zero bytes (a checkpoint's) is never kept. */
struct klk_reqid_slot {
    uint8_t reqid[12];
    uint32_t index; /* its low 32 bits: all that are kept lie within 2^32 of last_index */
};

/* Open addressing; full at seven tenths. */
struct klk_reqid_shard {
    struct klk_reqid_slot *slots;
    uint32_t size;
    uint32_t count; /* slots taken, by forgotten ids too: they go when the shard moves */
};

struct klk_reqids {
    struct klk_reqid_shard shards[256];
    uint16_t need[256];   /* on KLK_EGROW: how many more ids each shard must take */
    uint32_t *seconds;    /* KLK_REQID_SECONDS numbers: the ids of each second, a ring */
    uint64_t seeds[2];    /* secret, so that nobody can choose ids that collide */
    uint64_t count;       /* ids that are not forgotten */
    uint64_t last_index;  /* the largest of any id */
    uint32_t newest_s;    /* the largest time of any id */
    uint32_t forgotten_s; /* ids of this second and before are not kept */
};

/* A shard that lacks the room that `need` asks for, or -1. */
int klk_reqids_crowded(const struct klk_reqids *reqids);

/* Ids of a shard that are not forgotten. */
uint32_t klk_reqids_live(const struct klk_reqids *reqids, int shard);

/* Moves what is not forgotten of a shard to a new place of size slots, uninitialised: a multiple of
 * 8, and more than it has live ids. Best aligned to 64 bytes. The old place is the owner's again.
 * Returns KLK_OK or KLK_EINVAL. */
int klk_reqids_move(struct klk_reqids *reqids, int shard, struct klk_reqid_slot *slots,
                    uint32_t size);

/* The index of an id, or 0. */
uint64_t klk_reqids_find(const struct klk_reqids *reqids, const uint8_t *reqid);

/* Asks for room in the shard of an id, or says that there is enough: KLK_EGROW or KLK_OK. */
int klk_reqids_want(struct klk_reqids *reqids, uint64_t hash);

/* Keeps an id in the free slot that is its own: its shard has room, its time is not forgotten. */
void klk_reqids_keep(struct klk_reqids *reqids, struct klk_reqid_slot *slot, const uint8_t *reqid,
                     uint64_t hash, uint64_t index);

/* Keeps the ids of a checked block. An id that is there keeps its smaller index.
 *
 *   offset, index   in, out: where to go on; KLK_HEADER_SIZE and the block's first index at first
 *   newest_s        in, out: the largest time of any id so far
 *
 * Returns KLK_OK, KLK_ECORRUPT, or KLK_EGROW: make room in the crowded shards and go on. */
int klk_reqids_add(struct klk_reqids *reqids, const uint8_t *block, size_t size, size_t *offset,
                   uint64_t *index, uint32_t *newest_s);

/* Forgets the ids of entries behind last_index: they are no longer in the log. */
void klk_reqids_truncate(struct klk_reqids *reqids, uint64_t last_index);

/* Forgets the ids of this second and before, for good. */
void klk_reqids_forget(struct klk_reqids *reqids, uint32_t seconds);

/* Forgets whole seconds, the oldest first, until at most count_max ids are kept. */
void klk_reqids_bound(struct klk_reqids *reqids, uint64_t count_max);

/* Writes the ids of entries up to last_index to out, in their order: each with last_index - index,
 * little endian, in the place of its index (docs/disk-format.md, "Request ids").
 *
 *   room   of out, in slots: the table's count is always enough
 *
 * Returns how many, or KLK_ESPACE. */
int64_t klk_reqids_export(const struct klk_reqids *reqids, uint64_t last_index,
                          struct klk_reqid_slot *out, uint64_t room);

/* Keeps ids as klk_reqids_export() writes them, in any number of pieces.
 *
 *   reqids       its forgotten_s and newest_s are already those of the exported table
 *   data, size   whole slots
 *   offset       in, out: where to go on in data; 0 at first
 *   index        in, out: of the last id taken; 0 at first
 *
 * Returns KLK_OK, KLK_EINVAL, KLK_ECORRUPT (an id that is forgotten, newer than newest_s or there
 * already, or an index out of order), or KLK_EGROW: make room in the crowded shards and go on. */
int klk_reqids_import(struct klk_reqids *reqids, uint64_t last_index, const uint8_t *data,
                      size_t size, size_t *offset, uint64_t *index);

/* ---- updates.c: the leader's intake ---- */

enum klk_updates_limit {
    KLK_PACK_BYTES_MAX = 1 << 20, /* of records, unless it is a single one */
    KLK_PACK_COUNT_MAX = 4096,
    KLK_INTAKE_BYTES = 1 << 20,   /* of records in one block, unless it is a single one */
    KLK_REQID_AHEAD_S = 900,
    KLK_REMIND_MS = 100
};

enum klk_updates_counter {
    KLK_UPDATES_TAKEN,
    KLK_UPDATES_REPEATED, /* known: answered with their index, or wait for it */
    KLK_UPDATES_REFUSED,  /* for good: empty, over a limit, expired, too early */
    KLK_UPDATES_DROPPED,  /* messages without an answer: malformed, or of a foreign cluster */
    KLK_UPDATES_OVER,     /* messages without an answer: beyond what may be in flight */
    KLK_UPDATES_GAPS,     /* packs whose previous update is unknown */
    KLK_UPDATES_ASTRAY,   /* messages refused because this peer is not the leader */
    KLK_UPDATES_COUNTERS
};

/* What the leader knows at the moment of an intake. */
struct klk_updates_view {
    const uint8_t *refusal; /* msgpack of the leader's id, or of nil, for whoever must go there */
    uint32_t refusal_size;
    int32_t leader;
    uint64_t next_index;    /* the last index of the log + 1; what waits here comes on top */
    uint64_t commit_index;
    uint64_t now_ms;
    uint32_t unix_s;
    uint32_t marked;        /* enum klk_updates_marked */
    uint32_t kind;          /* of the records that are written */
};

/* What becomes of updates whose data begin with the mark of packed operations. */
enum klk_updates_marked {
    KLK_MARKED_ACCEPTED = 0,   /* as all others: the log takes any data */
    KLK_MARKED_REFUSED = 1, /* from clients, once tables know their entries by the kind */
    KLK_MARKED_ALONE = 2,   /* from table servers: in packs, and no other data */
};

struct klk_updates {
    struct klk_reqids *reqids;
    const uint8_t *ident;
    uint32_t ident_size;
    uint32_t record_bytes_max;
    uint32_t ttl_s;
    uint32_t position;       /* the message of the arena that comes next; 0 between arenas */
    uint64_t inflight_max;   /* updates that wait for their commit, and their bytes */
    uint64_t inflight_bytes_max;
    uint64_t inflight;
    uint64_t inflight_bytes;
    /* Updates taken, as blocks that only lack their header. */
    uint8_t *blocks;
    size_t blocks_max;
    size_t blocks_need;      /* out, on KLK_ESPACE */
    size_t first;            /* the first block */
    size_t open;             /* the last block, the one that grows */
    size_t used;
    uint32_t open_count;     /* its records */
    uint64_t first_index;    /* of the first update taken */
    uint64_t records;        /* taken and not handed out */
    /* Who waits for an answer, in the order of arrival. */
    uint64_t *waiters;
    size_t waiters_max;      /* bytes, a power of two */
    uint64_t head, tail;     /* bytes, never wrapped */
    uint64_t waiting;
    uint64_t remind_ms;      /* no reminder is due before */
    uint64_t counters[8];    /* enum klk_updates_counter */
    uint8_t runs[49152];     /* of the pack at hand: 12 * KLK_PACK_COUNT_MAX */
};

/* Takes in the messages of an arena, from updates->position on (docs/protocols/zmq-raft.md).
 *
 *   others         out: numbers of the messages that are not updates; room for all of them
 *   others_count   in, out: 0 at first
 *
 * Returns KLK_OK; KLK_EGROW when shards of the table are crowded; KLK_ESPACE when `blocks` is
 * smaller than blocks_need; KLK_EFULL when out must grow: make room and call again. KLK_EINVAL when
 * next_index is not that of the first update which was taken and not handed out. */
int klk_updates_receive(struct klk_updates *updates, const struct klk_messages *arena,
                     const struct klk_updates_view *view, struct klk_messages *out,
                     uint32_t *others, uint32_t *others_count);

/* Seals the next block of what was taken; it stays in place until the next call.
 * Returns its size, 0 when there is none, KLK_EINVAL when first_index does not follow. */
ssize_t klk_updates_block(struct klk_updates *updates, uint64_t first_index, uint64_t term,
                          const uint8_t **block, uint32_t *count);

/* Answers whoever waits for an index up to this one. Returns KLK_OK, or KLK_EFULL: out must
 * grow. */
int klk_updates_commit(struct klk_updates *updates, uint64_t index, struct klk_messages *out);

/* Tells whoever has waited for KLK_REMIND_MS, and again each as long, that the update is accepted.
 * Returns KLK_OK, or KLK_EFULL: out must grow. */
int klk_updates_remind(struct klk_updates *updates, uint64_t now_ms, struct klk_messages *out);

/* Sends everybody who waits to the leader in refusal, and forgets what was taken but not handed
 * out. Returns KLK_OK, or KLK_EFULL: out must grow. */
int klk_updates_refuse(struct klk_updates *updates, const uint8_t *refusal, uint32_t refusal_size,
                       struct klk_messages *out);

/* ---- reads.c: linearizable reads that wait until the leader is confirmed ---- */

enum klk_reads_limit { KLK_READ_ID_MAX = 12 };

/* What a read waits for. */
enum klk_reads_wait {
    KLK_READS_APPLIED = 0,   /* the leader has applied the index */
    KLK_READS_CONFIRMED = 1, /* the index is confirmed */
    KLK_READS_WAITS = 2
};

enum klk_reads_counter {
    KLK_READS_RECEIVED,
    KLK_READS_DROPPED, /* without an answer: malformed, or of a foreign cluster */
    KLK_READS_OVER,    /* without an answer: no room for one more who waits */
    KLK_READS_ASTRAY,  /* refused because this peer is not the leader */
    KLK_READS_COUNTERS
};

/* What the leader knows at the moment of an intake. */
struct klk_reads_view {
    const uint8_t *refusal; /* msgpack of the leader's id, or of nil, for whoever must go there */
    uint32_t refusal_size;
    int32_t leader;
    uint64_t round; /* confirms what is taken in now; never goes back */
    uint64_t now_ms;
};

/* Who waits, in the order of arrival. */
struct klk_readers {
    uint64_t *ring;
    size_t ring_max;     /* bytes, a power of two */
    uint64_t head, tail; /* bytes, never wrapped */
    uint64_t waiting;
    uint64_t remind_ms;  /* no reminder is due before */
};

struct klk_reads {
    const uint8_t *ident;
    uint32_t ident_size;
    uint32_t position;   /* where an intake goes on; 0 between intakes */
    uint32_t others;
    struct klk_readers readers[2]; /* enum klk_reads_wait */
    uint64_t counters[4];          /* enum klk_reads_counter */
};

/* Takes in the reads among some messages of an arena.
 *
 *   numbers   in: the messages to look at; out: those among them that are no reads
 *   count     in, out: how many
 *
 * Returns KLK_OK; KLK_EFULL when out must grow: make room and call again with the same; KLK_EINVAL
 * when the arena has no such message. */
int klk_reads_receive(struct klk_reads *reads, const struct klk_messages *arena,
                   const struct klk_reads_view *view, struct klk_messages *out, uint32_t *numbers,
                   uint32_t *count);

/* Answers whoever waits so (enum klk_reads_wait) for this round or an earlier one with index.
 * Returns KLK_OK, or KLK_EFULL: out must grow. */
int klk_reads_answer(struct klk_reads *reads, int wait, uint64_t round, uint64_t index,
                     struct klk_messages *out);

/* Tells whoever has waited for KLK_REMIND_MS, and again each as long, that the read is taken.
 * Returns KLK_OK, or KLK_EFULL: out must grow. */
int klk_reads_remind(struct klk_reads *reads, uint64_t now_ms, struct klk_messages *out);

/* Sends everybody who waits to the leader in refusal. Returns KLK_OK, or KLK_EFULL: out must
 * grow. */
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

/* ---- mapper.c: what goes into a mapper and what comes out of it (docs/mapper.md) ---- */

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

/* ---- requests.c: requests of tables in an arena (docs/protocols/zerodb.md) ---- */

enum klk_request_limit { KLK_TTL_S_MAX = 315360000 }; /* ten years */

enum klk_request_shape {
    KLK_REQUEST_OTHER = 0, /* to be decoded one by one: malformed, or of a rare type */
    KLK_REQUEST_READ = 1,  /* of a table; the frames behind its number are not looked at */
    KLK_REQUEST_WRITE = 2  /* well-formed put, delete, delete range or limited delete */
};

/* What the header and the table number of a request say. */
struct klk_request {
    uint32_t message;     /* its number in the arena */
    uint32_t table;
    uint32_t deadline_ms; /* of our extension; 0: none */
    uint32_t entry_size;  /* of a write: bytes of its entry */
    uint8_t type;
    uint8_t flags;        /* of a write */
    uint8_t extension;    /* flags of our extension */
    uint8_t shape;
    uint8_t header;       /* which frame of the message the header is */
    uint8_t extended;     /* it has our extension: the answer echoes reqid */
    uint8_t reqid[12];
    uint8_t spare[2];
};

/* Looks at every message of an arena.
 *
 *   routed            1: a message begins with a routing id, and perhaps the empty frame of a REQ
 *                     socket; 0: with the header
 *   entry_bytes_max   a write whose entry would be larger has the shape OTHER
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

/* Adds [routing id]([empty])[31 01 type 00, echo of our extension] to out, as above, for some
 * requests of a routed arena. */
int klk_requests_acknowledge(const struct klk_messages *arena,
                             const struct klk_request *requests, const uint32_t *positions,
                             uint32_t count, uint32_t *done, struct klk_messages *out);

#include "columns.h"
#include "runs.h"

#endif
