/* System calls in, failures out: a library for LD_PRELOAD that plays file systems of clusters and containers.
 *
 * ELECTRA_FAULTS is a list of rules "call,errno,part,count;...": the call fails with that errno where the path contains `part`,
 * `count` times in each process (-1: always). Calls: fsync_folder, flock, rename_folder, rmdir.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_RULES 16
static int done[MAX_RULES];

static int fails(const char *call, const char *path) {
    const char *rules = getenv("ELECTRA_FAULTS");
    for (int number = 0; rules && *rules && number < MAX_RULES; number++) {
        char name[32], part[128];
        int error, count;
        if (sscanf(rules, "%31[^,],%d,%127[^,],%d", name, &error, part, &count) == 4 && !strcmp(name, call) &&
            strstr(path, part) && (count < 0 || done[number] < count)) {
            done[number]++;
            errno = error;
            return 1;
        }
        rules = strchr(rules, ';');
        rules = rules ? rules + 1 : NULL;
    }
    return 0;
}

static void path_of(int handle, const char *name, char *path) {
    char link[64];
    ssize_t size = 0;
    if (handle != AT_FDCWD && !(name && *name == '/')) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
        size = readlink(link, path, PATH_MAX - 1);
        size = size < 0 ? 0 : size;
    }
    path[size] = 0;
    if (name) snprintf(path + size, PATH_MAX - size, "%s%s", size ? "/" : "", name);
}

static int is_folder(const char *path) {
    struct stat about;
    int before = errno, found = lstat(path, &about) == 0 && S_ISDIR(about.st_mode);
    errno = before;
    return found;
}

#define NEXT(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

int fsync(int handle) {
    char path[PATH_MAX];
    path_of(handle, NULL, path);
    if (is_folder(path) && fails("fsync_folder", path)) return -1;
    return NEXT(int, "fsync", int)(handle);
}

int flock(int handle, int operation) {
    char path[PATH_MAX];
    path_of(handle, NULL, path);
    if (fails("flock", path)) return -1;
    return NEXT(int, "flock", int, int)(handle, operation);
}

int rename(const char *from, const char *to) {
    if (is_folder(from) && fails("rename_folder", from)) return -1;
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
