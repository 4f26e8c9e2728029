/* Linear attention in the tier for engines: binds the tensors of a step, and runs its kernel. */
#include "described/described.h"
#include "linear/kernel.h"
#include "linear/parts.h"
#include "linear/places.h"
#include "problem/problem_fields.h"

#include <stdlib.h>
#include <string.h>

struct attune_linear {
    at_described described;
    attune_linear_desc desc; /* settled: no zeros that stand for something else */
};

/* ---- The operator ---- */

static attune_status run(at_described *object, const void *given, bool is_interpreted, at_error *err);

const at_described_op lin_described = {AT_DESCRIBED_OP(linear, LINEAR, &lin_table, sizeof(attune_linear_step)),
                                       .options = {.struct_size = sizeof(attune_operator_options),
                                                   .name = "linear_attention",
                                                   .build = lin_build,
                                                   .choices = lin_choices,
                                                   .num_choices = LIN_NUM_CHOICES,
                                                   .version = 3},
                                       .run = run};

/* ---- Steps ---- */

/* A call, as the kernel has it. */
typedef struct call {
    const attune_linear_desc *d;
    const attune_linear_step *step;
    lin_parts parts;
    lin_places places[LIN_NORM]; /* of each tensor that it has */
    void *buffers[LIN_NUM_TENSORS + 1];
    int64_t scalars[LIN_NUM_SIZES + 3 * LIN_NUM_TENSORS + 2];
    size_t num_buffers, num_scalars;
    bool is_general; /* the kernel is one of `generalise` */
    float *widened[2];
} call;

static attune_mutable_view written(const attune_view *view) {
    attune_mutable_view same = {.data = (void *)(uintptr_t)view->data};
    memcpy(same.strides, view->strides, sizeof same.strides);
    return same;
}

/* One tensor's data and strides; a view of zeros is contiguous. */
static attune_status add_tensor(call *c, lin_tensor t, at_error *err) {
    static const char *const names[] = {"q", "k", "v", "decay", "beta", "state", "out", "gate"};
    const attune_linear_step *s = c->step;
    const attune_linear_desc *d = c->d;
    const attune_mutable_view views[] = {written(&s->q),    written(&s->k), written(&s->v), written(&s->decay),
                                         written(&s->beta), s->state,       s->out,         written(&s->gate)};
    const int64_t out_heads = d->num_heads > d->num_kv_heads ? d->num_heads : d->num_kv_heads;
    const int64_t columns[] = {
        d->head_dim, d->head_dim,   d->head_dim_v, d->decay == ATTUNE_DECAY_KEY ? d->head_dim : 1,
        1,           d->head_dim_v, d->head_dim_v, d->head_dim_v};
    const int64_t heads[] = {d->num_heads,    d->num_k_heads,  d->num_kv_heads, d->num_kv_heads,
                             d->num_kv_heads, d->num_kv_heads, out_heads,       out_heads};
    const attune_dtype dtypes[] = {d->dtype,      d->dtype,       d->dtype, d->decay_dtype,
                                   d->beta_dtype, d->state_dtype, d->dtype, d->dtype};
    attune_mutable_view v = views[t];
    if (!v.data) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is NULL", names[t]);
    const bool is_plain = !v.batch && !v.head && !v.token;
    if (v.batch < 0 || v.head < 0 || v.token < 0)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s has a negative stride", names[t]);
    if (v.column != 0 && v.column != 1)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s has the column stride %lld; it must be 0 or 1", names[t],
                       (long long)v.column);
    if (t == LIN_STATE && is_plain) {
        v.token = columns[t], v.head = d->head_dim * v.token, v.batch = heads[t] * v.head;
    } else if (is_plain) {
        v.head = columns[t], v.token = heads[t] * v.head, v.batch = c->parts.tokens * v.token;
    }
    const bool is_state = t == LIN_STATE;
    c->places[t] = (lin_places){
        .name = names[t],
        .data = v.data,
        .rank = 4,
        .dims = {c->scalars[is_state ? 3 : 1], heads[t], is_state ? d->head_dim : c->parts.tokens, columns[t]},
        .strides = {v.batch, v.head, v.token, 1},
        .bytes = mha_dtype_bytes(dtypes[t])};
    if ((t == LIN_OUT || is_state) && lin_check_places(&c->places[t], err)) return err->status;
    c->buffers[c->num_buffers++] = v.data;
    c->scalars[c->num_scalars++] = v.batch;
    c->scalars[c->num_scalars++] = v.head;
    c->scalars[c->num_scalars++] = v.token;
    return ATTUNE_OK;
}

/* ---- Decay and beta of a general kernel ---- */

/* A contiguous copy in f32 of a tensor of bf16, in *copy; *strides become its own. */
static attune_status widen(const lin_places *p, int64_t strides[3], float **copy, at_error *err) {
    const int64_t *const dims = p->dims; /* batches, heads, tokens, columns */
    const size_t bytes = (size_t)(dims[0] * dims[1] * dims[2] * dims[3]) * sizeof **copy;
    float *to = *copy = malloc(bytes);
    if (!to) return at_fail_memory(err, bytes);
    for (int64_t b = 0; b < dims[0]; b++)
        for (int64_t h = 0; h < dims[1]; h++)
            for (int64_t t = 0; t < dims[2]; t++)
                for (int64_t i = 0; i < dims[3]; i++) {
                    const uint16_t *const from = p->data;
                    const uint32_t bits = (uint32_t)from[b * strides[0] + h * strides[1] + t * strides[2] + i] << 16;
                    memcpy(to++, &bits, sizeof bits);
                }
    strides[2] = dims[3], strides[1] = dims[2] * dims[3], strides[0] = dims[1] * strides[1];
    return ATTUNE_OK;
}

static attune_status add_general(call *c, lin_tensor t, at_error *err) {
    static const float no_decay = 0, no_beta = 1; /* for every token and head: all strides are 0 */
    const attune_dtype dtype = t == LIN_DECAY ? c->d->decay_dtype : c->d->beta_dtype;
    if (!lin_has(c->d, t)) {
        c->buffers[c->num_buffers++] = (void *)(uintptr_t)(t == LIN_DECAY ? &no_decay : &no_beta);
        for (int i = 0; i < 3; i++) c->scalars[c->num_scalars++] = 0;
        return ATTUNE_OK;
    }
    if (add_tensor(c, t, err) || dtype == ATTUNE_F32) return err->status;
    float **const copy = &c->widened[t - LIN_DECAY];
    const attune_status status = widen(&c->places[t], &c->scalars[c->num_scalars - 3], copy, err);
    c->buffers[c->num_buffers - 1] = *copy;
    return status;
}

static bool takes(const call *c, lin_tensor t) {
    const bool has_beta = c->d->rule >= ATTUNE_DELTA;
    return lin_has(c->d, t) || (c->is_general && (t == LIN_DECAY || (t == LIN_BETA && has_beta)));
}

static attune_status add(call *c, lin_tensor t, at_error *err) {
    if (!takes(c, t)) return ATTUNE_OK;
    return c->is_general && (t == LIN_DECAY || t == LIN_BETA) ? add_general(c, t, err) : add_tensor(c, t, err);
}

/* Columns of out and of states are written while other columns still read the inputs. */
static attune_status check_overlaps(const call *c, at_error *err) {
    for (int t = 0; t < LIN_NORM; t++) {
        if (!lin_has(c->d, (lin_tensor)t)) continue;
        if (t != LIN_OUT && lin_check_ranges(&c->places[LIN_OUT], &c->places[t], err)) return err->status;
        if (t != LIN_OUT && t != LIN_STATE && lin_check_ranges(&c->places[LIN_STATE], &c->places[t], err))
            return err->status;
    }
    return ATTUNE_OK;
}

static void add_number(call *c, float number) {
    int32_t bits;
    memcpy(&bits, &number, sizeof bits);
    c->scalars[c->num_scalars++] = bits;
}

static attune_status describe(call *c, at_error *err) {
    const attune_linear_step *s = c->step;
    const attune_linear_desc *d = c->d;
    const int64_t sizes[LIN_NUM_SIZES] = {s->batch,        s->cu_seqlens ? 1 : s->batch,
                                          c->parts.tokens, c->parts.states,
                                          d->num_heads,    d->num_k_heads,
                                          d->num_kv_heads, d->head_dim,
                                          d->head_dim_v};
    memcpy(c->scalars, sizes, sizeof sizes);
    c->num_scalars = LIN_NUM_SIZES, c->num_buffers = 0;
    for (int t = 0; t < LIN_NORM; t++)
        if (add(c, (lin_tensor)t, err)) return err->status;
    if (check_overlaps(c, err)) return err->status;
    if (lin_has(c->d, LIN_NORM)) {
        if (!s->norm_weights) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "norm_weights is NULL");
        c->buffers[c->num_buffers++] = (void *)(uintptr_t)s->norm_weights;
    }
    c->buffers[c->num_buffers++] = c->parts.of;
    add_number(c, (float)d->scale);
    add_number(c, (float)d->qk_norm_eps);
    return ATTUNE_OK;
}

/* A general kernel takes other tensors, so the step is described again for it. */
static attune_status run_step(attune_linear *l, const attune_linear_step *s, bool is_interpreted, at_error *err) {
    const lin_sequences sequences = {.batch = s->batch,
                                     .seq = s->seq,
                                     .cu_seqlens = s->cu_seqlens,
                                     .num_states = s->num_states,
                                     .state_ids = s->state_ids};
    const attune_linear_desc *const d = &l->desc;
    attune_kernel *kernel;
    call c = {.d = d, .step = s};
    if (!lin_find_parts(&sequences, &c.parts, err) && c.parts.all && !describe(&c, err)) {
        const uint32_t which = c.parts.longest < LIN_CHUNK ? LIN_FEW : d->reproducible ? LIN_TOKENS : LIN_CHUNKS;
        const double flops = 6 * (double)d->head_dim * (double)d->head_dim_v * (double)d->num_kv_heads;
        const at_described_step how = {s->runner, s->max_threads, s->cancel, is_interpreted};
        if (!at_described_kernel(&l->described, which, &kernel, err) && (c.is_general = kernel->is_general))
            describe(&c, err);
        const at_described_call called = {c.buffers, c.num_buffers, c.scalars, flops * (double)c.parts.all};
        if (!err->status) at_described_execute_by(&l->described, kernel, &called, &how, err);
    }
    lin_free_parts(&c.parts);
    for (int i = 0; i < 2; i++) free(c.widened[i]);
    return err->status;
}

static attune_status run(at_described *object, const void *given, bool is_interpreted, at_error *err) {
    attune_linear_step s;
    if (at_copy_in(&lin_described.step, given, &s, err)) return err->status;
    return run_step((attune_linear *)object, &s, is_interpreted, err);
}

AT_DESCRIBED_FUNCTIONS(linear, lin_described)
AT_DESCRIBED_PREPARE(linear, lin_described)
