/* Which files may be loaded as code of this process. It depends on nothing else of attune, so that the command links
 * it, too. */
#ifndef ATTUNE_BASE_TRUSTED_H
#define ATTUNE_BASE_TRUSTED_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

/* A file is trusted if it is a regular one, belongs to root, to the effective user or to `code_owner`, and others
 * cannot write to it. `code_owner` owns the library or command that asks: that user's code runs already. A group may
 * write to it if its number is the owner's: then it is that user's private group. `why` is the reason of a refusal, as
 * "all users may write to it", and "" for a trusted file; 96 bytes are enough. */
bool at_is_trusted(const struct stat *status, uid_t code_owner, char *why, size_t capacity);

#endif
