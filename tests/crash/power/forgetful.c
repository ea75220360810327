// LD_PRELOAD library: notes how to undo what is written below a folder and not synced yet.
//
// The page cache outlives killed processes, so SIGKILL loses nothing that was written. Before each
// change below KELEK_POWER_ROOT this library appends to a file in KELEK_POWER_UNDO what the change
// replaces, and after each sync, that all changes before it are durable. forgetful.py takes back
// what no sync covers: then the folder is as a power loss may leave it.
//
// One note file for each changed inode and process, notes/INODE.PID; directories/INODE.PID for
// names in a directory. Each note is written at once with one write(): a killed process leaves
// whole notes or a last one that is cut. A file that loses its last name is kept as kept/STAMP.
// With KELEK_POWER_LIES no sync makes anything durable.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, CREATE = 3, REMOVE = 4, RENAME = 5, MAKE = 6 };

// All integers are of this machine; forgetful.py reads them with the same layout.
struct note {
    uint32_t kind, size;  // Of the bytes that follow.
    uint64_t stamp;       // Nanoseconds. SYNC: when the sync began.
    uint64_t offset, length, old_size;  // Of a write.
};

static const char *root, *undo;
static size_t root_size;
static int lies;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name)

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }

__attribute__((constructor)) static void begin(void) {
    root = getenv("KELEK_POWER_ROOT");
    undo = getenv("KELEK_POWER_UNDO");
    lies = getenv("KELEK_POWER_LIES") != NULL;
    root_size = root && undo ? strlen(root) : 0;
    pthread_atfork(before_fork, after_fork, after_fork);
}

static void give_up(const char *what) {
    dprintf(2, "forgetful: %s: %s\n", what, strerror(errno));
    abort();
}

static uint64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000 + (uint64_t)at.tv_nsec;
}

// The whole path without a final symbolic link's target; 0: not below the root.
static int within(int folder, const char *name, char path[static PATH_MAX]) {
    if (!root_size) return 0;
    char parent[PATH_MAX], link[64];
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
    } else {
        if (folder == AT_FDCWD) {
            if (!getcwd(parent, sizeof parent)) return 0;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
            ssize_t size = readlink(link, parent, sizeof parent - 1);
            if (size < 0) return 0;
            parent[size] = 0;
        }
        if (snprintf(path, PATH_MAX, "%s/%s", parent, name) >= PATH_MAX) return 0;
    }
    return !strncmp(path, root, root_size) && path[root_size] == '/';
}

// Whether a descriptor is a file (or directory) below the root.
static int tracked(int fd, struct stat *found) {
    char link[64], path[PATH_MAX];
    if (!root_size || syscall(SYS_newfstatat, fd, "", found, AT_EMPTY_PATH)) return 0;
    if (!S_ISREG(found->st_mode) && !S_ISDIR(found->st_mode)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < (ssize_t)root_size) return 0;
    path[size] = 0;
    return !strncmp(path, root, root_size) && (path[root_size] == '/' || !path[root_size]);
}

static void append(const char *folder, ino_t inode, struct note *note, const void *data) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s/%lu.%d", undo, folder, (unsigned long)inode, getpid());
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0600);
    if (fd < 0) give_up(path);
    struct iovec parts[2] = {{note, sizeof *note}, {(void *)data, note->size}};
    if (syscall(SYS_writev, fd, parts, 2) != (long)(sizeof *note + note->size)) give_up(path);
    syscall(SYS_close, fd);
}

// Notes the bytes that a write at [offset, offset + size) replaces, and the size of the file.
static void note_write(int fd, const struct stat *found, uint64_t offset, uint64_t size) {
    uint64_t old_size = (uint64_t)found->st_size;
    uint64_t end = offset + size < old_size ? offset + size : old_size;
    uint32_t held = offset < end ? (uint32_t)(end - offset) : 0;
    char *old = held ? malloc(held) : NULL;
    if (held) {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        int reader = (int)syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
        if (reader < 0 || !old || pread(reader, old, held, (off_t)offset) != held) give_up(link);
        syscall(SYS_close, reader);
    }
    struct note note = {WRITE, held, now(), offset, size, old_size};
    append("notes", found->st_ino, &note, old);
    free(old);
}

static uint64_t place_of(int fd, const struct stat *found) {
    int flags = fcntl(fd, F_GETFL);
    return flags & O_APPEND ? (uint64_t)found->st_size : (uint64_t)lseek(fd, 0, SEEK_CUR);
}

static uint64_t sum(const struct iovec *parts, int count) {
    uint64_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    return size;
}

// A change of a file's content: noted, then made, without another one of this process between.
#define CHANGE(fd, offset, size, call)                       \
    struct stat found;                                       \
    if (!tracked(fd, &found)) return call;                   \
    pthread_mutex_lock(&lock);                               \
    tracked(fd, &found);                                     \
    note_write(fd, &found, offset, size);                    \
    __typeof__(call) done = call;                            \
    int problem = errno;                                     \
    pthread_mutex_unlock(&lock);                             \
    errno = problem;                                         \
    return done

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    CHANGE(fd, place_of(fd, &found), size, real(fd, data, size));
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(writev);
    CHANGE(fd, place_of(fd, &found), sum(parts, count), real(fd, parts, count));
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    REAL(pwrite);
    CHANGE(fd, (uint64_t)offset, size, real(fd, data, size, offset));
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    return pwrite(fd, data, size, offset);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    REAL(pwritev);
    CHANGE(fd, (uint64_t)offset, sum(parts, count), real(fd, parts, count, offset));
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) {
    return pwritev(fd, parts, count, offset);
}

// The bytes between two sizes, if the new one is smaller.
static uint64_t less(off_t old_size, off_t size) {
    return old_size > size ? (uint64_t)(old_size - size) : 0;
}

int ftruncate(int fd, off_t size) {
    REAL(ftruncate);
    CHANGE(fd, (uint64_t)size, less(found.st_size, size), real(fd, size));
}

int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

int posix_fallocate(int fd, off_t offset, off_t size) {
    REAL(posix_fallocate);
    CHANGE(fd, (uint64_t)offset + (uint64_t)size, 0, real(fd, offset, size));
}

int posix_fallocate64(int fd, off64_t offset, off64_t size) {
    return posix_fallocate(fd, offset, size);
}

int fallocate(int fd, int mode, off_t offset, off_t size) {
    REAL(fallocate);
    struct stat it;
    if (mode & ~FALLOC_FL_KEEP_SIZE && tracked(fd, &it)) {
        errno = EOPNOTSUPP;  // It would change bytes.
        return -1;
    }
    CHANGE(fd, (uint64_t)offset + (uint64_t)size, 0, real(fd, mode, offset, size));
}

int fallocate64(int fd, int mode, off64_t offset, off64_t size) {
    return fallocate(fd, mode, offset, size);
}

// Copies within the kernel are not noted: callers fall back to read and write.
ssize_t sendfile(int out, int in, off_t *offset, size_t size) {
    REAL(sendfile);
    struct stat found;
    if (!tracked(out, &found)) return real(out, in, offset, size);
    errno = ENOTSOCK;
    return -1;
}

ssize_t sendfile64(int out, int in, off64_t *offset, size_t size) {
    return sendfile(out, in, (off_t *)offset, size);
}

static int synced(int fd, int (*real)(int)) {
    struct stat found;
    if (!tracked(fd, &found)) return real(fd);
    struct note note = {SYNC, 0, now(), 0, 0, 0};
    int done = real(fd), problem = errno;
    if (!done && !lies) {
        append(S_ISDIR(found.st_mode) ? "directories" : "notes", found.st_ino, &note, NULL);
    }
    errno = problem;
    return done;
}

int fsync(int fd) {
    REAL(fsync);
    return synced(fd, real);
}

int fdatasync(int fd) {
    REAL(fdatasync);
    return synced(fd, real);
}

// ---- names ----

static ino_t folder_of(const char *path) {
    char folder[PATH_MAX];
    struct stat found;
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = 0;
    if (stat(folder, &found)) give_up(folder);
    return found.st_ino;
}

// name: a path, or two with a NUL between them. is_kept: under which stamp a file is kept
static void note_name(uint32_t kind, const char *path, const char *name, size_t size,
                      uint64_t stamp, int is_kept) {
    struct note note = {kind, (uint32_t)size, stamp, (uint64_t)is_kept, 0, 0};
    append("directories", folder_of(path), &note, name);
}

// Gives a file another name before it loses this one. Returns whether there was one.
static int keep(const char *path, uint64_t stamp) {
    char kept[PATH_MAX];
    struct stat found;
    if (lstat(path, &found)) return 0;
    if (!S_ISREG(found.st_mode)) return 0;
    snprintf(kept, sizeof kept, "%s/kept/%lu", undo, (unsigned long)stamp);
    if (syscall(SYS_linkat, AT_FDCWD, path, AT_FDCWD, kept, 0)) give_up(path);
    return 1;
}

static int opened(int folder, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    int creates = (flags & O_CREAT) && within(folder, name, path);
    int cuts = (flags & O_TRUNC) && within(folder, name, path);
    if (!creates && !cuts) return (int)syscall(SYS_openat, folder, name, flags, mode);
    pthread_mutex_lock(&lock);
    int is_new = access(path, F_OK) != 0;
    int fd = (int)syscall(SYS_openat, folder, name, flags & ~O_TRUNC, mode), problem = errno;
    if (fd >= 0 && is_new) {
        note_name(CREATE, path, path, strlen(path), now(), 0);
    } else if (fd >= 0 && cuts) {
        struct stat found;
        if (tracked(fd, &found) && found.st_size) {
            note_write(fd, &found, 0, (uint64_t)found.st_size);
            if (syscall(SYS_ftruncate, fd, 0)) give_up(path);
        }
    }
    pthread_mutex_unlock(&lock);
    errno = problem;
    return fd;
}

#define MODE(flags)                                     \
    mode_t mode = 0;                                    \
    if ((flags) & (O_CREAT | O_TMPFILE)) {              \
        va_list list;                                   \
        va_start(list, flags);                          \
        mode = (mode_t)va_arg(list, unsigned);          \
        va_end(list);                                   \
    }

int open(const char *name, int flags, ...) {
    MODE(flags);
    return opened(AT_FDCWD, name, flags, mode);
}

int open64(const char *name, int flags, ...) {
    MODE(flags);
    return opened(AT_FDCWD, name, flags, mode);
}

int openat(int folder, const char *name, int flags, ...) {
    MODE(flags);
    return opened(folder, name, flags, mode);
}

int openat64(int folder, const char *name, int flags, ...) {
    MODE(flags);
    return opened(folder, name, flags, mode);
}

int unlinkat(int folder, const char *name, int flags) {
    char path[PATH_MAX];
    if (!within(folder, name, path)) return (int)syscall(SYS_unlinkat, folder, name, flags);
    pthread_mutex_lock(&lock);
    uint64_t stamp = now();
    int kept = keep(path, stamp);
    ino_t parent = folder_of(path);
    int done = (int)syscall(SYS_unlinkat, folder, name, flags), problem = errno;
    if (!done) {
        struct note note = {REMOVE, (uint32_t)strlen(path), stamp, (uint64_t)kept, 0, 0};
        append("directories", parent, &note, path);
    }
    pthread_mutex_unlock(&lock);
    errno = problem;
    return done;
}

int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    char names[2 * PATH_MAX], target[PATH_MAX];
    if (!within(to_folder, to, target) || !within(from_folder, from, names)) {
        return (int)syscall(SYS_renameat, from_folder, from, to_folder, to);
    }
    pthread_mutex_lock(&lock);
    size_t first = strlen(names) + 1, second = strlen(target);
    memcpy(names + first, target, second);
    uint64_t stamp = now();
    int kept = keep(target, stamp);
    int done = (int)syscall(SYS_renameat, from_folder, from, to_folder, to), problem = errno;
    if (!done) note_name(RENAME, target, names, first + second, stamp, kept);
    pthread_mutex_unlock(&lock);
    errno = problem;
    return done;
}

int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    char path[PATH_MAX];
    int done = (int)syscall(SYS_linkat, from_folder, from, to_folder, to, flags), problem = errno;
    if (!done && within(to_folder, to, path)) {
        pthread_mutex_lock(&lock);
        note_name(CREATE, path, path, strlen(path), now(), 0);
        pthread_mutex_unlock(&lock);
    }
    errno = problem;
    return done;
}

int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int mkdirat(int folder, const char *name, mode_t mode) {
    char path[PATH_MAX];
    int done = (int)syscall(SYS_mkdirat, folder, name, mode), problem = errno;
    if (!done && within(folder, name, path)) {
        pthread_mutex_lock(&lock);
        note_name(MAKE, path, path, strlen(path), now(), 0);
        pthread_mutex_unlock(&lock);
    }
    errno = problem;
    return done;
}

int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }
