/* Code is written before it is executable: private pages first, and a memfd that is mapped twice where the system
 * refuses to change those. */
#define _GNU_SOURCE
#include "engine/loader.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const void *code_of(const at_image_header *image) { return (const char *)image + image->code_offset; }

/* Private pages: written first, then made executable. */
static bool load_private(const at_io *io, const at_image_header *image, size_t bytes, at_code *code) {
    void *base = io->mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (base == MAP_FAILED) return false;
    memcpy(base, code_of(image), image->code_bytes);
    __builtin___clear_cache(base, (char *)base + bytes);
    if (io->mprotect(base, bytes, PROT_READ | PROT_EXEC)) {
        const int reason = errno;
        munmap(base, bytes);
        errno = reason;
        return false;
    }
    *code = (at_code){base, bytes};
    return true;
}

static int write_once(const at_io *io, int fd, const at_image_header *image, size_t bytes) {
    if (io->ftruncate(fd, (off_t)bytes)) return -1;
    void *writable = io->mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (writable == MAP_FAILED) return -1;
    memcpy(writable, code_of(image), image->code_bytes);
    munmap(writable, bytes);
    return 0;
}

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

/* Since Linux 6.3 a system may refuse a memfd without this flag. Older kernels do not know it. */
static int create_executable(const at_io *io) {
    const int fd = io->memfd_create("attune", MFD_CLOEXEC | MFD_EXEC);
    return fd < 0 && errno == EINVAL ? io->memfd_create("attune", MFD_CLOEXEC) : fd;
}

/* Hardened systems do not let writable pages become executable. Some of them let a file be mapped twice, writable and
 * executable. */
static bool load_memfd(const at_io *io, const at_image_header *image, size_t bytes, at_code *code) {
    const int fd = create_executable(io);
    if (fd < 0) return false;
    void *base = MAP_FAILED;
    if (!write_once(io, fd, image, bytes)) base = io->mmap(NULL, bytes, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
    const int reason = errno;
    close(fd);
    errno = reason;
    if (base == MAP_FAILED) return false;
    __builtin___clear_cache(base, (char *)base + bytes); /* some CPUs need this address, not the other mapping's */
    *code = (at_code){base, bytes};
    return true;
}

attune_status at_code_load(const at_io *io, const at_image_header *image, at_code *code, at_error *err) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t bytes = (image->code_bytes + page - 1) / page * page;
    *code = (at_code){0};
    if (load_private(io, image, bytes, code) || load_memfd(io, image, bytes, code)) return ATTUNE_OK;
    return at_fail(err, ATTUNE_NO_EXEC_MEMORY, "the system refused %zu bytes of executable memory: %s", bytes,
                   strerror(errno));
}

void at_code_unload(at_code *code) {
    if (code->base) munmap(code->base, code->bytes);
    *code = (at_code){0};
}
