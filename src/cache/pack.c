/* A cache file of a pack is used only if it has the hash that the index says. The signature, where one is required,
 * covers header and index. */
#define _GNU_SOURCE
#include "cache/pack.h"

#include "base/memory.h"
#include "cache/cache_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

/* ---- Keys ---- */

const char *at_keys_dir(const char *keys) {
    if (getauxval(AT_SECURE)) return AT_KEYS_DIR;
    if (!keys) keys = secure_getenv("ATTUNE_CACHE_KEYS");
    return keys && *keys ? keys : AT_KEYS_DIR;
}

/* A search through the keys of a directory. */
typedef struct key_search {
    const at_pack *pack;
    const at_signature_of *signature;
    unsigned keys;   /* that were read */
    bool has_number; /* a key of the signature's number is among them */
    bool is_found;
    char passed_over[160]; /* the first file that is no key, and why; "": there is none */
} key_search;

/* NULL, or why the file does not count. */
static const char *read_open_key(const at_io *io, int fd, at_public_key *key) {
    char text[1024];
    struct stat status;
    if (at_io_stat(io, fd, &status)) return strerror(errno);
    if (!S_ISREG(status.st_mode)) return "it is not a regular file";
    if (status.st_mode & 022) return "others can write to it";
    if (status.st_uid != 0 && status.st_uid != geteuid()) return "it belongs to another user";
    const ssize_t bytes = at_io_read_all(io, fd, text, sizeof text);
    return bytes < 0 ? strerror(errno) : at_public_key_parse(text, (size_t)bytes, key);
}

static const char *read_key(const at_io *io, int dir, const char *file, at_public_key *key) {
    const int fd = at_io_open(io, dir, file, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0) return errno == ELOOP ? "it is a link" : strerror(errno);
    const char *const flaw = read_open_key(io, fd, key);
    close(fd);
    return flaw;
}

static int try_key(void *user, int dir, const char *file, const struct stat *status) {
    key_search *const search = user;
    at_public_key key;
    (void)status;
    const size_t length = strlen(file);
    if (length < 5 || strcmp(file + length - 4, ".pub")) return 0;
    const char *const flaw = read_key(search->pack->io, dir, file, &key);
    if (flaw && !*search->passed_over)
        snprintf(search->passed_over, sizeof search->passed_over, "; %.60s does not count: %.72s", file, flaw);
    if (flaw) return 0;
    search->keys++;
    if (memcmp(key.number, search->signature->number, sizeof key.number)) return 0;
    search->has_number = true;
    search->is_found =
        at_signature_verify(search->signature, &key, search->pack->signed_part, search->pack->sizes.signed_bytes);
    return search->is_found;
}

attune_status at_pack_verify(const at_pack *pack, const char *path, const char *text, size_t bytes, const char *keys,
                             at_error *err) {
    at_signature_of signature;
    at_error why = {0};
    char number[AT_KEY_NUMBER_CHARS + 1];
    const char *const flaw = at_signature_parse(text, bytes, &signature);
    if (flaw) return at_fail(err, ATTUNE_BAD_FILE, "the signature of the pack %s cannot be read: %s", path, flaw);
    const int dir = at_cache_dir_open_foreign(keys, pack->io, &why);
    if (dir < 0)
        return at_fail(err, ATTUNE_BAD_FILE, "the pack %s cannot be trusted, as there are no keys: %s", path,
                       why.message);
    key_search search = {.pack = pack, .signature = &signature};
    const int failure = at_files_walk(pack->io, dir, try_key, &search) ? errno : 0;
    close(dir);
    at_key_number_print(signature.number, number);
    if (failure)
        return at_fail(err, ATTUNE_IO_ERROR, "the directory of keys %s cannot be read: %s", keys, strerror(failure));
    if (search.is_found) return ATTUNE_OK;
    if (search.has_number)
        return at_fail(err, ATTUNE_BAD_FILE, "the pack %s was changed, or key %s has not signed it", path, number);
    return at_fail(err, ATTUNE_BAD_FILE, "the pack %s is signed by key %s, which is none of the %u keys in %s%s", path,
                   number, search.keys, keys, search.passed_over);
}

/* ---- Opening ---- */

static ssize_t read_at(const at_pack *pack, void *data, size_t bytes, uint64_t offset) {
    size_t done = 0;
    while (done < bytes) {
        const ssize_t got = pack->io->pread(pack->fd, (char *)data + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (!got) break;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

/* NULL, or why the header, the index and the signature are not there as they should be. */
static const char *read_signed_part(at_pack *pack) {
    static const char *const short_read = "it became shorter while it was read";
    uint8_t header[AT_PACK_HEADER_BYTES];
    if (pack->opened.st_size < AT_PACK_HEADER_BYTES) return "it is too short for a pack";
    if (read_at(pack, header, sizeof header, 0) != sizeof header) return short_read;
    const char *const flaw = at_pack_header_check(header, (uint64_t)pack->opened.st_size, &pack->sizes);
    if (flaw) return flaw;
    const size_t bytes = pack->sizes.signed_bytes;
    pack->signed_part = at_alloc(pack->allocator, bytes);
    if (!pack->signed_part) return "memory is short";
    memcpy(pack->signed_part, header, sizeof header);
    const size_t index = bytes - sizeof header;
    if (read_at(pack, pack->signed_part + sizeof header, index, sizeof header) != (ssize_t)index) return short_read;
    if (read_at(pack, pack->signature, AT_SIGNATURE_TEXT, bytes) != AT_SIGNATURE_TEXT) return short_read;
    for (size_t i = strlen(pack->signature); i < AT_SIGNATURE_TEXT; i++)
        if (pack->signature[i]) return "zeros do not follow its signature";
    if (pack->signature[0] && strncmp(pack->signature, AT_PACK_COMMENT, strlen(AT_PACK_COMMENT)))
        return "its signature has another first line";
    return NULL;
}

static attune_status open_file(at_pack *pack, const char *path, at_error *err) {
    pack->fd = at_io_open(pack->io, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (pack->fd < 0 || at_io_stat(pack->io, pack->fd, &pack->opened))
        return at_fail(err, ATTUNE_IO_ERROR, "the pack %s cannot be opened: %s", path, strerror(errno));
    if (!S_ISREG(pack->opened.st_mode)) return at_fail(err, ATTUNE_BAD_FILE, "the pack %s is not a regular file", path);
    const char *const flaw = read_signed_part(pack);
    if (flaw) return at_fail(err, ATTUNE_BAD_FILE, "the pack %s cannot be used: %s", path, flaw);
    return ATTUNE_OK;
}

/* The index is read only after the signature was verified, if that is required. */
static attune_status open_pack(at_pack *pack, const char *path, const char *keys, const at_io *io,
                               const attune_allocator *allocator, at_error *err) {
    *pack = (at_pack){.allocator = allocator, .io = io, .fd = -1};
    attune_status status = open_file(pack, path, err);
    if (!status && keys && !pack->signature[0])
        status = at_fail(err, ATTUNE_BAD_FILE, "the pack %s is not signed", path);
    if (!status && keys) status = at_pack_verify(pack, path, pack->signature, strlen(pack->signature), keys, err);
    const char *const flaw = status ? NULL : at_pack_index_check(pack->signed_part, &pack->sizes);
    if (flaw) status = at_fail(err, ATTUNE_BAD_FILE, "the pack %s cannot be used: %s", path, flaw);
    if (status) at_pack_close(pack);
    return status;
}

attune_status at_pack_open(at_pack *pack, const char *path, const at_io *io, const attune_allocator *allocator,
                           at_error *err) {
    return open_pack(pack, path, NULL, io, allocator, err);
}

attune_status at_pack_open_signed(at_pack *pack, const char *path, const char *keys, const at_io *io,
                                  const attune_allocator *allocator, at_error *err) {
    return open_pack(pack, path, keys, io, allocator, err);
}

void at_pack_close(at_pack *pack) {
    if (pack->fd >= 0 && !at_io_is_lost(pack->io, pack->fd, &pack->opened)) close(pack->fd);
    at_free(pack->allocator, pack->signed_part);
    *pack = (at_pack){.fd = -1};
}

/* ---- Cache files ---- */

static at_found check_copy(const at_pack_record *record, const uint8_t *copy, at_cache_file *cached, const char **why) {
    uint8_t hash[AT_HASH_BYTES];
    char own[AT_FILE_CHARS];
    at_hash(copy, record->bytes, hash);
    *why = memcmp(hash, record->hash, sizeof hash) ? "its bytes do not have the hash in the index"
                                                   : at_cache_file_decode(copy, record->bytes, cached);
    if (!*why && at_file_name_of(cached->key, cached->key_bytes, own) && strcmp(own, record->name))
        *why = "it is the cache file of another kernel";
    return *why ? AT_DAMAGED : AT_FOUND;
}

at_found at_pack_read(const at_pack *pack, const at_pack_record *record, uint8_t **data, at_cache_file *cached,
                      const char **why) {
    *data = NULL;
    *why = "other code in this process has closed its descriptor";
    if (at_io_is_lost(pack->io, pack->fd, &pack->opened)) return AT_UNREADABLE;
    uint8_t *const copy = at_alloc_aligned(pack->allocator, record->bytes, 64);
    *why = "memory is short";
    if (!copy) return AT_NOT_NOW;
    const ssize_t got = read_at(pack, copy, record->bytes, record->offset);
    at_found found = AT_DAMAGED;
    if (got < 0) {
        *why = strerror(errno);
        found = AT_UNREADABLE;
    } else if ((uint64_t)got < record->bytes) {
        *why = "the pack has become shorter";
    } else {
        found = check_copy(record, copy, cached, why);
    }
    if (found == AT_FOUND)
        *data = copy;
    else
        at_free(pack->allocator, copy);
    return found;
}
