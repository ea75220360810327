/* Transactions of one table: their requests become entries, as requests.operations() and ops.pack()
 * make them (protocols/zerodb/wire). */
#include "bytes.h"
#include "frames.h"
#include "table_mark.h"

enum {
    TRANSACTION = 0x80, /* operations */
    ATTACH = 0x82,
    GET = 0x10,
    DELETE_RANGE = 0x22,
    INCREMENT = 0x28,
    APPEND = 0x29,
    ALIVE = 6, /* kinds of compares; those above it are about versions */
    COUNTS_FRAME = 1,
    FIRST_PART = 2, /* frames: three for each compare and operation */
    COUNTS_BYTES = 12,
    PARTS_MAX = 8192, /* COMPARES_MAX */
    DIGITS_MAX = 1000,
    HEAD_BYTES = 5, /* u8 kind or operation, u32 table */
    SESSION_BYTES = 8
};

/* A compare or an operation of a request. */
struct part {
    const uint8_t *key, *operand;
    uint32_t kind, table, key_size, operand_size;
};

static int part_at(const struct klk_frames *frames, uint32_t number, struct part *part) {
    uint32_t size, first = FIRST_PART + 3 * number;
    const uint8_t *head = klk_frame_at(frames, first, &size);
    if (size != HEAD_BYTES) return 0;
    part->kind = head[0];
    part->table = klk_get_u32(head + 1);
    part->key = klk_frame_at(frames, first + 1, &part->key_size);
    part->operand = klk_frame_at(frames, first + 2, &part->operand_size);
    return 1;
}

static int has_value(uint32_t kind) {
    return kind == KLK_OP_PUT || kind == INCREMENT || kind == APPEND;
}

/* Operations of the same kind that follow each other are one. */
static int is_joined(uint32_t kind) { return kind == INCREMENT || kind == APPEND; }

static int is_number(const uint8_t *data, uint32_t size) {
    uint32_t at = size && data[0] == '-', digits = size - at;
    if (!digits || digits > DIGITS_MAX) return 0;
    for (; at < size; at++)
        if (data[at] < '0' || data[at] > '9') return 0;
    return 1;
}

static int compare_is_valid(const struct part *part) {
    if (part->kind > ALIVE || !klk_is_key(part->key_size)) return 0;
    if (part->operand_size > KLK_VALUE_BYTES_MAX) return 0;
    return part->kind != ALIVE || part->key_size == SESSION_BYTES;
}

static int operation_is_valid(const struct part *part) {
    if (part->kind == DELETE_RANGE)
        return part->key_size <= KLK_KEY_BYTES_MAX && part->operand_size <= KLK_KEY_BYTES_MAX;
    if (!klk_is_key(part->key_size)) return 0;
    if (part->kind == GET || part->kind == KLK_OP_DELETE) return 1;
    if (!has_value(part->kind) || part->operand_size > KLK_VALUE_BYTES_MAX) return 0;
    return part->kind != INCREMENT || is_number(part->operand, part->operand_size);
}

/* ---- packing; out == NULL: only sizes are counted ---- */

struct writer {
    uint8_t *out;
    uint64_t size;
};

static void add(struct writer *writer, const void *data, uint32_t size) {
    if (writer->out) klk_put_bytes(writer->out + writer->size, data, size);
    writer->size += size;
}

static void add_u32(struct writer *writer, uint32_t number) {
    uint8_t data[4];
    klk_put_u32(data, number);
    add(writer, data, sizeof data);
}

static void add_u64(struct writer *writer, uint64_t number) {
    uint8_t data[8];
    klk_put_u64(data, number);
    add(writer, data, sizeof data);
}

static void add_head(struct writer *writer, uint32_t operation, uint32_t table) {
    uint8_t code = (uint8_t)operation;
    add(writer, &code, 1);
    add_u32(writer, table);
}

static void add_compare(struct writer *writer, const struct part *part) {
    add_head(writer, part->kind, part->table);
    add_u32(writer, part->key_size);
    add_u32(writer, part->operand_size);
    add(writer, part->key, part->key_size);
    add(writer, part->operand, part->operand_size);
}

/* The end of the operations that are packed as one, from this one on; end: of the branch. */
static uint32_t joined_end(const struct klk_frames *frames, uint32_t number, uint32_t end,
                           struct part *first) {
    struct part part;
    part_at(frames, number++, first);
    if (!is_joined(first->kind)) return number;
    while (number < end && part_at(frames, number, &part) && part.kind == first->kind) number++;
    return number;
}

static void add_sizes(struct writer *writer, const struct klk_frames *frames, uint32_t number,
                      uint32_t end, int values) {
    struct part part;
    add_u32(writer, end - number);
    for (uint32_t i = number; i < end; i++) {
        part_at(frames, i, &part);
        add_u32(writer, part.key_size);
        if (values) add_u32(writer, part.operand_size);
    }
    for (uint32_t i = number; i < end; i++) {
        part_at(frames, i, &part);
        add(writer, part.key, part.key_size);
        if (values) add(writer, part.operand, part.operand_size);
    }
}

/* Packs a branch: its operations, then those that bind the keys it writes to the session. */
static void add_branch(struct writer *writer, const struct klk_frames *frames, uint32_t number,
                       uint32_t end, uint64_t session) {
    struct part part;
    for (uint32_t i = number, next; i < end; i = next) {
        next = joined_end(frames, i, end, &part);
        add_head(writer, part.kind, part.table);
        if (part.kind != DELETE_RANGE) {
            add_sizes(writer, frames, i, next, has_value(part.kind));
            continue;
        }
        add_u32(writer, part.key_size);
        add_u32(writer, part.operand_size);
        add(writer, part.key, part.key_size);
        add(writer, part.operand, part.operand_size);
    }
    for (uint32_t i = number, next; session && i < end; i = next) {
        next = joined_end(frames, i, end, &part);
        if (!has_value(part.kind)) continue;
        add_head(writer, ATTACH, part.table);
        add_u64(writer, session);
        add_sizes(writer, frames, i, next, 0);
    }
}

static void add_transaction(struct writer *writer, const struct klk_frames *frames,
                            const struct klk_request *request) {
    uint32_t size;
    const uint8_t *counts = klk_frame_at(frames, COUNTS_FRAME, &size);
    uint32_t compares = klk_get_u32(counts), has_session = request->session != 0;
    uint32_t middle = compares + klk_get_u32(counts + 4), end = middle + klk_get_u32(counts + 8);
    add(writer, klk_table_mark, sizeof klk_table_mark);
    add_head(writer, TRANSACTION, request->table);
    add(writer, request->reqid, sizeof request->reqid);
    add_u32(writer, compares + has_session);
    for (int i = 0; i < 2; i++) {
        struct writer counted = {NULL, 0};
        add_branch(&counted, frames, i ? middle : compares, i ? end : middle, request->session);
        add_u32(writer, (uint32_t)counted.size);
    }
    if (has_session) {
        uint8_t session[SESSION_BYTES];
        klk_put_u64(session, request->session);
        struct part alive = {session, (const uint8_t *)"\1", ALIVE, request->table,
                             SESSION_BYTES, 1};
        add_compare(writer, &alive);
    }
    for (uint32_t i = 0; i < compares; i++) {
        struct part part;
        part_at(frames, i, &part);
        add_compare(writer, &part);
    }
    add_branch(writer, frames, compares, middle, request->session);
    add_branch(writer, frames, middle, end, request->session);
}

/* ---- requests ---- */

void klk_transaction_read(const struct klk_frames *frames, uint32_t entry_bytes_max,
                          struct klk_request *request) {
    static const uint8_t none[KLK_REQID_SIZE];
    uint32_t size, parts = 0;
    const uint8_t *counts = klk_frame_at(frames, COUNTS_FRAME, &size);
    if (size != COUNTS_BYTES || !memcmp(request->reqid, none, sizeof none)) return;
    for (int i = 0; i < 3; i++) {
        uint32_t count = klk_get_u32(counts + 4 * i);
        if (count > PARTS_MAX) return;
        parts += count;
    }
    if (!parts || frames->count < FIRST_PART || (frames->count - FIRST_PART) / 3 < parts) return;
    uint32_t compares = klk_get_u32(counts);
    request->has_sessions = request->session != 0;
    for (uint32_t i = 0; i < parts; i++) {
        struct part part;
        if (!part_at(frames, i, &part) || (i && part.table != request->table)) return;
        request->table = part.table;
        if (!(i < compares ? compare_is_valid(&part) : operation_is_valid(&part))) return;
        request->has_sessions |= i < compares && part.kind == ALIVE;
    }
    struct writer counted = {NULL, 0};
    add_transaction(&counted, frames, request);
    if (counted.size > entry_bytes_max) return;
    request->entry_size = (uint32_t)counted.size;
    request->shape = KLK_REQUEST_TRANSACTION;
}

void klk_transaction_pack(const struct klk_messages *arena, const struct klk_request *request,
                          uint8_t *out) {
    struct klk_frames frames = klk_frames_of(arena, request);
    struct writer writer = {out, 0};
    add_transaction(&writer, &frames, request);
}

uint32_t klk_transaction_sessions(const struct klk_messages *arena,
                                  const struct klk_request *request, uint64_t *out, uint32_t max) {
    struct klk_frames frames = klk_frames_of(arena, request);
    uint32_t size, found = 0;
    uint32_t compares = klk_get_u32(klk_frame_at(&frames, COUNTS_FRAME, &size));
    if (request->session && max) out[found++] = request->session;
    for (uint32_t i = 0; i < compares; i++) {
        struct part part;
        part_at(&frames, i, &part);
        if (part.kind != ALIVE) continue;
        if (found == max) return max + 1;
        out[found++] = klk_get_u64(part.key);
    }
    return found;
}
