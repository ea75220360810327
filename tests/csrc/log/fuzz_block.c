/* Blocks of peers and files: any bytes, and the same with a right checksum; then all that reads
 * checked blocks. */
#include "farm.h"
#include "fuzz.h"

size_t fuzz_seed(uint32_t number, uint8_t *out) {
    switch (number) {
    case 0: return fuzz_block(out, 1, 1, 1, 0);
    case 1: return fuzz_block(out, 7, 2, 12, 20);
    case 2: return fuzz_block(out, (1ull << 53) - 3, 5, 3, 200);
    case 3: klk_mark_write(out, 4096, 3); return KLK_HEADER_SIZE;
    case 4: { /* Packed operations of tables: a put of two pairs, a delete of a key. */
        static const uint8_t ops[] = {0x6b, 0x4c, 0x7a, 1, 0x20, 5, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0,
                                      0,    1,    0,    0, 0,    1, 0, 0, 0, 0, 0, 0, 0, 'k', 'v',
                                      'l',  0x21, 5,    0, 0,    0, 1, 0, 0, 0, 1, 0, 0, 0, 'k'};
        size_t used = KLK_HEADER_SIZE;
        for (uint8_t kind = 0; kind < 4; kind++)
            used += klk_record_write(out + used, kind, NULL, ops, sizeof ops);
        return (size_t)klk_block_seal(out, 3, 1, 4, used - KLK_HEADER_SIZE);
    }
    default: return 0;
    }
}

static void add_columns(const uint8_t *block, size_t size, uint32_t count) {
    uint32_t bytes = (uint32_t)size;
    struct klk_columns columns = {.indexes = exact(count * 8),
                                  .terms = exact(count * 8),
                                  .times = exact(count * 8),
                                  .kinds = exact(count),
                                  .valid = exact((count + 7) / 8),
                                  .reqids = exact((size_t)count * KLK_REQID_SIZE),
                                  .reqid_offsets = exact((count + 1) * 4),
                                  .data_offsets = exact((count + 1) * 4),
                                  .data = exact(bytes),
                                  .count_max = count,
                                  .bytes_max = bytes};
    REQUIRE(klk_columns_add(&columns, block, size) == KLK_OK && columns.count == count);
    REQUIRE(klk_columns_add(&columns, block, size) == KLK_ESPACE);
    void *all[] = {columns.indexes,       columns.terms,        columns.times,
                   columns.kinds,         columns.valid,        columns.reqids,
                   columns.reqid_offsets, columns.data_offsets, columns.data};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static void add_reqids(const uint8_t *block, size_t size, const struct klk_header *header) {
    struct klk_reqids *reqids = fuzz_reqids_new();
    size_t offset = KLK_HEADER_SIZE;
    uint64_t index = header->first_index;
    uint32_t newest_s = 0;
    int code;
    while ((code = klk_reqids_add(reqids, block, size, &offset, &index, &newest_s)) == KLK_EGROW)
        fuzz_reqids_grow(reqids);
    REQUIRE(code == KLK_OK && index == header->first_index + header->count);
    klk_reqids_bound(reqids, header->count / 2);
    klk_reqids_truncate(reqids, header->first_index);
    fuzz_reqids_free(reqids);
}

static void add_entries(const uint8_t *block, size_t size, const struct klk_header *header) {
    struct klk_entries entries = {.index = header->first_index + header->count / 3,
                                  .last_index = header->first_index + header->count / 3 + 5,
                                  .bytes_max = 100,
                                  .count_max = 4};
    struct klk_messages out = messages_new(64, 2);
    int code;
    while ((code = klk_entries_add(&entries, block, size, &out)) == KLK_EFULL)
        messages_grow(&out, 2 * out.bytes_max, 2 * out.frames_max);
    REQUIRE(code == KLK_OK || code == KLK_MORE);
    messages_free(&out);
}

static void slice(const uint8_t *block, size_t size, const struct klk_header *header) {
    uint64_t last = header->first_index + header->count - 1;
    uint8_t *out = exact(size);
    for (uint32_t cut = 0; cut < header->count && cut < 3; cut++) {
        struct klk_header found;
        ssize_t made = klk_block_slice(block, size, header->first_index + cut, last, out);
        REQUIRE(made > 0 && klk_block_check(out, (size_t)made, &found) == made);
        REQUIRE(found.count == header->count - cut);
    }
    REQUIRE(klk_block_slice(block, size, header->first_index, last + 1, out) == KLK_EINVAL);
    free(out);
}

static void cut_runs(const uint8_t *block, size_t size) {
    size_t runs_max = size / KLK_RUN_BYTES_MIN + 1, capacity = 4 * size + 16, format_size;
    struct klk_run *runs = exact(runs_max * sizeof *runs);
    char *format = exact(capacity);
    const uint32_t apart[] = {1, 7};
    for (uint32_t workers = 1; workers < 4; workers += 2) {
        ssize_t found = klk_runs_cut(block, size, UINT64_MAX, 0, workers, apart, 2, runs, runs_max,
                                     format, capacity, &format_size);
        REQUIRE(found >= 0 && format_size <= capacity);
        found = klk_runs_cut(block, size, 0, 0, workers, NULL, 0, runs, 0, format, 0, &format_size);
        REQUIRE(found <= 0);
    }
    free(runs);
    free(format);
}

static void use(const uint8_t *data, size_t size, const struct klk_header *header) {
    uint8_t *block = exact_copy(data, size), *states = exact(2 * size);
    struct klk_header again;
    uint32_t counts[KLK_KIND_MAX + 1], *walked = exact((size_t)header->count * 12);
    REQUIRE(klk_block_header(block, size, &again) == KLK_OK && again.crc == header->crc);
    REQUIRE(klk_block_walk(block, size, walked) == KLK_OK);
    for (uint32_t i = 0; i < header->count; i++)
        REQUIRE(walked[3 * i + 1] + (uint64_t)walked[3 * i + 2] <= size);
    REQUIRE(klk_block_states(block, size, 0, states, counts) >= 0);
    size_t entries_max = size + (size_t)KLK_FARM_ENTRY_PREFIX * header->count;
    uint8_t *entries = exact(entries_max);
    ssize_t written = klk_farm_entries(block, size, entries, entries_max);
    REQUIRE(written >= 0 || written == KLK_EINVAL);
    slice(block, size, header);
    add_columns(block, size, header->count);
    add_entries(block, size, header);
    add_reqids(block, size, header);
    cut_runs(block, size);
    free(entries);
    free(walked);
    free(states);
    free(block);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *copy = exact_copy(data, size);
    struct klk_header header;
    struct klk_record record;
    if (klk_record_read(data, size, &record) > 0)
        REQUIRE(record.data >= data && record.data + record.data_size <= data + size);
    for (int repaired = 0; repaired < 2; repaired++) {
        ssize_t whole = klk_block_check(copy, size, &header);
        if (whole > 0 && header.magic == KLK_MAGIC_BLOCK) use(copy, (size_t)whole, &header);
        klk_block_header(copy, size, &header);
        fuzz_repair(copy, size);
    }
    free(copy);
    return 0;
}
