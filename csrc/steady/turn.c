/* The turns of a steady state: poll, drain, append, sync and answer, without a return to Python. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <time.h>

#include "connections.h"
#include "messages.h"
#include "steady.h"

enum { GOES_ON = -1 }; /* Beside enum klk_steady_reason. */

static int64_t monotonic_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
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

/* Whether a source is ready that only the caller knows. */
static int others_ready(const struct klk_poll *poll, const struct klk_poll_item *peers,
                        const struct klk_poll_item *sync) {
    for (uint32_t i = 0; i < poll->count; i++) {
        const struct klk_poll_item *item = &poll->items[i];
        int expected = item == peers || item == sync ? KLK_POLL_IN : 0;
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

static int write_blocks(struct klk_steady_turn *turn) {
    int result = klk_steady_write(&turn->follower->log);
    if (result == KLK_OK) return GOES_ON;
    return result == KLK_ESPACE ? KLK_STEADY_SEGMENT : KLK_STEADY_DISK;
}

/* When the processes that apply must learn of a commit, or end_ms. */
static int64_t notice_due_ms(const struct klk_steady_turn *turn, int64_t end_ms) {
    const struct klk_steady_follower *follower = turn->follower;
    uint64_t index = follower->commit_index < follower->log.durable_index
                         ? follower->commit_index
                         : follower->log.durable_index;
    return index > turn->noticed_index && turn->notice_ms < end_ms ? turn->notice_ms : end_ms;
}

/* Ends what has begun, if the disk is not slow: then no answer is left to the caller. */
static int settle(struct klk_steady_turn *turn, struct klk_poll_item *peers) {
    struct klk_steady_log *log = &turn->follower->log;
    int64_t end_ms = monotonic_ms() + KLK_STEADY_LEAVE_MS;
    while (log->syncing) {
        struct pollfd ended = {sync_fd(log), POLLIN, 0};
        int64_t left_ms = end_ms - monotonic_ms();
        if (left_ms <= 0 || poll(&ended, 1, (int)left_ms) <= 0) break;
        if (finish_sync(turn) != GOES_ON || write_blocks(turn) != GOES_ON) break;
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
    int wrote = write_blocks(turn);
    if (wrote != GOES_ON) return wrote;
    *result = router_send(&turn->peers, peers);
    if (*result != KLK_OK || reason != GOES_ON) return reason;
    /* After the answers: the table of request ids matters only to a leader. */
    return klk_steady_reqids(&turn->follower->log) == KLK_OK ? GOES_ON : KLK_STEADY_FULL;
}

int klk_steady_wait(struct klk_steady_turn *turn, int64_t timeout_ms) {
    struct klk_steady_log *log = &turn->follower->log;
    struct klk_poll_item *peers = socket_item(turn->poll, turn->peers.socket);
    struct klk_poll_item *sync = fd_item(turn->poll, sync_fd(log));
    if (!peers || !sync) return KLK_EINVAL;
    int64_t now_ms = monotonic_ms(), end_ms = now_ms + timeout_ms;
    int reason = GOES_ON, result = KLK_OK;
    turn->handled = 0;
    while (reason == GOES_ON) {
        int64_t due_ms = notice_due_ms(turn, end_ms);
        int64_t left_ms = turn->peers.more || now_ms >= due_ms ? 0 : due_ms - now_ms;
        int found = klk_poll_wait(turn->poll, left_ms);
        if (found < 0) return found;
        turn->wakes++;
        now_ms = monotonic_ms();
        if (others_ready(turn->poll, peers, sync)) {
            reason = KLK_STEADY_SOURCE;
            break;
        }
        if (found || turn->peers.more) reason = wake(turn, peers, sync, &result);
        if (reason != GOES_ON) break;
        if (now_ms >= end_ms) {
            reason = KLK_STEADY_TIME;
        } else if (now_ms >= notice_due_ms(turn, end_ms)) {
            reason = KLK_STEADY_NOTICE;
        } else if (!found && !turn->peers.more) {
            reason = KLK_STEADY_SOURCE; /* A signal has ended the poll. */
        }
    }
    if (result == KLK_OK && reason != KLK_STEADY_DISK) result = settle(turn, peers);
    if (turn->peers.more) peers->ready = KLK_POLL_IN;
    turn->peers.more = 0;
    turn->reason = reason;
    return result;
}
