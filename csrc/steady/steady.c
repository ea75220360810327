/* The rules of replication in its steady state: one leader, one term, logs that are equal.
 *
 * Each rule has the section of the paper above it: Ongaro and Ousterhout, "In Search of an
 * Understandable Consensus Algorithm" ("Raft"). protocols/raft has the same rules, and the rest. */
#define _GNU_SOURCE
#include "steady.h"

#include <errno.h>
#include <string.h>

#include "bytes.h"
#include "messages.h"
#include "walk.h"

enum { APPEND_FRAMES = 6, ID_BYTES_MAX = 3, NUMBERS_SIZE = 32, CHECKED_SIZE = 24 };
enum { KIND_STATE = 0, KIND_TABLES = 3 };
/* Of an answer; the second: clients of the follower's node wait for commits. */
enum { SUCCESS = 1, SUCCESS_WAITS = 3 };

#define NUMBER_MAX ((1ull << 53) - 1)

static const uint8_t APPEND[] = {0x6b, 0x2b};

/* ---- the log ---- */

static int kind_is_plain(uint8_t kind) { return kind == KIND_STATE || kind == KIND_TABLES; }

/* Whether a frame is one block of this term that follows last_index and changes no configuration:
 * such an entry would be in force as soon as it is appended (Raft, section 6). */
static int block_is_plain(const uint8_t *data, uint32_t size, uint64_t last_index, uint64_t term,
                          struct klk_header *header) {
    struct klk_record record;
    struct klk_walk walk;
    if (klk_block_check(data, size, header) != (ssize_t)size) return 0;
    if (header->magic != KLK_MAGIC_BLOCK || header->term != term) return 0;
    if (header->first_index != last_index + 1) return 0;
    if (klk_walk_start(data, size, header, &walk) != KLK_OK) return 0;
    for (uint32_t i = 0; i < header->count; i++)
        if (klk_walk_next(&walk, &record) != KLK_OK || !kind_is_plain(record.kind)) return 0;
    return 1;
}

static void log_append(struct klk_steady_log *log, const uint8_t *data, uint32_t size,
                       const struct klk_header *header) {
    log->blocks[log->count++] =
        (struct klk_steady_block){header->first_index, header->count, log->used, size};
    memcpy(log->bytes + log->used, data, size);
    log->used += size;
    log->last_index += header->count;
}

static int log_fits(const struct klk_steady_log *log, uint64_t blocks, uint64_t bytes) {
    return log->count + blocks <= log->blocks_max && log->used + bytes <= log->bytes_max;
}

static uint64_t block_end(const struct klk_steady_block *block) {
    return block->first_index + block->count - 1;
}

void klk_steady_start(struct klk_steady_log *log) {
    log->written = log->count;
    log->syncing = 1;
}

void klk_steady_finish(struct klk_steady_log *log) {
    log->syncing = 0;
    log->durable = log->written;
    if (log->durable) log->durable_index = block_end(&log->blocks[log->durable - 1]);
    log->synced = log->offset;
}

int klk_steady_reqids(struct klk_steady_log *log) {
    for (; log->known < log->durable; log->known++) {
        const struct klk_steady_block *block = &log->blocks[log->known];
        size_t offset = KLK_HEADER_SIZE;
        uint64_t index = block->first_index;
        uint32_t newest_s = 0;
        int result = klk_reqids_add(log->reqids, log->bytes + block->start, block->size, &offset,
                                    &index, &newest_s);
        if (result != KLK_OK) return result; /* Ids that were stored already stay as they are. */
    }
    return KLK_OK;
}

int klk_steady_write(struct klk_steady_log *log) {
    if (log->syncing || log->written == log->count) return KLK_OK;
    uint8_t mark[KLK_HEADER_SIZE];
    uint32_t start = log->blocks[log->written].start;
    const uint8_t *parts[] = {mark, log->bytes + start};
    size_t sizes[] = {sizeof mark, log->used - start};
    klk_mark_write(mark, log->synced, log->epoch);
    int result = klk_segment_write(log->segment, log->offset, parts, sizes, 2);
    if (result == KLK_OK) {
        result = klk_syncer_start(log->syncer, log->segment);
        if (result != KLK_OK) log->sync_failed = 1;
    }
    if (result == KLK_ESPACE) return result;
    if (result != KLK_OK) {
        log->error = errno ? errno : EIO;
        return KLK_EOS;
    }
    log->offset += sizes[0] + sizes[1];
    klk_steady_start(log);
    return KLK_OK;
}

int klk_steady_poll_sync(struct klk_steady_log *log) {
    int result = klk_syncer_poll(log->syncer, 0);
    if (result == KLK_MORE) return result;
    if (result != KLK_OK) {
        log->error = errno ? errno : EIO;
        log->sync_failed = 1;
        return KLK_EOS;
    }
    klk_steady_finish(log);
    return KLK_OK;
}

/* ---- messages ---- */

void klk_messages_drop(struct klk_messages *messages, uint32_t count) {
    uint32_t first = messages->firsts[count], left = messages->messages - count;
    uint32_t frames = messages->frames - first, start = messages->offsets[first];
    if (!count) return;
    memmove(messages->bytes, messages->bytes + start, klk_messages_bytes(messages) - start);
    for (uint32_t f = 0; f <= frames; f++)
        messages->offsets[f] = messages->offsets[first + f] - start;
    for (uint32_t m = 0; m <= left; m++) messages->firsts[m] = messages->firsts[count + m] - first;
    if (messages->slots)
        for (uint32_t m = 0; m <= left; m++) messages->slots[m] = messages->slots[count + m];
    messages->frames = frames;
    messages->messages = left;
    struct klk_messages *senders = messages->senders;
    if (!senders) return;
    uint32_t gone = 0;
    while (gone < senders->messages && senders->slots[gone] < count) gone++;
    klk_messages_drop(senders, gone);
    for (uint32_t m = 0; m < senders->messages; m++) senders->slots[m] -= count;
}

/* The shortest form of a number, least significant byte first; returns its size. */
static uint32_t uint_write(uint8_t *out, uint64_t value) {
    uint32_t size = 0;
    do out[size++] = (uint8_t)value;
    while (value >>= 8);
    return size;
}

static uint64_t uint_read(const uint8_t *data, uint32_t size) {
    uint64_t value = 0;
    for (uint32_t i = size; i-- > 0;) value = value << 8 | data[i];
    return value;
}

/* ---- a follower ---- */

/* A message without an answer yet. */
struct append {
    const uint8_t *route;
    uint32_t route_size;
    uint32_t message_id;
    uint64_t commit_index;
    uint64_t last_index; /* of its entries, or the previous index */
    uint32_t blocks;
    uint32_t bytes; /* of its blocks */
};

/* Answers that the entries up to match_index are equal and durable: AppendResponse of
 * protocols/zmqraft/wire/extensions.py. */
static int answer(const struct klk_steady_follower *follower, const uint8_t *route,
                  uint32_t route_size, uint32_t message_id, uint64_t match_index,
                  struct klk_messages *out) {
    uint8_t id[8], term[8], numbers[CHECKED_SIZE] = {0};
    uint8_t success = follower->clients_wait ? SUCCESS_WAITS : SUCCESS;
    if (!klk_messages_fit(out, route_size + sizeof id + sizeof term + 1 + sizeof numbers, 5))
        return KLK_EFULL;
    klk_put_u64(numbers, match_index);
    klk_messages_frame(out, route, route_size);
    klk_messages_frame(out, id, uint_write(id, message_id));
    klk_messages_frame(out, term, uint_write(term, follower->log.term));
    klk_messages_frame(out, &success, 1);
    klk_messages_frame(out, numbers, sizeof numbers);
    klk_messages_end(out);
    return KLK_OK;
}

/* Whether a message is an AppendEntries of our leader that needs nothing but its append. */
static int append_read(const struct klk_steady_follower *follower,
                       const struct klk_messages *arena, uint32_t message, struct append *append) {
    const struct klk_steady_log *log = &follower->log;
    uint32_t frames = klk_messages_frames(arena, message), size;
    if (frames < APPEND_FRAMES) return 0;
    if (!klk_messages_is(arena, message, 2, APPEND, sizeof APPEND) ||
        !klk_messages_is(arena, message, 3, follower->ident, follower->ident_size) ||
        !klk_messages_is(arena, message, 4, follower->leader, follower->leader_size))
        return 0;
    append->route = klk_messages_at(arena, message, 0, &append->route_size);
    if (append->route_size > KLK_STEADY_ROUTE_MAX) return 0;
    const uint8_t *id = klk_messages_at(arena, message, 1, &size);
    if (size < 1 || size > ID_BYTES_MAX) return 0;
    append->message_id = (uint32_t)uint_read(id, size);
    const uint8_t *numbers = klk_messages_at(arena, message, 5, &size);
    if (size != NUMBERS_SIZE) return 0;
    append->commit_index = klk_get_u64(numbers + 24);
    /* Raft, figure 2, AppendEntries 1 and 2: the term is ours, and the entry before is the same. */
    if (klk_get_u64(numbers) != log->term || klk_get_u64(numbers + 8) != log->last_index ||
        klk_get_u64(numbers + 16) != log->term || append->commit_index > NUMBER_MAX)
        return 0;
    append->last_index = log->last_index;
    append->blocks = frames - APPEND_FRAMES;
    append->bytes = 0;
    for (uint32_t f = APPEND_FRAMES; f < frames; f++) {
        struct klk_header header;
        const uint8_t *block = klk_messages_at(arena, message, f, &size);
        if (!block_is_plain(block, size, append->last_index, log->term, &header)) return 0;
        append->last_index += header.count;
        append->bytes += size;
    }
    return append->last_index <= NUMBER_MAX;
}

/* Counts a message of the leader: protocols/raft/election.py, Election.on_leader(). */
static void leader_heard(struct klk_steady_follower *follower, uint64_t now_ms) {
    uint64_t gap_ms = now_ms > follower->heard_ms ? now_ms - follower->heard_ms : 0;
    if (gap_ms > follower->gap_ms_max) follower->gap_ms_max = gap_ms;
    if (gap_ms >= 2 * follower->heartbeat_ms)
        follower->missed += gap_ms / follower->heartbeat_ms - 1;
    follower->heard_ms = now_ms;
    follower->messages++;
}

static int append_handle(struct klk_steady_follower *follower, const struct klk_messages *arena,
                         uint32_t message, const struct append *append, struct klk_messages *out) {
    struct klk_steady_log *log = &follower->log;
    if (append->blocks) {
        if (!log_fits(log, append->blocks, append->bytes) ||
            follower->waiting == KLK_STEADY_ANSWERS_MAX)
            return KLK_EFULL;
    } else {
        /* Without entries nothing waits for the disk: the answer names what is durable. */
        uint64_t match = log->last_index < log->durable_index ? log->last_index
                                                              : log->durable_index;
        if (answer(follower, append->route, append->route_size, append->message_id, match, out))
            return KLK_EFULL;
    }
    for (uint32_t f = 0; f < append->blocks; f++) {
        struct klk_header header;
        uint32_t size;
        const uint8_t *block = klk_messages_at(arena, message, APPEND_FRAMES + f, &size);
        klk_header_read(block, &header);
        log_append(log, block, size, &header); /* Raft, figure 2, AppendEntries 4. */
    }
    if (append->blocks) { /* Raft, section 5.3: an entry is acknowledged when it is durable. */
        uint32_t place = (follower->first + follower->waiting++) % KLK_STEADY_ANSWERS_MAX;
        struct klk_steady_answer *waits = &follower->answers[place];
        waits->last_index = append->last_index;
        waits->message_id = append->message_id;
        waits->route_size = append->route_size;
        memcpy(waits->route, append->route, append->route_size);
    }
    /* Raft, figure 2, AppendEntries 5: the leader's commit index, as far as our log is equal. */
    uint64_t commit =
        append->commit_index < append->last_index ? append->commit_index : append->last_index;
    if (commit > follower->commit_index) follower->commit_index = commit;
    return KLK_OK;
}

int klk_steady_follow(struct klk_steady_follower *follower, const struct klk_messages *arena,
                      uint32_t *position, uint64_t now_ms, struct klk_messages *out) {
    for (; *position < arena->messages; ++*position) {
        struct append append;
        if (!append_read(follower, arena, *position, &append)) return KLK_MORE;
        int result = append_handle(follower, arena, *position, &append, out);
        if (result != KLK_OK) return result;
        leader_heard(follower, now_ms);
    }
    return KLK_OK;
}

int klk_steady_answer(struct klk_steady_follower *follower, struct klk_messages *out) {
    while (follower->waiting) {
        const struct klk_steady_answer *waits = &follower->answers[follower->first];
        if (waits->last_index > follower->log.durable_index) break;
        int result = answer(follower, waits->route, waits->route_size, waits->message_id,
                            waits->last_index, out);
        if (result != KLK_OK) return result;
        follower->first = (follower->first + 1) % KLK_STEADY_ANSWERS_MAX;
        follower->waiting--;
    }
    return KLK_OK;
}

/* ---- a leader ---- */

void klk_steady_tick(struct klk_steady_leader *leader, uint64_t now_ms) {
    if (!leader->gives_leases || leader->round_started_ms == now_ms) return;
    leader->round_started_ms = now_ms;
    leader->rounds[leader->rounds_count++ % KLK_STEADY_ROUNDS_MAX] =
        (struct klk_steady_round){++leader->round, now_ms};
}

static void mark_add(struct klk_steady_leader *leader, uint64_t index, uint64_t since_us) {
    struct klk_steady_mark *last = &leader->marks[leader->marks_count];
    if (leader->marks_count == KLK_STEADY_MARKS_MAX) {
        last[-1].index = index; /* The newest entries join the batch before them. */
        return;
    }
    *last = (struct klk_steady_mark){index, since_us};
    leader->marks_count++;
}

int klk_steady_propose(struct klk_steady_leader *leader, uint32_t source,
                       const struct klk_messages *arena, uint64_t now_ms, uint32_t unix_s,
                       uint64_t now_us, struct klk_messages *out) {
    struct klk_steady_log *log = &leader->log;
    struct klk_steady_intake *intake = &leader->intakes[source];
    struct klk_updates *updates = intake->updates;
    struct klk_updates_view *view = &intake->view;
    struct klk_header header;
    const uint8_t *block;
    uint32_t count;
    ssize_t size;
    /* A record is at most 4 bytes longer than its message; a block is half full at least. */
    uint64_t bytes = klk_messages_bytes(arena) + 4ull * arena->messages;
    uint64_t blocks = 2 * bytes / KLK_INTAKE_BYTES + 4;
    if (!updates->position) intake->others_count = 0;
    if (!log_fits(log, blocks, bytes + blocks * (KLK_HEADER_SIZE + 8))) return KLK_MORE;
    view->next_index = log->last_index + 1;
    view->commit_index = leader->commit_index;
    view->now_ms = now_ms;
    view->unix_s = unix_s;
    int result = klk_updates_receive(updates, arena, view, out, intake->others_found,
                                     &intake->others_count);
    if (result != KLK_OK) return result;
    uint64_t before = log->last_index;
    /* Raft, section 5.3: the leader appends the command to its log as a new entry. */
    while ((size = klk_updates_block(updates, log->last_index + 1, log->term, &block, &count)) >
           0) {
        klk_header_read(block, &header);
        log_append(log, block, (uint32_t)size, &header);
    }
    if (size < 0) return (int)size;
    log->known = log->count; /* klk_updates_receive() has stored their request ids. */
    if (log->last_index > before) mark_add(leader, log->last_index, now_us);
    if (source != KLK_STEADY_CLIENTS || !intake->others_count) return KLK_OK;
    /* Any round that starts from now on confirms a read: dissertation, section 6.4. */
    struct klk_reads_view reads = {.leader = 1, .round = leader->round + 1, .now_ms = now_ms};
    return klk_reads_receive(leader->reads, arena, &reads, out, intake->others_found,
                             &intake->others_count);
}

/* The blocks from next_index on that one message carries. Returns their number. */
static uint32_t blocks_next(const struct klk_steady_log *log, uint64_t next_index,
                            uint64_t bytes_max, uint32_t *first) {
    uint32_t at = log->count, count = 0;
    uint64_t bytes = 0;
    while (at > 0 && log->blocks[at - 1].first_index >= next_index) at--;
    *first = at;
    for (; at < log->count; at++, count++) {
        bytes += log->blocks[at].size;
        if (count == KLK_STEADY_MESSAGE_BLOCKS_MAX || (count && bytes > bytes_max)) break;
    }
    return count;
}

static void pending_add(struct klk_steady_peer *peer, uint64_t last_index, uint64_t round) {
    peer->message_id = (peer->message_id + 1) & 0xffffff;
    if (peer->pending_count == KLK_STEADY_PENDING_MAX) { /* The oldest is forgotten. */
        peer->pending_first = (peer->pending_first + 1) % KLK_STEADY_PENDING_MAX;
        peer->pending_count--;
    }
    uint32_t place = (peer->pending_first + peer->pending_count++) % KLK_STEADY_PENDING_MAX;
    peer->pending[place] = (struct klk_steady_pending){last_index, round, peer->message_id};
}

/* An AppendEntries with blocks of the log, or without any: Raft, figure 2. */
static int append_send(struct klk_steady_leader *leader, struct klk_steady_peer *peer,
                       uint32_t first, uint32_t count, uint64_t now_ms) {
    const struct klk_steady_log *log = &leader->log;
    const struct klk_steady_block *blocks = log->blocks + first;
    uint8_t id[8], numbers[NUMBERS_SIZE];
    uint32_t bytes = 0;
    for (uint32_t b = 0; b < count; b++) bytes += blocks[b].size;
    if (!klk_messages_fit(peer->out, bytes + leader->ident_size + leader->name_size + 64ull,
                          5ull + count))
        return KLK_EFULL;
    uint64_t last_index = count ? block_end(&blocks[count - 1]) : peer->next_index - 1;
    pending_add(peer, last_index, leader->round);
    klk_put_u64(numbers, log->term);
    klk_put_u64(numbers + 8, peer->next_index - 1);
    klk_put_u64(numbers + 16, log->term);
    klk_put_u64(numbers + 24, leader->commit_index);
    klk_messages_frame(peer->out, id, uint_write(id, peer->message_id));
    klk_messages_frame(peer->out, APPEND, sizeof APPEND);
    klk_messages_frame(peer->out, leader->ident, leader->ident_size);
    klk_messages_frame(peer->out, leader->name, leader->name_size);
    klk_messages_frame(peer->out, numbers, sizeof numbers);
    for (uint32_t b = 0; b < count; b++)
        klk_messages_frame(peer->out, log->bytes + blocks[b].start, blocks[b].size);
    klk_messages_end(peer->out);
    peer->sent_ms = now_ms;
    peer->sent_commit_index = leader->commit_index;
    peer->next_index = last_index + 1;
    return KLK_OK;
}

/* A message without entries. */
static int heartbeat_send(struct klk_steady_leader *leader, struct klk_steady_peer *peer,
                          uint64_t now_ms) {
    int result = append_send(leader, peer, 0, 0, now_ms);
    if (result == KLK_OK) peer->sent_round = leader->round;
    return result;
}

static int entries_send(struct klk_steady_leader *leader, struct klk_steady_peer *peer,
                        uint64_t now_ms) {
    const struct klk_steady_log *log = &leader->log;
    uint32_t first;
    if (peer->next_index > log->last_index || peer->window_count >= peer->window_max)
        return KLK_OK;
    uint32_t count = blocks_next(log, peer->next_index, peer->bytes_max, &first);
    if (!count || log->blocks[first].first_index != peer->next_index) return KLK_EFULL;
    int result = append_send(leader, peer, first, count, now_ms);
    if (result != KLK_OK) return result;
    peer->window[(peer->window_first + peer->window_count++) % KLK_STEADY_WINDOW_MAX] =
        peer->next_index - 1;
    return KLK_OK;
}

/* Raft, section 5.3: what the follower lacks, and the commit index. */
int klk_steady_send(struct klk_steady_leader *leader, uint32_t number, uint64_t now_ms) {
    struct klk_steady_peer *peer = &leader->peers[number];
    int result = entries_send(leader, peer, now_ms);
    /* No entries follow that would carry the commit index to clients that wait. */
    if (result == KLK_OK && peer->clients_wait && peer->sent_commit_index < leader->commit_index &&
        leader->commit_index == leader->log.last_index)
        result = heartbeat_send(leader, peer, now_ms);
    return result;
}

static uint64_t beat_due_ms(const struct klk_steady_leader *leader,
                            const struct klk_steady_peer *peer) {
    int is_behind = peer->sent_commit_index < leader->commit_index;
    if (is_behind && peer->clients_wait) return peer->sent_ms + KLK_STEADY_URGENT_MS;
    return peer->sent_ms + (is_behind ? leader->commit_notice_ms : leader->heartbeat_ms);
}

/* Raft, section 5.2: heartbeats; and messages that tell a commit which no entries have told. */
int klk_steady_beat(struct klk_steady_leader *leader, uint64_t now_ms) {
    for (uint32_t p = 0; p < leader->peers_count; p++) {
        struct klk_steady_peer *peer = &leader->peers[p];
        if (now_ms < beat_due_ms(leader, peer)) continue;
        int result = heartbeat_send(leader, peer, now_ms);
        if (result != KLK_OK) return result;
    }
    return KLK_OK;
}

/* Finds and removes the message that an answer belongs to. */
static int pending_take(struct klk_steady_peer *peer, uint32_t message_id,
                        struct klk_steady_pending *found) {
    for (uint32_t i = 0; i < peer->pending_count; i++) {
        uint32_t place = (peer->pending_first + i) % KLK_STEADY_PENDING_MAX;
        if (peer->pending[place].message_id != message_id) continue;
        *found = peer->pending[place];
        for (; i > 0; i--) { /* The older ones move up; most often there are none. */
            uint32_t before = (peer->pending_first + i - 1) % KLK_STEADY_PENDING_MAX;
            peer->pending[place] = peer->pending[before];
            place = before;
        }
        peer->pending_first = (peer->pending_first + 1) % KLK_STEADY_PENDING_MAX;
        peer->pending_count--;
        return 1;
    }
    return 0;
}

static int pending_has(const struct klk_steady_peer *peer, uint32_t message_id) {
    for (uint32_t i = 0; i < peer->pending_count; i++)
        if (peer->pending[(peer->pending_first + i) % KLK_STEADY_PENDING_MAX].message_id ==
            message_id)
            return 1;
    return 0;
}

/* Whether a message is the success of an AppendEntries of ours, in our term. */
static int success_read(const struct klk_steady_leader *leader, const struct klk_steady_peer *peer,
                        const struct klk_messages *arena, uint32_t message, uint32_t *message_id,
                        uint64_t *match_index, int *clients_wait) {
    uint32_t size;
    if (klk_messages_frames(arena, message) != 4) return 0;
    const uint8_t *id = klk_messages_at(arena, message, 0, &size);
    if (size < 1 || size > ID_BYTES_MAX) return 0;
    *message_id = (uint32_t)uint_read(id, size);
    const uint8_t *term = klk_messages_at(arena, message, 1, &size);
    if (size < 1 || size > 8 || uint_read(term, size) != leader->log.term) return 0;
    const uint8_t *success = klk_messages_at(arena, message, 2, &size);
    if (size != 1 || (*success != SUCCESS && *success != SUCCESS_WAITS)) return 0;
    *clients_wait = *success == SUCCESS_WAITS;
    const uint8_t *numbers = klk_messages_at(arena, message, 3, &size);
    if (size != CHECKED_SIZE || klk_get_u64(numbers + 8) || klk_get_u64(numbers + 16)) return 0;
    *match_index = klk_get_u64(numbers);
    return *match_index <= leader->log.last_index && pending_has(peer, *message_id);
}

int klk_steady_answers(struct klk_steady_leader *leader, uint32_t number,
                       const struct klk_messages *arena, uint32_t *position, uint64_t now_ms) {
    struct klk_steady_peer *peer = &leader->peers[number];
    for (; *position < arena->messages; ++*position) {
        struct klk_steady_pending found;
        uint32_t message_id;
        uint64_t match_index;
        int clients_wait;
        if (!success_read(leader, peer, arena, *position, &message_id, &match_index,
                          &clients_wait) ||
            !pending_take(peer, message_id, &found))
            return KLK_MORE;
        peer->answered = 1;
        peer->clients_wait = clients_wait;
        peer->heard_ms = now_ms;
        if (found.round > peer->answered_round) peer->answered_round = found.round;
        while (peer->window_count && peer->window[peer->window_first] <= match_index) {
            peer->window_first = (peer->window_first + 1) % KLK_STEADY_WINDOW_MAX;
            peer->window_count--;
        }
        /* Raft, figure 2, "Leaders": on success update nextIndex and matchIndex. */
        if (match_index > peer->match_index) peer->match_index = match_index;
        if (match_index >= peer->next_index) peer->next_index = match_index + 1;
    }
    return KLK_OK;
}

enum { VALUES_MAX = 1 + KLK_STEADY_PEERS_MAX + KLK_STEADY_VOTERS_MAX };

/* The largest value that a majority has reached. */
static uint64_t majority_value(uint64_t *values, uint32_t count) {
    for (uint32_t i = 1; i < count; i++) {
        uint64_t value = values[i];
        uint32_t at = i;
        for (; at > 0 && values[at - 1] > value; at--) values[at] = values[at - 1];
        values[at] = value;
    }
    return count ? values[(count - 1) / 2] : 0;
}

/* The largest index that a majority of the voters has on disk, this peer included. */
static uint64_t majority_index(const struct klk_steady_leader *leader) {
    uint64_t values[VALUES_MAX];
    uint32_t count = 0;
    if (leader->is_voter) values[count++] = leader->log.durable_index;
    for (uint32_t p = 0; p < leader->peers_count; p++)
        if (leader->peers[p].counts) values[count++] = leader->peers[p].match_index;
    for (uint32_t o = 0; o < leader->others; o++) values[count++] = leader->match_others[o];
    return majority_value(values, count);
}

/* The newest round whose answers are promises of a majority. */
static uint64_t promised_round(const struct klk_steady_leader *leader) {
    uint64_t values[VALUES_MAX];
    uint32_t count = 0;
    if (leader->is_voter) values[count++] = leader->round;
    for (uint32_t p = 0; p < leader->peers_count; p++) {
        const struct klk_steady_peer *peer = &leader->peers[p];
        if (peer->counts) values[count++] = peer->promises ? peer->answered_round : 0;
    }
    for (uint32_t o = 0; o < leader->others; o++) values[count++] = 0;
    return majority_value(values, count);
}

/* Dissertation, section 6.4.1: while the promises of a majority last, no other leader is elected
 * (protocols/raft/lease.py). */
uint64_t klk_steady_lease_ms(const struct klk_steady_leader *leader) {
    uint64_t promised = promised_round(leader);
    /* Section 6.4, step 1: until an entry of its own term is committed, a leader does not know what
     * is. */
    if (!leader->gives_leases || leader->commit_index < leader->term_start) return 0;
    for (uint32_t back = 1; back <= leader->rounds_count && back <= KLK_STEADY_ROUNDS_MAX; back++) {
        const struct klk_steady_round *round =
            &leader->rounds[(leader->rounds_count - back) % KLK_STEADY_ROUNDS_MAX];
        if (round->number <= promised) return round->started_ms + leader->lease_ms;
    }
    return 0;
}

int klk_steady_reads(struct klk_steady_leader *leader, uint64_t now_ms, struct klk_messages *out) {
    const struct klk_waiters *readers = leader->reads->readers;
    if (!readers[KLK_READS_CONFIRMED].waiting && !readers[KLK_READS_APPLIED].waiting) return KLK_OK;
    /* Only Python knows what is applied. */
    if (readers[KLK_READS_APPLIED].waiting || now_ms >= klk_steady_lease_ms(leader))
        return KLK_MORE;
    leader->round++;
    leader->lease_answers++;
    return klk_reads_answer(leader->reads, KLK_READS_CONFIRMED, leader->round,
                            leader->commit_index, out);
}

int klk_steady_commit(struct klk_steady_leader *leader, uint64_t now_us,
                      struct klk_messages *const *outs) {
    uint64_t index = majority_index(leader);
    /* Raft, section 5.4.2: only entries of the current term are committed by counting. */
    if (index > leader->commit_index && index >= leader->term_start) leader->commit_index = index;
    uint32_t ended = 0;
    for (; ended < leader->marks_count && leader->marks[ended].index <= leader->commit_index;
         ended++) {
        const struct klk_steady_mark *mark = &leader->marks[ended];
        if (leader->latency)
            klk_latency_add(leader->latency, now_us > mark->since_us ? now_us - mark->since_us : 0,
                            mark->index - leader->counted_index);
        leader->counted_index = mark->index;
    }
    leader->marks_count -= ended;
    if (ended)
        memmove(leader->marks, leader->marks + ended,
                leader->marks_count * sizeof *leader->marks);
    for (uint32_t i = 0; i < KLK_STEADY_INTAKES; i++)
        if (klk_updates_commit(leader->intakes[i].updates, leader->commit_index, outs[i]) != KLK_OK)
            return KLK_EFULL;
    return KLK_OK;
}

uint64_t klk_steady_beat_ms(const struct klk_steady_leader *leader) {
    uint64_t due_ms = UINT64_MAX;
    for (uint32_t p = 0; p < leader->peers_count; p++) {
        uint64_t each_ms = beat_due_ms(leader, &leader->peers[p]);
        if (each_ms < due_ms) due_ms = each_ms;
    }
    return due_ms;
}

uint64_t klk_steady_due_ms(const struct klk_steady_leader *leader) {
    return leader->commit_index > leader->began_index ? leader->others_notice_ms : UINT64_MAX;
}
