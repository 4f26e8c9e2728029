/* A call of FlexAttention: its inputs, and the tensors that functions read. */
#include "call.h"
#include "flex.h"

#include <stdio.h>
#include <string.h>

static bool take_heads(call *c, size_t index, const char *name, heads *view) {
    tensor t;
    if (!call_input(c, index, name, false, &t)) return false;
    if (t.rank != 4) return call_fail(c, "%s has %d dims; it must have 4", name, t.rank);
    *view = call_separate(t.data, t.dtype, t.dims[0], t.dims[1], t.dims[2], t.dims[3]);
    return true;
}

static bool take_inputs(call *c) {
    char q[128], k[128], v[128];
    if (!take_heads(c, 0, "Q", &c->q) || !take_heads(c, 1, "K", &c->k) || !take_heads(c, 2, "V", &c->v)) return false;
    if (c->k.dims[0] != c->q.dims[0] || c->v.dims[0] != c->q.dims[0] || c->k.dims[3] != c->q.dims[3] ||
        c->v.dims[1] != c->k.dims[1] || c->v.dims[2] != c->k.dims[2])
        return call_fail(c, "batch, heads, rows and columns of Q, K and V do not fit: [%s], [%s], [%s]",
                         call_print_dims(4, c->q.dims, q), call_print_dims(4, c->k.dims, k),
                         call_print_dims(4, c->v.dims, v));
    if (c->q.dims[0] > INT32_MAX || c->q.dims[1] > INT32_MAX)
        return call_fail(c, "Q has a batch of %lld and %lld heads, which are too many", (long long)c->q.dims[0],
                         (long long)c->q.dims[1]);
    c->keys = c->k.dims[2];
    c->kind.batch = (int32_t)c->q.dims[0];
    c->kind.num_heads = (int32_t)c->q.dims[1];
    return true;
}

static bool check_sizes(call *c) {
    const attune_problem *const p = c->n->functions;
    const int64_t want[4] = {p->batch, p->num_heads, p->seq_q, p->seq_kv};
    const int64_t have[4] = {c->q.dims[0], c->q.dims[1], c->q.dims[2], c->keys};
    char wanted[128], given[128];
    for (int i = 0; i < 4; i++)
        if (want[i] >= 0 && want[i] != have[i])
            return call_fail(c, "its functions are of scores [%s]; these are [%s]", call_print_dims(4, want, wanted),
                             call_print_dims(4, have, given));
    return true;
}

static int64_t size_of(const call *c, int64_t dim) {
    switch (dim) {
    case ATTUNE_DIM_BATCH: return c->q.dims[0];
    case ATTUNE_DIM_HEADS: return c->q.dims[1];
    case ATTUNE_DIM_KV_HEADS: return c->k.dims[1];
    case ATTUNE_DIM_SEQ_Q: return c->q.dims[2];
    case ATTUNE_DIM_SEQ_KV: return c->keys;
    default: return dim;
    }
}

static const char *type_name(attune_dtype dtype) {
    switch (dtype) {
    case ATTUNE_F32: return "f32";
    case ATTUNE_F16: return "f16";
    case ATTUNE_BF16: return "bf16";
    case ATTUNE_F64: return "f64";
    case ATTUNE_I32: return "i32";
    case ATTUNE_I8: return "i8";
    case ATTUNE_BOOL: return "bool";
    default: return "of a type that functions cannot read";
    }
}

static bool take_user(call *c, const attune_user_tensor *declared, size_t index, tensor *t) {
    int64_t dims[4];
    if (!call_input(c, index, declared->name, false, t)) return false;
    const attune_dtype dtype = t->type == ORT_INT8 ? ATTUNE_I8 : adapter_dtype(t->type);
    if (dtype != declared->dtype)
        return call_fail(c, "%s is %s; tensors declares %s", declared->name,
                         t->type == ORT_INT64 ? "int64, which functions cannot read" : type_name(dtype),
                         type_name(declared->dtype));
    for (int i = 0; i < declared->rank; i++) dims[i] = size_of(c, declared->dims[i]);
    return call_expect(c, declared->name, t, declared->rank, dims);
}

bool call_flex(call *c) {
    const attune_problem *const functions = c->n->functions;
    tensor users[ATTUNE_MAX_USER_TENSORS];
    if (!take_inputs(c) || !check_sizes(c)) return false;
    for (int i = 0; i < flex_count_tensors(functions); i++)
        if (!take_user(c, &functions->tensors[i], FLEX_TENSORS + (size_t)i, &users[i])) return false;
    const int64_t *const q = c->q.dims, columns = c->v.dims[3];
    void *data;
    if (!call_output(c, 0, 4, (int64_t[]){q[0], q[1], q[2], columns}, &data)) return false;
    c->out = call_separate(data, c->q.dtype, q[0], q[1], q[2], columns);
    c->users = users;
    return call_attend(c);
}
