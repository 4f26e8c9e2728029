/* The tier for engines: descriptions of linear attention, and steps. */
#include "described/described.h"
#include "linear/kernel.h"
#include "linear/linear_words.h"
#include "linear/parts.h"
#include "linear/places.h"
#include "problem/problem_fields.h"

#include <math.h>
#include <string.h>

struct attune_linear {
    at_described described;
    attune_linear_desc desc; /* settled: no zeros that stand for something else */
};

static const attune_linear_desc initial = ATTUNE_LINEAR_DESC_INIT;

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

static const char *const decays[] = {"none", "head", "key", NULL};

static attune_status check_rule(const attune_linear_desc *d, at_error *err) {
    if ((unsigned)d->rule >= ATTUNE_LINEAR_RULE_COUNT)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "rule is %d, which is no attune_linear_rule", (int)d->rule);
    if ((unsigned)d->decay >= ATTUNE_DECAY_COUNT)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "decay is %d, which is no attune_linear_decay", (int)d->decay);
    const bool has_decay = d->rule == ATTUNE_GATED || d->rule == ATTUNE_GATED_DELTA,
               has_delta = d->rule >= ATTUNE_DELTA;
    if (has_decay != (d->decay != ATTUNE_DECAY_NONE))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the rule %s has %s decay, but decay is %s", lin_rules[d->rule],
                       has_decay ? "a" : "no", decays[d->decay]);
    if ((unsigned)d->has_beta > has_delta)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "has_beta is %d; of the rule %s it must be 0%s", d->has_beta,
                       lin_rules[d->rule], has_delta ? " or 1" : "");
    return ATTUNE_OK;
}

static attune_status check_eps(const char *name, double eps, at_error *err) {
    if (eps == 0 || (eps >= 1e-12 && eps <= 1)) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is %g; it must be 0, or from 1e-12 to 1", name, eps);
}

static attune_status settle(void *desc, at_error *err) {
    attune_linear_desc *const d = desc;
    if (!d->num_kv_heads) d->num_kv_heads = d->num_heads;
    if (!d->num_k_heads) d->num_k_heads = d->num_kv_heads;
    if (!d->head_dim_v) d->head_dim_v = d->head_dim;
    if (!d->qk_norm_eps) d->qk_norm_eps = 0; /* -0.0 is the same kernel */
    if (!d->out_norm_eps) d->out_norm_eps = 0;
    attune_dtype *const dtypes[] = {&d->dtype, &d->decay_dtype, &d->beta_dtype, &d->state_dtype};
    for (int i = 0; i < 4; i++)
        if (*dtypes[i] == ATTUNE_DTYPE_DEFAULT) *dtypes[i] = ATTUNE_F32;
    if (check_heads(d, err) || check_dtype("dtype", d->dtype, true, err) ||
        check_dtype("decay_dtype", d->decay_dtype, true, err) || check_dtype("beta_dtype", d->beta_dtype, true, err) ||
        check_dtype("state_dtype", d->state_dtype, false, err) || check_rule(d, err))
        return err->status;
    if (isnan(d->scale)) d->scale = 1 / sqrt((double)d->head_dim);
    if (!(fabs(d->scale) <= 1e38))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "scale is %g; it must be within +-1e38", d->scale);
    if ((unsigned)d->gate >= ATTUNE_GATE_COUNT)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "gate is %d, which is no attune_linear_gate", (int)d->gate);
    if (at_check_size("reproducible", d->reproducible, 0, 1, err)) return err->status;
    if (check_eps("qk_norm_eps", d->qk_norm_eps, err)) return err->status;
    return check_eps("out_norm_eps", d->out_norm_eps, err);
}

/* ---- The operator ---- */

static bool has_form(const void *desc, uint32_t form) {
    const attune_linear_desc *const d = desc;
    return form == LIN_FEW || form == (d->reproducible ? LIN_TOKENS : LIN_CHUNKS);
}

/* The scale is an argument. */
static void narrow(void *desc, uint32_t form) {
    attune_linear_desc *const d = desc;
    (void)form;
    d->scale = ATTUNE_DEFAULT_SCALE, d->reproducible = 0;
    if (!d->has_beta) d->beta_dtype = ATTUNE_F32;
    if (d->decay == ATTUNE_DECAY_NONE) d->decay_dtype = ATTUNE_F32;
}

#define DESC attune_linear_desc
static const at_described_field fields[] = {AT_SIZE(num_heads),       AT_SIZE(num_kv_heads),  AT_SIZE(num_k_heads),
                                            AT_SIZE(head_dim),        AT_SIZE(head_dim_v),    AT_DTYPE(dtype),
                                            AT_DTYPE(decay_dtype),    AT_DTYPE(beta_dtype),   AT_DTYPE(state_dtype),
                                            AT_WORD(rule, lin_rules), AT_WORD(decay, decays), AT_FLAG(has_beta),
                                            AT_NUMBER(scale),         AT_NUMBER(qk_norm_eps), AT_NUMBER(out_norm_eps),
                                            AT_WORD(gate, lin_gates), AT_FLAG(reproducible)};
static const char *const forms[] = {[LIN_FEW] = "few", [LIN_TOKENS] = "tokens", [LIN_CHUNKS] = "chunks"};

static attune_status run(at_described *object, const void *given, bool is_interpreted, at_error *err);

const at_described_op lin_described = {
    AT_DESCRIBED_OP(linear, LINEAR, &initial, sizeof(attune_linear_desc), sizeof(attune_linear_step)),
    .what = "linear attention",
    .options = {.struct_size = sizeof(attune_operator_options),
                .name = "linear_attention",
                .build = lin_build,
                .choices = lin_choices,
                .num_choices = LIN_NUM_CHOICES,
                .version = 2},
    .forms = forms,
    .num_forms = LIN_NUM_FORMS,
    .settle = settle,
    .has_form = has_form,
    .narrow = narrow,
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
