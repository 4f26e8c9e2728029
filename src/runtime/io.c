#define _GNU_SOURCE
#include "runtime/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* openat is variadic in libc, so it needs a function of the table's type. */
static int real_openat(int dir, const char *path, int flags, mode_t mode) { return openat(dir, path, flags, mode); }

const at_io *at_default_io(void) {
    static const at_io io = {
        .openat = real_openat,
        .mkdir = mkdir,
        .fstat = fstat,
        .fstatat = fstatat,
        .read = read,
        .write = write,
        .linkat = linkat,
        .renameat = renameat,
        .unlinkat = unlinkat,
        .futimens = futimens,
        .memfd_create = memfd_create,
        .ftruncate = ftruncate,
        .mmap = mmap,
        .mprotect = mprotect,
        .socketpair = socketpair,
    };
    return &io;
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
