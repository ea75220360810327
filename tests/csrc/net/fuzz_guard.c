/* Messages of clients before their grants: of the log, of tables, of a broker. */
#include "fuzz.h"
#include "guard.h"

enum { RIGHT = 2 };

size_t fuzz_seed(uint32_t number, uint8_t *out) {
    static const char *const messages[][9] = {
        {"client", "id", "=", "data", NULL},
        {"client", "id", "k=", "demo", "", "records", NULL},
        {"client", "1\1\20", "#4", "key", NULL},
        {"client", "", "1\1\40", "#4", "key", "value", NULL},
        {"client", "1\1\44", "#9", "key", "value", "#9", "key", "value", NULL},
        {"client", "1\1\45", "#12", "#5", "key", "operand", NULL},
        {"client", "1\1\103", "lease", "\2", "#4", NULL},
        {"client", "CLIENT", "\1", "mail.send", "id", "body", NULL},
        {"client", "NAMED", "\1", "mail.send", "id", "options", "body", NULL},
        {"client", "", "MDPC01", "klk.list", "mail", NULL},
        {"client", "MDPC02", "\1", "mail.send", "body", NULL},
        {"client", "WORKER", "\1", "mail.send", NULL},
        {"client", "", "MDPW01", "\1", "mail.send", NULL},
    };
    if (number >= sizeof messages / sizeof *messages) return 0;
    uint8_t *at = out;
    *at++ = (uint8_t)(number < 2 ? 0 : number < 7 ? 1 : 2);
    at = fuzz_put_texts(at, messages[number]);
    return (size_t)(fuzz_put_texts(at, messages[number]) - out);
}

static struct klk_pattern pattern(const char *text, uint8_t is_prefix) {
    struct klk_pattern made = {.size = (uint8_t)strlen(text), .is_prefix = is_prefix};
    memcpy(made.bytes, text, made.size);
    return made;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz_input in = {data, size};
    uint8_t mode = fuzz_u8(&in);
    struct klk_messages arena = fuzz_messages(&in);
    const struct klk_pattern mail[] = {pattern("mail.", 1), pattern("echo", 0)};
    struct klk_key key = {.rights = RIGHT, .ranges = 1, .services = {mail, 2}, .offers = {mail, 1}};
    key.tables[0] = (struct klk_table_range){1, 8, KLK_TABLE_READ | KLK_TABLE_WRITE};
    struct klk_broker_guard broker = {
        .headers = {pattern("CLIENT", 0), pattern("WORKER", 0), pattern("DEADLINE", 0),
                    pattern("NAMED", 0)},
        .call = RIGHT, .work = RIGHT, .own_count = 1, .own_first = {['k'] = 1},
        .own = {{pattern("klk.", 1), RIGHT, 1, 4}}};
    struct klk_guard guard = {.kind = 1 + mode % 3, .unrouted = mode & 0x80 ? 1 : 0,
                              .all_tables = 4, .broker = &broker};
    if (mode & 0x40) {
        key.name_size = 6;
        memcpy(key.name, "client", 6);
    }
    for (int type = 0; type < 256; type++) {
        guard.needed[0][type] = guard.needed[1][type] = type % 7 ? RIGHT : KLK_RIGHT_ADMIN;
        guard.senders[0][type] = guard.senders[1][type] = (uint8_t)(type % 5);
        guard.uses[type] = (uint8_t)(type % 16);
    }
    for (uint32_t m = 0; m < arena.messages; m++) {
        /* In an arena of its own: nothing behind the message may be read. */
        struct klk_messages one = messages_new(klk_messages_bytes(&arena), arena.frames);
        for (uint32_t f = 0; f < klk_messages_frames(&arena, m); f++) {
            uint32_t frame_size;
            const uint8_t *frame = klk_messages_at(&arena, m, f, &frame_size);
            klk_messages_frame(&one, frame, frame_size);
        }
        klk_messages_end(&one);
        struct klk_messages exact = messages_copy(&one, klk_messages_bytes(&one), one.frames);
        int allowed = klk_guard_allows(&guard, &key, &exact, 0, exact.frames);
        REQUIRE(allowed == 0 || allowed == 1);
        int audited = klk_guard_audits(&guard, mode & 0x20 ? &key : NULL, &exact, 0, exact.frames);
        REQUIRE(audited == 0 || (audited == 1 && guard.kind != KLK_GUARD_BROKER));
        struct klk_key none = {0};
        if (guard.kind == KLK_GUARD_LOG && exact.frames >= 3)
            REQUIRE(!klk_guard_allows(&guard, &none, &exact, 0, exact.frames));
        messages_free(&exact);
        messages_free(&one);
    }
    messages_free(&arena);
    return 0;
}
