/* LinearAttention, opset 27, as a step of attune/linear.h. */
#include "conform/conform_call.h"

#include "ref_attention.h"

#include <string.h>

enum { STATE = 0 }; /* among the call's own arrays: the state as f32 */

/* Of [batch, tokens, heads * columns]. */
static attune_view packed_view(const npy_array *array, int64_t columns) {
    const int64_t *const shape = array->header.shape;
    return (attune_view){.data = array->data, .batch = shape[1] * shape[2], .token = shape[2], .head = columns};
}

/* An input [batch, tokens, heads * columns] whose number of heads, or of columns, is known. */
static bool take_rows(conform_call *call, int input, const int64_t lengths[2], int64_t unit, int64_t *count) {
    const npy_header *const h = &call->c->inputs[input].header;
    const int64_t dims[3] = {lengths[0], lengths[1], unit};
    if (h->rank != 3 || h->shape[0] != lengths[0] || h->shape[1] != lengths[1] || h->shape[2] < 1 || h->shape[2] % unit)
        return conform_expect_shape(call, input, 3, dims);
    *count = h->shape[2] / unit;
    return true;
}

static bool map_rows(conform_call *call) {
    const npy_array *const inputs = call->c->inputs;
    attune_linear_desc *const d = &call->linear;
    const npy_header *const q = &inputs[LINEAR_QUERY].header;
    const int64_t *const lengths = q->shape;
    if (q->rank != 3) return conform_fail(call, "query has %zu dimensions; 3 are wanted", q->rank);
    d->num_heads = call->c->attributes[LINEAR_Q_NUM_HEADS].integer;
    d->num_kv_heads = call->c->attributes[LINEAR_KV_NUM_HEADS].integer;
    if (!d->num_heads || !d->num_kv_heads) return conform_fail(call, "q_num_heads and kv_num_heads must be given");
    if (!conform_float_type(call, LINEAR_QUERY, &d->dtype) || !conform_expect_type(call, LINEAR_KEY, q->type) ||
        !conform_expect_type(call, LINEAR_VALUE, q->type) ||
        !take_rows(call, LINEAR_QUERY, lengths, d->num_heads, &d->head_dim) ||
        !take_rows(call, LINEAR_KEY, lengths, d->head_dim, &d->num_k_heads) ||
        !take_rows(call, LINEAR_VALUE, lengths, d->num_kv_heads, &d->head_dim_v))
        return false;
    call->step.batch = lengths[0], call->step.seq = lengths[1];
    call->step.q = packed_view(&inputs[LINEAR_QUERY], d->head_dim);
    call->step.k = packed_view(&inputs[LINEAR_KEY], d->head_dim);
    call->step.v = packed_view(&inputs[LINEAR_VALUE], d->head_dim_v);
    return true;
}

/* decay has a number for each head of v, or one for each of its keys' columns; beta has one for each head, or one. */
static bool map_gates(conform_call *call) {
    const npy_array *const inputs = call->c->inputs, *const decay = &inputs[LINEAR_DECAY],
                           *const beta = &inputs[LINEAR_BETA];
    attune_linear_desc *const d = &call->linear;
    const int64_t lengths[2] = {call->step.batch, call->step.seq};
    int64_t columns = 1, heads = 1;
    if (decay->data) {
        if (!conform_float_type(call, LINEAR_DECAY, &d->decay_dtype) ||
            !take_rows(call, LINEAR_DECAY, lengths, d->num_kv_heads, &columns))
            return false;
        if (columns != 1 && columns != d->head_dim)
            return conform_fail(call, "decay has %lld numbers for each head; it must have 1 or %lld",
                                (long long)columns, (long long)d->head_dim);
        d->decay = columns == 1 ? ATTUNE_DECAY_HEAD : ATTUNE_DECAY_KEY;
        call->step.decay = packed_view(decay, columns);
    }
    if (!beta->data) return true;
    if (!conform_float_type(call, LINEAR_BETA, &d->beta_dtype) || !take_rows(call, LINEAR_BETA, lengths, 1, &heads))
        return false;
    if (heads != 1 && heads != d->num_kv_heads)
        return conform_fail(call, "beta has %lld numbers for each token; it must have 1 or %lld", (long long)heads,
                            (long long)d->num_kv_heads);
    d->has_beta = 1;
    call->step.beta = packed_view(beta, heads > 1);
    return true;
}

/* present_state is of past_state's type, or of the query's. */
static bool map_state(conform_call *call) {
    const npy_array *const past = &call->c->inputs[LINEAR_PAST_STATE];
    const attune_linear_desc *const d = &call->linear;
    const int64_t dims[4] = {call->step.batch, d->num_kv_heads, d->head_dim, d->head_dim_v};
    const npy_type type = past->data ? past->header.type : call->c->inputs[LINEAR_QUERY].header.type;
    attune_dtype dtype;
    if (past->data && (!conform_expect_shape(call, LINEAR_PAST_STATE, 4, dims) ||
                       !conform_float_type(call, LINEAR_PAST_STATE, &dtype)))
        return false;
    const npy_array *const state = conform_own(call, NPY_F4, 4, dims);
    if (!state || !npy_create(type, 4, dims, &call->outputs[LINEAR_PRESENT_STATE], call->message)) return false;
    call->step.state.data = state->data;
    return true;
}

bool conform_linear(conform_call *call) {
    const conform_attribute *const scale = &call->c->attributes[LINEAR_SCALE];
    call->linear = (attune_linear_desc)ATTUNE_LINEAR_DESC_INIT;
    call->step = (attune_linear_step)ATTUNE_LINEAR_STEP_INIT;
    call->linear.rule = (attune_linear_rule)call->c->attributes[LINEAR_UPDATE_RULE].integer;
    if (scale->real != 0) call->linear.scale = scale->real;
    if (!map_rows(call) || !map_gates(call) || !map_state(call)) return false;
    const attune_linear_desc *const d = &call->linear;
    const int64_t heads = d->num_heads > d->num_kv_heads ? d->num_heads : d->num_kv_heads;
    const int64_t dims[3] = {call->step.batch, call->step.seq, heads * d->head_dim_v};
    npy_array *const out = &call->outputs[LINEAR_OUTPUT];
    if (!npy_create(call->c->inputs[LINEAR_QUERY].header.type, 3, dims, out, call->message)) return false;
    call->step.out.data = out->data; /* contiguous */
    return true;
}

static void begin_state(conform_call *call) {
    const npy_array *const past = &call->c->inputs[LINEAR_PAST_STATE], *const state = &call->owned[STATE];
    float *const to = state->data;
    for (size_t i = 0; i < state->header.count; i++) to[i] = past->data ? (float)npy_element(past, i) : 0;
}

static void give_state(conform_call *call) {
    const npy_array *const state = &call->owned[STATE], *const present = &call->outputs[LINEAR_PRESENT_STATE];
    attune_dtype dtype = ATTUNE_F32;
    conform_dtype_of(present->header.type, &dtype);
    for (size_t i = 0; i < state->header.count; i++) ref_store(dtype, present->data, (int64_t)i, npy_element(state, i));
}

attune_status conform_linear_run(conform_call *call, attune_context *context, attune_engine engine) {
    attune_linear *linear;
    attune_status status = attune_linear_create(context, &call->linear, &linear);
    begin_state(call);
    if (!status)
        status = engine == ATTUNE_ENGINE_JIT ? attune_linear_run(linear, &call->step)
                                             : attune_linear_run_interpreted(linear, &call->step);
    attune_linear_destroy(linear);
    if (!status) give_state(call);
    return status;
}
