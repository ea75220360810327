/* A thread that syncs segments in the background. Orders and answers go through two pipes: the
 * thread that reads an order or its answer owns the segment in it. */
#define _GNU_SOURCE
#include "api.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { READ = 0, WRITE = 1 };

struct answer {
    int32_t error; /* errno, or 0 */
    uint32_t us;   /* duration of the sync */
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

static void *run(void *argument) {
    const struct klk_syncer *syncer = argument;
    int orders = syncer->orders[READ], answers = syncer->answers[WRITE];
    struct klk_segment *segment;
    while (read_whole(orders, &segment, sizeof segment) > 0 && segment != NULL) {
        uint64_t begin_us = klk_monotonic_us();
        struct answer answer = {.error = klk_segment_sync(segment) < 0 ? errno : 0};
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

int klk_syncer_start(struct klk_syncer *syncer, struct klk_segment *segment) {
    if (segment == NULL || syncer->running == KLK_SYNCS_MAX) return KLK_EINVAL;
    if (write_whole(syncer->orders[WRITE], &segment, sizeof segment) < 0) return KLK_EOS;
    syncer->running++;
    return KLK_OK;
}

int klk_syncer_poll(struct klk_syncer *syncer, int wait) {
    struct answer answer;
    if (syncer->running == 0) return KLK_EINVAL;
    int size = read_whole(syncer->answers[READ], &answer, sizeof answer);
    while (size == 0 && wait) {
        struct pollfd answered = {.fd = syncer->answers[READ], .events = POLLIN};
        if (poll(&answered, 1, -1) < 0 && errno != EINTR) return KLK_EOS;
        size = read_whole(syncer->answers[READ], &answer, sizeof answer);
    }
    if (size == 0) return KLK_MORE;
    if (size < 0) return KLK_EOS;
    syncer->running--;
    klk_latency_add(&syncer->latency, answer.us, 1);
    if (answer.error == 0) return KLK_OK;
    errno = answer.error;
    return KLK_EOS;
}

int klk_syncer_close(struct klk_syncer *syncer) {
    struct klk_segment *none = NULL;
    pthread_t thread;
    memcpy(&thread, &syncer->thread, sizeof thread);
    if (write_whole(syncer->orders[WRITE], &none, sizeof none) < 0) return KLK_EOS;
    int error = pthread_join(thread, NULL);
    close_pipe(syncer->orders);
    close_pipe(syncer->answers);
    syncer->running = 0;
    if (error == 0) return KLK_OK;
    errno = error;
    return KLK_EOS;
}
