/* Each step of a call returns false after the first failure, whose sentence it has kept, so operators read as lists of
 * steps. */
#include "call.h"

#include "block.h"
#include "flex.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void call_begin(call *c, node *n, ort_kernel_context *context) {
    const node_attributes *const a = &n->spec.attributes;
    memset(c, 0, sizeof *c);
    c->n = n;
    c->context = context;
    c->place = (ort_place){.api = n->api, .context = context};
    c->code = ORT_INVALID_ARGUMENT;
    c->kind.scale = isnan(a->scale) ? ATTUNE_DEFAULT_SCALE : (double)a->scale;
    c->kind.soft_cap = (double)a->soft_cap;
    c->kind.window_left = a->window_left;
    c->kind.window_right = a->window_right;
    c->kind.is_causal = a->is_causal != 0;
    c->kind.is_f64 = a->precision == ORT_DOUBLE;
}

void call_free(call *c) {
    for (int i = 0; i < c->num_scratch; i++) free(c->scratch[i]);
}

ort_status *call_failure(const call *c) {
    char text[sizeof c->message + NODE_MAX_NAME + 80];
    snprintf(text, sizeof text, "attune, node '%s' (%s): %s", c->n->spec.name, node_rule_of(c->n->spec.op)->type,
             c->message);
    return c->n->api->CreateStatus(c->code, text);
}

bool call_fail(call *c, const char *format, ...) {
    if (c->message[0]) return false;
    va_list list;
    va_start(list, format);
    vsnprintf(c->message, sizeof c->message, format, list);
    va_end(list);
    return false;
}

/* Reports a failure of ONNX Runtime. */
static bool done(call *c, ort_status *status) {
    if (!status) return true;
    call_fail(c, "%s", c->n->api->GetErrorMessage(status));
    c->n->api->ReleaseStatus(status);
    return false;
}

/* ---- Tensors ---- */

/* ONNX Runtime checks the types of its operators, but not those of an EPContext node. */
static bool has_its_type(call *c, const char *name, const tensor *t) {
    if (!c->type) c->type = t->type;
    return t->type == c->type || call_fail(c, "%s must have the type of the first input", name);
}

bool call_input(call *c, size_t index, const char *name, bool is_optional, tensor *t) {
    const ort_api *const api = c->n->api;
    const ort_value *value = NULL;
    memset(t, 0, sizeof *t);
    const uint32_t bit = 1u << index;
    if (c->n->places) index = (size_t)(ptrdiff_t)c->n->places->inputs[index];
    if (!c->num_inputs && !done(c, api->KernelContext_GetInputCount(c->context, &c->num_inputs))) return false;
    if (index < c->num_inputs && !done(c, api->KernelContext_GetInput(c->context, index, &value))) return false;
    if (!value) return is_optional || call_fail(c, "%s is missing", name);
    return done(c, tensor_read(api, value, t)) &&
           (t->rank <= TENSOR_MAX_RANK ||
            call_fail(c, "%s has %d dims; it may have %d", name, t->rank, TENSOR_MAX_RANK)) &&
           (!c->n->places || c->n->places->own_types & bit || has_its_type(c, name, t));
}

const char *call_print_dims(int rank, const int64_t *dims, char text[128]) {
    size_t length = 0;
    text[0] = 0;
    for (int i = 0; i < rank && length < 120; i++)
        length +=
            (size_t)(dims[i] < 0 ? snprintf(text + length, 128 - length, "%sany", i ? ", " : "")
                                 : snprintf(text + length, 128 - length, "%s%lld", i ? ", " : "", (long long)dims[i]));
    return text;
}

bool call_expect(call *c, const char *name, const tensor *t, int rank, const int64_t *dims) {
    bool fits = t->rank == rank;
    for (int i = 0; fits && i < rank; i++) fits = dims[i] < 0 || t->dims[i] == dims[i];
    char have[128], want[128];
    return fits || call_fail(c, "%s is of shape [%s]; it must be of shape [%s]", name,
                             call_print_dims(t->rank, t->dims, have), call_print_dims(rank, dims, want));
}

/* Present has the type of past, and a state that of the previous state. */
static bool has_own_type(const call *c, size_t index) {
    const node_spec *const spec = &c->n->spec;
    return index && (spec->attributes.cache_bits || node_is_linear(spec->op));
}

bool call_output_tensor(call *c, size_t index, int rank, const int64_t *dims, tensor *t) {
    const ort_api *const api = c->n->api;
    ort_value *value = NULL;
    memset(t, 0, sizeof *t);
    const bool is_own = has_own_type(c, index);
    if (c->n->places) index = (size_t)(ptrdiff_t)c->n->places->outputs[index];
    if (!c->num_outputs && !done(c, api->KernelContext_GetOutputCount(c->context, &c->num_outputs))) return false;
    if (index >= c->num_outputs) return true;
    if (!done(c, api->KernelContext_GetOutput(c->context, index, dims, (size_t)rank, &value))) return false;
    return !value ||
           (done(c, tensor_read(api, value, t)) && (!c->n->places || is_own || has_its_type(c, "an output", t)));
}

bool call_output(call *c, size_t index, int rank, const int64_t *dims, void **data) {
    tensor t;
    const bool is_read = call_output_tensor(c, index, rank, dims, &t);
    *data = t.data;
    return is_read;
}

void *call_scratch(call *c, size_t bytes) {
    enum { ALIGN = 64 };
    const bool has_room = c->num_scratch < CALL_MAX_SCRATCH && bytes <= SIZE_MAX - ALIGN;
    void *const memory = has_room ? aligned_alloc(ALIGN, (bytes + ALIGN) / ALIGN * ALIGN) : NULL;
    if (!memory) {
        c->code = ORT_FAIL;
        call_fail(c, "there is no memory for %zu bytes", bytes);
        return NULL;
    }
    return c->scratch[c->num_scratch++] = memory;
}

heads call_packed(const tensor *t, int64_t num_heads) {
    const int64_t columns = num_heads ? t->dims[2] / num_heads : 0, row = t->dims[2];
    return (heads){.data = t->data,
                   .dtype = t->dtype,
                   .dims = {t->dims[0], num_heads, t->dims[1], columns},
                   .strides = {t->dims[1] * row, columns, row, 1}};
}

heads call_separate(void *data, attune_dtype dtype, int64_t batch, int64_t num_heads, int64_t tokens, int64_t columns) {
    return (heads){.data = data,
                   .dtype = dtype,
                   .dims = {batch, num_heads, tokens, columns},
                   .strides = {num_heads * tokens * columns, tokens * columns, columns, 1}};
}

static float widen_bf16(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* To nearest even. */
static uint16_t narrow_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (isnan(value)) return (uint16_t)(bits >> 16 | 64);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void call_widen(attune_dtype dtype, const void *from, int64_t count, float *to) {
    if (dtype == ATTUNE_F32) memcpy(to, from, (size_t)count * sizeof *to);
    if (dtype == ATTUNE_F16)
        for (int64_t i = 0; i < count; i++) to[i] = (float)((const _Float16 *)from)[i];
    if (dtype == ATTUNE_BF16)
        for (int64_t i = 0; i < count; i++) to[i] = widen_bf16(((const uint16_t *)from)[i]);
}

void call_narrow(attune_dtype dtype, const float *from, int64_t count, void *to) {
    if (dtype == ATTUNE_F32) memcpy(to, from, (size_t)count * sizeof *from);
    if (dtype == ATTUNE_F16)
        for (int64_t i = 0; i < count; i++) ((_Float16 *)to)[i] = (_Float16)from[i];
    if (dtype == ATTUNE_BF16)
        for (int64_t i = 0; i < count; i++) ((uint16_t *)to)[i] = narrow_bf16(from[i]);
}

const float *call_floats(call *c, const tensor *t, int64_t count) {
    if (t->dtype == ATTUNE_F32) return t->data;
    float *const values = call_scratch(c, (size_t)count * sizeof *values);
    if (values) call_widen(t->dtype, t->data, count, values);
    return values;
}

const int32_t *call_indices(call *c, const char *name, const tensor *t, int64_t count, int64_t low, int64_t high) {
    if (t->type != ORT_INT64 && t->type != ORT_INT32) {
        call_fail(c, "%s must be int32 or int64", name);
        return NULL;
    }
    int32_t *const values = call_scratch(c, (size_t)count * sizeof *values);
    for (int64_t i = 0; values && i < count; i++) {
        const int64_t value = t->type == ORT_INT64 ? ((const int64_t *)t->data)[i] : ((const int32_t *)t->data)[i];
        if (value < low || value > high) {
            call_fail(c, "%s[%lld] is %lld; it must be from %lld to %lld", name, (long long)i, (long long)value,
                      (long long)low, (long long)high);
            return NULL;
        }
        values[i] = (int32_t)value;
    }
    return values;
}

void call_parallel(call *c, attune_range_fn *fn, void *argument, int64_t n, int64_t bytes) {
    enum { FEW_BYTES = 128 * 1024 };
    const attune_runner runner = ort_runner(&c->place);
    if (bytes < FEW_BYTES)
        fn(argument, 0, n, 0);
    else
        runner.parallel_for(runner.user, fn, argument, n);
}

/* ---- Caches ---- */

typedef struct past_copy {
    const char *from;
    char *to;
    const int32_t *lengths;
    int64_t heads, from_head, to_head, row; /* bytes of a head, and of a key */
    int64_t keys, fresh;
    bool is_clean;
} past_copy;

static void copy_heads(void *argument, int64_t begin, int64_t end, uint32_t worker) {
    const past_copy *const p = argument;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const int64_t length = p->lengths ? p->lengths[i / p->heads] : p->keys;
        char *const to = p->to + i * p->to_head;
        if (length > p->fresh) memcpy(to, p->from + i * p->from_head, (size_t)((length - p->fresh) * p->row));
        if (p->is_clean) memset(to + length * p->row, 0, (size_t)(p->to_head - length * p->row));
    }
}

void call_copy_past(call *c, const tensor *past, const heads *cache, const int32_t *lengths, int64_t fresh,
                    bool is_clean) {
    if (past->is_given && past->data == cache->data) return;
    const int64_t row = cache->dims[3] * (int64_t)adapter_type_bytes(cache->dtype);
    past_copy p = {.from = past->data,
                   .to = cache->data,
                   .lengths = lengths,
                   .heads = cache->dims[1],
                   .from_head = past->dims[2] * row,
                   .to_head = cache->dims[2] * row,
                   .row = row,
                   .keys = c->keys,
                   .fresh = fresh,
                   .is_clean = is_clean};
    const int64_t n = cache->dims[0] * cache->dims[1];
    call_parallel(c, copy_heads, &p, n, n * p.to_head);
}

typedef struct gathering {
    const char *past, *from;
    char *to;
    heads keys;
    int64_t num_past, all, element;
} gathering;

static void gather_heads(void *argument, int64_t begin, int64_t end, uint32_t worker) {
    const gathering *const g = argument;
    const int64_t *const dims = g->keys.dims, *const strides = g->keys.strides, row = dims[3] * g->element;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        char *const to = g->to + i * g->all * row;
        const char *const from = g->from + (i / dims[1] * strides[0] + i % dims[1] * strides[1]) * g->element;
        if (g->num_past) memcpy(to, g->past + i * g->num_past * row, (size_t)(g->num_past * row));
        for (int64_t k = 0; k < dims[2]; k++)
            memcpy(to + (g->num_past + k) * row, from + k * strides[2] * g->element, (size_t)row);
    }
}

bool call_gather(call *c, const tensor *past, void *present, heads *keys) {
    const int64_t *const dims = keys->dims, n = dims[0] * dims[1];
    gathering g = {.past = past->data,
                   .from = keys->data,
                   .to = present,
                   .keys = *keys,
                   .num_past = past->is_given ? past->dims[2] : 0,
                   .element = (int64_t)adapter_type_bytes(keys->dtype)};
    g.all = g.num_past + dims[2];
    const int64_t bytes = n * g.all * dims[3] * g.element;
    if (!g.to && !(g.to = call_scratch(c, (size_t)bytes))) return false;
    if (bytes) call_parallel(c, gather_heads, &g, n, bytes);
    *keys = call_separate(g.to, keys->dtype, dims[0], dims[1], g.all, dims[3]);
    return true;
}

bool call_set_positions(call *c, int64_t past) {
    /* With as many new keys as queries, the queries are the last positions. Lengths only describe padding. */
    if (!past) return true;
    if (c->k.dims[2] == c->q.dims[2] && !c->kv_lens) {
        c->kind.bottom_right = 1;
        return true;
    }
    int32_t *const offsets = call_scratch(c, (size_t)c->q.dims[0] * sizeof *offsets);
    for (int64_t b = 0; offsets && b < c->q.dims[0]; b++) offsets[b] = (int32_t)past;
    c->causal_offsets = offsets;
    return offsets;
}

/* ---- Running ---- */

static common_mask mask_of(const call *c, const call_mask *mask) {
    return (common_mask){.dtype = (uint8_t)mask->dtype,
                         .rows = mask->strides[2] != 0,
                         .columns = mask->strides[3] != 0,
                         .is_short = mask->columns < c->keys};
}

static bool complete_kind(call *c) {
    common_kind *const kind = &c->kind;
    const int64_t *const q = c->q.dims;
    if (q[3] < 1 || q[3] > INT32_MAX || c->v.dims[3] < 1 || c->v.dims[3] > INT32_MAX || c->k.dims[1] < 1 ||
        q[1] % c->k.dims[1] || q[1] > INT32_MAX)
        return call_fail(c, "%lld heads of %lld columns over %lld heads of %lld columns cannot be computed",
                         (long long)q[1], (long long)q[3], (long long)c->k.dims[1], (long long)c->v.dims[3]);
    kind->head_dim = (int32_t)q[3];
    kind->head_dim_v = (int32_t)c->v.dims[3];
    kind->group = (int32_t)(q[1] / c->k.dims[1]);
    kind->dtype = (uint8_t)c->q.dtype;
    kind->k_dtype = (uint8_t)c->k.dtype;
    kind->v_dtype = (uint8_t)c->v.dtype;
    kind->has_kv_lens = c->kv_lens != NULL;
    kind->has_causal_offsets = c->causal_offsets != NULL;
    kind->has_position_ids = c->position_ids != NULL;
    kind->has_sinks = c->sinks != NULL;
    kind->appends = c->k_cache.data != NULL;
    kind->appends_one = kind->appends && c->k.dims[2] == 1;
    kind->mask = mask_of(c, &c->mask);
    kind->bias = mask_of(c, &c->bias);
    if (c->n->block) block_kind(c->n->block, kind);
    return true;
}

static void set_tensors(const call *c, attune_arguments *a) {
    if (c->n->block) {
        a->x.data = c->x;
        a->packed_weights = block_packed(c->n->block);
    }
    const heads *const k = c->kind.appends ? &c->k_cache : &c->k, *const v = c->kind.appends ? &c->v_cache : &c->v;
    a->q.data = c->q.data, a->k.data = k->data, a->v.data = v->data, a->out.data = c->out.data;
    memcpy(a->q.strides, c->q.strides, sizeof a->q.strides);
    memcpy(a->k.strides, k->strides, sizeof a->k.strides);
    memcpy(a->v.strides, v->strides, sizeof a->v.strides);
    memcpy(a->out.strides, c->out.strides, sizeof a->out.strides);
    if (c->kind.appends) {
        a->k_new.data = c->k.data, a->v_new.data = c->v.data;
        memcpy(a->k_new.strides, c->k.strides, sizeof a->k_new.strides);
        memcpy(a->v_new.strides, c->v.strides, sizeof a->v_new.strides);
        a->seq_new = c->k.dims[2];
    }
    if (c->users) flex_arguments(c->n->functions, c->users, a);
    a->attn_mask.data = c->mask.data, a->attn_bias.data = c->bias.data;
    memcpy(a->attn_mask.strides, c->mask.strides, sizeof a->attn_mask.strides);
    memcpy(a->attn_bias.strides, c->bias.strides, sizeof a->attn_bias.strides);
    if (c->kind.mask.is_short) a->mask_seq_kv = c->mask.columns;
    if (c->kind.bias.is_short) a->bias_seq_kv = c->bias.columns;
}

static bool run(call *c, const common_plan *p) {
    const char *message;
    attune_arguments a = p->arguments;
    set_tensors(c, &a);
    a.batch = c->q.dims[0], a.num_heads = c->q.dims[1], a.num_kv_heads = c->k.dims[1];
    a.seq_q = c->q.dims[2];
    if (!c->n->block) a.seq_kv = c->keys;
    a.kv_lens = c->kv_lens, a.causal_offsets = c->causal_offsets, a.position_ids = c->position_ids;
    a.sinks = c->sinks, a.cos = c->cos, a.sin = c->sin, a.weights.data = c->weights;
    a.q_norm = c->q_norm, a.k_norm = c->k_norm;
    a.k_scale.data = (float *)(uintptr_t)c->k_scale, a.v_scale.data = (float *)(uintptr_t)c->v_scale; /* only read */
    if (c->kind.rotary_dim) a.rotary_positions = c->rotary_positions;
    const attune_runner runner = ort_runner(&c->place);
    return !common_plan_run(p, &a, &runner, 0, &message) || call_fail(c, "%s", message);
}

static void release(common_plan **p) { common_plan_release(*p); }

bool call_attend(call *c) {
    attune_status status;
    const char *message;
    if (!c->q.dims[0] || !c->q.dims[1] || (!c->q.dims[2] && !c->k_cache.data)) return true;
    if (!complete_kind(c)) return false;
    c->code = ORT_FAIL;
    /* Released even if ONNX Runtime throws. */
    __attribute__((cleanup(release))) common_plan *p = common_plan_of(&c->n->plans, &c->kind, &status, &message);
    return p ? run(c, p) : call_fail(c, "%s", message);
}
