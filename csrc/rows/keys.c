/* Keys of typed tables between Arrow's columns and bytes in the columns' order. */
#include <string.h>

#include "api.h"
#include "rows.h"

static const uint8_t WIDTHS[KLK_CELL_KINDS] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 16, 0, 0, 0};

enum { SIGN_BIT = 0x80 };

static int is_sized(uint32_t kind) { return kind >= KLK_CELL_UTF8; }

static int is_signed(uint32_t kind) {
    return (kind >= KLK_CELL_I8 && kind <= KLK_CELL_I64) || kind == KLK_CELL_DECIMAL;
}

static int is_float(uint32_t kind) { return kind == KLK_CELL_F32 || kind == KLK_CELL_F64; }

/* One zero and one NaN, whose bits are the lowest first. */
static void make_plain(uint32_t kind, uint8_t *bytes) {
    static const uint8_t NAN32[] = {0, 0, 0xc0, 0x7f}, NAN64[] = {0, 0, 0, 0, 0, 0, 0xf8, 0x7f};
    double value;
    float narrow;
    if (kind == KLK_CELL_F32) {
        memcpy(&narrow, bytes, 4);
        value = narrow;
    } else
        memcpy(&value, bytes, 8);
    if (value != value) memcpy(bytes, kind == KLK_CELL_F32 ? NAN32 : NAN64, WIDTHS[kind]);
    else if (value == 0) memset(bytes, 0, WIDTHS[kind]);
}

static void put_number(uint8_t *out, uint32_t kind, const uint8_t *data) {
    uint8_t bytes[16];
    size_t width = WIDTHS[kind];
    memcpy(bytes, data, width);
    if (is_float(kind)) make_plain(kind, bytes);
    for (size_t i = 0; i < width; i++) out[i] = bytes[width - 1 - i];
    if (is_signed(kind)) out[0] ^= SIGN_BIT;
    if (!is_float(kind)) return;
    uint8_t mask = out[0] & SIGN_BIT ? 0xff : 0;
    for (size_t i = 0; i < width; i++) out[i] ^= mask;
    if (!mask) out[0] ^= SIGN_BIT;
}

static void get_number(uint8_t *out, uint32_t kind, const uint8_t *data) {
    uint8_t bytes[16];
    size_t width = WIDTHS[kind];
    memcpy(bytes, data, width);
    if (is_signed(kind)) bytes[0] ^= SIGN_BIT;
    if (is_float(kind)) {
        uint8_t mask = bytes[0] & SIGN_BIT ? 0 : 0xff;
        for (size_t i = 0; i < width; i++) bytes[i] ^= mask;
        if (!mask) bytes[0] ^= SIGN_BIT;
    }
    for (size_t i = 0; i < width; i++) out[i] = bytes[width - 1 - i];
}

/* Text or bytes in front of other columns. */
static size_t put_escaped(uint8_t *out, const uint8_t *data, size_t size) {
    size_t used = 0;
    for (size_t i = 0; i < size; i++) {
        if (out) out[used] = data[i];
        used++;
        if (data[i]) continue;
        if (out) out[used] = 0xff;
        used++;
    }
    if (out) out[used] = out[used + 1] = 0;
    return used + 2;
}

static size_t put_part(uint8_t *out, const struct klk_cells *column, uint32_t row, int is_last) {
    uint64_t at = column->first + row;
    if (column->kind == KLK_CELL_BOOL) {
        if (out) *out = (uint8_t)(column->data[at / 8] >> at % 8 & 1);
        return 1;
    }
    if (!is_sized(column->kind)) {
        size_t width = WIDTHS[column->kind];
        if (out) put_number(out, column->kind, column->data + at * width);
        return width;
    }
    size_t start = (size_t)column->offsets[at], size = (size_t)column->offsets[at + 1] - start;
    if (!is_last) return put_escaped(out, column->data + start, size);
    if (out && size) memcpy(out, column->data + start, size);
    return size;
}

int klk_keys_size(const struct klk_cells *columns, uint32_t count, uint32_t rows,
                  int32_t *offsets) {
    for (uint32_t c = 0; c < count; c++)
        if (columns[c].kind >= KLK_CELL_PACKED) return KLK_EINVAL;
    size_t size = 0;
    offsets[0] = 0;
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t c = 0; c < count; c++)
            size += put_part(NULL, &columns[c], row, c + 1 == count);
        if (size > INT32_MAX) return KLK_ESPACE;
        offsets[row + 1] = (int32_t)size;
    }
    return KLK_OK;
}

void klk_keys_encode(const struct klk_cells *columns, uint32_t count, uint32_t rows,
                     uint8_t *out) {
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t c = 0; c < count; c++)
            out += put_part(out, &columns[c], row, c + 1 == count);
}

/* Reads text or bytes in front of other columns; returns what it used of the key, 0: malformed. */
static size_t get_escaped(const uint8_t *data, size_t size, uint8_t *out, size_t *written) {
    size_t at = 0, used = 0;
    while (at + 1 < size) {
        if (data[at] != 0) {
            out[used++] = data[at++];
            continue;
        }
        if (data[at + 1] != 0xff) {
            *written = used;
            return data[at + 1] == 0 ? at + 2 : 0;
        }
        out[used++] = 0;
        at += 2;
    }
    return 0;
}

/* Reads a column of a key; returns what it used, 0: malformed, or an empty last column. */
static size_t get_part(const uint8_t *data, size_t size, struct klk_wanted *wanted, uint32_t row,
                       int is_last) {
    size_t width = WIDTHS[wanted->kind];
    if (is_sized(wanted->kind)) {
        size_t start = (size_t)wanted->offsets[row], written = size, used = size;
        if (!is_last) used = get_escaped(data, size, wanted->data + start, &written);
        else if (size) memcpy(wanted->data + start, data, size);
        if (used || is_last) wanted->offsets[row + 1] = (int32_t)(start + written);
        return used;
    }
    if (size < width || (is_last && size > width)) return 0;
    if (wanted->kind == KLK_CELL_BOOL) {
        if (data[0] > 1) return 0;
        wanted->data[row / 8] = (uint8_t)(wanted->data[row / 8] | data[0] << row % 8);
    } else
        get_number(wanted->data + (size_t)row * width, wanted->kind, data);
    return width;
}

int klk_keys_decode(const int32_t *offsets, const uint8_t *data, uint32_t rows,
                    struct klk_wanted *wanted, uint32_t count, uint32_t *bad) {
    for (uint32_t c = 0; c < count; c++) {
        if (wanted[c].kind >= KLK_CELL_PACKED) return KLK_EINVAL;
        if (is_sized(wanted[c].kind)) wanted[c].offsets[0] = 0;
    }
    for (uint32_t row = 0; row < rows; row++) {
        const uint8_t *at = data + offsets[row], *end = data + offsets[row + 1];
        for (uint32_t c = 0; c < count; c++) {
            int is_last = c + 1 == count;
            size_t used = get_part(at, (size_t)(end - at), &wanted[c], row, is_last);
            if (!used && !(is_last && is_sized(wanted[c].kind))) {
                bad[0] = row;
                bad[1] = c;
                return KLK_ECORRUPT;
            }
            at += used;
        }
    }
    return KLK_OK;
}
