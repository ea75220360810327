/* Requests of tables, checked, packed, forwarded and acknowledged without objects. */
#include "bytes.h"
#include "frames.h"
#include "gets.h"
#include "messages.h"
#include "table_mark.h"

enum {
    READ = 0x10,
    TABLE_READ_LAST = 0x16,
    DELETE_RANGE = 0x22,
    DELETE_LIMITED = 0x23,
    STALE = 0x01,
    PACKED = KLK_READ_PACKED,
    WITH_INDEX = 0x40,
    HEAD_BYTES = 24,
    REQID_OFFSET = 9, /* within the extension */
    TTL_OFFSET = 25,
    LEASE_OFFSET = 33,
    EXTENSION_BYTES = 41,
    PIPED = 2, /* which frame the header is, behind a head and the routing id */
    TAG_BYTES = 20,
    COLUMN_HEAD = 3, /* header, table, offsets */
    INDEX_BYTES = 8,
    HEADER_BYTES_MAX = 28 /* of an answer that ends with a LOG INDEX */
};

static const uint8_t EXTENSION[] = {0x6b, 0x4c, 0x4b, 0x01};

/* ---- extension ---- */

/* Reads the bytes behind the header of the specification. KLK_ECORRUPT: they are malformed, or
 * belong to a write with a lifetime. */
static int extension_read(const uint8_t *data, uint32_t size, int writes,
                          struct klk_request *request) {
    /* ignored, as the specification says */
    if (size < 3 || memcmp(data, EXTENSION, 3) != 0) return KLK_OK;
    if (size < sizeof EXTENSION || data[3] != EXTENSION[3]) return KLK_ECORRUPT;
    if (size < EXTENSION_BYTES && size != 21 && size != TTL_OFFSET && size != LEASE_OFFSET)
        return KLK_ECORRUPT;
    request->extended = 1;
    request->extension = data[4];
    request->deadline_ms = klk_get_u32(data + 5);
    memcpy(request->reqid, data + REQID_OFFSET, sizeof request->reqid);
    uint64_t ttl_ms = size >= LEASE_OFFSET ? klk_get_u64(data + TTL_OFFSET) : 0;
    request->session = size >= EXTENSION_BYTES ? klk_get_u64(data + LEASE_OFFSET) : 0;
    return ttl_ms > KLK_TTL_S_MAX * 1000ull || (writes && ttl_ms) ? KLK_ECORRUPT : KLK_OK;
}

/* ---- columns ---- */

/* The items of a column: frame `place` holds the offsets, the next frame the bytes. */
struct column {
    const uint8_t *offsets;
    const uint8_t *bytes;
    uint32_t count;
};

static uint32_t column_size(const struct column *column, uint32_t i) {
    const uint8_t *at = column->offsets + 4 * (size_t)i;
    return klk_get_u32(at + 4) - klk_get_u32(at);
}

static int column_read(const struct klk_frames *frames, uint32_t place, uint32_t item_max,
                       struct column *column) {
    uint32_t offsets_size, size, before = 0;
    if (place + 1 >= frames->count) return KLK_ECORRUPT;
    column->offsets = klk_frame_at(frames, place, &offsets_size);
    column->bytes = klk_frame_at(frames, place + 1, &size);
    if (offsets_size % 4 || !offsets_size || klk_get_u32(column->offsets)) return KLK_ECORRUPT;
    column->count = offsets_size / 4 - 1;
    for (uint32_t i = 0; i < column->count; i++) {
        uint32_t offset = klk_get_u32(column->offsets + 4 * ((size_t)i + 1));
        if (offset < before || offset > size || offset - before > item_max) return KLK_ECORRUPT;
        before = offset;
    }
    return before == size ? KLK_OK : KLK_ECORRUPT;
}

static int column_keys(const struct klk_frames *frames, struct column *keys) {
    if (column_read(frames, 2, KLK_KEY_BYTES_MAX, keys) != KLK_OK) return KLK_ECORRUPT;
    for (uint32_t i = 0; i < keys->count; i++)
        if (!column_size(keys, i)) return KLK_ECORRUPT;
    return KLK_OK;
}

/* ---- writes: size of the entry; 0: malformed ---- */

static uint64_t columns_entry(const struct klk_frames *frames, int pairs) {
    struct column keys, values;
    uint32_t key_bytes, value_bytes = 0;
    if (column_keys(frames, &keys) != KLK_OK) return 0;
    klk_frame_at(frames, 3, &key_bytes);
    if (pairs) {
        if (column_read(frames, 4, KLK_VALUE_BYTES_MAX, &values) != KLK_OK) return 0;
        if (values.count != keys.count) return 0;
        klk_frame_at(frames, 5, &value_bytes);
    }
    return KLK_ENTRY_HEAD + 4 + 4ull * keys.count * (pairs ? 2 : 1) + key_bytes + value_bytes;
}

static uint64_t items_entry(const struct klk_frames *frames, int pairs) {
    uint32_t count = frames->count - 2;
    if (pairs && count % 2) return 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t size = frames->offsets[i + 3] - frames->offsets[i + 2];
        if (pairs && i % 2 ? size > KLK_VALUE_BYTES_MAX : !klk_is_key(size)) return 0;
    }
    uint64_t bytes = frames->offsets[frames->count] - frames->offsets[2];
    return KLK_ENTRY_HEAD + 4 + 4ull * count + bytes;
}

static uint64_t range_entry(const struct klk_frames *frames, int limited) {
    uint32_t start, end;
    if (frames->count < 4) return 0;
    klk_frame_at(frames, 2, &start);
    klk_frame_at(frames, 3, &end);
    if (start > KLK_KEY_BYTES_MAX) return 0;
    if (limited) return end == 8 ? KLK_ENTRY_HEAD + 12ull + start : 0;
    return end <= KLK_KEY_BYTES_MAX ? KLK_ENTRY_HEAD + 8ull + start + end : 0;
}

static uint64_t entry_size(const struct klk_request *request, const struct klk_frames *frames) {
    int packed = request->extension & PACKED;
    switch (request->type) {
    case KLK_OP_PUT:
        return packed ? columns_entry(frames, 1) : items_entry(frames, 1);
    case KLK_OP_DELETE:
        return packed ? columns_entry(frames, 0) : items_entry(frames, 0);
    case DELETE_RANGE:
        return range_entry(frames, 0);
    default:
        return range_entry(frames, 1);
    }
}

/* ---- decode ---- */

static void request_read(const struct klk_messages *arena, int routed, uint32_t entry_bytes_max,
                         struct klk_request *request) {
    uint32_t size, count = klk_messages_frames(arena, request->message);
    request->header = (uint8_t)(routed != 0);
    if (routed && count > 2) {
        klk_messages_at(arena, request->message, 1, &size);
        if (!size) request->header = 2;
    }
    if (count < request->header + 2u) return;
    struct klk_frames frames = klk_frames_of(arena, request);
    const uint8_t *header = klk_frame_at(&frames, 0, &size);
    if (size < 3 || header[0] != 0x31 || header[1] != 0x01) return;
    request->type = header[2];
    int reads = header[2] >= READ && header[2] <= TABLE_READ_LAST;
    int writes = header[2] >= KLK_OP_PUT && header[2] <= DELETE_LIMITED;
    int transacts = header[2] == KLK_TRANSACTION;
    if (!reads && !writes && !transacts) return;
    uint32_t behind = 3, table_size;
    if (!reads && size > 3) request->flags = header[behind++];
    if (extension_read(header + behind, size - behind, !reads, request) != KLK_OK) return;
    if (transacts) {
        klk_transaction_read(&frames, entry_bytes_max, request);
        return;
    }
    if (writes && request->session) return;
    const uint8_t *table = klk_frame_at(&frames, 1, &table_size);
    if (table_size != 4) return;
    request->table = klk_get_u32(table);
    if (reads) {
        request->shape = KLK_REQUEST_READ;
        return;
    }
    uint64_t entry = entry_size(request, &frames);
    if (!entry || entry > entry_bytes_max) return;
    request->entry_size = (uint32_t)entry;
    request->shape = KLK_REQUEST_WRITE;
}

void klk_requests_read(const struct klk_messages *arena, int routed, uint32_t entry_bytes_max,
                       struct klk_request *out) {
    for (uint32_t m = 0; m < arena->messages; m++) {
        out[m] = (struct klk_request){.message = m};
        request_read(arena, routed, entry_bytes_max, &out[m]);
    }
}

/* ---- entries ---- */

static uint8_t *pack_columns(uint8_t *out, const struct klk_frames *frames, int pairs) {
    struct column columns[2];
    column_read(frames, 2, KLK_KEY_BYTES_MAX, &columns[0]);
    if (pairs) column_read(frames, 4, KLK_VALUE_BYTES_MAX, &columns[1]);
    uint32_t count = columns[0].count;
    klk_put_u32(out, count);
    out += 4;
    for (uint32_t i = 0; i < count; i++)
        for (int c = 0; c <= pairs; c++, out += 4) klk_put_u32(out, column_size(&columns[c], i));
    for (uint32_t i = 0; i < count; i++)
        for (int c = 0; c <= pairs; c++) {
            const uint8_t *from = columns[c].bytes + klk_get_u32(columns[c].offsets + 4ull * i);
            out = klk_put_bytes(out, from, column_size(&columns[c], i));
        }
    return out;
}

static uint8_t *pack_items(uint8_t *out, const struct klk_frames *frames, int pairs) {
    uint32_t items = frames->count - 2;
    klk_put_u32(out, pairs ? items / 2 : items);
    out += 4;
    for (uint32_t i = 2; i < frames->count; i++, out += 4)
        klk_put_u32(out, frames->offsets[i + 1] - frames->offsets[i]);
    /* Keys and values are contiguous in the arena, as in the entry. */
    uint32_t start = frames->offsets[2];
    return klk_put_bytes(out, frames->bytes + start, frames->offsets[frames->count] - start);
}

static uint8_t *pack_range(uint8_t *out, const struct klk_frames *frames, int limited) {
    uint32_t start_size, end_size;
    const uint8_t *start = klk_frame_at(frames, 2, &start_size);
    const uint8_t *end = klk_frame_at(frames, 3, &end_size);
    if (limited) {
        out = klk_put_bytes(out, end, end_size);
        klk_put_u32(out, start_size);
        return klk_put_bytes(out + 4, start, start_size);
    }
    klk_put_u32(out, start_size);
    klk_put_u32(out + 4, end_size);
    out = klk_put_bytes(out + 8, start, start_size);
    return klk_put_bytes(out, end, end_size);
}

ssize_t klk_requests_pack(const struct klk_messages *arena, const struct klk_request *requests,
                          uint32_t count, uint8_t *out, size_t capacity) {
    uint8_t *at = out;
    for (uint32_t i = 0; i < count; i++) {
        const struct klk_request *request = &requests[i];
        if (request->shape != KLK_REQUEST_WRITE) continue;
        if (request->entry_size > capacity - (size_t)(at - out)) return KLK_ESPACE;
        struct klk_frames frames = klk_frames_of(arena, request);
        int packed = request->extension & PACKED;
        at = klk_put_bytes(at, klk_table_mark, sizeof klk_table_mark);
        *at++ = request->type;
        klk_put_u32(at, request->table);
        at += 4;
        if (request->type == DELETE_RANGE || request->type == DELETE_LIMITED) {
            at = pack_range(at, &frames, request->type == DELETE_LIMITED);
        } else {
            int pairs = request->type == KLK_OP_PUT;
            at = packed ? pack_columns(at, &frames, pairs) : pack_items(at, &frames, pairs);
        }
    }
    return at - out;
}

/* ---- messages ---- */

int klk_requests_forward(const struct klk_messages *arena, const struct klk_request *requests,
                         const uint32_t *positions, uint32_t count, uint32_t *done, uint8_t kind,
                         struct klk_messages *out) {
    for (; *done < count; ++*done) {
        const struct klk_request *request = &requests[positions[*done]];
        struct klk_frames frames = klk_frames_of(arena, request);
        uint32_t id_size, bytes = frames.offsets[frames.count] - frames.offsets[0];
        const uint8_t *id = klk_messages_at(arena, request->message, 0, &id_size);
        uint32_t client = arena->slots ? arena->slots[request->message] + 1 : 0;
        uint8_t head[HEAD_BYTES] = {kind, request->header == 2, (uint8_t)client,
                                    (uint8_t)(client >> 8)};
        if (!request->header) id_size = 0;
        if (!klk_messages_fit(out, (uint64_t)HEAD_BYTES + id_size + bytes, 2ull + frames.count))
            return KLK_EFULL;
        klk_messages_frame(out, head, sizeof head);
        klk_messages_frame(out, id, id_size);
        uint32_t offset = klk_messages_bytes(out);
        memcpy(out->bytes + offset, frames.bytes + frames.offsets[0], bytes);
        for (uint32_t f = 1; f <= frames.count; f++)
            out->offsets[++out->frames] = offset + frames.offsets[f] - frames.offsets[0];
        klk_messages_end(out);
    }
    return KLK_OK;
}

int klk_requests_acknowledge(const struct klk_messages *arena,
                             const struct klk_request *requests, const uint32_t *positions,
                             uint32_t count, uint32_t *done, struct klk_messages *out) {
    for (; *done < count; ++*done) {
        const struct klk_request *request = &requests[positions[*done]];
        uint8_t head[HEADER_BYTES_MAX] = {0x31, 0x01, request->type, 0};
        uint32_t id_size, size = 4;
        if (request->extended) size += sizeof EXTENSION + sizeof request->reqid;
        if (request->extension & WITH_INDEX) size += INDEX_BYTES;
        const uint8_t *id = klk_messages_at(arena, request->message, 0, &id_size);
        if (!klk_messages_fit(out, (uint64_t)id_size + size, 3)) return KLK_EFULL;
        memcpy(head + 4, EXTENSION, sizeof EXTENSION);
        memcpy(head + 4 + sizeof EXTENSION, request->reqid, sizeof request->reqid);
        klk_messages_frame(out, id, id_size);
        if (request->header == 2) klk_messages_frame(out, NULL, 0);
        klk_messages_frame(out, head, size);
        klk_messages_end(out);
    }
    return KLK_OK;
}

/* ---- reads of keys, answered together ---- */

static int get_read(const struct klk_messages *arena, uint64_t applied,
                    const struct klk_gets *gets, struct klk_request *request) {
    uint32_t size;
    if (klk_messages_frames(arena, request->message) < PIPED + 2u) return 0;
    const uint8_t *head = klk_messages_at(arena, request->message, 0, &size);
    if (size != HEAD_BYTES || head[0] || klk_get_u32(head + 4) != gets->epoch) return 0;
    if (klk_get_u64(head + 8) > applied) return 0;
    request->header = PIPED;
    struct klk_frames frames = klk_frames_of(arena, request);
    const uint8_t *header = klk_frame_at(&frames, 0, &size);
    if (size < 3 || header[0] != 0x31 || header[1] != 0x01 || header[2] != READ) return 0;
    if (extension_read(header + 3, size - 3, 0, request) != KLK_OK) return 0;
    if (request->extension & ~(STALE | PACKED)) return 0;
    request->type = READ;
    const uint8_t *table = klk_frame_at(&frames, 1, &size);
    if (size != 4) return 0;
    request->table = klk_get_u32(table);
    return 1;
}

int klk_read_keys(const struct klk_request *request, const struct klk_frames *frames,
                  uint32_t *places, uint32_t keys_max, uint32_t *count) {
    struct column keys = {0};
    if (request->extension & PACKED) {
        if (frames->count != COLUMN_HEAD + 1 || column_keys(frames, &keys) != KLK_OK) return 0;
        *count = keys.count;
    } else {
        *count = frames->count - 2;
    }
    if (*count > keys_max) return 0;
    for (uint32_t i = 0; i < *count; i++) {
        uint32_t *place = places + 2 * (size_t)i;
        if (keys.offsets) {
            place[0] = frames->offsets[COLUMN_HEAD] + klk_get_u32(keys.offsets + 4 * (size_t)i);
            place[1] = column_size(&keys, i);
        } else {
            place[0] = frames->offsets[2 + i];
            place[1] = frames->offsets[3 + i] - place[0];
        }
        if (!klk_is_key(place[1])) return 0;
    }
    return 1;
}

int klk_gets_read(const struct klk_messages *arena, uint64_t applied, struct klk_gets *gets,
                  struct klk_request *requests, uint32_t *counts, uint32_t *places,
                  uint32_t keys_max) {
    gets->keys = 0;
    for (uint32_t m = 0; m < arena->messages; m++) {
        requests[m] = (struct klk_request){.message = m};
        if (!get_read(arena, applied, gets, &requests[m])) return 0;
        if (m && requests[m].table != gets->table) return 0;
        gets->table = requests[m].table;
        struct klk_frames frames = klk_frames_of(arena, &requests[m]);
        if (!klk_read_keys(&requests[m], &frames, places + 2 * (size_t)gets->keys,
                           keys_max - gets->keys, &counts[m]))
            return 0;
        gets->keys += counts[m];
    }
    return arena->messages > 0;
}

uint32_t klk_read_header(const struct klk_request *request, uint8_t *header) {
    const uint8_t head[] = {0x31, 0x01, READ, 0};
    uint8_t *at = klk_put_bytes(header, head, sizeof head);
    if (!request->extended) return sizeof head;
    at = klk_put_bytes(at, EXTENSION, sizeof EXTENSION);
    return (uint32_t)(klk_put_bytes(at, request->reqid, sizeof request->reqid) - header);
}

static void values_column(const uint32_t *sizes, uint32_t count, const uint8_t *values,
                          uint64_t size, struct klk_messages *out) {
    uint8_t *at = out->bytes + klk_messages_bytes(out);
    uint32_t *ends = out->offsets + out->frames;
    uint32_t offset = 0;
    klk_put_u32(at, 0);
    for (uint32_t i = 0; i < count; i++) {
        if (sizes[i] != UINT32_MAX) offset += sizes[i];
        klk_put_u32(at + 4 * ((size_t)i + 1), offset);
    }
    ends[1] = ends[0] + 4 * (count + 1);
    at = klk_put_bytes(out->bytes + ends[1], values, (size_t)size);
    ends[2] = ends[1] + (uint32_t)size;
    for (uint32_t i = 0; i < count; i++) *at++ = sizes[i] != UINT32_MAX;
    ends[3] = ends[2] + count;
    out->frames += 3;
}

int klk_gets_answer(const struct klk_messages *arena, const struct klk_request *requests,
                    const uint32_t *counts, const uint32_t *sizes, const uint8_t *values,
                    struct klk_gets *gets, struct klk_messages *out) {
    for (; gets->message < arena->messages; gets->message++) {
        const struct klk_request *request = &requests[gets->message];
        uint32_t count = counts[gets->message], head_size, id_size;
        const uint32_t *own = sizes + gets->key;
        const uint8_t *data = values + gets->byte;
        uint64_t size = 0;
        for (uint32_t i = 0; i < count; i++)
            if (own[i] != UINT32_MAX) size += own[i];
        const uint8_t *head = klk_messages_at(arena, gets->message, 0, &head_size);
        const uint8_t *id = klk_messages_at(arena, gets->message, 1, &id_size);
        uint8_t answer[KLK_READ_HEADER_MAX];
        uint32_t answer_size = klk_read_header(request, answer);
        uint8_t tag[TAG_BYTES] = {(uint8_t)gets->number, (uint8_t)(gets->number >> 8)};
        uint64_t ticket = klk_get_u64(head + 16);
        uint32_t position = ticket == gets->ticket ? gets->position + 1 : 0;
        uint64_t extra = request->extension & PACKED ? 5 * (uint64_t)count + 4 : 0;
        uint64_t bytes = sizeof tag + id_size + answer_size + size + extra;
        if (!klk_messages_fit(out, bytes, 4 + (extra ? 3 : (uint64_t)count))) return KLK_EFULL;
        klk_put_u32(tag + 4, gets->epoch);
        klk_put_u32(tag + 8, position);
        klk_put_u64(tag + 12, ticket);
        klk_messages_frame(out, tag, sizeof tag);
        klk_messages_frame(out, id, id_size);
        if (head[1] & 1) klk_messages_frame(out, NULL, 0);
        klk_messages_frame(out, answer, answer_size);
        if (extra)
            values_column(own, count, data, size, out);
        else
            for (uint32_t i = 0; i < count; i++) {
                uint32_t one = own[i] == UINT32_MAX ? 0 : own[i];
                klk_messages_frame(out, data, one);
                data += one;
            }
        klk_messages_end(out);
        gets->ticket = ticket;
        gets->position = position;
        gets->key += count;
        gets->byte += size;
    }
    return KLK_OK;
}

void klk_answers_tell(const struct klk_messages *answers, const uint64_t *indexes) {
    static const uint8_t zeros[INDEX_BYTES];
    for (uint32_t m = 0; m < answers->messages; m++) {
        uint32_t size = 0, count = klk_messages_frames(answers, m);
        if (count < 2) continue;
        const uint8_t *header = klk_messages_at(answers, m, 1, &size);
        if (!size && count > 2) header = klk_messages_at(answers, m, 2, &size);
        if (size != HEADER_BYTES_MAX) continue;
        uint32_t place = (uint32_t)(header - answers->bytes) + HEADER_BYTES_MAX - INDEX_BYTES;
        if (!memcmp(answers->bytes + place, zeros, INDEX_BYTES))
            klk_put_u64(answers->bytes + place, indexes[m]);
    }
}
