/* Reads that rows in shared memory answer: any requests, and memory with any bytes changed. */
#include "cached.h"
#include "fuzz.h"

enum { WORKERS = 2, MEMORY = KLK_ROW_CACHE_BYTES_MIN, INDEX = 5, READ = 0x10, PACKED = 2 };

/* [route]([empty])[header][table][key][key], or the keys as a column. */
static uint8_t *put_read(uint8_t *at, uint32_t table, int enveloped, int packed) {
    uint8_t header[24] = {0x31, 1, READ, 0x6b, 0x4c, 0x4b, 1, PACKED}, number[4], offsets[12];
    klk_put_u32(number, table);
    klk_put_u32(offsets, 0);
    klk_put_u32(offsets + 4, 3);
    klk_put_u32(offsets + 8, 6);
    at = fuzz_put(at, "client", 6, 0);
    if (enveloped) at = fuzz_put(at, "", 0, 0);
    at = fuzz_put(at, header, packed ? sizeof header : 3, 0);
    at = fuzz_put(at, number, sizeof number, 0);
    if (packed) {
        at = fuzz_put(at, offsets, sizeof offsets, 0);
        return fuzz_put(at, "keyone", 6, 1);
    }
    at = fuzz_put(at, "key", 3, 0);
    return fuzz_put(at, "one", 3, 1);
}

size_t fuzz_seed(uint32_t number, uint8_t *out) {
    uint8_t *at = out;
    if (number > 3) return 0;
    *at++ = (uint8_t)number;
    for (int i = 0; i < 4; i++) *at++ = (uint8_t)(i * 40); /* Places of changed bytes. */
    for (uint32_t i = 0; i < 3; i++) at = put_read(at, 1 + i % 2, (int)number & 1, i == 2);
    return (size_t)(at - out);
}

/* Keeps two rows of each table, and what the arena's frames are. */
static void rows_keep(struct klk_row_cache *cache, const struct klk_messages *arena) {
    static uint8_t keys[] = "keyone", values[] = "value of one";
    struct klk_messages own = {.bytes = keys};
    const uint32_t places[] = {0, 3, 3, 3}, sizes[] = {6, 6}, absent[] = {UINT32_MAX, 6};
    for (uint32_t table = 0; table < 3; table++) {
        struct klk_gets gets = {.table = table, .keys = 2};
        klk_row_cache_keep(cache, &own, &gets, places, table ? sizes : absent, values);
    }
    for (uint32_t f = 0; f + 1 < arena->frames; f++) {
        uint32_t start = arena->offsets[f], size = arena->offsets[f + 1] - start;
        uint32_t place[] = {start, size}, value = arena->offsets[f + 2] - arena->offsets[f + 1];
        struct klk_gets gets = {.table = f % 3, .keys = 1};
        klk_row_cache_keep(cache, arena, &gets, place, &value,
                           arena->bytes + arena->offsets[f + 1]);
        uint32_t key_sizes[] = {size, 0}, written[] = {f % 2 ? UINT32_MAX : value, 0};
        if (f % 5 != 4) continue;
        klk_row_cache_begin(cache);
        klk_row_cache_put(cache, f % 3, arena->bytes + start, key_sizes,
                          arena->bytes + arena->offsets[f + 1], written, 2);
        klk_row_cache_end(cache);
    }
    klk_row_cache_apply(cache, INDEX);
}

static uint32_t answers(struct klk_row_reader *readers, const struct klk_messages *arena) {
    struct klk_latency latency = {0};
    struct klk_channel *channels = exact(WORKERS * sizeof *channels);
    struct klk_request *rows = exact(arena->messages * sizeof *rows);
    struct klk_messages out = messages_new(200, 20);
    uint32_t asked = 0;
    for (uint32_t i = 0; i < WORKERS; i++) channels[i] = (struct klk_channel){.latency = &latency};
    klk_requests_read(arena, 1, 1000, rows);
    for (uint32_t m = 0; m < arena->messages; m++) {
        if (rows[m].type != READ || rows[m].extension & ~PACKED) rows[m].shape = KLK_REQUEST_OTHER;
        asked += rows[m].shape == KLK_REQUEST_READ;
    }
    uint32_t left = klk_cached_answer(readers, channels, WORKERS, arena, rows, INDEX, 0, &out);
    REQUIRE(left + out.messages == asked && channels[0].taken + channels[1].taken == out.messages);
    uint32_t found = out.messages;
    messages_free(&out);
    free(rows);
    free(channels);
    return found;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz_input in = {data, size};
    uint8_t kind = fuzz_u8(&in), changed[4];
    for (int i = 0; i < 4; i++) changed[i] = fuzz_u8(&in);
    struct klk_messages arena = fuzz_messages(&in);
    struct klk_row_cache *cache = exact(MEMORY);
    struct klk_row_reader readers[WORKERS];
    memset(cache, 0, MEMORY);
    klk_row_cache_make(cache, MEMORY, kind);
    rows_keep(cache, &arena);
    for (uint32_t i = 0; i < WORKERS; i++) REQUIRE(klk_row_reader_open(&readers[i], cache, MEMORY));
    uint32_t found = answers(readers, &arena);
    for (uint32_t i = 0; kind & 4 && i < MEMORY; i++) /* The writer is damaged. */
        if (i % 251 == changed[i % 4]) ((uint8_t *)cache)[i] ^= changed[(i + 1) % 4];
    if (kind & 4) (void)answers(readers, &arena);
    for (uint32_t i = 0; i < WORKERS; i++) (void)klk_row_reader_open(&readers[i], cache, MEMORY);
    if (!(kind & 4)) {
        klk_row_cache_clear(cache);
        REQUIRE(answers(readers, &arena) <= found);
        uint32_t none;
        uint8_t out[8];
        REQUIRE(!klk_row_reader_get(&readers[0], 1, (const uint8_t *)"key", 3, out, 8, &none));
    }
    (void)klk_channel_client(data, (uint32_t)size);
    free(cache);
    messages_free(&arena);
    return 0;
}
