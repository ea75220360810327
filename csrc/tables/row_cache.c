/* Rows that a worker and its server share: a ring with an index, one writer and no lock. */
#include "row_cache.h"

#include <string.h>

#include "bytes.h"

enum { TOGETHER = 32 }; /* rows whose buckets are fetched together */
enum { SLOTS = 8, ROW_HEAD = 24, ALIGNED = 8, RING_BYTES_A_SLOT = 32 };
#define ABSENT UINT32_MAX
static const uint64_t MAGIC = 0x3153574f524b4c6bu; /* "kLKROWS1" */

/* The head of a row in the ring; the key and the value follow. */
struct row {
    uint64_t hash;
    uint32_t table, key_size, value_size, spare;
};

/* ---- places ---- */

static uint64_t *slots_of(const struct klk_row_cache *cache) {
    return (uint64_t *)(uintptr_t)((const uint8_t *)cache + KLK_ROW_CACHE_HEAD);
}

static uint8_t *ring_of(const struct klk_row_cache *cache, uint64_t buckets) {
    return (uint8_t *)(slots_of(cache) + buckets * SLOTS);
}

static uint64_t hash_of(uint64_t seed, uint32_t table, const uint8_t *key, uint32_t size) {
    return klk_hash_mixed(klk_id_hash(seed ^ table * 0x9e3779b97f4a7c15u, key, size));
}

/* A slot: the position of a row in units of 8 bytes, and 16 bits of its hash. 0: it is free. */
static uint64_t slot_make(uint64_t position, uint64_t hash) {
    return position / ALIGNED << 16 | hash >> 48;
}

static uint64_t position_of(uint64_t slot) { return (slot >> 16) * ALIGNED; }

/* One of the two buckets where a row may be. With one alone some buckets would be full early. */
static uint64_t *bucket_of(const struct klk_row_cache *cache, uint64_t buckets, uint64_t hash,
                           int choice) {
    return slots_of(cache) + (hash >> 32 * choice & (buckets - 1)) * SLOTS;
}

static uint64_t row_bytes(uint32_t key_size, uint32_t value_size) {
    uint64_t value = value_size == ABSENT ? 0 : value_size;
    return (ROW_HEAD + (uint64_t)key_size + value + ALIGNED - 1) / ALIGNED * ALIGNED;
}

/* ---- the writer ---- */

void klk_row_cache_make(struct klk_row_cache *cache, uint64_t size, uint64_t seed) {
    uint64_t room = size - KLK_ROW_CACHE_HEAD, buckets = 1;
    while (buckets * 2 * SLOTS * (RING_BYTES_A_SLOT + sizeof(uint64_t)) <= room) buckets *= 2;
    cache->size = size;
    cache->buckets = buckets;
    cache->ring = (room - buckets * SLOTS * sizeof(uint64_t)) / ALIGNED * ALIGNED;
    cache->seed = seed;
    cache->head = cache->first = cache->ring; /* So no row has the position 0. */
    __atomic_store_n(&cache->magic, MAGIC, __ATOMIC_RELEASE);
}

/* A row to be written. */
struct new_row {
    uint64_t hash;
    const uint8_t *key, *value;
    uint32_t table, key_size, value_size;
};

/* Whether a row is here, in the newer half of the ring. */
static int is_kept(const struct klk_row_cache *cache, const struct new_row *row) {
    for (int i = 0; i < 2 * SLOTS; i++) {
        uint64_t slot = bucket_of(cache, cache->buckets, row->hash, i / SLOTS)[i % SLOTS];
        uint64_t position = position_of(slot);
        if (slot_make(position, row->hash) != slot || position < cache->first) continue;
        const uint8_t *at = ring_of(cache, cache->buckets) + position % cache->ring;
        struct row found;
        memcpy(&found, at, sizeof found);
        if (found.hash == row->hash && found.table == row->table &&
            found.key_size == row->key_size && !memcmp(at + ROW_HEAD, row->key, row->key_size))
            return cache->head - position <= cache->ring / 2;
    }
    return 0;
}

/* The slot to use for a row: a free one of the bucket that has more of them, or that of the oldest
 * row. What the row was is forgotten, and so is another one with the same 16 bits of its hash: to
 * compare them would take longer than to read that one again. */
static uint64_t *slot_for(const struct klk_row_cache *cache, uint64_t hash) {
    uint64_t *oldest = NULL, *found = NULL;
    for (int choice = 0, most = 0; choice < 2; choice++) {
        uint64_t *bucket = bucket_of(cache, cache->buckets, hash, choice), *free_slot = NULL;
        int count = 0;
        for (int i = 0; i < SLOTS; i++) {
            if (slot_make(position_of(bucket[i]), hash) == bucket[i])
                __atomic_store_n(&bucket[i], 0, __ATOMIC_RELAXED);
            if (!oldest || bucket[i] < *oldest) oldest = &bucket[i];
            if (position_of(bucket[i]) >= cache->first) continue;
            free_slot = &bucket[i];
            count++;
        }
        if (count <= most) continue;
        most = count;
        found = free_slot;
    }
    return found ? found : oldest;
}

static void row_write(struct klk_row_cache *cache, const struct new_row *row) {
    uint64_t bytes = row_bytes(row->key_size, row->value_size), position = cache->head;
    uint64_t *slot = slot_for(cache, row->hash);
    if (bytes > KLK_ROW_CACHE_ROW_MAX || bytes > cache->ring / 4) return;
    uint64_t left = cache->ring - position % cache->ring;
    if (left < bytes) position += left; /* A row does not wrap. */
    struct row head = {.hash = row->hash, .table = row->table, .key_size = row->key_size,
                       .value_size = row->value_size};
    if (position + bytes - cache->first > cache->ring)
        __atomic_store_n(&cache->first, position + bytes - cache->ring, __ATOMIC_RELAXED);
    __atomic_store_n(slot, 0, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE); /* Readers see both before any byte of the row. */
    uint8_t *at = ring_of(cache, cache->buckets) + position % cache->ring;
    memcpy(at, &head, sizeof head);
    memcpy(at + ROW_HEAD, row->key, row->key_size);
    if (row->value_size != ABSENT && row->value_size)
        memcpy(at + ROW_HEAD + row->key_size, row->value, row->value_size);
    cache->head = position + bytes;
    __atomic_store_n(slot, slot_make(position, row->hash), __ATOMIC_RELEASE);
}

/* Computes the hash of a row, and fetches its buckets. */
static void row_prepare(const struct klk_row_cache *cache, struct new_row *row) {
    row->hash = hash_of(cache->seed, row->table, row->key, row->key_size);
    __builtin_prefetch(bucket_of(cache, cache->buckets, row->hash, 0));
    __builtin_prefetch(bucket_of(cache, cache->buckets, row->hash, 1));
}

void klk_row_cache_keep(struct klk_row_cache *cache, const struct klk_messages *arena,
                        const struct klk_gets *gets, const uint32_t *places,
                        const uint32_t *sizes, const uint8_t *values) {
    struct new_row row = {.value = values, .table = gets->table};
    for (uint32_t i = 0; i < gets->keys; i++) {
        row.key = arena->bytes + places[2 * (size_t)i];
        row.key_size = places[2 * (size_t)i + 1];
        row.value_size = sizes[i];
        row_prepare(cache, &row);
        if (!is_kept(cache, &row)) row_write(cache, &row);
        if (sizes[i] != ABSENT) row.value += sizes[i];
    }
}

void klk_row_cache_begin(struct klk_row_cache *cache) {
    __atomic_store_n(&cache->generation, cache->generation | 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

void klk_row_cache_end(struct klk_row_cache *cache) {
    __atomic_store_n(&cache->generation, (cache->generation | 1) + 1, __ATOMIC_RELEASE);
}

void klk_row_cache_put(struct klk_row_cache *cache, uint32_t table, const uint8_t *keys,
                       const uint32_t *key_sizes, const uint8_t *values,
                       const uint32_t *value_sizes, uint32_t count) {
    struct new_row rows[TOGETHER];
    for (uint32_t done = 0, some; done < count; done += some) {
        some = count - done < TOGETHER ? count - done : TOGETHER;
        for (uint32_t i = 0; i < some; i++) {
            rows[i] = (struct new_row){.key = keys, .value = values, .table = table,
                                       .key_size = key_sizes[done + i],
                                       .value_size = value_sizes[done + i]};
            row_prepare(cache, &rows[i]);
            keys += rows[i].key_size;
            if (rows[i].value_size != ABSENT) values += rows[i].value_size;
        }
        for (uint32_t i = 0; i < some; i++) row_write(cache, &rows[i]);
    }
}

void klk_row_cache_clear(struct klk_row_cache *cache) {
    klk_row_cache_begin(cache);
    __atomic_store_n(&cache->applied, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&cache->first, cache->head, __ATOMIC_RELAXED); /* All rows are before it. */
    klk_row_cache_end(cache);
}

void klk_row_cache_apply(struct klk_row_cache *cache, uint64_t index) {
    __atomic_store_n(&cache->applied, index, __ATOMIC_RELEASE);
}

/* ---- readers ---- */

int klk_row_reader_open(struct klk_row_reader *reader, const struct klk_row_cache *cache,
                        uint64_t size) {
    *reader = (struct klk_row_reader){0};
    if (size < KLK_ROW_CACHE_BYTES_MIN) return 0;
    if (__atomic_load_n(&cache->magic, __ATOMIC_ACQUIRE) != MAGIC || cache->size != size) return 0;
    uint64_t buckets = cache->buckets, ring = cache->ring, room = size - KLK_ROW_CACHE_HEAD;
    if (!buckets || buckets & (buckets - 1) || buckets > room / (SLOTS * sizeof(uint64_t)))
        return 0;
    room -= buckets * SLOTS * sizeof(uint64_t);
    if (ring > room || ring < ROW_HEAD || ring % ALIGNED) return 0;
    *reader = (struct klk_row_reader){
        .cache = cache, .buckets = buckets, .ring = ring, .seed = cache->seed};
    return 1;
}

/* Copies the value of the row at a slot. What the writer changes meanwhile is found afterwards. */
static int row_copy(const struct klk_row_reader *reader, uint64_t slot, uint64_t hash,
                    uint32_t table, const uint8_t *key, uint32_t key_size, uint8_t *out,
                    uint32_t room, uint32_t *size) {
    uint64_t position = position_of(slot), offset = position % reader->ring;
    if (!slot || slot_make(position, hash) != slot || reader->ring - offset < ROW_HEAD) return 0;
    const uint8_t *at = ring_of(reader->cache, reader->buckets) + offset;
    struct row row;
    memcpy(&row, at, sizeof row);
    if (row.hash != hash || row.table != table || row.key_size != key_size) return 0;
    uint64_t left = reader->ring - offset - ROW_HEAD;
    if (row.key_size > left || memcmp(at + ROW_HEAD, key, key_size) != 0) return 0;
    *size = row.value_size;
    if (row.value_size != ABSENT) {
        if (row.value_size > room || row.value_size > left - row.key_size) return 0;
        if (row.value_size) memcpy(out, at + ROW_HEAD + key_size, row.value_size);
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(&reader->cache->first, __ATOMIC_RELAXED) <= position;
}

uint64_t klk_row_reader_begin(const struct klk_row_reader *reader, uint64_t index) {
    const struct klk_row_cache *cache = reader->cache;
    uint64_t begun = __atomic_load_n(&cache->generation, __ATOMIC_ACQUIRE);
    int is_behind = __atomic_load_n(&cache->applied, __ATOMIC_ACQUIRE) < index;
    return begun % 2 || is_behind ? KLK_ROWS_NONE : begun;
}

int klk_row_reader_get(const struct klk_row_reader *reader, uint32_t table, const uint8_t *key,
                       uint32_t key_size, uint8_t *out, uint32_t room, uint32_t *size) {
    uint64_t hash = hash_of(reader->seed, table, key, key_size);
    for (int i = 0; i < 2 * SLOTS; i++) {
        const uint64_t *bucket = bucket_of(reader->cache, reader->buckets, hash, i / SLOTS);
        uint64_t slot = __atomic_load_n(&bucket[i % SLOTS], __ATOMIC_ACQUIRE);
        if (row_copy(reader, slot, hash, table, key, key_size, out, room, size)) return 1;
    }
    return 0;
}

int klk_row_reader_end(const struct klk_row_reader *reader, uint64_t begun) {
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(&reader->cache->generation, __ATOMIC_RELAXED) == begun;
}
