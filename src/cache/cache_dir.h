/* Where the disk cache lives, and whether the place can be trusted. */
#ifndef ATTUNE_CACHE_CACHE_DIR_H
#define ATTUNE_CACHE_CACHE_DIR_H

#include "base/error.h"
#include "host/io.h"

#include <stddef.h>

/* The path: `dir` if not NULL, else ATTUNE_CACHE_DIR, XDG_CACHE_HOME/attune, ~/.cache/attune. path is "" if the cache
 * is off: `dir` is "", nothing is set, or the process runs with raised privileges. */
attune_status at_cache_dir_path(const char *dir, char *path, size_t capacity, at_error *err);

/* The read-only base: `base` if not NULL, else ATTUNE_CACHE_BASE; "" when there is none. */
attune_status at_cache_base_path(const char *base, char *path, size_t capacity, at_error *err);

/* The pack: `pack` if not NULL, else ATTUNE_CACHE_PACK; "" when there is none. */
attune_status at_cache_pack_path(const char *pack, char *path, size_t capacity, at_error *err);

/* Puts the working directory in front of a relative path; "" if the working directory is not known. */
void at_cache_dir_from_root(const char *path, char *from_root, size_t capacity);

/* Makes the directory and its parents (0700) and opens it. It is refused if it belongs to another user or others can
 * write to it. The path may be a symbolic link, or have some in it, of this user or root. Another user's link is
 * refused: it could lead to a directory of this user that is no cache. -1 with *err filled. */
int at_cache_dir_open(const char *path, const at_io *io, at_error *err);

/* The same with 0755, for a directory that is handed on. */
int at_cache_dir_open_shared(const char *path, const at_io *io, at_error *err);

/* Opens a directory to be read only. It may also be root's, and is not made. */
int at_cache_dir_open_foreign(const char *path, const at_io *io, at_error *err);

#endif
