#define _GNU_SOURCE
#include "runtime/cache_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static attune_status join(char *path, size_t capacity, const char *base, const char *below, at_error *err) {
    if ((size_t)snprintf(path, capacity, "%s%s", base, below) < capacity) return ATTUNE_OK;
    path[0] = '\0';
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the path of the cache directory is too long: %.64s…", base);
}

attune_status at_cache_dir_path(const char *dir, char *path, size_t capacity, at_error *err) {
    path[0] = '\0';
    if (getauxval(AT_SECURE)) return ATTUNE_OK;
    if (dir) return join(path, capacity, dir, "", err);
    const char *own = secure_getenv("ATTUNE_CACHE_DIR");
    if (own) return join(path, capacity, own, "", err);
    const char *xdg = secure_getenv("XDG_CACHE_HOME");
    /* The XDG specification says to ignore a relative path here. */
    if (xdg && xdg[0] == '/') return join(path, capacity, xdg, "/attune", err);
    const char *home = secure_getenv("HOME");
    if (home && home[0] == '/') return join(path, capacity, home, "/.cache/attune", err);
    return ATTUNE_OK;
}

/* mkdir -p; what exists is left alone. 0, or what kept the directory itself from being made. */
static int make_parents(const char *path, const at_io *io) {
    char part[4096];
    const size_t length = strlen(path);
    int failure = 0;
    if (length >= sizeof part) return ENAMETOOLONG;
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        memcpy(part, path, i);
        part[i] = '\0';
        failure = io->mkdir(part, 0700) && errno != EEXIST ? errno : 0;
    }
    return failure;
}

int at_cache_dir_open(const char *path, const at_io *io, at_error *err) {
    const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int fd = io->openat(AT_FDCWD, path, flags, 0);
    if (fd < 0 && errno == ENOENT) {
        const int failure = make_parents(path, io);
        if (failure) {
            at_fail(err, ATTUNE_IO_ERROR, "the cache directory %s cannot be made: %s", path, strerror(failure));
            return -1;
        }
        fd = io->openat(AT_FDCWD, path, flags, 0);
    }
    if (fd < 0) {
        at_fail(err, ATTUNE_IO_ERROR, "the cache directory %s cannot be opened: %s", path, strerror(errno));
        return -1;
    }
    struct stat status;
    if (io->fstat(fd, &status)) {
        at_fail(err, ATTUNE_IO_ERROR, "the cache directory %s cannot be examined: %s", path, strerror(errno));
    } else if (status.st_uid != geteuid()) {
        at_fail(err, ATTUNE_IO_ERROR, "the cache directory %s belongs to user %u, not to this one (%u)", path,
                (unsigned)status.st_uid, (unsigned)geteuid());
    } else if (status.st_mode & 022) {
        at_fail(err, ATTUNE_IO_ERROR, "the cache directory %s can be written by others (mode %04o)", path,
                (unsigned)status.st_mode & 07777);
    } else {
        return fd;
    }
    close(fd);
    return -1;
}
