#define _GNU_SOURCE
#include "runtime/disk_cache.h"

#include "runtime/cache_dir.h"
#include "runtime/disk_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TOUCH_SECONDS = 3600, FIRST_PAUSE_SECONDS = 1, MAX_PAUSE_SECONDS = 300 };

static double monotonic_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void at_disk_cache_init(at_disk_cache *cache, const char *dir, uint64_t capacity, const attune_allocator *allocator,
                        const at_io *io, const at_log *log) {
    *cache = (at_disk_cache){.allocator = allocator, .io = io, .log = log, .dir = -1, .base = -1, .capacity = capacity};
    pthread_mutex_init(&cache->mutex, NULL);
    at_error err = {0};
    if (at_cache_dir_path(dir, cache->path, sizeof cache->path, &err) == ATTUNE_OK && cache->path[0])
        cache->dir = at_cache_dir_open(cache->path, io, &err);
    if (err.status != ATTUNE_OK) at_log_printf(log, ATTUNE_LOG_WARNING, "the disk cache is off: %s", err.message);
    if (cache->dir < 0) cache->path[0] = '\0';
}

void at_disk_cache_open_base(at_disk_cache *cache, const char *base) {
    at_error err = {0};
    struct stat own, other;
    if (at_cache_base_path(base, cache->base_path, sizeof cache->base_path, &err) == ATTUNE_OK && cache->base_path[0])
        cache->base = at_cache_dir_open_foreign(cache->base_path, cache->io, &err);
    if (err.status != ATTUNE_OK)
        at_log_printf(cache->log, ATTUNE_LOG_WARNING, "the base of the disk cache is not used: %s", err.message);
    /* A base that is the cache itself adds nothing but every entry a second time. */
    if (cache->base >= 0 && cache->dir >= 0 && !cache->io->fstat(cache->dir, &own) &&
        !cache->io->fstat(cache->base, &other) && own.st_ino == other.st_ino && own.st_dev == other.st_dev) {
        close(cache->base);
        cache->base = -1;
    }
    if (cache->base < 0) cache->base_path[0] = '\0';
}

void at_disk_cache_free(at_disk_cache *cache) {
    if (cache->dir >= 0) close(cache->dir);
    if (cache->base >= 0) close(cache->base);
    pthread_mutex_destroy(&cache->mutex);
}

/* ---- Reading ---- */

/* The base is not ours to heal. */
static void drop_damaged(at_disk_cache *cache, bool is_base, const char *file, const char *why) {
    char name[AT_NAME_CHARS + 1];
    snprintf(name, sizeof name, "%s", file);
    atomic_fetch_add(&cache->damaged, 1);
    at_log_event(cache->log, (attune_event){.kind = ATTUNE_EVENT_DAMAGED, .key = name, .message = why});
    if (is_base) {
        at_log_printf(cache->log, ATTUNE_LOG_WARNING, "the cache entry %s of the base %s is damaged: %s", file,
                      cache->base_path, why);
        return;
    }
    const bool gone = !cache->io->unlinkat(cache->dir, file, 0) || errno == ENOENT;
    at_log_printf(cache->log, ATTUNE_LOG_WARNING, "the cache entry %s is damaged and %s: %s", file,
                  gone ? "was removed" : "could not be removed", why);
}

/* The time of use is what eviction goes by. Writing it at most once an hour keeps hits from wearing the disk. */
static void touch(const at_disk_cache *cache, int fd, const struct stat *status) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    if (now.tv_sec - status->st_mtim.tv_sec < TOUCH_SECONDS) return;
    const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
    cache->io->futimens(fd, times);
}

/* Another key under the same name, or code for another CPU in a shared home, is not ours, but not damaged either. */
static bool is_wanted(const at_key *key, const char *near_class, const at_entry *entry) {
    at_key_parts parts;
    if (entry->required & ~at_cpu_features()) return false;
    if (!near_class) return entry->key_bytes == key->size && !memcmp(entry->key, key->bytes, key->size);
    return at_key_is_near(key, entry->key, entry->key_bytes) && at_key_split(entry->key, entry->key_bytes, &parts) &&
           !strcmp(parts.tuning_class, near_class);
}

/* near_class NULL: the key itself; else the same kernel for that class. */
static bool read_in(at_disk_cache *cache, bool is_base, const at_key *key, const char *near_class, uint8_t **data,
                    at_entry *entry) {
    const int dir = is_base ? cache->base : cache->dir;
    *data = NULL;
    if (dir < 0) return false;
    char file[AT_FILE_CHARS];
    if (near_class)
        at_file_name_for(key, near_class, file);
    else
        at_file_name(key, file);
    size_t bytes;
    int fd;
    struct stat status;
    const char *why = at_file_read(cache->io, dir, file, is_base ? AT_TRUST_ROOT : AT_TRUST_OWN, cache->allocator, &fd,
                                   &status, data, &bytes);
    if (fd < 0 && !why) return false;
    if (!why && *data) {
        why = at_entry_decode(*data, bytes, entry);
        if (!why && !is_base) touch(cache, fd, &status);
    }
    if (fd >= 0) close(fd);
    if (why) drop_damaged(cache, is_base, file, why);
    entry->is_of_base = is_base;
    if (*data && !why && is_wanted(key, near_class, entry)) return true;
    at_free(cache->allocator, *data);
    *data = NULL;
    return false;
}

bool at_disk_cache_read(at_disk_cache *cache, const at_key *key, uint8_t **data, at_entry *entry) {
    return read_in(cache, false, key, NULL, data, entry) || read_in(cache, true, key, NULL, data, entry);
}

/* Each class has two places: the directory and the base. */
bool at_disk_cache_read_near(at_disk_cache *cache, const at_key *key, size_t *next, uint8_t **data, at_entry *entry,
                             const char **found) {
    const char *order[AT_MAX_CLASSES];
    at_key_parts parts;
    *data = NULL;
    at_key_split(key->bytes, key->size, &parts);
    const size_t count = 2 * at_class_neighbours(parts.tuning_class, order);
    while (*next < count) {
        const size_t place = (*next)++;
        *found = order[place / 2];
        if (read_in(cache, place % 2, key, *found, data, entry)) return true;
    }
    return false;
}

void at_disk_cache_reject(at_disk_cache *cache, const at_entry *entry, const char *why) {
    char file[AT_FILE_CHARS];
    if (at_file_name_of(entry->key, entry->key_bytes, file)) drop_damaged(cache, entry->is_of_base, file, why);
}

/* ---- Writing ---- */

static bool writes_paused(at_disk_cache *cache) {
    pthread_mutex_lock(&cache->mutex);
    const bool paused = cache->pause > 0 && monotonic_seconds() < cache->paused_until;
    pthread_mutex_unlock(&cache->mutex);
    return paused;
}

/* A full or read-only disk stays so for a while: later writes pause, twice as long each time, and say so once. */
static void note_write(at_disk_cache *cache, int failure, size_t bytes, bool *sweep) {
    pthread_mutex_lock(&cache->mutex);
    bool say = false;
    if (failure) {
        atomic_fetch_add(&cache->write_failures, 1);
        cache->pause = cache->pause > 0 ? cache->pause * 2 : FIRST_PAUSE_SECONDS;
        if (cache->pause > MAX_PAUSE_SECONDS) cache->pause = MAX_PAUSE_SECONDS;
        cache->paused_until = monotonic_seconds() + cache->pause;
        say = !cache->write_logged;
        cache->write_logged = true;
    } else {
        cache->pause = 0;
        cache->write_logged = false;
        cache->written_since_sweep += bytes;
        /* One first write in sixteen sweeps as well, chosen by the caller: else short processes never would. */
        *sweep = *sweep || cache->written_since_sweep > cache->capacity / 16;
        if (*sweep) cache->written_since_sweep = 0;
    }
    pthread_mutex_unlock(&cache->mutex);
    if (say)
        at_log_printf(cache->log, ATTUNE_LOG_WARNING, "kernels are kept in memory only: %s cannot be written: %s",
                      cache->path, strerror(failure));
}

typedef int write_fn(const at_io *io, int dir, const char *file, mode_t mode, const void *data, size_t bytes);

static void write_by(at_disk_cache *cache, const at_key *key, const at_entry *entry, write_fn *write) {
    if (cache->dir < 0 || writes_paused(cache)) return;
    uint8_t *data = NULL;
    size_t bytes = 0;
    at_error err = {0};
    if (at_entry_encode(entry, cache->allocator, &data, &bytes, &err)) {
        atomic_fetch_add(&cache->write_failures, 1);
        return;
    }
    char file[AT_FILE_CHARS];
    at_file_name(key, file);
    const int failure = write(cache->io, cache->dir, file, 0600, data, bytes);
    at_free(cache->allocator, data);
    bool sweep = key->low % 16 == 0;
    note_write(cache, failure, bytes, &sweep);
    if (sweep && !failure)
        atomic_fetch_add(&cache->evictions, at_files_sweep(cache->io, cache->dir, cache->allocator, cache->capacity));
}

void at_disk_cache_write(at_disk_cache *cache, const at_key *key, const at_entry *entry) {
    write_by(cache, key, entry, at_file_write);
}

void at_disk_cache_replace(at_disk_cache *cache, const at_key *key, const at_entry *entry) {
    write_by(cache, key, entry, at_file_replace);
}
