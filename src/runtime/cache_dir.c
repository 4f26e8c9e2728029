#define _GNU_SOURCE
#include "runtime/cache_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
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

attune_status at_cache_base_path(const char *base, char *path, size_t capacity, at_error *err) {
    path[0] = '\0';
    if (getauxval(AT_SECURE)) return ATTUNE_OK;
    if (!base) base = secure_getenv("ATTUNE_CACHE_BASE");
    return base ? join(path, capacity, base, "", err) : ATTUNE_OK;
}

attune_status at_cache_pack_path(const char *pack, char *path, size_t capacity, at_error *err) {
    path[0] = '\0';
    if (getauxval(AT_SECURE)) return ATTUNE_OK;
    if (!pack) pack = secure_getenv("ATTUNE_CACHE_PACK");
    return pack ? join(path, capacity, pack, "", err) : ATTUNE_OK;
}

void at_cache_dir_from_root(const char *path, char *from_root, size_t capacity) {
    from_root[0] = '\0';
    if (!*path) return;
    if (*path != '/' && (!getcwd(from_root, capacity) || *from_root != '/')) {
        from_root[0] = '\0'; /* a working directory that was removed, or is out of reach */
        return;
    }
    const size_t length = strlen(from_root);
    if ((size_t)snprintf(from_root + length, capacity - length, "%s%s", length ? "/" : "", path) >= capacity - length)
        from_root[0] = '\0';
}

/* mkdir -p. 0, or the errno of making the directory itself. */
static int make_parents(const char *path, mode_t mode, const at_io *io) {
    char part[4096];
    const size_t length = strlen(path);
    int failure = 0;
    if (length >= sizeof part) return ENAMETOOLONG;
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        memcpy(part, path, i);
        part[i] = '\0';
        do failure = io->mkdir(part, mode) && errno != EEXIST ? errno : 0;
        while (failure == EINTR);
    }
    return failure;
}

/* Replaces the path of a link by its target. False: it is no link, or one not to follow. Then *err is filled, or errno
 * says why. */
static bool follow_link(const char *what, char path[PATH_MAX], const at_io *io, at_error *err) {
    char target[PATH_MAX];
    struct stat status;
    const int fd = at_io_open(io, AT_FDCWD, path, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0);
    if (fd < 0) return false;
    ssize_t length = -1;
    if (at_io_stat(io, fd, &status))
        length = -1;
    else if (!S_ISLNK(status.st_mode))
        errno = ENOTDIR;
    else if (status.st_uid != geteuid() && status.st_uid != 0)
        at_fail(err, ATTUNE_IO_ERROR, "%s %s is a symbolic link of user %u, not of this one (%u) or root", what, path,
                (unsigned)status.st_uid, (unsigned)geteuid());
    else
        length = readlinkat(fd, "", target, sizeof target - 1);
    const int reason = errno;
    close(fd);
    errno = reason;
    if (length < 0) return false;
    target[length] = '\0';
    const char *const slash = strrchr(path, '/');
    const size_t before = *target == '/' || !slash ? 0 : (size_t)(slash - path) + 1;
    errno = ENAMETOOLONG;
    return (size_t)snprintf(path + before, PATH_MAX - before, "%s", target) < PATH_MAX - before;
}

/* Opens the directory that a path leads to. Each link is looked at on the way. `path` becomes the directory's own. */
static int open_directory(const char *what, char path[PATH_MAX], const at_io *io, at_error *err) {
    enum { MOST_LINKS = 16 };
    for (int links = 0;; links++) {
        /* A slash at the end would follow a link unseen. */
        for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--) path[n - 1] = '\0';
        const int fd = at_io_open(io, AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
        if (fd >= 0 || (errno != ELOOP && errno != ENOTDIR)) return fd;
        errno = ELOOP;
        if (links == MOST_LINKS || !follow_link(what, path, io, err)) return -1;
    }
}

/* `what` names the directory in messages. With a mode it is made if need be, and must be the user's own. With 0 it must
 * exist, and may be root's. */
static int open_trusted(const char *what, const char *path, mode_t mode, const at_io *io, at_error *err) {
    char real[PATH_MAX];
    at_error link = {0};
    errno = ENAMETOOLONG;
    int fd = (size_t)snprintf(real, sizeof real, "%s", path) < sizeof real ? open_directory(what, real, io, &link) : -1;
    if (fd < 0 && !link.status && errno == ENOENT && mode) {
        const int failure = make_parents(real, mode, io);
        if (failure) {
            at_fail(err, ATTUNE_IO_ERROR, "%s %s cannot be made: %s", what, path, strerror(failure));
            return -1;
        }
        fd = open_directory(what, real, io, &link);
    }
    if (fd < 0) {
        if (link.status)
            at_fail(err, ATTUNE_IO_ERROR, "%s", link.message);
        else
            at_fail(err, ATTUNE_IO_ERROR, "%s %s cannot be opened: %s", what, path, strerror(errno));
        return -1;
    }
    struct stat status;
    if (at_io_stat(io, fd, &status)) {
        at_fail(err, ATTUNE_IO_ERROR, "%s %s cannot be examined: %s", what, path, strerror(errno));
    } else if (status.st_uid != geteuid() && (mode || status.st_uid != 0)) {
        at_fail(err, ATTUNE_IO_ERROR, "%s %s belongs to user %u, not to this one (%u)%s", what, path,
                (unsigned)status.st_uid, (unsigned)geteuid(), mode ? "" : " or root");
    } else if (status.st_mode & 022) {
        at_fail(err, ATTUNE_IO_ERROR, "%s %s can be written by others (mode %04o)", what, path,
                (unsigned)status.st_mode & 07777);
    } else {
        return fd;
    }
    close(fd);
    return -1;
}

int at_cache_dir_open(const char *path, const at_io *io, at_error *err) {
    return open_trusted("the cache directory", path, 0700, io, err);
}

int at_cache_dir_open_shared(const char *path, const at_io *io, at_error *err) {
    return open_trusted("the directory", path, 0755, io, err);
}

int at_cache_dir_open_foreign(const char *path, const at_io *io, at_error *err) {
    return open_trusted("the directory", path, 0, io, err);
}
