/* Entries from one directory to another: exporting and importing. */
#include "runtime/disk_cache.h"

#include "runtime/cache_dir.h"
#include "runtime/entry_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

typedef struct copier {
    const at_disk_cache *cache;
    int from, to;
    at_file_trust trust; /* in the files of `from` */
    const char *machine; /* the context's tuning class */
    bool is_import;      /* leaves out entries that cannot be found here; an export is for other machines */
    attune_cache_copied *copied;
    int failure; /* errno */
} copier;

static bool is_usable(const at_entry *entry, const at_key_parts *parts) {
    return at_key_is_of_here(parts) && !(entry->required & ~at_cpu_features());
}

/* An entry that is there already stays. So does one that cannot be read now, perhaps for lack of memory. */
static bool is_there(const copier *c, const char *file) {
    at_entry_file got;
    const at_found found = at_entry_file_read(c->cache->io, c->to, file, AT_TRUST_OWN, c->cache->allocator, &got);
    at_entry_file_close(&got, c->cache->allocator);
    return found == AT_FOUND || found == AT_NOT_NOW;
}

static void copy_entry(copier *c, const char *file, const at_entry_file *got) {
    at_key_parts parts;
    at_key_split(got->entry.key, got->entry.key_bytes, &parts);
    const bool is_foreign = !is_usable(&got->entry, &parts);
    c->copied->foreign += is_foreign;
    if (is_foreign && c->is_import) return;
    const bool is_other_class = !is_foreign && strcmp(parts.tuning_class, c->machine) != 0;
    if (is_there(c, file)) {
        c->copied->known++;
    } else {
        c->failure = at_entry_file_write(c->cache->io, c->to, file, c->is_import ? 0600 : 0644, &got->entry,
                                         c->cache->allocator, got->file.data, got->file.bytes);
        if (c->failure) return;
        c->copied->added++;
        c->copied->added_bytes += got->file.bytes;
    }
    c->copied->other_class += is_other_class;
}

static int copy_file(void *user, int dir, const char *file, const struct stat *status) {
    copier *c = user;
    at_entry_file got;
    (void)status;
    if (!at_file_is_entry(file)) return 0;
    const at_found found = at_entry_file_read(c->cache->io, dir, file, c->trust, c->cache->allocator, &got);
    if (found == AT_FOUND) copy_entry(c, file, &got);
    /* Another process may have evicted a missing one a moment ago. */
    c->copied->damaged += found != AT_FOUND && found != AT_MISSING;
    at_entry_file_close(&got, c->cache->allocator);
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

attune_status at_disk_cache_import(at_disk_cache *cache, const char *directory, const char *machine,
                                   attune_cache_copied *copied, at_error *err) {
    *copied = (attune_cache_copied){.struct_size = sizeof *copied};
    if (!at_disk_cache_refresh(cache, true, err)) return ATTUNE_IO_ERROR;
    const int own = at_disk_cache_dir(cache, false);
    if (own < 0) return at_fail(err, ATTUNE_IO_ERROR, "the disk cache is off: there is nothing to import into");
    copier c = {.cache = cache, .machine = machine, .copied = copied, .trust = AT_TRUST_ROOT, .is_import = true};
    c.from = at_cache_dir_open_foreign(directory, cache->io, err);
    if (c.from < 0) return ATTUNE_IO_ERROR;
    c.to =
        at_io_open(cache->io, own, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); /* nobody else's, see at_files_walk */
    if (c.to < 0) {
        at_fail(err, ATTUNE_IO_ERROR, "%s cannot be opened: %s", cache->path, strerror(errno));
        close(c.from);
        return ATTUNE_IO_ERROR;
    }
    const attune_status status = copy_all(&c, directory, cache->path, err);
    close(c.from);
    close(c.to);
    at_disk_cache_sweep(cache);
    return status;
}
