/* The messages of a broker, parsed, forwarded and answered without an object for each.
 *
 * Frames after the routing id (docs/protocols/majordomo.md):
 *
 *   TEXT        client: header, command, service, id, [time, credit and name], body ..
 *               worker: header, command, address, empty, id, [time, credit], body ..
 *   RFC 7       client: empty, header, service, body ..
 *               worker: empty, header, command, address, empty, body ..
 *   RFC 18      client: header, command, service, body ..
 *               worker: header, command, address, empty, body .. */
#include "exchange_state.h"

#include <string.h>

#include "messages.h"

enum { PING_BYTES = 4, DEADLINE_BYTES = 8, CREDIT_BYTES = 8, OPTIONS_BYTES = 16, PLACE_BYTES = 8 };
/* Of a message besides its body: up to five names, KLK-ERROR, a command, an empty frame. */
enum { HEAD_BYTES_MAX = 2048, HEAD_FRAMES_MAX = 8 };
enum client_command {
    CLIENT_REQUEST = 1,
    CLIENT_PARTIAL = 2,
    CLIENT_FINAL = 3,
    CLIENT_CREDIT = 4, /* extension, to the broker: more parts may be sent */
    CLIENT_CANCEL = 5, /* extension, to the broker: withdraws a request */
    CLIENT_PART = 4,   /* extension, to the client: a PARTIAL with its position */
    CLIENT_END = 5,    /* extension, to the client: a FINAL with the number of parts before it */
    CLIENT_ALIVE = 6   /* extension, to the client: a sign of life */
};

/* The kinds of a worker's messages, whatever their octet in a framing. */
enum action {
    ACT_NONE,
    ACT_READY,
    ACT_PARTIAL,
    ACT_FINAL,
    ACT_HEARTBEAT,
    ACT_PING,
    ACT_DISCONNECT
};

static const uint8_t REQUEST_COMMAND = 2; /* To a worker, in all framings. */
static const uint8_t CREDIT_COMMAND = 7;  /* Extension, to a worker: more parts may be sent. */
/* Extension, to a worker: the client withdrew the request. */
static const uint8_t CANCEL_COMMAND = 8;
static const int64_t CREDIT_MAX = (int64_t)1 << 62;
static const uint8_t HEARTBEATS[] = {0, 4, 5};
static const uint8_t ACTIONS[][8] = {
    {ACT_NONE, ACT_READY, ACT_NONE, ACT_PARTIAL, ACT_FINAL, ACT_NONE, ACT_DISCONNECT, ACT_READY},
    {ACT_NONE, ACT_READY, ACT_NONE, ACT_FINAL, ACT_HEARTBEAT, ACT_DISCONNECT, ACT_NONE, ACT_NONE},
    {ACT_NONE, ACT_READY, ACT_NONE, ACT_PARTIAL, ACT_FINAL, ACT_HEARTBEAT, ACT_DISCONNECT,
     ACT_NONE},
};
/* By framing; the setup has the headers of the specification's framing. */
static const struct klk_name MDP_CLIENTS[] = {{0}, {6, "MDPC01"}, {6, "MDPC02"}};
static const struct klk_name MDP_WORKERS[] = {{0}, {6, "MDPW01"}, {6, "MDPW02"}};
static const uint8_t ERROR_FRAME[] = {'K', 'L', 'K', '-', 'E', 'R', 'R', 'O', 'R'};

/* ---- parsing ---- */

/* A message and the position of the parser. */
struct reader {
    const struct klk_messages *in;
    uint32_t first;
    uint32_t end;
    int32_t slot; /* of the sender's key */
    uint8_t is_bundled;
};

static struct reader reader_of(const struct klk_messages *in, uint32_t message) {
    int32_t slot = in->slots ? (int32_t)in->slots[message] : KLK_EXCHANGE_NO_SLOT;
    uint8_t is_bundled = in->bundles && in->bundles[message];
    return (struct reader){in, in->firsts[message], in->firsts[message + 1], slot, is_bundled};
}

static uint32_t frames_left(const struct reader *reader) { return reader->end - reader->first; }

/* The next frame; empty behind the last one. */
static struct klk_octets frame_next(struct reader *reader) {
    if (reader->first == reader->end) return (struct klk_octets){NULL, 0};
    const struct klk_messages *in = reader->in;
    uint32_t f = reader->first++;
    return (struct klk_octets){in->bytes + in->offsets[f], in->offsets[f + 1] - in->offsets[f]};
}

static int frame_is(struct klk_octets frame, const void *data, uint32_t size) {
    return frame.size == size && memcmp(frame.data, data, size) == 0;
}

static int frame_names(struct klk_octets frame, const struct klk_name *name) {
    return frame_is(frame, name->bytes, name->size);
}

static int is_name(struct klk_octets frame) {
    return frame.size && frame.size <= KLK_EXCHANGE_NAME_MAX;
}

static int is_printable(struct klk_octets frame) {
    for (uint32_t i = 0; i < frame.size; i++)
        if (frame.data[i] < 0x20 || frame.data[i] > 0x7e) return 0;
    return is_name(frame);
}

static int begins(struct klk_octets frame, const char *prefix) {
    size_t size = strlen(prefix);
    return frame.size >= size && memcmp(frame.data, prefix, size) == 0;
}

/* Parses the header. Returns the framing, or -1; own is the specification's header. */
static int framing_read(struct reader *reader, const struct klk_name *own,
                        const struct klk_name *mdp) {
    struct klk_octets frame = frame_next(reader);
    if (frame_names(frame, own)) return KLK_FRAMING_TEXT;
    if (frame_names(frame, &mdp[KLK_FRAMING_MDP2])) return KLK_FRAMING_MDP2;
    if (frame.size || !frame_names(frame_next(reader), &mdp[KLK_FRAMING_MDP1])) return -1;
    return KLK_FRAMING_MDP1;
}

/* ---- writing ---- */

/* Whether a message with such a body fits. Callers ask this once for each message or request,
 * so that the functions that write need no check. */
static int has_room(const struct klk_messages *out, uint64_t bytes, uint64_t frames) {
    return klk_messages_fit(out, HEAD_BYTES_MAX + bytes, HEAD_FRAMES_MAX + frames);
}

static void write_name(struct klk_messages *out, const struct klk_name *name) {
    klk_messages_frame(out, name->bytes, name->size);
}

/* Writes the frames of an answer before the request id. */
static void write_client(const struct klk_exchange *exchange, const struct request *request,
                         uint8_t command, struct klk_messages *clients) {
    int framing = request->framing;
    write_name(clients, &request->client->by_id.name);
    if (framing == KLK_FRAMING_MDP1) klk_messages_frame(clients, "", 0);
    write_name(clients, framing == KLK_FRAMING_TEXT ? &exchange->setup.headers[KLK_HEADER_CLIENT]
                                                    : &MDP_CLIENTS[framing]);
    if (framing != KLK_FRAMING_MDP1) klk_messages_frame(clients, &command, 1);
    write_name(clients, &request->service->named.name);
}

/* Writes the first frames to a worker. */
static void write_worker(const struct klk_exchange *exchange, const struct worker *worker,
                         const void *command, uint32_t size, struct klk_messages *workers) {
    int framing = worker->framing;
    write_name(workers, &worker->named.name);
    if (framing == KLK_FRAMING_MDP1) klk_messages_frame(workers, "", 0);
    write_name(workers, framing == KLK_FRAMING_TEXT ? &exchange->setup.headers[KLK_HEADER_WORKER]
                                                    : &MDP_WORKERS[framing]);
    klk_messages_frame(workers, command, size);
}

static void end_worker(const struct worker *worker, struct klk_messages *workers) {
    klk_messages_end_bundled(workers, worker->wants == KLK_WANTS_BUNDLES);
}

/* Writes the frames of an order that name its request. */
static void write_target(const struct request *request, struct klk_messages *workers) {
    klk_messages_frame(workers, request->client->number, sizeof request->client->number);
    klk_messages_frame(workers, "", 0);
}

/* Writes CREDIT or CANCEL to a request's worker, if it knows them. */
static void order_write(struct klk_exchange *exchange, struct request *request, uint8_t command,
                        uint64_t credit, struct klk_messages *workers) {
    const struct worker *worker = request->worker;
    uint8_t amount[CREDIT_BYTES];
    if (!worker || worker->wants < KLK_WANTS_CREDIT) return;
    write_worker(exchange, worker, &command, 1, workers);
    write_target(request, workers);
    klk_messages_frame(workers, klk_request_id(request), request->id_size);
    klk_put_u64_big(amount, credit);
    if (command == CREDIT_COMMAND) klk_messages_frame(workers, amount, sizeof amount);
    end_worker(worker, workers);
}

/* The client accepts so many more octets of parts. */
static void credit_add(struct klk_exchange *exchange, struct request *request, int64_t credit,
                       struct klk_messages *workers) {
    order_write(exchange, request, CREDIT_COMMAND, (uint64_t)credit, workers);
    request->credit += credit < CREDIT_MAX - request->credit ? credit : 0;
}

/* The client wants no parts, so the worker needs no credit. */
static void parts_unwanted(struct klk_exchange *exchange, struct request *request,
                           struct klk_messages *workers) {
    if (request->parts_mode != KLK_PARTS_NUMBERED) return;
    order_write(exchange, request, CREDIT_COMMAND, UINT64_MAX, workers);
    request->parts_mode = KLK_PARTS_UNWANTED;
}

/* The client has a new connection, with so much credit: parts on the old connection are lost. */
static void credit_set(struct klk_exchange *exchange, struct request *request, int64_t credit,
                       struct klk_messages *workers) {
    if (!credit) {
        parts_unwanted(exchange, request, workers);
        return;
    }
    request->parts_mode = KLK_PARTS_NUMBERED;
    if (credit > request->credit) credit_add(exchange, request, credit - request->credit, workers);
}

/* Ends a queued request, or cancels it at its worker. */
static void cancel(struct klk_exchange *exchange, struct request *request,
                   struct klk_messages *workers) {
    if (request->is_abandoned) return;
    order_write(exchange, request, CANCEL_COMMAND, 0, workers);
    exchange->counters[KLK_EXCHANGE_CANCELLED]++;
    if (request->worker)
        request->is_abandoned = 1;
    else
        klk_request_end(exchange, request);
}

/* Ends a message to a client of the specification's framing with an error. */
static void error_end(const struct klk_exchange *exchange, int refusal, int is_bundled,
                      struct klk_messages *clients) {
    klk_messages_frame(clients, ERROR_FRAME, sizeof ERROR_FRAME);
    write_name(clients, &exchange->setup.refusals[refusal]);
    klk_messages_end_bundled(clients, is_bundled);
}

/* Ends a waiting request whose time is over; its client gets an error, but MDP has none. */
static void expire(struct klk_exchange *exchange, struct request *request,
                   struct klk_messages *clients) {
    if (request->framing == KLK_FRAMING_TEXT && !request->client->is_gone) {
        write_client(exchange, request, CLIENT_FINAL, clients);
        klk_messages_frame(clients, klk_request_id(request), request->id_size);
        /* Without a client queue it is in redelivery. */
        int refusal = request->client_queue ? KLK_REFUSAL_EXPIRED : KLK_REFUSAL_UNFINISHED;
        error_end(exchange, refusal, request->is_bundled, clients);
    }
    klk_request_end(exchange, request);
    exchange->counters[KLK_EXCHANGE_EXPIRED]++;
}

/* ---- requests ---- */

/* Which of kelek's headers a message has; 0: none. */
enum own_header { OWN_NONE, OWN_DEADLINE, OWN_NAMED };

static enum own_header own_header(const struct klk_exchange_setup *setup,
                                  struct klk_octets header) {
    if (frame_names(header, &setup->headers[KLK_HEADER_NAMED])) return OWN_NAMED;
    return frame_names(header, &setup->headers[KLK_HEADER_DEADLINE]) ? OWN_DEADLINE : OWN_NONE;
}

/* Parses the frame after the request id of an extension. Returns 0: it is malformed. */
static int options_read(struct reader *reader, enum own_header own, int64_t now_ms,
                        struct klk_asking *asking) {
    if (own == OWN_NONE) return 1;
    struct klk_octets options = frame_next(reader);
    if (own == OWN_DEADLINE ? options.size != DEADLINE_BYTES : options.size <= OPTIONS_BYTES)
        return 0;
    uint64_t left_ms = klk_get_u64_big(options.data);
    if (left_ms < (uint64_t)(INT64_MAX - now_ms)) asking->deadline_ms = now_ms + (int64_t)left_ms;
    if (own == OWN_DEADLINE) return 1;
    uint64_t credit = klk_get_u64_big(options.data + DEADLINE_BYTES);
    asking->credit = credit < (uint64_t)CREDIT_MAX ? (int64_t)credit : CREDIT_MAX;
    asking->name =
        (struct klk_octets){options.data + OPTIONS_BYTES, options.size - OPTIONS_BYTES};
    return is_name(asking->name) && asking->name.data[0]; /* libzmq's routing ids begin with 0. */
}

/* Returns KLK_OK, or a stop. */
static int request_read(const struct klk_exchange *exchange, struct reader *reader, int64_t now_ms,
                        struct klk_asking *asking) {
    const struct klk_exchange_setup *setup = &exchange->setup;
    *asking = (struct klk_asking){
        .deadline_ms = INT64_MAX,
        .command = CLIENT_REQUEST,
        .slot = reader->slot,
        .is_bundled = reader->is_bundled};
    asking->client = frame_next(reader);
    if (!is_name(asking->client)) return KLK_STOP_INVALID;
    uint32_t first = reader->first;
    asking->framing = framing_read(reader, &setup->headers[KLK_HEADER_CLIENT], MDP_CLIENTS);
    enum own_header own = OWN_NONE;
    if (asking->framing < 0) {
        reader->first = first;
        own = own_header(setup, frame_next(reader));
        if (own == OWN_NONE) return KLK_STOP_INVALID;
        asking->framing = KLK_FRAMING_TEXT;
    }
    if (asking->framing != KLK_FRAMING_MDP1) {
        struct klk_octets command = frame_next(reader);
        asking->command = command.size == 1 ? command.data[0] : 0;
        int is_own = asking->command == CLIENT_CREDIT || asking->command == CLIENT_CANCEL;
        if (asking->command != CLIENT_REQUEST && !(is_own && own == OWN_NAMED))
            return KLK_STOP_INVALID;
    }
    asking->service = frame_next(reader);
    if (!is_printable(asking->service)) return KLK_STOP_INVALID;
    if (asking->framing == KLK_FRAMING_TEXT) {
        asking->id = frame_next(reader);
        if (!is_name(asking->id)) return KLK_STOP_INVALID;
    }
    if (!options_read(reader, own, now_ms, asking)) return KLK_STOP_INVALID;
    asking->frames = frames_left(reader);
    asking->offsets = reader->in->offsets + reader->first;
    asking->body = reader->in->bytes + asking->offsets[0];
    if (!asking->frames != (asking->command != CLIENT_REQUEST)) return KLK_STOP_INVALID;
    if (begins(asking->service, "mmi.") || begins(asking->service, "titanic.") ||
        begins(asking->service, "klk."))
        return KLK_STOP_INTERNAL;
    return klk_service_is_durable(exchange, asking->service) ? KLK_STOP_DURABLE : KLK_OK;
}

/* Which limit a request exceeds: the client's or the queue's. -1: none. */
static int over(const struct klk_exchange *exchange, const struct client *client,
                const struct service *service, const struct klk_asking *asking) {
    uint64_t bytes = klk_request_cost(client, asking);
    const struct klk_exchange_setup *setup = &exchange->setup;
    const struct key_use *use = klk_key_use(exchange, client->slot);
    if (client->inflight >= setup->inflight_max) return KLK_REFUSAL_CLIENT;
    if (use && (use->inflight >= setup->key_inflight_max ||
                use->bytes + bytes > setup->key_bytes_max))
        return KLK_REFUSAL_CLIENT;
    if (!service || exchange->bytes + bytes > exchange->setup.bytes_max ||
        service->bytes + bytes > exchange->setup.service_bytes_max)
        return KLK_REFUSAL_QUEUE;
    return -1;
}

static void refuse(struct klk_exchange *exchange, const struct klk_asking *asking, int refusal,
                   struct klk_messages *clients) {
    static const uint8_t command = CLIENT_FINAL;
    exchange->counters[KLK_EXCHANGE_REFUSED]++;
    if (asking->framing != KLK_FRAMING_TEXT) return; /* MDP has no errors. */
    klk_messages_frame(clients, asking->client.data, asking->client.size);
    write_name(clients, &exchange->setup.headers[KLK_HEADER_CLIENT]);
    klk_messages_frame(clients, &command, 1);
    klk_messages_frame(clients, asking->service.data, asking->service.size);
    klk_messages_frame(clients, asking->id.data, asking->id.size);
    error_end(exchange, refusal, asking->is_bundled, clients);
}

/* A REQUEST with the id of one that is in work. */
static void request_repeat(struct klk_exchange *exchange, struct request *request,
                           const struct klk_asking *asking, struct klk_messages *clients,
                           struct klk_messages *workers) {
    if (request->is_abandoned) {
        /* It is cancelled, and its id becomes free when its worker answers. */
        refuse(exchange, asking, KLK_REFUSAL_CLIENT, clients);
        return;
    }
    request->is_bundled = asking->is_bundled; /* Of its client's newest connection. */
    if (asking->name.size) credit_set(exchange, request, asking->credit, workers);
    exchange->counters[KLK_EXCHANGE_REPEATED]++;
}

/* CREDIT or CANCEL; it has no effect after the answer. */
static void command_take(struct klk_exchange *exchange, const struct klk_asking *asking,
                         int64_t now_ms, struct klk_messages *workers) {
    struct client *client = klk_client_find(exchange, asking, now_ms);
    if (!client) return;
    client->is_gone = 0;
    client->last_seen_ms = now_ms;
    struct request *request = klk_request_find(exchange, client, asking->id);
    if (!request || request->is_abandoned) return;
    if (asking->command == CLIENT_CANCEL)
        cancel(exchange, request, workers);
    else if (!asking->credit)
        parts_unwanted(exchange, request, workers);
    else if (request->parts_mode == KLK_PARTS_NUMBERED)
        credit_add(exchange, request, asking->credit, workers);
}

static void request_take(struct klk_exchange *exchange, struct klk_asking *asking, int64_t now_ms,
                         struct klk_messages *clients, struct klk_messages *workers) {
    uint8_t made[8];
    struct client *client = klk_client_get(exchange, asking, now_ms);
    if (!client) {
        refuse(exchange, asking, KLK_REFUSAL_QUEUE, clients);
        return;
    }
    client->is_gone = 0;
    client->last_seen_ms = now_ms;
    if (!client->inflight) client->sent_ms = now_ms;
    if (asking->framing != KLK_FRAMING_TEXT) {
        asking->id = (struct klk_octets){made, sizeof made};
        do { /* The next request number, unless the client has used it as an id. */
            klk_put_u64_big(made, exchange->number + 1);
        } while (klk_request_find(exchange, client, asking->id) && ++exchange->number);
    } else {
        struct request *known = klk_request_find(exchange, client, asking->id);
        if (known) {
            request_repeat(exchange, known, asking, clients, workers);
            return;
        }
    }
    struct service *service = klk_service_get(exchange, asking->service);
    int refusal = over(exchange, client, service, asking);
    if (refusal < 0 && klk_request_add(exchange, client, service, asking, now_ms) != KLK_OK)
        refusal = KLK_REFUSAL_QUEUE;
    if (refusal < 0) {
        exchange->counters[KLK_EXCHANGE_REQUESTS]++;
        return;
    }
    refuse(exchange, asking, refusal, clients);
    if (service) klk_service_free_unused(exchange, service);
    klk_client_free_unused(exchange, client);
}

int klk_exchange_receive_requests(struct klk_exchange *exchange, const struct klk_messages *in,
                               uint32_t *position, int64_t now_ms, struct klk_messages *clients,
                               struct klk_messages *workers, int32_t *stop) {
    exchange->now_us = klk_monotonic_us();
    for (; *position < in->messages; ++*position) {
        struct reader reader = reader_of(in, *position);
        struct klk_asking asking;
        *stop = request_read(exchange, &reader, now_ms, &asking);
        if (*stop != KLK_OK) return KLK_MORE;
        if (!has_room(clients, 0, 0) || !has_room(workers, 0, 0)) return KLK_EFULL;
        if (asking.command == CLIENT_REQUEST)
            request_take(exchange, &asking, now_ms, clients, workers);
        else
            command_take(exchange, &asking, now_ms, workers);
    }
    return KLK_OK;
}

uint32_t klk_exchange_count_durable(const struct klk_exchange *exchange,
                                    const struct klk_messages *in, uint32_t position) {
    uint32_t count = 0;
    for (; position < in->messages; position++, count++) {
        struct reader reader = reader_of(in, position);
        struct klk_asking asking;
        if (request_read(exchange, &reader, 0, &asking) != KLK_STOP_DURABLE) break;
    }
    return count;
}

/* ---- answers ---- */

/* The request of a worker's PARTIAL or FINAL; NULL: the worker does not have it. */
static struct request *answered(const struct klk_exchange *exchange, const struct worker *worker,
                                struct klk_octets address, struct klk_octets id) {
    const struct client *client = klk_client_numbered(exchange, address);
    if (!client) return NULL;
    struct request *request;
    if (worker->framing == KLK_FRAMING_TEXT) {
        request = klk_request_find(exchange, client, id);
    } else { /* An MDP worker has at most one. */
        if (klk_link_is_empty(&worker->requests)) return NULL;
        request = KLK_OF(worker->requests.next, struct request, place);
        if (request->client != client) return NULL;
    }
    return request && request->worker == worker ? request : NULL;
}

/* Writes an answer to its client. Returns KLK_OK or KLK_EFULL. */
static int answer_write(struct klk_exchange *exchange, struct request *request, int is_final,
                        const struct reader *reader, struct klk_messages *clients) {
    static const uint8_t commands[] = {CLIENT_PARTIAL, CLIENT_FINAL, CLIENT_PART, CLIENT_END};
    int is_numbered = request->parts_mode == KLK_PARTS_NUMBERED;
    uint8_t place[PLACE_BYTES];
    const struct collected *collected = request->collected;
    const struct klk_messages *in = reader->in;
    uint64_t bytes = in->offsets[reader->end] - in->offsets[reader->first];
    uint64_t count = frames_left(reader);
    if (collected) bytes += collected->used, count += collected->frames;
    if (!has_room(clients, bytes, count)) return KLK_EFULL;
    write_client(exchange, request, commands[is_final + 2 * is_numbered], clients);
    if (request->framing == KLK_FRAMING_TEXT)
        klk_messages_frame(clients, klk_request_id(request), request->id_size);
    if (is_numbered) {
        klk_put_u64_big(place, (uint64_t)request->run << 32 | request->parts);
        klk_messages_frame(clients, place, sizeof place);
    }
    const uint8_t *at = collected ? collected->bytes : NULL;
    for (uint32_t i = 0; collected && i < collected->frames; i++) {
        uint32_t size;
        memcpy(&size, at, sizeof size);
        klk_messages_frame(clients, at + 4, size);
        at += 4 + size;
    }
    for (uint32_t f = reader->first; f < reader->end; f++)
        klk_messages_frame(clients, in->bytes + in->offsets[f],
                           in->offsets[f + 1] - in->offsets[f]);
    /* A client's message has at least one frame of body. */
    if (!frames_left(reader)) klk_messages_frame(clients, NULL, 0);
    klk_messages_end_bundled(clients, request->is_bundled);
    return KLK_OK;
}

static int answer_take(struct klk_exchange *exchange, struct request *request, int is_final,
                       const struct reader *reader, int64_t now_ms, struct klk_messages *clients) {
    const struct klk_messages *in = reader->in;
    int is_kept = !is_final && request->framing == KLK_FRAMING_MDP1;
    int is_lost = request->collected && request->collected->overflowed;
    int is_unwanted = !is_final && request->parts_mode == KLK_PARTS_UNWANTED;
    if (request->client->is_gone || request->is_abandoned || is_unwanted || (is_final && is_lost)) {
        exchange->counters[KLK_EXCHANGE_DISCARDED] += !is_unwanted;
    } else if (is_kept) {
        klk_request_collect(exchange, request, in->bytes + in->offsets[reader->first],
                            in->offsets + reader->first, frames_left(reader));
    } else if (answer_write(exchange, request, is_final, reader, clients) != KLK_OK) {
        return KLK_EFULL;
    } else {
        request->client->sent_ms = now_ms;
        if (request->service->waiting > clients->messages) exchange->patient++;
    }
    if (!is_final) {
        request->parts++;
        request->credit -= KLK_EXCHANGE_PART_COST + (int64_t)in->offsets[reader->end] -
                           (int64_t)in->offsets[reader->first];
    }
    exchange->counters[is_final ? KLK_EXCHANGE_FINALS : KLK_EXCHANGE_PARTIALS]++;
    if (is_final) {
        request->worker->done++;
        request->service->done++;
        klk_latency_add(&exchange->latency, exchange->now_us - request->since_us, 1);
        klk_request_end(exchange, request);
    }
    return KLK_OK;
}

static int action_of(int framing, struct klk_octets command) {
    if (framing == KLK_FRAMING_TEXT && frame_is(command, "PING", PING_BYTES)) return ACT_PING;
    if (command.size != 1 || command.data[0] >= sizeof ACTIONS[0]) return ACT_NONE;
    return ACTIONS[framing][command.data[0]];
}

/* Parses address, empty frame and id. Returns 0: malformed. */
static int answer_read(struct reader *reader, int framing, struct klk_octets *address,
                       struct klk_octets *id) {
    uint32_t before = framing == KLK_FRAMING_TEXT ? 3 : 2;
    if (frames_left(reader) < before) return 0;
    *address = frame_next(reader);
    if (!is_name(*address) || frame_next(reader).size) return 0;
    if (framing != KLK_FRAMING_TEXT) return frames_left(reader) != 0;
    *id = frame_next(reader);
    return is_name(*id);
}

/* Handles one message of a worker. Returns KLK_OK, KLK_EFULL, or KLK_MORE with a stop. */
static int worker_take(struct klk_exchange *exchange, struct reader *reader, int64_t now_ms,
                       struct klk_messages *clients, struct klk_messages *workers, int32_t *stop) {
    struct klk_octets sender = frame_next(reader), address = {NULL, 0}, id = {NULL, 0};
    int framing = framing_read(reader, &exchange->setup.headers[KLK_HEADER_WORKER], MDP_WORKERS);
    int action = framing < 0 ? ACT_NONE : action_of(framing, frame_next(reader));
    struct worker *worker = klk_worker_find(exchange, sender);
    if (worker && worker->slot != reader->slot) worker = NULL; /* Another key has its routing id. */
    int is_answer = action == ACT_PARTIAL || action == ACT_FINAL;
    *stop = KLK_OK;
    if (action == ACT_NONE || (worker && worker->framing != framing && action != ACT_DISCONNECT))
        *stop = KLK_STOP_INVALID;
    else if (is_answer ? !answer_read(reader, framing, &address, &id)
                       : action > ACT_FINAL && frames_left(reader))
        *stop = KLK_STOP_INVALID;
    else if (action == ACT_READY || action == ACT_DISCONNECT)
        *stop = KLK_STOP_COMMAND;
    else if (!worker)
        *stop = KLK_STOP_UNKNOWN_WORKER;
    if (*stop != KLK_OK) return KLK_MORE;
    if (is_answer) {
        struct request *request = answered(exchange, worker, address, id);
        if (!request) {
            *stop = KLK_STOP_UNEXPECTED;
            return KLK_MORE;
        }
        int result = answer_take(exchange, request, action == ACT_FINAL, reader, now_ms, clients);
        if (result != KLK_OK) return result;
    } else if (action == ACT_PING) {
        if (!has_room(workers, 0, 0)) return KLK_EFULL;
        write_worker(exchange, worker, "PONG", PING_BYTES, workers);
        end_worker(worker, workers);
        worker->sent_ms = now_ms;
    }
    klk_worker_touch(exchange, worker, now_ms);
    return KLK_OK;
}

int klk_exchange_receive_answers(struct klk_exchange *exchange, const struct klk_messages *in,
                              uint32_t *position, int64_t now_ms, struct klk_messages *clients,
                              struct klk_messages *workers, int32_t *stop) {
    exchange->now_us = klk_monotonic_us();
    for (; *position < in->messages; ++*position) {
        struct reader reader = reader_of(in, *position);
        int result = worker_take(exchange, &reader, now_ms, clients, workers, stop);
        if (result != KLK_OK) return result;
    }
    return KLK_OK;
}

/* ---- dispatch ---- */

/* Writes a request to its worker. Returns KLK_OK or KLK_EFULL. */
static int request_write(struct klk_exchange *exchange, struct request *request,
                         struct worker *worker, int64_t now_ms, struct klk_messages *workers) {
    uint8_t options[OPTIONS_BYTES];
    if (!has_room(workers, request->body_size, request->frames)) return KLK_EFULL;
    write_worker(exchange, worker, &REQUEST_COMMAND, 1, workers);
    write_target(request, workers);
    if (worker->framing == KLK_FRAMING_TEXT) {
        klk_messages_frame(workers, klk_request_id(request), request->id_size);
        if (worker->wants != KLK_WANTS_NOTHING) {
            uint64_t credit = request->credit < 0 ? 0 : (uint64_t)request->credit;
            klk_put_u64_big(options, request->deadline_ms == INT64_MAX
                                         ? UINT64_MAX
                                         : (uint64_t)(request->deadline_ms - now_ms));
            klk_put_u64_big(options + DEADLINE_BYTES,
                            request->parts_mode == KLK_PARTS_NUMBERED ? credit : UINT64_MAX);
            klk_messages_frame(
                workers, options,
                worker->wants >= KLK_WANTS_CREDIT ? OPTIONS_BYTES : DEADLINE_BYTES);
        }
    }
    const uint8_t *at = klk_request_body(request);
    for (uint32_t i = 0; i < request->frames; at += request->sizes[i++])
        klk_messages_frame(workers, at, request->sizes[i]);
    end_worker(worker, workers);
    return KLK_OK;
}

/* The next request to dispatch; NULL: none waits. */
static struct request *request_next(const struct service *service) {
    const struct link *requests = &service->redelivery;
    if (klk_link_is_empty(requests)) {
        if (klk_link_is_empty(&service->client_queues)) return NULL;
        requests = &KLK_OF(service->client_queues.next, struct client_queue, of_service)->requests;
    }
    return KLK_OF(requests->next, struct request, place);
}

static int service_dispatch(struct klk_exchange *exchange, struct service *service, int64_t now_ms,
                            struct klk_messages *clients, struct klk_messages *workers) {
    struct request *request;
    while (!klk_link_is_empty(&service->ready) && (request = request_next(service)) != NULL) {
        if (request->client->is_gone) {
            exchange->counters[KLK_EXCHANGE_CANCELLED]++;
            klk_request_end(exchange, request);
        } else if (request->deadline_ms <= now_ms) {
            if (!has_room(clients, 0, 0)) return KLK_EFULL;
            expire(exchange, request, clients);
        } else {
            struct worker *worker = KLK_OF(service->ready.next, struct worker, ready);
            int result = request_write(exchange, request, worker, now_ms, workers);
            if (result != KLK_OK) return result;
            klk_request_assign(exchange, request, worker);
            request->run = ++exchange->run;
            request->parts = 0;
            worker->sent_ms = now_ms;
            exchange->counters[KLK_EXCHANGE_DISPATCHED]++;
        }
    }
    return KLK_OK;
}

int klk_exchange_dispatch(struct klk_exchange *exchange, int64_t now_ms,
                          struct klk_messages *clients, struct klk_messages *workers) {
    while (!klk_link_is_empty(&exchange->dirty)) {
        struct service *service = KLK_OF(exchange->dirty.next, struct service, dirty);
        int result = service_dispatch(exchange, service, now_ms, clients, workers);
        if (result != KLK_OK) return result;
        klk_link_remove(&service->dirty);
    }
    return KLK_OK;
}

int klk_exchange_expire(struct klk_exchange *exchange, int64_t now_ms,
                        struct klk_messages *clients) {
    struct request *request;
    while ((request = klk_request_due(exchange)) && klk_request_due_ms(request) <= now_ms) {
        if (!has_room(clients, 0, 0)) return KLK_EFULL;
        expire(exchange, request, clients);
    }
    return KLK_OK;
}

int klk_exchange_heartbeat(struct klk_exchange *exchange, int64_t before_ms, int64_t now_ms,
                      struct klk_messages *workers) {
    for (struct link *at = exchange->by_last_seen.next;
         at != &exchange->by_last_seen; at = at->next) {
        struct worker *worker = KLK_OF(at, struct worker, by_last_seen);
        if (worker->framing == KLK_FRAMING_TEXT || worker->sent_ms >= before_ms) continue;
        if (!has_room(workers, 0, 0)) return KLK_EFULL;
        write_worker(exchange, worker, &HEARTBEATS[worker->framing], 1, workers);
        klk_messages_end(workers);
        worker->sent_ms = now_ms;
    }
    return KLK_OK;
}

/* ---- disconnected clients and dropped parts ---- */

/* A sign of life for a waiting client: a send that fails shows that it is disconnected. The
 * interval grows with the client's own silence, because the client may not be reading. */
static void alive_write(struct klk_exchange *exchange, struct client *client, int64_t now_ms,
                        struct klk_messages *clients) {
    static const uint8_t command = CLIENT_ALIVE;
    int64_t pause_ms = KLK_EXCHANGE_PROBE_MS / 2 + (now_ms - client->last_seen_ms) / 8;
    if (!client->by_name.name.size || now_ms - client->sent_ms < pause_ms) return;
    write_name(clients, &client->by_id.name);
    write_name(clients, &exchange->setup.headers[KLK_HEADER_CLIENT]);
    klk_messages_frame(clients, &command, 1);
    klk_messages_end(clients);
    client->sent_ms = now_ms;
}

static void request_look(struct klk_exchange *exchange, struct request *request, int64_t now_ms,
                         struct klk_messages *clients, struct klk_messages *workers) {
    struct client *client = request->client;
    if (!client->is_gone)
        alive_write(exchange, client, now_ms, clients);
    else if (now_ms - client->gone_since_ms < KLK_EXCHANGE_PROBE_MS)
        return;
    else if (request->framing == KLK_FRAMING_TEXT && request->deadline_ms == INT64_MAX)
        /* Without a deadline the client may come back for the answer. */
        parts_unwanted(exchange, request, workers);
    else
        cancel(exchange, request, workers);
}

int klk_exchange_probe(struct klk_exchange *exchange, int64_t now_ms, struct klk_messages *clients,
                      struct klk_messages *workers) {
    for (struct link *at = exchange->by_last_seen.next;
         at != &exchange->by_last_seen; at = at->next) {
        struct worker *worker = KLK_OF(at, struct worker, by_last_seen);
        for (struct link *of = worker->requests.next; of != &worker->requests; of = of->next) {
            struct request *request = KLK_OF(of, struct request, place);
            if (!has_room(clients, 0, 0) || !has_room(workers, 0, 0)) return KLK_EFULL;
            request_look(exchange, request, now_ms, clients, workers);
        }
    }
    return KLK_OK;
}

int klk_exchange_drop_part(struct klk_exchange *exchange, const uint8_t *client,
                           uint32_t client_size, const uint8_t *id, uint32_t id_size,
                           struct klk_messages *workers) {
    struct klk_octets routing_id = {client, client_size}, request_id = {id, id_size};
    struct client *found = NULL;
    while ((found = klk_client_next(exchange, routing_id, found)) != NULL) {
        struct request *request = klk_request_find(exchange, found, request_id);
        if (!request || request->is_abandoned) continue;
        if (!has_room(workers, 0, 0)) return KLK_EFULL;
        cancel(exchange, request, workers);
        return 1;
    }
    return 0;
}

int klk_exchange_drop_mdp_part(struct klk_exchange *exchange, const uint8_t *client,
                               uint32_t client_size, struct klk_messages *workers) {
    struct klk_octets routing_id = {client, client_size};
    int count = 0;
    for (struct link *at = exchange->by_last_seen.next;
         at != &exchange->by_last_seen; at = at->next) {
        struct worker *worker = KLK_OF(at, struct worker, by_last_seen);
        for (struct link *of = worker->requests.next; of != &worker->requests; of = of->next) {
            struct request *request = KLK_OF(of, struct request, place);
            if (request->framing == KLK_FRAMING_TEXT || request->is_abandoned ||
                !frame_names(routing_id, &request->client->by_id.name))
                continue;
            if (!has_room(workers, 0, 0)) return KLK_EFULL;
            cancel(exchange, request, workers);
            count++;
        }
    }
    return count;
}
