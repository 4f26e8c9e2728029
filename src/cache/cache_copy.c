/* Cache files from one directory to another: exporting and importing. */
#include "cache/disk_cache.h"

#include "base/memory.h"
#include "cache/cache_dir.h"
#include "cache/cache_file_io.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

typedef struct copier {
    const at_disk_cache *cache;
    int from, to;
    at_file_trust trust; /* in the files of `from` */
    const char *machine; /* the context's tuning class */
    bool is_import;      /* skips cache files that this machine would never find; an export has them for others */
    attune_cache_copied *copied;
    int failure; /* errno */
} copier;

static bool is_usable(const at_cache_file *cached, const at_key_parts *parts) {
    return at_key_is_of_here(parts) && !(cached->required & ~at_cpu_features());
}

/* A cache file that is there already stays. So does one that cannot be read now, perhaps for lack of memory. */
static bool is_there(const copier *c, const char *file) {
    at_opened_cache_file got;
    const at_found found = at_cache_file_read(c->cache->io, c->to, file, AT_TRUST_OWN, c->cache->allocator, &got);
    at_cache_file_close(&got, c->cache->allocator);
    return found == AT_FOUND || found == AT_NOT_NOW;
}

static void copy_cache_file(copier *c, const char *file, const at_cache_file *cached, const uint8_t *data,
                            size_t bytes) {
    at_key_parts parts;
    at_key_split(cached->key, cached->key_bytes, &parts);
    const bool is_foreign = !is_usable(cached, &parts);
    c->copied->foreign += is_foreign;
    if (is_foreign && c->is_import) return;
    const bool is_other_class = !is_foreign && strcmp(parts.tuning_class, c->machine) != 0;
    if (is_there(c, file)) {
        c->copied->known++;
    } else {
        c->failure = at_cache_file_write(c->cache->io, c->to, file, c->is_import ? 0600 : 0644, cached,
                                         c->cache->allocator, data, bytes);
        if (c->failure) return;
        c->copied->added++;
        c->copied->added_bytes += bytes;
    }
    c->copied->other_class += is_other_class;
}

static int copy_file(void *user, int dir, const char *file, const struct stat *status) {
    copier *c = user;
    at_opened_cache_file got;
    (void)status;
    if (!at_file_is_kernel(file)) return 0;
    const at_found found = at_cache_file_read(c->cache->io, dir, file, c->trust, c->cache->allocator, &got);
    if (found == AT_FOUND) copy_cache_file(c, file, &got.cached, got.file.data, got.file.bytes);
    /* A file that is missing now was evicted by another process. */
    c->copied->damaged += found != AT_FOUND && found != AT_MISSING;
    at_cache_file_close(&got, c->cache->allocator);
    return c->failure != 0;
}

/* `from` and `to` as paths, for messages. */
static attune_status copy_all(copier *c, const char *from, const char *to, at_error *err) {
    if (at_files_walk(c->cache->io, c->from, copy_file, c))
        return at_fail(err, ATTUNE_IO_ERROR, "the directory %s cannot be listed: %s", from, strerror(errno));
    if (!c->failure) return ATTUNE_OK;
    return at_fail(err, ATTUNE_IO_ERROR, "%s cannot be written: %s (%llu files were copied before)", to,
                   strerror(c->failure), (unsigned long long)c->copied->added);
}

attune_status at_disk_cache_export(at_disk_cache *cache, const char *directory, const char *machine,
                                   attune_cache_copied *copied, at_error *err) {
    *copied = (attune_cache_copied){.struct_size = sizeof *copied};
    at_disk_cache_refresh(cache, false, NULL);
    const int own = at_disk_cache_dir(cache, false), base = at_disk_cache_dir(cache, true);
    if (own < 0 && base < 0) return at_fail(err, ATTUNE_IO_ERROR, "the disk cache is off: there is nothing to export");
    copier c = {.cache = cache, .machine = machine, .copied = copied};
    c.to = at_cache_dir_open_shared(directory, cache->io, err);
    if (c.to < 0) return ATTUNE_IO_ERROR;
    attune_status status = ATTUNE_OK;
    c.from = own;
    if (own >= 0) status = copy_all(&c, cache->path, directory, err);
    c.from = base;
    c.trust = AT_TRUST_ROOT;
    if (base >= 0 && !status) status = copy_all(&c, cache->base_path, directory, err);
    close(c.to);
    return status;
}

/* Opens the cache directory to write to; -1 with *err filled. */
static int open_own(at_disk_cache *cache, at_error *err) {
    if (!at_disk_cache_refresh(cache, true, err)) return -1;
    const int own = at_disk_cache_dir(cache, false);
    if (own < 0) {
        at_fail(err, ATTUNE_IO_ERROR, "the disk cache is off: there is nothing to import into");
        return -1;
    }
    /* nobody else's, see at_files_walk */
    const int to = at_io_open(cache->io, own, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (to < 0) at_fail(err, ATTUNE_IO_ERROR, "%s cannot be opened: %s", cache->path, strerror(errno));
    return to;
}

attune_status at_disk_cache_import(at_disk_cache *cache, const char *directory, const char *machine,
                                   attune_cache_copied *copied, at_error *err) {
    *copied = (attune_cache_copied){.struct_size = sizeof *copied};
    copier c = {.cache = cache, .machine = machine, .copied = copied, .trust = AT_TRUST_ROOT, .is_import = true};
    c.to = open_own(cache, err);
    if (c.to < 0) return ATTUNE_IO_ERROR;
    c.from = at_cache_dir_open_foreign(directory, cache->io, err);
    if (c.from < 0) {
        close(c.to);
        return ATTUNE_IO_ERROR;
    }
    const attune_status status = copy_all(&c, directory, cache->path, err);
    close(c.from);
    close(c.to);
    at_disk_cache_sweep(cache);
    return status;
}

/* Every cache file is verified by itself as it comes, so one that was changed on the disk meanwhile is only left out.
 */
static attune_status copy_pack(copier *c, const at_pack *pack, at_error *err) {
    for (uint32_t i = 0; i < pack->sizes.count && !c->failure; i++) {
        at_pack_record record;
        at_cache_file cached;
        uint8_t *data;
        const char *why;
        at_pack_record_get(pack->signed_part, i, &record);
        if (at_pack_read(pack, &record, &data, &cached, &why) == AT_FOUND)
            copy_cache_file(c, record.name, &cached, data, record.bytes);
        else
            c->copied->damaged++;
        at_free(pack->allocator, data);
    }
    if (!c->failure) return ATTUNE_OK;
    return at_fail(err, ATTUNE_IO_ERROR, "%s cannot be written: %s (%llu files were copied before)", c->cache->path,
                   strerror(c->failure), (unsigned long long)c->copied->added);
}

attune_status at_disk_cache_add(at_disk_cache *cache, const char *path, const char *machine,
                                attune_cache_copied *copied, at_error *err) {
    *copied = (attune_cache_copied){.struct_size = sizeof *copied};
    at_pack pack;
    attune_status status = at_pack_open_signed(&pack, path, cache->keys, cache->io, cache->allocator, err);
    if (status) return status;
    copier c = {.cache = cache, .machine = machine, .copied = copied, .is_import = true};
    c.to = open_own(cache, err);
    status = c.to < 0 ? ATTUNE_IO_ERROR : copy_pack(&c, &pack, err);
    if (c.to >= 0) close(c.to);
    at_pack_close(&pack);
    at_disk_cache_sweep(cache);
    return status;
}
