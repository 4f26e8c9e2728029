/* The masks of attune run: which shapes their files may have. */
#ifndef ATTUNE_TOOLS_RUN_MASKS_H
#define ATTUNE_TOOLS_RUN_MASKS_H

#include "run/run_types.h"

/* A mask, bool or added, as the problem gives it: the dims that are not 1 have letters. */
typedef struct run_mask {
    const int64_t *dims; /* NULL: the tensor is no mask */
    bool has_strides;    /* the caller's: then a dim without a letter may be written out */
} run_mask;

run_mask run_mask_of(const attune_problem *problem, const char *name);

/* Whether the tensor is a mask whose dimension d has no letter. */
bool run_mask_is_one(const run_mask *mask, int d);

/* Whether a file has exactly the dims that have letters, as (2, 50) has for attn_mask_dims=bk; `dims` gets all four. */
bool run_mask_has_letters(const npy_header *header, const run_mask *mask, const int64_t expected[4], int64_t dims[4]);

/* Says that the file does not fit, and which letters would. `dims` are the file's, `full` the largest that there are;
 * `wanted` is the shape that was expected. */
void run_mask_refuse(const run_file *file, const char *name, const run_mask *mask, const int64_t dims[4],
                     const int64_t full[4], const char *wanted);

#endif
