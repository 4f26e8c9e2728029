/* The tier for engines: descriptions of linear attention, and steps. */
#include "attention/attention.h"
#include "base/fpenv.h"
#include "base/struct.h"
#include "engine/own_operator.h"
#include "linear/kernel.h"
#include "linear/parts.h"
#include "linear/places.h"
#include "problem/problem_fields.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct attune_linear {
    attune_context *context;
    attune_operator *op;
    attune_linear_desc desc; /* settled: no zeros that stand for something else */
    float scale;
    char problem[2][LIN_PROBLEM_BYTES]; /* of few tokens, and of many */
    _Atomic(attune_kernel *) kernels[2];
};

static const attune_linear_desc initial = ATTUNE_LINEAR_DESC_INIT;
static const at_struct desc_struct = {"attune_linear_desc", "start from ATTUNE_LINEAR_DESC_INIT",
                                      sizeof(attune_linear_desc), &initial, sizeof(attune_linear_desc)};
static const at_struct step_struct = {"attune_linear_step", "start from ATTUNE_LINEAR_STEP_INIT",
                                      sizeof(attune_linear_step), NULL, sizeof(attune_linear_step)};

attune_status attune_linear_desc_init(attune_linear_desc *desc, size_t struct_size) {
    at_error err = {0};
    at_struct_init(&desc_struct, desc, struct_size, &err);
    return at_report(&err);
}

attune_status attune_linear_step_init(attune_linear_step *step, size_t struct_size) {
    at_error err = {0};
    at_struct_init(&step_struct, step, struct_size, &err);
    return at_report(&err);
}

/* ---- Descriptions ---- */

static attune_status check_dtype(const char *name, attune_dtype dtype, bool may_be_f16, at_error *err) {
    if (dtype == ATTUNE_F32 || dtype == ATTUNE_BF16 || (may_be_f16 && dtype == ATTUNE_F16)) return ATTUNE_OK;
    const char *const word = (unsigned)dtype < ATTUNE_DTYPE_COUNT ? mha_dtype_name(dtype) : "no attune_dtype";
    return at_fail(err, ATTUNE_UNSUPPORTED, "%s is %s; it must be f32%s bf16%s", name, word, may_be_f16 ? "," : " or",
                   may_be_f16 ? " or f16" : "");
}

static attune_status check_heads(const attune_linear_desc *d, at_error *err) {
    enum { MOST_HEADS = 1024, MOST_DIM = 1024 };
    if (at_check_size("num_heads", d->num_heads, 1, MOST_HEADS, err) ||
        at_check_size("num_kv_heads", d->num_kv_heads, 1, MOST_HEADS, err) ||
        at_check_size("num_k_heads", d->num_k_heads, 1, MOST_HEADS, err) ||
        at_check_size("head_dim", d->head_dim, 1, MOST_DIM, err) ||
        at_check_size("head_dim_v", d->head_dim_v, 1, MOST_DIM, err))
        return err->status;
    if (d->num_heads % d->num_kv_heads && d->num_kv_heads % d->num_heads)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "num_heads is %lld and num_kv_heads %lld; one of them must divide the other",
                       (long long)d->num_heads, (long long)d->num_kv_heads);
    if (d->num_kv_heads % d->num_k_heads)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "num_k_heads is %lld, which does not divide num_kv_heads, %lld",
                       (long long)d->num_k_heads, (long long)d->num_kv_heads);
    return ATTUNE_OK;
}

static attune_status check_rule(const attune_linear_desc *d, at_error *err) {
    static const char *const rules[] = {"linear", "gated", "delta", "gated_delta"};
    static const char *const decays[] = {"none", "head", "key"};
    if ((unsigned)d->rule >= ATTUNE_LINEAR_RULE_COUNT)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "rule is %d, which is no attune_linear_rule", (int)d->rule);
    if ((unsigned)d->decay >= ATTUNE_DECAY_COUNT)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "decay is %d, which is no attune_linear_decay", (int)d->decay);
    const bool has_decay = d->rule == ATTUNE_GATED || d->rule == ATTUNE_GATED_DELTA,
               has_delta = d->rule >= ATTUNE_DELTA;
    if (has_decay != (d->decay != ATTUNE_DECAY_NONE))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the rule %s has %s decay, but decay is %s", rules[d->rule],
                       has_decay ? "a" : "no", decays[d->decay]);
    if ((unsigned)d->has_beta > has_delta)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "has_beta is %d; of the rule %s it must be 0%s", d->has_beta,
                       rules[d->rule], has_delta ? " or 1" : "");
    return ATTUNE_OK;
}

static attune_status check_eps(const char *name, double eps, at_error *err) {
    if (eps == 0 || (eps >= 1e-12 && eps <= 1)) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is %g; it must be 0, or from 1e-12 to 1", name, eps);
}

static attune_status settle(const attune_linear_desc *given, attune_linear_desc *d, at_error *err) {
    *d = *given;
    if (!d->num_kv_heads) d->num_kv_heads = d->num_heads;
    if (!d->num_k_heads) d->num_k_heads = d->num_kv_heads;
    if (!d->head_dim_v) d->head_dim_v = d->head_dim;
    attune_dtype *const dtypes[] = {&d->dtype, &d->decay_dtype, &d->beta_dtype, &d->state_dtype};
    for (int i = 0; i < 4; i++)
        if (*dtypes[i] == ATTUNE_DTYPE_DEFAULT) *dtypes[i] = ATTUNE_F32;
    if (check_heads(d, err) || check_dtype("dtype", d->dtype, true, err) ||
        check_dtype("decay_dtype", d->decay_dtype, true, err) || check_dtype("beta_dtype", d->beta_dtype, true, err) ||
        check_dtype("state_dtype", d->state_dtype, false, err) || check_rule(d, err))
        return err->status;
    if (!isnan(d->scale) && !(fabs(d->scale) <= 1e38))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "scale is %g; it must be within +-1e38", d->scale);
    if ((unsigned)d->gate >= ATTUNE_GATE_COUNT)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "gate is %d, which is no attune_linear_gate", (int)d->gate);
    if (at_check_size("reproducible", d->reproducible, 0, 1, err)) return err->status;
    if (check_eps("qk_norm_eps", d->qk_norm_eps, err)) return err->status;
    return check_eps("out_norm_eps", d->out_norm_eps, err);
}

attune_status attune_linear_create(attune_context *context, const attune_linear_desc *desc, attune_linear **linear) {
    AT_DEFAULT_FPENV;
    static const attune_operator_options options = {.struct_size = sizeof options,
                                                    .name = "linear_attention",
                                                    .build = lin_build,
                                                    .choices = lin_choices,
                                                    .num_choices = LIN_NUM_CHOICES,
                                                    .version = 2};
    at_error err = {0};
    attune_linear_desc given, d;
    attune_operator *op;
    if (linear) *linear = NULL;
    if (!desc || !linear) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_linear_create was given no %s",
                desc ? "pointer to the linear attention" : "description");
        return at_report(&err);
    }
    if (at_copy_in(&desc_struct, desc, &given, &err) || settle(&given, &d, &err)) return at_report(&err);
    if (!context) {
        const attune_status status = an_shared_context(&context);
        if (status) return status;
    }
    if (at_operator_of(context, &options, &op, &err)) return at_report(&err);
    attune_linear *const made = calloc(1, sizeof *made);
    if (!made) {
        at_fail_memory(&err, sizeof *made);
        return at_report(&err);
    }
    *made = (attune_linear){.context = context, .op = op, .desc = d};
    made->scale = (float)(isnan(d.scale) ? 1 / sqrt((double)d.head_dim) : d.scale);
    lin_print(&(lin_kernel){.desc = d, .form = LIN_FEW}, made->problem[0]);
    lin_print(&(lin_kernel){.desc = d, .form = d.reproducible ? LIN_TOKENS : LIN_CHUNKS}, made->problem[1]);
    *linear = made;
    return ATTUNE_OK;
}

void attune_linear_destroy(attune_linear *linear) {
    if (!linear) return;
    for (int i = 0; i < 2; i++) attune_kernel_release(atomic_load(&linear->kernels[i]));
    free(linear);
}

/* ---- Kernels ---- */

static attune_status find_kernel(attune_linear *l, int is_long, attune_kernel **kernel, at_error *err) {
    return at_operator_kernel(l->op, l->problem[is_long], &l->kernels[is_long], kernel, err);
}

attune_status attune_linear_prepare(attune_linear *linear) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_kernel *kernel;
    if (!linear)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_linear_prepare was given NULL");
    else if (!find_kernel(linear, 0, &kernel, &err))
        find_kernel(linear, 1, &kernel, &err);
    return at_report(&err);
}

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

static attune_status run_kernel(attune_linear *l, const attune_kernel *kernel, const call *c, bool is_interpreted,
                                at_error *err) {
    at_team team;
    if (at_operator_team(l->context, c->step->runner, c->step->max_threads, &team, err)) return err->status;
    const double products = 3 * (double)c->d->head_dim * (double)c->d->head_dim_v * (double)c->d->num_kv_heads;
    const at_run run = {.buffers = c->buffers,
                        .num_buffers = c->num_buffers,
                        .scalars = c->scalars,
                        .work = at_work_of(2 * products * (double)c->parts.all, kernel->target),
                        .team = &team,
                        .cancel = c->step->cancel};
    return at_operator_run(kernel, &run, is_interpreted, err);
}

static attune_status run_step(attune_linear *l, const attune_linear_step *s, bool is_interpreted, at_error *err) {
    const lin_sequences sequences = {.batch = s->batch,
                                     .seq = s->seq,
                                     .cu_seqlens = s->cu_seqlens,
                                     .num_states = s->num_states,
                                     .state_ids = s->state_ids};
    call c = {.d = &l->desc, .step = s};
    attune_kernel *kernel;
    if (!lin_find_parts(&sequences, &c.parts, err) && c.parts.all && !describe(&c, l->scale, err) &&
        !find_kernel(l, c.parts.longest >= LIN_CHUNK, &kernel, err))
        run_kernel(l, kernel, &c, is_interpreted, err);
    lin_free_parts(&c.parts);
    return err->status;
}

static attune_status run_checked(attune_linear *linear, const attune_linear_step *step, bool is_interpreted) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_linear_step s;
    if (!linear || !step)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_linear_run was given no %s",
                linear ? "step" : "linear attention");
    else if (!at_copy_in(&step_struct, step, &s, &err))
        run_step(linear, &s, is_interpreted, &err);
    return at_report(&err);
}

attune_status attune_linear_run(attune_linear *linear, const attune_linear_step *step) {
    return run_checked(linear, step, false);
}

attune_status attune_linear_run_interpreted(attune_linear *linear, const attune_linear_step *step) {
    return run_checked(linear, step, true);
}
