/* The cache directory is the first that is named: by the caller, ATTUNE_CACHE_DIR, XDG_CACHE_HOME or HOME. It is used
 * only if no other user can write to it. */
#define _GNU_SOURCE
#include "cache/cache_dir.h"

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

/* A path that is being walked: `dir` is what lies before `at`, free of links. */
typedef struct walk {
    const char *what; /* names the directory in messages */
    char path[PATH_MAX];
    size_t at;
    int dir; /* AT_FDCWD before the first name of a relative path */
    int links;
} walk;

/* Into a directory, whose name ends at `end`. */
static void go_to(walk *w, int dir, size_t end) {
    if (w->dir >= 0) close(w->dir);
    w->dir = dir;
    w->at = end + strspn(w->path + end, "/");
}

/* Whether the link may be followed: another user's could lead to a directory of this user that is no cache. */
static bool may_follow(const walk *w, size_t end, const struct stat *link, at_error *err) {
    if (link->st_uid == geteuid() || link->st_uid == 0) return true;
    at_fail(err, ATTUNE_IO_ERROR, "%s %.*s is a symbolic link of user %u, not of this one (%u) or root", w->what,
            (int)end, w->path, (unsigned)link->st_uid, (unsigned)geteuid());
    return false;
}

/* Puts the target of the link `fd`, whose name is from `start` to `end`, in its place. False: *err is filled, or errno
 * says why. */
static bool follow_link(walk *w, size_t start, size_t end, int fd, const struct stat *status, at_error *err) {
    enum { MOST_LINKS = 40 }; /* as many as Linux follows */
    char target[PATH_MAX], rest[PATH_MAX];
    errno = ELOOP;
    if (++w->links > MOST_LINKS || !may_follow(w, end, status, err)) return false;
    const ssize_t length = readlinkat(fd, "", target, sizeof target - 1);
    errno = length ? errno : ENOENT;
    if (length <= 0) return false;
    target[length] = '\0';
    if (*target == '/') w->at = start = 0;
    snprintf(rest, sizeof rest, "%s", w->path + end);
    errno = ENAMETOOLONG;
    return (size_t)snprintf(w->path + start, PATH_MAX - start, "%s%s", target, rest) < PATH_MAX - start;
}

/* Goes into the directory of the next name, or follows the link that it is. The first name of an absolute path, also of
 * a link's, is opened with its '/': an emulator with a root of its own looks at absolute paths only. */
static bool take_step(walk *w, const at_io *io, at_error *err) {
    char name[NAME_MAX + 2];
    struct stat status;
    const bool is_first = w->at == 0 && *w->path == '/';
    const size_t start = w->at + (is_first ? strspn(w->path, "/") : 0);
    const size_t end = start + strcspn(w->path + start, "/");
    errno = ENAMETOOLONG;
    if (end - start > NAME_MAX) return false;
    snprintf(name, sizeof name, "%s%.*s", is_first ? "/" : "", (int)(end - start), w->path + start);
    const int fd = at_io_open(io, is_first ? AT_FDCWD : w->dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0);
    if (fd < 0) return false;
    bool is_good = !at_io_stat(io, fd, &status);
    if (is_good && S_ISDIR(status.st_mode)) {
        go_to(w, fd, end);
        return true;
    }
    if (is_good) {
        errno = ENOTDIR;
        is_good = S_ISLNK(status.st_mode) && follow_link(w, start, end, fd, &status, err);
    }
    const int reason = errno;
    close(fd);
    errno = reason;
    return is_good;
}

/* Opens the directory that the path leads to, name by name, and looks at each link on the way. What stays in w->path
 * has no links as far as its directories exist. */
static int open_directory(walk *w, const at_io *io, at_error *err) {
    bool is_good = *w->path;
    errno = ENOENT;
    w->at = 0;
    w->dir = AT_FDCWD;
    w->links = 0;
    while (is_good && w->path[w->at]) is_good = take_step(w, io, err);
    const int fd = is_good ? at_io_open(io, w->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0) : -1;
    const int reason = errno;
    if (w->dir >= 0) close(w->dir);
    errno = reason;
    return fd;
}

/* `what` names the directory in messages. With a mode it is made if need be, and must be the user's own. With 0 it must
 * exist, and may be root's. */
static int open_trusted(const char *what, const char *path, mode_t mode, const at_io *io, at_error *err) {
    walk w = {.what = what};
    at_error link = {0};
    errno = ENAMETOOLONG;
    int fd = (size_t)snprintf(w.path, sizeof w.path, "%s", path) < sizeof w.path ? open_directory(&w, io, &link) : -1;
    if (fd < 0 && !link.status && errno == ENOENT && mode) {
        const int failure = make_parents(w.path, mode, io);
        if (failure) {
            at_fail(err, ATTUNE_IO_ERROR, "%s %s cannot be made: %s", what, path, strerror(failure));
            return -1;
        }
        fd = open_directory(&w, io, &link);
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
