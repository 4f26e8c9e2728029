/* RotaryEmbedding, opset 23, as a problem with op = rotary. */
#include "conform/conform_call.h"

#include <string.h>

/* cos and sin are [positions, half] with position ids, and [batch, tokens, half] without, one row for each token. */
static bool map_caches(conform_call *call, const conform_view *x, int64_t half) {
    const npy_array *const inputs = call->c->inputs;
    const npy_header *const cos = &inputs[ROTARY_COS].header;
    attune_arguments *const a = &call->arguments;
    const bool has_ids = call->problem.has_position_ids;
    const int64_t table[2] = {cos->rank ? cos->shape[0] : 0, half};
    const int64_t rows[3] = {cos->rank && cos->shape[0] == 1 ? 1 : x->dims[0], x->dims[2], half};
    const size_t rank = has_ids ? 2 : 3;
    const int64_t *const shape = has_ids ? table : rows;
    for (int i = ROTARY_COS; i <= ROTARY_SIN; i++)
        if (!conform_expect_shape(call, i, rank, shape) || !conform_expect_type(call, i, inputs[ROTARY_X].header.type))
            return false;
    a->cos = inputs[ROTARY_COS].data;
    a->sin = inputs[ROTARY_SIN].data;
    a->rotary_positions = has_ids ? table[0] : rows[1];
    a->rotary_batch_stride = has_ids || rows[0] == 1 ? 0 : rows[1] * half;
    if (!has_ids) return true;
    const int64_t ids[2] = {x->dims[0], x->dims[2]};
    return conform_expect_shape(call, ROTARY_POSITION_IDS, 2, ids) &&
           (a->position_ids = conform_indices(call, ROTARY_POSITION_IDS, a->rotary_positions - 1));
}

bool conform_rotary(conform_call *call) {
    const conform_attribute *const attributes = call->c->attributes;
    const npy_array *const input = &call->c->inputs[ROTARY_X];
    attune_problem *const p = &call->problem;
    const int64_t heads = attributes[ROTARY_NUM_HEADS].integer;
    conform_view x;
    if (!conform_float_type(call, ROTARY_X, &p->dtype) || !conform_view_input(call, ROTARY_X, heads, &x)) return false;
    if (heads && heads != x.dims[1])
        return conform_fail(call, "num_heads is %lld, but X has %lld heads", (long long)heads, (long long)x.dims[1]);
    const int64_t asked = attributes[ROTARY_DIM].integer, dim = asked ? asked : x.dims[3];
    if (dim > x.dims[3] || dim % 2)
        return conform_fail(call, "%lld columns of %lld are to be rotated; an even number is needed, and no more",
                            (long long)dim, (long long)x.dims[3]);
    p->op = ATTUNE_ROTARY;
    p->batch = x.dims[0];
    p->num_heads = x.dims[1];
    p->seq_q = x.dims[2];
    p->head_dim = x.dims[3];
    p->rotary_dim = dim;
    p->has_position_ids = call->c->inputs[ROTARY_POSITION_IDS].data != NULL;
    p->rotary_interleaved = (int)attributes[ROTARY_INTERLEAVED].integer;
    memcpy(p->q_strides, x.strides, sizeof x.strides);
    if (!conform_create_output(call, ROTARY_Y, input->header.type, input->header.rank == 3, &x)) return false;
    memcpy(p->out_strides, x.strides, sizeof x.strides);
    if (attune_arguments_init(&call->arguments, p) != ATTUNE_OK) return conform_fail(call, "%s", attune_last_message());
    call->arguments.q.data = input->data;
    call->arguments.out.data = call->outputs[ROTARY_Y].data;
    return map_caches(call, &x, dim / 2);
}
