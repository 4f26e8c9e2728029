/* The disk cache: one file for each kernel, named by its key (format: cache/cache_file.h; reasons: docs/cache.md).
 * Every failure here only costs time: the kernel is compiled again, or stays in memory. */
#ifndef ATTUNE_CACHE_DISK_CACHE_H
#define ATTUNE_CACHE_DISK_CACHE_H

#include "cache/cache_file.h"
#include "cache/pack.h"
#include "host/io.h"
#include "host/log.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

typedef struct at_disk_cache {
    const attune_allocator *allocator;
    const at_io *io;
    const at_log *log;
    atomic_int dir;      /* -1: the cache is off; read by at_disk_cache_dir. Another directory may get this number */
    char path[PATH_MAX]; /* "" when off */
    atomic_int base;     /* a second directory, which is only read; -1: none */
    char base_path[PATH_MAX];
    at_pack pack; /* a file that is only read, after the base */
    char pack_path[PATH_MAX], keys[PATH_MAX];
    char from_root[2][PATH_MAX]; /* both paths, absolute, so that the host may change its working directory */
    char refusals[3][ATTUNE_MESSAGE_BYTES]; /* why they or the pack cannot be used; "" */
    uint64_t capacity;
    atomic_ullong evictions, damaged, write_failures;

    pthread_mutex_t mutex;      /* guards all below */
    struct stat opened[2];      /* the directory and the base that have the numbers: device and inode */
    double paused_until, pause; /* seconds of the monotonic clock; after failed writes */
    bool write_logged;
    uint64_t written_since_sweep;
} at_disk_cache;

/* Opens the directory, and makes it if it is missing. `dir` NULL: the environment names it; "": off. If it cannot be
 * used the cache is off, with one log message. */
void at_disk_cache_init(at_disk_cache *cache, const char *dir, uint64_t capacity, const attune_allocator *allocator,
                        const at_io *io, const at_log *log);
/* Opens the read-only base, which works without the other directory too. NULL: the environment names it; "": none. A
 * base that is missing or cannot be trusted is not used, with one log message. */
void at_disk_cache_open_base(at_disk_cache *cache, const char *base);

/* Opens a pack that a key in the directory `keys` has signed. NULL: the environment names either; "": no pack. A pack
 * that cannot be trusted is not used, with one log message. */
void at_disk_cache_open_pack(at_disk_cache *cache, const char *pack, const char *keys);

void at_disk_cache_free(at_disk_cache *cache);

/* The descriptor of the directory, or of the base; -1: off. The host may have closed all descriptors, and the number
 * may be a file of its own now. Then the directory is off from now on, and the log says so. */
int at_disk_cache_dir(at_disk_cache *cache, bool is_base);

/* Opens the directory and the base again if another directory has taken their place. `makes`: a directory that is
 * missing now is made. False with *err filled if the directory cannot be used now. */
bool at_disk_cache_refresh(at_disk_cache *cache, bool makes, at_error *err);

/* The verified cache file of a key, in a block of the allocator that *data owns; false: there is none. The base comes
 * second, the pack third. A damaged file is removed (except from these) and counted. */
bool at_disk_cache_read(at_disk_cache *cache, const at_key *key, uint8_t **data, at_cache_file *cached);

/* The same for the nearest other tuning class that has a cache file; *found is its name, in static storage. Opens at
 * most one file for each class and directory, and lists none. *next is 0 for the first call. If the cache file cannot
 * be used, another call goes on from there. */
bool at_disk_cache_read_near(at_disk_cache *cache, const at_key *key, size_t *next, uint8_t **data,
                             at_cache_file *cached, const char **found);

/* Counts a cache file whose content turned out to be unusable, and removes it, except from the base and the pack. */
void at_disk_cache_reject(at_disk_cache *cache, const at_cache_file *cached, const char *why);

/* Writes a cache file. The first valid one of several writers wins; what is damaged or cannot be read is replaced. */
void at_disk_cache_write(at_disk_cache *cache, const at_key *key, const at_cache_file *cached);

/* Replaces an older cache file, which stays if that fails. */
void at_disk_cache_replace(at_disk_cache *cache, const at_key *key, const at_cache_file *cached);

/* Evicts down to the capacity, as writers do from time to time. */
void at_disk_cache_sweep(at_disk_cache *cache);

attune_status at_disk_cache_visit(at_disk_cache *cache, attune_cache_visit_fn *visit, void *user, at_error *err);
attune_status at_disk_cache_clear(at_disk_cache *cache, uint64_t *removed, at_error *err);

/* As attune_cache_gc, attune_cache_export and attune_cache_import; `machine` is the context's tuning class. */
attune_status at_disk_cache_collect(at_disk_cache *cache, uint64_t max_bytes, attune_cache_collected *collected,
                                    at_error *err);
attune_status at_disk_cache_export(at_disk_cache *cache, const char *directory, const char *machine,
                                   attune_cache_copied *copied, at_error *err);
attune_status at_disk_cache_import(at_disk_cache *cache, const char *directory, const char *machine,
                                   attune_cache_copied *copied, at_error *err);

/* As attune_cache_pack, attune_cache_seal and attune_cache_add. */
attune_status at_disk_cache_pack(at_disk_cache *cache, const char *path, const char *const *keys, size_t num_keys,
                                 attune_cache_copied *copied, at_error *err);
attune_status at_disk_cache_seal(const at_disk_cache *cache, const char *path, const char *signature_path,
                                 at_error *err);
attune_status at_disk_cache_add(at_disk_cache *cache, const char *path, const char *machine,
                                attune_cache_copied *copied, at_error *err);

#endif
