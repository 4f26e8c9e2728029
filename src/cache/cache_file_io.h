/* A cache file of a directory. Reading and checking it is one function, so that a hit, `verify` and `export` agree. */
#ifndef ATTUNE_CACHE_CACHE_FILE_IO_H
#define ATTUNE_CACHE_CACHE_FILE_IO_H

#include "cache/disk_files.h"
#include "cache/cache_file.h"

typedef struct at_opened_cache_file {
    at_file file;
    at_cache_file cached; /* with AT_FOUND; it points into the file's data */
} at_opened_cache_file;

/* AT_FOUND: a whole cache file with the name that its key has. Cache files of other versions, whose keys have another
 * form, may have any name. at_cache_file_close is for any result. */
at_found at_cache_file_read(const at_io *io, int dir, const char *name, at_file_trust trust,
                            const attune_allocator *allocator, at_opened_cache_file *got);
void at_cache_file_close(at_opened_cache_file *got, const attune_allocator *allocator);

/* Writes a cache file: 0, or the errno. A whole cache file of the same key stays, the first writer's. Anything else
 * with that name is replaced. */
int at_cache_file_write(const at_io *io, int dir, const char *name, mode_t mode, const at_cache_file *cached,
                        const attune_allocator *allocator, const void *data, size_t bytes);

/* The same, but replaces a cache file of the same key, too. */
int at_cache_file_replace(const at_io *io, int dir, const char *name, mode_t mode, const void *data, size_t bytes);

#endif
