/* Linear attention in the tier for engines: binds the tensors of a step, and runs its kernel. */
#include "described/described.h"
#include "linear/kernel.h"
#include "linear/parts.h"
#include "linear/places.h"
#include "problem/problem_fields.h"

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
                                                   .version = 2},
                                       .run = run};

/* ---- Steps ---- */

/* A call, as the kernel has it. */
typedef struct call {
    const attune_linear_desc *d;
    const attune_linear_step *step;
    lin_parts parts;
    lin_places places[LIN_NORM]; /* of each tensor that it has */
    void *buffers[LIN_NUM_TENSORS + 1];
    int64_t scalars[4 + 3 * LIN_NUM_TENSORS + 1];
    size_t num_buffers, num_scalars;
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

static attune_status describe(call *c, float scale, at_error *err) {
    const attune_linear_step *s = c->step;
    c->scalars[0] = s->batch;
    c->scalars[1] = s->cu_seqlens ? 1 : s->batch;
    c->scalars[2] = c->parts.tokens;
    c->scalars[3] = c->parts.states;
    c->num_scalars = 4;
    for (int t = 0; t < LIN_NORM; t++)
        if (lin_has(c->d, (lin_tensor)t) && add_tensor(c, (lin_tensor)t, err)) return err->status;
    if (check_overlaps(c, err)) return err->status;
    if (lin_has(c->d, LIN_NORM)) {
        if (!s->norm_weights) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "norm_weights is NULL");
        c->buffers[c->num_buffers++] = (void *)(uintptr_t)s->norm_weights;
    }
    c->buffers[c->num_buffers++] = c->parts.of;
    int32_t bits;
    memcpy(&bits, &scale, sizeof bits);
    c->scalars[c->num_scalars++] = bits;
    return ATTUNE_OK;
}

static attune_status run_step(attune_linear *l, const attune_linear_step *s, bool is_interpreted, at_error *err) {
    const lin_sequences sequences = {.batch = s->batch,
                                     .seq = s->seq,
                                     .cu_seqlens = s->cu_seqlens,
                                     .num_states = s->num_states,
                                     .state_ids = s->state_ids};
    const attune_linear_desc *const d = &l->desc;
    call c = {.d = d, .step = s};
    if (!lin_find_parts(&sequences, &c.parts, err) && c.parts.all && !describe(&c, (float)d->scale, err)) {
        const uint32_t form = c.parts.longest < LIN_CHUNK ? LIN_FEW : d->reproducible ? LIN_TOKENS : LIN_CHUNKS;
        const double flops = 6 * (double)d->head_dim * (double)d->head_dim_v * (double)d->num_kv_heads;
        const at_described_call called = {c.buffers, c.num_buffers, c.scalars, flops * (double)c.parts.all};
        const at_described_step how = {s->runner, s->max_threads, s->cancel, is_interpreted};
        at_described_execute(&l->described, form, &called, &how, err);
    }
    lin_free_parts(&c.parts);
    return err->status;
}

static attune_status run(at_described *object, const void *given, bool is_interpreted, at_error *err) {
    attune_linear_step s;
    if (at_copy_in(&lin_described.step, given, &s, err)) return err->status;
    return run_step((attune_linear *)object, &s, is_interpreted, err);
}

AT_DESCRIBED_FUNCTIONS(linear, lin_described)
AT_DESCRIBED_PREPARE(linear, lin_described)
