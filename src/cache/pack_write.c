/* Making packs: from the files of the cache directory and the base, and sealing with a signature. */
#define _GNU_SOURCE
#include "base/memory.h"
#include "cache/disk_cache.h"
#include "cache/cache_file_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A cache file that is to be packed. */
typedef struct pack_item {
    at_pack_record record;
    at_place place;
} pack_item;

typedef struct packer {
    at_disk_cache *cache;
    const char *const *keys; /* NULL: all */
    size_t num_keys;
    at_place place; /* that is being walked */
    pack_item *items;
    size_t count, capacity;
    attune_cache_copied *copied;
    bool is_out_of_memory;
} packer;

/* ---- Which cache files ---- */

static bool is_asked_for(const packer *p, const char *file) {
    if (!p->keys) return true;
    for (size_t i = 0; i < p->num_keys; i++)
        if (!strncmp(p->keys[i], file, AT_NAME_CHARS)) return true;
    return false;
}

static pack_item *new_item(packer *p) {
    if (p->count == p->capacity) {
        const size_t capacity = p->capacity ? 2 * p->capacity : 256;
        pack_item *const grown = at_alloc(p->cache->allocator, capacity * sizeof *grown);
        if (!grown) return NULL;
        if (p->count) memcpy(grown, p->items, p->count * sizeof *grown);
        at_free(p->cache->allocator, p->items);
        p->items = grown;
        p->capacity = capacity;
    }
    return &p->items[p->count++];
}

static at_found read_cache_file(const packer *p, int dir, at_place place, const char *file, at_opened_cache_file *got) {
    return at_cache_file_read(p->cache->io, dir, file, place == AT_IN_BASE ? AT_TRUST_ROOT : AT_TRUST_OWN,
                              p->cache->allocator, got);
}

static int collect(void *user, int dir, const char *file, const struct stat *status) {
    packer *const p = user;
    at_opened_cache_file got;
    at_key_parts parts;
    (void)status;
    if (!at_file_is_kernel(file) || !is_asked_for(p, file)) return 0;
    const at_found found = read_cache_file(p, dir, p->place, file, &got);
    p->copied->damaged += found != AT_FOUND && found != AT_MISSING;
    if (found == AT_FOUND && at_key_split(got.cached.key, got.cached.key_bytes, &parts) && at_key_is_of_here(&parts)) {
        pack_item *const item = new_item(p);
        p->is_out_of_memory = !item;
        if (item) {
            *item = (pack_item){.record.bytes = got.file.bytes, .place = p->place};
            snprintf(item->record.name, sizeof item->record.name, "%s", file);
            at_hash(got.file.data, got.file.bytes, item->record.hash);
        }
    } else if (found == AT_FOUND) {
        p->copied->foreign++;
    }
    at_cache_file_close(&got, p->cache->allocator);
    return p->is_out_of_memory;
}

static int by_name(const void *left, const void *right) {
    const pack_item *const a = left, *const b = right;
    const int order = strcmp(a->record.name, b->record.name);
    return order ? order : (int)a->place - (int)b->place;
}

/* In order, each name once: the directory comes before the base. */
static void put_in_order(packer *p) {
    size_t kept = 0;
    if (p->count) qsort(p->items, p->count, sizeof *p->items, by_name);
    for (size_t i = 0; i < p->count; i++)
        if (!kept || strcmp(p->items[kept - 1].record.name, p->items[i].record.name)) p->items[kept++] = p->items[i];
    p->count = kept;
}

static int by_key(const void *key, const void *item) {
    return strncmp(key, ((const pack_item *)item)->record.name, AT_NAME_CHARS);
}

/* The items are in order. */
static attune_status check_keys(const packer *p, at_error *err) {
    for (size_t i = 0; p->keys && i < p->num_keys; i++)
        if (!p->count || !bsearch(p->keys[i], p->items, p->count, sizeof *p->items, by_key))
            return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                           "kernel %.32s is in neither the cache directory nor the base: there is no pack", p->keys[i]);
    return ATTUNE_OK;
}

static attune_status collect_all(packer *p, at_error *err) {
    for (p->place = AT_IN_DIR; p->place <= AT_IN_BASE; p->place++) {
        const int dir = at_disk_cache_dir(p->cache, p->place == AT_IN_BASE);
        if (dir >= 0 && at_files_walk(p->cache->io, dir, collect, p))
            return at_fail(err, ATTUNE_IO_ERROR, "the directory %s cannot be listed: %s",
                           p->place == AT_IN_BASE ? p->cache->base_path : p->cache->path, strerror(errno));
        if (p->is_out_of_memory) return at_fail_memory(err, p->capacity * 2 * sizeof *p->items);
    }
    put_in_order(p);
    if (check_keys(p, err)) return err->status;
    if (!p->count) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "there are no kernels to pack");
    if (p->count > AT_PACK_MAX_FILES)
        return at_fail(err, ATTUNE_UNSUPPORTED, "a pack holds at most %d kernels, not %zu", AT_PACK_MAX_FILES,
                       p->count);
    return ATTUNE_OK;
}

/* ---- The file ---- */

/* The header, the index, and the place of the signature, in a block of the allocator. */
static uint8_t *make_head(const packer *p, at_pack_sizes *sizes) {
    sizes->count = (uint32_t)p->count;
    sizes->signed_bytes = AT_PACK_HEADER_BYTES + p->count * AT_PACK_RECORD_BYTES;
    sizes->file_bytes = sizes->signed_bytes + AT_SIGNATURE_TEXT;
    uint8_t *const head = at_alloc(p->cache->allocator, sizes->file_bytes);
    if (!head) return NULL;
    memset(head + sizes->signed_bytes, 0, AT_SIGNATURE_TEXT);
    for (uint32_t i = 0; i < sizes->count; i++) {
        p->items[i].record.offset = sizes->file_bytes;
        at_pack_record_put(head, i, &p->items[i].record);
        sizes->file_bytes += p->items[i].record.bytes;
    }
    at_pack_header_put(head, sizes);
    return head;
}

/* A cache file that another process evicted or replaced since the first walk fails the whole. */
static attune_status write_cache_file(const packer *p, const pack_item *item, int fd, at_error *err) {
    at_opened_cache_file got;
    uint8_t hash[AT_HASH_BYTES];
    const int dir = at_disk_cache_dir(p->cache, item->place == AT_IN_BASE);
    const at_found found = dir < 0 ? AT_MISSING : read_cache_file(p, dir, item->place, item->record.name, &got);
    attune_status status = ATTUNE_OK;
    if (found == AT_FOUND) at_hash(got.file.data, got.file.bytes, hash);
    if (found != AT_FOUND || memcmp(hash, item->record.hash, sizeof hash))
        status = at_fail(err, ATTUNE_IO_ERROR, "the cache file %s changed while it was packed", item->record.name);
    else if (at_io_write_all(p->cache->io, fd, got.file.data, got.file.bytes))
        status = at_fail(err, ATTUNE_IO_ERROR, "the pack cannot be written: %s", strerror(errno));
    if (dir >= 0) at_cache_file_close(&got, p->cache->allocator);
    return status;
}

static attune_status write_all(const packer *p, int fd, at_error *err) {
    at_pack_sizes sizes;
    uint8_t *const head = make_head(p, &sizes);
    if (!head) return at_fail_memory(err, p->count * AT_PACK_RECORD_BYTES);
    attune_status status = ATTUNE_OK;
    if (at_io_write_all(p->cache->io, fd, head, sizes.signed_bytes + AT_SIGNATURE_TEXT))
        status = at_fail(err, ATTUNE_IO_ERROR, "the pack cannot be written: %s", strerror(errno));
    at_free(p->cache->allocator, head);
    for (size_t i = 0; i < p->count && !status; i++) status = write_cache_file(p, &p->items[i], fd, err);
    p->copied->added = p->count;
    p->copied->added_bytes = sizes.file_bytes;
    return status;
}

/* Opens a directory for a file of this path, whose last part *file becomes. -1 with *err filled. */
static int open_beside(const at_io *io, const char *path, char copy[PATH_MAX], const char **file, at_error *err) {
    const char *const slash = strrchr(path, '/');
    *file = slash ? slash + 1 : path;
    const size_t length = slash ? (size_t)(slash - path) + 1 : 0;
    int fd = -1;
    errno = length < PATH_MAX ? EISDIR : ENAMETOOLONG;
    if (length < PATH_MAX && **file) {
        snprintf(copy, PATH_MAX, "%.*s", (int)length, path);
        fd = at_io_open(io, AT_FDCWD, length ? copy : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    }
    if (fd < 0) at_fail(err, ATTUNE_IO_ERROR, "%s cannot be written: %s", path, strerror(errno));
    return fd;
}

/* Some file systems tell of a write that failed only here. Closes the file in any case. */
static bool close_whole(const at_io *io, int fd) {
    int failed;
    do failed = io->fsync(fd);
    while (failed && errno == EINTR);
    const int reason = errno;
    const bool is_closed = close(fd) == 0;
    if (failed) errno = reason;
    return !failed && is_closed;
}

/* Another name until the file is whole. */
static attune_status write_file(const packer *p, const char *path, at_error *err) {
    const at_io *const io = p->cache->io;
    char copy[PATH_MAX], temporary[AT_FILE_CHARS];
    const char *file;
    const int dir = open_beside(io, path, copy, &file, err);
    if (dir < 0) return err->status;
    int fd = -1;
    if (at_file_random_name("tmp-", temporary))
        fd = at_io_open(io, dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    attune_status status = fd < 0 ? at_fail(err, ATTUNE_IO_ERROR, "%s cannot be written: %s", path, strerror(errno))
                                  : write_all(p, fd, err);
    if (fd >= 0 && !close_whole(io, fd) && !status)
        status = at_fail(err, ATTUNE_IO_ERROR, "%s cannot be written: %s", path, strerror(errno));
    if (!status && io->renameat(dir, temporary, dir, file))
        status = at_fail(err, ATTUNE_IO_ERROR, "%s cannot be written: %s", path, strerror(errno));
    if (status && fd >= 0) io->unlinkat(dir, temporary, 0);
    close(dir);
    return status;
}

attune_status at_disk_cache_pack(at_disk_cache *cache, const char *path, const char *const *keys, size_t num_keys,
                                 attune_cache_copied *copied, at_error *err) {
    AT_HOLD_SIGNALS;
    *copied = (attune_cache_copied){.struct_size = sizeof *copied};
    packer p = {.cache = cache, .keys = keys, .num_keys = num_keys, .copied = copied};
    at_disk_cache_refresh(cache, false, NULL);
    attune_status status = collect_all(&p, err);
    if (!status) status = write_file(&p, path, err);
    if (status) copied->added = copied->added_bytes = 0;
    at_free(cache->allocator, p.items);
    return status;
}

/* ---- Sealing ---- */

/* The text of a signature with the first line that packs have. */
static attune_status take_signature(const char *path, const char *text, size_t bytes, char out[AT_SIGNATURE_TEXT + 1],
                                    at_error *err) {
    const char *const second = memchr(text, '\n', bytes);
    const size_t rest = second ? bytes - (size_t)(second + 1 - text) : 0;
    memset(out, 0, AT_SIGNATURE_TEXT + 1);
    if (!rest) return at_fail(err, ATTUNE_BAD_FILE, "%s is no signature of minisign's", path);
    if (strlen(AT_PACK_COMMENT) + rest >= AT_SIGNATURE_TEXT)
        return at_fail(
            err, ATTUNE_BAD_FILE,
            "the signature %s is too long for a pack, which has %d bytes for it: sign with a shorter trusted "
            "comment (minisign -t)",
            path, AT_SIGNATURE_TEXT);
    memcpy(out, AT_PACK_COMMENT, strlen(AT_PACK_COMMENT));
    memcpy(out + strlen(AT_PACK_COMMENT), second + 1, rest);
    return ATTUNE_OK;
}

static attune_status read_signature(const at_io *io, const char *path, char out[AT_SIGNATURE_TEXT + 1], at_error *err) {
    char text[4 * AT_SIGNATURE_TEXT]; /* what is longer is too long anyway */
    const int fd = at_io_open(io, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    const ssize_t bytes = fd < 0 ? -1 : at_io_read_all(io, fd, text, sizeof text);
    const int reason = errno;
    if (fd >= 0) close(fd);
    if (bytes < 0) return at_fail(err, ATTUNE_IO_ERROR, "the signature %s cannot be read: %s", path, strerror(reason));
    return take_signature(path, text, (size_t)bytes, out, err);
}

/* NULL, or why the signature is not in the file. */
static const char *write_signature(const at_pack *pack, int fd, const char text[AT_SIGNATURE_TEXT]) {
    struct stat now;
    if (at_io_stat(pack->io, fd, &now)) return strerror(errno);
    if (!at_io_is_same(&now, &pack->opened)) return "another file has taken its place";
    if (lseek(fd, (off_t)pack->sizes.signed_bytes, SEEK_SET) < 0 ||
        at_io_write_all(pack->io, fd, text, AT_SIGNATURE_TEXT))
        return strerror(errno);
    return NULL;
}

static attune_status put_signature(const at_pack *pack, const char *path, const char text[AT_SIGNATURE_TEXT],
                                   at_error *err) {
    const int fd = at_io_open(pack->io, AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
    const char *flaw = fd < 0 ? strerror(errno) : write_signature(pack, fd, text);
    if (fd >= 0 && !close_whole(pack->io, fd) && !flaw) flaw = strerror(errno);
    return flaw ? at_fail(err, ATTUNE_IO_ERROR, "the pack %s cannot be written: %s", path, flaw) : ATTUNE_OK;
}

attune_status at_disk_cache_seal(const at_disk_cache *cache, const char *path, const char *signature_path,
                                 at_error *err) {
    AT_HOLD_SIGNALS;
    char text[AT_SIGNATURE_TEXT + 1];
    at_pack pack;
    attune_status status = at_pack_open(&pack, path, cache->io, cache->allocator, err);
    if (status) return status;
    status = read_signature(cache->io, signature_path, text, err);
    if (!status) status = at_pack_verify(&pack, path, text, strlen(text), cache->keys, err);
    if (!status) status = put_signature(&pack, path, text, err);
    at_pack_close(&pack);
    return status;
}
