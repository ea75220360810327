/* The turns of a steady state: poll, drain, append, sync and answer, without a return to Python. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <time.h>

#include "bytes.h"
#include "connections.h"
#include "messages.h"
#include "steady.h"

enum { GOES_ON = -1 }; /* Beside enum klk_steady_reason. */
enum { SUSPENDED_MS_MIN = 2 }; /* As in actors/raft/peer.py: the clocks are read one by one. */

static int64_t monotonic_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* How long the machine was suspended, ever: net/clock.py, suspended_ms(). */
static int64_t suspended_ms(void) {
#ifdef CLOCK_BOOTTIME
    struct timespec now, all;
    clock_gettime(CLOCK_MONOTONIC, &now);
    clock_gettime(CLOCK_BOOTTIME, &all);
    return ((int64_t)(all.tv_sec - now.tv_sec) * 1000000000 + all.tv_nsec - now.tv_nsec) / 1000000;
#else
    return 0;
#endif
}

static int sync_fd(const struct klk_steady_log *log) { return log->syncer->answers[0]; }

static struct klk_poll_item *socket_item(const struct klk_poll *poll, const void *socket) {
    for (uint32_t i = 0; i < poll->count; i++)
        if (poll->items[i].socket == socket) return &poll->items[i];
    return NULL;
}

static struct klk_poll_item *fd_item(const struct klk_poll *poll, int fd) {
    for (uint32_t i = 0; i < poll->count; i++)
        if (!poll->items[i].socket && poll->items[i].fd == fd) return &poll->items[i];
    return NULL;
}

/* Whether a source is ready that is none of ours. */
static int others_ready(const struct klk_poll *poll, struct klk_poll_item *const *ours,
                        uint32_t count) {
    for (uint32_t i = 0; i < poll->count; i++) {
        const struct klk_poll_item *item = &poll->items[i];
        int expected = 0;
        for (uint32_t o = 0; o < count && item->ready; o++)
            if (ours[o] == item) expected = KLK_POLL_IN;
        if (item->ready & ~expected) return 1;
    }
    return 0;
}

/* Receives from a ROUTER. Returns KLK_OK, KLK_MORE when the caller must look at the drain, or
 * KLK_EOS. */
static int router_receive(struct klk_steady_router *router, struct klk_poll_item *item) {
    uint64_t dropped = router->drain->dropped;
    int result = klk_drain_receive(router->drain, router->socket, 1);
    if (result < 0 && result != KLK_ESPACE) return result;
    router->more = result == KLK_MORE;
    int has_denied = router->drain->denied && router->drain->denied->messages;
    item->ready = 0;
    if (result != KLK_ESPACE && router->drain->dropped == dropped && !has_denied) return KLK_OK;
    item->ready = KLK_POLL_IN; /* The caller reads on, enlarges the arena, counts the dropped. */
    return KLK_MORE;
}

/* Sends a ROUTER's messages. A message without room or peer is dropped, as Raft permits. Returns
 * KLK_OK or KLK_EOS. */
static int router_send(struct klk_steady_router *router, struct klk_poll_item *item) {
    uint32_t position = 0, dropped = 0;
    if (!router->out->messages) return KLK_OK;
    item->check = 1; /* Sending consumes the event that the descriptor would have shown. */
    int result = klk_send(router->socket, router->out, 0, KLK_DROP, &position, &dropped);
    router->dropped += dropped;
    router->out->frames = router->out->messages = 0;
    return result;
}

/* Takes what has arrived at the ROUTER. Returns a reason to end, or GOES_ON; or KLK_EOS by way of
 * result. */
static int receive(struct klk_steady_turn *turn, struct klk_poll_item *peers, int *result) {
    struct klk_steady_router *router = &turn->peers;
    struct klk_messages *arena = router->drain->arena;
    uint32_t position = 0;
    int received = router_receive(router, peers);
    if (received < 0) {
        *result = received;
        return KLK_STEADY_SOURCE;
    }
    /* Now, not when the poll ended: a promise to a leader begins after its message has arrived. */
    int code = klk_steady_follow(turn->follower, arena, &position, (uint64_t)monotonic_ms(),
                                 router->out);
    klk_messages_drop(arena, position);
    turn->handled = arena->messages > 0;
    if (code == KLK_EFULL) return KLK_STEADY_FULL;
    return code == KLK_MORE || received == KLK_MORE ? KLK_STEADY_MESSAGE : GOES_ON;
}

/* Takes the end of a sync and adds the answers that waited for it. */
static int finish_sync(struct klk_steady_turn *turn) {
    int result = klk_steady_poll_sync(&turn->follower->log);
    if (result == KLK_EOS) return KLK_STEADY_DISK;
    if (result != KLK_OK) return GOES_ON;
    return klk_steady_answer(turn->follower, turn->peers.out) == KLK_OK ? GOES_ON : KLK_STEADY_FULL;
}

static int write_blocks(struct klk_steady_log *log) {
    int result = klk_steady_write(log);
    if (result == KLK_OK) return GOES_ON;
    return result == KLK_ESPACE ? KLK_STEADY_SEGMENT : KLK_STEADY_DISK;
}

/* The index that the processes that apply may apply. */
static uint64_t applicable_index(const struct klk_steady_log *log, uint64_t commit_index) {
    return commit_index < log->durable_index ? commit_index : log->durable_index;
}

static int notice_is_urgent(const struct klk_steady_notices *notices, uint64_t index) {
    return notices->urgent->messages && index > notices->urgent_index;
}

/* When they must learn it, or end_ms. */
static int64_t notice_due_ms(const struct klk_steady_notices *notices, uint64_t index,
                             int64_t end_ms) {
    int64_t due_ms = end_ms;
    if (notice_is_urgent(notices, index)) return 0;
    if (index > notices->noticed_index) due_ms = notices->due_ms;
    else if (notices->alive_ms) due_ms = notices->due_ms + notices->alive_ms;
    return due_ms < end_ms ? due_ms : end_ms;
}

static int notices_write(const struct klk_steady_notices *notices, struct klk_messages *messages,
                         struct klk_poll *poll, uint64_t index) {
    uint32_t position = 0, dropped = 0, size;
    for (uint32_t m = 0; m < messages->messages; m++) {
        uint8_t *notice = (uint8_t *)klk_messages_at(messages, m, 0, &size);
        klk_put_u64(notice + notices->index_at, index);
    }
    struct klk_poll_item *item = socket_item(poll, notices->socket);
    if (item) item->check = 1;
    return klk_send(notices->socket, messages, 0, KLK_DROP, &position, &dropped);
}

/* Tells them, if it is time. Returns KLK_STEADY_NOTICE when Python must, or GOES_ON. */
static int notice_send(struct klk_steady_notices *notices, struct klk_poll *poll, uint64_t index,
                       int64_t now_ms, int *result) {
    int is_urgent = notice_is_urgent(notices, index);
    int64_t all_ms = index > notices->noticed_index ? notices->due_ms : INT64_MAX;
    if (all_ms == INT64_MAX && notices->alive_ms) all_ms = notices->due_ms + notices->alive_ms;
    if (now_ms < all_ms && !is_urgent) return GOES_ON;
    if (index < notices->from_index || !notices->messages->messages) return KLK_STEADY_NOTICE;
    notices->urgent_index = index;
    if (now_ms < all_ms) {
        *result = notices_write(notices, notices->urgent, poll, index);
        notices->sent_urgent++;
        return GOES_ON;
    }
    *result = notices_write(notices, notices->messages, poll, index);
    notices->noticed_index = index;
    notices->due_ms = now_ms + notices->period_ms;
    notices->sent++;
    return GOES_ON;
}

/* Ends what has begun, if the disk is not slow: then no answer is left to the caller. */
static int settle(struct klk_steady_turn *turn, struct klk_poll_item *peers) {
    struct klk_steady_log *log = &turn->follower->log;
    int64_t end_ms = monotonic_ms() + KLK_STEADY_LEAVE_MS;
    while (log->syncing) {
        struct pollfd ended = {sync_fd(log), POLLIN, 0};
        int64_t left_ms = end_ms - monotonic_ms();
        if (left_ms <= 0 || poll(&ended, 1, (int)left_ms) <= 0) break;
        if (finish_sync(turn) != GOES_ON || write_blocks(&turn->follower->log) != GOES_ON) break;
    }
    return router_send(&turn->peers, peers);
}

/* One wake. Returns a reason to end, or GOES_ON. */
static int wake(struct klk_steady_turn *turn, struct klk_poll_item *peers,
                struct klk_poll_item *sync, int *result) {
    int reason = GOES_ON;
    if (sync->ready) {
        sync->ready = 0;
        reason = finish_sync(turn);
    }
    if (reason == GOES_ON && (peers->ready || turn->peers.more))
        reason = receive(turn, peers, result);
    if (*result != KLK_OK || reason == KLK_STEADY_DISK) return reason;
    int wrote = write_blocks(&turn->follower->log);
    if (wrote != GOES_ON) return wrote;
    *result = router_send(&turn->peers, peers);
    if (*result != KLK_OK || reason != GOES_ON) return reason;
    /* After the answers: the table of request ids matters only to a leader. */
    return klk_steady_reqids(&turn->follower->log) == KLK_OK ? GOES_ON : KLK_STEADY_ROOM;
}

int klk_steady_wait(struct klk_steady_turn *turn, int64_t timeout_ms) {
    struct klk_steady_log *log = &turn->follower->log;
    struct klk_poll_item *peers = socket_item(turn->poll, turn->peers.socket);
    struct klk_poll_item *sync = fd_item(turn->poll, sync_fd(log));
    if (!peers || !sync) return KLK_EINVAL;
    struct klk_poll_item *const ours[] = {peers, sync};
    int64_t now_ms = monotonic_ms(), end_ms = turn->resume ? turn->end_ms : now_ms + timeout_ms;
    int reason = GOES_ON, result = KLK_OK;
    turn->handled = turn->resume = 0;
    turn->end_ms = end_ms;
    if (klk_steady_reqids(log) != KLK_OK) reason = KLK_STEADY_ROOM;
    while (reason == GOES_ON) {
        uint64_t index = applicable_index(log, turn->follower->commit_index);
        int64_t due_ms = notice_due_ms(&turn->notices, index, end_ms);
        int64_t left_ms = turn->peers.more || now_ms >= due_ms ? 0 : due_ms - now_ms;
        int found = klk_poll_wait(turn->poll, left_ms);
        if (found < 0) return found;
        turn->wakes++;
        now_ms = monotonic_ms();
        if (others_ready(turn->poll, ours, 2)) {
            reason = KLK_STEADY_SOURCE;
            break;
        }
        if (found || turn->peers.more) reason = wake(turn, peers, sync, &result);
        if (reason != GOES_ON) break;
        index = applicable_index(log, turn->follower->commit_index);
        reason = notice_send(&turn->notices, turn->poll, index, now_ms, &result);
        if (result != KLK_OK) reason = KLK_STEADY_SOURCE;
        if (reason != GOES_ON) break;
        if (now_ms >= end_ms) {
            reason = KLK_STEADY_TIME;
        } else if (!found && !turn->peers.more && now_ms < due_ms) {
            reason = KLK_STEADY_SOURCE; /* A signal has ended the poll. */
        }
    }
    turn->reason = reason;
    if (result == KLK_OK && reason == KLK_STEADY_ROOM) return KLK_OK;
    if (result == KLK_OK && reason != KLK_STEADY_DISK) result = settle(turn, peers);
    if (turn->peers.more) peers->ready = KLK_POLL_IN;
    turn->peers.more = 0;
    return result;
}

/* ---- a leader ---- */

/* The items of a leader's turn in its poll: its intakes, its syncs, then its links. */
enum { SYNC = KLK_STEADY_INTAKES, LINKS, ITEMS_MAX = LINKS + KLK_STEADY_PEERS_MAX };

struct lead_items {
    struct klk_poll_item *all[ITEMS_MAX];
    uint8_t lazy[ITEMS_MAX]; /* as the caller has set it */
    uint32_t count;
};

static int lead_find(const struct klk_steady_lead *lead, struct lead_items *items) {
    items->count = LINKS + lead->leader->peers_count;
    for (uint32_t i = 0; i < KLK_STEADY_INTAKES; i++)
        items->all[i] = socket_item(lead->poll, lead->intakes[i].socket);
    items->all[SYNC] = fd_item(lead->poll, sync_fd(&lead->leader->log));
    for (uint32_t p = 0; p < lead->leader->peers_count; p++)
        items->all[LINKS + p] = socket_item(lead->poll, lead->links[p].socket);
    for (uint32_t i = 0; i < items->count; i++) {
        if (!items->all[i]) return 0;
        items->lazy[i] = items->all[i]->lazy;
    }
    return 1;
}

/* What would cause nothing alone may come with something else (Leader.may_wait() of
 * protocols/raft/leader.py): our own sync before a follower has answered, and answers once all is
 * committed. */
static void lead_set_lazy(const struct klk_steady_lead *lead, const struct lead_items *items) {
    const struct klk_steady_leader *leader = lead->leader;
    int is_open = leader->commit_index < leader->log.last_index, answered = 0, needs = 0;
    for (uint32_t p = 0; p < leader->peers_count; p++) {
        const struct klk_steady_peer *peer = &leader->peers[p];
        answered |= peer->match_index > leader->commit_index;
        needs |= peer->next_index <= leader->log.last_index || peer->clients_wait;
    }
    items->all[SYNC]->lazy = is_open && !answered && leader->peers_count > 0;
    for (uint32_t p = 0; p < leader->peers_count; p++)
        items->all[LINKS + p]->lazy = !is_open && !needs;
}

static void lead_restore_lazy(const struct lead_items *items) {
    for (uint32_t i = 0; i < items->count; i++) items->all[i]->lazy = items->lazy[i];
}

/* Takes the answers of a follower. Returns a reason to end, or GOES_ON. */
static int lead_answers(struct klk_steady_lead *lead, uint32_t number, struct klk_poll_item *item,
                        int *result) {
    struct klk_steady_router *link = &lead->links[number];
    struct klk_messages *arena = link->drain->arena;
    uint32_t position = 0;
    int received = router_receive(link, item);
    if (received < 0) {
        *result = received;
        return KLK_STEADY_SOURCE;
    }
    int code = klk_steady_answers(lead->leader, number, arena, &position, (uint64_t)monotonic_ms());
    klk_messages_drop(arena, position);
    if (arena->messages) lead->links_left |= 1u << number;
    return code == KLK_OK && received == KLK_OK ? GOES_ON : KLK_STEADY_MESSAGE;
}

/* Appends the updates that have arrived. Returns a reason to end, or GOES_ON. */
static int lead_propose(struct klk_steady_lead *lead, uint32_t source,
                        const struct klk_poll_item *item) {
    struct klk_steady_router *router = &lead->intakes[source];
    uint64_t now_us = klk_monotonic_us();
    lead->unix_s = (uint32_t)time(NULL);
    int code = klk_steady_propose(lead->leader, source, router->drain->arena, now_us / 1000,
                                  lead->unix_s, now_us, router->out);
    if (code == KLK_OK) {
        if (lead->leader->intakes[source].others_count) lead->left[source] = KLK_STEADY_OTHERS;
        /* An item that is ready again has something for the caller. */
        return lead->left[source] || item->ready ? KLK_STEADY_MESSAGE : GOES_ON;
    }
    if (code == KLK_EGROW || code == KLK_ESPACE) {
        lead->need = code;
        lead->needy = source;
        return KLK_STEADY_ROOM;
    }
    lead->left[source] = code == KLK_MORE ? KLK_STEADY_ARENA : KLK_STEADY_PARTIAL;
    return KLK_STEADY_FULL;
}

/* Takes what has arrived at one intake. Returns a reason to end, or GOES_ON. */
static int lead_updates(struct klk_steady_lead *lead, uint32_t source, struct klk_poll_item *item,
                        int *result) {
    int received = router_receive(&lead->intakes[source], item);
    if (received < 0) {
        *result = received;
        return KLK_STEADY_SOURCE;
    }
    return lead_propose(lead, source, item);
}

/* Takes what has arrived at the intakes from `first` on. Behind one that holds updates which are no
 * blocks yet, nothing may be appended: the others wait. Returns a reason to end, or GOES_ON. */
static int lead_intakes(struct klk_steady_lead *lead, const struct lead_items *items,
                        uint32_t first, int *result) {
    int reason = GOES_ON;
    for (uint32_t i = first; i < KLK_STEADY_INTAKES && *result == KLK_OK; i++) {
        if (!items->all[i]->ready && !lead->intakes[i].more) continue;
        int found = lead_updates(lead, i, items->all[i], result);
        if (found != GOES_ON) reason = found;
        if (found == KLK_STEADY_ROOM || found == KLK_STEADY_FULL) break;
    }
    return reason;
}

static int lead_send_answers(struct klk_steady_lead *lead, const struct lead_items *items) {
    int result = KLK_OK;
    for (uint32_t i = 0; i < KLK_STEADY_INTAKES; i++) {
        int sent = router_send(&lead->intakes[i], items->all[i]);
        if (sent != KLK_OK) result = sent;
    }
    return result;
}

/* Answers reads. After a suspend of the machine no lease holds: Python must know of it first.
 * Returns a reason to end, or GOES_ON. */
static int lead_reads(struct klk_steady_lead *lead, uint64_t now_ms) {
    const struct klk_waiters *readers = lead->leader->reads->readers;
    if (!readers[KLK_READS_CONFIRMED].waiting && !readers[KLK_READS_APPLIED].waiting)
        return GOES_ON;
    int64_t since_ms = suspended_ms() - lead->suspended_ms;
    if (since_ms > SUSPENDED_MS_MIN || since_ms < -SUSPENDED_MS_MIN) return KLK_STEADY_SOURCE;
    int code = klk_steady_reads(lead->leader, now_ms, lead->intakes[KLK_STEADY_CLIENTS].out);
    if (code == KLK_OK) return GOES_ON;
    return code == KLK_EFULL ? KLK_STEADY_FULL : KLK_STEADY_MESSAGE;
}

/* Tells the processes of this node how far a read must wait. */
static void lead_publish(const struct klk_steady_lead *lead) {
    const struct klk_steady_leader *leader = lead->leader;
    if (!lead->lease) return;
    uint64_t until_ms = klk_steady_lease_ms(leader);
    if (until_ms) until_ms += (uint64_t)(lead->suspended_ms - SUSPENDED_MS_MIN);
    klk_lease_write(lead->lease, until_ms, leader->commit_index);
}

/* Sends entries to followers, then answers to clients. Returns a reason to end, or GOES_ON. */
static int lead_send(struct klk_steady_lead *lead, const struct lead_items *items, int *result) {
    int reason = GOES_ON;
    uint64_t now_ms = (uint64_t)monotonic_ms();
    struct klk_messages *outs[KLK_STEADY_INTAKES];
    for (uint32_t i = 0; i < KLK_STEADY_INTAKES; i++) outs[i] = lead->intakes[i].out;
    if (klk_steady_commit(lead->leader, klk_monotonic_us(), outs) != KLK_OK)
        reason = KLK_STEADY_FULL;
    lead_publish(lead);
    klk_steady_tick(lead->leader, now_ms);
    int read = lead_reads(lead, now_ms);
    if (read != GOES_ON) reason = read;
    for (uint32_t p = 0; p < lead->leader->peers_count; p++) {
        /* Messages of the round that such reads begin are left to Python. */
        if (read != KLK_STEADY_MESSAGE && klk_steady_send(lead->leader, p, now_ms) != KLK_OK)
            reason = KLK_STEADY_FULL;
        int sent = router_send(&lead->links[p], items->all[LINKS + p]);
        if (sent != KLK_OK) *result = sent;
    }
    int sent = lead_send_answers(lead, items);
    if (sent != KLK_OK) *result = sent;
    return reason;
}

/* Whether an arena holds messages for the caller. */
static int lead_has_left(const struct klk_steady_lead *lead) {
    int left = lead->links_left != 0;
    for (uint32_t i = 0; i < KLK_STEADY_INTAKES; i++) left |= lead->left[i] != KLK_STEADY_NOTHING;
    return left;
}

/* The second half of a wake. Returns a reason to end, or GOES_ON. */
static int lead_finish(struct klk_steady_lead *lead, const struct lead_items *items, int reason,
                       int *result) {
    if (reason == KLK_STEADY_ROOM) return reason;
    int sent = lead_send(lead, items, result);
    if (reason == GOES_ON) reason = sent;
    if (reason == GOES_ON && lead_has_left(lead)) reason = KLK_STEADY_MESSAGE;
    int wrote = write_blocks(&lead->leader->log);
    return wrote == GOES_ON ? reason : wrote;
}

/* One wake. Returns a reason to end, or GOES_ON. */
static int lead_wake(struct klk_steady_lead *lead, const struct lead_items *items, int *result) {
    struct klk_steady_log *log = &lead->leader->log;
    int reason = GOES_ON;
    if (items->all[SYNC]->ready) {
        items->all[SYNC]->ready = 0;
        if (klk_steady_poll_sync(log) == KLK_EOS) return KLK_STEADY_DISK;
    }
    for (uint32_t p = 0; p < lead->leader->peers_count; p++) {
        if (!items->all[LINKS + p]->ready && !lead->links[p].more) continue;
        int found = lead_answers(lead, p, items->all[LINKS + p], result);
        if (found != GOES_ON) reason = found;
    }
    int found = lead_intakes(lead, items, 0, result);
    if (found != GOES_ON) reason = found;
    return *result == KLK_OK ? lead_finish(lead, items, reason, result) : reason;
}

/* Ends what has begun, if the disk is not slow. */
static int lead_settle(struct klk_steady_lead *lead, const struct lead_items *items, int reason) {
    struct klk_steady_log *log = &lead->leader->log;
    int64_t end_ms = monotonic_ms() + KLK_STEADY_LEAVE_MS;
    int result = KLK_OK;
    while (log->syncing && result == KLK_OK) {
        struct pollfd ended = {sync_fd(log), POLLIN, 0};
        int64_t left_ms = end_ms - monotonic_ms();
        if (left_ms <= 0 || poll(&ended, 1, (int)left_ms) <= 0) break;
        if (klk_steady_poll_sync(log) == KLK_EOS || reason == KLK_STEADY_SEGMENT) break;
        if (write_blocks(log) != GOES_ON) break;
    }
    if (!log->error) (void)lead_send(lead, items, &result);
    lead_restore_lazy(items);
    for (uint32_t p = 0; p < lead->leader->peers_count; p++) {
        if (lead->links[p].more) items->all[LINKS + p]->ready = KLK_POLL_IN;
        lead->links[p].more = 0;
    }
    for (uint32_t i = 0; i < KLK_STEADY_INTAKES; i++) {
        if (lead->intakes[i].more) items->all[i]->ready = KLK_POLL_IN;
        lead->intakes[i].more = 0;
    }
    return result;
}

static uint64_t lead_inflight(const struct klk_steady_leader *leader) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < KLK_STEADY_INTAKES; i++)
        bytes += leader->intakes[i].updates->inflight_bytes;
    return bytes;
}

static int lead_has_more(const struct klk_steady_lead *lead) {
    int more = 0;
    for (uint32_t i = 0; i < KLK_STEADY_INTAKES; i++) more |= lead->intakes[i].more;
    for (uint32_t p = 0; p < lead->leader->peers_count; p++) more |= lead->links[p].more;
    return more;
}

/* When the next turn must come, at the latest. */
static int64_t lead_due_ms(const struct klk_steady_lead *lead, uint64_t index) {
    int64_t due_ms = notice_due_ms(&lead->notices, index, lead->end_ms);
    uint64_t own_ms = klk_steady_due_ms(lead->leader);
    uint64_t beat_ms = klk_steady_beat_ms(lead->leader);
    if (beat_ms < own_ms) own_ms = beat_ms;
    for (uint32_t i = 0; i < KLK_STEADY_INTAKES; i++) {
        const struct klk_waiters *waiters = &lead->leader->intakes[i].updates->waiters;
        if (waiters->waiting && waiters->remind_ms < own_ms) own_ms = waiters->remind_ms;
    }
    return own_ms < (uint64_t)due_ms ? (int64_t)own_ms : due_ms;
}

/* Tells followers, clients and the processes that apply what they must know by now.
 * Returns a reason to end, or GOES_ON. */
static int lead_tell(struct klk_steady_lead *lead, const struct lead_items *items, uint64_t index,
                     int64_t now_ms, int *result) {
    if ((uint64_t)now_ms >= klk_steady_beat_ms(lead->leader)) {
        klk_steady_tick(lead->leader, (uint64_t)now_ms);
        if (klk_steady_beat(lead->leader, (uint64_t)now_ms) != KLK_OK) return KLK_STEADY_FULL;
        for (uint32_t p = 0; p < lead->leader->peers_count; p++) {
            int sent = router_send(&lead->links[p], items->all[LINKS + p]);
            if (sent != KLK_OK) *result = sent;
        }
    }
    for (uint32_t i = 0; i < KLK_STEADY_INTAKES; i++)
        if (klk_updates_remind(lead->leader->intakes[i].updates, (uint64_t)now_ms,
                               lead->intakes[i].out) != KLK_OK)
            return KLK_STEADY_FULL;
    if (*result == KLK_OK) *result = lead_send_answers(lead, items);
    int reason = GOES_ON;
    if (*result == KLK_OK)
        reason = notice_send(&lead->notices, lead->poll, index, now_ms, result);
    return *result == KLK_OK ? reason : KLK_STEADY_SOURCE;
}

int klk_steady_lead_wait(struct klk_steady_lead *lead, int64_t timeout_ms) {
    struct klk_steady_leader *leader = lead->leader;
    struct lead_items items;
    if (!lead_find(lead, &items)) return KLK_EINVAL;
    int64_t now_ms = monotonic_ms(), end_ms = lead->resume ? lead->end_ms : now_ms + timeout_ms;
    int reason = GOES_ON, result = KLK_OK;
    if (lead->resume) {
        reason = lead_propose(lead, lead->needy, items.all[lead->needy]);
        if (reason != KLK_STEADY_ROOM && reason != KLK_STEADY_FULL) {
            int found = lead_intakes(lead, &items, lead->needy + 1, &result);
            if (found != GOES_ON) reason = found;
        }
        reason = lead_finish(lead, &items, reason, &result);
    } else {
        for (uint32_t i = 0; i < KLK_STEADY_INTAKES; i++) lead->left[i] = KLK_STEADY_NOTHING;
        lead->links_left = 0;
    }
    lead->resume = 0;
    lead->end_ms = end_ms;
    while (reason == GOES_ON) {
        uint64_t index = applicable_index(&leader->log, leader->commit_index);
        int more = lead_has_more(lead);
        reason = lead_tell(lead, &items, index, now_ms, &result);
        if (reason != GOES_ON) break;
        int64_t due_ms = lead_due_ms(lead, index);
        if (now_ms >= end_ms || (uint64_t)now_ms >= klk_steady_due_ms(leader)) {
            reason = KLK_STEADY_TIME;
            break;
        }
        lead_set_lazy(lead, &items);
        int found = klk_poll_wait(lead->poll, more ? 0 : due_ms - now_ms);
        if (found < 0) return found;
        lead->wakes++;
        now_ms = monotonic_ms();
        if (others_ready(lead->poll, items.all, items.count)) {
            reason = KLK_STEADY_SOURCE;
        } else if (found || more) {
            reason = lead_wake(lead, &items, &result);
            if (result != KLK_OK && reason == GOES_ON) reason = KLK_STEADY_SOURCE;
        } else if (now_ms < due_ms) {
            reason = KLK_STEADY_SOURCE; /* A signal has ended the poll. */
        }
        if (lead->poll->connections) lead->poll->connections->own = lead_inflight(leader);
    }
    lead->reason = reason;
    if (reason == KLK_STEADY_ROOM && result == KLK_OK) {
        lead_restore_lazy(&items);
        return KLK_OK;
    }
    int settled = lead_settle(lead, &items, reason);
    return result != KLK_OK ? result : settled;
}
