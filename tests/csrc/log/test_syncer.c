/* csrc/log/syncer.c: background syncs, their order, their failures, the end of the thread. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "exact.h"

enum { SIZE = 65536, ROUNDS = 300 };

static int open_file(void) {
    char path[] = ".build/csrc/syncerXXXXXX";
    int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    REQUIRE(unlink(path) == 0);
    REQUIRE(klk_segment_zero(fd, 0, SIZE) == KLK_OK);
    return fd;
}

static void put(struct klk_segment *segment, uint64_t offset, uint8_t byte) {
    const uint8_t *part = &byte;
    size_t size = 1;
    REQUIRE(klk_segment_write(segment, offset, &part, &size, 1) == KLK_OK);
}

/* The owner writes, starts a sync, polls the descriptor, and writes again. */
static void test_rounds(void) {
    struct klk_syncer *syncer = exact(sizeof *syncer);
    struct klk_segment *segment = exact(sizeof *segment);
    int fd = open_file();
    *segment = (struct klk_segment){.fd = fd, .size = SIZE};
    REQUIRE(klk_syncer_open(syncer) == KLK_OK);
    REQUIRE(klk_syncer_poll(syncer, 0) == KLK_EINVAL);
    REQUIRE(klk_syncer_start(syncer, NULL) == KLK_EINVAL);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        put(segment, i * 191, (uint8_t)i);
        REQUIRE(klk_syncer_start(syncer, segment) == KLK_OK);
        if (i % 2) {
            struct pollfd ended = {.fd = syncer->answers[0], .events = POLLIN};
            REQUIRE(poll(&ended, 1, 10000) == 1);
            REQUIRE(klk_syncer_poll(syncer, 0) == KLK_OK);
        } else {
            REQUIRE(klk_syncer_poll(syncer, 1) == KLK_OK);
        }
    }
    REQUIRE(klk_syncer_close(syncer) == KLK_OK);
    uint8_t *found = exact(SIZE);
    REQUIRE(pread(fd, found, SIZE, 0) == SIZE);
    for (uint32_t i = 0; i < ROUNDS; i++) REQUIRE(found[i * 191] == (uint8_t)i);
    free(found);
    REQUIRE(close(fd) == 0);
    free(segment);
    free(syncer);
}

/* Syncs end in the order of their start. A failed one reports errno, and the others continue. */
static void test_order_and_failures(void) {
    struct klk_syncer *syncer = exact(sizeof *syncer);
    struct klk_segment *segments = exact(KLK_SYNCS_MAX * sizeof *segments);
    int fds[KLK_SYNCS_MAX];
    REQUIRE(klk_syncer_open(syncer) == KLK_OK);
    for (int i = 0; i < KLK_SYNCS_MAX; i++) {
        fds[i] = open_file();
        segments[i] = (struct klk_segment){.fd = i % 3 ? fds[i] : -1, .size = SIZE};
        REQUIRE(klk_syncer_start(syncer, &segments[i]) == KLK_OK);
    }
    REQUIRE(klk_syncer_start(syncer, &segments[0]) == KLK_EINVAL);
    for (int i = 0; i < KLK_SYNCS_MAX; i++) {
        errno = 0;
        REQUIRE(klk_syncer_poll(syncer, 1) == (i % 3 ? KLK_OK : KLK_EOS));
        REQUIRE(i % 3 || errno == EBADF);
    }
    REQUIRE(klk_syncer_poll(syncer, 1) == KLK_EINVAL);
    for (int i = 0; i < KLK_SYNCS_MAX; i++) {
        REQUIRE(klk_syncer_start(syncer, &segments[i]) == KLK_OK);
    }
    REQUIRE(klk_syncer_close(syncer) == KLK_OK); /* waits for them */
    for (int i = 0; i < KLK_SYNCS_MAX; i++) REQUIRE(close(fds[i]) == 0);
    free(segments);
    free(syncer);
}

static int is_zero(int fd, uint64_t size) {
    uint8_t *found = exact(size);
    REQUIRE(pread(fd, found, size, 0) == (ssize_t)size);
    int zero = klk_zeros(found, size) == size;
    free(found);
    return zero;
}

/* A fill writes whole pieces and a rest, from where it is told, and syncs them. */
static void test_fills(void) {
    struct klk_syncer syncer;
    struct klk_segment segment = {.fd = open_file(), .size = SIZE}, bad = {.fd = -1, .size = SIZE};
    uint64_t size = 2 * KLK_FILL_PIECE_BYTES + 100;
    REQUIRE(klk_syncer_open(&syncer) == KLK_OK);
    put(&segment, 0, 1);
    put(&segment, 1, 1);
    REQUIRE(klk_syncer_fill(&syncer, NULL, 0, 1) == KLK_EINVAL);
    REQUIRE(klk_syncer_fill(&syncer, &segment, 1, size) == KLK_OK);
    struct pollfd ended = {.fd = syncer.answers[0], .events = POLLIN};
    REQUIRE(poll(&ended, 1, 10000) == 1);
    REQUIRE(klk_syncer_poll(&syncer, 0) == KLK_OK);
    REQUIRE(lseek(segment.fd, 0, SEEK_END) == (off_t)size && !is_zero(segment.fd, size));
    REQUIRE(klk_syncer_fill(&syncer, &segment, 0, 1) == KLK_OK);
    REQUIRE(klk_syncer_fill(&syncer, &bad, 0, 1) == KLK_OK);
    REQUIRE(klk_syncer_fill(&syncer, &segment, 5, 5) == KLK_OK); /* only a sync */
    REQUIRE(klk_syncer_poll(&syncer, 1) == KLK_OK && is_zero(segment.fd, size));
    REQUIRE(klk_syncer_poll(&syncer, 1) == KLK_ESPACE && errno == EBADF);
    REQUIRE(klk_syncer_poll(&syncer, 1) == KLK_OK);
    REQUIRE(klk_syncer_fill(&syncer, &segment, 0, 1000ull * KLK_FILL_PIECE_BYTES) == KLK_OK);
    REQUIRE(klk_syncer_close(&syncer) == KLK_OK); /* ends it */
    REQUIRE(lseek(segment.fd, 0, SEEK_END) < 1000ll * KLK_FILL_PIECE_BYTES);
    REQUIRE(close(segment.fd) == 0);
}

static pthread_t owner;
static volatile sig_atomic_t elsewhere, signals;

static void on_signal(int number) {
    (void)number;
    if (!pthread_equal(pthread_self(), owner)) elsewhere = 1;
    signals++;
}

/* A signal that the owner has blocked stays pending: the thread does not take it. */
static void test_signals(void) {
    struct klk_syncer syncer;
    sigset_t one, pending;
    owner = pthread_self();
    REQUIRE(signal(SIGUSR1, on_signal) != SIG_ERR);
    REQUIRE(klk_syncer_open(&syncer) == KLK_OK);
    REQUIRE(sigemptyset(&one) == 0 && sigaddset(&one, SIGUSR1) == 0);
    REQUIRE(pthread_sigmask(SIG_BLOCK, &one, NULL) == 0);
    REQUIRE(kill(getpid(), SIGUSR1) == 0);
    REQUIRE(sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1));
    REQUIRE(pthread_sigmask(SIG_UNBLOCK, &one, NULL) == 0);
    REQUIRE(signals == 1 && !elsewhere);
    REQUIRE(klk_syncer_close(&syncer) == KLK_OK);
}

static void test_no_pipes_left(void) {
    struct klk_syncer syncer;
    int fds[64], count = 0;
    const struct rlimit few = {.rlim_cur = 64, .rlim_max = 64};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
    while (count < 64 && (fds[count] = dup(0)) >= 0) count++;
    REQUIRE(count > 4);
    for (int freed = 0; freed < 4; freed++) {
        REQUIRE(klk_syncer_open(&syncer) == KLK_EOS && errno == EMFILE);
        REQUIRE(close(fds[--count]) == 0);
    }
    REQUIRE(klk_syncer_open(&syncer) == KLK_OK);
    REQUIRE(klk_syncer_close(&syncer) == KLK_OK);
    while (count > 0) REQUIRE(close(fds[--count]) == 0);
}

int main(void) {
    test_rounds();
    test_order_and_failures();
    test_fills();
    test_signals();
    test_no_pipes_left();
    return 0;
}
