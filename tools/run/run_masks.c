/* A mask's file may have the dims that the problem's letters name, and 1 in others. */
#include "run/run_masks.h"

#include "common/tool.h"

#include <string.h>

run_mask run_mask_of(const attune_problem *p, const char *name) {
    const int64_t *const dims = strcmp(name, "attn_mask") == 0   ? p->attn_mask_dims
                                : strcmp(name, "attn_bias") == 0 ? p->attn_bias_dims
                                                                 : NULL;
    const int64_t *const strides = dims == p->attn_mask_dims ? p->attn_mask_strides : p->attn_bias_strides;
    return (run_mask){dims, dims && (strides[0] || strides[1] || strides[2] || strides[3])};
}

bool run_mask_is_one(const run_mask *mask, int d) {
    return mask->dims && mask->dims[d] != ATTUNE_DYNAMIC && mask->dims[d] <= 1;
}

/* "bqk" for dims that are not 1, "1" if all are. */
static const char *letters_of(const run_mask *mask, char text[5]) {
    char *at = text;
    for (int d = 0; d < 4; d++)
        if (!run_mask_is_one(mask, d)) *at++ = "bhqk"[d];
    if (at == text) *at++ = '1';
    *at = '\0';
    return text;
}

bool run_mask_has_letters(const npy_header *h, const run_mask *mask, const int64_t expected[4], int64_t dims[4]) {
    size_t at = 0;
    for (int d = 0; d < 4; d++) {
        dims[d] = 1;
        if (run_mask_is_one(mask, d)) continue;
        if (at == h->rank || h->shape[at] != expected[d]) return false;
        dims[d] = h->shape[at++];
    }
    return at == h->rank;
}

void run_mask_refuse(const run_file *file, const char *name, const run_mask *mask, const int64_t dims[4],
                     const int64_t full[4], const char *wanted) {
    char found[NPY_SHAPE_TEXT], asked[5], letters[5];
    const npy_header *const h = &file->array.header;
    npy_print_shape(h->rank, h->shape, found);
    bool fits = h->rank <= 4;
    for (int d = 0; d < 4; d++) fits = fits && (dims[d] == 1 || dims[d] == full[d]);
    letters_of(mask, asked);
    if (fits)
        tool_error("%s: shape %s does not fit %s_dims=%s, whose shape is %s; %s_dims=%s would fit", file->path, found,
                   name, asked, wanted, name, letters_of(&(run_mask){.dims = dims}, letters));
    else
        tool_error("%s: shape %s does not fit %s_dims=%s, whose shape is %s", file->path, found, name, asked, wanted);
}
