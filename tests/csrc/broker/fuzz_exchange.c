/* Messages of a broker's clients and workers, in any order with what its owner does between them.
 * A message of one frame is an act of the owner; else its routing id begins with c or w. */
#include "exchange.h"
#include "fuzz.h"

enum { INFOS = 4, WORKERS = 4, NUMBER_BYTES = 8 };

struct broker {
    struct klk_exchange *exchange;
    struct klk_messages clients;
    struct klk_messages workers;
    int64_t now_ms;
    int32_t slot; /* of the workers' keys */
};

/* The parts of a conversation: C is the client's number, `dispatch` an act. */
static uint8_t *put_parts(uint8_t *at, const char *const *frames) {
    static const uint8_t number[NUMBER_BYTES] = {0, 0, 0, 0, 0, 0, 0, 1};
    for (; *frames; frames++) {
        if (strcmp(*frames, "C") == 0)
            at = fuzz_put(at, number, sizeof number, !frames[1]);
        else if (strcmp(*frames, "OPTIONS") == 0)
            at = fuzz_put(at, "\0\0\0\0\0\0\1\0\0\0\0\0\0\0\100\0name", 20, !frames[1]);
        else if (strcmp(*frames, "CREDIT") == 0)
            at = fuzz_put(at, "\0\0\0\0\0\1\0\0\0\0\0\0\0\0\100\0name", 20, !frames[1]);
        else
            at = fuzz_put(at, *frames, (uint32_t)strlen(*frames), !frames[1]);
    }
    return at;
}

size_t fuzz_seed(uint32_t number, uint8_t *out) {
    static const char *const talks[][8][9] = {
        {{"c1", "CLIENT", "\1", "echo", "id1", "body", NULL},
         {"\1", NULL},
         {"w0", "WORKER", "\3", "C", "", "id1", "part", NULL},
         {"w0", "WORKER", "\4", "C", "", "id1", "final", NULL}},
        {{"c1", "NAMED", "\1", "echo", "id1", "OPTIONS", "body", "more", NULL},
         {"\1", NULL},
         {"w0", "WORKER", "\3", "C", "", "id1", "part", NULL},
         {"c1", "NAMED", "\4", "echo", "id1", "CREDIT", NULL},
         {"c2", "NAMED", "\1", "echo", "id1", "OPTIONS", "again", NULL},
         {"w0", "WORKER", "\4", "C", "", "id1", NULL},
         {"c2", "NAMED", "\5", "echo", "id1", "CREDIT", NULL}},
        {{"c1", "", "MDPC01", "old", "body", NULL},
         {"\1", NULL},
         {"w1", "", "MDPW01", "\4", NULL},
         {"w1", "", "MDPW01", "\3", "C", "", "answer", NULL}},
        {{"c1", "MDPC02", "\1", "new", "body", NULL},
         {"\1", NULL},
         {"w2", "MDPW02", "\3", "C", "", "part", NULL},
         {"w2", "MDPW02", "\4", "C", "", "final", NULL}},
        {{"c1", "", "MDPC01", "new", "body", NULL},
         {"\1", NULL},
         {"w2", "MDPW02", "\3", "C", "", "part", NULL},
         {"w2", "MDPW02", "\4", "C", "", "final", NULL}},
        {{"c1", "DEADLINE", "\1", "echo", "id2", "\1\1\1\1\1\1\1\1", "body", NULL},
         {"\2", NULL},
         {"\1", NULL},
         {"w0", "WORKER", "PING", NULL},
         {"\3", NULL},
         {"\1", NULL}},
        {{"c1", "CLIENT", "\1", "none", "id3", "body", NULL},
         {"c1", "CLIENT", "\1", "kept", "id4", "body", NULL},
         {"c1", "CLIENT", "\1", "mmi.service", "id5", "echo", NULL},
         {"w3", "WORKER", "\1", "echo", "4", NULL},
         {"\4", NULL},
         {"\5", NULL},
         {"\6", NULL},
         {"\7", NULL}},
    };
    if (number >= sizeof talks / sizeof *talks) return 0;
    uint8_t *at = out;
    for (int i = 0; i < 8 && talks[number][i][0]; i++) at = put_parts(at, talks[number][i]);
    return (size_t)(at - out);
}

static struct klk_name name(const char *text) {
    struct klk_name made = {.size = (uint8_t)strlen(text)};
    memcpy(made.bytes, text, made.size);
    return made;
}

static void add_workers(struct broker *broker) {
    static const struct {
        const char *id, *service;
        uint32_t framing, window;
        int wants;
    } all[WORKERS] = {{"w0", "echo", KLK_FRAMING_TEXT, 3, KLK_WANTS_CREDIT},
                      {"w1", "old", KLK_FRAMING_MDP1, 1, KLK_WANTS_NOTHING},
                      {"w2", "new", KLK_FRAMING_MDP2, 1, KLK_WANTS_NOTHING},
                      {"w3", "echo", KLK_FRAMING_TEXT, 1, KLK_WANTS_DEADLINE}};
    for (int i = 0; i < WORKERS; i++)
        klk_exchange_worker_add(broker->exchange, (const uint8_t *)all[i].id, 2,
                                (const uint8_t *)all[i].service, (uint32_t)strlen(all[i].service),
                                all[i].framing, all[i].window, all[i].wants, broker->slot,
                                broker->now_ms);
}

/* Sends all, and makes room for more. */
static void send_all(struct broker *broker) {
    struct klk_messages *all[] = {&broker->clients, &broker->workers};
    for (int i = 0; i < 2; i++) {
        all[i]->frames = all[i]->messages = 0;
        if (all[i]->bytes_max < 1 << 16)
            messages_grow(all[i], 2 * all[i]->bytes_max, 2 * all[i]->frames_max);
    }
}

static void act(struct broker *broker, uint8_t what, const uint8_t *id, uint32_t size) {
    struct klk_exchange *exchange = broker->exchange;
    struct klk_messages *clients = &broker->clients, *workers = &broker->workers;
    struct klk_service_info services[INFOS];
    struct klk_worker_info infos[INFOS];
    struct klk_name worker;
    uint64_t bytes;
    int result;
    do {
        int64_t now_ms = broker->now_ms;
        result = KLK_OK;
        switch (what % 8) {
        case 1: result = klk_exchange_dispatch(exchange, now_ms, clients, workers); break;
        case 2:
            broker->now_ms += 700;
            if (size) klk_exchange_slot_remove(exchange, id[0] % FUZZ_SLOTS, broker->now_ms);
            break;
        case 3: result = klk_exchange_expire(exchange, now_ms, clients); break;
        case 4: result = klk_exchange_probe(exchange, now_ms, clients, workers); break;
        case 5: klk_exchange_worker_remove(exchange, id, size, now_ms); break;
        case 6: klk_exchange_client_remove(exchange, id, size, now_ms); break;
        case 7: result = klk_exchange_heartbeat(exchange, now_ms - 100, now_ms, workers); break;
        default:
            result = klk_exchange_drop_part(exchange, id, size, (const uint8_t *)"id1", 3, workers);
            if (result != KLK_EFULL)
                result = klk_exchange_drop_mdp_part(exchange, id, size, workers);
        }
        send_all(broker);
    } while (result == KLK_EFULL);
    if (what % 8 == 5) add_workers(broker);
    klk_exchange_held(exchange, &bytes);
    klk_exchange_last_seen_ms(exchange, &worker);
    klk_exchange_services(exchange, services, INFOS);
    klk_exchange_workers(exchange, infos, INFOS);
}

/* Gives the rest of the arena from *position on, up to a message that the owner handles. */
static void receive(struct broker *broker, const struct klk_messages *in, uint32_t *position,
                    int from_clients) {
    int32_t stop = 0;
    int result;
    do {
        struct klk_messages *clients = &broker->clients, *workers = &broker->workers;
        result = from_clients
                     ? klk_exchange_receive_requests(broker->exchange, in, position,
                                                     broker->now_ms, clients, workers, &stop)
                     : klk_exchange_receive_answers(broker->exchange, in, position, broker->now_ms,
                                                    clients, workers, &stop);
        send_all(broker);
    } while (result == KLK_EFULL);
    REQUIRE(result == KLK_OK ? *position == in->messages : result == KLK_MORE && stop);
    if (stop == KLK_STOP_DURABLE)
        REQUIRE(klk_exchange_count_durable(broker->exchange, in, *position) >= 1);
    ++*position;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz_input in = {data, size};
    struct klk_messages arena = fuzz_messages(&in);
    struct klk_exchange_setup setup = {
        .seed = 1,
        .first_number = 1,
        .bytes_max = 20000,
        .service_bytes_max = 15000,
        .inflight_max = 4,
        .key_inflight_max = 9,
        .key_bytes_max = 18000,
        .services_max = 5,
        .request_ttl_ms = 2000,
        .headers = {name("CLIENT"), name("WORKER"), name("DEADLINE"), name("NAMED")},
        .refusals = {name("client"), name("queue"), name("expired"), name("unfinished")}};
    struct broker broker = {klk_exchange_open(&setup), messages_new(64, 8), messages_new(64, 8),
                            1000, size % 2 ? KLK_EXCHANGE_NO_SLOT : 0};
    if (broker.slot == 0) arena.slots = fuzz_slots(&arena);
    REQUIRE(broker.exchange);
    REQUIRE(klk_exchange_add_durable(broker.exchange, (const uint8_t *)"kept", 4) == KLK_OK);
    add_workers(&broker);
    for (uint32_t position = 0; position < arena.messages;) {
        uint32_t id_size;
        const uint8_t *id = klk_messages_at(&arena, position, 0, &id_size);
        if (klk_messages_frames(&arena, position) == 1) {
            if (id_size) act(&broker, id[0], id + 1, id_size - 1);
            position++;
            continue;
        }
        receive(&broker, &arena, &position, !id_size || id[0] != 'w');
    }
    klk_exchange_close(broker.exchange);
    free(arena.slots);
    messages_free(&broker.clients);
    messages_free(&broker.workers);
    messages_free(&arena);
    return 0;
}
