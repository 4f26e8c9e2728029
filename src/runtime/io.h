/* The system calls whose failure the runtime must survive, behind one table so that tests can make each of them
 * fail in turn. A context uses the table it was created with. */
#ifndef ATTUNE_RUNTIME_IO_H
#define ATTUNE_RUNTIME_IO_H

#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

typedef struct at_io {
    int (*openat)(int dir, const char *path, int flags, mode_t mode);
    int (*mkdir)(const char *path, mode_t mode);
    int (*fstat)(int fd, struct stat *status);
    int (*fstatat)(int dir, const char *path, struct stat *status, int flags);
    ssize_t (*read)(int fd, void *data, size_t bytes);
    ssize_t (*write)(int fd, const void *data, size_t bytes);
    int (*linkat)(int from_dir, const char *from, int to_dir, const char *to, int flags);
    int (*renameat)(int from_dir, const char *from, int to_dir, const char *to);
    int (*unlinkat)(int dir, const char *path, int flags);
    int (*futimens)(int fd, const struct timespec times[2]);
    int (*memfd_create)(const char *name, unsigned flags);
    int (*ftruncate)(int fd, off_t bytes);
    void *(*mmap)(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
    int (*mprotect)(void *address, size_t bytes, int protection);
    int (*socketpair)(int domain, int type, int protocol, int fds[2]);
} at_io;

/* The real calls. */
const at_io *at_default_io(void);

/* Reads until `bytes` are there or the file ends, going on after EINTR; the number read, or -1. */
ssize_t at_io_read_all(const at_io *io, int fd, void *data, size_t bytes);

/* 0 when all was written, else -1 with errno set. */
int at_io_write_all(const at_io *io, int fd, const void *data, size_t bytes);

#endif
