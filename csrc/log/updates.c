/* Updates at the leader: it copies client updates from an arena into blocks for the log, and
 * answers them when they are committed (docs/protocols/zmq-raft.md). */
#include "bytes.h"
#include "guard.h"
#include "messages.h"
#include "reqids.h"
#include "shares.h"
#include "table_mark.h"
#include "waiters.h"

enum {
    AHEAD = 24,     /* messages between the prefetch of a slot and its use */
    OTHER = 1,     /* not an update */
    RUN_SIZE = 12, /* u32 count, u64 first index */
};

static const uint8_t YES[] = {1};
static const uint8_t UPDATE[] = {0x3d};
static const uint8_t UPDATE_PACK[] = {0x6b, 0x3d};

/* The status of a pack's answer. */
static const uint8_t PACK_ASTRAY[] = {0};
static const uint8_t PACK_TAKEN[] = {1};
static const uint8_t PACK_GAP[] = {2};
static const uint8_t PACK_REFUSED[] = {3};

/* A request that waits for an answer. Its routing id and the runs of its pack follow. */
struct waiter {
    struct klk_waiter head;
    uint64_t index;   /* the answer follows when this entry is committed */
    uint32_t updates; /* new updates of this request, which count as in flight */
    uint32_t bytes;
    uint16_t runs;
    uint16_t client; /* of `loads` */
    uint8_t pack;
    uint8_t routing_id_size;
    uint8_t reqid[12];
};

struct request {
    const uint8_t *routing_id;
    const uint8_t *reqid;
    const uint8_t *data; /* or the records of a pack */
    uint32_t routing_id_size;
    uint32_t data_size;
    uint32_t marked; /* enum klk_updates_marked */
    uint32_t client;
    int pack;
};

/* msgpack's smallest encoding of a number; returns its size, at most 9. */
static uint32_t msgpack_uint(uint8_t *out, uint64_t value) {
    if (value < 128) {
        out[0] = (uint8_t)value;
        return 1;
    }
    int power = value < 1u << 8 ? 0 : value < 1u << 16 ? 1 : value >> 32 == 0 ? 2 : 3;
    uint32_t size = 1u << power;
    out[0] = (uint8_t)(0xcc + power);
    for (uint32_t i = 0; i < size; i++) out[1 + i] = (uint8_t)(value >> 8 * (size - 1 - i));
    return size + 1;
}

/* ---- answers ---- */

/* Sends [reqid, status, payload], or for a pack [reqid, 6b 3d, status, payload]. With payload NULL
 * a plain answer has no payload frame, and a pack's answer an empty one. */
static int answer(struct klk_messages *out, const struct request *to, const uint8_t *status,
                  uint32_t status_size, const uint8_t *payload, uint32_t payload_size) {
    uint64_t size = (uint64_t)to->routing_id_size + KLK_REQID_SIZE + 3 + payload_size;
    if (!klk_messages_fit(out, size, 5)) return KLK_EFULL;
    klk_messages_frame(out, to->routing_id, to->routing_id_size);
    klk_messages_frame(out, to->reqid, KLK_REQID_SIZE);
    if (to->pack) klk_messages_frame(out, UPDATE_PACK, sizeof UPDATE_PACK);
    klk_messages_frame(out, status, status_size);
    if (payload || to->pack) klk_messages_frame(out, payload, payload_size);
    klk_messages_end(out);
    return KLK_OK;
}

static int answer_astray(struct klk_messages *out, const struct request *to,
                         const uint8_t *refusal, uint32_t refusal_size) {
    return answer(out, to, PACK_ASTRAY, to->pack ? 1 : 0, refusal, refusal_size);
}

static int answer_accepted(struct klk_messages *out, const struct request *to) {
    return answer(out, to, YES, 1, NULL, 0);
}

static int answer_index(struct klk_messages *out, const struct request *to, uint64_t index) {
    uint8_t number[9];
    return answer(out, to, YES, 1, number, msgpack_uint(number, index));
}

/* The reason why a pack is refused for good: msgpack [position, reason of at most 31 bytes]. */
static int answer_refused(struct klk_messages *out, const struct request *to, uint32_t position,
                          const char *reason) {
    uint8_t payload[64] = {0x92};
    if (!to->pack) return answer(out, to, NULL, 0, NULL, 0);
    uint32_t size = 1 + msgpack_uint(payload + 1, position);
    uint32_t length = (uint32_t)strlen(reason);
    payload[size++] = (uint8_t)(0xa0 | length);
    memcpy(payload + size, reason, length);
    return answer(out, to, PACK_REFUSED, 1, payload, size + length);
}

/* ---- waiters ---- */

static uint32_t waiter_size(uint32_t routing_id_size, uint32_t runs) {
    return (uint32_t)((sizeof(struct waiter) + routing_id_size + runs * RUN_SIZE + 7) & ~7ull);
}

/* Adds a waiter for index. The caller has checked that it fits. */
static void waiter_add(struct klk_updates *updates, const struct request *from, uint64_t index,
                       uint32_t count, uint32_t bytes, uint32_t runs, uint64_t now_ms) {
    uint32_t size = waiter_size(from->routing_id_size, runs);
    struct waiter *waiter = klk_waiters_add(&updates->waiters, size, now_ms);
    uint8_t *tail = (uint8_t *)(waiter + 1);
    waiter->updates = count;
    waiter->index = index;
    waiter->bytes = bytes;
    waiter->runs = (uint16_t)runs;
    waiter->client = (uint16_t)from->client;
    waiter->pack = (uint8_t)from->pack;
    waiter->routing_id_size = (uint8_t)from->routing_id_size;
    memcpy(waiter->reqid, from->reqid, KLK_REQID_SIZE);
    memcpy(tail, from->routing_id, from->routing_id_size);
    memcpy(tail + from->routing_id_size, updates->runs, runs * RUN_SIZE);
    updates->inflight += count;
    updates->inflight_bytes += bytes;
    if (!updates->loads) return;
    updates->loads->of[from->client].count += count;
    updates->loads->of[from->client].bytes += bytes;
}

static struct request waiter_request(const struct waiter *waiter) {
    const uint8_t *tail = (const uint8_t *)(waiter + 1);
    return (struct request){.routing_id = tail,
                            .reqid = waiter->reqid,
                            .data = tail + waiter->routing_id_size,
                            .routing_id_size = waiter->routing_id_size,
                            .data_size = waiter->runs * (uint32_t)RUN_SIZE,
                            .pack = waiter->pack};
}

static struct waiter *waiter_first(struct klk_updates *updates) {
    return klk_waiters_next(&updates->waiters, &updates->waiters.head);
}

static int waiter_accept(struct klk_messages *out, const void *waiter) {
    struct request to = waiter_request(waiter);
    return answer_accepted(out, &to);
}

static void waiter_remove(struct klk_updates *updates, const struct waiter *waiter) {
    updates->inflight -= waiter->updates;
    updates->inflight_bytes -= waiter->bytes;
    if (updates->loads) {
        updates->loads->of[waiter->client].count -= waiter->updates;
        updates->loads->of[waiter->client].bytes -= waiter->bytes;
    }
    klk_waiters_remove(&updates->waiters, &waiter->head);
}

/* ---- records ---- */

static size_t open_size(const struct klk_updates *updates) {
    return updates->used - updates->open - KLK_HEADER_SIZE;
}

/* Until a block is sealed, its header holds only count and size. */
static void records_note(struct klk_updates *updates) {
    uint8_t *open = updates->blocks + updates->open;
    memset(open, 0, KLK_HEADER_SIZE);
    klk_put_u32(open + 24, updates->open_count);
    klk_put_u32(open + 28, (uint32_t)open_size(updates));
}

static void records_open(struct klk_updates *updates, size_t offset) {
    updates->open = offset;
    updates->open_count = 0;
    updates->used = offset + KLK_HEADER_SIZE;
}

/* Reserves room for records in the last block, or in a new one if that is full. */
static uint8_t *records_place(struct klk_updates *updates, uint64_t first_index, size_t bytes) {
    if (!updates->records) {
        updates->first_index = first_index;
        updates->first = 0;
        records_open(updates, 0);
    } else if (open_size(updates) + bytes > KLK_INTAKE_BYTES) {
        records_note(updates);
        records_open(updates, updates->open + klk_block_size(open_size(updates)));
    }
    return updates->blocks + updates->used;
}

static void records_count(struct klk_updates *updates, uint32_t count, size_t bytes) {
    updates->open_count += count;
    updates->used += bytes;
    updates->records += count;
    updates->counters[KLK_UPDATES_TAKEN] += count;
}

/* Upper bound of the blocks' size for a whole arena. A record is at most 4 bytes longer than its
 * message, and of two adjacent blocks at least one is half full. */
static size_t records_need(const struct klk_updates *updates, const struct klk_messages *arena) {
    size_t bytes = klk_messages_bytes(arena) + 4 * (size_t)arena->messages;
    size_t used = updates->records ? updates->used : 0;
    return used + bytes + (2 * bytes / KLK_INTAKE_BYTES + 4) * (KLK_HEADER_SIZE + 8);
}

/* ---- admission ---- */

/* The reason why an unknown id is refused for good, or NULL. */
static const char *reqid_refusal(const struct klk_updates *updates,
                                 const struct klk_updates_view *view, const uint8_t *reqid) {
    uint64_t seconds = klk_reqid_seconds(reqid);
    if (seconds + updates->ttl_s < view->unix_s) return "expired";
    if (seconds > (uint64_t)view->unix_s + KLK_REQID_AHEAD_S) return "too early";
    return seconds <= updates->reqids->forgotten_s ? "forgotten" : NULL;
}

/* How to treat data with the mark of tables in a message: only the nodes' own keys may send it. */
static uint32_t marked_of(const struct klk_updates_view *view, const struct klk_messages *arena,
                          uint32_t message) {
    if (view->marked != KLK_MARKED_ACCEPTED || !arena->keys) return view->marked;
    uint32_t rights = arena->keys->keys[arena->slots[message]].rights;
    return rights & KLK_RIGHT_INTERNAL ? KLK_MARKED_ACCEPTED : KLK_MARKED_REFUSED;
}

/* The reason why data with or without the mark of tables is refused, or NULL. */
static const char *mark_refusal(const struct request *from, const uint8_t *data, size_t size) {
    if (from->marked == KLK_MARKED_ACCEPTED) return NULL;
    if (klk_is_marked(data, size) == (from->marked == KLK_MARKED_ALONE)) return NULL;
    return from->marked == KLK_MARKED_ALONE ? "not for tables" : "reserved for table servers";
}

/* Whether a client would have more than a multiple of what it leaves to others. So one that floods
 * has three quarters at most, and each of two of them 3/7. One that has nothing may have more. */
static int over_share(uint64_t has, uint64_t more, uint64_t all, uint64_t most) {
    return has && has + more > KLK_LOAD_SHARE * (most - all - more);
}

static int over_limits(const struct klk_updates *updates, const struct request *from,
                       uint64_t count, uint64_t bytes) {
    if (!updates->inflight) return 0; /* An update of any permitted size is accepted alone. */
    if (updates->inflight + count > updates->inflight_max ||
        updates->inflight_bytes + bytes > updates->inflight_bytes_max)
        return 1;
    if (!updates->loads) return 0;
    const struct klk_load *load = &updates->loads->of[from->client];
    return over_share(load->count, count, updates->inflight, updates->inflight_max) ||
           over_share(load->bytes, bytes, updates->inflight_bytes, updates->inflight_bytes_max);
}

/* ---- one update in text or node form ---- */

/* Answers a known id: with its index if it is committed, else "accepted" now, the index later. */
static int take_repeated(struct klk_updates *updates, const struct request *from, uint64_t index,
                         const struct klk_updates_view *view, struct klk_messages *out) {
    int result = KLK_OK;
    if (index <= view->commit_index) {
        result = answer_index(out, from, index);
    } else if (!klk_waiters_fit(&updates->waiters, waiter_size(from->routing_id_size, 0))) {
        updates->counters[KLK_UPDATES_OVER]++;
        return KLK_OK;
    } else {
        result = answer_accepted(out, from);
        if (result == KLK_OK) waiter_add(updates, from, index, 0, 0, 0, view->now_ms);
    }
    updates->counters[KLK_UPDATES_REPEATED] += result == KLK_OK;
    return result;
}

static int take_refused(struct klk_updates *updates, const struct request *from, uint32_t position,
                        const char *reason, struct klk_messages *out) {
    int result = answer_refused(out, from, position, reason);
    updates->counters[KLK_UPDATES_REFUSED] += result == KLK_OK;
    return result;
}

static int take_single(struct klk_updates *updates, const struct request *from,
                       const struct klk_updates_view *view, struct klk_messages *out) {
    struct klk_reqids *reqids = updates->reqids;
    uint64_t hash = klk_reqid_hash(reqids, from->reqid);
    struct klk_reqid_slot *slot = klk_reqid_slot_of(reqids, from->reqid, hash);
    if (!klk_reqid_is_free(slot) && !klk_reqid_is_forgotten(reqids, from->reqid))
        return take_repeated(updates, from, klk_reqid_index(reqids, slot), view, out);
    if (!from->data_size || from->data_size > updates->record_bytes_max ||
        reqid_refusal(updates, view, from->reqid) ||
        mark_refusal(from, from->data, from->data_size))
        return take_refused(updates, from, 0, "", out);
    size_t bytes = klk_record_size(from->data_size, 1);
    if (over_limits(updates, from, 1, bytes) ||
        !klk_waiters_fit(&updates->waiters, waiter_size(from->routing_id_size, 0))) {
        updates->counters[KLK_UPDATES_OVER]++;
        return KLK_OK;
    }
    if (klk_reqids_want(reqids, hash) != KLK_OK) return KLK_EGROW;
    uint8_t *place = records_place(updates, view->next_index, bytes);
    uint64_t index = view->next_index + updates->records;
    klk_reqids_keep(reqids, slot, from->reqid, hash, index);
    klk_record_write(place, (uint8_t)view->kind, from->reqid, from->data, from->data_size);
    waiter_add(updates, from, index, 1, (uint32_t)bytes, 0, view->now_ms);
    records_count(updates, 1, bytes);
    return KLK_OK;
}

/* ---- packs ---- */

/* Checks every record of a pack first: a pack is accepted whole or not at all.
 * Returns NULL, or the reason and the position of the wrong record. */
static const char *pack_fault(struct klk_updates *updates, const struct request *from,
                              const struct klk_updates_view *view, uint32_t *position) {
    struct klk_reqids *reqids = updates->reqids;
    struct klk_record record;
    memset(reqids->need, 0, sizeof reqids->need);
    *position = 0;
    if (!from->data_size) return "empty";
    for (size_t offset = 0; offset < from->data_size; ++*position) {
        ssize_t record_size =
            klk_record_read(from->data + offset, from->data_size - offset, &record);
        if (record_size < 0 || !record.reqid || record.kind != 0) return "malformed";
        if (!*position && memcmp(record.reqid, from->reqid, KLK_REQID_SIZE) != 0)
            return "malformed";
        if (!record.data_size) return "empty";
        if (record.data_size > updates->record_bytes_max || *position == KLK_PACK_COUNT_MAX ||
            (*position && from->data_size > KLK_PACK_BYTES_MAX))
            return "too large";
        const char *refusal = reqid_refusal(updates, view, record.reqid);
        if (!refusal) refusal = mark_refusal(from, record.data, record.data_size);
        if (refusal && !klk_reqids_find(reqids, record.reqid)) return refusal;
        uint64_t hash = klk_reqid_hash(reqids, record.reqid);
        klk_reqids_prefetch(reqids, record.reqid, hash);
        reqids->need[klk_reqid_shard_of(hash)]++;
        offset += (size_t)record_size;
    }
    return NULL;
}

/* The index of a known id. Stores a new id and returns 0. */
static uint64_t record_keep(struct klk_reqids *reqids, const uint8_t *reqid, uint64_t index) {
    uint64_t hash = klk_reqid_hash(reqids, reqid);
    struct klk_reqid_slot *slot = klk_reqid_slot_of(reqids, reqid, hash);
    if (!klk_reqid_is_free(slot)) return klk_reqid_index(reqids, slot);
    klk_reqids_keep(reqids, slot, reqid, hash, index);
    return 0;
}

/* Writes the kind into records that arrived as state entries. */
static void records_kind(uint8_t *records, size_t size, uint32_t kind) {
    struct klk_record record;
    if (kind == KLK_KIND_STATE) return;
    for (size_t at = 0; at < size;) {
        at += (size_t)klk_record_read(records + at, size - at, &record);
        records[record.reqid - 1 - records] |= (uint8_t)kind;
    }
}

/* Copies the records with new ids and joins the indexes of all records into runs. Returns the
 * number of runs. index is that of the first new record, last the largest of all. */
static uint32_t pack_records(struct klk_updates *updates, const struct request *from,
                             const struct klk_updates_view *view, uint64_t *last, uint32_t *count,
                             uint32_t *bytes) {
    struct klk_record record;
    uint8_t *place = records_place(updates, view->next_index, from->data_size);
    uint64_t index = view->next_index + updates->records, run_end = 0;
    uint32_t runs = 0, run_count = 0, start = 0, offset = 0;
    *last = *count = *bytes = 0;
    while (offset < from->data_size) {
        ssize_t record_size =
            klk_record_read(from->data + offset, from->data_size - offset, &record);
        uint64_t known = record_keep(updates->reqids, record.reqid, index);
        if (known) { /* Copy the new records before it at once. */
            memcpy(place + *bytes, from->data + start, offset - start);
            *bytes += offset - start;
            start = offset + (uint32_t)record_size;
        }
        uint64_t mine = known ? known : index++;
        if (!runs || mine != run_end) {
            klk_put_u64(updates->runs + RUN_SIZE * runs++ + 4, mine);
            run_count = 0;
            run_end = mine;
        }
        klk_put_u32(updates->runs + RUN_SIZE * (runs - 1), ++run_count);
        run_end++;
        *count += !known;
        if (mine > *last) *last = mine;
        offset += (uint32_t)record_size;
    }
    memcpy(place + *bytes, from->data + start, offset - start);
    *bytes += offset - start;
    records_kind(place, *bytes, view->kind);
    return runs;
}

/* Answers a pack whose records are all committed; otherwise the answer waits. */
static int pack_answer(struct klk_updates *updates, const struct request *from,
                       const struct klk_updates_view *view, struct klk_messages *out) {
    uint64_t last;
    uint32_t count, bytes;
    uint32_t runs = pack_records(updates, from, view, &last, &count, &bytes);
    if (count) {
        records_count(updates, count, bytes);
    } else {
        updates->counters[KLK_UPDATES_REPEATED]++;
        if (last <= view->commit_index)
            return answer(out, from, PACK_TAKEN, 1, updates->runs, runs * RUN_SIZE);
        answer_accepted(out, from);
    }
    waiter_add(updates, from, last, count, bytes, runs, view->now_ms);
    return KLK_OK;
}

/* The bit of a pack's sender. */
static uint8_t *untaken_of(struct klk_updates *updates, const struct request *from, uint8_t *mask) {
    uint64_t seed = updates->reqids->seeds[0];
    uint64_t hash = klk_id_hash(seed, from->routing_id, from->routing_id_size) >> 32;
    *mask = (uint8_t)(1u << hash % 8);
    return &updates->untaken[hash / 8 % (KLK_PACK_SENDERS / 8)];
}

static void pack_untaken(struct klk_updates *updates, const struct request *from) {
    uint8_t mask, *byte = untaken_of(updates, from, &mask);
    if (from->pack) *byte |= mask;
}

/* Whether a pack does not follow the one before it. */
static int is_behind_gap(struct klk_updates *updates, const struct request *from,
                         const uint8_t *previous, uint32_t previous_size) {
    uint8_t mask, *byte = untaken_of(updates, from, &mask);
    if (!previous_size) *byte &= (uint8_t)~mask;
    return previous_size && (*byte & mask || !klk_reqids_find(updates->reqids, previous));
}

static int take_pack(struct klk_updates *updates, const struct request *from,
                     const uint8_t *previous, uint32_t previous_size,
                     const struct klk_updates_view *view, struct klk_messages *out) {
    uint32_t position;
    const char *fault = pack_fault(updates, from, view, &position);
    if (fault) {
        pack_untaken(updates, from);
        return take_refused(updates, from, position, fault, out);
    }
    if (is_behind_gap(updates, from, previous, previous_size)) {
        pack_untaken(updates, from);
        int result = answer(out, from, PACK_GAP, 1, NULL, 0);
        updates->counters[KLK_UPDATES_GAPS] += result == KLK_OK;
        return result;
    }
    if (over_limits(updates, from, position, from->data_size) ||
        !klk_waiters_fit(&updates->waiters, waiter_size(from->routing_id_size, position))) {
        pack_untaken(updates, from);
        updates->counters[KLK_UPDATES_OVER]++;
        return KLK_OK;
    }
    if (klk_reqids_crowded(updates->reqids) >= 0) return KLK_EGROW;
    /* Nothing may fail from here on: the records are added once. */
    uint64_t room = (uint64_t)from->routing_id_size + KLK_REQID_SIZE + 3 + position * RUN_SIZE;
    if (!klk_messages_fit(out, room, 5)) return KLK_EFULL;
    return pack_answer(updates, from, view, out);
}

/* ---- messages of an arena ---- */

static int ident_is_ours(const struct klk_updates *updates, const struct klk_messages *arena,
                         uint32_t message, uint32_t frame) {
    return klk_messages_is(arena, message, frame, updates->ident, updates->ident_size);
}

/* Finds the data. Frame 0 is the routing id. The text form has 3 further frames, the node form the
 * ident and 3 or more. A client that drops an empty frame sends the ident alone: that is no data.
 * Returns KLK_OK with data set, or KLK_EINVAL. */
static int single_shape(const struct klk_updates *updates, const struct klk_messages *arena,
                        uint32_t message, struct request *from) {
    uint32_t frames = klk_messages_frames(arena, message);
    if (frames < 4) return KLK_EINVAL;
    int is_node = ident_is_ours(updates, arena, message, 3);
    if (frames > 4 && !is_node) return KLK_EINVAL;
    if (frames == 4 && is_node) return KLK_OK;
    from->data = klk_messages_at(arena, message, is_node ? 4 : 3, &from->data_size);
    return KLK_OK;
}

/* [routing id, reqid, 6b 3d, ident, previous, records] */
static int pack_shape(const struct klk_updates *updates, const struct klk_messages *arena,
                      uint32_t message, struct request *from, const uint8_t **previous,
                      uint32_t *previous_size) {
    if (klk_messages_frames(arena, message) < 6 || !ident_is_ours(updates, arena, message, 3))
        return KLK_EINVAL;
    *previous = klk_messages_at(arena, message, 4, previous_size);
    from->data = klk_messages_at(arena, message, 5, &from->data_size);
    return *previous_size && *previous_size != KLK_REQID_SIZE ? KLK_EINVAL : KLK_OK;
}

static int take_message(struct klk_updates *updates, const struct klk_messages *arena,
                        uint32_t message, const struct klk_updates_view *view,
                        struct klk_messages *out) {
    uint32_t reqid_size, previous_size = 0;
    const uint8_t *previous = NULL;
    struct request from = {0};
    if (klk_messages_frames(arena, message) < 3) return OTHER;
    from.pack = klk_messages_is(arena, message, 2, UPDATE_PACK, sizeof UPDATE_PACK);
    if (!from.pack && !klk_messages_is(arena, message, 2, UPDATE, sizeof UPDATE)) return OTHER;
    from.routing_id = klk_messages_at(arena, message, 0, &from.routing_id_size);
    from.reqid = klk_messages_at(arena, message, 1, &reqid_size);
    if (!from.pack && view->marked == KLK_MARKED_ALONE) return OTHER;
    from.marked = marked_of(view, arena, message);
    if (updates->loads)
        from.client = klk_client_of(updates->loads->seed, updates->loads->foreign_slot, arena,
                                    message);
    int shape = from.pack
                    ? pack_shape(updates, arena, message, &from, &previous, &previous_size)
                    : single_shape(updates, arena, message, &from);
    if (shape != KLK_OK || reqid_size != KLK_REQID_SIZE || from.routing_id_size > UINT8_MAX) {
        updates->counters[KLK_UPDATES_DROPPED]++;
        return KLK_OK;
    }
    if (!view->leader) {
        pack_untaken(updates, &from);
        int result = answer_astray(out, &from, view->refusal, view->refusal_size);
        updates->counters[KLK_UPDATES_ASTRAY] += result == KLK_OK;
        return result;
    }
    if (from.pack) return take_pack(updates, &from, previous, previous_size, view, out);
    return take_single(updates, &from, view, out);
}

/* Prefetches the table's slot for a message that follows soon. */
KLK_PREFETCHES void prefetch_message(const struct klk_updates *updates,
                                     const struct klk_messages *arena, uint32_t message) {
    uint32_t size;
    if (message >= arena->messages || klk_messages_frames(arena, message) < 2) return;
    const uint8_t *reqid = klk_messages_at(arena, message, 1, &size);
    if (size != KLK_REQID_SIZE) return;
    klk_reqids_prefetch(updates->reqids, reqid, klk_reqid_hash(updates->reqids, reqid));
}

int klk_updates_receive(struct klk_updates *updates, const struct klk_messages *arena,
                        const struct klk_updates_view *view, struct klk_messages *out,
                        uint32_t *others, uint32_t *others_count) {
    if (updates->records && updates->first_index != view->next_index) return KLK_EINVAL;
    updates->blocks_need = records_need(updates, arena);
    if (!updates->position && updates->blocks_need > updates->blocks_max) return KLK_ESPACE;
    for (uint32_t m = updates->position; m < arena->messages; m++) {
        prefetch_message(updates, arena, m + AHEAD);
        int result = take_message(updates, arena, m, view, out);
        updates->position = m;
        if (result < 0) return result;
        if (result == OTHER) others[(*others_count)++] = m;
    }
    updates->position = 0;
    return KLK_OK;
}

/* ---- blocks, commits, refusals ---- */

ssize_t klk_updates_block(struct klk_updates *updates, uint64_t first_index, uint64_t term,
                          const uint8_t **block, uint32_t *count) {
    struct klk_header header;
    if (!updates->records) return 0;
    if (first_index != updates->first_index) return KLK_EINVAL;
    uint8_t *at = updates->blocks + updates->first;
    records_note(updates);
    klk_header_read(at, &header);
    ssize_t size = klk_block_seal(at, first_index, term, header.count, header.payload_size);
    if (size < 0) return size;
    updates->first += (size_t)size;
    updates->first_index += header.count;
    updates->records -= header.count;
    *block = at;
    *count = header.count;
    return size;
}

int klk_updates_commit(struct klk_updates *updates, uint64_t index, struct klk_messages *out) {
    struct waiter *waiter;
    while ((waiter = waiter_first(updates)) && waiter->index <= index) {
        struct request to = waiter_request(waiter);
        int result = to.pack ? answer(out, &to, PACK_TAKEN, 1, to.data, to.data_size)
                             : answer_index(out, &to, waiter->index);
        if (result != KLK_OK) return result;
        waiter_remove(updates, waiter);
    }
    return KLK_OK;
}

int klk_updates_remind(struct klk_updates *updates, uint64_t now_ms, struct klk_messages *out) {
    return klk_waiters_remind(&updates->waiters, now_ms, out, waiter_accept);
}

int klk_updates_refuse(struct klk_updates *updates, const uint8_t *refusal, uint32_t refusal_size,
                       struct klk_messages *out) {
    struct waiter *waiter;
    updates->records = 0;
    memset(updates->untaken, 0xff, sizeof updates->untaken);
    while ((waiter = waiter_first(updates))) {
        struct request to = waiter_request(waiter);
        if (answer_astray(out, &to, refusal, refusal_size) != KLK_OK) return KLK_EFULL;
        waiter_remove(updates, waiter);
    }
    return KLK_OK;
}
