/* All cache files of the disk cache at once: listing, clearing, collecting. */
#include "cache/disk_cache.h"

#include "base/memory.h"
#include "cache/cache_file_io.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- Listing ---- */

typedef struct visitor {
    at_disk_cache *cache;
    bool is_base, has_stopped;
    attune_cache_visit_fn *visit;
    void *user;
} visitor;

static void show_content(attune_cache_file *shown, const at_cache_file *cached, at_key_parts *parts) {
    at_key_split(cached->key, cached->key_bytes, parts);
    shown->problem = cached->problem;
    shown->schedule = cached->schedule;
    shown->isa = cached->isa;
    shown->ir = cached->ir ? cached->ir : "";
    shown->is_usable = at_key_is_of_here(parts) && !(cached->required & ~at_cpu_features());
    shown->image = cached->image;
    shown->image_bytes = cached->image_bytes;
    shown->key = cached->key;
    shown->key_bytes = cached->key_bytes;
}

static int visit_file(void *user, int dir, const char *file, const struct stat *status) {
    visitor *v = user;
    at_disk_cache *cache = v->cache;
    if (!at_file_is_kernel(file)) return 0;
    at_opened_cache_file got;
    const at_found found =
        at_cache_file_read(cache->io, dir, file, v->is_base ? AT_TRUST_ROOT : AT_TRUST_OWN, cache->allocator, &got);
    if (found == AT_MISSING) return 0; /* evicted while the directory was read */
    const bool is_whole = found == AT_FOUND;
    char message[128];
    snprintf(message, sizeof message, "%s%s",
             found == AT_UNREADABLE || found == AT_NOT_NOW ? "the file cannot be read: " : "", got.file.why);
    at_key_parts parts = {0};
    attune_cache_file shown = {
        .struct_size = sizeof shown,
        .file = file,
        .bytes = (uint64_t)status->st_size,
        .status = is_whole              ? ATTUNE_OK
                  : found == AT_DAMAGED ? ATTUNE_BAD_FILE
                                        : ATTUNE_IO_ERROR,
        .message = message,
        .problem = "",
        .schedule = "",
        .isa = "",
        .ir = "",
        .used_at = status->st_mtim.tv_sec,
        .directory = v->is_base ? cache->base_path : cache->path,
        .is_base = v->is_base,
        .machine = parts.tuning_class,
        .llvm = parts.llvm,
        .generator = parts.generator,
    };
    if (is_whole) show_content(&shown, &got.cached, &parts);
    v->has_stopped = v->visit(v->user, &shown) != 0;
    at_cache_file_close(&got, cache->allocator);
    return v->has_stopped;
}

static void visit_record(visitor *v, const at_pack_record *record) {
    const at_pack *const pack = &v->cache->pack;
    at_cache_file cached;
    at_key_parts parts = {0};
    uint8_t *data;
    const char *why;
    const at_found found = at_pack_read(pack, record, &data, &cached, &why);
    attune_cache_file shown = {
        .struct_size = sizeof shown,
        .file = record->name,
        .bytes = record->bytes,
        .status = found == AT_FOUND     ? ATTUNE_OK
                  : found == AT_DAMAGED ? ATTUNE_BAD_FILE
                                        : ATTUNE_IO_ERROR,
        .message = found == AT_FOUND ? "" : why,
        .problem = "",
        .schedule = "",
        .isa = "",
        .ir = "",
        .used_at = pack->opened.st_mtim.tv_sec,
        .directory = v->cache->pack_path,
        .pack = v->cache->pack_path,
        .machine = parts.tuning_class,
        .llvm = parts.llvm,
        .generator = parts.generator,
    };
    if (found == AT_FOUND) show_content(&shown, &cached, &parts);
    v->has_stopped = v->visit(v->user, &shown) != 0;
    at_free(pack->allocator, data);
}

static void visit_pack(visitor *v) {
    const at_pack *const pack = &v->cache->pack;
    at_pack_record record;
    for (uint32_t i = 0; at_pack_is_open(pack) && i < pack->sizes.count && !v->has_stopped; i++) {
        at_pack_record_get(pack->signed_part, i, &record);
        visit_record(v, &record);
    }
}

attune_status at_disk_cache_visit(at_disk_cache *cache, attune_cache_visit_fn *visit, void *user, at_error *err) {
    visitor v = {.cache = cache, .visit = visit, .user = user};
    at_disk_cache_refresh(cache, false, NULL);
    int dir = at_disk_cache_dir(cache, false);
    if (dir >= 0 && at_files_walk(cache->io, dir, visit_file, &v))
        return at_fail(err, ATTUNE_IO_ERROR, "the cache directory %s cannot be listed: %s", cache->path,
                       strerror(errno));
    v.is_base = true;
    dir = at_disk_cache_dir(cache, true);
    if (dir >= 0 && !v.has_stopped && at_files_walk(cache->io, dir, visit_file, &v))
        return at_fail(err, ATTUNE_IO_ERROR, "the base of the cache %s cannot be listed: %s", cache->base_path,
                       strerror(errno));
    visit_pack(&v);
    return ATTUNE_OK;
}

/* ---- Clearing, collecting ---- */

typedef struct remover {
    const at_disk_cache *cache;
    uint64_t removed;
    int failure;
} remover;

/* Another process may be writing a young temporary file. */
static int remove_file(void *user, int dir, const char *file, const struct stat *status) {
    remover *r = user;
    const at_disk_cache *cache = r->cache;
    if (!at_file_is_kernel(file) && !at_file_is_orphan(cache->io, dir, file, status)) return 0;
    char aside[AT_FILE_CHARS];
    const int failure = at_file_remove(cache->io, dir, file, aside);
    if (*aside)
        at_log_printf(cache->log, ATTUNE_LOG_WARNING, "%s of the cache directory %s is a directory: it is %s now", file,
                      cache->path, aside);
    if (failure && failure != ENOENT) r->failure = failure;
    r->removed += !failure && at_file_is_kernel(file);
    return 0;
}

attune_status at_disk_cache_clear(at_disk_cache *cache, uint64_t *removed, at_error *err) {
    *removed = 0;
    at_disk_cache_refresh(cache, false, NULL);
    const int dir = at_disk_cache_dir(cache, false);
    if (dir < 0) return ATTUNE_OK;
    remover r = {.cache = cache};
    if (at_files_walk(cache->io, dir, remove_file, &r)) r.failure = errno;
    *removed = r.removed;
    if (!r.failure) return ATTUNE_OK;
    return at_fail(err, ATTUNE_IO_ERROR, "not all of the cache directory %s could be cleared: %s", cache->path,
                   strerror(r.failure));
}

attune_status at_disk_cache_collect(at_disk_cache *cache, uint64_t max_bytes, attune_cache_collected *collected,
                                    at_error *err) {
    *collected = (attune_cache_collected){.struct_size = sizeof *collected};
    at_disk_cache_refresh(cache, false, NULL);
    const int dir = at_disk_cache_dir(cache, false);
    if (dir < 0) return ATTUNE_OK;
    if (max_bytes == UINT64_MAX) max_bytes = cache->capacity;
    const at_trimmed t = at_files_trim(cache->io, dir, cache->allocator, max_bytes, max_bytes);
    atomic_fetch_add(&cache->evictions, t.files);
    collected->removed = t.files;
    collected->removed_bytes = t.bytes;
    collected->orphans = t.orphans;
    collected->orphan_bytes = t.orphan_bytes;
    collected->left = t.left;
    collected->left_bytes = t.left_bytes;
    if (!t.failure) return ATTUNE_OK;
    return at_fail(err, ATTUNE_IO_ERROR, "not all that should go from %s could be removed: %s (%llu files were)",
                   cache->path, strerror(t.failure), (unsigned long long)t.files);
}
