/* The inner loop of a table server: poll, drain, pack, forward and answer without Python. */
#define _GNU_SOURCE
#include "table_wait.h"

#include <time.h>

#include "budget.h"
#include "messages.h"

/* The items of its own sockets; that of a missing one is `none`. */
struct items {
    struct klk_poll_item *clients, *leader, *done, *index;
    struct klk_poll_item none;
};

static struct klk_poll_item *item_of(const struct klk_poll *poll, const void *socket) {
    for (uint32_t i = 0; i < poll->count; i++)
        if (poll->items[i].socket == socket) return &poll->items[i];
    return NULL;
}

/* Whether a source of the caller is ready. */
static int others_ready(const struct klk_poll *poll, const struct items *items) {
    for (uint32_t i = 0; i < poll->count; i++) {
        const struct klk_poll_item *item = &poll->items[i];
        int own = item == items->clients || item == items->leader || item == items->done ||
                  item == items->index;
        if (item->ready & ~(own ? KLK_POLL_IN : 0)) return 1;
    }
    return 0;
}

/* Receives what waits. Its item stays ready if the caller must receive: a message that needs more
 * room, and to count dropped ones. */
static int receive(struct klk_drain *drain, void *socket, struct klk_poll_item *item,
                   int32_t *more) {
    uint64_t dropped = drain->dropped;
    int result = klk_drain_receive(drain, socket, 1);
    if (result < 0 && result != KLK_ESPACE) return result;
    *more = result == KLK_MORE;
    item->ready = result == KLK_ESPACE || drain->dropped != dropped ? KLK_POLL_IN : 0;
    return KLK_OK;
}

/* Sends answers to clients; leaves `left` if some were not sent. */
static int answers_send(struct klk_table_wait *wait, struct items *items,
                        const struct klk_messages *answers, uint32_t skip, int left) {
    struct klk_served_router *router = &wait->clients;
    uint32_t position = 0;
    items->clients->check = 1; /* Sending consumes the event that a descriptor would show. */
    int result = klk_budget_send(router->budget, router->socket, answers, skip, router->bytes_max,
                                 &position, router->unsent, &router->unsents);
    if (result == KLK_OK && router->unsents) wait->left |= left;
    return result;
}

/* Sends a batch of a worker. */
static int batch_send(struct klk_table_wait *wait, uint32_t number,
                      const struct klk_messages *batch) {
    uint32_t position = 0, dropped = 0;
    int result = klk_send(wait->workers[number], batch, 0, KLK_KEEP | KLK_BUNDLED, &position,
                          &dropped);
    if (result == KLK_MORE) {
        klk_channel_stop(&wait->channels[number], position);
        wait->left |= KLK_TABLE_LEFT_READS;
    }
    return result < 0 ? result : KLK_OK;
}

/* ---- reads ---- */

/* Whether the workers take all reads of an arena. */
static int reads_fit(const struct klk_table_wait *wait, const struct klk_messages *arena) {
    for (uint32_t i = 0; i < wait->plain->workers; i++)
        if (!klk_channel_fits(&wait->channels[i], arena)) return 0;
    return 1;
}

/* Answers reads from shared memory, and forwards the others. */
static int reads_serve(struct klk_table_wait *wait, struct items *items,
                       const struct klk_messages *arena, struct klk_request *rows, uint64_t index,
                       int64_t now_us) {
    uint32_t workers = wait->plain->workers;
    int result = KLK_OK;
    uint32_t left = klk_cached_answer(wait->readers, wait->channels, workers, arena, rows, index,
                                      now_us, wait->cached);
    if (wait->cached->messages)
        result = answers_send(wait, items, wait->cached, 0, KLK_TABLE_LEFT_CACHED);
    for (uint32_t i = 0; left && result == KLK_OK && i < workers; i++) {
        const struct klk_messages *batch = klk_channel_add(
            &wait->channels[i], arena, rows, wait->positions, i, workers, index, now_us);
        if (batch) result = batch_send(wait, i, batch);
    }
    return result;
}

/* Takes the reads of the clients' arena: serves them, or has them ask the leader. 0: neither is
 * possible now, and nothing was done. */
static int reads_take(struct klk_table_wait *wait, struct items *items, int64_t now_us,
                      int *result) {
    const struct klk_messages *arena = wait->clients.drain->arena;
    struct klk_request *rows = wait->plain->rows;
    uint64_t index = wait->lease ? klk_lease_read(wait->lease) : 0;
    if (!index || klk_rounds_since_us(wait->rounds) != INT64_MAX)
        return wait->index.socket && klk_rounds_add(wait->rounds, arena, rows, now_us);
    if (!reads_fit(wait, arena)) return 0;
    *result = reads_serve(wait, items, arena, rows, index, now_us);
    return 1;
}

/* Handles an answer of the leader to the asked reads. Returns KLK_ROUNDS_OTHER: it is another
 * message, or the caller must serve them. */
static int index_answer(struct klk_table_wait *wait, struct items *items,
                        const struct klk_messages *arena, uint32_t message, int64_t now_us) {
    struct klk_rounds *rounds = wait->rounds;
    uint64_t index = 0;
    int kind = klk_rounds_answer(rounds, arena, message, &index);
    if (kind != KLK_ROUNDS_ANSWERED) return kind;
    if (!reads_fit(wait, rounds->asked)) return KLK_ROUNDS_OTHER;
    int64_t arrived_us = rounds->asked_us < now_us ? rounds->asked_us : now_us;
    int result = reads_serve(wait, items, rounds->asked, rounds->rows, index, arrived_us);
    klk_rounds_end(rounds);
    return result;
}

static int index_read(struct klk_table_wait *wait, struct items *items, int64_t now_us) {
    struct klk_table_source *source = &wait->index;
    if (!source->socket || source->socket == wait->leader.socket) return KLK_OK;
    if (!(items->index->ready || source->more)) return KLK_OK;
    int result = receive(source->drain, source->socket, items->index, &source->more);
    const struct klk_messages *arena = source->drain->arena;
    for (uint32_t m = 0; result == KLK_OK && m < arena->messages; m++) {
        result = wait->left ? KLK_ROUNDS_OTHER : index_answer(wait, items, arena, m, now_us);
        if (result != KLK_ROUNDS_OTHER) continue;
        wait->index_position = m;
        wait->left |= KLK_TABLE_LEFT_INDEX;
        return KLK_OK;
    }
    return result;
}

/* Sends a message to the leader. Returns 1; 0: its socket takes none, or an error. */
static int leader_send(struct klk_table_wait *wait, void *socket, struct klk_poll_item *item) {
    uint32_t position = 0, dropped = 0;
    item->check = 1;
    int result = klk_send(socket, wait->out, 0, KLK_KEEP, &position, &dropped);
    return result < 0 ? result : result != KLK_MORE && !dropped;
}

static int question_send(struct klk_table_wait *wait, struct items *items) {
    struct klk_messages *out = wait->out;
    out->frames = out->messages = 0;
    if (!wait->index.socket || klk_rounds_ask(wait->rounds, out) != 1) return KLK_OK;
    int sent = leader_send(wait, wait->index.socket, items->index);
    if (sent > 0) return KLK_OK;
    klk_rounds_unask(wait->rounds);
    wait->left |= KLK_TABLE_LEFT_PACK;
    return sent;
}

/* ---- the leader ---- */

/* Answers the first pack, asks for the results of its transactions, and ends it. */
static int pack_end(struct klk_table_wait *wait, struct items *items, int64_t now_us) {
    struct klk_plain *plain = wait->plain;
    int result = KLK_OK;
    wait->unsent_pack = plain->first;
    for (uint32_t i = 0; result == KLK_OK && i < plain->workers; i++) {
        const struct klk_messages *batch = klk_plain_ask(plain, wait->channels, i);
        if (batch) result = batch_send(wait, i, batch);
    }
    const struct klk_messages *answers = klk_plain_answers(plain);
    if (result == KLK_OK && answers->messages)
        result = answers_send(wait, items, answers, 0, KLK_TABLE_LEFT_UNSENT);
    klk_plain_end(plain, now_us);
    return result;
}

static int leader_read(struct klk_table_wait *wait, struct items *items, int64_t now_us) {
    struct klk_table_source *leader = &wait->leader;
    if (!leader->socket || !(items->leader->ready || leader->more)) return KLK_OK;
    int result = receive(leader->drain, leader->socket, items->leader, &leader->more);
    const struct klk_messages *arena = leader->drain->arena;
    for (uint32_t m = 0; result == KLK_OK && m < arena->messages; m++) {
        wait->leader_position = m;
        int kind = wait->left ? KLK_PLAIN_OTHER
                              : klk_plain_answer(wait->plain, wait->channels, arena, m);
        if (kind == KLK_PLAIN_OTHER && !wait->left && wait->index.socket == leader->socket) {
            result = index_answer(wait, items, arena, m, now_us);
            if (result != KLK_ROUNDS_OTHER) continue;
            result = KLK_OK;
        }
        if (kind == KLK_PLAIN_OTHER) { /* Or the caller must handle unsent answers first. */
            wait->left |= KLK_TABLE_LEFT_LEADER;
            return KLK_OK;
        }
        if (kind == KLK_PLAIN_ANSWERED) result = pack_end(wait, items, now_us);
    }
    return result;
}

static int packs_send(struct klk_table_wait *wait, struct items *items) {
    struct klk_messages *out = wait->out;
    while (wait->leader.socket) {
        out->frames = out->messages = 0;
        int result = klk_plain_pack(wait->plain, out);
        if (result <= 0) return result;
        result = leader_send(wait, wait->leader.socket, items->leader);
        if (result > 0) continue;
        wait->plain->sent--;
        wait->left |= KLK_TABLE_LEFT_PACK;
        return result;
    }
    return KLK_OK;
}

/* ---- workers ---- */

static int done_read(struct klk_table_wait *wait, struct items *items, int64_t now_us) {
    struct klk_table_source *done = &wait->done;
    if (!(items->done->ready || done->more)) return KLK_OK;
    int result = receive(done->drain, done->socket, items->done, &done->more);
    const struct klk_messages *arena = done->drain->arena;
    if (result != KLK_OK || !arena->messages) return result;
    if (!wait->passes_done ||
        !klk_channels_done(wait->channels, wait->plain->workers, arena, now_us)) {
        wait->left |= KLK_TABLE_LEFT_DONE;
        return KLK_OK;
    }
    return answers_send(wait, items, arena, 1, KLK_TABLE_LEFT_FAILED);
}

/* ---- clients ---- */

static int clients_read(struct klk_table_wait *wait, struct items *items, int64_t now_us) {
    struct klk_served_router *router = &wait->clients;
    struct klk_plain *plain = wait->plain;
    if (plain->row < plain->row_count) {
        klk_plain_take(plain, router->drain->arena, now_us);
        return KLK_OK;
    }
    if (!items->clients->ready && !router->more) return KLK_OK;
    int result = receive(router->drain, router->socket, items->clients, &router->more);
    if (result != KLK_OK) return result;
    const struct klk_messages *arena = router->drain->arena;
    if (router->drain->denied && router->drain->denied->messages)
        wait->left |= KLK_TABLE_LEFT_DENIED;
    int found = klk_plain_read(plain, arena);
    if (found & KLK_PLAIN_OTHERS || (found & KLK_PLAIN_WRITES && !wait->leader.socket) ||
        (found & KLK_PLAIN_READS && !reads_take(wait, items, now_us, &result))) {
        wait->left |= KLK_TABLE_LEFT_CLIENTS;
        return KLK_OK;
    }
    if (found & KLK_PLAIN_WRITES) klk_plain_receive(plain, arena, now_us);
    return result;
}

/* ---- the loop ---- */

/* One wake. Answers come first: they make room for requests. */
static int wake(struct klk_table_wait *wait, struct items *items, int64_t now_us) {
    int result = leader_read(wait, items, now_us);
    if (result == KLK_OK && !wait->left) result = index_read(wait, items, now_us);
    if (result == KLK_OK && !wait->left) result = done_read(wait, items, now_us);
    if (result == KLK_OK && !wait->left) result = clients_read(wait, items, now_us);
    if (result == KLK_OK) result = packs_send(wait, items);
    return result == KLK_OK ? question_send(wait, items) : result;
}

/* When the first pack or the asked reads are late; INT64_MAX: there are none. */
static int64_t late_us(const struct klk_table_wait *wait) {
    const struct klk_plain *plain = wait->plain;
    int64_t since_us = klk_rounds_since_us(wait->rounds);
    if (plain->count && plain->packs[plain->first].arrived_us < since_us)
        since_us = plain->packs[plain->first].arrived_us;
    return since_us == INT64_MAX ? since_us : since_us + KLK_PLAIN_LATE_MS * 1000;
}

static int is_passed(const struct klk_table_wait *wait) {
    for (uint32_t i = 0; i < wait->plain->workers; i++)
        if (wait->channels[i].bytes >= wait->bytes_max) return 1;
    return 0;
}

/* Whether the caller must act. */
static int is_over(struct klk_table_wait *wait, const struct items *items, int64_t now_us) {
    if (now_us >= late_us(wait)) wait->left |= KLK_TABLE_LEFT_LATE;
    return wait->left || items->clients->ready || items->leader->ready || items->done->ready ||
           items->index->ready || others_ready(wait->poll, items) || is_passed(wait);
}

/* Reports what a drain has left as if it had just arrived. */
static void leave(struct klk_poll_item *item, int32_t *more) {
    if (*more) item->ready = KLK_POLL_IN;
    *more = 0;
}

int klk_table_wait(struct klk_table_wait *wait, int64_t timeout_ms) {
    struct klk_plain *plain = wait->plain;
    struct items items = {.clients = item_of(wait->poll, wait->clients.socket),
                          .leader = &items.none,
                          .index = &items.none,
                          .done = item_of(wait->poll, wait->done.socket)};
    if (wait->leader.socket) items.leader = item_of(wait->poll, wait->leader.socket);
    if (wait->index.socket) items.index = item_of(wait->poll, wait->index.socket);
    if (!items.clients || !items.leader || !items.done || !items.index) return KLK_EINVAL;
    int64_t now_us = (int64_t)klk_monotonic_us(), end_us = now_us + timeout_ms * 1000;
    wait->left = 0;
    for (int more = 0;;) {
        int is_stalled = plain->row < plain->row_count;
        int64_t until_us = late_us(wait) < end_us ? late_us(wait) : end_us;
        int64_t left_ms = more || now_us >= until_us ? 0 : (until_us - now_us + 999) / 1000;
        if (is_stalled) items.clients->wanted &= ~KLK_POLL_IN;
        int found = klk_poll_wait(wait->poll, left_ms);
        if (is_stalled) items.clients->wanted |= KLK_POLL_IN;
        if (found < 0) return found;
        now_us = (int64_t)klk_monotonic_us();
        plain->unix_s = (uint32_t)time(NULL);
        int result = wake(wait, &items, now_us);
        if (result < 0) return result;
        more = wait->leader.more || wait->done.more || wait->index.more;
        if (plain->row == plain->row_count) more |= wait->clients.more;
        if (is_over(wait, &items, now_us) || now_us >= end_us) break;
    }
    leave(items.leader, &wait->leader.more);
    leave(items.index, &wait->index.more);
    leave(items.done, &wait->done.more);
    leave(items.clients, &wait->clients.more);
    if (plain->row < plain->row_count) { /* The arena must stay until they have room. */
        items.clients->ready &= ~KLK_POLL_IN;
        items.clients->check = 1;
    }
    return KLK_OK;
}
