/* The requests, workers and clients of a broker. exchange_wire.c handles messages. */
#include "exchange_state.h"

#include <stdlib.h>
#include <string.h>

enum {
    TABLE_MIN = 64,
    REQUEST_OVERHEAD = sizeof(struct request) + 64,
    CLIENT_OVERHEAD = sizeof(struct client) + sizeof(struct client_queue),
    NAMES_MAX = 8 /* clients of one connection, which are searched one by one */
};

/* ---- tables ---- */

static uint64_t mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

uint64_t klk_exchange_hash(const struct klk_exchange *exchange, uint64_t seed, const uint8_t *name,
                           uint32_t size) {
    uint64_t word, hash = mix(exchange->setup.seed ^ seed, size);
    for (; size >= sizeof word; size -= (uint32_t)sizeof word, name += sizeof word) {
        memcpy(&word, name, sizeof word);
        hash = mix(hash, word);
    }
    word = 0;
    memcpy(&word, name, size);
    hash = mix(hash, word) * 0xff51afd7ed558ccdu;
    return hash ^ hash >> 32;
}

static int table_open(struct table *table) {
    table->buckets = calloc(TABLE_MIN, sizeof *table->buckets);
    table->size = TABLE_MIN;
    return table->buckets != NULL;
}

/* Doubles the buckets; without memory the chains get longer. */
static void table_grow(struct table *table) {
    uint32_t size = 2 * table->size;
    struct node **buckets = calloc(size, sizeof *buckets);
    if (!buckets) return;
    for (uint32_t i = 0; i < table->size; i++) {
        for (struct node *node = table->buckets[i], *next; node; node = next) {
            next = node->next;
            node->next = buckets[node->hash & (size - 1)];
            buckets[node->hash & (size - 1)] = node;
        }
    }
    free(table->buckets);
    table->buckets = buckets;
    table->size = size;
}

static void table_add(struct table *table, struct node *node) {
    if (table->count >= table->size && table->size < 1u << 30) table_grow(table);
    struct node **bucket = &table->buckets[node->hash & (table->size - 1)];
    node->next = *bucket;
    *bucket = node;
    table->count++;
}

static void table_remove(struct table *table, struct node *node) {
    struct node **at = &table->buckets[node->hash & (table->size - 1)];
    while (*at != node) at = &(*at)->next;
    *at = node->next;
    table->count--;
}

static struct node *table_first(const struct table *table, uint64_t hash) {
    return table->buckets[hash & (table->size - 1)];
}

static void name_set(struct name *name, const uint8_t *bytes, uint32_t size) {
    name->size = (uint8_t)size;
    memcpy(name->bytes, bytes, size);
}

static int name_is(const struct name *name, const uint8_t *bytes, uint32_t size) {
    return name->size == size && (!size || memcmp(name->bytes, bytes, size) == 0);
}

/* ---- services ---- */

struct service *klk_service_find(const struct klk_exchange *exchange, const uint8_t *name,
                                 uint32_t size) {
    uint64_t hash = klk_exchange_hash(exchange, 1, name, size);
    for (struct node *node = table_first(&exchange->services, hash); node; node = node->next) {
        struct service *service = KLK_OF(node, struct service, node);
        if (node->hash == hash && name_is(&service->name, name, size)) return service;
    }
    return NULL;
}

struct service *klk_service_get(struct klk_exchange *exchange, const uint8_t *name, uint32_t size) {
    struct service *service = klk_service_find(exchange, name, size);
    if (service || exchange->services.count >= exchange->setup.services_max) return service;
    service = calloc(1, sizeof *service);
    if (!service) return NULL;
    name_set(&service->name, name, size);
    klk_link_init(&service->dirty);
    klk_link_init(&service->ready);
    klk_link_init(&service->client_queues);
    klk_link_init(&service->redelivery);
    service->node.hash = klk_exchange_hash(exchange, 1, name, size);
    table_add(&exchange->services, &service->node);
    return service;
}

void klk_service_free_unused(struct klk_exchange *exchange, struct service *service) {
    if (service->workers || service->waiting || service->working) return;
    klk_link_remove(&service->dirty);
    table_remove(&exchange->services, &service->node);
    free(service);
}

int klk_service_is_durable(const struct klk_exchange *exchange, const uint8_t *name,
                           uint32_t size) {
    if (!exchange->durable.count) return 0;
    uint64_t hash = klk_exchange_hash(exchange, 4, name, size);
    for (struct node *node = table_first(&exchange->durable, hash); node; node = node->next)
        if (node->hash == hash && name_is(&KLK_OF(node, struct durable, node)->name, name, size))
            return 1;
    return 0;
}

int klk_exchange_add_durable(struct klk_exchange *exchange, const uint8_t *service, uint32_t size) {
    if (!size || size > KLK_EXCHANGE_NAME_MAX) return KLK_EINVAL;
    if (klk_service_is_durable(exchange, service, size)) return KLK_OK;
    struct durable *durable = calloc(1, sizeof *durable);
    if (!durable) return KLK_ESPACE;
    name_set(&durable->name, service, size);
    durable->node.hash = klk_exchange_hash(exchange, 4, service, size);
    table_add(&exchange->durable, &durable->node);
    return KLK_OK;
}

/* Marks a service that may have something to dispatch. */
static void service_wake(struct klk_exchange *exchange, struct service *service) {
    if (klk_link_is_empty(&service->dirty)) klk_link_insert(&service->dirty, &exchange->dirty);
}

/* ---- clients ---- */

struct client *klk_client_next(const struct klk_exchange *exchange, struct klk_octets id,
                               const struct client *behind) {
    uint64_t hash = klk_exchange_hash(exchange, 2, id.data, id.size);
    struct node *node = behind ? behind->node.next : table_first(&exchange->clients, hash);
    for (; node; node = node->next) {
        struct client *client = KLK_OF(node, struct client, node);
        if (node->hash == hash && name_is(&client->id, id.data, id.size)) return client;
    }
    return NULL;
}

static struct client *client_named(const struct klk_exchange *exchange, struct klk_octets name) {
    uint64_t hash = klk_exchange_hash(exchange, 5, name.data, name.size);
    struct node *node = table_first(&exchange->clients_by_name, hash);
    for (; node; node = node->next) {
        struct client *client = KLK_OF(node, struct client, by_name);
        if (node->hash == hash && name_is(&client->name, name.data, name.size)) return client;
    }
    return NULL;
}

/* Whether a connection has the most clients allowed. */
static int is_crowded(const struct klk_exchange *exchange, struct klk_octets id) {
    const struct client *client = NULL;
    uint32_t count = 0;
    while ((client = klk_client_next(exchange, id, client)) != NULL) count++;
    return count >= NAMES_MAX;
}

/* Moves a client to a new connection. A late message of its previous connection does not move it
 * back. */
static void client_move(struct klk_exchange *exchange, struct client *client,
                        struct klk_octets id) {
    uint64_t hash = klk_exchange_hash(exchange, 2, id.data, id.size);
    if (hash == client->previous_hash || is_crowded(exchange, id)) return;
    table_remove(&exchange->clients, &client->node);
    client->previous_hash = client->node.hash;
    client->node.hash = hash;
    name_set(&client->id, id.data, id.size);
    table_add(&exchange->clients, &client->node);
}

struct client *klk_client_find(struct klk_exchange *exchange, struct klk_octets id,
                               struct klk_octets name) {
    struct client *client = NULL;
    while ((client = klk_client_next(exchange, id, client)) != NULL)
        if (name_is(&client->name, name.data, name.size)) return client;
    if (!name.size || !(client = client_named(exchange, name))) return NULL;
    client_move(exchange, client, id);
    return client;
}

struct client *klk_client_get(struct klk_exchange *exchange, struct klk_octets id,
                              struct klk_octets name) {
    struct client *client = klk_client_find(exchange, id, name);
    if (client) return client;
    if (name.size && is_crowded(exchange, id)) return NULL;
    client = calloc(1, sizeof *client);
    if (!client) return NULL;
    name_set(&client->id, id.data, id.size);
    klk_link_init(&client->client_queues);
    client->node.hash = klk_exchange_hash(exchange, 2, id.data, id.size);
    table_add(&exchange->clients, &client->node);
    client->by_number.hash = exchange->next_client++;
    for (int i = 0; i < 8; i++)
        client->number[i] = (uint8_t)(client->by_number.hash >> (56 - 8 * i));
    table_add(&exchange->clients_by_number, &client->by_number);
    if (name.size) {
        name_set(&client->name, name.data, name.size);
        client->by_name.hash = klk_exchange_hash(exchange, 5, name.data, name.size);
        table_add(&exchange->clients_by_name, &client->by_name);
    }
    return client;
}

struct client *klk_client_numbered(const struct klk_exchange *exchange, struct klk_octets number) {
    uint64_t wanted = 0;
    if (number.size != sizeof wanted) return NULL;
    for (uint32_t i = 0; i < number.size; i++) wanted = wanted << 8 | number.data[i];
    struct node *node = table_first(&exchange->clients_by_number, wanted);
    for (; node; node = node->next)
        if (node->hash == wanted) return KLK_OF(node, struct client, by_number);
    return NULL;
}

void klk_client_free_unused(struct klk_exchange *exchange, struct client *client) {
    if (client->inflight) return;
    table_remove(&exchange->clients, &client->node);
    table_remove(&exchange->clients_by_number, &client->by_number);
    if (client->name.size) table_remove(&exchange->clients_by_name, &client->by_name);
    free(client);
}

/* The queue of a client for a service, found or made. */
static struct client_queue *line_get(struct client *client, struct service *service) {
    for (struct link *at = client->client_queues.next;
         at != &client->client_queues; at = at->next) {
        struct client_queue *client_queue = KLK_OF(at, struct client_queue, of_client);
        if (client_queue->service == service) return client_queue;
    }
    struct client_queue *client_queue = malloc(sizeof *client_queue);
    if (!client_queue) return NULL;
    client_queue->service = service;
    client_queue->client = client;
    klk_link_init(&client_queue->requests);
    klk_link_insert(&client_queue->of_service, &service->client_queues);
    klk_link_insert(&client_queue->of_client, &client->client_queues);
    return client_queue;
}

static void line_settle(struct client_queue *client_queue) {
    if (!klk_link_is_empty(&client_queue->requests)) return;
    klk_link_remove(&client_queue->of_service);
    klk_link_remove(&client_queue->of_client);
    free(client_queue);
}

/* ---- requests ---- */

static uint64_t request_hash(const struct klk_exchange *exchange, const struct client *client,
                             const uint8_t *id, uint32_t size) {
    return klk_exchange_hash(exchange, client->by_number.hash, id, size);
}

struct request *klk_request_find(const struct klk_exchange *exchange, const struct client *client,
                                 const uint8_t *id, uint32_t size) {
    uint64_t hash = request_hash(exchange, client, id, size);
    for (struct node *node = table_first(&exchange->requests, hash); node; node = node->next) {
        struct request *request = KLK_OF(node, struct request, node);
        if (node->hash != hash || request->client != client || request->id_size != size) continue;
        if (memcmp(klk_request_id(request), id, size) == 0) return request;
    }
    return NULL;
}

uint64_t klk_new_request_bytes(const struct klk_new_request *added) {
    uint64_t body = added->offsets[added->frames] - added->offsets[0];
    uint64_t client = added->client->inflight ? 0 : CLIENT_OVERHEAD;
    return REQUEST_OVERHEAD + client + body + added->id_size + 4ull * added->frames;
}

static int is_due_before(const struct request *request, const struct request *other) {
    int64_t due_ms = klk_request_due_ms(request), other_ms = klk_request_due_ms(other);
    return due_ms != other_ms ? due_ms < other_ms : request->number < other->number;
}

static void due_put(struct klk_exchange *exchange, uint32_t place, struct request *request) {
    exchange->expiry_heap[place] = request;
    request->heap_index = place;
}

/* Moves a request to its place in the heap, from a free place on. */
static void due_settle(struct klk_exchange *exchange, uint32_t place, struct request *request) {
    struct request **expiry_heap = exchange->expiry_heap;
    for (; place > 1 && is_due_before(request, expiry_heap[place / 2]); place /= 2)
        due_put(exchange, place, expiry_heap[place / 2]);
    for (uint32_t next; (next = 2 * place) <= exchange->expiry_count; place = next) {
        if (next < exchange->expiry_count &&
            is_due_before(expiry_heap[next + 1], expiry_heap[next]))
            next++;
        if (!is_due_before(expiry_heap[next], request)) break;
        due_put(exchange, place, expiry_heap[next]);
    }
    due_put(exchange, place, request);
}

/* Makes room in the heap for all requests and one more. */
static int due_fit(struct klk_exchange *exchange) {
    uint32_t need = exchange->requests.count + 2;
    if (need <= exchange->expiry_max) return 1;
    struct request **expiry_heap =
        realloc(exchange->expiry_heap, 2 * (size_t)need * sizeof *expiry_heap);
    if (!expiry_heap) return 0;
    exchange->expiry_heap = expiry_heap;
    exchange->expiry_max = 2 * need;
    return 1;
}

/* Adds a request to the heap of waiting ones. */
static void request_wait(struct klk_exchange *exchange, struct request *request) {
    struct service *service = request->service;
    due_settle(exchange, ++exchange->expiry_count, request);
    service->waiting++;
    service->bytes += request->bytes;
    service_wake(exchange, service);
}

static void request_wait_no_more(struct klk_exchange *exchange, struct request *request) {
    struct request *last = exchange->expiry_heap[exchange->expiry_count--];
    if (last != request) due_settle(exchange, request->heap_index, last);
    request->heap_index = 0;
    request->service->waiting--;
    request->service->bytes -= request->bytes;
    klk_link_remove(&request->place);
    if (request->client_queue) line_settle(request->client_queue);
    request->client_queue = NULL;
}

struct request *klk_request_add(struct klk_exchange *exchange,
                                const struct klk_new_request *added) {
    uint32_t body_size = added->offsets[added->frames] - added->offsets[0];
    if (!due_fit(exchange)) return NULL;
    struct client_queue *client_queue = line_get(added->client, added->service);
    if (!client_queue) return NULL;
    struct request *request =
        malloc(sizeof *request + 4 * (size_t)added->frames + body_size + added->id_size);
    if (!request) {
        line_settle(client_queue);
        return NULL;
    }
    *request = (struct request){.client = added->client,
                                .service = added->service,
                                .client_queue = client_queue,
                                .number = ++exchange->number,
                                .bytes = klk_new_request_bytes(added),
                                .expires_ms = added->expires_ms,
                                .deadline_ms = added->deadline_ms,
                                .body_size = body_size,
                                .frames = added->frames,
                                .framing = added->framing,
                                .parts_mode = added->parts_mode,
                                .credit = added->credit,
                                .id_size = (uint8_t)added->id_size};
    for (uint32_t i = 0; i < added->frames; i++)
        request->sizes[i] = added->offsets[i + 1] - added->offsets[i];
    if (body_size) memcpy(klk_request_body(request), added->body, body_size);
    memcpy(klk_request_id(request), added->id, added->id_size);
    request->node.hash = request_hash(exchange, added->client, added->id, added->id_size);
    table_add(&exchange->requests, &request->node);
    klk_link_insert(&request->place, &client_queue->requests);
    exchange->bytes += request->bytes;
    added->client->inflight++;
    request_wait(exchange, request);
    return request;
}

void klk_request_assign(struct klk_exchange *exchange, struct request *request,
                        struct worker *worker) {
    struct client_queue *client_queue = request->client_queue;
    /* The next client's turn. */
    if (client_queue)
        klk_link_move_last(&client_queue->of_service, &request->service->client_queues);
    request_wait_no_more(exchange, request);
    request->worker = worker;
    klk_link_insert(&request->place, &worker->requests);
    request->service->working++;
    worker->load++;
    if (worker->load < worker->window)
        klk_link_move_last(&worker->ready, &worker->service->ready);
    else
        klk_link_remove(&worker->ready);
}

/* Removes a request from its worker. */
static void request_leave_worker(struct klk_exchange *exchange, struct request *request) {
    struct worker *worker = request->worker;
    klk_link_remove(&request->place);
    request->worker = NULL;
    request->service->working--;
    if (worker->load-- == worker->window) {
        klk_link_insert(&worker->ready, &worker->service->ready);
        service_wake(exchange, worker->service);
    }
}

static void collected_free(struct klk_exchange *exchange, struct request *request) {
    struct collected *collected = request->collected;
    if (!collected) return;
    exchange->bytes -= collected->bytes_max;
    free(collected->bytes);
    free(collected->sizes);
    free(collected);
    request->collected = NULL;
}

void klk_request_end(struct klk_exchange *exchange, struct request *request) {
    struct client *client = request->client;
    struct service *service = request->service;
    if (request->worker)
        request_leave_worker(exchange, request);
    else
        request_wait_no_more(exchange, request);
    collected_free(exchange, request);
    table_remove(&exchange->requests, &request->node);
    exchange->bytes -= request->bytes;
    free(request);
    client->inflight--;
    klk_client_free_unused(exchange, client);
    klk_service_free_unused(exchange, service);
}

/* Puts a request into redelivery: after older ones, before all requests that no worker had. */
static void request_return(struct klk_exchange *exchange, struct request *request, int64_t now_ms) {
    struct link *at = &request->service->redelivery;
    collected_free(exchange, request);
    request_leave_worker(exchange, request);
    request->expires_ms = now_ms + exchange->setup.request_ttl_ms;
    while (at->prev != &request->service->redelivery &&
           KLK_OF(at->prev, struct request, place)->number > request->number)
        at = at->prev;
    klk_link_insert(&request->place, at);
    request_wait(exchange, request);
}

/* ---- PARTIALs of clients with a single answer (RFC 7) ---- */

static int collected_fit(struct klk_exchange *exchange, struct collected *collected, uint64_t size,
                         uint32_t frames) {
    /* Each frame counts with the four bytes of its size, so that empty ones are bounded, too. */
    uint64_t need = collected->used + size + 4ull * ((uint64_t)collected->frames + frames);
    uint64_t room = exchange->setup.bytes_max - exchange->bytes + collected->bytes_max;
    if (need > exchange->setup.collected_bytes_max || need > room) return 0;
    if (need > collected->bytes_max) {
        uint64_t bytes_max = 2 * need < room ? 2 * need : need;
        uint8_t *bytes = realloc(collected->bytes, bytes_max);
        if (!bytes) return 0;
        exchange->bytes += bytes_max - collected->bytes_max;
        collected->bytes = bytes;
        collected->bytes_max = bytes_max;
    }
    if (collected->frames + frames > collected->frames_max) {
        uint32_t frames_max = 2 * (collected->frames + frames);
        uint32_t *sizes = realloc(collected->sizes, 4 * (size_t)frames_max);
        if (!sizes) return 0;
        collected->sizes = sizes;
        collected->frames_max = frames_max;
    }
    return 1;
}

void klk_request_collect(struct klk_exchange *exchange, struct request *request,
                         const uint8_t *bytes, const uint32_t *offsets, uint32_t frames) {
    struct collected *collected = request->collected;
    uint64_t size = offsets[frames] - offsets[0];
    if (!collected) collected = request->collected = calloc(1, sizeof *collected);
    if (!collected || collected->overflowed) return;
    if (!collected_fit(exchange, collected, size, frames)) {
        collected->overflowed = 1;
        return;
    }
    if (size) memcpy(collected->bytes + collected->used, bytes, size);
    for (uint32_t i = 0; i < frames; i++)
        collected->sizes[collected->frames++] = offsets[i + 1] - offsets[i];
    collected->used += size;
}

/* ---- workers ---- */

struct worker *klk_worker_find(const struct klk_exchange *exchange, const uint8_t *id,
                               uint32_t size) {
    uint64_t hash = klk_exchange_hash(exchange, 3, id, size);
    for (struct node *node = table_first(&exchange->workers, hash); node; node = node->next) {
        struct worker *worker = KLK_OF(node, struct worker, node);
        if (node->hash == hash && name_is(&worker->id, id, size)) return worker;
    }
    return NULL;
}

void klk_worker_touch(struct klk_exchange *exchange, struct worker *worker, int64_t now_ms) {
    worker->last_seen_ms = now_ms;
    klk_link_move_last(&worker->by_last_seen, &exchange->by_last_seen);
}

int klk_exchange_worker_add(struct klk_exchange *exchange, const uint8_t *id, uint32_t id_size,
                            const uint8_t *service_name, uint32_t service_size, uint32_t framing,
                            uint32_t window, int wants, int64_t now_ms) {
    if (!id_size || id_size > KLK_EXCHANGE_NAME_MAX || !service_size) return KLK_EINVAL;
    if (service_size > KLK_EXCHANGE_NAME_MAX || framing > KLK_FRAMING_MDP2) return KLK_EINVAL;
    if (!window || window > KLK_EXCHANGE_WINDOW_MAX) return KLK_EINVAL;
    if (klk_worker_find(exchange, id, id_size)) return KLK_EINVAL;
    struct service *service = klk_service_get(exchange, service_name, service_size);
    if (!service) return KLK_ESPACE;
    struct worker *worker = calloc(1, sizeof *worker);
    if (!worker) {
        klk_service_free_unused(exchange, service);
        return KLK_ESPACE;
    }
    name_set(&worker->id, id, id_size);
    worker->service = service;
    worker->framing = (uint8_t)framing;
    worker->window = framing == KLK_FRAMING_TEXT ? window : 1;
    worker->wants = (uint8_t)wants;
    worker->number = exchange->next_worker++;
    worker->last_seen_ms = worker->sent_ms = now_ms;
    worker->node.hash = klk_exchange_hash(exchange, 3, id, id_size);
    table_add(&exchange->workers, &worker->node);
    klk_link_init(&worker->requests);
    klk_link_insert(&worker->by_last_seen, &exchange->by_last_seen);
    klk_link_insert(&worker->ready, &service->ready);
    service->workers++;
    service_wake(exchange, service);
    return KLK_OK;
}

int64_t klk_exchange_worker_remove(struct klk_exchange *exchange, const uint8_t *id,
                                   uint32_t id_size,
                                int64_t now_ms) {
    struct worker *worker = klk_worker_find(exchange, id, id_size);
    if (!worker) return KLK_EINVAL;
    struct service *service = worker->service;
    int64_t count = 0;
    while (!klk_link_is_empty(&worker->requests)) {
        struct request *request = KLK_OF(worker->requests.next, struct request, place);
        if (request->client->is_gone || request->is_abandoned) {
            klk_request_end(exchange, request);
            exchange->counters[KLK_EXCHANGE_CANCELLED]++;
            continue;
        }
        request_return(exchange, request, now_ms);
        exchange->counters[KLK_EXCHANGE_RESENT]++;
        count++;
    }
    klk_link_remove(&worker->ready);
    klk_link_remove(&worker->by_last_seen);
    table_remove(&exchange->workers, &worker->node);
    free(worker);
    service->workers--;
    klk_service_free_unused(exchange, service);
    return count;
}

uint32_t klk_exchange_silent_worker(const struct klk_exchange *exchange, int64_t before_ms,
                                    uint8_t *id) {
    if (klk_link_is_empty(&exchange->by_last_seen)) return 0;
    const struct worker *worker = KLK_OF(exchange->by_last_seen.next, struct worker, by_last_seen);
    if (worker->last_seen_ms >= before_ms) return 0;
    memcpy(id, worker->id.bytes, worker->id.size);
    return worker->id.size;
}

int64_t klk_exchange_last_seen_ms(const struct klk_exchange *exchange) {
    if (klk_link_is_empty(&exchange->by_last_seen)) return -1;
    return KLK_OF(exchange->by_last_seen.next, struct worker, by_last_seen)->last_seen_ms;
}

int64_t klk_exchange_expires_ms(const struct klk_exchange *exchange) {
    const struct request *request = klk_request_due(exchange);
    return request ? klk_request_due_ms(request) : -1;
}

static uint32_t client_end(struct klk_exchange *exchange, struct client *client) {
    uint32_t count = 0;
    client->inflight++; /* Keeps the client until all are removed. */
    while (!klk_link_is_empty(&client->client_queues)) {
        struct client_queue *client_queue =
            KLK_OF(client->client_queues.next, struct client_queue, of_client);
        klk_request_end(exchange, KLK_OF(client_queue->requests.next, struct request, place));
        exchange->counters[KLK_EXCHANGE_CANCELLED]++;
        count++;
    }
    client->inflight--;
    klk_client_free_unused(exchange, client);
    return count;
}

uint32_t klk_exchange_client_remove(struct klk_exchange *exchange, const uint8_t *id,
                                 uint32_t id_size, int64_t now_ms) {
    struct klk_octets routing_id = {id, id_size};
    struct client *client = klk_client_next(exchange, routing_id, NULL);
    uint32_t count = 0;
    while (client) {
        struct client *next = klk_client_next(exchange, routing_id, client);
        if (!client->is_gone) client->gone_since_ms = now_ms;
        client->is_gone = 1;
        count += client_end(exchange, client);
        client = next;
    }
    return count;
}

/* ---- the exchange ---- */

struct klk_exchange *klk_exchange_open(const struct klk_exchange_setup *setup) {
    if (!setup->inflight_max || !setup->services_max || !setup->request_ttl_ms) return NULL;
    if (!setup->client_header_size || setup->client_header_size > KLK_EXCHANGE_NAME_MAX ||
        !setup->worker_header_size || setup->worker_header_size > KLK_EXCHANGE_NAME_MAX ||
        !setup->deadline_header_size || setup->deadline_header_size > KLK_EXCHANGE_NAME_MAX ||
        !setup->named_header_size || setup->named_header_size > KLK_EXCHANGE_NAME_MAX)
        return NULL;
    struct klk_exchange *exchange = calloc(1, sizeof *exchange);
    if (!exchange) return NULL;
    exchange->setup = *setup;
    exchange->next_client = exchange->next_worker = setup->first_number;
    exchange->run = (uint32_t)setup->first_number;
    klk_link_init(&exchange->dirty);
    klk_link_init(&exchange->by_last_seen);
    if (!table_open(&exchange->services) || !table_open(&exchange->clients) ||
        !table_open(&exchange->requests) || !table_open(&exchange->workers) ||
        !table_open(&exchange->clients_by_number) || !table_open(&exchange->clients_by_name) ||
        !table_open(&exchange->durable)) {
        klk_exchange_close(exchange);
        return NULL;
    }
    return exchange;
}

static void nodes_free(struct table *table) {
    for (uint32_t i = 0; table->buckets && i < table->size; i++) {
        for (struct node *node = table->buckets[i], *next; node; node = next) {
            next = node->next;
            free(node); /* The first member of its struct. */
        }
    }
    free(table->buckets);
}

void klk_exchange_close(struct klk_exchange *exchange) {
    if (!exchange) return;
    for (uint32_t i = 0; exchange->requests.buckets && i < exchange->requests.size; i++) {
        for (struct node *node = exchange->requests.buckets[i]; node; node = node->next) {
            struct request *request = KLK_OF(node, struct request, node);
            if (request->client_queue) {
                klk_link_remove(&request->place);
                line_settle(request->client_queue);
            }
            collected_free(exchange, request);
        }
    }
    nodes_free(&exchange->requests);
    nodes_free(&exchange->workers);
    nodes_free(&exchange->clients);
    free(exchange->clients_by_number.buckets);
    free(exchange->clients_by_name.buckets);
    nodes_free(&exchange->services);
    nodes_free(&exchange->durable);
    free(exchange->expiry_heap);
    free(exchange);
}

int klk_exchange_refusal(struct klk_exchange *exchange, int refusal, const uint8_t *data,
                         uint32_t size) {
    if (refusal < 0 || refusal >= KLK_REFUSALS) return KLK_EINVAL;
    if (size > sizeof exchange->refusals[0]) return KLK_EINVAL;
    memcpy(exchange->refusals[refusal], data, size);
    exchange->refusal_sizes[refusal] = size;
    return KLK_OK;
}

const uint64_t *klk_exchange_counters(const struct klk_exchange *exchange) {
    return exchange->counters;
}

uint64_t klk_exchange_held(const struct klk_exchange *exchange, uint64_t *bytes) {
    *bytes = exchange->bytes;
    return exchange->requests.count;
}

/* When the first request of a list began to wait. */
static int64_t first_ms(const struct link *requests, int64_t ttl_ms) {
    return KLK_OF(requests->next, struct request, place)->expires_ms - ttl_ms;
}

static void service_tell(const struct klk_exchange *exchange, const struct service *service,
                         struct klk_service_info *info) {
    int64_t ttl_ms = exchange->setup.request_ttl_ms;
    *info = (struct klk_service_info){.bytes = service->bytes,
                                      .done = service->done,
                                      .oldest_ms = -1,
                                      .workers = service->workers,
                                      .waiting = service->waiting,
                                      .working = service->working,
                                      .name_size = service->name.size};
    memcpy(info->name, service->name.bytes, service->name.size);
    if (!klk_link_is_empty(&service->redelivery))
        info->oldest_ms = first_ms(&service->redelivery, ttl_ms);
    for (const struct link *at = service->client_queues.next;
         at != &service->client_queues; at = at->next) {
        int64_t since_ms = first_ms(&KLK_OF(at, struct client_queue, of_service)->requests, ttl_ms);
        if (info->oldest_ms < 0 || since_ms < info->oldest_ms) info->oldest_ms = since_ms;
    }
}

int klk_exchange_service(const struct klk_exchange *exchange, const uint8_t *name, uint32_t size,
                         struct klk_service_info *info) {
    if (!size || size > KLK_EXCHANGE_NAME_MAX) return KLK_EINVAL;
    const struct service *service = klk_service_find(exchange, name, size);
    if (!service) return KLK_EINVAL;
    service_tell(exchange, service, info);
    return KLK_OK;
}

uint32_t klk_exchange_services(const struct klk_exchange *exchange, struct klk_service_info *infos,
                               uint32_t room) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < exchange->services.size; i++)
        for (struct node *node = exchange->services.buckets[i]; node && count < room;
             node = node->next)
            service_tell(exchange, KLK_OF(node, struct service, node), &infos[count++]);
    return exchange->services.count;
}

uint32_t klk_exchange_workers(const struct klk_exchange *exchange, struct klk_worker_info *infos,
                              uint32_t room) {
    uint32_t count = 0;
    for (const struct link *at = exchange->by_last_seen.next;
         at != &exchange->by_last_seen && count < room;
         at = at->next) {
        const struct worker *worker = KLK_OF(at, struct worker, by_last_seen);
        struct klk_worker_info *info = &infos[count++];
        *info = (struct klk_worker_info){.done = worker->done,
                                         .number = worker->number,
                                         .last_seen_ms = worker->last_seen_ms,
                                         .window = worker->window,
                                         .load = worker->load,
                                         .framing = worker->framing,
                                         .id_size = worker->id.size,
                                         .service_size = worker->service->name.size};
        memcpy(info->id, worker->id.bytes, worker->id.size);
        memcpy(info->service, worker->service->name.bytes, worker->service->name.size);
    }
    return exchange->workers.count;
}
