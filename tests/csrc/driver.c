/* Drives a fuzz target: its seeds and the inputs that once failed, then mutations of all inputs
 * that reached a new branch (if csrc/ is compiled with -fsanitize-coverage=trace-pc; else of its
 * seeds).
 *
 *   TARGET SECONDS SEED FAILURE [FILE...]
 *
 * FILE..: inputs to run first. An input that ends the process, or takes INPUT_S, is in FAILURE. */
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"

enum { CORPUS_MAX = 4096, MAP_BITS = 16, INPUT_S = 10, ROUNDS_A_LOOK = 64 };

void __sanitizer_set_death_callback(void (*callback)(void));
void __sanitizer_cov_trace_pc(void);

static struct {
    uint8_t *data;
    size_t size;
} corpus[CORPUS_MAX];
static uint32_t corpus_count, dice;
static uint8_t map[1 << MAP_BITS], seen[1 << MAP_BITS];
static uint32_t reached[1 << 12], reached_count; /* bytes of map that this input has set */
static const uint8_t *input;
static size_t input_size;
static const char *failure_path;

/* GCC and clang call it in each basic block. */
void __sanitizer_cov_trace_pc(void) {
    uint64_t place = (uint64_t)__builtin_return_address(0) * 0x9e3779b97f4a7c15u;
    uint32_t at = (uint32_t)(place >> (64 - MAP_BITS));
    if (!map[at] && reached_count < sizeof reached / sizeof *reached) reached[reached_count++] = at;
    if (map[at] < 255) map[at]++;
}

static void failure_write(void) {
    FILE *file = fopen(failure_path, "wb");
    if (!file) return;
    fwrite(input, 1, input_size, file);
    fclose(file);
}

static void on_alarm(int number) {
    static const char text[] = "the input takes too long\n";
    (void)number;
    failure_write();
    if (write(2, text, sizeof text - 1) < 0) _exit(3);
    _exit(2);
}

/* A class of counts: 1, 2, 3, 4-7, 8-31, more. */
static uint8_t count_class(uint8_t count) {
    return (uint8_t)(count < 4 ? 1u << count : count < 8 ? 16u : count < 32 ? 32u : 64u);
}

/* Runs an input of exactly its size; returns whether it reached anything new. */
static int run(const uint8_t *data, size_t size) {
    uint8_t *copy = exact_copy(data, size);
    int is_new = 0;
    input = copy;
    input_size = size;
    reached_count = 0;
    LLVMFuzzerTestOneInput(copy, size);
    for (uint32_t i = 0; i < reached_count; i++) {
        uint8_t class = count_class(map[reached[i]]);
        is_new |= (seen[reached[i]] & class) != class;
        seen[reached[i]] |= class;
        map[reached[i]] = 0;
    }
    input = NULL;
    input_size = 0;
    free(copy);
    return is_new;
}

static void keep(const uint8_t *data, size_t size) {
    if (corpus_count == CORPUS_MAX) return;
    corpus[corpus_count].data = exact_copy(data, size);
    corpus[corpus_count++].size = size;
}

static uint32_t below(size_t count) { return next_random(&dice) % (uint32_t)count; }

static void number_put(uint8_t *at, size_t room) {
    static const uint64_t numbers[] = {0, 1, 7, 8, 16, 0x7f, 0x80, 0xff, 0x100, 4096, 0x7fff,
                                       0xffff, 1 << 20, 0x7fffffff, 0x80000000u, 0xffffffffu,
                                       (1ull << 53) - 1, 1ull << 53, UINT64_MAX};
    uint64_t value = numbers[below(sizeof numbers / sizeof *numbers)] + below(3) - 1;
    static const size_t widths[] = {1, 2, 4, 8};
    size_t width = widths[below(4)];
    int big = below(2) != 0;
    for (size_t i = 0; i < width && i < room; i++)
        at[i] = (uint8_t)(value >> 8 * (big ? width - 1 - i : i));
}

/* Makes room for, or takes away, count bytes at a place. Returns the new size. */
static size_t resize(uint8_t *data, size_t size, size_t at, size_t count, int grows) {
    if (grows) {
        if (size + count > FUZZ_INPUT_MAX) return size;
        memmove(data + at + count, data + at, size - at);
        return size + count;
    }
    if (count > size - at) count = size - at;
    memmove(data + at, data + at + count, size - at - count);
    return size - count;
}

static size_t mutate(uint8_t *data, size_t size) {
    uint32_t other = below(corpus_count);
    size_t at = size ? below(size) : 0, count = 1 + below(below(8) ? 8 : 64);
    switch (size ? below(8) : 4) {
    case 0: data[at] ^= (uint8_t)(1u << below(8)); break;
    case 1: data[at] = (uint8_t)next_random(&dice); break;
    case 2: number_put(data + at, size - at); break;
    case 3: return resize(data, size, at, count, 0);
    case 4: { /* Bytes of its own or random ones, once more. */
        size_t grown = resize(data, size, at, count, 1), from = grown - below(grown ? grown : 1);
        if (grown > size)
            for (size_t i = 0; i < count; i++)
                data[at + i] = from + i < grown ? data[from + i] : (uint8_t)next_random(&dice);
        return grown;
    }
    case 5: data[at] = (uint8_t)(data[at] + below(9) - 4); break;
    case 6: { /* A part of another input in its place. */
        size_t left = corpus[other].size;
        if (!left) break;
        size_t from = below(left);
        for (size_t i = 0; i < count && at + i < size && from + i < left; i++)
            data[at + i] = corpus[other].data[from + i];
        break;
    }
    default: { /* The rest of another input. */
        size_t left = corpus[other].size;
        size_t from = left ? below(left) : 0;
        left -= from;
        if (at + left > FUZZ_INPUT_MAX) left = FUZZ_INPUT_MAX - at;
        if (left) memcpy(data + at, corpus[other].data + from, left);
        return at + left;
    }
    }
    return size;
}

static void corpus_load(char **files) {
    uint8_t data[FUZZ_INPUT_MAX];
    size_t size;
    for (uint32_t number = 0; (size = fuzz_seed(number, data)) > 0; number++) {
        run(data, size);
        keep(data, size);
    }
    REQUIRE(corpus_count);
    for (; *files; files++) {
        FILE *file = fopen(*files, "rb");
        REQUIRE(file);
        size = fread(data, 1, sizeof data, file);
        fclose(file);
        run(data, size);
        keep(data, size);
    }
}

int main(int count, char **arguments) {
    static uint8_t data[FUZZ_INPUT_MAX];
    REQUIRE(count >= 4);
    time_t end = time(NULL) + atoi(arguments[1]);
    dice = (uint32_t)atoi(arguments[2]) | 1u;
    failure_path = arguments[3];
    __sanitizer_set_death_callback(failure_write);
    signal(SIGALRM, on_alarm);
    corpus_load(arguments + 4);
    uint64_t runs = corpus_count;
    uint32_t seeds = corpus_count;
    for (;;) {
        if (runs % ROUNDS_A_LOOK == 0) {
            if (time(NULL) >= end) break;
            alarm(INPUT_S);
        }
        uint32_t from = below(corpus_count);
        size_t size = corpus[from].size;
        memcpy(data, corpus[from].data, size);
        for (uint32_t i = 1 + below(6); i > 0; i--) size = mutate(data, size);
        if (run(data, size)) keep(data, size);
        runs++;
    }
    uint32_t places = 0;
    for (uint32_t i = 0; i < sizeof seen; i++) places += seen[i] != 0;
    printf("%llu inputs, %u seeds, %u kept, %u places\n", (unsigned long long)runs, seeds,
           corpus_count - seeds, places);
    return 0;
}
