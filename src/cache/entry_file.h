/* An entry in a file of a cache directory. It is read and checked in one place, so that a hit, `verify` and `export`
 * find the same. */
#ifndef ATTUNE_CACHE_ENTRY_FILE_H
#define ATTUNE_CACHE_ENTRY_FILE_H

#include "cache/disk_files.h"
#include "cache/entry.h"

typedef struct at_entry_file {
    at_file file;
    at_entry entry; /* with AT_FOUND; it points into the file's data */
} at_entry_file;

/* AT_FOUND: a whole entry with the name that its key has. Entries of other versions, whose keys have another form, may
 * have any name. at_entry_file_close is for any result. */
at_found at_entry_file_read(const at_io *io, int dir, const char *name, at_file_trust trust,
                            const attune_allocator *allocator, at_entry_file *got);
void at_entry_file_close(at_entry_file *got, const attune_allocator *allocator);

/* Writes an entry: 0, or the errno. A whole entry of the same key stays, the first writer's. Anything else that has the
 * name gives way. */
int at_entry_file_write(const at_io *io, int dir, const char *name, mode_t mode, const at_entry *entry,
                        const attune_allocator *allocator, const void *data, size_t bytes);

/* The same, but another entry of the same key gives way, too. */
int at_entry_file_replace(const at_io *io, int dir, const char *name, mode_t mode, const void *data, size_t bytes);

#endif
