/* The system calls whose failure attune must survive, in one table, so that tests can make each of them fail in
 * turn. A context uses the table it was created with.
 *
 * The real calls never return descriptor 0, 1 or 2, even where the host has closed those: what the host prints would
 * end up in our files. They also raise no SIGXFSZ and no SIGPIPE, which would end a host that has a limit on the size
 * of files: a write beyond the limit fails with EFBIG like any other. */
#ifndef ATTUNE_HOST_IO_H
#define ATTUNE_HOST_IO_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

typedef struct at_io {
    int (*openat)(int dir, const char *path, int flags, mode_t mode);
    int (*mkdir)(const char *path, mode_t mode);
    int (*fstat)(int fd, struct stat *status);
    int (*fstatat)(int dir, const char *path, struct stat *status, int flags);
    ssize_t (*read)(int fd, void *data, size_t bytes);
    ssize_t (*pread)(int fd, void *data, size_t bytes, off_t offset);
    ssize_t (*write)(int fd, const void *data, size_t bytes);
    int (*linkat)(int from_dir, const char *from, int to_dir, const char *to, int flags);
    int (*renameat)(int from_dir, const char *from, int to_dir, const char *to);
    int (*unlinkat)(int dir, const char *path, int flags);
    int (*futimens)(int fd, const struct timespec times[2]);
    int (*utimensat)(int dir, const char *path, const struct timespec times[2], int flags);
    int (*memfd_create)(const char *name, unsigned flags);
    int (*ftruncate)(int fd, off_t bytes);
    int (*fsync)(int fd);
    void *(*mmap)(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
    int (*mprotect)(void *address, size_t bytes, int protection);
    int (*socketpair)(int domain, int type, int protocol, int fds[2]);
} at_io;

/* The real calls. */
const at_io *at_default_io(void);

/* openat and fstat again until no signal interrupts them: on a network file system each call may fail with EINTR. */
int at_io_open(const at_io *io, int dir, const char *path, int flags, mode_t mode);
int at_io_stat(const at_io *io, int fd, struct stat *status);

bool at_io_is_same(const struct stat *a, const struct stat *b);

/* Whether the host has closed a descriptor that attune keeps from call to call, as daemons close all of them. The
 * number may be a file of the host's by now: neither use nor close it. Any error of fstat except EBADF is the file's
 * own, on a network for example. */
bool at_io_is_lost(const at_io *io, int fd, const struct stat *opened);

/* Opens a file to be read as a stream; NULL with errno. */
FILE *at_io_stream(const char *path);

/* Reads until `bytes` are there or the file ends, going on after EINTR; the number read, or -1. */
ssize_t at_io_read_all(const at_io *io, int fd, void *data, size_t bytes);

/* 0 when all was written, else -1 with errno set. */
int at_io_write_all(const at_io *io, int fd, const void *data, size_t bytes);

/* Holds SIGXFSZ and SIGPIPE back from the calling thread. The system sends both to the thread that writes, so blocking
 * them and taking them back affects no other thread. To look at the limit first is not enough: SQLite writes as well.
 */
typedef struct at_held_signals {
    sigset_t before, own; /* the thread's mask; those that were not pending before */
} at_held_signals;
at_held_signals at_hold_signals(void);
void at_release_signals(at_held_signals *held);

/* Holds them to the end of the block. */
#define AT_HOLD_SIGNALS __attribute__((cleanup(at_release_signals))) at_held_signals held_signals = at_hold_signals()

#endif
