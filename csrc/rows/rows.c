/* Rows of typed tables between Arrow's columns and MessagePack, a batch at a time. */
#include <string.h>

#include "api.h"
#include "rows.h"

static const uint8_t WIDTHS[KLK_CELL_KINDS] = {0, 1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 16, 0, 0, 0};

enum { DECIMAL_BYTES = 16 };

static int is_sized(uint32_t kind) { return kind >= KLK_CELL_UTF8; }

static int bit_at(const uint8_t *bits, uint64_t place) { return bits[place / 8] >> place % 8 & 1; }

static void bit_set(uint8_t *bits, uint32_t place) {
    bits[place / 8] = (uint8_t)(bits[place / 8] | 1u << place % 8);
}

/* ---- encoding: out may be NULL, then only sizes are counted ---- */

static size_t put_be(uint8_t *out, uint8_t head, uint64_t value, size_t width) {
    if (out) {
        *out++ = head;
        for (size_t i = 0; i < width; i++) out[i] = (uint8_t)(value >> 8 * (width - 1 - i));
    }
    return 1 + width;
}

static size_t put_unsigned(uint8_t *out, uint64_t value) {
    if (value < 0x80) return put_be(out, (uint8_t)value, 0, 0);
    if (value <= UINT8_MAX) return put_be(out, 0xcc, value, 1);
    if (value <= UINT16_MAX) return put_be(out, 0xcd, value, 2);
    if (value <= UINT32_MAX) return put_be(out, 0xce, value, 4);
    return put_be(out, 0xcf, value, 8);
}

static size_t put_signed(uint8_t *out, int64_t value) {
    uint64_t bits = (uint64_t)value;
    if (value >= 0) return put_unsigned(out, bits);
    if (value >= -32) return put_be(out, (uint8_t)bits, 0, 0);
    if (value >= INT8_MIN) return put_be(out, 0xd0, bits, 1);
    if (value >= INT16_MIN) return put_be(out, 0xd1, bits, 2);
    if (value >= INT32_MIN) return put_be(out, 0xd2, bits, 4);
    return put_be(out, 0xd3, bits, 8);
}

static size_t put_bytes(uint8_t *out, const uint8_t *data, size_t size) {
    if (out && size) memcpy(out, data, size);
    return size;
}

static size_t put_text_head(uint8_t *out, size_t size) {
    if (size < 32) return put_be(out, (uint8_t)(0xa0 | size), 0, 0);
    if (size <= UINT8_MAX) return put_be(out, 0xd9, size, 1);
    return size <= UINT16_MAX ? put_be(out, 0xda, size, 2) : put_be(out, 0xdb, size, 4);
}

static size_t put_binary_head(uint8_t *out, size_t size) {
    if (size <= UINT8_MAX) return put_be(out, 0xc4, size, 1);
    return size <= UINT16_MAX ? put_be(out, 0xc5, size, 2) : put_be(out, 0xc6, size, 4);
}

static size_t put_row_head(uint8_t *out, uint32_t count) {
    if (count < 16) return put_be(out, (uint8_t)(0x90 | count), 0, 0);
    return count <= UINT16_MAX ? put_be(out, 0xdc, count, 2) : put_be(out, 0xdd, count, 4);
}

static size_t put_decimal(uint8_t *out, const uint8_t *data) {
    uint64_t low, high;
    memcpy(&low, data, 8);
    memcpy(&high, data + 8, 8);
    if (high == (low >> 63 ? UINT64_MAX : 0)) return put_signed(out, (int64_t)low);
    size_t used = put_binary_head(out, DECIMAL_BYTES);
    if (out)
        for (size_t i = 0; i < DECIMAL_BYTES; i++) out[used + i] = data[DECIMAL_BYTES - 1 - i];
    return used + DECIMAL_BYTES;
}

static size_t put_fixed(uint8_t *out, uint32_t kind, const uint8_t *data) {
    union { int8_t i8; int16_t i16; int32_t i32; int64_t i64;
            uint8_t u8; uint16_t u16; uint32_t u32; uint64_t u64; } value;
    if (kind == KLK_CELL_DECIMAL) return put_decimal(out, data);
    memcpy(&value, data, WIDTHS[kind]);
    switch (kind) {
    case KLK_CELL_I8: return put_signed(out, value.i8);
    case KLK_CELL_I16: return put_signed(out, value.i16);
    case KLK_CELL_I32: return put_signed(out, value.i32);
    case KLK_CELL_I64: return put_signed(out, value.i64);
    case KLK_CELL_U8: return put_unsigned(out, value.u8);
    case KLK_CELL_U16: return put_unsigned(out, value.u16);
    case KLK_CELL_U32: return put_unsigned(out, value.u32);
    case KLK_CELL_F32: return put_be(out, 0xca, value.u32, 4);
    case KLK_CELL_F64: return put_be(out, 0xcb, value.u64, 8);
    default: return put_unsigned(out, value.u64);
    }
}

static size_t put_cell(uint8_t *out, const struct klk_cells *column, uint32_t row) {
    uint64_t at = column->first + row;
    if (column->valid && !bit_at(column->valid, at)) return put_be(out, 0xc0, 0, 0);
    if (column->kind == KLK_CELL_BOOL)
        return put_be(out, bit_at(column->data, at) ? 0xc3 : 0xc2, 0, 0);
    if (!is_sized(column->kind))
        return put_fixed(out, column->kind, column->data + at * WIDTHS[column->kind]);
    size_t start = (size_t)column->offsets[at], size = (size_t)column->offsets[at + 1] - start;
    size_t used = 0;
    if (column->kind == KLK_CELL_UTF8) used = put_text_head(out, size);
    if (column->kind == KLK_CELL_BINARY) used = put_binary_head(out, size);
    return used + put_bytes(out ? out + used : NULL, column->data + start, size);
}

int klk_rows_size(const struct klk_cells *columns, uint32_t count, uint32_t rows,
                  int32_t *offsets) {
    for (uint32_t c = 0; c < count; c++)
        if (columns[c].kind >= KLK_CELL_KINDS) return KLK_EINVAL;
    size_t size = 0;
    offsets[0] = 0;
    for (uint32_t row = 0; row < rows; row++) {
        size += put_row_head(NULL, count);
        for (uint32_t c = 0; c < count; c++) size += put_cell(NULL, &columns[c], row);
        if (size > INT32_MAX) return KLK_ESPACE;
        offsets[row + 1] = (int32_t)size;
    }
    return KLK_OK;
}

void klk_rows_encode(const struct klk_cells *columns, uint32_t count, uint32_t rows,
                     uint8_t *out) {
    for (uint32_t row = 0; row < rows; row++) {
        out += put_row_head(out, count);
        for (uint32_t c = 0; c < count; c++) out += put_cell(out, &columns[c], row);
    }
}

/* ---- decoding ---- */

struct reader {
    const uint8_t *at, *end;
};

/* The first byte of an item, and what follows it: a number, or a size. */
struct head {
    uint8_t byte;
    uint64_t number;
};

static int read_be(struct reader *in, size_t width, uint64_t *number) {
    if ((size_t)(in->end - in->at) < width) return 0;
    uint64_t value = 0;
    for (size_t i = 0; i < width; i++) value = value << 8 | *in->at++;
    *number = value;
    return 1;
}

/* By the first byte of an item: the bytes behind it; MANY: that is not known by it alone. */
enum { MANY = 0xff };
#define ROW(x) x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x
static const uint8_t REST[256] = {
    ROW(0), ROW(0), ROW(0), ROW(0), ROW(0), ROW(0), ROW(0), ROW(0), ROW(MANY), ROW(MANY),
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
    0, MANY, 0, 0, MANY, MANY, MANY, MANY, MANY, MANY, 4, 8, 1, 2, 4, 8,
    1, 2, 4, 8, MANY, MANY, MANY, MANY, MANY, MANY, MANY, MANY, MANY, MANY, MANY, MANY,
    ROW(0), ROW(0)};
#undef ROW

/* Bytes of the number behind the first byte, by that byte from 0xc0 to 0xdf. */
static const uint8_t NUMBERS[32] = {0, 0, 0, 0, 1, 2, 4, 1, 2, 4, 4, 8, 1, 2, 4, 8,
                                    1, 2, 4, 8, 0, 0, 0, 0, 0, 1, 2, 4, 2, 4, 2, 4};

static int read_head(struct reader *in, struct head *head) {
    uint64_t byte;
    if (!read_be(in, 1, &byte)) return 0;
    head->byte = (uint8_t)byte;
    head->number = 0;
    if (byte < 0x80) head->number = byte;
    if (byte >= 0x80 && byte < 0xa0) head->number = byte & 0xf;
    if (byte >= 0xa0 && byte < 0xc0) head->number = byte & 0x1f;
    if (byte >= 0xe0) head->number = (uint64_t)(int64_t)(int8_t)byte;
    if (byte >= 0xc0 && byte < 0xe0) return read_be(in, NUMBERS[byte - 0xc0], &head->number);
    return 1;
}

static int is_text(uint8_t byte) {
    return (byte >= 0xa0 && byte < 0xc0) || (byte >= 0xd9 && byte <= 0xdb);
}

static int is_binary(uint8_t byte) { return byte >= 0xc4 && byte <= 0xc6; }

static int is_array(uint8_t byte) {
    return (byte >= 0x90 && byte < 0xa0) || byte == 0xdc || byte == 0xdd;
}

static int is_map(uint8_t byte) {
    return (byte >= 0x80 && byte < 0x90) || byte == 0xde || byte == 0xdf;
}

static int is_extension(uint8_t byte) {
    return (byte >= 0xc7 && byte <= 0xc9) || (byte >= 0xd4 && byte <= 0xd8);
}

/* Steps over the bytes and items that belong to a head. Each item has a byte at least, so the work
 * is bounded by the bytes. */
static int skip_rest(struct reader *in, struct head head) {
    uint64_t items = 0;
    for (;;) {
        uint64_t left = (uint64_t)(in->end - in->at), size = 0;
        if (head.byte == 0xc1) return 0;
        if (is_text(head.byte) || is_binary(head.byte)) size = head.number;
        if (is_extension(head.byte))
            size = 1 + (head.byte >= 0xd4 ? 1ull << (head.byte - 0xd4) : head.number);
        if (size > left) return 0;
        in->at += size;
        if (is_array(head.byte)) items += head.number;
        if (is_map(head.byte)) items += 2 * head.number;
        if (items > left) return 0;
        if (items-- == 0) return 1;
        if (!read_head(in, &head)) return 0;
    }
}

/* Steps over an item. */
static inline int skip_item(struct reader *in) {
    size_t left = (size_t)(in->end - in->at);
    if (left && REST[*in->at] < left && REST[*in->at] != MANY) {
        in->at += 1 + REST[*in->at];
        return 1;
    }
    struct head head;
    return read_head(in, &head) && skip_rest(in, head);
}

/* A whole number as its bits in 64, and whether it is below zero. */
static int read_integer(struct head head, int64_t *number, int *is_negative) {
    uint64_t bits = head.number;
    if (head.byte >= 0xd0 && head.byte <= 0xd3) {
        unsigned unused = 64 - 8u * NUMBERS[head.byte - 0xc0];
        int64_t shifted;
        bits <<= unused;
        memcpy(&shifted, &bits, 8);
        *number = shifted / (int64_t)(1ull << unused);
        *is_negative = shifted < 0;
        return 1;
    }
    if (head.byte < 0x80 || (head.byte >= 0xcc && head.byte <= 0xcf)) {
        *number = (int64_t)bits;
        *is_negative = 0;
        return 1;
    }
    *number = (int64_t)bits;
    *is_negative = 1;
    return head.byte >= 0xe0;
}

static int read_signed(struct head head, unsigned width, uint8_t *out) {
    int64_t number, most = INT64_MAX >> (64 - 8 * width);
    int is_negative;
    if (!read_integer(head, &number, &is_negative)) return 0;
    if (is_negative ? number < -most - 1 : number < 0 || number > most) return 0;
    union { int8_t i8; int16_t i16; int32_t i32; int64_t i64; } value;
    switch (width) {
    case 1: value.i8 = (int8_t)number; break;
    case 2: value.i16 = (int16_t)number; break;
    case 4: value.i32 = (int32_t)number; break;
    default: value.i64 = number; break;
    }
    memcpy(out, &value, width);
    return 1;
}

static int read_unsigned(struct head head, unsigned width, uint8_t *out) {
    int64_t number;
    int is_negative;
    if (!read_integer(head, &number, &is_negative) || is_negative) return 0;
    if ((uint64_t)number > UINT64_MAX >> (64 - 8 * width)) return 0;
    union { uint8_t u8; uint16_t u16; uint32_t u32; uint64_t u64; } value;
    switch (width) {
    case 1: value.u8 = (uint8_t)number; break;
    case 2: value.u16 = (uint16_t)number; break;
    case 4: value.u32 = (uint32_t)number; break;
    default: value.u64 = (uint64_t)number; break;
    }
    memcpy(out, &value, width);
    return 1;
}

static int read_float(struct head head, uint32_t kind, uint8_t *out) {
    uint32_t bits = (uint32_t)head.number;
    if (kind == KLK_CELL_F32) {
        memcpy(out, &bits, 4);
        return head.byte == 0xca;
    }
    double value;
    memcpy(&value, &head.number, 8);
    if (head.byte == 0xca) {
        float narrow;
        memcpy(&narrow, &bits, 4);
        value = narrow;
    }
    memcpy(out, &value, 8);
    return head.byte == 0xca || head.byte == 0xcb;
}

static int read_decimal(struct reader *in, struct head head, uint8_t *out) {
    if (is_binary(head.byte)) {
        if (head.number != DECIMAL_BYTES || in->end - in->at < DECIMAL_BYTES) return 0;
        for (size_t i = 0; i < DECIMAL_BYTES; i++) out[i] = in->at[DECIMAL_BYTES - 1 - i];
        in->at += DECIMAL_BYTES;
        return 1;
    }
    int64_t number;
    int is_negative;
    if (!read_integer(head, &number, &is_negative) || (number < 0 && !is_negative)) return 0;
    memcpy(out, &number, 8);
    memset(out + 8, is_negative ? 0xff : 0, 8);
    return 1;
}

/* An item of one size; `out` has its place in the column. */
static int read_fixed(struct reader *in, struct head head, uint32_t kind, uint8_t *out) {
    if (kind == KLK_CELL_DECIMAL) return read_decimal(in, head, out);
    if (kind >= KLK_CELL_F32) return read_float(head, kind, out);
    if (kind >= KLK_CELL_U8) return read_unsigned(head, WIDTHS[kind], out);
    return read_signed(head, WIDTHS[kind], out);
}

static int read_cell(struct reader *in, const uint8_t *data, struct klk_wanted *wanted,
                     uint32_t row) {
    const uint8_t *before = in->at;
    struct head head;
    if (!read_head(in, &head)) return 0;
    uint32_t kind = wanted->kind;
    if (head.byte == 0xc0) return 1;
    bit_set(wanted->valid, row);
    if (kind == KLK_CELL_BOOL) {
        if (head.byte == 0xc3) bit_set(wanted->data, row);
        return head.byte == 0xc2 || head.byte == 0xc3;
    }
    if (!is_sized(kind))
        return read_fixed(in, head, kind, wanted->data + (size_t)row * WIDTHS[kind]);
    if (kind == KLK_CELL_UTF8 && !is_text(head.byte)) return 0;
    if (kind == KLK_CELL_BINARY && !is_binary(head.byte)) return 0;
    const uint8_t *start = kind == KLK_CELL_PACKED ? before : in->at;
    if (!skip_rest(in, head)) return 0;
    wanted->starts[row] = (uint32_t)(start - data);
    wanted->offsets[row + 1] = (int32_t)(in->at - start); /* Summed up at the end. */
    return 1;
}

static int read_row(struct reader in, const uint8_t *data, struct klk_wanted *wanted,
                    uint32_t count, uint32_t row, uint32_t *bad) {
    struct head head;
    bad[0] = row;
    bad[1] = 0;
    if (!read_head(&in, &head) || !is_array(head.byte)) return 0;
    uint64_t place = 0;
    for (uint32_t c = 0; c < count && wanted[c].place < head.number; c++, place++) {
        bad[1] = c;
        for (; place < wanted[c].place; place++)
            if (!skip_item(&in)) return 0;
        if (!read_cell(&in, data, &wanted[c], row)) return 0;
    }
    return 1;
}

int klk_rows_decode(const int32_t *offsets, const uint8_t *data, uint32_t rows,
                    struct klk_wanted *wanted, uint32_t count, uint32_t *bad) {
    for (uint32_t c = 0; c < count; c++)
        if (wanted[c].kind >= KLK_CELL_KINDS || (c && wanted[c].place <= wanted[c - 1].place))
            return KLK_EINVAL;
    for (uint32_t c = 0; c < count; c++)
        if (is_sized(wanted[c].kind)) {
            memset(wanted[c].offsets, 0, ((size_t)rows + 1) * sizeof *wanted[c].offsets);
            memset(wanted[c].starts, 0, rows * sizeof *wanted[c].starts);
        }
    uint32_t found[2];
    for (uint32_t row = 0; row < rows; row++) {
        struct reader in = {data + offsets[row], data + offsets[row + 1]};
        if (!read_row(in, data, wanted, count, row, found)) {
            memcpy(bad, found, sizeof found);
            return KLK_ECORRUPT;
        }
    }
    for (uint32_t c = 0; c < count; c++)
        if (is_sized(wanted[c].kind))
            for (uint32_t row = 0; row < rows; row++)
                wanted[c].offsets[row + 1] += wanted[c].offsets[row];
    return KLK_OK;
}

void klk_rows_gather(const uint8_t *data, const struct klk_wanted *wanted, uint32_t rows,
                     uint8_t *out) {
    for (uint32_t row = 0; row < rows; row++) {
        size_t start = (size_t)wanted->offsets[row], end = (size_t)wanted->offsets[row + 1];
        if (end > start) memcpy(out + start, data + wanted->starts[row], end - start);
    }
}
