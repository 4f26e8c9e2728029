/* Structs of the API begin with their size, which tells with which version of the header a program was made. An older
 * program's struct is smaller than the library's, a newer one's larger.
 *
 * A struct grows at its end only, by whole multiples of its alignment: what was padding in one version is never a
 * member of the next. The default of a later member is all zeros, so that "not set" looks the same to every version. */
#ifndef ATTUNE_BASE_STRUCT_H
#define ATTUNE_BASE_STRUCT_H

#include "base/error.h"

/* One struct as this version knows it. */
typedef struct at_struct {
    const char *name, *advice; /* "attune_problem", "start from ATTUNE_PROBLEM_INIT" */
    size_t bytes;
    const void *defaults; /* one of them; NULL: zeros */
    size_t least; /* as many as version 0.2 has: what is smaller is older than the promise, and laid out otherwise */
} at_struct;

/* Reads a caller's struct into a whole one: members that it does not have get their defaults. Beyond what this version
 * knows it must hold zeros: else it is ATTUNE_UNSUPPORTED. A size that no version from 0.2 on can have is
 * ATTUNE_INVALID_ARGUMENT, and the rest of `object` is not read then. *whole is only written to on success. */
attune_status at_copy_in(const at_struct *kind, const void *object, void *whole, at_error *err);

/* The way back: writes a whole struct into a caller's. Fails, and writes nothing, if a member that the caller's does
 * not have is not at its default. */
attune_status at_copy_back(const at_struct *kind, const void *whole, void *object, at_error *err);

/* Writes defaults into memory of which nothing is known but its size. */
attune_status at_struct_init(const at_struct *kind, void *object, size_t struct_size, at_error *err);

/* Whether at_copy_out will do, before the work of which it gives the result. */
attune_status at_check_out(const void *object, size_t full_bytes, const char *name, at_error *err);

/* Results: copies the part that the caller's version of the struct has, and zeros into what is beyond this version's;
 * `object` starts with its struct_size. A size that no version can have is ATTUNE_INVALID_ARGUMENT, and nothing is
 * written. */
attune_status at_copy_out(void *object, const void *full, size_t full_bytes, const char *name, at_error *err);

#endif
