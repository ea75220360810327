/* Tables of request ids, which come with a peer's snapshot. */
#include "fuzz.h"

enum { SLOT = sizeof(struct klk_reqid_slot) };

size_t fuzz_seed(uint32_t number, uint8_t *out) {
    if (number > 2) return 0;
    size_t used = 8;
    klk_put_u32(out, 900);            /* forgotten_s */
    klk_put_u32(out + 4, 900 + 2000); /* newest_s */
    for (uint8_t i = 0; i < 20 * number; i++, used += SLOT) {
        fuzz_reqid(out + used, 1000 + i, i);
        klk_put_u32(out + used + 12, 100u - i);
    }
    return used;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz_input in = {data, size};
    struct klk_reqids *reqids = fuzz_reqids_new();
    reqids->forgotten_s = fuzz_u32(&in);
    reqids->newest_s = fuzz_u32(&in);
    size = in.left / SLOT * SLOT;
    in.left = size;
    uint8_t *slots = fuzz_rest(&in);
    size_t offset = 0;
    uint64_t index = 0;
    int code;
    while ((code = klk_reqids_import(reqids, 100, slots, size, &offset, &index)) == KLK_EGROW)
        fuzz_reqids_grow(reqids);
    REQUIRE(code == KLK_OK || code == KLK_ECORRUPT || code == KLK_EINVAL);
    if (code == KLK_OK) { /* What was accepted is exported as it came. */
        struct klk_reqid_slot *out = exact(size);
        REQUIRE(klk_reqids_export(reqids, 100, out, size / SLOT) == (int64_t)(size / SLOT));
        REQUIRE(!size || memcmp(out, slots, size) == 0);
        free(out);
    }
    fuzz_reqids_free(reqids);
    free(slots);
    return 0;
}
