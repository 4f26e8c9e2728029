/* Looks in the directory, the base and the pack, in this order, and writes into the directory only. A miss looks at
 * the paths again, since a directory may have been replaced; failed writes pause all writes for a while. */
#define _GNU_SOURCE
#include "cache/disk_cache.h"

#include "base/memory.h"
#include "cache/cache_dir.h"
#include "cache/cache_file_io.h"

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

/* ---- The directories ---- */

static atomic_int *number_of(at_disk_cache *cache, bool is_base) { return is_base ? &cache->base : &cache->dir; }

static int find_dir(at_disk_cache *cache, bool is_base, bool *was_lost) {
    atomic_int *const number = number_of(cache, is_base);
    pthread_mutex_lock(&cache->mutex);
    const int dir = *number;
    *was_lost = dir >= 0 && at_io_is_lost(cache->io, dir, &cache->opened[is_base]);
    if (*was_lost) *number = -1; /* not closed: it may be the host's file */
    pthread_mutex_unlock(&cache->mutex);
    return *was_lost ? -1 : dir;
}

int at_disk_cache_dir(at_disk_cache *cache, bool is_base) {
    bool was_lost;
    const int dir = find_dir(cache, is_base, &was_lost);
    if (was_lost)
        at_log_printf(cache->log, ATTUNE_LOG_WARNING,
                      "the %s%s is off: other code in this process has closed its descriptor",
                      is_base ? "base of the disk cache " : "disk cache ", is_base ? cache->base_path : cache->path);
    return dir;
}

/* Closes a directory that was opened a moment ago if it cannot be told from others later. */
static int remember(at_disk_cache *cache, bool is_base, int dir, at_error *err) {
    if (dir < 0 || !at_io_stat(cache->io, dir, &cache->opened[is_base])) return dir;
    at_fail(err, ATTUNE_IO_ERROR, "the directory cannot be examined: %s", strerror(errno));
    close(dir);
    return -1;
}

void at_disk_cache_init(at_disk_cache *cache, const char *dir, uint64_t capacity, const attune_allocator *allocator,
                        const at_io *io, const at_log *log) {
    *cache = (at_disk_cache){
        .allocator = allocator, .io = io, .log = log, .dir = -1, .base = -1, .capacity = capacity, .pack = {.fd = -1}};
    pthread_mutex_init(&cache->mutex, NULL);
    at_error err = {0};
    if (at_cache_dir_path(dir, cache->path, sizeof cache->path, &err) == ATTUNE_OK && cache->path[0])
        cache->dir = remember(cache, false, at_cache_dir_open(cache->path, io, &err), &err);
    if (err.status != ATTUNE_OK) at_log_printf(log, ATTUNE_LOG_WARNING, "the disk cache is off: %s", err.message);
    snprintf(cache->refusals[0], sizeof cache->refusals[0], "%s", err.message);
    at_cache_dir_from_root(cache->path, cache->from_root[0], sizeof cache->from_root[0]);
    if (cache->dir < 0) cache->path[0] = '\0';
}

void at_disk_cache_open_base(at_disk_cache *cache, const char *base) {
    at_error err = {0};
    if (at_cache_base_path(base, cache->base_path, sizeof cache->base_path, &err) == ATTUNE_OK && cache->base_path[0])
        cache->base = remember(cache, true, at_cache_dir_open_foreign(cache->base_path, cache->io, &err), &err);
    if (err.status != ATTUNE_OK)
        at_log_printf(cache->log, ATTUNE_LOG_WARNING, "the base of the disk cache is not used: %s", err.message);
    snprintf(cache->refusals[1], sizeof cache->refusals[1], "%s", err.message);
    at_cache_dir_from_root(cache->base_path, cache->from_root[1], sizeof cache->from_root[1]);
    /* A base that is the cache itself adds nothing but every cache file a second time. */
    if (cache->base >= 0 && cache->dir >= 0 && at_io_is_same(&cache->opened[0], &cache->opened[1])) {
        close(cache->base);
        cache->base = -1;
    }
    if (cache->base < 0) cache->base_path[0] = '\0';
}

void at_disk_cache_open_pack(at_disk_cache *cache, const char *pack, const char *keys) {
    at_error err = {0};
    snprintf(cache->keys, sizeof cache->keys, "%s", at_keys_dir(keys));
    if (at_cache_pack_path(pack, cache->pack_path, sizeof cache->pack_path, &err) == ATTUNE_OK && cache->pack_path[0])
        at_pack_open_signed(&cache->pack, cache->pack_path, cache->keys, cache->io, cache->allocator, &err);
    if (err.status != ATTUNE_OK)
        at_log_printf(cache->log, ATTUNE_LOG_WARNING, "kernels of a pack are not used: %s", err.message);
    snprintf(cache->refusals[2], sizeof cache->refusals[2], "%s", err.message);
    if (!at_pack_is_open(&cache->pack)) cache->pack_path[0] = '\0';
}

/* Gives the old one's number to a directory that was opened. */
static bool take_place(at_disk_cache *cache, bool is_base, int fd) {
    struct stat own, now;
    if (at_io_stat(cache->io, fd, &now)) return false;
    pthread_mutex_lock(&cache->mutex);
    const int dir = *number_of(cache, is_base);
    const bool is_taken = dir >= 0 && !at_io_stat(cache->io, dir, &own) &&
                          at_io_is_same(&own, &cache->opened[is_base]) && dup3(fd, dir, O_CLOEXEC) == dir;
    if (is_taken) cache->opened[is_base] = now;
    pthread_mutex_unlock(&cache->mutex);
    return is_taken;
}

/* Someone may have removed the directory, or put another one in its place, since it was opened. The one that is there
 * now gets the old one's number in one step, since other threads may be using that. A directory that still exists but
 * cannot be reached by its path (for its parents' permissions, or after a chroot) stays in use. Returns whether it was
 * replaced. */
static bool refresh(at_disk_cache *cache, bool is_base, bool makes, at_error *err) {
    const int dir = at_disk_cache_dir(cache, is_base);
    const char *const path = cache->from_root[is_base];
    struct stat old, now;
    if (dir < 0 || !*path || at_io_stat(cache->io, dir, &old)) return false;
    if (cache->io->fstatat(AT_FDCWD, path, &now, 0)) {
        const bool is_missing = errno == ENOENT || errno == ENOTDIR;
        if (!makes || !is_missing || old.st_nlink) return false;
    } else if (at_io_is_same(&old, &now) || (old.st_nlink && !S_ISDIR(now.st_mode))) {
        return false;
    }
    const int fd = is_base ? at_cache_dir_open_foreign(path, cache->io, err) : at_cache_dir_open(path, cache->io, err);
    if (fd < 0) return false;
    const bool is_taken = take_place(cache, is_base, fd);
    close(fd);
    return is_taken;
}

bool at_disk_cache_refresh(at_disk_cache *cache, bool makes, at_error *err) {
    at_error why = {0};
    refresh(cache, false, makes, &why);
    refresh(cache, true, false, NULL);
    return !why.status || (at_fail(err, why.status, "%s", why.message), false);
}

void at_disk_cache_free(at_disk_cache *cache) {
    for (int is_base = 0; is_base < 2; is_base++) {
        bool was_lost;
        const int dir = find_dir(cache, is_base, &was_lost);
        if (dir >= 0) close(dir);
    }
    if (at_pack_is_open(&cache->pack)) at_pack_close(&cache->pack);
    pthread_mutex_destroy(&cache->mutex);
}

/* ---- Reading ---- */

/* Base and pack are never changed. A file that cannot be read is replaced when the kernel has been compiled. */
static void drop_damaged(at_disk_cache *cache, at_place place, bool is_unreadable, const char *file, const char *why) {
    static const char *const words[AT_NUM_PLACES] = {"", "the base ", "the pack "};
    const char *const paths[AT_NUM_PLACES] = {cache->path, cache->base_path, cache->pack_path};
    char name[AT_NAME_CHARS + 1];
    snprintf(name, sizeof name, "%s", file);
    atomic_fetch_add(&cache->damaged, 1);
    at_log_event(cache->log, (attune_event){.kind = ATTUNE_EVENT_DAMAGED, .key = name, .message = why});
    if (place != AT_IN_DIR || is_unreadable) {
        at_log_printf(cache->log, ATTUNE_LOG_WARNING, "the cache file %s of %s%s %s: %s", file, words[place],
                      paths[place], is_unreadable ? "cannot be read" : "is damaged", why);
        return;
    }
    char aside[AT_FILE_CHARS];
    const int failure = at_file_remove(cache->io, at_disk_cache_dir(cache, false), file, aside);
    at_log_printf(cache->log, ATTUNE_LOG_WARNING, "the cache file %s is damaged and %s%s: %s", file,
                  *aside                          ? "was renamed to "
                  : !failure || failure == ENOENT ? "was removed"
                                                  : "could not be removed",
                  aside, why);
}

/* Eviction goes by the time of use. It is written at most once an hour, to spare the disk. A time in the future is put
 * right. */
static void touch(const at_disk_cache *cache, int fd, const struct stat *status) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    const int64_t age = now.tv_sec - status->st_mtim.tv_sec;
    if (age < TOUCH_SECONDS && age > -TOUCH_SECONDS) return;
    const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
    cache->io->futimens(fd, times);
}

/* The file's name, with the tuning class in it, is known to be that of the cache file's key. Another key with the same
 * hash, or code for another CPU in a shared home, is not what we look for, and is not damaged either. */
static bool is_wanted(const at_key *key, const char *near_class, const at_cache_file *cached) {
    if (cached->required & ~at_cpu_features()) return false;
    if (near_class) return at_key_is_near(key, cached->key, cached->key_bytes);
    return cached->key_bytes == key->size && !memcmp(cached->key, key->bytes, key->size);
}

/* near_class NULL: the key itself; else the same kernel for that class. */
static void name_file(const at_key *key, const char *near_class, char file[AT_FILE_CHARS]) {
    if (near_class)
        at_file_name_for(key, near_class, file);
    else
        at_file_name(key, file);
}

static bool read_in(at_disk_cache *cache, bool is_base, const at_key *key, const char *near_class, uint8_t **data,
                    at_cache_file *cached) {
    const int dir = at_disk_cache_dir(cache, is_base);
    *data = NULL;
    if (dir < 0) return false;
    char file[AT_FILE_CHARS];
    name_file(key, near_class, file);
    at_opened_cache_file got;
    const at_found found =
        at_cache_file_read(cache->io, dir, file, is_base ? AT_TRUST_ROOT : AT_TRUST_OWN, cache->allocator, &got);
    if (found == AT_DAMAGED || found == AT_UNREADABLE)
        drop_damaged(cache, is_base ? AT_IN_BASE : AT_IN_DIR, found == AT_UNREADABLE, file, got.file.why);
    if (found == AT_FOUND && !is_base) touch(cache, got.file.fd, &got.file.status);
    if (found == AT_FOUND && is_wanted(key, near_class, &got.cached)) {
        *cached = got.cached;
        cached->place = is_base ? AT_IN_BASE : AT_IN_DIR;
        *data = got.file.data;
        got.file.data = NULL;
    }
    at_cache_file_close(&got, cache->allocator);
    return *data;
}

static bool read_in_pack(at_disk_cache *cache, const at_key *key, const char *near_class, uint8_t **data,
                         at_cache_file *cached) {
    char file[AT_FILE_CHARS];
    at_pack_record record;
    const char *why;
    const at_pack *const pack = &cache->pack;
    *data = NULL;
    if (!at_pack_is_open(pack)) return false;
    name_file(key, near_class, file);
    const uint32_t number = at_pack_find(pack->signed_part, pack->sizes.count, file);
    if (number == AT_PACK_NONE) return false;
    at_pack_record_get(pack->signed_part, number, &record);
    const at_found found = at_pack_read(pack, &record, data, cached, &why);
    if (found == AT_DAMAGED || found == AT_UNREADABLE)
        drop_damaged(cache, AT_IN_PACK, found == AT_UNREADABLE, file, why);
    if (found == AT_FOUND && !is_wanted(key, near_class, cached)) {
        at_free(cache->allocator, *data);
        *data = NULL;
    }
    cached->place = AT_IN_PACK;
    return *data;
}

/* A directory that was removed or replaced looks like an empty one, so a miss looks at the path again. */
bool at_disk_cache_read(at_disk_cache *cache, const at_key *key, uint8_t **data, at_cache_file *cached) {
    for (int is_base = 0; is_base < 2; is_base++)
        if (read_in(cache, is_base, key, NULL, data, cached)) return true;
    for (int is_base = 0; is_base < 2; is_base++)
        if (refresh(cache, is_base, false, NULL) && read_in(cache, is_base, key, NULL, data, cached)) return true;
    return read_in_pack(cache, key, NULL, data, cached);
}

/* Each class has all places. */
bool at_disk_cache_read_near(at_disk_cache *cache, const at_key *key, size_t *next, uint8_t **data,
                             at_cache_file *cached, const char **found) {
    const char *order[AT_MAX_CLASSES];
    at_key_parts parts;
    *data = NULL;
    at_key_split(key->bytes, key->size, &parts);
    const size_t count = AT_NUM_PLACES * at_class_neighbours(parts.tuning_class, order);
    while (*next < count) {
        const size_t place = (*next)++;
        *found = order[place / AT_NUM_PLACES];
        const at_place in = (at_place)(place % AT_NUM_PLACES);
        if (in == AT_IN_PACK ? read_in_pack(cache, key, *found, data, cached)
                             : read_in(cache, in == AT_IN_BASE, key, *found, data, cached))
            return true;
    }
    return false;
}

void at_disk_cache_reject(at_disk_cache *cache, const at_cache_file *cached, const char *why) {
    char file[AT_FILE_CHARS];
    if (at_file_name_of(cached->key, cached->key_bytes, file)) drop_damaged(cache, cached->place, false, file, why);
}

/* ---- Writing ---- */

static bool writes_paused(at_disk_cache *cache) {
    pthread_mutex_lock(&cache->mutex);
    const bool paused = cache->pause > 0 && monotonic_seconds() < cache->paused_until;
    pthread_mutex_unlock(&cache->mutex);
    return paused;
}

/* A full or read-only disk stays so for a while. So writes pause after a failure, twice as long each time, with one log
 * message. `why` NULL: the write succeeded. */
static void note_write(at_disk_cache *cache, const char *why, size_t bytes, bool *sweep) {
    pthread_mutex_lock(&cache->mutex);
    bool say = false;
    if (why) {
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
        /* The caller also sweeps at one write in sixteen: otherwise short processes would never sweep. */
        *sweep = *sweep || cache->written_since_sweep > cache->capacity / 16;
        if (*sweep) cache->written_since_sweep = 0;
    }
    pthread_mutex_unlock(&cache->mutex);
    if (say)
        at_log_printf(cache->log, ATTUNE_LOG_WARNING, "kernels are kept in memory only: %s cannot be written: %s",
                      cache->path, why);
}

static int write_once(at_disk_cache *cache, const char *file, const at_cache_file *cached, const uint8_t *data,
                      size_t bytes, bool replaces) {
    const int dir = at_disk_cache_dir(cache, false);
    if (dir < 0) return EBADF;
    if (!replaces) return at_cache_file_write(cache->io, dir, file, 0600, cached, cache->allocator, data, bytes);
    return at_cache_file_replace(cache->io, dir, file, 0600, data, bytes);
}

void at_disk_cache_sweep(at_disk_cache *cache) {
    const int dir = at_disk_cache_dir(cache, false);
    if (dir < 0) return;
    atomic_fetch_add(&cache->evictions, at_files_sweep(cache->io, dir, cache->allocator, cache->capacity));
}

static void write_cache_file(at_disk_cache *cache, const at_key *key, const at_cache_file *cached, bool replaces) {
    if (at_disk_cache_dir(cache, false) < 0 || writes_paused(cache)) return;
    uint8_t *data = NULL;
    size_t bytes = 0;
    at_error err = {0};
    if (at_cache_file_encode(cached, cache->allocator, &data, &bytes, &err)) {
        atomic_fetch_add(&cache->write_failures, 1);
        return;
    }
    char file[AT_FILE_CHARS];
    at_file_name(key, file);
    int failure = 0;
    for (int tries = 0; tries < 2 && !err.status; tries++) {
        at_disk_cache_refresh(cache, true, &err);
        if (!err.status) failure = write_once(cache, file, cached, data, bytes, replaces);
        if (failure != ENOENT) break; /* else the directory or the temporary file was removed in between */
    }
    at_free(cache->allocator, data);
    bool sweep = key->low % 16 == 0;
    const char *const why = err.status ? err.message : failure ? strerror(failure) : NULL;
    note_write(cache, why, bytes, &sweep);
    if (sweep && !why) at_disk_cache_sweep(cache);
}

void at_disk_cache_write(at_disk_cache *cache, const at_key *key, const at_cache_file *cached) {
    write_cache_file(cache, key, cached, false);
}

void at_disk_cache_replace(at_disk_cache *cache, const at_key *key, const at_cache_file *cached) {
    write_cache_file(cache, key, cached, true);
}
