/* A thread that syncs and fills segments in the background. Orders and answers go through two
 * pipes: the thread that reads an order or its answer owns the segment in it. */
#define _GNU_SOURCE
#include "api.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { READ = 0, WRITE = 1 };
enum pace { RESTS, GOES_ON, ENDS };
enum { REST_FACTOR = 3, REST_US_MAX = 50000 }; /* A fill leaves three quarters of the time. */

/* A sync; a fill if there are zeros to write. Without a segment the thread ends. */
struct order {
    struct klk_segment *segment;
    uint64_t from, to;
};

struct answer {
    int32_t error; /* errno, or 0 */
    uint32_t us;   /* duration of the sync */
    int32_t code;  /* KLK_OK, KLK_EOS, KLK_ESPACE */
};

_Static_assert(sizeof(pthread_t) <= sizeof(uint64_t), "klk_syncer has no room for a thread");

/* Reads an order or an answer in one piece: a pipe does not split so few bytes. Returns size, 0
 * when a non-blocking pipe is empty, or -1. */
static int read_whole(int fd, void *data, size_t size) {
    for (;;) {
        ssize_t count = read(fd, data, size);
        if (count == (ssize_t)size) return (int)size;
        if (count < 0 && errno == EINTR) continue;
        if (count < 0 && errno == EAGAIN) return 0;
        if (count >= 0) errno = EPIPE;
        return -1;
    }
}

static int write_whole(int fd, const void *data, size_t size) {
    for (;;) {
        ssize_t count = write(fd, data, size);
        if (count == (ssize_t)size) return KLK_OK;
        if (count >= 0 || errno != EINTR) return KLK_EOS;
    }
}

static int pace_of(const struct klk_syncer *syncer) {
    return __atomic_load_n(&syncer->pace, __ATOMIC_RELAXED);
}

static void set_pace(struct klk_syncer *syncer, enum pace pace) {
    __atomic_store_n(&syncer->pace, (int)pace, __ATOMIC_RELAXED);
}

static void rest(const struct klk_syncer *syncer, uint64_t worked_us) {
    uint64_t us = REST_FACTOR * worked_us;
    struct timespec pause = {.tv_nsec = (long)(us < REST_US_MAX ? us : REST_US_MAX) * 1000};
    if (pace_of(syncer) == RESTS) (void)nanosleep(&pause, NULL);
}

/* Writes and syncs the zeros of an order. Returns KLK_OK, KLK_EOS or KLK_ESPACE. */
static int fill(const struct klk_syncer *syncer, const struct order *order) {
    for (uint64_t at = order->from; at < order->to;) {
        uint64_t size = order->to - at, begin_us = klk_monotonic_us();
        if (size > KLK_FILL_PIECE_BYTES) size = KLK_FILL_PIECE_BYTES;
        errno = ECANCELED;
        if (pace_of(syncer) == ENDS) return KLK_ESPACE;
        if (klk_segment_zero(order->segment->fd, at, size) < 0) return KLK_ESPACE;
        if (klk_segment_sync(order->segment) < 0) return KLK_EOS;
        at += size;
        if (at < order->to) rest(syncer, klk_monotonic_us() - begin_us);
    }
    return KLK_OK;
}

static void *run(void *argument) {
    const struct klk_syncer *syncer = argument;
    int orders = syncer->orders[READ], answers = syncer->answers[WRITE];
    struct order order;
    while (read_whole(orders, &order, sizeof order) > 0 && order.segment != NULL) {
        uint64_t begin_us = klk_monotonic_us();
        struct answer answer = {0};
        int fills = order.from < order.to;
        answer.code = fills ? fill(syncer, &order) : klk_segment_sync(order.segment);
        if (answer.code < 0) answer.error = errno;
        answer.us = (uint32_t)(klk_monotonic_us() - begin_us);
        if (write_whole(answers, &answer, sizeof answer) < 0) break;
    }
    return NULL;
}

static int open_pipe(int fds[2]) {
    if (pipe(fds) < 0) return KLK_EOS;
    for (int i = 0; i < 2; i++) (void)fcntl(fds[i], F_SETFD, FD_CLOEXEC);
    return KLK_OK;
}

static void close_pipe(const int fds[2]) {
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0) (void)close(fds[i]);
}

/* Blocks all signals: the owner's thread handles them. */
static int start(struct klk_syncer *syncer) {
    sigset_t all, before;
    pthread_t thread;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, run, syncer);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        errno = error;
        return KLK_EOS;
    }
    memcpy(&syncer->thread, &thread, sizeof thread);
    return KLK_OK;
}

int klk_syncer_open(struct klk_syncer *syncer) {
    *syncer = (struct klk_syncer){.orders = {-1, -1}, .answers = {-1, -1}};
    if (open_pipe(syncer->orders) == KLK_OK && open_pipe(syncer->answers) == KLK_OK) {
        (void)fcntl(syncer->answers[READ], F_SETFL, O_NONBLOCK);
        if (start(syncer) == KLK_OK) return KLK_OK;
    }
    int error = errno;
    close_pipe(syncer->orders);
    close_pipe(syncer->answers);
    errno = error;
    return KLK_EOS;
}

int klk_syncer_fill(struct klk_syncer *syncer, struct klk_segment *segment, uint64_t from,
                    uint64_t to) {
    struct order order = {segment, from, to};
    if (segment == NULL || syncer->running == KLK_SYNCS_MAX) return KLK_EINVAL;
    if (write_whole(syncer->orders[WRITE], &order, sizeof order) < 0) return KLK_EOS;
    syncer->running++;
    return KLK_OK;
}

int klk_syncer_start(struct klk_syncer *syncer, struct klk_segment *segment) {
    return klk_syncer_fill(syncer, segment, 0, 0);
}

int klk_syncer_poll(struct klk_syncer *syncer, int wait) {
    struct answer answer;
    if (syncer->running == 0) return KLK_EINVAL;
    int size = read_whole(syncer->answers[READ], &answer, sizeof answer);
    if (size == 0 && wait) set_pace(syncer, GOES_ON);
    while (size == 0 && wait) {
        struct pollfd answered = {.fd = syncer->answers[READ], .events = POLLIN};
        if (poll(&answered, 1, -1) < 0 && errno != EINTR) return KLK_EOS;
        size = read_whole(syncer->answers[READ], &answer, sizeof answer);
    }
    if (size == 0) return KLK_MORE;
    set_pace(syncer, RESTS);
    if (size < 0) return KLK_EOS;
    syncer->running--;
    klk_latency_add(&syncer->latency, answer.us, 1);
    errno = answer.error;
    return answer.code;
}

int klk_syncer_close(struct klk_syncer *syncer) {
    struct order none = {0};
    pthread_t thread;
    memcpy(&thread, &syncer->thread, sizeof thread);
    set_pace(syncer, ENDS);
    if (write_whole(syncer->orders[WRITE], &none, sizeof none) < 0) return KLK_EOS;
    int error = pthread_join(thread, NULL);
    close_pipe(syncer->orders);
    close_pipe(syncer->answers);
    syncer->running = 0;
    if (error == 0) return KLK_OK;
    errno = error;
    return KLK_EOS;
}
