/* Where the code generator's files are looked for. */
#ifndef ATTUNE_RUNTIME_CODEGEN_PATH_H
#define ATTUNE_RUNTIME_CODEGEN_PATH_H

#include <stddef.h>

/* Fills `path` with the first that exists of: the environment variable `env` (NULL: none; ignored in processes
 * with raised privileges; taken as it is, even if nothing is there), then `file` beside the library or executable that
 * holds this code, in attune/, lib/attune and ../lib/attune from there, where a program in BINDIR would find
 * LIBDIR/attune, and in LIBDIR/attune itself. path is "" when there is none. */
void at_codegen_find(const char *env, const char *file, char *path, size_t capacity);

#endif
