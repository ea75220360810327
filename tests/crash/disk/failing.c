// LD_PRELOAD library: calls on files below a folder fail, are cut short or stall, as a plan says.
//
// KELEK_FAULT_ROOT is the folder, KELEK_FAULT_PLAN a file of one struct plan, which all processes
// map: failing.py changes it while they run. A call that the plan chooses is not made.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { READ = 1, WRITE = 2, SYNC = 4, OPEN = 8, NAME = 16, SIZE = 32 };
enum { FAIL = 1, SHORT = 2, STALL = 3 };

// The same layout as in failing.py.
struct plan {
    _Atomic uint32_t armed;
    uint32_t kinds, action;
    int32_t error;
    _Atomic int64_t skip, left;  // Calls before the first that is chosen; calls to choose.
    _Atomic uint64_t hits;
    char part[232];  // Of the path below the root; "": each.
};

static struct plan *plan;
static const char *root;
static size_t root_size;

#define REAL(name) static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("KELEK_FAULT_PLAN");
    root = getenv("KELEK_FAULT_ROOT");
    if (!path || !root) return;
    root_size = strlen(root);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    void *found = fd < 0 ? MAP_FAILED
                         : mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (found == MAP_FAILED) {
        dprintf(2, "failing: %s: %s\n", path, strerror(errno));
        abort();
    }
    syscall(SYS_close, fd);
    plan = found;
}

// What happens to a call of a kind on a path: an action, or 0.
static int chosen_path(unsigned kind, const char *path) {
    if (strncmp(path, root, root_size) || path[root_size] != '/') return 0;
    const char *below = path + root_size;
    if (strstr(below, "/logs/") || (plan->part[0] && !strstr(below, plan->part))) return 0;
    if (atomic_fetch_sub(&plan->skip, 1) > 0) return 0;
    if (atomic_fetch_sub(&plan->left, 1) <= 0) return 0;
    atomic_fetch_add(&plan->hits, 1);
    if (plan->action == STALL) {
        struct timespec turn = {0, 10000000};
        while (atomic_load(&plan->armed)) nanosleep(&turn, NULL);
        return 0;
    }
    if (plan->action == SHORT) return kind & (WRITE | READ) ? SHORT : 0;
    errno = plan->error;
    return FAIL;
}

static int is_armed(unsigned kind) {
    return plan && atomic_load(&plan->armed) && plan->kinds & kind;
}

static int chosen(unsigned kind, int fd) {
    char link[64], path[PATH_MAX];
    if (!is_armed(kind)) return 0;
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    errno = before;
    if (size < 0) return 0;
    path[size] = 0;
    return chosen_path(kind, path);
}

static int chosen_name(unsigned kind, int folder, const char *name) {
    char parent[PATH_MAX], path[2 * PATH_MAX], link[64];
    if (!is_armed(kind)) return 0;
    if (name[0] == '/') return chosen_path(kind, name);
    if (folder == AT_FDCWD) {
        if (!getcwd(parent, sizeof parent)) return 0;
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t size = readlink(link, parent, sizeof parent - 1);
        if (size < 0) return 0;
        parent[size] = 0;
    }
    snprintf(path, sizeof path, "%s/%s", parent, name);
    return chosen_path(kind, path);
}

// Bytes of one buffer: at least 1 of them when a call is cut short.
static size_t cut(size_t size) { return size > 1 ? size / 2 : size; }

#define BYTES(name, kind, cast, more_types, more)                                                  \
    ssize_t name(int fd, cast data, size_t size more_types) {                                      \
        REAL(name);                                                                                \
        int action = chosen(kind, fd);                                                             \
        return action == FAIL ? -1 : real(fd, data, action == SHORT ? cut(size) : size more);      \
    }
#define COMMA ,
BYTES(read, READ, void *, , )
BYTES(pread, READ, void *, COMMA off_t at, COMMA at)
BYTES(pread64, READ, void *, COMMA off64_t at, COMMA at)
BYTES(write, WRITE, const void *, , )
BYTES(pwrite, WRITE, const void *, COMMA off_t at, COMMA at)
BYTES(pwrite64, WRITE, const void *, COMMA off64_t at, COMMA at)

// Several buffers: a call that is cut short takes a part of the first.
#define PARTS(name, kind, more_types, more)                                                        \
    ssize_t name(int fd, const struct iovec *parts, int count more_types) {                        \
        REAL(name);                                                                                \
        int action = chosen(kind, fd);                                                             \
        struct iovec first = {count ? parts[0].iov_base : NULL,                                    \
                              count ? cut(parts[0].iov_len) : 0};                                  \
        if (action == FAIL) return -1;                                                             \
        return action == SHORT && count ? real(fd, &first, 1 more) : real(fd, parts, count more);  \
    }
PARTS(readv, READ, , )
PARTS(preadv, READ, COMMA off_t at, COMMA at)
PARTS(preadv64, READ, COMMA off64_t at, COMMA at)
PARTS(writev, WRITE, , )
PARTS(pwritev, WRITE, COMMA off_t at, COMMA at)
PARTS(pwritev64, WRITE, COMMA off64_t at, COMMA at)
PARTS(preadv2, READ, COMMA off_t at COMMA int flags, COMMA at COMMA flags)
PARTS(preadv64v2, READ, COMMA off64_t at COMMA int flags, COMMA at COMMA flags)
PARTS(pwritev2, WRITE, COMMA off_t at COMMA int flags, COMMA at COMMA flags)
PARTS(pwritev64v2, WRITE, COMMA off64_t at COMMA int flags, COMMA at COMMA flags)

#define OF_FD(name, kind, types, ...)                                                              \
    int name types {                                                                               \
        REAL(name);                                                                                \
        return chosen(kind, fd) == FAIL ? -1 : real(__VA_ARGS__);                                  \
    }
OF_FD(fsync, SYNC, (int fd), fd)
OF_FD(fdatasync, SYNC, (int fd), fd)
OF_FD(sync_file_range, SYNC, (int fd, off64_t at, off64_t size, unsigned flags), fd, at, size,
      flags)
OF_FD(ftruncate, SIZE, (int fd, off_t size), fd, size)
OF_FD(ftruncate64, SIZE, (int fd, off64_t size), fd, size)
OF_FD(fallocate, SIZE, (int fd, int mode, off_t at, off_t size), fd, mode, at, size)
OF_FD(fallocate64, SIZE, (int fd, int mode, off64_t at, off64_t size), fd, mode, at, size)

// These return the error.
#define ALLOCATE(name, offset)                                                                     \
    int name(int fd, offset at, offset size) {                                                     \
        REAL(name);                                                                                \
        return chosen(SIZE, fd) == FAIL ? plan->error : real(fd, at, size);                        \
    }
ALLOCATE(posix_fallocate, off_t)
ALLOCATE(posix_fallocate64, off64_t)

// A file that is made or written; one that is only read counts as a read.
#define OPENED(name, types, folder, ...)                                                           \
    int name types {                                                                               \
        REAL(name);                                                                                \
        mode_t mode = 0;                                                                           \
        if (flags & (O_CREAT | O_TMPFILE)) {                                                       \
            va_list rest;                                                                          \
            va_start(rest, flags);                                                                 \
            mode = va_arg(rest, mode_t);                                                           \
            va_end(rest);                                                                          \
        }                                                                                          \
        int writes = (flags & O_ACCMODE) != O_RDONLY || flags & O_CREAT;                           \
        return chosen_name(writes ? OPEN : READ, folder, path) == FAIL ? -1                        \
                                                                       : real(__VA_ARGS__, mode);  \
    }
OPENED(open, (const char *path, int flags, ...), AT_FDCWD, path, flags)
OPENED(open64, (const char *path, int flags, ...), AT_FDCWD, path, flags)
OPENED(openat, (int folder, const char *path, int flags, ...), folder, folder, path, flags)
OPENED(openat64, (int folder, const char *path, int flags, ...), folder, folder, path, flags)

#define OF_NAME(name, types, folder, path, ...)                                                    \
    int name types {                                                                               \
        REAL(name);                                                                                \
        return chosen_name(NAME, folder, path) == FAIL ? -1 : real(__VA_ARGS__);                   \
    }
OF_NAME(rename, (const char *from, const char *to), AT_FDCWD, to, from, to)
OF_NAME(renameat, (int of, const char *from, int in, const char *to), in, to, of, from, in, to)
OF_NAME(renameat2, (int of, const char *from, int in, const char *to, unsigned flags), in, to, of,
        from, in, to, flags)
OF_NAME(link, (const char *from, const char *to), AT_FDCWD, to, from, to)
OF_NAME(linkat, (int of, const char *from, int in, const char *to, int flags), in, to, of, from,
        in, to, flags)
OF_NAME(mkdir, (const char *path, mode_t mode), AT_FDCWD, path, path, mode)
OF_NAME(mkdirat, (int folder, const char *path, mode_t mode), folder, path, folder, path, mode)
OF_NAME(unlink, (const char *path), AT_FDCWD, path, path)
OF_NAME(unlinkat, (int folder, const char *path, int flags), folder, path, folder, path, flags)
