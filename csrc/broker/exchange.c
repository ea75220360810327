/* The requests, workers and clients of a broker. exchange_wire.c handles messages. */
#include "exchange_state.h"

#include <stdlib.h>
#include <string.h>

enum {
    TABLE_MIN = 64,
    REQUEST_OVERHEAD = sizeof(struct request) + 64,
    CLIENT_OVERHEAD = sizeof(struct client) + sizeof(struct client_queue),
    COLLECTED_BYTES_MAX = 1 << 24, /* of PARTIALs for one request of an RFC 7 client */
    NAMES_MAX = 8 /* clients of one connection, which are searched one by one */
};

/* ---- tables ---- */

static uint64_t mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

static uint64_t hash_of(const struct klk_exchange *exchange, uint64_t seed,
                        struct klk_octets octets) {
    const uint8_t *data = octets.data;
    uint32_t size = octets.size;
    uint64_t word, hash = mix(exchange->setup.seed ^ seed, size);
    for (; size >= sizeof word; size -= (uint32_t)sizeof word, data += sizeof word) {
        memcpy(&word, data, sizeof word);
        hash = mix(hash, word);
    }
    word = 0;
    if (size) memcpy(&word, data, size);
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

static int name_is(const struct klk_name *name, struct klk_octets octets) {
    return name->size == octets.size &&
           (!octets.size || memcmp(name->bytes, octets.data, octets.size) == 0);
}

/* The next element with this name in a chain, from a node on; NULL: none. */
static struct named *named_next(struct node *node, uint64_t hash, struct klk_octets name) {
    for (; node; node = node->next) {
        struct named *named = KLK_OF(node, struct named, node);
        if (node->hash == hash && name_is(&named->name, name)) return named;
    }
    return NULL;
}

static struct named *named_find(const struct klk_exchange *exchange, const struct table *table,
                                struct klk_octets name) {
    uint64_t hash = hash_of(exchange, 0, name);
    return named_next(table_first(table, hash), hash, name);
}

static void named_add(const struct klk_exchange *exchange, struct table *table,
                      struct named *named, struct klk_octets name) {
    named->name.size = (uint8_t)name.size;
    memcpy(named->name.bytes, name.data, name.size);
    named->node.hash = hash_of(exchange, 0, name);
    table_add(table, &named->node);
}

static int is_valid(struct klk_octets name) {
    return name.size && name.size <= KLK_EXCHANGE_NAME_MAX;
}

/* ---- services ---- */

static struct service *service_find(const struct klk_exchange *exchange, struct klk_octets name) {
    return (struct service *)(void *)named_find(exchange, &exchange->services, name);
}

struct service *klk_service_get(struct klk_exchange *exchange, struct klk_octets name) {
    struct service *service = service_find(exchange, name);
    if (service || exchange->services.count >= exchange->setup.services_max) return service;
    service = calloc(1, sizeof *service);
    if (!service) return NULL;
    klk_link_init(&service->dirty);
    klk_link_init(&service->ready);
    klk_link_init(&service->client_queues);
    klk_link_init(&service->redelivery);
    named_add(exchange, &exchange->services, &service->named, name);
    return service;
}

void klk_service_free_unused(struct klk_exchange *exchange, struct service *service) {
    if (service->workers || service->waiting || service->working) return;
    klk_link_remove(&service->dirty);
    table_remove(&exchange->services, &service->named.node);
    free(service);
}

int klk_service_is_durable(const struct klk_exchange *exchange, struct klk_octets name) {
    return exchange->durable.count && named_find(exchange, &exchange->durable, name);
}

int klk_exchange_add_durable(struct klk_exchange *exchange, const uint8_t *service, uint32_t size) {
    struct klk_octets name = {service, size};
    if (!is_valid(name)) return KLK_EINVAL;
    if (klk_service_is_durable(exchange, name)) return KLK_OK;
    struct named *durable = calloc(1, sizeof *durable);
    if (!durable) return KLK_ESPACE;
    named_add(exchange, &exchange->durable, durable, name);
    return KLK_OK;
}

/* Marks a service that may have something to dispatch. */
static void service_wake(struct klk_exchange *exchange, struct service *service) {
    if (klk_link_is_empty(&service->dirty)) klk_link_insert(&service->dirty, &exchange->dirty);
}

/* ---- clients ---- */

static uint32_t client_lose(struct klk_exchange *exchange, struct client *client, int64_t now_ms);

struct client *klk_client_next(const struct klk_exchange *exchange, struct klk_octets id,
                               const struct client *behind) {
    uint64_t hash = hash_of(exchange, 0, id);
    struct node *first = behind ? behind->by_id.node.next : table_first(&exchange->clients, hash);
    return (struct client *)(void *)named_next(first, hash, id);
}

/* Whether a connection has the most clients allowed. */
static int is_crowded(const struct klk_exchange *exchange, struct klk_octets id, int32_t slot) {
    const struct client *client = NULL;
    uint32_t count = 0;
    while ((client = klk_client_next(exchange, id, client)) != NULL) count += client->slot == slot;
    return count >= NAMES_MAX;
}

/* Moves a client to a new connection. A late message of its previous connection does not move it
 * back. */
static void client_move(struct klk_exchange *exchange, struct client *client,
                        struct klk_octets id) {
    uint64_t hash = hash_of(exchange, 0, id);
    if (hash == client->previous_hash || is_crowded(exchange, id, client->slot)) return;
    table_remove(&exchange->clients, &client->by_id.node);
    client->previous_hash = client->by_id.node.hash;
    named_add(exchange, &exchange->clients, &client->by_id, id);
}

struct client *klk_client_find(struct klk_exchange *exchange, const struct klk_asking *asking,
                               int64_t now_ms) {
    struct klk_octets id = asking->client, name = asking->name;
    uint64_t hash = hash_of(exchange, 0, id);
    struct node *node = table_first(&exchange->clients, hash);
    struct client *client, *found = NULL;
    while ((client = (struct client *)(void *)named_next(node, hash, id)) != NULL) {
        node = client->by_id.node.next;
        if (client->slot != asking->slot)
            client_lose(exchange, client, now_ms);
        else if (name_is(&client->by_name.name, name))
            found = client;
    }
    if (found || !name.size) return found;
    hash = hash_of(exchange, 0, name);
    struct named *named = named_next(table_first(&exchange->clients_by_name, hash), hash, name);
    for (; named; named = named_next(named->node.next, hash, name)) {
        client = KLK_OF(named, struct client, by_name);
        if (client->slot != asking->slot) continue;
        client_move(exchange, client, id);
        return client;
    }
    return NULL;
}

struct client *klk_client_get(struct klk_exchange *exchange, const struct klk_asking *asking,
                              int64_t now_ms) {
    struct klk_octets id = asking->client, name = asking->name;
    struct client *client = klk_client_find(exchange, asking, now_ms);
    if (client) return client;
    if (name.size && is_crowded(exchange, id, asking->slot)) return NULL;
    client = calloc(1, sizeof *client);
    if (!client) return NULL;
    klk_link_init(&client->client_queues);
    client->slot = asking->slot;
    named_add(exchange, &exchange->clients, &client->by_id, id);
    client->by_number.hash = exchange->next_client++;
    klk_put_u64_big(client->number, client->by_number.hash);
    table_add(&exchange->clients_by_number, &client->by_number);
    if (name.size) named_add(exchange, &exchange->clients_by_name, &client->by_name, name);
    return client;
}

struct client *klk_client_numbered(const struct klk_exchange *exchange, struct klk_octets number) {
    if (number.size != sizeof(uint64_t)) return NULL;
    uint64_t wanted = klk_get_u64_big(number.data);
    struct node *node = table_first(&exchange->clients_by_number, wanted);
    while (node && node->hash != wanted) node = node->next;
    return node ? KLK_OF(node, struct client, by_number) : NULL;
}

void klk_client_free_unused(struct klk_exchange *exchange, struct client *client) {
    if (client->inflight) return;
    table_remove(&exchange->clients, &client->by_id.node);
    table_remove(&exchange->clients_by_number, &client->by_number);
    if (client->by_name.name.size)
        table_remove(&exchange->clients_by_name, &client->by_name.node);
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

struct request *klk_request_find(const struct klk_exchange *exchange, const struct client *client,
                                 struct klk_octets id) {
    uint64_t hash = hash_of(exchange, client->by_number.hash, id);
    for (struct node *node = table_first(&exchange->requests, hash); node; node = node->next) {
        struct request *request = KLK_OF(node, struct request, node);
        if (node->hash == hash && request->client == client && request->id_size == id.size &&
            memcmp(klk_request_id(request), id.data, id.size) == 0)
            return request;
    }
    return NULL;
}

uint64_t klk_request_cost(const struct client *client, const struct klk_asking *asking) {
    uint64_t body = asking->offsets[asking->frames] - asking->offsets[0];
    uint64_t overhead = REQUEST_OVERHEAD + (client->inflight ? 0 : CLIENT_OVERHEAD);
    return overhead + body + asking->id.size + 4ull * asking->frames;
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

/* Makes room for the use of the key in a slot. Returns 0: no memory. */
static int keys_fit(struct klk_exchange *exchange, int32_t slot) {
    if (slot < 0 || klk_key_use(exchange, slot)) return 1;
    uint32_t count = (uint32_t)slot + 16;
    struct key_use *keys = realloc(exchange->keys, count * sizeof *keys);
    if (!keys) return 0;
    memset(keys + exchange->keys_count, 0, (count - exchange->keys_count) * sizeof *keys);
    exchange->keys = keys;
    exchange->keys_count = count;
    return 1;
}

int klk_request_add(struct klk_exchange *exchange, struct client *client, struct service *service,
                    const struct klk_asking *asking, int64_t now_ms) {
    uint32_t body_size = asking->offsets[asking->frames] - asking->offsets[0];
    uint8_t named_mode = asking->credit ? KLK_PARTS_NUMBERED : KLK_PARTS_UNWANTED;
    if (!due_fit(exchange) || !keys_fit(exchange, client->slot)) return KLK_ESPACE;
    struct client_queue *client_queue = line_get(client, service);
    if (!client_queue) return KLK_ESPACE;
    struct request *request =
        malloc(sizeof *request + 4 * (size_t)asking->frames + body_size + asking->id.size);
    if (!request) {
        line_settle(client_queue);
        return KLK_ESPACE;
    }
    *request = (struct request){.client = client,
                                .service = service,
                                .client_queue = client_queue,
                                .number = ++exchange->number,
                                .since_us = exchange->now_us,
                                .bytes = klk_request_cost(client, asking),
                                .expires_ms = now_ms + exchange->setup.request_ttl_ms,
                                .deadline_ms = asking->deadline_ms,
                                .body_size = body_size,
                                .frames = asking->frames,
                                .framing = (uint8_t)asking->framing,
                                .parts_mode = asking->name.size ? named_mode : KLK_PARTS_PLAIN,
                                .credit = asking->credit,
                                .is_bundled = asking->is_bundled,
                                .id_size = (uint8_t)asking->id.size};
    for (uint32_t i = 0; i < asking->frames; i++)
        request->sizes[i] = asking->offsets[i + 1] - asking->offsets[i];
    if (body_size) memcpy(klk_request_body(request), asking->body, body_size);
    memcpy(klk_request_id(request), asking->id.data, asking->id.size);
    request->node.hash = hash_of(exchange, client->by_number.hash, asking->id);
    table_add(&exchange->requests, &request->node);
    klk_link_insert(&request->place, &client_queue->requests);
    exchange->bytes += request->bytes;
    client->inflight++;
    struct key_use *use = klk_key_use(exchange, client->slot);
    if (use) {
        use->inflight++;
        use->bytes += request->bytes;
    }
    request_wait(exchange, request);
    return KLK_OK;
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
    struct key_use *use = klk_key_use(exchange, client->slot);
    if (use) {
        use->inflight--;
        use->bytes -= request->bytes;
    }
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

/* Makes room for so many bytes more. Returns 0: the limits or the memory do not allow it. */
static int collected_fit(struct klk_exchange *exchange, struct collected *collected,
                         uint64_t size) {
    uint64_t need = collected->used + size;
    uint64_t room = exchange->setup.bytes_max - exchange->bytes + collected->bytes_max;
    if (need > COLLECTED_BYTES_MAX || need > room) return 0;
    if (need <= collected->bytes_max) return 1;
    uint64_t bytes_max = 2 * need < room ? 2 * need : need;
    uint8_t *bytes = realloc(collected->bytes, bytes_max);
    if (!bytes) return 0;
    exchange->bytes += bytes_max - collected->bytes_max;
    collected->bytes = bytes;
    collected->bytes_max = bytes_max;
    return 1;
}

void klk_request_collect(struct klk_exchange *exchange, struct request *request,
                         const uint8_t *bytes, const uint32_t *offsets, uint32_t frames) {
    struct collected *collected = request->collected;
    if (!collected) collected = request->collected = calloc(1, sizeof *collected);
    if (!collected || collected->overflowed) return;
    if (!collected_fit(exchange, collected, offsets[frames] - offsets[0] + 4ull * frames)) {
        collected->overflowed = 1;
        return;
    }
    for (uint32_t i = 0; i < frames; i++) {
        uint32_t size = offsets[i + 1] - offsets[i];
        memcpy(collected->bytes + collected->used, &size, sizeof size);
        if (size) memcpy(collected->bytes + collected->used + 4, bytes, size);
        collected->used += 4 + size;
        bytes += size;
    }
    collected->frames += frames;
}

/* ---- workers ---- */

struct worker *klk_worker_find(const struct klk_exchange *exchange, struct klk_octets id) {
    return (struct worker *)(void *)named_find(exchange, &exchange->workers, id);
}

void klk_worker_touch(struct klk_exchange *exchange, struct worker *worker, int64_t now_ms) {
    worker->last_seen_ms = now_ms;
    klk_link_move_last(&worker->by_last_seen, &exchange->by_last_seen);
}

int klk_exchange_worker_add(struct klk_exchange *exchange, const uint8_t *id, uint32_t id_size,
                            const uint8_t *service_name, uint32_t service_size, uint32_t framing,
                            uint32_t window, int wants, int32_t slot, int64_t now_ms) {
    struct klk_octets routing_id = {id, id_size}, name = {service_name, service_size};
    if (!is_valid(routing_id) || !is_valid(name) || framing > KLK_FRAMING_MDP2) return KLK_EINVAL;
    if (!window || window > KLK_EXCHANGE_WINDOW_MAX) return KLK_EINVAL;
    if (klk_worker_find(exchange, routing_id)) return KLK_EINVAL;
    struct service *service = klk_service_get(exchange, name);
    if (!service) return KLK_ESPACE;
    struct worker *worker = calloc(1, sizeof *worker);
    if (!worker) {
        klk_service_free_unused(exchange, service);
        return KLK_ESPACE;
    }
    worker->service = service;
    worker->framing = (uint8_t)framing;
    worker->window = framing == KLK_FRAMING_TEXT ? window : 1;
    worker->wants = (uint8_t)wants;
    worker->slot = slot;
    worker->number = exchange->next_worker++;
    worker->last_seen_ms = worker->sent_ms = now_ms;
    named_add(exchange, &exchange->workers, &worker->named, routing_id);
    klk_link_init(&worker->requests);
    klk_link_insert(&worker->by_last_seen, &exchange->by_last_seen);
    klk_link_insert(&worker->ready, &service->ready);
    service->workers++;
    service_wake(exchange, service);
    return KLK_OK;
}

int64_t klk_exchange_worker_remove(struct klk_exchange *exchange, const uint8_t *id,
                                   uint32_t id_size, int64_t now_ms) {
    struct worker *worker = klk_worker_find(exchange, (struct klk_octets){id, id_size});
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
    table_remove(&exchange->workers, &worker->named.node);
    free(worker);
    service->workers--;
    klk_service_free_unused(exchange, service);
    return count;
}

int64_t klk_exchange_last_seen_ms(const struct klk_exchange *exchange, struct klk_name *id) {
    if (klk_link_is_empty(&exchange->by_last_seen)) return -1;
    const struct worker *worker = KLK_OF(exchange->by_last_seen.next, struct worker, by_last_seen);
    *id = worker->named.name;
    return worker->last_seen_ms;
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

/* A client can't be reached: removes its queued requests; returns their number. */
static uint32_t client_lose(struct klk_exchange *exchange, struct client *client, int64_t now_ms) {
    if (!client->is_gone) client->gone_since_ms = now_ms;
    client->is_gone = 1;
    return client_end(exchange, client);
}

uint32_t klk_exchange_client_remove(struct klk_exchange *exchange, const uint8_t *id,
                                 uint32_t id_size, int64_t now_ms) {
    struct klk_octets routing_id = {id, id_size};
    struct client *client = klk_client_next(exchange, routing_id, NULL);
    uint32_t count = 0;
    while (client) {
        struct client *next = klk_client_next(exchange, routing_id, client);
        count += client_lose(exchange, client, now_ms);
        client = next;
    }
    return count;
}

uint32_t klk_exchange_slot_remove(struct klk_exchange *exchange, int32_t slot, int64_t now_ms) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < exchange->clients.size; i++) {
        for (struct node *node = exchange->clients.buckets[i], *next; node; node = next) {
            struct client *client = (struct client *)(void *)node;
            next = node->next;
            if (client->slot == slot) count += client_lose(exchange, client, now_ms);
        }
    }
    return count;
}

/* ---- the exchange ---- */

struct klk_exchange *klk_exchange_open(const struct klk_exchange_setup *setup) {
    if (!setup->inflight_max || !setup->services_max || !setup->request_ttl_ms) return NULL;
    for (int i = 0; i < KLK_HEADERS; i++)
        if (!setup->headers[i].size) return NULL;
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
    struct table *requests = &exchange->requests;
    for (uint32_t i = 0; requests->buckets && i < requests->size; i++)
        while (requests->buckets[i])
            klk_request_end(exchange, KLK_OF(requests->buckets[i], struct request, node));
    nodes_free(&exchange->requests);
    nodes_free(&exchange->workers);
    nodes_free(&exchange->clients);
    free(exchange->clients_by_number.buckets);
    free(exchange->clients_by_name.buckets);
    nodes_free(&exchange->services);
    nodes_free(&exchange->durable);
    free(exchange->expiry_heap);
    free(exchange->keys);
    free(exchange);
}

const uint64_t *klk_exchange_counters(const struct klk_exchange *exchange) {
    return exchange->counters;
}

const struct klk_latency *klk_exchange_latency(const struct klk_exchange *exchange) {
    return &exchange->latency;
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
    *info = (struct klk_service_info){.waiting_bytes = service->bytes,
                                      .done = service->done,
                                      .oldest_ms = -1,
                                      .workers = service->workers,
                                      .waiting = service->waiting,
                                      .working = service->working,
                                      .name = service->named.name};
    if (!klk_link_is_empty(&service->redelivery))
        info->oldest_ms = first_ms(&service->redelivery, ttl_ms);
    for (const struct link *at = service->client_queues.next;
         at != &service->client_queues; at = at->next) {
        int64_t since_ms = first_ms(&KLK_OF(at, struct client_queue, of_service)->requests, ttl_ms);
        if (info->oldest_ms < 0 || since_ms < info->oldest_ms) info->oldest_ms = since_ms;
    }
}

uint32_t klk_exchange_service_workers(const struct klk_exchange *exchange, const uint8_t *name,
                                      uint32_t size) {
    const struct service *service = service_find(exchange, (struct klk_octets){name, size});
    return service ? service->workers : 0;
}

uint32_t klk_exchange_services(const struct klk_exchange *exchange, struct klk_service_info *infos,
                               uint32_t room) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < exchange->services.size; i++)
        for (struct node *node = exchange->services.buckets[i]; node && count < room;
             node = node->next)
            service_tell(exchange, (struct service *)(void *)node, &infos[count++]);
    return exchange->services.count;
}

uint32_t klk_exchange_workers(const struct klk_exchange *exchange, struct klk_worker_info *infos,
                              uint32_t room) {
    uint32_t count = 0;
    for (const struct link *at = exchange->by_last_seen.next;
         at != &exchange->by_last_seen && count < room;
         at = at->next) {
        const struct worker *worker = KLK_OF(at, struct worker, by_last_seen);
        infos[count++] = (struct klk_worker_info){.done = worker->done,
                                                  .number = worker->number,
                                                  .last_seen_ms = worker->last_seen_ms,
                                                  .window = worker->window,
                                                  .load = worker->load,
                                                  .framing = worker->framing,
                                                  .slot = worker->slot,
                                                  .routing_id = worker->named.name,
                                                  .service = worker->service->named.name};
    }
    return exchange->workers.count;
}
