/* Tensors by name, from a directory of NAME.npy files or from one safetensors file: where weights come from. */
#ifndef ATTUNE_TOOLS_WEIGHTS_SOURCE_H
#define ATTUNE_TOOLS_WEIGHTS_SOURCE_H

#include "common/npy.h"
#include "weights/safetensors.h"

typedef struct weights_source {
    const char *path;
    size_t count;
    char **names;        /* sorted */
    npy_array *arrays;   /* of a directory: data NULL until asked for */
    safetensors tensors; /* of a file */
    void **copies;       /* of its tensors that do not lie at a multiple of their elements' size */
} weights_source;

/* Lists them; false after a message. A directory's files are not read yet. */
bool weights_source_open(weights_source *source, const char *path);
void weights_source_close(weights_source *source);

/* Whether tensor `index` is called `prefix` + `name`; a '/' in that may be a '.', because no file's name has a '/'. */
bool weights_source_is(const weights_source *source, size_t index, const char *prefix, const char *name);

/* Whether there is such a tensor, and which. */
bool weights_source_find(const weights_source *source, const char *prefix, const char *name, size_t *index);

/* Tensor `index` as attune takes it; its data lives as long as the source. false after a message: the file cannot be
 * read, or is of no dtype or rank that weights can have. */
bool weights_source_get(weights_source *source, size_t index, attune_weight *weight);

#endif
