/* System calls in, failures out: a library for LD_PRELOAD that plays full disks and file systems of clusters and containers.
 *
 * ELECTRA_FAULTS is a list of rules "call,errno,part,count,skip;...": where the path contains `part`, the call fails with that errno,
 * `count` times in each process (-1: always), after it worked `skip` times (0 if left out). A negative errno is a signal that the
 * process gets instead. Calls: fsync_folder, flock, rename_folder, rmdir, and "write" for everything that needs room on the disk.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_RULES 16
static int met[MAX_RULES]; /* calls that each rule is about, so far */

int electra_calls_met(int rule) { return met[rule]; }

/* 0: the call works; 1: it is the first one that fails; 2: one after that. */
static int fails(const char *call, const char *path) {
    const char *rules = getenv("ELECTRA_FAULTS");
    for (int number = 0; rules && *rules && number < MAX_RULES; number++) {
        char name[32], part[512];
        int error, count, skip = 0;
        if (sscanf(rules, "%31[^,],%d,%511[^,],%d,%d", name, &error, part, &count, &skip) >= 4 && !strcmp(name, call) &&
            strstr(path, part)) {
            int before = __atomic_fetch_add(&met[number], 1, __ATOMIC_SEQ_CST);
            if (before >= skip && (count < 0 || before < skip + count)) {
                if (error < 0) kill(getpid(), -error);
                errno = error;
                return before == skip ? 1 : 2;
            }
        }
        rules = strchr(rules, ';');
        rules = rules ? rules + 1 : NULL;
    }
    return 0;
}

static void path_of(int handle, const char *name, char *path) {
    char link[64];
    ssize_t size = 0;
    int before = errno;
    if (handle != AT_FDCWD && !(name && *name == '/')) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
        size = readlink(link, path, PATH_MAX - 1);
        size = size < 0 ? 0 : size;
    }
    path[size] = 0;
    if (name) snprintf(path + size, PATH_MAX - size, "%s%s", size ? "/" : "", name);
    errno = before;
}

static int has_mode(const char *path, mode_t kind) {
    struct stat about;
    int before = errno, found = lstat(path, &about) == 0 && (about.st_mode & S_IFMT) == kind;
    errno = before;
    return found;
}

static int exists(const char *path) {
    int before = errno, found = access(path, F_OK) == 0;
    errno = before;
    return found;
}

static int needs_mode(int flags) { return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE; }

#define NEXT(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

static int fails_at(int handle) {
    char path[PATH_MAX];
    path_of(handle, NULL, path);
    return fails("write", path);
}

static int fails_to_create(int folder, const char *name) {
    char path[PATH_MAX];
    path_of(folder, name, path);
    return !exists(path) && fails("write", path);
}

/* Room on the disk: the first write that does not fit is half done, as a real one. */

ssize_t write(int handle, const void *content, size_t size) {
    int how = fails_at(handle);
    if (how == 2 || (how == 1 && size < 2)) return -1;
    return NEXT(ssize_t, "write", int, const void *, size_t)(handle, content, how ? size / 2 : size);
}

ssize_t writev(int handle, const struct iovec *parts, int number) {
    if (fails_at(handle)) return -1;
    return NEXT(ssize_t, "writev", int, const struct iovec *, int)(handle, parts, number);
}

#define PWRITE(name)                                                                             \
    ssize_t name(int handle, const void *content, size_t size, off_t place) {                    \
        if (fails_at(handle)) return -1;                                                         \
        return NEXT(ssize_t, #name, int, const void *, size_t, off_t)(handle, content, size, place); \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define TRUNCATE(name)                                       \
    int name(int handle, off_t size) {                       \
        if (fails_at(handle)) return -1;                     \
        return NEXT(int, #name, int, off_t)(handle, size);   \
    }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

#define SENDFILE(name)                                                              \
    ssize_t name(int target, int source, off_t *place, size_t size) {               \
        if (fails_at(target)) return -1;                                            \
        return NEXT(ssize_t, #name, int, int, off_t *, size_t)(target, source, place, size); \
    }
SENDFILE(sendfile)
SENDFILE(sendfile64)

#define OPEN(name)                                                        \
    int name(const char *path, int flags, ...) {                          \
        va_list more;                                                     \
        va_start(more, flags);                                            \
        int mode = needs_mode(flags) ? va_arg(more, int) : 0; \
        va_end(more);                                                     \
        if ((flags & O_CREAT) && fails_to_create(AT_FDCWD, path)) return -1; \
        return NEXT(int, #name, const char *, int, ...)(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                      \
    int name(int folder, const char *path, int flags, ...) {              \
        va_list more;                                                     \
        va_start(more, flags);                                            \
        int mode = needs_mode(flags) ? va_arg(more, int) : 0; \
        va_end(more);                                                     \
        if ((flags & O_CREAT) && fails_to_create(folder, path)) return -1; \
        return NEXT(int, #name, int, const char *, int, ...)(folder, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

int mkdir(const char *path, mode_t mode) {
    if (fails_to_create(AT_FDCWD, path)) return -1;
    return NEXT(int, "mkdir", const char *, mode_t)(path, mode);
}

/* What file systems do not have. */

int fsync(int handle) {
    char path[PATH_MAX];
    path_of(handle, NULL, path);
    if (has_mode(path, S_IFDIR) && fails("fsync_folder", path)) return -1;
    if (has_mode(path, S_IFREG) && fails("write", path)) return -1;
    return NEXT(int, "fsync", int)(handle);
}

int flock(int handle, int operation) {
    char path[PATH_MAX];
    path_of(handle, NULL, path);
    if (fails("flock", path)) return -1;
    return NEXT(int, "flock", int, int)(handle, operation);
}

int rename(const char *from, const char *to) {
    if (has_mode(from, S_IFDIR) && fails("rename_folder", from)) return -1;
    return NEXT(int, "rename", const char *, const char *)(from, to);
}

int rmdir(const char *path) {
    if (fails("rmdir", path)) return -1;
    return NEXT(int, "rmdir", const char *)(path);
}

int unlinkat(int handle, const char *name, int flags) {
    char path[PATH_MAX];
    path_of(handle, name, path);
    if ((flags & AT_REMOVEDIR) && fails("rmdir", path)) return -1;
    return NEXT(int, "unlinkat", int, const char *, int)(handle, name, flags);
}
