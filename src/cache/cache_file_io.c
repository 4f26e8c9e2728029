/* Reads a cache file whole and checks it. Writing never replaces a good file of the same key. */
#include "cache/cache_file_io.h"

#include <errno.h>
#include <string.h>

at_found at_cache_file_read(const at_io *io, int dir, const char *name, at_file_trust trust,
                            const attune_allocator *allocator, at_opened_cache_file *got) {
    char own[AT_FILE_CHARS];
    at_file *const file = &got->file;
    const at_found found = at_file_read(io, dir, name, trust, allocator, file);
    if (found != AT_FOUND) return found;
    const char *why = at_cache_file_decode(file->data, file->bytes, &got->cached);
    if (!why && at_file_name_of(got->cached.key, got->cached.key_bytes, own) && strcmp(own, name))
        why = "it is the cache file of another kernel";
    if (!why) return AT_FOUND;
    file->why = why;
    return AT_DAMAGED;
}

void at_cache_file_close(at_opened_cache_file *got, const attune_allocator *allocator) {
    at_file_close(&got->file, allocator);
}

/* Whether a cache file of this key has the name, or a file that cannot be read now. Where this CPU lacks features that
 * the cache file needs and the new one does not, it would be a miss for ever. */
static bool is_to_stay(const at_io *io, int dir, const char *name, const at_cache_file *cached,
                       const attune_allocator *allocator) {
    at_opened_cache_file there;
    const at_found found = at_cache_file_read(io, dir, name, AT_TRUST_OWN, allocator, &there);
    const bool stays =
        found == AT_NOT_NOW ||
        (found == AT_FOUND && !(there.cached.required & ~at_cpu_features() & ~cached->required) &&
         there.cached.key_bytes == cached->key_bytes && !memcmp(there.cached.key, cached->key, cached->key_bytes));
    at_cache_file_close(&there, allocator);
    return stays;
}

int at_cache_file_replace(const at_io *io, int dir, const char *name, mode_t mode, const void *data, size_t bytes) {
    char aside[AT_FILE_CHARS];
    int failure = at_file_replace(io, dir, name, mode, data, bytes);
    if (failure != EISDIR) return failure;
    failure = at_file_remove(io, dir, name, aside);
    return failure ? failure : at_file_replace(io, dir, name, mode, data, bytes);
}

int at_cache_file_write(const at_io *io, int dir, const char *name, mode_t mode, const at_cache_file *cached,
                        const attune_allocator *allocator, const void *data, size_t bytes) {
    const int failure = at_file_write(io, dir, name, mode, data, bytes);
    if (failure != EEXIST && failure != EISDIR) return failure;
    if (is_to_stay(io, dir, name, cached, allocator)) return 0;
    return at_cache_file_replace(io, dir, name, mode, data, bytes);
}
