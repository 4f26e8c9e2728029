/* Making files: each is made under another name, and gets its own when it is whole. */
#ifndef ATTUNE_TUNE_NEW_FILE_H
#define ATTUNE_TUNE_NEW_FILE_H

#include <limits.h>
#include <stdbool.h>

/* Whether this user may create files in the directory of this file; false with errno. */
bool tune_is_in_writable_directory(const char *path);

/* The path without links on the way, which SQLite refuses to follow. The file itself need not be there. False with
 * errno. */
bool tune_resolve_new(const char *path, char resolved[PATH_MAX]);

/* Creates an empty temporary file in the directory of the final file. Returns its descriptor, or -1 with errno. In a
 * cache directory it has the name of a temporary file, so that a sweep removes it after a crash. */
int tune_make_beside(const char *path, bool is_in_cache, char beside[PATH_MAX]);

/* Gives the file its name, unless that is taken: then false, and errno is EEXIST. */
bool tune_give_name(const char *beside, const char *path);

#endif
