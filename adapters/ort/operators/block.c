/* The weights are constants of the model, so they are packed when the node is made, and calls only bring x. */
#include "block.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct block {
    block_shape shape;
    void *packed;
};

static void describe(const block_shape *s, attune_problem *problem) {
    problem->embed_dim = s->width;
    problem->num_heads = s->num_heads;
    problem->head_dim = s->head_width;
    problem->head_dim_v = s->v_head_width;
    problem->out_dim = s->out_width;
    problem->no_out_projection = !s->out_width;
    problem->dtype = s->dtype;
    problem->seq_q = ATTUNE_DYNAMIC;
}

bool block_is_supported(const block_shape *shape) {
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    describe(shape, &problem);
    return !attune_problem_check(&problem);
}

static int64_t count_of(const attune_weight *w) {
    int64_t count = 1;
    for (int i = 0; i < w->rank; i++) count *= w->dims[i];
    return count;
}

static attune_status pack(block *b, const tensor given[ATTUNE_NUM_WEIGHTS]) {
    enum { ALIGN = 64 };
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    attune_mha_weights weights;
    size_t bytes;
    describe(&b->shape, &problem);
    attune_status status = attune_mha_weights_init(&weights, &problem, b->shape.layout);
    if (!status) status = attune_packed_weights_size(&problem, &bytes);
    if (status) return status;
    for (int i = 0; i < ATTUNE_NUM_WEIGHTS; i++) {
        /* A transposed view of a model's constant has the same number of elements. */
        if (given[i].data &&
            (given[i].dtype != weights.tensor[i].dtype || tensor_count(&given[i]) != count_of(&weights.tensor[i])))
            return ATTUNE_BAD_FILE;
        weights.tensor[i].data = given[i].data;
    }
    if (!(b->packed = aligned_alloc(ALIGN, (bytes + ALIGN - 1) / ALIGN * ALIGN))) return ATTUNE_OUT_OF_MEMORY;
    return attune_pack_weights(&problem, &weights, b->packed, bytes);
}

block *block_create(const block_shape *shape, const tensor weights[ATTUNE_NUM_WEIGHTS],
                    char message[ATTUNE_MESSAGE_BYTES]) {
    block *const b = calloc(1, sizeof *b);
    if (b) b->shape = *shape;
    const attune_status status = b ? pack(b, weights) : ATTUNE_OUT_OF_MEMORY;
    if (!status) return b;
    snprintf(message, ATTUNE_MESSAGE_BYTES, "%s",
             status == ATTUNE_OUT_OF_MEMORY ? "there is no memory for its weights"
             : status == ATTUNE_BAD_FILE    ? "its weights are of other shapes or types than it has"
                                            : attune_last_message());
    block_free(b);
    return NULL;
}

void block_free(block *b) {
    if (!b) return;
    free(b->packed);
    free(b);
}

const void *block_packed(const block *b) { return b->packed; }

void block_kind(const block *b, common_kind *kind) {
    kind->embed_dim = (int32_t)b->shape.width;
    kind->num_heads = (int32_t)b->shape.num_heads;
    kind->out_dim = (int32_t)b->shape.out_width;
}

const block_shape *block_shape_of(const block *b) { return &b->shape; }
