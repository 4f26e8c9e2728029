/* Takes the buffers in the order in which Python passes them, compares their dims with those of the problem, and
 * folds what vmap put in front into the batch where strides allow it. */
#include "tensors.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool fail(tensors *t, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(t->message, sizeof t->message, format, list);
    va_end(list);
    return false;
}

/* ---- Taking ---- */

static const int RANKS[] = {
    [TENSOR_TOKENS] = 4, [TENSOR_SCORES] = 4, [TENSOR_LENGTHS] = 1, [TENSOR_SINKS] = 1, [TENSOR_LSE] = 3};

static attune_dtype dtype_of(int dtype) {
    switch (dtype) {
    case XLA_PRED: return ATTUNE_BOOL;
    case XLA_S32: return ATTUNE_I32;
    case XLA_F16: return ATTUNE_F16;
    case XLA_F32: return ATTUNE_F32;
    case XLA_F64: return ATTUNE_F64;
    case XLA_BF16: return ATTUNE_BF16;
    default: return ATTUNE_DTYPE_DEFAULT;
    }
}

static size_t bytes_of(attune_dtype dtype) {
    switch (dtype) {
    case ATTUNE_BOOL: return 1;
    case ATTUNE_F16:
    case ATTUNE_BF16: return 2;
    case ATTUNE_F64: return 8;
    default: return 4;
    }
}

static bool add(tensors *t, const char *name, tensor_kind kind, attune_dtype dtype, const xla_values *values,
                int64_t index) {
    if (index >= values->count) return fail(t, "there is no %s", name);
    const xla_buffer *const buffer = values->values[index];
    if (values->types[index] != XLA_BUFFER) return fail(t, "%s is no tensor", name);
    if (dtype_of(buffer->dtype) != dtype)
        return fail(t, "%s has XLA's type %d, which is not that of the problem", name, buffer->dtype);
    const int64_t outer = buffer->rank - RANKS[kind];
    if (outer < 0) return fail(t, "%s has %lld dims", name, (long long)buffer->rank);
    if (outer > TENSORS_MAX_OUTER) return fail(t, "vmap is nested %lld times; attune takes 16", (long long)outer);
    if (t->count && outer != t->num_outer)
        return fail(t, "%s has %lld dims of vmap, q has %d", name, (long long)outer, t->num_outer);
    t->num_outer = (int)outer;
    t->list[t->count++] = (tensor){.name = name, .buffer = buffer, .kind = kind, .dtype = dtype};
    return true;
}

static const int64_t *dims_of(const tensors *t, int i) { return t->list[i].buffer->dims + t->num_outer; }

/* Checks the dims of one call, and sets its strides. */
static bool shape(tensors *t, tensor *x, const int64_t wanted[4]) {
    const int rank = RANKS[x->kind];
    const int64_t *const dims = x->buffer->dims + t->num_outer;
    int64_t strides[4], stride = 1;
    for (int i = rank - 1; i >= 0; i--) {
        const bool is_broadcast = x->kind == TENSOR_SCORES && dims[i] == 1;
        if (dims[i] != wanted[i] && !is_broadcast)
            return fail(t, "%s has the size %lld in dim %d; it must have %lld", x->name, (long long)dims[i], i,
                        (long long)wanted[i]);
        strides[i] = is_broadcast ? 0 : stride;
        stride *= dims[i];
    }
    memcpy(x->strides, strides, (size_t)rank * sizeof *strides);
    /* XLA's dims are [batch, tokens, heads, columns]. */
    if (x->kind == TENSOR_TOKENS) x->strides[1] = strides[2], x->strides[2] = strides[1];
    if (x->kind == TENSOR_SINKS) x->strides[0] = 0;
    for (int i = t->num_outer - 1; i >= 0; i--) {
        const int64_t size = x->buffer->dims[i];
        x->outer_strides[i] = size == 1 ? 0 : stride;
        stride *= size;
        if (size != 1 && t->outer[i] != 1 && size != t->outer[i])
            return fail(t, "%s has the size %lld in a dim of vmap that is %lld", x->name, (long long)size,
                        (long long)t->outer[i]);
        if (size != 1) t->outer[i] = size;
    }
    return true;
}

static bool shapes(tensors *t) {
    const int64_t *const q = dims_of(t, 0), *const k = dims_of(t, 1), *const v = dims_of(t, 2);
    const attune_problem *const p = t->problem;
    const int64_t group = p->num_heads / (p->num_kv_heads ? p->num_kv_heads : p->num_heads);
    const int64_t columns = p->head_dim_v ? p->head_dim_v : p->head_dim;
    t->batch = q[0], t->rows = q[1], t->heads = q[2], t->keys = k[1], t->kv_heads = k[2];
    if (t->heads != group * t->kv_heads || v[3] != columns)
        return fail(t, "%lld heads on %lld with %lld columns are not those of the problem", (long long)t->heads,
                    (long long)t->kv_heads, (long long)v[3]);
    const int64_t wanted[][4] = {
        [TENSOR_SCORES] = {t->batch, t->heads, t->rows, t->keys},
        [TENSOR_LENGTHS] = {t->batch},
        [TENSOR_SINKS] = {t->heads},
        [TENSOR_LSE] = {t->batch, t->heads, t->rows},
    };
    const int64_t of_q[4] = {t->batch, p->seq_q, t->heads, p->head_dim};
    const int64_t of_k[4] = {t->batch, p->seq_kv ? p->seq_kv : p->seq_q, t->kv_heads, p->head_dim};
    const int64_t of_v[4] = {of_k[0], of_k[1], of_k[2], columns}, of_out[4] = {of_q[0], of_q[1], of_q[2], columns};
    for (int i = 0; i < t->num_outer; i++) t->outer[i] = 1;
    for (int i = 0; i < t->count; i++) {
        tensor *const x = &t->list[i];
        const int64_t *dims = x->kind != TENSOR_TOKENS ? wanted[x->kind] : i == 0 ? of_q : i == 1 ? of_k : of_out;
        if (!shape(t, x, i == 2 ? of_v : dims)) return false;
    }
    return true;
}

bool tensors_take(tensors *t, const attune_problem *problem, const xla_call_frame *frame) {
    const xla_values *const in = &frame->operands, *const out = &frame->results;
    const attune_problem *const p = problem;
    const attune_dtype dtype = p->dtype ? p->dtype : ATTUNE_F32;
    const attune_dtype wide = dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    int64_t i = 0, j = 0;
    t->problem = problem;
    t->count = t->num_outer = 0;
    const bool ok =
        add(t, "q", TENSOR_TOKENS, dtype, in, i++) && add(t, "k", TENSOR_TOKENS, dtype, in, i++) &&
        add(t, "v", TENSOR_TOKENS, dtype, in, i++) &&
        (!p->attn_mask_dims[3] || add(t, "attn_mask", TENSOR_SCORES, ATTUNE_BOOL, in, i++)) &&
        (!p->attn_bias_dims[3] || add(t, "attn_bias", TENSOR_SCORES, p->bias_dtype ? p->bias_dtype : dtype, in, i++)) &&
        (!p->has_kv_lens || add(t, "kv_lens", TENSOR_LENGTHS, ATTUNE_I32, in, i++)) &&
        (!p->has_sinks || add(t, "sinks", TENSOR_SINKS, ATTUNE_F32, in, i++)) &&
        add(t, "out", TENSOR_TOKENS, dtype, out, j++) && (!p->has_lse || add(t, "lse", TENSOR_LSE, wide, out, j++));
    if (!ok) return false;
    if (i != in->count || j != out->count)
        return fail(t, "there are %lld operands and %lld results; the problem has %lld and %lld", (long long)in->count,
                    (long long)out->count, (long long)i, (long long)j);
    return shapes(t);
}

/* ---- Folding ---- */

/* Whether `stride` can be the stride of the batch. Lengths have no stride, sinks are the same for all sequences, and
 * strides that are all 0 mean contiguous. */
static bool can_be_batch_stride(const tensor *x, int64_t stride) {
    switch (x->kind) {
    case TENSOR_LENGTHS: return stride == 1;
    case TENSOR_SINKS: return stride == 0;
    case TENSOR_SCORES: return stride || x->strides[1] || x->strides[2] || x->strides[3];
    default: return true;
    }
}

static bool can_fold(const tensors *t, int dim) {
    for (int i = 0; i < t->count; i++) {
        const tensor *const x = &t->list[i];
        const int64_t stride = x->outer_strides[dim];
        if (t->batch == 1 ? !can_be_batch_stride(x, stride) : stride != x->strides[0] * t->batch) return false;
    }
    return true;
}

void tensors_fold(tensors *t) {
    for (; t->num_outer && (t->outer[t->num_outer - 1] == 1 || can_fold(t, t->num_outer - 1)); t->num_outer--) {
        const int dim = t->num_outer - 1;
        if (t->outer[dim] == 1) continue;
        for (int i = 0; i < t->count && t->batch == 1; i++) t->list[i].strides[0] = t->list[i].outer_strides[dim];
        t->batch *= t->outer[dim];
    }
}

/* ---- Binding ---- */

static void *pointer(const tensors *t, int i, const int64_t *index) {
    const tensor *const x = &t->list[i];
    int64_t offset = 0;
    for (int d = 0; d < t->num_outer; d++) offset += index[d] * x->outer_strides[d];
    return (char *)x->buffer->data + offset * (int64_t)bytes_of(x->dtype);
}

void tensors_bind(const tensors *t, const int64_t *index, attune_arguments *a) {
    const attune_problem *const p = t->problem;
    const size_t strides = sizeof a->q.strides;
    int i = 0;
    a->batch = t->batch;
    a->num_heads = t->heads;
    a->num_kv_heads = t->kv_heads;
    memcpy(a->q.strides, t->list[i].strides, strides), a->q.data = pointer(t, i++, index);
    memcpy(a->k.strides, t->list[i].strides, strides), a->k.data = pointer(t, i++, index);
    memcpy(a->v.strides, t->list[i].strides, strides), a->v.data = pointer(t, i++, index);
    if (p->attn_mask_dims[3])
        memcpy(a->attn_mask.strides, t->list[i].strides, strides), a->attn_mask.data = pointer(t, i++, index);
    if (p->attn_bias_dims[3])
        memcpy(a->attn_bias.strides, t->list[i].strides, strides), a->attn_bias.data = pointer(t, i++, index);
    if (p->has_kv_lens) a->kv_lens = pointer(t, i++, index);
    if (p->has_sinks) a->sinks = pointer(t, i++, index);
    memcpy(a->out.strides, t->list[i].strides, strides), a->out.data = pointer(t, i++, index);
    if (p->has_lse)
        memcpy(a->lse.strides, t->list[i].strides, sizeof a->lse.strides), a->lse.data = pointer(t, i++, index);
}
