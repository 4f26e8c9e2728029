/* Where the code generator's files are looked for, and which of them are trusted. */
#ifndef ATTUNE_RUNTIME_CODEGEN_PATH_H
#define ATTUNE_RUNTIME_CODEGEN_PATH_H

#include <limits.h>

typedef struct at_codegen_file {
    char path[PATH_MAX]; /* absolute; "": there is none */
    char refused[320];   /* "PATH is not used: REASON" of the last file that was refused; "": none was */
} at_codegen_file;

/* Looks for `name`:
 *   1. where the environment variable `env` says (NULL: none). That path is taken as it is, even if nothing is there.
 *   2. beside the library or executable that holds this code, and in attune/ there. Never above: a library in /tmp/app
 *      must not load a file that another user has put into /tmp.
 *   3. in LIBDIR/attune.
 * A process with raised privileges skips 1 and 2: its caller chose the environment, and perhaps the directory, by a
 * hard link. A file of 2 and 3 must be trusted, or it is refused and the search goes on: it must belong to root, to
 * this user or to the owner of the library itself, and others must not be able to write to it. A group may if its
 * number is the owner's: then it is that user's private group. */
void at_codegen_find(const char *env, const char *name, at_codegen_file *file);

#endif
