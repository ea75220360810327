/* csrc/tables/runs.c on exact-size heap buffers: random entries, each cut and every room. */
#include "bytes.h"
#include "exact.h"

enum { ROUNDS = 4000, RECORDS_MAX = 6, ENTRY_MAX = 120 };

static uint32_t seed = 88172645u;
static unsigned plain, others, short_of_room;

static uint32_t dice(uint32_t sides) { return next_random(&seed) % sides; }

static size_t put_u32(uint8_t *out, uint32_t value) {
    klk_put_u32(out, value);
    return 4;
}

static size_t make_entry(uint8_t *out) {
    size_t at = 4;
    memcpy(out, "kLT\1", 4);
    for (uint32_t changes = dice(4); changes; changes--) {
        int put = dice(2) != 0;
        uint32_t count = dice(3);
        out[at++] = put ? 0x20 : 0x21;
        at += put_u32(out + at, dice(2));
        at += put_u32(out + at, count);
        for (uint32_t i = 0; i < count * (put ? 2 : 1); i++) at += put_u32(out + at, 1);
        for (uint32_t i = 0; i < count * (put ? 2 : 1); i++) out[at++] = 'b';
    }
    REQUIRE(at <= ENTRY_MAX);
    if (!dice(4)) out[dice((uint32_t)at)] ^= (uint8_t)(1u << dice(8));
    if (!dice(4)) at = 1 + dice((uint32_t)at);
    return at;
}

static uint8_t *make_block(size_t *size) {
    uint8_t tags[RECORDS_MAX], data[RECORDS_MAX * ENTRY_MAX], out[2048];
    uint32_t sizes[RECORDS_MAX], count = 1 + dice(RECORDS_MAX);
    size_t used = 0;
    for (uint32_t i = 0; i < count; i++) {
        tags[i] = (uint8_t)(dice(8) ? 0 : 1);
        sizes[i] = (uint32_t)make_entry(data + used);
        used += sizes[i];
    }
    ssize_t made = klk_block_encode(5, 1, count, tags, sizes, NULL, 0, data, used, out, sizeof out);
    REQUIRE(made > 0);
    *size = (size_t)made;
    return exact_copy(out, *size);
}

static ssize_t cut(const uint8_t *block, size_t size, size_t runs_max, size_t capacity) {
    struct klk_run *runs = exact(runs_max * sizeof *runs);
    char *format = exact(capacity);
    size_t used = 0;
    uint32_t apart_count = dice(3), *apart = exact(apart_count * sizeof *apart);
    for (uint32_t i = 0; i < apart_count; i++) apart[i] = 1 + 2 * i;
    ssize_t count =
        klk_runs_cut(block, size, UINT64_MAX, 1, 2, apart, apart_count, runs, runs_max, format,
                     capacity, &used);
    REQUIRE(count == KLK_ESPACE || count == KLK_ECORRUPT || (count >= 0 && used <= capacity));
    for (ssize_t i = 0; i < count; i++) {
        if (runs[i].operation) {
            plain++;
            REQUIRE(runs[i].table % 2 == 1 && runs[i].items > 0);
        } else {
            others++;
            REQUIRE((size_t)runs[i].offset + runs[i].size <= size);
        }
    }
    free(apart);
    free(runs);
    free(format);
    return count;
}

int main(void) {
    for (int i = 0; i < ROUNDS; i++) {
        size_t size;
        uint8_t *block = make_block(&size);
        size_t runs_max = size / KLK_RUN_BYTES_MIN + 1, capacity = 4 * size + 16;
        ssize_t count = cut(block, size, runs_max, capacity);
        REQUIRE(count >= 0);
        for (size_t less = 0; less < 4; less++) {
            short_of_room += cut(block, size, less, capacity) == KLK_ESPACE;
            short_of_room += cut(block, size, runs_max, dice(200)) == KLK_ESPACE;
        }
        block[32 + dice((uint32_t)size - 32)] ^= (uint8_t)(1u << dice(8));
        cut(block, size, runs_max, capacity);
        free(block);
    }
    uint8_t *block = exact(KLK_HEADER_SIZE);
    size_t used;
    char format[1];
    size_t short_of = KLK_HEADER_SIZE - 1;
    ssize_t none = klk_runs_cut(block, short_of, 0, 0, 1, NULL, 0, NULL, 0, format, 1, &used);
    REQUIRE(none == KLK_ECORRUPT);
    none = klk_runs_cut(block, KLK_HEADER_SIZE, 0, 0, 0, NULL, 0, NULL, 0, format, 1, &used);
    REQUIRE(none == KLK_EINVAL);
    free(block);
    REQUIRE(plain > ROUNDS && others > ROUNDS && short_of_room > ROUNDS);
    return 0;
}
