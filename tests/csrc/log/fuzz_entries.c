/* Entries in the specification's form, as peers and clients send them: each frame is one. */
#include "fuzz.h"

size_t fuzz_seed(uint32_t number, uint8_t *out) {
    if (number > 1) return 0;
    uint8_t entry[KLK_ENTRY_PREFIX + 8] = {0}, *at = out;
    for (uint8_t i = 0; i < 5; i++) {
        fuzz_reqid(entry, 1000, i);
        klk_put_u64(entry + 12, (number ? i % 3u : 0u) | (uint64_t)(1 + i / 2) << 8);
        at = fuzz_put(at, entry, KLK_ENTRY_PREFIX + i, 0);
    }
    return (size_t)(at - out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz_input in = {data, size};
    struct klk_messages frames = fuzz_messages(&in);
    uint32_t *sizes = exact(frames.frames * sizeof *sizes), done = 0;
    for (uint32_t i = 0; i < frames.frames; i++)
        sizes[i] = frames.offsets[i + 1] - frames.offsets[i];
    while (done < frames.frames) {
        size_t offset = frames.offsets[done], left = klk_messages_bytes(&frames) - offset;
        uint8_t *part = exact_copy(frames.bytes + offset, left), *out = exact(klk_block_size(left));
        uint32_t used, count = frames.frames - done, *own = exact(count * sizeof *own);
        memcpy(own, sizes + done, count * sizeof *own);
        ssize_t made = klk_block_from_entries(1 + done, part, left, own, count, out, &used);
        struct klk_header header;
        REQUIRE(made == KLK_ECORRUPT || (made > 0 && used > 0 && used <= count));
        if (made > 0) {
            REQUIRE(klk_block_check(out, (size_t)made, &header) == made && header.count == used);
            done += used;
        } else {
            done++; /* Behind the malformed one, perhaps. */
        }
        free(own);
        free(part);
        free(out);
    }
    free(sizes);
    messages_free(&frames);
    return 0;
}
