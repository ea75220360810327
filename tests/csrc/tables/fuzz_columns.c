/* Sizes, offsets and columns of keys and values, which come in messages of clients and tables. */
#include "fuzz.h"

size_t fuzz_seed(uint32_t number, uint8_t *out) {
    if (number > 5) return 0;
    size_t used = 0;
    out[used++] = (uint8_t)number;
    klk_put_u32(out + used, 4); /* The number of sizes, or of bytes of the first offsets. */
    used += 4;
    for (uint32_t i = 0; i < 4; i++, used += 4)
        klk_put_u32(out + used, number % 2 ? 3 * i : 3);
    memset(out + used, 'k', 12);
    return used + 12;
}

static void format(const uint8_t *data, size_t size, uint32_t count) {
    for (int columns = 1; columns < 3; columns++) {
        uint64_t bytes, wanted = (uint64_t)count * (uint64_t)columns;
        if (wanted > size / 4) wanted = size / 4;
        size_t capacity = 1 + KLK_FORMAT_ITEM_MAX * (size_t)wanted;
        char *out = exact(capacity);
        ssize_t code = klk_sizes_format(data, size, count, columns, out, capacity, &bytes);
        REQUIRE(code != KLK_ESPACE && code <= (ssize_t)capacity);
        if (code > 0) REQUIRE(4 * (uint64_t)count * (uint64_t)columns + bytes <= size);
        code = klk_sizes_format(data, size, count, columns, out, capacity / 2, &bytes);
        REQUIRE(code <= (ssize_t)(capacity / 2));
        klk_sizes_check(data, wanted, columns);
        free(out);
    }
}

static void format_offsets(const uint8_t *data, size_t size, uint32_t column_size) {
    if (size < 4) return;
    uint32_t count = (uint32_t)(size / 4 - 1);
    size_t capacity = 1 + KLK_FORMAT_ITEM_MAX * (size_t)count;
    char *out = exact(capacity);
    REQUIRE(klk_offsets_format(data, count, column_size, out, capacity) != KLK_ESPACE);
    free(out);
}

/* The same offsets for both columns; what joined is split again. */
static void join(const uint8_t *data, size_t size, uint32_t offsets_size) {
    if (offsets_size > size) offsets_size = (uint32_t)size;
    uint8_t *offsets = exact_copy(data, offsets_size);
    uint8_t *bytes = exact_copy(data + offsets_size, size - offsets_size);
    struct klk_packed column = {offsets, bytes, offsets_size, size - offsets_size};
    struct klk_packed columns[] = {column, column};
    struct klk_messages out = messages_new(8, 1);
    int code;
    while ((code = klk_columns_join(&out, columns)) == KLK_EFULL)
        messages_grow(&out, 2 * out.bytes_max, 2 * out.frames_max);
    REQUIRE(code == KLK_OK || code == KLK_EINVAL);
    if (code == KLK_OK) {
        char *text = exact(1 + KLK_FORMAT_FRAME_MAX * (size_t)out.frames);
        klk_frames_format(out.offsets, out.frames, text);
        free(text);
    }
    messages_free(&out);
    free(offsets);
    free(bytes);
}

static void part(const uint8_t *data, size_t size) {
    if (size < 4) return;
    uint32_t count = (uint32_t)(size / 4 - 1), *offsets = exact(4 * ((size_t)count + 1));
    for (uint32_t i = 0; i <= count; i++) offsets[i] = klk_get_u32(data + 4 * i) % 5000;
    uint32_t bytes = offsets[count] > offsets[0] ? offsets[count] - offsets[0] : 0;
    uint8_t *joined = exact(bytes);
    struct klk_column columns[2];
    for (int i = 0; i < 2; i++)
        columns[i] = (struct klk_column){exact(((size_t)count / 2 + 1) * 4), exact(bytes)};
    int code = klk_columns_part(offsets, count, joined, columns);
    REQUIRE(code == KLK_OK || code == KLK_EINVAL);
    for (int i = 0; i < 2; i++) {
        free(columns[i].offsets);
        free(columns[i].data);
    }
    free(joined);
    free(offsets);
}

static void add(const uint8_t *data, size_t size) {
    uint32_t count = (uint32_t)(size / 8), *sizes = exact(4 * (size_t)count);
    for (uint32_t i = 0; i < count; i++) sizes[i] = klk_get_u32(data + 4 * i);
    size_t left = size - 4 * (size_t)count;
    uint8_t *bytes = exact_copy(data + 4 * (size_t)count, left);
    struct klk_messages out = messages_new((uint32_t)left, count);
    int code = klk_messages_add(&out, sizes, count, bytes, left);
    REQUIRE(code == KLK_OK || code == KLK_EINVAL);
    messages_free(&out);
    free(bytes);
    free(sizes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz_input in = {data, size};
    uint8_t mode = fuzz_u8(&in);
    uint32_t count = fuzz_u32(&in);
    size = in.left;
    uint8_t *rest = fuzz_rest(&in);
    switch (mode % 6) {
    case 0: format(rest, size, count); break;
    case 1: format_offsets(rest, size, count); break;
    case 2:
    case 3: join(rest, size, count); break;
    case 4: part(rest, size); break;
    default: add(rest, size); break;
    }
    free(rest);
    return 0;
}
