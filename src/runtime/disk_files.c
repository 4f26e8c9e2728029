#define _GNU_SOURCE
#include "runtime/disk_files.h"

#include "runtime/entry.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUFFIX           ".attune"
#define TEMPORARY_PREFIX "tmp-"
enum { ORPHAN_SECONDS = 3600 };

_Static_assert(AT_NAME_CHARS + 1 + AT_CLASS_BYTES + sizeof SUFFIX <= (size_t)AT_FILE_CHARS, "a name fits");

static void print_file(const char *name, const char *tuning_class, char file[AT_FILE_CHARS]) {
    snprintf(file, AT_FILE_CHARS, "%s-%s" SUFFIX, name, tuning_class);
}

void at_file_name_for(const at_key *key, const char *tuning_class, char file[AT_FILE_CHARS]) {
    char name[AT_NAME_CHARS + 1];
    at_key_name(key, name);
    print_file(name, tuning_class, file);
}

bool at_file_name_of(const uint8_t *bytes, size_t size, char file[AT_FILE_CHARS]) {
    at_key_parts parts;
    char name[AT_NAME_CHARS + 1];
    if (!at_key_split(bytes, size, &parts)) return false;
    at_key_name_of(bytes, &parts, name);
    print_file(name, parts.tuning_class, file);
    return true;
}

void at_file_name(const at_key *key, char file[AT_FILE_CHARS]) {
    at_key_parts parts;
    at_key_split(key->bytes, key->size, &parts);
    at_file_name_for(key, parts.tuning_class, file);
}

bool at_file_is_entry(const char *file) {
    if (strspn(file, "0123456789abcdef") != AT_NAME_CHARS) return false;
    if (!strcmp(file + AT_NAME_CHARS, SUFFIX)) return true; /* an older attune's: it must be evicted as any other */
    if (file[AT_NAME_CHARS] != '-') return false;
    const char *const tuning_class = file + AT_NAME_CHARS + 1;
    const size_t length = strspn(tuning_class, "abcdefghijklmnopqrstuvwxyz0123456789-");
    return length && length < AT_CLASS_BYTES && !strcmp(tuning_class + length, SUFFIX);
}

bool at_file_is_temporary(const char *file) { return !strncmp(file, TEMPORARY_PREFIX, strlen(TEMPORARY_PREFIX)); }

/* ---- Reading ---- */

const char *at_file_read(const at_io *io, int dir, const char *file, at_file_trust trust,
                         const attune_allocator *allocator, int *fd, struct stat *status, uint8_t **data,
                         size_t *bytes) {
    *data = NULL;
    /* O_NONBLOCK: opening a FIFO that somebody put there must not hang. */
    *fd = io->openat(dir, file, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    if (*fd < 0) return errno == ELOOP ? "it is a symbolic link" : NULL;
    if (io->fstat(*fd, status)) return NULL;
    if (!S_ISREG(status->st_mode)) return "it is not a regular file";
    if (status->st_uid != geteuid() && (trust != AT_TRUST_ROOT || status->st_uid != 0))
        return "it belongs to another user";
    if (trust == AT_TRUST_ROOT && status->st_mode & 022) return "others can write to it";
    if (status->st_size < AT_ENTRY_HEADER_BYTES || (uint64_t)status->st_size > AT_ENTRY_MAX_BYTES)
        return "its size is out of range";
    *bytes = (size_t)status->st_size;
    *data = at_alloc_aligned(allocator, *bytes, 64);
    if (!*data) return NULL;
    const ssize_t got = at_io_read_all(io, *fd, *data, *bytes);
    if (got == (ssize_t)*bytes) return NULL;
    at_free(allocator, *data);
    *data = NULL;
    return got < 0 ? NULL : "it became shorter while it was read";
}

/* ---- Writing ---- */

/* An unnamed file that gets its name when it is complete: a crash leaves nothing behind. Returns 0, an errno, or -1
 * where the file system cannot do this. */
static int write_unnamed(const at_io *io, int dir, const char *file, mode_t mode, const void *data, size_t bytes) {
    const int fd = io->openat(dir, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
    if (fd < 0) return errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT || errno == EINVAL ? -1 : errno;
    int failure = 0;
    char from[64];
    snprintf(from, sizeof from, "/proc/self/fd/%d", fd);
    if (at_io_write_all(io, fd, data, bytes)) {
        failure = errno;
    } else if (io->linkat(AT_FDCWD, from, dir, file, AT_SYMLINK_FOLLOW)) {
        failure = errno == EEXIST ? 0 : -1;
    }
    close(fd);
    return failure;
}

/* A temporary name of this process and call, which the complete file loses again. */
static int write_temporary(const at_io *io, int dir, const char *file, mode_t mode, const void *data, size_t bytes,
                           bool replaces) {
    static atomic_uint counter;
    char temporary[AT_FILE_CHARS];
    snprintf(temporary, sizeof temporary, TEMPORARY_PREFIX "%ld-%u", (long)getpid(), atomic_fetch_add(&counter, 1));
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd = io->openat(dir, temporary, flags, mode);
    if (fd < 0 && errno == EEXIST) { /* an earlier process of the same number died here */
        io->unlinkat(dir, temporary, 0);
        fd = io->openat(dir, temporary, flags, mode);
    }
    if (fd < 0) return errno;
    int failure = at_io_write_all(io, fd, data, bytes) ? errno : 0;
    close(fd);
    bool renamed = false;
    if (!failure && (replaces || (io->linkat(dir, temporary, dir, file, 0) && errno != EEXIST))) {
        renamed = !io->renameat(dir, temporary, dir, file); /* or no hard links here */
        if (!renamed) failure = errno;
    }
    if (!renamed) io->unlinkat(dir, temporary, 0);
    return failure;
}

int at_file_write(const at_io *io, int dir, const char *file, mode_t mode, const void *data, size_t bytes) {
    const int failure = write_unnamed(io, dir, file, mode, data, bytes);
    return failure < 0 ? write_temporary(io, dir, file, mode, data, bytes, false) : failure;
}

int at_file_replace(const at_io *io, int dir, const char *file, mode_t mode, const void *data, size_t bytes) {
    return write_temporary(io, dir, file, mode, data, bytes, true);
}

/* ---- Walking and eviction ---- */

int at_files_walk(const at_io *io, int dir, at_file_visit_fn *visit, void *user) {
    const int fd = io->openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0) return -1;
    DIR *stream = fdopendir(fd);
    if (!stream) {
        const int reason = errno;
        close(fd);
        errno = reason;
        return -1;
    }
    for (const struct dirent *item; (item = readdir(stream));) {
        struct stat status;
        if (io->fstatat(dir, item->d_name, &status, AT_SYMLINK_NOFOLLOW) || !S_ISREG(status.st_mode)) continue;
        if (visit(user, item->d_name, &status)) break;
    }
    closedir(stream);
    return 0;
}

typedef struct found_file {
    char name[AT_FILE_CHARS];
    struct timespec used_at;
    uint64_t bytes;
} found_file;

typedef struct found_files {
    const at_io *io;
    const attune_allocator *allocator;
    int dir;
    int64_t now;
    found_file *items;
    size_t count, capacity;
    at_trimmed trimmed;
} found_files;

static bool take_away(found_files *found, const char *file) {
    const bool gone = !found->io->unlinkat(found->dir, file, 0);
    if (!gone && errno != ENOENT && !found->trimmed.failure) found->trimmed.failure = errno;
    return gone;
}

static int collect(void *user, const char *file, const struct stat *status) {
    found_files *found = user;
    if (at_file_is_temporary(file) && found->now - status->st_mtim.tv_sec > ORPHAN_SECONDS && take_away(found, file)) {
        found->trimmed.orphans++;
        found->trimmed.orphan_bytes += (uint64_t)status->st_size;
    }
    if (!at_file_is_entry(file)) return 0;
    if (found->count == found->capacity) {
        const size_t capacity = found->capacity ? 2 * found->capacity : 256;
        found_file *items = at_alloc_aligned(found->allocator, capacity * sizeof *items, 16);
        if (!items) { /* evict among those seen so far */
            found->trimmed.failure = ENOMEM;
            return 1;
        }
        if (found->count) memcpy(items, found->items, found->count * sizeof *items);
        at_free(found->allocator, found->items);
        found->items = items;
        found->capacity = capacity;
    }
    found_file *item = &found->items[found->count++];
    strcpy(item->name, file);
    item->used_at = status->st_mtim;
    item->bytes = (uint64_t)status->st_size;
    found->trimmed.left++;
    found->trimmed.left_bytes += item->bytes;
    return 0;
}

static int older_first(const void *a, const void *b) {
    const struct timespec x = ((const found_file *)a)->used_at, y = ((const found_file *)b)->used_at;
    if (x.tv_sec != y.tv_sec) return x.tv_sec < y.tv_sec ? -1 : 1;
    return (x.tv_nsec > y.tv_nsec) - (x.tv_nsec < y.tv_nsec);
}

static void evict(found_files *found, uint64_t goal) {
    at_trimmed *t = &found->trimmed;
    qsort(found->items, found->count, sizeof *found->items, older_first);
    for (size_t i = 0; i < found->count && t->left_bytes > goal; i++) {
        const found_file *item = &found->items[i];
        const bool gone = take_away(found, item->name);
        /* What another process's sweep took first is room as well: both must not go on to evict twice as much. */
        if (!gone && errno != ENOENT) continue;
        t->left--;
        t->left_bytes -= item->bytes;
        if (!gone) continue;
        t->entries++;
        t->bytes += item->bytes;
    }
}

at_trimmed at_files_trim(const at_io *io, int dir, const attune_allocator *allocator, uint64_t limit, uint64_t goal) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    found_files found = {.io = io, .allocator = allocator, .dir = dir, .now = now.tv_sec};
    if (at_files_walk(io, dir, collect, &found)) found.trimmed.failure = errno;
    if (found.trimmed.left_bytes > limit) evict(&found, goal);
    at_free(allocator, found.items);
    return found.trimmed;
}

uint64_t at_files_sweep(const at_io *io, int dir, const attune_allocator *allocator, uint64_t capacity) {
    return at_files_trim(io, dir, allocator, capacity, capacity - capacity / 8).entries;
}
