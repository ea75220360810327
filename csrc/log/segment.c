/* Segments of the log: written ahead with zeros, appended to, scanned
 * (docs/reference/disk-format.md). */
#define _GNU_SOURCE
#include "api.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PARTS_MAX = 64, ZERO_BYTES = 4096, SECTOR_BYTES = 512, HEADER_BITS = 256 };

/* ---- writing ---- */

static int write_all(int fd, uint64_t offset, struct iovec *parts, int count) {
    while (count > 0) {
        ssize_t written = pwritev(fd, parts, count, (off_t)offset);
        if (written < 0) {
            if (errno == EINTR) continue;
            return KLK_EOS;
        }
        if (written == 0) {
            errno = ENOSPC;
            return KLK_EOS;
        }
        offset += (uint64_t)written;
        size_t left = (size_t)written;
        while (count > 0 && left >= parts->iov_len) {
            left -= parts->iov_len;
            parts++;
            count--;
        }
        if (count > 0) {
            parts->iov_base = (uint8_t *)parts->iov_base + left;
            parts->iov_len -= left;
        }
    }
    return KLK_OK;
}

static int write_parts(int fd, uint64_t offset, const uint8_t *const *parts, const size_t *sizes,
                       size_t count) {
    struct iovec vector[PARTS_MAX];
    for (size_t start = 0; start < count;) {
        int held = 0;
        uint64_t size = 0;
        for (; held < PARTS_MAX && start < count; start++) {
            if (sizes[start] == 0) continue;
            /* The system only reads through this pointer. */
            memcpy(&vector[held].iov_base, &parts[start], sizeof(void *));
            vector[held++].iov_len = sizes[start];
            size += sizes[start];
        }
        int code = write_all(fd, offset, vector, held);
        if (code < 0) return code;
        offset += size;
    }
    return KLK_OK;
}

int klk_segment_write(const struct klk_segment *segment, uint64_t offset,
                      const uint8_t *const *parts, const size_t *sizes, size_t count) {
    uint64_t size = 0;
    for (size_t i = 0; i < count; i++) size += sizes[i];
    if (offset > segment->size || size > segment->size - offset) return KLK_ESPACE;
    return write_parts(segment->fd, offset, parts, sizes, count);
}

int klk_segment_sync(const struct klk_segment *segment) {
#if defined(__APPLE__)
    return fcntl(segment->fd, F_FULLFSYNC) ? KLK_EOS : KLK_OK;
#else
    return fdatasync(segment->fd) ? KLK_EOS : KLK_OK;
#endif
}

int klk_segment_zero(int fd, uint64_t offset, uint64_t size) {
    static const uint8_t zeros[ZERO_BYTES];
    for (uint64_t done = 0; done < size;) {
        size_t piece = size - done < ZERO_BYTES ? (size_t)(size - done) : ZERO_BYTES;
        const uint8_t *part = zeros;
        int code = write_parts(fd, offset + done, &part, &piece, 1);
        if (code < 0) return code;
        done += piece;
    }
    (void)klk_segment_write_back(fd, offset, size); /* A disk that fails fails the sync, too. */
    return KLK_OK;
}

int klk_segment_free(int fd, uint64_t offset, uint64_t size) {
#if defined(__linux__)
    int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    return fallocate(fd, mode, (off_t)offset, (off_t)size) ? KLK_EOS : KLK_OK;
#elif defined(__APPLE__)
    fpunchhole_t hole = {.fp_offset = (off_t)offset, .fp_length = (off_t)size};
    return fcntl(fd, F_PUNCHHOLE, &hole) ? KLK_EOS : KLK_OK;
#else
    (void)fd, (void)offset, (void)size;
    errno = ENOTSUP;
    return KLK_EOS;
#endif
}

int klk_segment_write_back(int fd, uint64_t offset, uint64_t size) {
#if defined(__linux__)
    if (sync_file_range(fd, (off_t)offset, (off_t)size, SYNC_FILE_RANGE_WRITE)) return KLK_EOS;
#else
    (void)fd, (void)offset, (void)size;
#endif
    return KLK_OK;
}

/* ---- scanning ---- */

size_t klk_zeros(const uint8_t *data, size_t size) {
    size_t at = 0;
    while (at < size && (at & 7) != 0 && data[at] == 0) at++;
    for (; size - at >= 8; at += 8) {
        uint64_t word;
        memcpy(&word, data + at, 8);
        if (word != 0) break;
    }
    while (at < size && data[at] == 0) at++;
    return at;
}

static int all_zero(const uint8_t *data, size_t size) { return klk_zeros(data, size) == size; }

static int follows(const struct klk_scan *scan, const struct klk_header *header) {
    if (header->magic == KLK_MAGIC_MARK) return header->first_index <= scan->offset;
    return header->first_index == scan->next_index && header->term >= scan->term;
}

int klk_segment_scan(const uint8_t *data, size_t size, struct klk_scan *scan, uint64_t *runs,
                     uint32_t capacity) {
    struct klk_header header;
    scan->runs = 0;
    scan->order = 0;
    while (scan->offset < size) {
        const uint8_t *at = data + scan->offset;
        ssize_t block_size = klk_block_check(at, size - (size_t)scan->offset, &header);
        if (block_size < 0) {
            if (all_zero(at, size - (size_t)scan->offset)) return KLK_OK;
            return (int)block_size;
        }
        if (!follows(scan, &header)) {
            scan->order = 1;
            return KLK_ECORRUPT;
        }
        if (header.magic == KLK_MAGIC_MARK) {
            if (header.first_index > scan->synced) scan->synced = header.first_index;
            scan->epoch = header.term;
        } else {
            if (header.term > scan->term) {
                if (scan->runs == capacity) return KLK_ESPACE;
                runs[2 * scan->runs] = header.first_index;
                runs[2 * scan->runs + 1] = header.term;
                scan->runs++;
            }
            scan->next_index += header.count;
            scan->term = header.term;
        }
        scan->offset += (uint64_t)block_size;
    }
    return KLK_OK;
}

/* The offset after the last byte that is not zero. */
static size_t written_end(const uint8_t *data, size_t size) {
    while (size > 0 && data[size - 1] == 0) size--;
    return size;
}

static int is_synced_by_later_mark(const uint8_t *data, size_t size, uint64_t offset) {
    struct klk_header header;
    for (size_t at = (size_t)offset; size - at >= KLK_HEADER_SIZE; at += 8) {
        klk_header_read(data + at, &header);
        if (header.magic != KLK_MAGIC_MARK) continue;
        if (header.first_index <= offset || header.first_index > at) continue;
        if (klk_block_check(data + at, size - at, &header) > 0) return 1;
    }
    return 0;
}

/* The header says how far the checksum reaches, so try every single bit of it. */
static int header_flipped(const uint8_t *block, size_t size) {
    uint8_t tried[KLK_HEADER_SIZE];
    struct klk_header header;
    for (unsigned bit = 0; bit < HEADER_BITS; bit++) {
        memcpy(tried, block, sizeof tried);
        tried[bit / 8] ^= (uint8_t)(1u << bit % 8);
        klk_header_read(tried, &header);
        if (header.magic != KLK_MAGIC_BLOCK && header.magic != KLK_MAGIC_MARK) continue;
        if (header.magic == KLK_MAGIC_MARK && header.payload_size > 0) continue;
        if (header.payload_size > size - KLK_HEADER_SIZE) continue;
        uint32_t crc = klk_crc32c(0, tried + 8, KLK_HEADER_SIZE - 8);
        if (klk_crc32c(crc, block + KLK_HEADER_SIZE, header.payload_size) == header.crc) return 1;
    }
    return 0;
}

/* One flipped bit changes the checksum by a value that depends only on its distance from the end:
 * walk back from the last bit and compare. */
static int payload_flipped(const uint8_t *block, size_t size) {
    struct klk_header header;
    klk_header_read(block, &header);
    if (header.magic != KLK_MAGIC_BLOCK || header.payload_size > size - KLK_HEADER_SIZE) return 0;
    uint32_t found = klk_crc32c(0, block + 8, KLK_HEADER_SIZE - 8 + header.payload_size);
    uint32_t difference = found ^ header.crc;
    if (difference == 0) return 1; /* a bit of the padding, or the block was written like this */
    uint32_t change = 0x82f63b78u; /* of the last byte's highest bit */
    for (uint64_t bits = (uint64_t)header.payload_size * 8; bits > 0; bits--) {
        if (change == difference) return 1;
        change = change >> 1 ^ (0x82f63b78u & (0u - (change & 1u)));
    }
    return 0;
}

/* A sector that never reached the disk still holds the zeros that were written ahead. */
static int sector_missing(const uint8_t *data, size_t size, uint64_t offset) {
    struct klk_header header;
    size_t end = written_end(data, size);
    size_t claimed = (size_t)offset + KLK_HEADER_SIZE;
    if (size - (size_t)offset >= KLK_HEADER_SIZE) {
        klk_header_read(data + offset, &header);
        if (header.magic == KLK_MAGIC_BLOCK) claimed += header.payload_size;
    }
    if (claimed > end) end = claimed;
    if (end > size) end = size;
    for (size_t from = (size_t)offset; from < end;) {
        size_t to = (from / SECTOR_BYTES + 1) * SECTOR_BYTES;
        if (to > end) to = end;
        if (all_zero(data + from, to - from)) return 1;
        from = to;
    }
    return 0;
}

int klk_segment_judge(const uint8_t *data, size_t size, uint64_t offset) {
    struct klk_header header;
    const uint8_t *at = data + offset;
    size_t left = size - (size_t)offset;
    if (is_synced_by_later_mark(data, size, offset)) return KLK_ECORRUPT;
    if (left < KLK_HEADER_SIZE) return KLK_ETORN;
    if (header_flipped(at, left)) return KLK_ECORRUPT;
    if (klk_block_check(at, left, &header) == KLK_ETORN) return KLK_ETORN; /* the file was cut */
    if (payload_flipped(at, left)) return KLK_ECORRUPT;
    return sector_missing(data, size, offset) ? KLK_ETORN : KLK_ECORRUPT;
}

/* ---- reading ---- */

int klk_segment_find(const uint8_t *data, size_t size, uint64_t index, uint64_t *offset) {
    struct klk_header header;
    while (*offset < size && size - *offset >= KLK_HEADER_SIZE) {
        klk_header_read(data + *offset, &header);
        if (header.magic == KLK_MAGIC_BLOCK) {
            if (index < header.first_index) return 0;
            if (index - header.first_index < header.count) return 1;
        } else if (header.magic != KLK_MAGIC_MARK) {
            return 0;
        }
        *offset += klk_block_size(header.payload_size);
    }
    return 0;
}

ssize_t klk_segment_blocks(const uint8_t *data, size_t size, struct klk_block_info *places,
                           uint32_t capacity, uint64_t *used) {
    struct klk_header header;
    uint32_t count = 0;
    size_t at = 0;
    while (count < capacity) {
        ssize_t block_size = klk_block_check(data + at, size - at, &header);
        if (block_size < 0) break;
        if (header.magic == KLK_MAGIC_BLOCK) {
            places[count++] = (struct klk_block_info){.offset = at,
                                                 .first_index = header.first_index,
                                                 .term = header.term,
                                                 .size = (uint32_t)block_size,
                                                 .count = header.count};
        }
        at += (size_t)block_size;
    }
    *used = at;
    return count;
}
