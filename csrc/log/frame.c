/* Records and blocks: framed and checksummed once, checked by each process
 * (docs/reference/disk-format.md). */
#include "api.h"
#include "bytes.h"
#include "walk.h"

#include <string.h>

/* The largest index and term: the specification's numbers end at 2^53 - 1. */
#define NUMBER_MAX ((1ull << 53) - 1)

/* ---- records ---- */

static size_t varint_size(uint32_t value) {
    size_t size = 1;
    while (value >= 0x80) {
        value >>= 7;
        size++;
    }
    return size;
}

static size_t varint_write(uint8_t *out, uint32_t value) {
    size_t size = 0;
    while (value >= 0x80) {
        out[size++] = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    out[size++] = (uint8_t)value;
    return size;
}

/* The length of a record: tag, reqid and data. */
static uint32_t body_size(uint32_t data_size, int has_reqid) {
    return (has_reqid ? 1u + KLK_REQID_SIZE : 1u) + data_size;
}

/* A varint of at most four bytes in its shortest form: each value has one encoding. */
static ssize_t varint_read(const uint8_t *data, size_t size, uint32_t *value) {
    uint32_t result = 0;
    for (size_t i = 0; i < 4; i++) {
        if (i == size) return KLK_ETORN;
        result |= (uint32_t)(data[i] & 0x7f) << 7 * i;
        if (data[i] < 0x80) {
            if (i > 0 && data[i] == 0) return KLK_ECORRUPT;
            *value = result;
            return (ssize_t)(i + 1);
        }
    }
    return KLK_ECORRUPT;
}

ssize_t klk_record_read(const uint8_t *data, size_t size, struct klk_record *record) {
    uint32_t body;
    ssize_t prefix = varint_read(data, size, &body);
    if (prefix < 0) return prefix;
    if (body == 0) return KLK_ECORRUPT;
    if (size - (size_t)prefix < 1) return KLK_ETORN;
    const uint8_t *tag = data + prefix;
    uint32_t before = body_size(0, (*tag & KLK_TAG_REQID) != 0);
    if (body < before || body - before > KLK_LONE_BYTES_MAX) return KLK_ECORRUPT;
    if (size - (size_t)prefix < body) return KLK_ETORN;
    record->reqid = *tag & KLK_TAG_REQID ? tag + 1 : NULL;
    record->data = tag + before;
    record->data_size = body - before;
    record->kind = *tag & KLK_KIND_MAX;
    return prefix + (ssize_t)body;
}

size_t klk_record_size(uint32_t data_size, int has_reqid) {
    uint32_t body = body_size(data_size, has_reqid);
    return varint_size(body) + body;
}

size_t klk_record_head(uint8_t *out, uint8_t kind, const uint8_t *reqid, uint32_t data_size) {
    uint8_t *at = out + varint_write(out, body_size(data_size, reqid != NULL));
    *at++ = reqid ? kind | KLK_TAG_REQID : kind;
    if (reqid) {
        memcpy(at, reqid, KLK_REQID_SIZE);
        at += KLK_REQID_SIZE;
    }
    return (size_t)(at - out);
}

size_t klk_record_write(uint8_t *out, uint8_t kind, const uint8_t *reqid, const uint8_t *data,
                        uint32_t data_size) {
    size_t head = klk_record_head(out, kind, reqid, data_size);
    if (data_size > 0) memcpy(out + head, data, data_size);
    return head + data_size;
}

/* ---- headers ---- */

static size_t padded(size_t size) { return (size + 7) & ~(size_t)7; }

size_t klk_block_size(size_t payload_size) { return padded(KLK_HEADER_SIZE + payload_size); }

void klk_header_read(const uint8_t *data, struct klk_header *header) {
    header->magic = klk_get_u32(data);
    header->crc = klk_get_u32(data + 4);
    header->first_index = klk_get_u64(data + 8);
    header->term = klk_get_u64(data + 16);
    header->count = klk_get_u32(data + 24);
    header->payload_size = klk_get_u32(data + 28);
}

static void header_write(uint8_t *out, uint32_t magic, uint64_t first_index, uint64_t term,
                         uint32_t count, size_t payload_size) {
    klk_put_u32(out, magic);
    klk_put_u64(out + 8, first_index);
    klk_put_u64(out + 16, term);
    klk_put_u32(out + 24, count);
    klk_put_u32(out + 28, (uint32_t)payload_size);
    klk_put_u32(out + 4, klk_crc32c(0, out + 8, KLK_HEADER_SIZE - 8 + payload_size));
}

void klk_mark_write(uint8_t *out, uint64_t synced_offset, uint64_t epoch) {
    header_write(out, KLK_MAGIC_MARK, synced_offset, epoch, 0, 0);
}

static int payload_holds(uint32_t count, size_t payload_size) {
    if (count == 1) return payload_size <= KLK_LONE_BYTES_MAX + KLK_RECORD_OVERHEAD_MAX;
    return payload_size <= KLK_BLOCK_BYTES_MAX &&
           klk_block_size(payload_size) <= KLK_BLOCK_BYTES_MAX;
}

static int limits_hold(uint64_t first_index, uint64_t term, uint32_t count, size_t payload_size) {
    return first_index > 0 && first_index <= NUMBER_MAX && term > 0 && term <= NUMBER_MAX &&
           count > 0 && count <= KLK_BLOCK_COUNT_MAX && NUMBER_MAX - first_index >= count - 1 &&
           payload_size >= 2 * (size_t)count && payload_holds(count, payload_size);
}

ssize_t klk_block_seal(uint8_t *block, uint64_t first_index, uint64_t term, uint32_t count,
                       size_t payload_size) {
    if (!limits_hold(first_index, term, count, payload_size)) return KLK_EINVAL;
    size_t size = klk_block_size(payload_size);
    memset(block + KLK_HEADER_SIZE + payload_size, 0, size - KLK_HEADER_SIZE - payload_size);
    header_write(block, KLK_MAGIC_BLOCK, first_index, term, count, payload_size);
    return (ssize_t)size;
}

int klk_block_header(const uint8_t *block, size_t size, struct klk_header *header) {
    if (size < KLK_HEADER_SIZE) return KLK_ECORRUPT;
    klk_header_read(block, header);
    return header->magic == KLK_MAGIC_BLOCK && klk_block_size(header->payload_size) <= size &&
                   limits_hold(header->first_index, header->term, header->count,
                               header->payload_size)
               ? KLK_OK
               : KLK_ECORRUPT;
}

static int records_hold(const uint8_t *payload, size_t size, uint32_t count) {
    struct klk_record record;
    size_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        ssize_t record_size = klk_record_read(payload + at, size - at, &record);
        if (record_size < 0) return 0;
        at += (size_t)record_size;
    }
    return at == size;
}

ssize_t klk_block_check(const uint8_t *data, size_t size, struct klk_header *header) {
    struct klk_header found;
    if (size < KLK_HEADER_SIZE) return KLK_ETORN;
    klk_header_read(data, &found);
    if (found.magic == KLK_MAGIC_BLOCK) {
        if (!limits_hold(found.first_index, found.term, found.count, found.payload_size)) {
            return KLK_ECORRUPT;
        }
    } else if (found.magic != KLK_MAGIC_MARK || found.count > 0 || found.payload_size > 0) {
        return KLK_ECORRUPT;
    }
    size_t end = KLK_HEADER_SIZE + found.payload_size;
    size_t whole = klk_block_size(found.payload_size);
    if (size < whole) return KLK_ETORN;
    if (klk_crc32c(0, data + 8, end - 8) != found.crc) return KLK_ECORRUPT;
    if (klk_zeros(data + end, whole - end) < whole - end) return KLK_ECORRUPT;
    if (!records_hold(data + KLK_HEADER_SIZE, found.payload_size, found.count)) {
        return KLK_ECORRUPT;
    }
    *header = found;
    return (ssize_t)whole;
}

/* ---- blocks ---- */

ssize_t klk_block_encode(uint64_t first_index, uint64_t term, uint32_t count, const uint8_t *tags,
                         const uint32_t *sizes, const uint8_t *reqids, size_t reqids_size,
                         const uint8_t *data, size_t data_size, uint8_t *out, size_t capacity) {
    size_t payload_size = 0, data_sum = 0, reqids_sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        int has_reqid = (tags[i] & KLK_TAG_REQID) != 0;
        if (sizes[i] > KLK_LONE_BYTES_MAX) return KLK_EINVAL;
        payload_size += klk_record_size(sizes[i], has_reqid);
        data_sum += sizes[i];
        if (has_reqid) reqids_sum += KLK_REQID_SIZE;
    }
    if (data_sum != data_size || reqids_sum != reqids_size) return KLK_EINVAL;
    if (!limits_hold(first_index, term, count, payload_size)) return KLK_EINVAL;
    if (klk_block_size(payload_size) > capacity) return KLK_ESPACE;
    uint8_t *at = out + KLK_HEADER_SIZE;
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *reqid = tags[i] & KLK_TAG_REQID ? reqids : NULL;
        at += klk_record_write(at, tags[i] & KLK_KIND_MAX, reqid, data, sizes[i]);
        if (reqid) reqids += KLK_REQID_SIZE;
        data += sizes[i];
    }
    return klk_block_seal(out, first_index, term, count, payload_size);
}

int klk_block_walk(const uint8_t *block, size_t size, uint32_t *out) {
    struct klk_header header;
    struct klk_record record;
    struct klk_walk walk;
    if (klk_walk_start(block, size, &header, &walk) != KLK_OK) return KLK_ECORRUPT;
    for (uint32_t i = 0; i < header.count; i++) {
        if (klk_walk_next(&walk, &record) != KLK_OK) return KLK_ECORRUPT;
        *out++ = record.reqid ? record.kind | KLK_TAG_REQID : record.kind;
        *out++ = (uint32_t)(record.data - block);
        *out++ = record.data_size;
    }
    return KLK_OK;
}

ssize_t klk_block_slice(const uint8_t *block, size_t size, uint64_t first_index,
                        uint64_t last_index, uint8_t *out) {
    struct klk_header header;
    struct klk_record record;
    struct klk_walk walk;
    if (klk_walk_start(block, size, &header, &walk) != KLK_OK) return KLK_ECORRUPT;
    uint64_t last_held = header.first_index + header.count - 1;
    if (first_index < header.first_index || last_index > last_held || first_index > last_index) {
        return KLK_EINVAL;
    }
    for (uint64_t i = header.first_index; i < first_index; i++) {
        if (klk_walk_next(&walk, &record) != KLK_OK) return KLK_ECORRUPT;
    }
    const uint8_t *start = walk.at;
    const uint8_t *end = walk.end;
    if (last_index < last_held) {
        for (uint64_t i = first_index; i <= last_index; i++) {
            if (klk_walk_next(&walk, &record) != KLK_OK) return KLK_ECORRUPT;
        }
        end = walk.at;
    }
    memcpy(out + KLK_HEADER_SIZE, start, (size_t)(end - start));
    return klk_block_seal(out, first_index, header.term, (uint32_t)(last_index - first_index + 1),
                          (size_t)(end - start));
}

/* ---- contents of blocks for other layers ---- */

ssize_t klk_block_states(const uint8_t *block, size_t size, uint8_t kind, uint8_t *out,
                         uint32_t *counts) {
    struct klk_header header;
    struct klk_record record;
    struct klk_walk walk;
    uint8_t *at = out;
    if (klk_walk_start(block, size, &header, &walk) != KLK_OK) return KLK_ECORRUPT;
    memset(counts, 0, (KLK_KIND_MAX + 1) * sizeof *counts);
    for (uint32_t i = 0; i < header.count; i++) {
        if (klk_walk_next(&walk, &record) != KLK_OK) return KLK_ECORRUPT;
        counts[record.kind]++;
        if (record.kind != kind) continue;
        klk_put_u32(at, record.data_size);
        memcpy(at + 4, record.data, record.data_size);
        at += 4 + record.data_size;
    }
    return at - out;
}

static uint64_t entry_term(const uint8_t *entry) {
    uint64_t term = 0;
    for (int i = 0; i < 7; i++) term |= (uint64_t)entry[13 + i] << 8 * i;
    return term;
}

ssize_t klk_block_from_entries(uint64_t first_index, const uint8_t *data, size_t data_size,
                               const uint32_t *sizes, uint32_t count, uint8_t *out,
                               uint32_t *used) {
    uint64_t term = 0;
    size_t payload_size = 0;
    uint32_t used_count = 0;
    for (; used_count < count && used_count < KLK_BLOCK_COUNT_MAX; used_count++) {
        uint32_t size = sizes[used_count];
        if (size > data_size) return KLK_EINVAL;
        if (size <= KLK_ENTRY_PREFIX || size - KLK_ENTRY_PREFIX > KLK_RECORD_BYTES_MAX ||
            data[12] > KLK_KIND_MAX || entry_term(data) == 0) {
            return KLK_ECORRUPT;
        }
        if (used_count > 0 && entry_term(data) != term) break;
        const uint8_t *reqid = klk_zeros(data, KLK_REQID_SIZE) == KLK_REQID_SIZE ? NULL : data;
        size_t record_size = klk_record_size(size - KLK_ENTRY_PREFIX, reqid != NULL);
        if (klk_block_size(payload_size + record_size) > KLK_BLOCK_BYTES_MAX) break;
        term = entry_term(data);
        klk_record_write(out + KLK_HEADER_SIZE + payload_size, data[12], reqid,
                         data + KLK_ENTRY_PREFIX, size - KLK_ENTRY_PREFIX);
        payload_size += record_size;
        data += size;
        data_size -= size;
    }
    ssize_t size = klk_block_seal(out, first_index, term, used_count, payload_size);
    if (size < 0) return KLK_ECORRUPT; /* a term or an index beyond 2^53 - 1 */
    *used = used_count;
    return size;
}
