/* The table of request ids: sharded open addressing in the caller's memory. One shard grows at a
 * time. */
#include "reqids.h"

#include "bytes.h"

enum {
    AHEAD = 24,     /* Records between the prefetch of a slot and its use. */
    INSERT_MAX = 16 /* Up to this number slots are sorted by insertion. */
};

static const struct klk_reqid_slot free_slot;

static uint32_t slot_next(const struct klk_reqid_shard *shard, uint32_t i) {
    return i + 1 == shard->size ? 0 : i + 1;
}

static uint32_t *second_of(const struct klk_reqids *reqids, uint32_t seconds) {
    return &reqids->seconds[seconds % KLK_REQID_SECONDS];
}

int klk_reqids_crowded(const struct klk_reqids *reqids) {
    for (int i = 0; i < KLK_REQID_SHARDS; i++)
        if (!klk_reqid_shard_fits(&reqids->shards[i], reqids->need[i])) return i;
    return -1;
}

int klk_reqids_want(struct klk_reqids *reqids, uint64_t hash) {
    int shard = klk_reqid_shard_of(hash);
    if (klk_reqid_shard_fits(&reqids->shards[shard], 1)) return KLK_OK;
    memset(reqids->need, 0, sizeof reqids->need);
    reqids->need[shard] = 1;
    return KLK_EGROW;
}

static int slot_lives(const struct klk_reqids *reqids, const struct klk_reqid_slot *slot) {
    return !klk_reqid_is_free(slot) && !klk_reqid_is_forgotten(reqids, slot->reqid);
}

uint32_t klk_reqids_live(const struct klk_reqids *reqids, int shard) {
    const struct klk_reqid_shard *from = &reqids->shards[shard];
    uint32_t live = 0;
    for (uint32_t i = 0; i < from->size; i++)
        if (slot_lives(reqids, &from->slots[i])) live++;
    return live;
}

int klk_reqids_move(struct klk_reqids *reqids, int shard, struct klk_reqid_slot *slots,
                    uint32_t size) {
    struct klk_reqid_shard from = reqids->shards[shard];
    struct klk_reqid_shard *to = &reqids->shards[shard];
    if (size % 8 != 0 || klk_reqids_live(reqids, shard) >= size) return KLK_EINVAL;
    memset(slots, 0, size * sizeof *slots);
    *to = (struct klk_reqid_shard){.slots = slots, .size = size, .count = 0};
    for (uint32_t i = 0; i < from.size; i++) {
        if (!slot_lives(reqids, &from.slots[i])) continue;
        const uint8_t *reqid = from.slots[i].reqid;
        *klk_reqid_slot_of(reqids, reqid, klk_reqid_hash(reqids, reqid)) = from.slots[i];
        to->count++;
    }
    return KLK_OK;
}

uint64_t klk_reqids_find(const struct klk_reqids *reqids, const uint8_t *reqid) {
    if (klk_reqid_is_forgotten(reqids, reqid)) return 0;
    const struct klk_reqid_slot *slot =
        klk_reqid_slot_of(reqids, reqid, klk_reqid_hash(reqids, reqid));
    return klk_reqid_is_free(slot) ? 0 : klk_reqid_index(reqids, slot);
}

void klk_reqids_keep(struct klk_reqids *reqids, struct klk_reqid_slot *slot, const uint8_t *reqid,
                     uint64_t hash, uint64_t index) {
    uint32_t seconds = klk_reqid_seconds(reqid);
    if (seconds > reqids->newest_s) {
        reqids->newest_s = seconds;
        if (seconds >= KLK_REQID_SECONDS) klk_reqids_forget(reqids, seconds - KLK_REQID_SECONDS);
    }
    memcpy(slot->reqid, reqid, KLK_REQID_SIZE);
    slot->index = (uint32_t)index;
    if (index > reqids->last_index) reqids->last_index = index;
    reqids->shards[klk_reqid_shard_of(hash)].count++;
    ++*second_of(reqids, seconds);
    reqids->count++;
}

/* Stores an id of a block. Returns KLK_OK or KLK_EGROW. */
static int reqid_add(struct klk_reqids *reqids, const uint8_t *reqid, uint64_t index) {
    uint64_t hash = klk_reqid_hash(reqids, reqid);
    if (klk_reqid_is_forgotten(reqids, reqid)) return KLK_OK;
    if (klk_reqids_want(reqids, hash) != KLK_OK) return KLK_EGROW;
    struct klk_reqid_slot *slot = klk_reqid_slot_of(reqids, reqid, hash);
    if (klk_reqid_is_free(slot)) {
        klk_reqids_keep(reqids, slot, reqid, hash, index);
    } else if (index < klk_reqid_index(reqids, slot)) {
        slot->index = (uint32_t)index;
    }
    return KLK_OK;
}

int klk_reqids_add(struct klk_reqids *reqids, const uint8_t *block, size_t size, size_t *offset,
                   uint64_t *index, uint32_t *newest_s) {
    struct klk_header header;
    klk_header_read(block, &header);
    size_t end = KLK_HEADER_SIZE + (size_t)header.payload_size;
    if (end > size || *offset > end) return KLK_ECORRUPT;
    size_t ahead = *offset;
    uint64_t ahead_index = *index;
    struct klk_record record;
    while (*offset < end) {
        for (; ahead < end && ahead_index < *index + AHEAD; ahead_index++) {
            ssize_t record_size = klk_record_read(block + ahead, end - ahead, &record);
            if (record_size < 0) return KLK_ECORRUPT;
            if (record.reqid) {
                uint64_t hash = klk_reqid_hash(reqids, record.reqid);
                klk_reqids_prefetch(reqids, record.reqid, hash);
            }
            ahead += (size_t)record_size;
        }
        ssize_t record_size = klk_record_read(block + *offset, end - *offset, &record);
        if (record_size < 0) return KLK_ECORRUPT;
        if (record.reqid && memcmp(record.reqid, free_slot.reqid, KLK_REQID_SIZE) != 0) {
            if (reqid_add(reqids, record.reqid, *index) != KLK_OK) return KLK_EGROW;
            uint32_t seconds = klk_reqid_seconds(record.reqid);
            if (seconds > *newest_s) *newest_s = seconds;
        }
        *offset += (size_t)record_size;
        ++*index;
    }
    return KLK_OK;
}

/* Empties a slot. Ids that collided with it move back, so that no probe sequence breaks. */
static void slot_remove(const struct klk_reqids *reqids, struct klk_reqid_shard *shard,
                        uint32_t hole) {
    for (uint32_t i = slot_next(shard, hole); !klk_reqid_is_free(&shard->slots[i]);
         i = slot_next(shard, i)) {
        const uint8_t *reqid = shard->slots[i].reqid;
        uint32_t home = klk_reqid_home(shard, reqid, klk_reqid_hash(reqids, reqid));
        uint32_t from_home = i >= home ? i - home : i + shard->size - home;
        uint32_t from_hole = i >= hole ? i - hole : i + shard->size - hole;
        if (from_home < from_hole) continue; /* Its home is after the hole. */
        shard->slots[hole] = shard->slots[i];
        hole = i;
    }
    shard->slots[hole] = free_slot;
    shard->count--;
}

void klk_reqids_truncate(struct klk_reqids *reqids, uint64_t last_index) {
    if (last_index >= reqids->last_index) return;
    for (int s = 0; s < KLK_REQID_SHARDS; s++) {
        struct klk_reqid_shard *shard = &reqids->shards[s];
        for (uint32_t i = 0; i < shard->size;) {
            struct klk_reqid_slot *slot = &shard->slots[i];
            if (klk_reqid_is_free(slot) || klk_reqid_index(reqids, slot) <= last_index) {
                i++;
                continue;
            }
            if (!klk_reqid_is_forgotten(reqids, slot->reqid)) {
                --*second_of(reqids, klk_reqid_seconds(slot->reqid));
                reqids->count--;
            }
            slot_remove(reqids, shard, i); /* Check this slot again: another id may be here. */
        }
    }
    reqids->last_index = last_index;
}

void klk_reqids_forget(struct klk_reqids *reqids, uint32_t seconds) {
    /* After a whole turn of the ring no second is left to count. */
    for (uint32_t turn = 0; reqids->forgotten_s < seconds && turn < KLK_REQID_SECONDS; turn++) {
        uint32_t *ids = second_of(reqids, ++reqids->forgotten_s);
        reqids->count -= *ids;
        *ids = 0;
    }
    if (reqids->forgotten_s < seconds) reqids->forgotten_s = seconds;
}

void klk_reqids_bound(struct klk_reqids *reqids, uint64_t count_max) {
    while (reqids->count > count_max) klk_reqids_forget(reqids, reqids->forgotten_s + 1);
}

/* ---- export and import, for snapshots ---- */

static uint32_t digit_of(const struct klk_reqid_slot *slot, int shift) {
    return 255 - (slot->index >> shift & 255); /* The largest first. */
}

static void slots_swap(struct klk_reqid_slot *one, struct klk_reqid_slot *other) {
    struct klk_reqid_slot held = *one;
    *one = *other;
    *other = held;
}

/* Sorts slots by index in place, largest first: by one byte, then each part by the next byte. The
 * bytes above it are equal in all of them. */
static void slots_sort(struct klk_reqid_slot *slots, size_t count, int shift) {
    if (count <= INSERT_MAX) {
        for (size_t i = 1; i < count; i++)
            for (size_t j = i; j > 0 && slots[j - 1].index < slots[j].index; j--)
                slots_swap(&slots[j - 1], &slots[j]);
        return;
    }
    size_t next[256] = {0}, ends[256];
    for (size_t i = 0; i < count; i++) next[digit_of(&slots[i], shift)]++;
    for (size_t digit = 0, sum = 0; digit < 256; digit++) {
        size_t size = next[digit];
        next[digit] = sum;
        ends[digit] = sum += size;
    }
    for (uint32_t digit = 0; digit < 256; digit++)
        while (next[digit] < ends[digit]) {
            struct klk_reqid_slot *slot = &slots[next[digit]];
            uint32_t place = digit_of(slot, shift);
            if (place != digit) slots_swap(slot, &slots[next[place]]);
            next[place]++;
        }
    for (size_t digit = 0, start = 0; shift > 0 && digit < 256; start = ends[digit++])
        slots_sort(slots + start, ends[digit] - start, shift - 8);
}

int64_t klk_reqids_export(const struct klk_reqids *reqids, uint64_t last_index,
                          struct klk_reqid_slot *out, uint64_t room) {
    uint64_t count = 0;
    for (int s = 0; s < KLK_REQID_SHARDS; s++) {
        const struct klk_reqid_shard *shard = &reqids->shards[s];
        for (uint32_t i = 0; i < shard->size; i++) {
            if (!slot_lives(reqids, &shard->slots[i])) continue;
            uint64_t index = klk_reqid_index(reqids, &shard->slots[i]);
            if (index > last_index || last_index - index > UINT32_MAX) continue;
            if (count == room) return KLK_ESPACE;
            out[count] = shard->slots[i];
            out[count++].index = (uint32_t)(last_index - index);
        }
    }
    slots_sort(out, count, 24);
    for (uint64_t i = 0; i < count; i++) klk_put_u32((uint8_t *)&out[i].index, out[i].index);
    return (int64_t)count;
}

int klk_reqids_import(struct klk_reqids *reqids, uint64_t last_index, const uint8_t *data,
                      size_t size, size_t *offset, uint64_t *index) {
    enum { SLOT = sizeof(struct klk_reqid_slot) };
    if (size % SLOT != 0 || *offset % SLOT != 0 || *offset > size) return KLK_EINVAL;
    for (; *offset < size; *offset += SLOT) {
        const uint8_t *reqid = data + *offset;
        if (size - *offset > AHEAD * SLOT) {
            const uint8_t *ahead = reqid + AHEAD * SLOT;
            klk_reqids_prefetch(reqids, ahead, klk_reqid_hash(reqids, ahead));
        }
        uint32_t below = klk_get_u32(reqid + KLK_REQID_SIZE);
        if (below >= last_index || last_index - below <= *index) return KLK_ECORRUPT;
        if (klk_reqid_is_forgotten(reqids, reqid) || klk_reqid_seconds(reqid) > reqids->newest_s)
            return KLK_ECORRUPT;
        uint64_t hash = klk_reqid_hash(reqids, reqid);
        if (klk_reqids_want(reqids, hash) != KLK_OK) return KLK_EGROW;
        struct klk_reqid_slot *slot = klk_reqid_slot_of(reqids, reqid, hash);
        if (!klk_reqid_is_free(slot)) return KLK_ECORRUPT;
        *index = last_index - below;
        klk_reqids_keep(reqids, slot, reqid, hash, *index);
    }
    return KLK_OK;
}
