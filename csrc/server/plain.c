/* Plain writes of a table server: packed, sent to the leader and answered without Python. */
#include "plain.h"

#include "bytes.h"
#include "frames.h"
#include "guard.h"
#include "messages.h"
#include "table_mark.h"

static const uint8_t UPDATE_PACK[] = {0x6b, 0x3d};

enum {
    ACCEPTED = 1, /* the status of an answer to a pack */
    RUN_BYTES = 12,
    SYNC_FLAGS = 3, /* PARTSYNC and FULLSYNC: the client expects an answer after the commit */
    READ = 0x10,
    WITH_INDEX = 0x40,
    RESULT_QUERY = 7, /* kind of a message to a worker, */
    HEAD_BYTES = 24,  /* and size of its head */
    SESSIONS_MAX = 8  /* of a transaction */
};

static struct klk_plain_pack *pack_at(struct klk_plain *plain, uint32_t place) {
    return &plain->packs[(plain->first + place) % KLK_PLAIN_PACKS];
}

/* ---- requests ---- */

static int is_known(const struct klk_plain *plain, uint32_t table) {
    uint32_t low = 0, high = plain->tables_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (plain->tables[middle] == table) return 1;
        if (plain->tables[middle] < table) low = middle + 1;
        else high = middle;
    }
    return 0;
}

static const struct klk_plain_session *session_of(const struct klk_plain *plain, uint64_t number) {
    uint32_t low = 0, high = plain->sessions_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct klk_plain_session *found = &plain->sessions[middle];
        if (found->number == number) return found;
        if (found->number < number) low = middle + 1;
        else high = middle;
    }
    return NULL;
}

/* Whether all sessions of a transaction are known to be of the key that sends it. */
static int owns_sessions(const struct klk_plain *plain, const struct klk_messages *arena,
                         const struct klk_request *row) {
    if (!arena->keys) return 0;
    const struct klk_key *key = &arena->keys->keys[arena->slots[row->message]];
    uint64_t sessions[SESSIONS_MAX];
    uint32_t count = klk_transaction_sessions(arena, row, sessions, SESSIONS_MAX);
    if (count > SESSIONS_MAX || !key->name_size) return 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct klk_plain_session *found = session_of(plain, sessions[i]);
        if (!found || found->size != key->name_size ||
            memcmp(plain->names + found->name, key->name, found->size))
            return 0;
    }
    return 1;
}

static int is_plain(const struct klk_plain *plain, const struct klk_messages *arena,
                    const struct klk_request *row) {
    if (row->shape == KLK_REQUEST_TRANSACTION) {
        if (row->has_sessions && arena->slots && !owns_sessions(plain, arena, row)) return 0;
    } else if (row->shape != KLK_REQUEST_WRITE ||
               (row->type != KLK_OP_PUT && row->type != KLK_OP_DELETE)) {
        return 0;
    }
    if (!row->flags || row->flags & ~SYNC_FLAGS) return 0;
    if (row->deadline_ms && row->deadline_ms < KLK_PLAIN_DEADLINE_MS) return 0;
    return is_known(plain, row->table);
}

/* Whether a pack with this id is with the leader: answers could not be told apart. */
static int is_pending(struct klk_plain *plain, const uint8_t *reqid) {
    for (uint32_t i = 0; i < plain->count; i++)
        if (!memcmp(pack_at(plain, i)->first, reqid, KLK_REQID_SIZE)) return 1;
    return 0;
}

static struct klk_plain_pack *pack_begin(struct klk_plain *plain, const uint8_t *reqid,
                                         int64_t deadline_ms, int64_t now_us) {
    if (plain->count == KLK_PLAIN_PACKS || is_pending(plain, reqid)) return NULL;
    struct klk_plain_pack *pack = pack_at(plain, plain->count++);
    pack->workers = 0;
    pack->arrived_us = now_us;
    pack->deadline_ms = deadline_ms;
    pack->size = pack->bytes = pack->count = 0;
    pack->asks_index = 0;
    pack->transactions = 0;
    pack->answers->frames = pack->answers->messages = 0;
    memcpy(pack->first, reqid, KLK_REQID_SIZE);
    return pack;
}

static int is_close(int64_t one, int64_t other) {
    int64_t apart = one < other ? other - one : one - other;
    return apart <= KLK_PLAIN_APART_MS;
}

/* Adds the write of a row; 0: it does not fit. */
static int pack_add(struct klk_plain *plain, struct klk_plain_pack *pack,
                    const struct klk_messages *arena, const struct klk_request *row,
                    const uint8_t *reqid) {
    uint32_t done = 0, position = 0, entry = row->entry_size, worker = row->table % plain->workers;
    int transacts = row->shape == KLK_REQUEST_TRANSACTION;
    if (pack->count == KLK_PLAIN_WRITES_MAX || entry > KLK_PLAIN_BYTES_MAX - pack->bytes) return 0;
    if (klk_requests_acknowledge(arena, row, &position, 1, &done, pack->answers) != KLK_OK)
        return 0;
    uint8_t *at = pack->records + pack->size;
    at += klk_record_head(at, KLK_KIND_STATE, reqid, entry);
    if (transacts) klk_transaction_pack(arena, row, at);
    else klk_requests_pack(arena, row, 1, at, entry);
    pack->size = (uint32_t)(at - pack->records) + entry;
    pack->bytes += entry;
    pack->asked[pack->count++] = (uint8_t)(transacts ? worker + 1 : 0);
    pack->transactions += (uint32_t)transacts;
    plain->taken++;
    pack->workers |= 1ull << worker;
    pack->asks_index |= row->extension & WITH_INDEX;
    memcpy(pack->last, reqid, KLK_REQID_SIZE);
    return 1;
}

/* The request id of a row's entry: its own, or a new one. */
static void reqid_of(struct klk_plain *plain, const struct klk_request *row, uint8_t *reqid) {
    static const uint8_t none[KLK_REQID_SIZE];
    memcpy(reqid, row->reqid, KLK_REQID_SIZE);
    if (memcmp(reqid, none, KLK_REQID_SIZE)) return;
    uint32_t made = ++plain->made;
    for (int i = 0; i < 4; i++) reqid[i] = (uint8_t)(plain->unix_s >> (24 - 8 * i));
    memcpy(reqid + 4, plain->maker, sizeof plain->maker);
    for (int i = 0; i < 3; i++) reqid[9 + i] = (uint8_t)(made >> (16 - 8 * i));
}

void klk_plain_take(struct klk_plain *plain, const struct klk_messages *arena, int64_t now_us) {
    for (; plain->row < plain->row_count; plain->row++) {
        const struct klk_request *row = &plain->rows[plain->row];
        if (row->shape != KLK_REQUEST_WRITE && row->shape != KLK_REQUEST_TRANSACTION) continue;
        uint8_t reqid[KLK_REQID_SIZE];
        reqid_of(plain, row, reqid);
        uint32_t asked = row->deadline_ms;
        uint32_t given = asked && asked < plain->timeout_ms ? asked : plain->timeout_ms;
        int64_t deadline_ms = now_us / 1000 + given;
        int grows = plain->count > plain->sent;
        struct klk_plain_pack *pack = grows ? pack_at(plain, plain->count - 1) : NULL;
        if (pack && is_close(pack->deadline_ms, deadline_ms) &&
            pack_add(plain, pack, arena, row, reqid))
            continue;
        pack = pack_begin(plain, reqid, deadline_ms, now_us);
        if (!pack) return;
        pack_add(plain, pack, arena, row, reqid);
    }
    plain->row = plain->row_count = 0;
}

static int is_read(const struct klk_plain *plain, const struct klk_request *row) {
    return row->shape == KLK_REQUEST_READ && row->type == READ &&
           !(row->extension & ~KLK_READ_PACKED) && is_known(plain, row->table);
}

int klk_plain_read(struct klk_plain *plain, const struct klk_messages *arena) {
    if (arena->messages > plain->rows_max) return KLK_PLAIN_OTHERS;
    klk_requests_read(arena, 1, plain->entry_bytes_max, plain->rows);
    int found = 0;
    for (uint32_t i = 0; i < arena->messages; i++) {
        const struct klk_request *row = &plain->rows[i];
        found |= is_plain(plain, arena, row) ? KLK_PLAIN_WRITES
                 : is_read(plain, row)       ? KLK_PLAIN_READS
                                      : KLK_PLAIN_OTHERS;
    }
    return found;
}

void klk_plain_receive(struct klk_plain *plain, const struct klk_messages *arena, int64_t now_us) {
    plain->row = 0;
    plain->row_count = arena->messages;
    klk_plain_take(plain, arena, now_us);
}

/* ---- the leader ---- */

int klk_plain_pack(struct klk_plain *plain, struct klk_messages *out) {
    if (plain->sent == plain->count) return 0;
    int is_last = plain->sent + 1 == plain->count;
    if (is_last && plain->sent >= KLK_PLAIN_AHEAD && plain->row == plain->row_count) return 0;
    const struct klk_plain_pack *pack = pack_at(plain, plain->sent);
    const struct klk_plain_pack *before = plain->sent ? pack_at(plain, plain->sent - 1) : NULL;
    uint32_t before_size = before ? KLK_REQID_SIZE : 0;
    uint64_t bytes = sizeof UPDATE_PACK + KLK_REQID_SIZE + before_size + plain->ident_size;
    if (!klk_messages_fit(out, bytes + pack->size, 5)) return KLK_EFULL;
    klk_messages_frame(out, pack->first, KLK_REQID_SIZE);
    klk_messages_frame(out, UPDATE_PACK, sizeof UPDATE_PACK);
    klk_messages_frame(out, plain->ident, plain->ident_size);
    klk_messages_frame(out, before ? before->last : NULL, before_size);
    klk_messages_frame(out, pack->records, pack->size);
    klk_messages_end(out);
    plain->sent++;
    return 1;
}

/* The index of each entry of a pack. 0: the runs do not cover them, or the last one must wait. */
static int indexes_read(struct klk_plain *plain, const struct klk_plain_pack *pack,
                        const uint8_t *runs, uint32_t size) {
    uint32_t at = 0;
    for (uint32_t run = 0; run + RUN_BYTES <= size; run += RUN_BYTES) {
        uint32_t count = klk_get_u32(runs + run);
        uint64_t index = klk_get_u64(runs + run + 4);
        if (!count || count > pack->count - at || !index) return 0;
        if (index > plain->applied_max || count - 1 > plain->applied_max - index) return 0;
        for (uint32_t i = 0; i < count; i++) plain->indexes[at++] = index + i;
    }
    return at == pack->count;
}

/* Whether the workers that have results of a pack take a batch of questions. */
static int may_ask(const struct klk_plain *plain, const struct klk_plain_pack *pack,
                   const struct klk_channel *channels) {
    for (uint32_t i = 0; pack->transactions && i < plain->workers; i++)
        if (pack->workers >> i & 1 &&
            (!channels[i].is_open || channels[i].count == KLK_CHANNEL_BATCHES))
            return 0;
    return 1;
}

int klk_plain_answer(struct klk_plain *plain, const struct klk_channel *channels,
                     const struct klk_messages *arena, uint32_t message) {
    static const uint8_t accepted[] = {ACCEPTED};
    if (!plain->sent || klk_messages_frames(arena, message) != 4) return KLK_PLAIN_OTHER;
    struct klk_plain_pack *pack = pack_at(plain, 0);
    if (!klk_messages_is(arena, message, 1, UPDATE_PACK, sizeof UPDATE_PACK) ||
        !klk_messages_is(arena, message, 0, pack->first, KLK_REQID_SIZE) ||
        !klk_messages_is(arena, message, 2, accepted, sizeof accepted))
        return KLK_PLAIN_OTHER;
    uint32_t size;
    const uint8_t *runs = klk_messages_at(arena, message, 3, &size);
    if (!size) return KLK_OK;
    if (size % RUN_BYTES || !indexes_read(plain, pack, runs, size)) return KLK_PLAIN_OTHER;
    if (!may_ask(plain, pack, channels)) return KLK_PLAIN_OTHER;
    if (pack->asks_index) klk_answers_tell(pack->answers, plain->indexes);
    return KLK_PLAIN_ANSWERED;
}

/* ---- results of transactions ---- */

/* The request id of a record; at: in, out: its place in the records. */
static const uint8_t *record_reqid(const struct klk_plain_pack *pack, uint32_t *at) {
    struct klk_record record;
    *at += (uint32_t)klk_record_read(pack->records + *at, pack->size - *at, &record);
    return record.reqid;
}

struct klk_messages *klk_plain_ask(struct klk_plain *plain, struct klk_channel *channels,
                                   uint32_t number) {
    struct klk_plain_pack *pack = pack_at(plain, 0);
    const struct klk_messages *answers = pack->answers;
    struct klk_messages *out = NULL;
    uint64_t index = 0;
    uint32_t at = 0;
    for (uint32_t i = 0; pack->transactions && i < pack->count; i++) {
        const uint8_t *reqid = record_reqid(pack, &at);
        if (pack->asked[i] != number + 1) continue;
        uint32_t size, last = klk_messages_frames(answers, i) - 1;
        uint8_t head[HEAD_BYTES] = {RESULT_QUERY, last == 2};
        if (!out) out = klk_channel_begin(&channels[number]);
        klk_messages_frame(out, head, sizeof head);
        const uint8_t *id = klk_messages_at(answers, i, 0, &size);
        klk_messages_frame(out, id, size);
        klk_messages_frame(out, reqid, KLK_REQID_SIZE);
        const uint8_t *header = klk_messages_at(answers, i, last, &size);
        klk_messages_frame(out, header, size);
        klk_messages_end(out);
        if (plain->indexes[i] > index) index = plain->indexes[i];
    }
    if (out) klk_channel_end(&channels[number], index, pack->arrived_us, plain->latency);
    return out;
}

struct klk_messages *klk_plain_answers(struct klk_plain *plain) {
    struct klk_plain_pack *pack = pack_at(plain, 0);
    struct klk_messages *answers = pack->answers;
    if (!pack->transactions) return answers;
    uint32_t count = answers->messages;
    answers->frames = answers->messages = 0;
    for (uint32_t i = 0; i < count; i++) { /* To the front, in place. */
        if (pack->asked[i]) continue;
        uint32_t first = answers->firsts[i], end = answers->firsts[i + 1];
        for (uint32_t f = first; f < end; f++) {
            uint32_t start = answers->offsets[f], size = answers->offsets[f + 1] - start;
            uint32_t to = klk_messages_bytes(answers);
            memmove(answers->bytes + to, answers->bytes + start, size);
            answers->offsets[++answers->frames] = to + size;
        }
        answers->firsts[++answers->messages] = answers->frames;
    }
    return answers;
}

void klk_plain_end(struct klk_plain *plain, int64_t now_us) {
    const struct klk_plain_pack *pack = pack_at(plain, 0);
    int64_t took_us = now_us - pack->arrived_us;
    klk_latency_add(plain->latency, took_us > 0 ? (uint64_t)took_us : 0,
                    pack->count - pack->transactions);
    plain->first = (plain->first + 1) % KLK_PLAIN_PACKS;
    plain->count--;
    plain->sent--;
}
