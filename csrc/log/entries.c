/* A block's records as frames of one message, without a Python object for each. */
#include "bytes.h"
#include "messages.h"
#include "walk.h"

/* Writes one entry as a frame. The caller has checked that it fits. */
static void entry_write(struct klk_messages *out, const struct klk_record *record, uint64_t term) {
    uint32_t offset = klk_messages_bytes(out);
    uint8_t *at = out->bytes + offset;
    if (record->reqid) {
        memcpy(at, record->reqid, KLK_REQID_SIZE);
    } else {
        memset(at, 0, KLK_REQID_SIZE);
    }
    klk_put_u64(at + KLK_REQID_SIZE, record->kind | term << 8);
    memcpy(at + KLK_ENTRY_PREFIX, record->data, record->data_size);
    out->offsets[++out->frames] = offset + KLK_ENTRY_PREFIX + record->data_size;
}

int klk_entries_add(struct klk_entries *entries, const uint8_t *block, size_t size,
                    struct klk_messages *out) {
    struct klk_header header;
    struct klk_record record;
    struct klk_walk walk;
    if (klk_walk_start(block, size, &header, &walk) != KLK_OK) return KLK_ECORRUPT;
    if (entries->index < header.first_index ||
        entries->index - header.first_index >= header.count) {
        return KLK_EINVAL;
    }
    for (uint64_t index = header.first_index; index < header.first_index + header.count; index++) {
        if (index > entries->last_index) return KLK_OK;
        if (klk_walk_next(&walk, &record) != KLK_OK) return KLK_ECORRUPT;
        if (index < entries->index) continue;
        uint32_t bytes = KLK_ENTRY_PREFIX + record.data_size;
        if (entries->count == entries->count_max ||
            (entries->count && entries->bytes + bytes > entries->bytes_max)) {
            return KLK_MORE;
        }
        if (out) {
            if (!klk_messages_fit(out, bytes, 1)) return KLK_EFULL;
            entry_write(out, &record, header.term);
        }
        entries->bytes += bytes;
        entries->count++;
        entries->index = index + 1;
    }
    return KLK_OK;
}
