/* The files of a cache directory: names, whole-file reads and atomic writes, walking, eviction. */
#ifndef ATTUNE_RUNTIME_DISK_FILES_H
#define ATTUNE_RUNTIME_DISK_FILES_H

#include "runtime/io.h"
#include "runtime/key.h"

/* "<32 hex digits>-<tuning class>.attune" */
enum { AT_FILE_CHARS = 72 };

/* The file of a key, and of the same kernel for another tuning class. */
void at_file_name(const at_key *key, char file[AT_FILE_CHARS]);
void at_file_name_for(const at_key *key, const char *tuning_class, char file[AT_FILE_CHARS]);

/* The file of any full key; false if the bytes are none. */
bool at_file_name_of(const uint8_t *bytes, size_t size, char file[AT_FILE_CHARS]);
bool at_file_is_entry(const char *file);
bool at_file_is_temporary(const char *file);

/* Whose files count: this user's own, in a directory that only this user can write to; or root's as well, and none that
 * others can write to. */
typedef enum at_file_trust { AT_TRUST_OWN, AT_TRUST_ROOT } at_file_trust;

/* Opens and reads a file: a regular one, trusted, not a link, of a plausible size. *fd is the open file, or -1; *data a
 * block of the allocator, or NULL. Returns NULL, or what makes the file one that should not be there. A file that is
 * missing or cannot be read for now gives NULL and no data. */
const char *at_file_read(const at_io *io, int dir, const char *file, at_file_trust trust,
                         const attune_allocator *allocator, int *fd, struct stat *status, uint8_t **data,
                         size_t *bytes);

/* Writes a file that is either whole or not there: 0, or the errno. A file that exists already is left alone, except
 * on a file system without hard links: there it may be replaced, as whole as before. */
int at_file_write(const at_io *io, int dir, const char *file, mode_t mode, const void *data, size_t bytes);

/* The same, but a file that exists gives way, in one step and only to a whole one. */
int at_file_replace(const at_io *io, int dir, const char *file, mode_t mode, const void *data, size_t bytes);

/* Calls visit for each regular file; non-zero stops. 0, or -1 with errno when the directory cannot be listed. */
typedef int at_file_visit_fn(void *user, const char *file, const struct stat *status);
int at_files_walk(const at_io *io, int dir, at_file_visit_fn *visit, void *user);

/* What was removed, what is left, and the first errno that kept something from being removed. */
typedef struct at_trimmed {
    uint64_t entries, bytes, orphans, orphan_bytes, left, left_bytes;
    int failure;
} at_trimmed;

/* Removes what writers that crashed over an hour ago left and, if the entries take more than `limit` bytes, the least
 * recently used until they take no more than `goal`. */
at_trimmed at_files_trim(const at_io *io, int dir, const attune_allocator *allocator, uint64_t limit, uint64_t goal);

/* Removes what crashed writers left, and the least recently used entries until 7/8 of the capacity are used. Returns
 * the number of entries removed. */
uint64_t at_files_sweep(const at_io *io, int dir, const attune_allocator *allocator, uint64_t capacity);

#endif
