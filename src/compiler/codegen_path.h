/* Where the code generator's files are looked for, and which of them are trusted. */
#ifndef ATTUNE_COMPILER_CODEGEN_PATH_H
#define ATTUNE_COMPILER_CODEGEN_PATH_H

#include "base/error.h"

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

typedef struct at_codegen_file {
    char path[PATH_MAX];  /* absolute, links resolved; "": there is none */
    char refused[352];    /* "PATH is not used: REASON" of the last file that was refused; "": none was */
    bool must_be_trusted; /* found by searching, not named */
    uid_t library_owner;  /* whose files are trusted, too */
} at_codegen_file;

/* Looks for `name`:
 *   1. where the environment variable `env` says (NULL: none). That path is taken as it is, even if nothing is there.
 *   2. beside the library or executable that holds this code, and in attune/ there. Never above: a library in /tmp/app
 *      must not load a file that another user has put into /tmp.
 *   3. in LIBDIR/attune.
 * A process with raised privileges skips 1 and 2: its caller chose the environment, and perhaps the directory, by a
 * hard link. A file of 2 and 3 must be trusted, or it is refused and the search goes on: file and directory, both with
 * links resolved, must belong to root, to this user or to the owner of the library itself, and others must not be able
 * to write to them, even if the directory is sticky. A group may if it is root's (0), or if its number is the owner's
 * and at least 1000: then it is that user's private group. */
void at_codegen_find(const char *env, const char *name, at_codegen_file *file);

/* The file that an option or environment variable names. */
void at_codegen_name(const char *path, at_codegen_file *file);

/* For the moment before the file is used, long after the search perhaps: ATTUNE_CODEGEN_MISSING if it must be trusted
 * and no longer is. */
attune_status at_codegen_check(const at_codegen_file *file, at_error *err);

#endif
