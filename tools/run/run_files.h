/* The .npy files of attune run: sizes from their shapes, their contents into tensors, tensors into files. */
#ifndef ATTUNE_TOOLS_RUN_FILES_H
#define ATTUNE_TOOLS_RUN_FILES_H

#include "common/tensors.h"
#include "run/run_types.h"

/* Tensors, and the weights that make one of them. */
enum { FILES_MAX = REF_MAX_TENSORS + ATTUNE_NUM_WEIGHTS };

/* Weights of a block that have no files of their own. All functions but `has` return false after a message. */
typedef struct files_weights {
    bool (*take_sizes)(void *user, attune_problem *problem); /* sets the sizes that are still 0 */
    bool (*pack)(void *user, tensors *t);                    /* fills packed_weights */
    bool (*has)(void *user, const char *name);               /* whether this input lies among them */
    bool (*load)(void *user, tensor *input);                 /* fills it */
    void *user;
} files_weights;

typedef struct run_files {
    run_file inputs[FILES_MAX], outputs[FILES_MAX];
    size_t num_inputs, num_outputs;
    attune_weight_layout layout;  /* of the weights of a block */
    const files_weights *weights; /* NULL: they are among the inputs */
    bool is_bshd;                 /* files of q, k, v, k_new, v_new and out hold [batch,] seq, heads, dim */
} run_files;

/* Notes a file; false if there is no room. `name` must live on. */
bool files_add(run_file *list, size_t *count, const char *name, const char *path);
const run_file *files_find(const run_file *list, size_t count, const char *name);

/* Each returns false after a message. */
bool files_read(run_files *files);
/* The problem and run-time sizes that the files have, then what the texts say, either of which may be NULL. Both must
 * agree. `sizes` are unset before. */
bool files_complete(const run_files *files, const char *text, const char *sizes_text, attune_problem *problem,
                    call_sizes *sizes);
bool files_load(const run_files *files, tensors *t);
/* Whether the problem has all outputs that the caller wants. Call it before anything is computed. */
bool files_check_outputs(const run_files *files, const tensors *t);
/* For outputs that files_check_outputs has found. */
bool files_write(const run_files *files, const tensors *t);
void files_free(run_files *files);

/* An output as its file has it: a dense array (free it) with rank and dims. NULL after a message. */
void *files_gather(const run_files *files, const tensor *one, size_t *rank, int64_t dims[4]);

#endif
