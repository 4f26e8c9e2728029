/* Entries from one directory to another: exporting and importing. */
#include "runtime/disk_cache.h"

#include "runtime/cache_dir.h"
#include "runtime/disk_files.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

typedef struct copier {
    const at_disk_cache *cache;
    int from, to;
    at_file_trust trust; /* in what is copied from */
    const char *machine; /* the context's tuning class */
    bool is_import;      /* what cannot be found here is left out; else it goes to machines that can */
    attune_cache_copied *copied;
    int failure; /* errno */
} copier;

typedef enum found_entry { FOUND_WHOLE, FOUND_DAMAGED, FOUND_NOTHING, FOUND_UNREADABLE } found_entry;

/* The verified entry in a file, in a block that *data owns, if it is whole. What cannot be read for now, like for lack
 * of memory, may be. */
static found_entry read_entry(const copier *c, int dir, at_file_trust trust, const char *file, uint8_t **data,
                              size_t *bytes, at_entry *entry) {
    int fd;
    struct stat status;
    char own[AT_FILE_CHARS];
    errno = 0;
    const char *why = at_file_read(c->cache->io, dir, file, trust, c->cache->allocator, &fd, &status, data, bytes);
    if (fd < 0 && !why) return errno == ENOENT ? FOUND_NOTHING : FOUND_UNREADABLE;
    if (fd >= 0) close(fd);
    if (!why && !*data) return FOUND_UNREADABLE;
    if (!why && !at_entry_decode(*data, *bytes, entry)) {
        /* A whole entry under another's name would never be found. How other versions name theirs is not known. */
        if (!at_file_name_of(entry->key, entry->key_bytes, own) || !strcmp(own, file)) return FOUND_WHOLE;
    }
    at_free(c->cache->allocator, *data);
    *data = NULL;
    return FOUND_DAMAGED;
}

static bool is_usable(const at_entry *entry, const at_key_parts *parts) {
    return at_key_is_of_here(parts) && !(entry->required & ~at_cpu_features());
}

/* An entry that is there already stays; only a damaged file makes room. */
static bool is_there(const copier *c, const char *file) {
    uint8_t *data;
    size_t bytes;
    at_entry entry;
    const found_entry found = read_entry(c, c->to, AT_TRUST_OWN, file, &data, &bytes, &entry);
    at_free(c->cache->allocator, data);
    if (found == FOUND_DAMAGED) c->cache->io->unlinkat(c->to, file, 0);
    return found == FOUND_WHOLE || found == FOUND_UNREADABLE;
}

static int copy_file(void *user, const char *file, const struct stat *status) {
    copier *c = user;
    uint8_t *data;
    size_t bytes;
    at_entry entry;
    (void)status;
    if (!at_file_is_entry(file)) return 0;
    const found_entry found = read_entry(c, c->from, c->trust, file, &data, &bytes, &entry);
    if (found != FOUND_WHOLE) {
        /* Another process may have evicted it a moment ago. */
        c->copied->damaged += found != FOUND_NOTHING;
        return 0;
    }
    at_key_parts parts;
    at_key_split(entry.key, entry.key_bytes, &parts);
    const bool is_foreign = !is_usable(&entry, &parts);
    c->copied->foreign += is_foreign;
    if (is_foreign && c->is_import) {
        at_free(c->cache->allocator, data);
        return 0;
    }
    const bool is_other_class = !is_foreign && strcmp(parts.tuning_class, c->machine) != 0;
    if (is_there(c, file)) {
        c->copied->known++;
        c->copied->other_class += is_other_class;
    } else {
        c->failure = at_file_write(c->cache->io, c->to, file, c->is_import ? 0600 : 0644, data, bytes);
        c->copied->added += !c->failure;
        c->copied->other_class += !c->failure && is_other_class;
        c->copied->added_bytes += c->failure ? 0 : bytes;
    }
    at_free(c->cache->allocator, data);
    return c->failure != 0;
}

/* `from` and `to` as paths, for messages. */
static attune_status copy_all(copier *c, const char *from, const char *to, at_error *err) {
    if (at_files_walk(c->cache->io, c->from, copy_file, c))
        return at_fail(err, ATTUNE_IO_ERROR, "the directory %s cannot be listed: %s", from, strerror(errno));
    if (!c->failure) return ATTUNE_OK;
    return at_fail(err, ATTUNE_IO_ERROR, "%s cannot be written: %s (%llu entries were copied before)", to,
                   strerror(c->failure), (unsigned long long)c->copied->added);
}

attune_status at_disk_cache_export(at_disk_cache *cache, const char *directory, const char *machine,
                                   attune_cache_copied *copied, at_error *err) {
    *copied = (attune_cache_copied){.struct_size = sizeof *copied};
    if (cache->dir < 0 && cache->base < 0)
        return at_fail(err, ATTUNE_IO_ERROR, "the disk cache is off: there is nothing to export");
    copier c = {.cache = cache, .machine = machine, .copied = copied};
    c.to = at_cache_dir_open_shared(directory, cache->io, err);
    if (c.to < 0) return ATTUNE_IO_ERROR;
    attune_status status = ATTUNE_OK;
    c.from = cache->dir;
    if (cache->dir >= 0) status = copy_all(&c, cache->path, directory, err);
    c.from = cache->base;
    c.trust = AT_TRUST_ROOT;
    if (cache->base >= 0 && !status) status = copy_all(&c, cache->base_path, directory, err);
    close(c.to);
    return status;
}

attune_status at_disk_cache_import(at_disk_cache *cache, const char *directory, const char *machine,
                                   attune_cache_copied *copied, at_error *err) {
    *copied = (attune_cache_copied){.struct_size = sizeof *copied};
    if (cache->dir < 0) return at_fail(err, ATTUNE_IO_ERROR, "the disk cache is off: there is nothing to import into");
    copier c = {.cache = cache,
                .machine = machine,
                .copied = copied,
                .to = cache->dir,
                .trust = AT_TRUST_ROOT,
                .is_import = true};
    c.from = at_cache_dir_open_foreign(directory, cache->io, err);
    if (c.from < 0) return ATTUNE_IO_ERROR;
    const attune_status status = copy_all(&c, directory, cache->path, err);
    close(c.from);
    atomic_fetch_add(&cache->evictions, at_files_sweep(cache->io, cache->dir, cache->allocator, cache->capacity));
    return status;
}
