/* Structs of the API begin with their size. It tells which version of the header a program was made with: the struct of
 * an older program is smaller than the library's, that of a newer one is larger.
 *
 * A struct grows at its end only, by whole multiples of its alignment, so the padding of one version is never a member
 * of the next. The default of a later member is all zeros, so that "not set" looks the same to every version. */
#ifndef ATTUNE_BASE_STRUCT_H
#define ATTUNE_BASE_STRUCT_H

#include "base/error.h"

/* One struct as this version knows it. */
typedef struct at_struct {
    const char *name, *advice; /* "attune_problem", "start from ATTUNE_PROBLEM_INIT" */
    size_t bytes;
    const void *defaults; /* one of them; NULL: zeros */
    size_t least; /* the size in version 0.2; smaller structs are older than the promise and have another layout */
} at_struct;

/* Reads a caller's struct into a whole one. Members that the caller's struct lacks get their defaults. The part that
 * this version does not know must be zeros: else it is ATTUNE_UNSUPPORTED. A size that no version from 0.2 on can have
 * is ATTUNE_INVALID_ARGUMENT, and the rest of `object` is not read then. *whole is only written to on success. */
attune_status at_copy_in(const at_struct *kind, const void *object, void *whole, at_error *err);

/* The way back: writes a whole struct into a caller's. Fails and writes nothing if a member that the caller's struct
 * lacks is not at its default. */
attune_status at_copy_back(const at_struct *kind, const void *whole, void *object, at_error *err);

/* Writes defaults into memory of struct_size bytes. */
attune_status at_struct_init(const at_struct *kind, void *object, size_t struct_size, at_error *err);

/* Whether at_copy_out is going to accept `object`. Functions ask before they do the work. */
attune_status at_check_out(const void *object, size_t full_bytes, const char *name, at_error *err);

/* For results: copies the members that the caller's version has, and writes zeros beyond those that this version has.
 * `object` starts with its struct_size. A size that no version can have is ATTUNE_INVALID_ARGUMENT, and nothing is
 * written. */
attune_status at_copy_out(void *object, const void *full, size_t full_bytes, const char *name, at_error *err);

#endif
