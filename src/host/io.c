/* The real system calls, with descriptors moved above those of stdin, stdout and stderr, and whole reads and writes on
 * top of the table. */
#define _GNU_SOURCE
#include "host/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- Signals ---- */

at_held_signals at_hold_signals(void) {
    at_held_signals held;
    sigset_t both, pending;
    const int reason = errno;
    sigemptyset(&both);
    sigaddset(&both, SIGXFSZ);
    sigaddset(&both, SIGPIPE);
    held.own = both;
    sigpending(&pending); /* the host's own: it stays pending */
    if (sigismember(&pending, SIGXFSZ)) sigdelset(&held.own, SIGXFSZ);
    if (sigismember(&pending, SIGPIPE)) sigdelset(&held.own, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &both, &held.before);
    errno = reason;
    return held;
}

void at_release_signals(at_held_signals *held) {
    static const struct timespec now = {0};
    const int reason = errno;
    while (sigtimedwait(&held->own, NULL, &now) > 0 || errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &held->before, NULL);
    errno = reason;
}

/* ---- The real calls ---- */

/* Moves a new descriptor above those of stdin, stdout and stderr. */
static int above_stdio(int fd) {
    if (fd < 0 || fd > STDERR_FILENO) return fd;
    const int higher = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), reason = errno;
    close(fd);
    errno = reason;
    return higher;
}

/* openat is variadic in libc, so it needs a function of the table's type. */
static int real_openat(int dir, const char *path, int flags, mode_t mode) {
    return above_stdio(openat(dir, path, flags, mode));
}

static int real_memfd_create(const char *name, unsigned flags) { return above_stdio(memfd_create(name, flags)); }

static int real_socketpair(int domain, int type, int protocol, int fds[2]) {
    if (socketpair(domain, type, protocol, fds)) return -1;
    fds[0] = above_stdio(fds[0]);
    fds[1] = above_stdio(fds[1]);
    if (fds[0] >= 0 && fds[1] >= 0) return 0;
    const int reason = errno;
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0) close(fds[i]);
    errno = reason;
    return -1;
}

static ssize_t real_write(int fd, const void *data, size_t bytes) {
    AT_HOLD_SIGNALS;
    return write(fd, data, bytes);
}

static int real_ftruncate(int fd, off_t bytes) {
    AT_HOLD_SIGNALS;
    return ftruncate(fd, bytes);
}

const at_io *at_default_io(void) {
    static const at_io io = {
        .openat = real_openat,
        .mkdir = mkdir,
        .fstat = fstat,
        .fstatat = fstatat,
        .read = read,
        .pread = pread,
        .write = real_write,
        .linkat = linkat,
        .renameat = renameat,
        .unlinkat = unlinkat,
        .futimens = futimens,
        .utimensat = utimensat,
        .memfd_create = real_memfd_create,
        .ftruncate = real_ftruncate,
        .fsync = fsync,
        .mmap = mmap,
        .mprotect = mprotect,
        .socketpair = real_socketpair,
    };
    return &io;
}

/* ---- On top of them ---- */

int at_io_open(const at_io *io, int dir, const char *path, int flags, mode_t mode) {
    int fd;
    do fd = io->openat(dir, path, flags, mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

int at_io_stat(const at_io *io, int fd, struct stat *status) {
    int result;
    do result = io->fstat(fd, status);
    while (result && errno == EINTR);
    return result;
}

bool at_io_is_same(const struct stat *a, const struct stat *b) {
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev;
}

bool at_io_is_lost(const at_io *io, int fd, const struct stat *opened) {
    struct stat now;
    return at_io_stat(io, fd, &now) ? errno == EBADF : !at_io_is_same(&now, opened);
}

FILE *at_io_stream(const char *path) {
    const int fd = real_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    FILE *stream = fd < 0 ? NULL : fdopen(fd, "r");
    if (fd >= 0 && !stream) close(fd);
    return stream;
}

ssize_t at_io_read_all(const at_io *io, int fd, void *data, size_t bytes) {
    size_t done = 0;
    while (done < bytes) {
        const ssize_t n = io->read(fd, (char *)data + done, bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        if (n == 0) break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

int at_io_write_all(const at_io *io, int fd, const void *data, size_t bytes) {
    size_t done = 0;
    while (done < bytes) {
        const ssize_t n = io->write(fd, (const char *)data + done, bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = EIO;
        if (n <= 0) return -1;
        done += (size_t)n;
    }
    return 0;
}
