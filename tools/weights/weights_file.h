/* The weights of a block from files: found by their names, made to fit a problem, and packed. */
#ifndef ATTUNE_TOOLS_WEIGHTS_FILE_H
#define ATTUNE_TOOLS_WEIGHTS_FILE_H

#include "common/tensors.h"
#include "weights/weights_names.h"

typedef struct weights_file {
    weights_source source;
    weights_match match;
    attune_mha_weights weights; /* all that were found; their data is the source's */
} weights_file;

/* Opens a directory or a file and reads the weights that `request` asks for. false after a message. */
bool weights_file_open(weights_file *file, const char *path, const weights_request *request);
void weights_file_close(weights_file *file);

/* Sets the sizes of a block that `problem` leaves open, which is 0, from the weights' shapes: num_heads, num_kv_heads,
 * head_dim, head_dim_v and out_dim. What the shapes do not tell stays open. false after a message: they contradict a
 * size that is set. */
bool weights_file_sizes(const weights_file *file, attune_problem *problem);

/* Whether the file has this input of a block, q_norm or k_norm; and copies it into the input. false after a message: it
 * does not fit. */
bool weights_file_has(const weights_file *file, const char *input);
bool weights_file_load(weights_file *file, tensor *input);

/* Packs them into the tensors of a call, whose t->weights they become. A weight that the problem does not have (of keys
 * that are given, say) is left aside. false after a message: one is missing, or of a wrong shape or dtype; or the file
 * has norms of queries and keys, and the problem none. */
bool weights_file_pack(const weights_file *file, tensors *t);

#endif
