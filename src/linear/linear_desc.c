/* Descriptions of linear attention: which are sound, their defaults, and their text. */
#include "described/desc_table.h"
#include "linear/kernel.h"
#include "problem/problem_fields.h"

#include <math.h>

static const attune_linear_desc initial = ATTUNE_LINEAR_DESC_INIT;
static const char *const rules[] = {"linear", "gated", "delta", "gated_delta", NULL};
static const char *const decays[] = {"none", "head", "key", NULL};
static const char *const gates[] = {"none", "silu", "sigmoid", NULL};

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

static bool has_kernel(const void *desc, uint32_t which) {
    const attune_linear_desc *const d = desc;
    return which == LIN_FEW || which == (d->reproducible ? LIN_TOKENS : LIN_CHUNKS);
}

static attune_status check_kernel(const void *desc, uint32_t which, at_error *err) {
    const attune_linear_desc *const d = desc;
    const char *const word = which == LIN_ANY ? "any" : "any_tokens";
    if (which < LIN_ANY) return ATTUNE_OK;
    if (d->head_dim % LIN_ANY_ROWS || d->head_dim > LIN_ANY_DIM)
        return at_fail(err, ATTUNE_UNSUPPORTED, "head_dim is %lld; of kernel=%s it must be a multiple of %d up to %d",
                       (long long)d->head_dim, word, LIN_ANY_ROWS, LIN_ANY_DIM);
    if (d->head_dim_v % LIN_ANY_COLUMNS)
        return at_fail(err, ATTUNE_UNSUPPORTED, "head_dim_v is %lld; of kernel=%s it must be a multiple of %d",
                       (long long)d->head_dim_v, word, LIN_ANY_COLUMNS);
    if (d->out_norm_eps)
        return at_fail(err, ATTUNE_UNSUPPORTED, "out_norm_eps is %g; of kernel=%s it must be 0", d->out_norm_eps, word);
    if (d->gate)
        return at_fail(err, ATTUNE_UNSUPPORTED, "gate is %s; of kernel=%s it must be none", gates[d->gate], word);
    return ATTUNE_OK;
}

/* Numbers of heads are arguments, and so are scale and norm. What stays is the number of heads of Q that share a state,
 * and of the heads of V whether they are enough tasks for many threads (kernel.c). */
static void narrow(void *desc, uint32_t which) {
    attune_linear_desc *const d = desc;
    const int64_t group = d->num_heads > d->num_kv_heads ? d->num_heads / d->num_kv_heads : 1;
    int64_t least = 1;
    while (least < LIN_MANY_HEADS && (which != LIN_CHUNKS || 2 * least <= d->num_kv_heads)) least *= 2;
    d->num_heads = group * least, d->num_kv_heads = d->num_k_heads = least;
    d->scale = ATTUNE_DEFAULT_SCALE, d->qk_norm_eps = 0, d->reproducible = 0;
    if (which >= LIN_ANY) d->head_dim = d->head_dim_v = LIN_ANY_DIM, d->out_norm_eps = 0, d->gate = ATTUNE_GATE_NONE;
    if (!d->has_beta) d->beta_dtype = ATTUNE_F32;
    if (d->decay == ATTUNE_DECAY_NONE) d->decay_dtype = ATTUNE_F32;
}

static bool is_f32_or_bf16(attune_dtype dtype) { return dtype == ATTUNE_F32 || dtype == ATTUNE_BF16; }

/* A kernel for heads of any size, which computes token by token. If there is none for prompts, that for a few tokens
 * computes them, too. Their decay and beta are f32; a rule without them is one with a decay of 0 and a beta of 1
 * (add_general in linear.c). */
static bool generalise(void *desc, uint32_t *which) {
    attune_linear_desc *const d = desc;
    if (*which == LIN_ANY) return false;
    *which = *which == LIN_FEW || *which == LIN_ANY_TOKENS ? LIN_ANY : LIN_ANY_TOKENS;
    if (check_kernel(d, *which, NULL) || !is_f32_or_bf16(d->decay_dtype) || !is_f32_or_bf16(d->beta_dtype))
        return false;
    d->has_beta = d->rule >= ATTUNE_DELTA;
    d->rule = d->has_beta ? ATTUNE_GATED_DELTA : ATTUNE_GATED;
    if (!d->decay) d->decay = ATTUNE_DECAY_HEAD;
    d->decay_dtype = d->beta_dtype = ATTUNE_F32;
    return true;
}

#define DESC attune_linear_desc
static const at_described_field fields[] = {AT_SIZE(num_heads),    AT_SIZE(num_kv_heads),  AT_SIZE(num_k_heads),
                                            AT_SIZE(head_dim),     AT_SIZE(head_dim_v),    AT_DTYPE(dtype),
                                            AT_DTYPE(decay_dtype), AT_DTYPE(beta_dtype),   AT_DTYPE(state_dtype),
                                            AT_WORD(rule, rules),  AT_WORD(decay, decays), AT_FLAG(has_beta),
                                            AT_NUMBER(scale),      AT_NUMBER(qk_norm_eps), AT_NUMBER(out_norm_eps),
                                            AT_WORD(gate, gates),  AT_FLAG(reproducible)};
static const char *const kernels[] = {[LIN_FEW] = "few",
                                      [LIN_TOKENS] = "tokens",
                                      [LIN_CHUNKS] = "chunks",
                                      [LIN_ANY] = "any",
                                      [LIN_ANY_TOKENS] = "any_tokens"};

const at_desc_table lin_table = {AT_DESC_TABLE(linear, LINEAR, &initial, sizeof(attune_linear_desc)),
                                 .what = "linear attention",
                                 .kernels = kernels,
                                 .num_kernels = LIN_NUM_KERNELS,
                                 .settle = settle,
                                 .has_kernel = has_kernel,
                                 .check_kernel = check_kernel,
                                 .narrow = narrow,
                                 .generalise = generalise};
