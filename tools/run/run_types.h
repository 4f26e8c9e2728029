/* A file of attune run, the types that its array may have, and what attune calls them. */
#ifndef ATTUNE_TOOLS_RUN_TYPES_H
#define ATTUNE_TOOLS_RUN_TYPES_H

#include "common/npy.h"

/* One file and the tensor or weight (by attune_weight_name) it is for. */
typedef struct run_file {
    const char *name, *path;
    npy_array array; /* of inputs */
} run_file;

npy_type files_type(attune_dtype dtype);

/* ATTUNE_DTYPE_DEFAULT: attune has no such type. */
attune_dtype run_types_dtype(npy_type type);

/* The file's numbers in the tensor's type; free it. Integers of 64 bits are taken where they fit. NULL after a
 * message. */
void *run_types_convert(const run_file *file, attune_dtype dtype);

/* Says that a file is not of this type. `field` is the one of the problem that chose it; NULL: there is none. Returns
 * false. */
bool run_types_refuse(const run_file *file, const char *field, attune_dtype dtype);

#endif
