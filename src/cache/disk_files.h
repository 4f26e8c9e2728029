/* The files of a cache directory: names, whole-file reads and atomic writes, walking, eviction. */
#ifndef ATTUNE_CACHE_DISK_FILES_H
#define ATTUNE_CACHE_DISK_FILES_H

#include "cache/key.h"
#include "host/io.h"

/* "<32 hex digits>-<tuning class>.attune" */
enum { AT_FILE_CHARS = 72 };

/* The file of a key, and of the same kernel for another tuning class. */
void at_file_name(const at_key *key, char file[AT_FILE_CHARS]);
void at_file_name_for(const at_key *key, const char *tuning_class, char file[AT_FILE_CHARS]);

/* The file of any full key; false if the bytes are no key. */
bool at_file_name_of(const uint8_t *bytes, size_t size, char file[AT_FILE_CHARS]);
bool at_file_is_kernel(const char *file);
bool at_file_is_temporary(const char *file);

/* A name that no other process makes; false with errno. Those with the prefix "tmp-" are temporary. */
bool at_file_random_name(const char *prefix, char file[AT_FILE_CHARS]);

/* Whose files count. AT_TRUST_OWN: this user's, in a directory that only this user can write to. AT_TRUST_ROOT: root's,
 * too, but no file that others can write to. */
typedef enum at_file_trust { AT_TRUST_OWN, AT_TRUST_ROOT } at_file_trust;

/* Results of reading a file. AT_UNREADABLE: the file is at fault (permissions, an error of the disk). AT_NOT_NOW: this
 * process is at fault (no descriptor, no memory). */
typedef enum at_found { AT_FOUND, AT_MISSING, AT_DAMAGED, AT_UNREADABLE, AT_NOT_NOW } at_found;

typedef struct at_file {
    int fd; /* open for at_file_close if the file could be opened; else -1 */
    struct stat status;
    uint8_t *data; /* a block of the allocator, unless something is wrong */
    size_t bytes;
    const char *why; /* what is wrong; "" with AT_FOUND */
} at_file;

/* Opens and reads a file: a regular one, trusted, not a link, of a plausible size. at_file_close is for any result. */
at_found at_file_read(const at_io *io, int dir, const char *name, at_file_trust trust,
                      const attune_allocator *allocator, at_file *file);
void at_file_close(at_file *file, const attune_allocator *allocator);

/* Writes a file that is either whole or not there: 0, or the errno. A file that exists already is left alone (EEXIST),
 * except on a file system without hard links: there it may be replaced, as whole as before. */
int at_file_write(const at_io *io, int dir, const char *file, mode_t mode, const void *data, size_t bytes);

/* The same, but replaces a file that exists, in one step and only by a whole one. */
int at_file_replace(const at_io *io, int dir, const char *file, mode_t mode, const void *data, size_t bytes);

/* Removes whatever has this name: 0, or the errno. A directory that is not empty is renamed to aside-*: `aside` is its
 * new name, else "". */
int at_file_remove(const at_io *io, int dir, const char *file, char aside[AT_FILE_CHARS]);

/* Whether a temporary file has not been written to for an hour. One from the future is given the present time, so that
 * it grows old from now on. */
bool at_file_is_orphan(const at_io *io, int dir, const char *file, const struct stat *status);

/* Calls visit for each file of any kind; non-zero stops. 0, or -1 with errno when the directory cannot be listed. visit
 * gets the directory by a descriptor that nobody else has: another thread may give another directory to the first. */
typedef int at_file_visit_fn(void *user, int dir, const char *file, const struct stat *status);
int at_files_walk(const at_io *io, int dir, at_file_visit_fn *visit, void *user);

/* What was removed, what is left, and the first errno that kept something from being removed. */
typedef struct at_trimmed {
    uint64_t files, bytes, orphans, orphan_bytes, left, left_bytes;
    int failure;
} at_trimmed;

/* Removes temporary files that have not been written to for an hour. If the cache files take more than `limit` bytes,
 * it also removes the least recently used ones until they take no more than `goal`. */
at_trimmed at_files_trim(const at_io *io, int dir, const attune_allocator *allocator, uint64_t limit, uint64_t goal);

/* The same, down to 7/8 of the capacity. Returns the number of cache files removed. */
uint64_t at_files_sweep(const at_io *io, int dir, const attune_allocator *allocator, uint64_t capacity);

#endif
