/* loadgen - closed loops for a ZMQ RAFT cluster and etcd, for ZeroDB's tables and Redis, and for a
 * broker, in C so that it is not what is measured. Prints one JSON object; bench/load/loadgen.py
 * builds and starts it.
 *
 *   --protocol zmqraft|etcd|zerodb|redis|broker   what is spoken
 *   --protocol workers the other side of a broker: workers that send back what they get
 *   --protocol bare    the least broker that there can be, between the two
 *   --urls A,B,..      every peer: tcp://HOST:PORT (zmqraft, zerodb) or HOST:PORT (etcd, redis)
 *   --op put|get|scan|packed   zerodb, redis (no scans): what is asked; an update is then a row
 *   --batch N          ... rows in a request; the window counts requests
 *   --keys N           ... different keys, used one after the other
 *   --table N          zerodb: the table's number,
 *   --tables N         ... and how many from there on are asked in turn
 *   --hold-ms N        workers: so long each keeps what it was asked
 *   --wait N           redis: each write is followed by WAIT N
 *   --bundles 1        broker, workers: bundles, kelek's own form
 *   --columns 1        zerodb: puts and gets in kelek's own form, as packed columns
 *   --libzmq PATH      zmqraft, zerodb, and with keys: the shared library (pyzmq's own: no header
 *                      is needed)
 *   --own-key FILE     zmqraft, zerodb, broker, workers: CURVE, with the key in this file,
 *   --server-keys A,B  ... and for each url the file of its server's public key
 *   --ident IDENT      zmqraft: node form (ident as frame 3) instead of text form
 *   --reads 1          zmqraft: linearizable reads (kelek's own form) instead of updates
 *   --pack N           zmqraft: N updates in one message of kelek's own form, a power of two
 *   --clients K  --window W  --size BYTES  --secs S  --warmup S  --drain S  --give-up S
 *   --count N          end after N updates instead of after a time (no warm-up)
 *   --rate N           zmqraft: N updates a second in all, due at even distances: an open loop
 *   --timeout-ms 500   no answer for so long: look for the leader, send again with the same id
 *
 * Latency counts from the first send to the final answer, so that an update sent again after a
 * failover counts from its first send. A closed loop slows down with the server: percentiles say
 * how a client of this window fares, not how the server would answer at a given rate. An open loop
 * says that: there latency counts from when an update was due, however late it was sent.
 *
 * It never starts or ends a server and measures no CPU time but its own. */
#define _GNU_SOURCE
#include "loadgen.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

/* Latency histogram: each power of two in HIST_STEPS equal steps, so the error is below 1.6 %. */
enum { HIST_BITS = 6, HIST_STEPS = 1 << HIST_BITS, HIST_SIZE = (64 - HIST_BITS) * HIST_STEPS };

struct gap {
    uint64_t from, to;
};

struct load_options load_options = {.clients = 1,
                                    .window = 1,
                                    .size = 64,
                                    .secs = 2,
                                    .warmup_s = 0.5,
                                    .batch = 1,
                                    .tables = 1,
                                    .keys = 1000000,
                                    .drain_s = 20,
                                    .give_up_s = 30,
                                    .timeout_ns = 500000000u};
struct load_counters load_counters;

static struct {
    uint64_t begun, from, to; /* ns; [from, to) is measured */
    uint64_t first_done, last_done, longest_gap, longest;
    uint64_t measured; /* updates committed in [from, to) */
    double cpu_from, cpu_to;
    uint64_t histogram[HIST_SIZE];
    uint64_t late[HIST_SIZE]; /* an open loop: how late the generator itself sent */
    struct gap gaps[LOAD_GAPS_MAX];
    size_t gap_count;
} account;

uint64_t load_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void load_die(const char *what) {
    printf("{\"error\": \"%s (%s)\"}\n", what, strerror(errno));
    exit(1);
}

static double cpu_s(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static size_t step_of(uint64_t ns) {
    if (ns < HIST_STEPS)
        return (size_t)ns;
    unsigned shift = 63u - (unsigned)__builtin_clzll(ns) - HIST_BITS;
    return (size_t)(shift + 1) * HIST_STEPS + (size_t)((ns >> shift) - HIST_STEPS);
}

static double step_middle_us(size_t step) {
    if (step < HIST_STEPS)
        return (double)step / 1e3;
    size_t shift = step / HIST_STEPS - 1;
    double low = (double)((uint64_t)(step % HIST_STEPS + HIST_STEPS) << shift);
    return (low + (double)(1ull << shift) / 2) / 1e3;
}

static double percentile_us(const uint64_t *histogram, double part) {
    uint64_t all = 0, seen = 0;
    for (size_t i = 0; i < HIST_SIZE; i++)
        all += histogram[i];
    for (size_t i = 0; i < HIST_SIZE; i++) {
        seen += histogram[i];
        if (seen != 0 && (double)seen >= part * (double)all)
            return step_middle_us(i);
    }
    return 0;
}

static uint64_t ns_of(double seconds) { return (uint64_t)(seconds * 1e9); }

void load_begin(void) {
    if (account.begun != 0)
        return;
    uint64_t now = load_now_ns();
    account.begun = account.last_done = account.from = now;
    account.to = UINT64_MAX;
    if (!load_options.count) {
        account.from = now + ns_of(load_options.warmup_s);
        account.to = account.from + ns_of(load_options.secs);
    }
    account.cpu_from = cpu_s();
}

bool load_wants_more(uint64_t now) {
    if (load_options.count)
        return load_counters.sent < load_options.count;
    return now < account.to;
}

bool load_may_send(uint64_t now) {
    return load_wants_more(now) && (!load_options.rate || load_due_ns(now) <= now);
}

uint64_t load_due_ns(uint64_t now) {
    if (!load_options.rate)
        return now;
    double due_s = (double)load_counters.sent / (double)load_options.rate;
    return account.begun + ns_of(due_s);
}

void load_note_late(uint64_t due_ns, uint64_t now, uint64_t records) {
    if (now >= account.from && now < account.to)
        account.late[step_of(now > due_ns ? now - due_ns : 0)] += records;
}

bool load_is_over(uint64_t now, uint64_t outstanding) {
    if (load_wants_more(now))
        return false;
    if (account.cpu_to == 0)
        account.cpu_to = cpu_s();
    if (outstanding == 0)
        return true;
    if (load_options.count)
        return now > account.last_done + ns_of(load_options.give_up_s);
    return now > account.to + ns_of(load_options.drain_s);
}

static void note_gap(uint64_t from, uint64_t to) {
    if (to - from > account.longest_gap)
        account.longest_gap = to - from;
    if (to - from >= (uint64_t)LOAD_GAP_MS_MIN * 1000000u && account.gap_count < LOAD_GAPS_MAX)
        account.gaps[account.gap_count++] = (struct gap){from, to};
}

void load_commit(uint64_t sent_ns, uint64_t now, uint64_t records) {
    load_counters.done += records;
    if (account.first_done == 0)
        account.first_done = now;
    if (now >= account.from) {
        if (account.last_done < account.from) /* The first one that is measured. */
            account.cpu_from = cpu_s();
        note_gap(account.last_done > account.from ? account.last_done : account.from, now);
    }
    account.last_done = now;
    if (now - sent_ns > account.longest)
        account.longest = now - sent_ns;
    if (now < account.from || now >= account.to)
        return;
    account.measured += records;
    account.histogram[step_of(now - sent_ns)] += records;
}

static void report_number(const char *name, double value) {
    printf("\"%s\": %.6f, ", name, value);
}

static void report_count(const char *name, uint64_t value) {
    printf("\"%s\": %" PRIu64 ", ", name, value);
}

static void report(void) {
    uint64_t now = load_now_ns();
    if (account.cpu_to == 0)
        account.cpu_to = cpu_s();
    if (load_counters.done < load_counters.sent)
        note_gap(account.last_done, now);
    double secs = load_options.secs;
    if (load_options.count)
        secs = (double)(account.last_done - account.begun) / 1e9;
    const struct load_counters *c = &load_counters;
    double updates = account.measured ? (double)account.measured : 1.0;
    putchar('{');
    report_number("updates_s", secs > 0 ? (double)account.measured / secs : 0.0);
    report_number("p50_us", percentile_us(account.histogram, .5));
    report_number("p90_us", percentile_us(account.histogram, .9));
    report_number("p99_us", percentile_us(account.histogram, .99));
    report_number("p999_us", percentile_us(account.histogram, .999));
    report_number("late_p50_us", percentile_us(account.late, .5));
    report_number("late_p99_us", percentile_us(account.late, .99));
    report_number("longest_us", (double)account.longest / 1e3);
    report_count("measured", account.measured);
    report_count("sent", c->sent);
    report_count("done", c->done);
    report_count("accepted", c->accepted);
    report_count("refused", c->refused);
    report_count("rejected", c->rejected);
    report_count("repeated", c->repeated);
    report_count("stray", c->stray);
    report_count("malformed", c->malformed);
    report_count("searches", c->searches);
    report_count("last_index", c->last_index);
    report_number("begun_s", (double)account.begun / 1e9);
    report_number("first_done_s", (double)account.first_done / 1e9);
    report_number("last_done_s", (double)account.last_done / 1e9);
    report_number("cpu_us_update", (account.cpu_to - account.cpu_from) * 1e6 / updates);
    report_number("longest_gap_ms", (double)account.longest_gap / 1e6);
    printf("\"gaps\": [");
    for (size_t i = 0; i < account.gap_count; i++)
        printf("%s[%.6f, %.2f]", i ? ", " : "", (double)account.gaps[i].from / 1e9,
               (double)(account.gaps[i].to - account.gaps[i].from) / 1e6);
    printf("]}\n");
}

static int take_list(char **into, char *list) {
    int count = 0;
    for (char *item = strtok(list, ","); item; item = strtok(NULL, ",")) {
        if (count == LOAD_URLS_MAX)
            load_die("--urls, --server-keys: too many");
        into[count++] = item;
    }
    return count;
}

static enum load_op op_of(const char *name) {
    static const char *const names[] = {"put", "get", "scan", "packed"};
    for (int op = LOAD_PUT; op <= LOAD_PACKED; op++)
        if (!strcmp(name, names[op]))
            return (enum load_op)op;
    load_die("--op: put, get, scan or packed");
}

static bool take_option(const char *name, char *value) {
    struct load_options *o = &load_options;
    if (!strcmp(name, "--urls"))
        o->url_count = take_list(o->urls, value);
    else if (!strcmp(name, "--server-keys"))
        o->server_key_count = take_list(o->server_keys, value);
    else if (!strcmp(name, "--own-key"))
        o->own_key = value;
    else if (!strcmp(name, "--bundles"))
        o->bundles = atoi(value) != 0;
    else if (!strcmp(name, "--columns"))
        o->columns = atoi(value) != 0;
    else if (!strcmp(name, "--libzmq"))
        o->libzmq = value;
    else if (!strcmp(name, "--ident"))
        o->ident = value;
    else if (!strcmp(name, "--reads"))
        o->reads = atoi(value) != 0;
    else if (!strcmp(name, "--pack"))
        o->pack = atoi(value);
    else if (!strcmp(name, "--op"))
        o->op = op_of(value);
    else if (!strcmp(name, "--batch"))
        o->batch = atoi(value);
    else if (!strcmp(name, "--keys"))
        o->keys = strtoull(value, NULL, 10);
    else if (!strcmp(name, "--table"))
        o->table = strtoul(value, NULL, 10);
    else if (!strcmp(name, "--tables"))
        o->tables = strtoul(value, NULL, 10);
    else if (!strcmp(name, "--wait"))
        o->wait = atoi(value);
    else if (!strcmp(name, "--hold-ms"))
        o->hold_ms = atoi(value);
    else if (!strcmp(name, "--clients"))
        o->clients = atoi(value);
    else if (!strcmp(name, "--window"))
        o->window = atoi(value);
    else if (!strcmp(name, "--size"))
        o->size = strtoul(value, NULL, 10);
    else if (!strcmp(name, "--count"))
        o->count = strtoull(value, NULL, 10);
    else if (!strcmp(name, "--rate"))
        o->rate = strtoull(value, NULL, 10);
    else if (!strcmp(name, "--secs"))
        o->secs = atof(value);
    else if (!strcmp(name, "--warmup"))
        o->warmup_s = atof(value);
    else if (!strcmp(name, "--drain"))
        o->drain_s = atof(value);
    else if (!strcmp(name, "--give-up"))
        o->give_up_s = atof(value);
    else if (!strcmp(name, "--timeout-ms"))
        o->timeout_ns = strtoull(value, NULL, 10) * 1000000u;
    else
        return false;
    return true;
}

int main(int argc, char **argv) {
    const char *protocol = "zmqraft";
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc)
            load_die("an option without a value");
        if (!strcmp(argv[i], "--protocol"))
            protocol = argv[i + 1];
        else if (!take_option(argv[i], argv[i + 1]))
            load_die("unknown option");
    }
    const struct load_options *o = &load_options;
    if (o->url_count == 0 || o->window < 1 || o->size < 1)
        load_die("--urls, --window, --size: missing or out of range");
    if (o->clients < 1 || o->clients > LOAD_CLIENTS_MAX)
        load_die("--clients: 1 to 1024");
    if ((long)o->clients * o->window > LOAD_SLOTS_MAX / 4)
        load_die("too many outstanding updates");
    if (o->pack < 0 || o->pack > LOAD_PACK_MAX || (o->pack & (o->pack - 1)))
        load_die("--pack: a power of two up to 4096");
    bool is_raft = !strcmp(protocol, "zmqraft");
    if (is_raft && (o->pack || o->reads) && !o->ident)
        load_die("--pack, --reads: need --ident");
    if (o->pack && o->reads)
        load_die("--pack or --reads, not both");
    if (!strcmp(protocol, "zmqraft"))
        load_zmqraft();
    else if (!strcmp(protocol, "etcd"))
        load_etcd();
    else if (!strcmp(protocol, "zerodb"))
        load_zerodb();
    else if (!strcmp(protocol, "redis"))
        load_redis();
    else if (!strcmp(protocol, "broker"))
        load_broker();
    else if (!strcmp(protocol, "workers"))
        load_workers();
    else if (!strcmp(protocol, "bare"))
        load_bare();
    else
        load_die("unknown protocol");
    report();
    return 0;
}
