/* A file appears under its name only when it is complete: an unnamed file is linked, or a temporary one is linked or
 * renamed where that is not possible. Eviction removes the files that were used longest ago. */
#define _GNU_SOURCE
#include "cache/disk_files.h"

#include "base/memory.h"
#include "cache/cache_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define SUFFIX           ".attune"
#define TEMPORARY_PREFIX "tmp-"
#define ASIDE_PREFIX     "aside-"
enum { ORPHAN_SECONDS = 3600, RANDOM_CHARS = 32 };

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

bool at_file_is_kernel(const char *file) {
    if (strspn(file, "0123456789abcdef") != AT_NAME_CHARS) return false;
    if (!strcmp(file + AT_NAME_CHARS, SUFFIX)) return true; /* of an older attune: it is evicted like any other */
    if (file[AT_NAME_CHARS] != '-') return false;
    const char *const tuning_class = file + AT_NAME_CHARS + 1;
    const size_t length = strspn(tuning_class, "abcdefghijklmnopqrstuvwxyz0123456789-");
    return length && length < AT_CLASS_BYTES && !strcmp(tuning_class + length, SUFFIX);
}

/* tmp-<32 hex digits>, or an older attune's tmp-<process>-<number>. The directory may hold other files of the user. */
bool at_file_is_temporary(const char *file) {
    static const char digits[] = "0123456789";
    if (strncmp(file, TEMPORARY_PREFIX, strlen(TEMPORARY_PREFIX))) return false;
    file += strlen(TEMPORARY_PREFIX);
    if (strspn(file, "0123456789abcdef") == RANDOM_CHARS && !file[RANDOM_CHARS]) return true;
    const size_t process = strspn(file, digits);
    if (!process || file[process] != '-') return false;
    const size_t number = strspn(file + process + 1, digits);
    return number && !file[process + 1 + number];
}

bool at_file_random_name(const char *prefix, char file[AT_FILE_CHARS]) {
    uint64_t random[2];
    if (getrandom(random, sizeof random, GRND_NONBLOCK) != sizeof random) return false;
    snprintf(file, AT_FILE_CHARS, "%s%016llx%016llx", prefix, (unsigned long long)random[0],
             (unsigned long long)random[1]);
    return true;
}

/* ---- Reading ---- */

/* What the errno of a call on a file says about the file. */
static at_found found_by(int reason, at_file *file) {
    file->why = strerror(reason);
    if (reason == ENOENT) return AT_MISSING;
    return reason == EMFILE || reason == ENFILE || reason == ENOMEM ? AT_NOT_NOW : AT_UNREADABLE;
}

/* The errno may be about the directory, after a change of the user for example. */
static at_found found_by_opening(int reason, const at_io *io, int dir, const char *name, at_file *file) {
    struct stat status;
    const at_found found = found_by(reason, file);
    return found == AT_UNREADABLE && io->fstatat(dir, name, &status, AT_SYMLINK_NOFOLLOW) ? AT_MISSING : found;
}

static const char *distrust(const struct stat *status, at_file_trust trust) {
    if (!S_ISREG(status->st_mode)) return "it is not a regular file";
    if (status->st_uid != geteuid() && (trust != AT_TRUST_ROOT || status->st_uid != 0))
        return "it belongs to another user";
    if (trust == AT_TRUST_ROOT && status->st_mode & 022) return "others can write to it";
    if (status->st_size < AT_CACHE_FILE_HEADER_BYTES || (uint64_t)status->st_size > AT_CACHE_FILE_MAX_BYTES)
        return "its size is out of range";
    return NULL;
}

at_found at_file_read(const at_io *io, int dir, const char *name, at_file_trust trust,
                      const attune_allocator *allocator, at_file *file) {
    *file = (at_file){.why = ""};
    /* O_NONBLOCK: opening a FIFO that another user put there must not hang. */
    file->fd = at_io_open(io, dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    if (file->fd < 0 && errno == ELOOP) {
        file->why = "it is a symbolic link";
        return AT_DAMAGED;
    }
    if (file->fd < 0) return found_by_opening(errno, io, dir, name, file);
    if (at_io_stat(io, file->fd, &file->status)) return found_by(errno, file);
    const char *why = distrust(&file->status, trust);
    if (!why) {
        file->bytes = (size_t)file->status.st_size;
        file->data = at_alloc_aligned(allocator, file->bytes, 64);
        if (!file->data) return found_by(ENOMEM, file);
        const ssize_t got = at_io_read_all(io, file->fd, file->data, file->bytes);
        if (got == (ssize_t)file->bytes) return AT_FOUND;
        const int reason = errno;
        at_free(allocator, file->data);
        file->data = NULL;
        if (got < 0) return found_by(reason, file);
        why = "it became shorter while it was read";
    }
    file->why = why;
    return AT_DAMAGED;
}

void at_file_close(at_file *file, const attune_allocator *allocator) {
    if (file->fd >= 0) close(file->fd);
    at_free(allocator, file->data);
    *file = (at_file){.fd = -1, .why = ""};
}

/* ---- Writing ---- */

/* An unnamed file that gets its name when it is complete: a crash leaves nothing behind. Returns 0, an errno, or -1
 * where the file system cannot do this. */
static int write_unnamed(const at_io *io, int dir, const char *file, mode_t mode, const void *data, size_t bytes) {
    const int fd = at_io_open(io, dir, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
    if (fd < 0) return errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT || errno == EINVAL ? -1 : errno;
    int failure = 0;
    char from[64];
    snprintf(from, sizeof from, "/proc/self/fd/%d", fd);
    if (at_io_write_all(io, fd, data, bytes))
        failure = errno;
    else if (io->linkat(AT_FDCWD, from, dir, file, AT_SYMLINK_FOLLOW))
        failure = errno == EEXIST ? EEXIST : -1;
    close(fd);
    return failure;
}

/* A temporary name, which the complete file loses again. The name is random: numbers of processes are the same in two
 * containers that share a directory. */
static int write_temporary(const at_io *io, int dir, const char *file, mode_t mode, const void *data, size_t bytes,
                           bool replaces) {
    char temporary[AT_FILE_CHARS];
    if (!at_file_random_name(TEMPORARY_PREFIX, temporary)) return errno;
    const int fd = at_io_open(io, dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0) return errno;
    int failure = at_io_write_all(io, fd, data, bytes) ? errno : 0;
    close(fd);
    bool renamed = false;
    if (!failure && !replaces && io->linkat(dir, temporary, dir, file, 0)) {
        failure = errno == EEXIST ? EEXIST : 0;
        replaces = !failure; /* no hard links here */
    }
    if (!failure && replaces) {
        renamed = !io->renameat(dir, temporary, dir, file);
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

int at_file_remove(const at_io *io, int dir, const char *file, char aside[AT_FILE_CHARS]) {
    char new_name[AT_FILE_CHARS];
    aside[0] = '\0';
    if (!io->unlinkat(dir, file, 0)) return 0;
    if (errno != EISDIR) return errno;
    if (!io->unlinkat(dir, file, AT_REMOVEDIR)) return 0;
    if (errno != ENOTEMPTY && errno != EEXIST) return errno;
    if (!at_file_random_name(ASIDE_PREFIX, new_name) || io->renameat(dir, file, dir, new_name)) return errno;
    strcpy(aside, new_name);
    return 0;
}

/* ---- Walking and eviction ---- */

static int64_t age_of(const struct stat *status) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec - status->st_mtim.tv_sec;
}

bool at_file_is_orphan(const at_io *io, int dir, const char *file, const struct stat *status) {
    static const struct timespec present[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
    if (!at_file_is_temporary(file) || !S_ISREG(status->st_mode)) return false;
    const int64_t age = age_of(status);
    if (age < -ORPHAN_SECONDS) io->utimensat(dir, file, present, AT_SYMLINK_NOFOLLOW);
    return age > ORPHAN_SECONDS;
}

int at_files_walk(const at_io *io, int dir, at_file_visit_fn *visit, void *user) {
    const int fd = at_io_open(io, dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
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
        if (io->fstatat(fd, item->d_name, &status, AT_SYMLINK_NOFOLLOW)) {
            if (errno == ENOENT) continue; /* removed a moment ago */
            memset(&status, 0, sizeof status);
        }
        if (visit(user, fd, item->d_name, &status)) break;
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
    found_file *items;
    size_t count, capacity;
    at_trimmed trimmed;
} found_files;

static bool take_away(found_files *found, const char *file) {
    const bool gone = !found->io->unlinkat(found->dir, file, 0);
    if (!gone && errno != ENOENT && !found->trimmed.failure) found->trimmed.failure = errno;
    return gone;
}

static int collect(void *user, int dir, const char *file, const struct stat *status) {
    found_files *found = user;
    if (at_file_is_orphan(found->io, dir, file, status) && take_away(found, file)) {
        found->trimmed.orphans++;
        found->trimmed.orphan_bytes += (uint64_t)status->st_size;
    }
    if (!at_file_is_kernel(file) || !S_ISREG(status->st_mode)) return 0;
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
    /* A hit puts a time in the future right. So cache files that still have one are unused: they go first. */
    item->used_at = age_of(status) < -ORPHAN_SECONDS ? (struct timespec){0} : status->st_mtim;
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
        /* Files that another process's sweep has just removed make room, too: otherwise both would evict twice as much.
         */
        if (!gone && errno != ENOENT) continue;
        t->left--;
        t->left_bytes -= item->bytes;
        if (!gone) continue;
        t->files++;
        t->bytes += item->bytes;
    }
}

at_trimmed at_files_trim(const at_io *io, int dir, const attune_allocator *allocator, uint64_t limit, uint64_t goal) {
    found_files found = {.io = io, .allocator = allocator};
    found.dir = at_io_open(io, dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); /* nobody else's, see at_files_walk */
    if (found.dir < 0) {
        found.trimmed.failure = errno;
        return found.trimmed;
    }
    if (at_files_walk(io, found.dir, collect, &found)) found.trimmed.failure = errno;
    if (found.trimmed.left_bytes > limit) evict(&found, goal);
    close(found.dir);
    at_free(allocator, found.items);
    return found.trimmed;
}

uint64_t at_files_sweep(const at_io *io, int dir, const attune_allocator *allocator, uint64_t capacity) {
    return at_files_trim(io, dir, allocator, capacity, capacity - capacity / 8).files;
}
