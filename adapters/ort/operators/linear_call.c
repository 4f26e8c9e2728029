/* A call of LinearAttention: a step of attune/linear.h. ONNX Runtime's words and attune's:
 *     decay    of each head of value, or of each of its keys' columns: the last dim says which
 *     beta     of each head of value, or one for all
 *     key      has as many heads as its last dim says, which divide those of value
 * A state of f16 is one of f32 during the call. */
#include "linear.h"

#include "fpenv.h"
#include "kept.h"

#include <math.h>
#include <string.h>

/* ---- Inputs ---- */

typedef struct step {
    call *c;
    tensor in[LINEAR_NUM_INPUTS], out, present;
    attune_linear_desc desc;
    attune_linear_step step;
} step;

static const char *const names[LINEAR_NUM_INPUTS] = {"query", "key", "value", "past_state", "decay", "beta"};

/* [batch, tokens, heads * columns]: of heads and columns, one is known and the other follows. */
static bool divide(step *s, int input, int64_t unit, int64_t *count) {
    const tensor *const t = &s->in[input];
    const int64_t *const dims = s->in[LINEAR_QUERY].dims;
    if (!call_expect(s->c, names[input], t, 3, (int64_t[]){dims[0], dims[1], -1})) return false;
    if (t->dims[2] < 1 || t->dims[2] % unit)
        return call_fail(s->c, "%s has %lld columns, which is no multiple of %lld", names[input], (long long)t->dims[2],
                         (long long)unit);
    *count = t->dims[2] / unit;
    return true;
}

static attune_view view_of(const tensor *t, int64_t columns) {
    return (attune_view){.data = t->data, .batch = t->dims[1] * t->dims[2], .token = t->dims[2], .head = columns};
}

static bool take_rows(step *s) {
    const node_attributes *const a = &s->c->n->spec.attributes;
    attune_linear_desc *const d = &s->desc;
    for (int i = 0; i < LINEAR_NUM_INPUTS; i++)
        if (!call_input(s->c, (size_t)i, names[i], i > LINEAR_VALUE, &s->in[i])) return false;
    const tensor *const query = &s->in[LINEAR_QUERY];
    if (!common_is_float(query->dtype) || query->dtype == ATTUNE_F64)
        return call_fail(s->c, "query must be float, float16 or bfloat16");
    if (!call_expect(s->c, "query", query, 3, (int64_t[]){-1, -1, -1})) return false;
    d->num_heads = a->num_heads, d->num_kv_heads = a->kv_num_heads;
    d->dtype = d->decay_dtype = d->beta_dtype = query->dtype;
    d->rule = (attune_linear_rule)a->update_rule;
    if (!isnan(a->scale)) d->scale = (double)a->scale;
    if (!divide(s, LINEAR_QUERY, d->num_heads, &d->head_dim) || !divide(s, LINEAR_KEY, d->head_dim, &d->num_k_heads) ||
        !divide(s, LINEAR_VALUE, d->num_kv_heads, &d->head_dim_v))
        return false;
    s->step.batch = query->dims[0], s->step.seq = query->dims[1];
    s->step.q = view_of(query, d->head_dim);
    s->step.k = view_of(&s->in[LINEAR_KEY], d->head_dim);
    s->step.v = view_of(&s->in[LINEAR_VALUE], d->head_dim_v);
    return true;
}

/* linear_check has ensured that exactly the inputs of the rule are present. */
static bool take_gates(step *s) {
    attune_linear_desc *const d = &s->desc;
    int64_t columns, betas;
    if (linear_has_decay(d->rule)) {
        if (!divide(s, LINEAR_DECAY, d->num_kv_heads, &columns)) return false;
        if (columns != 1 && columns != d->head_dim)
            return call_fail(s->c, "decay has %lld numbers for each head; it must have 1 or %lld", (long long)columns,
                             (long long)d->head_dim);
        d->decay = columns == 1 ? ATTUNE_DECAY_HEAD : ATTUNE_DECAY_KEY;
        s->step.decay = view_of(&s->in[LINEAR_DECAY], columns);
    }
    if (d->rule < ATTUNE_DELTA) return true;
    if (!divide(s, LINEAR_BETA, 1, &betas)) return false;
    if (betas != 1 && betas != d->num_kv_heads)
        return call_fail(s->c, "beta has %lld numbers for each token; it must have 1 or %lld", (long long)betas,
                         (long long)d->num_kv_heads);
    d->has_beta = 1;
    s->step.beta = view_of(&s->in[LINEAR_BETA], betas > 1);
    return true;
}

/* ---- The state ---- */

static bool begin_state(step *s) {
    call *const c = s->c;
    attune_linear_desc *const d = &s->desc;
    const tensor *const past = &s->in[LINEAR_PAST];
    tensor *const present = &s->present;
    const int64_t dims[4] = {s->step.batch, d->num_kv_heads, d->head_dim, d->head_dim_v};
    const int64_t count = dims[0] * dims[1] * dims[2] * dims[3];
    if (past->is_given && !call_expect(c, "past_state", past, 4, dims)) return false;
    if (!call_output_tensor(c, 1, 4, dims, present)) return false;
    if (!present->is_given) present->dtype = past->is_given ? past->dtype : d->dtype;
    if (!common_is_float(present->dtype) || present->dtype == ATTUNE_F64 ||
        (past->is_given && past->dtype != present->dtype))
        return call_fail(c, "past_state and present_state must be of one type, float, float16 or bfloat16");
    d->state_dtype = present->dtype == ATTUNE_BF16 ? ATTUNE_BF16 : ATTUNE_F32;
    const size_t bytes = (size_t)count * adapter_type_bytes(d->state_dtype);
    const bool is_direct = present->is_given && present->dtype == d->state_dtype;
    s->step.state.data = is_direct ? present->data : call_scratch(c, bytes);
    if (!s->step.state.data) return !count;
    if (!past->is_given)
        memset(s->step.state.data, 0, bytes);
    else if (present->dtype != d->state_dtype)
        call_widen(past->dtype, past->data, count, s->step.state.data);
    else if (past->data != s->step.state.data)
        memcpy(s->step.state.data, past->data, bytes);
    return true;
}

static void end_state(const step *s) {
    const tensor *const present = &s->present;
    if (present->is_given && present->data != s->step.state.data)
        call_narrow(present->dtype, s->step.state.data, tensor_count(present), present->data);
}

/* ---- Running ---- */

KEPT_KIND(linear);

bool call_linear(call *c) {
    AT_DEFAULT_FPENV;
    static const attune_linear_desc initial = ATTUNE_LINEAR_DESC_INIT;
    step s = {.c = c, .step = ATTUNE_LINEAR_STEP_INIT};
    memcpy(&s.desc, &initial, sizeof s.desc); /* padding included, so that descriptions can be compared as bytes */
    const attune_runner runner = ort_runner(&c->place);
    s.step.runner = &runner;
    if (!take_rows(&s) || !take_gates(&s)) return false;
    const attune_linear_desc *const d = &s.desc;
    const int64_t out_heads = d->num_heads > d->num_kv_heads ? d->num_heads : d->num_kv_heads;
    const int64_t dims[3] = {s.step.batch, s.step.seq, out_heads * d->head_dim_v};
    const size_t bytes = (size_t)(dims[0] * dims[1] * dims[2]) * adapter_type_bytes(d->dtype);
    if (!call_output_tensor(c, 0, 3, dims, &s.out) || (!s.out.is_given && !(s.out.data = call_scratch(c, bytes))) ||
        !begin_state(&s))
        return false;
    s.step.out.data = s.out.data;
    if (!kept_run(c, &kind, &s.desc, &s.step)) return false;
    end_state(&s);
    return true;
}
