/* Which files may be loaded as code of this process. It depends on nothing else of attune, so that the command links
 * it, too. */
#ifndef ATTUNE_BASE_TRUSTED_H
#define ATTUNE_BASE_TRUSTED_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h> /* uid_t */

/* A file is trusted if it is a regular one, and if it and its directory belong to root, to the effective user or to
 * `code_owner`, and others cannot write to them. `code_owner` owns the library or command that asks: that user's code
 * runs already. A group may write if it is root's, or the owner's private one (the same number, from 1000 on). In a
 * sticky directory all users can make files, so that does not help. `path` is absolute and resolved (realpath): a link
 * at its end is refused. `why` is the reason of a refusal, as "all users may write to it", and "" for a trusted file;
 * 128 bytes are enough. */
bool at_is_trusted(const char *path, uid_t code_owner, char *why, size_t capacity);

#endif
