/* attune run op=linear: the tensors of linear attention, its step and its reference. */
#include "run/step.h"

#include "ref_linear.h"
#include "ref_attention.h"

#include <stdlib.h>
#include <string.h>

static const attune_linear_desc *desc_of(const step_call *c) { return &c->desc.linear; }

static bool has_head_decay(const step_call *c) { return desc_of(c)->decay == ATTUNE_DECAY_HEAD; }
static bool has_key_decay(const step_call *c) { return desc_of(c)->decay == ATTUNE_DECAY_KEY; }
static bool has_beta(const step_call *c) { return desc_of(c)->has_beta; }
static bool has_gate(const step_call *c) { return desc_of(c)->gate != ATTUNE_GATE_NONE; }
static bool has_norm(const step_call *c) { return desc_of(c)->out_norm_eps > 0; }

static const step_tensor list[] = {
    {"q", "batch seq num_heads head_dim", STEP_INPUT, FILL_UNIT_ROWS, "dtype", 0, NULL},
    {"k", "batch seq num_k_heads head_dim", STEP_INPUT, FILL_UNIT_ROWS, "dtype", 0, NULL},
    {"v", "batch seq num_kv_heads head_dim_v", STEP_INPUT, FILL_NORMAL, "dtype", 0, NULL},
    {"decay", "batch seq num_kv_heads", STEP_INPUT, FILL_DECAY, "decay_dtype", 0, has_head_decay},
    {"decay", "batch seq num_kv_heads head_dim", STEP_INPUT, FILL_DECAY, "decay_dtype", 0, has_key_decay},
    {"beta", "batch seq num_kv_heads", STEP_INPUT, FILL_SHARE, "beta_dtype", 0, has_beta},
    {"gate", "batch seq out_heads head_dim_v", STEP_INPUT, FILL_NORMAL, "dtype", 0, has_gate},
    {"norm_weights", "head_dim_v", STEP_INPUT, FILL_NEAR_ONE, "dtype", 0, has_norm},
    {"cu_seqlens", "batch+1", STEP_LIST, FILL_ZERO, NULL, ATTUNE_I32, NULL},
    {"state_ids", "batch", STEP_LIST, FILL_ZERO, NULL, ATTUNE_I32, NULL},
    {"state", "num_states num_kv_heads head_dim head_dim_v", STEP_STATE, FILL_NORMAL, "state_dtype", 0, NULL},
    {"out", "batch seq out_heads head_dim_v", STEP_OUTPUT, FILL_ZERO, "dtype", 0, NULL},
};
static const char *const sizes[] = {"batch", "seq", "tokens", "num_states", NULL};
static const char *const follow[] = {"out_heads", NULL};

/* A tensor that the rule has nothing for, because the text names no rule, or another. */
static bool fits_rule(const step_call *c, const char *name, attune_linear_rule one, attune_linear_rule other) {
    const attune_linear_rule rule = desc_of(c)->rule;
    if (!step_file(c, name) || rule == one || rule == other) return true;
    size_t i = 0;
    while (strcmp(lin_table.fields[i].name, "rule") != 0) i++;
    const char *const *const rules = lin_table.fields[i].words;
    tool_error("%s is given, but the rule %s has none; say rule=%s or rule=%s", name, rules[rule], rules[one],
               rules[other]);
    return false;
}

static bool take_files(step_call *c) {
    attune_linear_desc *const d = &c->desc.linear;
    const npy_array *const decay = step_file(c, "decay");
    if (!fits_rule(c, "decay", ATTUNE_GATED, ATTUNE_GATED_DELTA) ||
        !fits_rule(c, "beta", ATTUNE_DELTA, ATTUNE_GATED_DELTA))
        return false;
    if (decay && d->decay == ATTUNE_DECAY_NONE)
        d->decay = decay->header.rank == (step_file(c, "cu_seqlens") ? 3 : 4) ? ATTUNE_DECAY_KEY : ATTUNE_DECAY_HEAD;
    if (step_file(c, "beta")) d->has_beta = 1;
    if (step_file(c, "norm_weights") && d->out_norm_eps == 0) d->out_norm_eps = 1e-6;
    if (step_file(c, "gate") && !d->gate) {
        tool_error("gate is given; say gate=silu or gate=sigmoid");
        return false;
    }
    if (!step_file(c, "state_ids") || step_file(c, "state")) return true;
    tool_error("state_ids needs --tensor state=F.npy");
    return false;
}

static bool derive(step_call *c) {
    const attune_linear_desc *const d = desc_of(c);
    *step_size(c, "out_heads") = d->num_heads > d->num_kv_heads ? d->num_heads : d->num_kv_heads;
    return step_derive_sequences(c);
}

static attune_status create(step_call *c, attune_context *context) {
    return attune_linear_create(context, desc_of(c), (attune_linear **)&c->object);
}

static attune_status run(step_call *c, bool is_interpreted) {
    attune_linear_step s = ATTUNE_LINEAR_STEP_INIT;
    s.batch = step_size_of(c, "batch"), s.seq = step_size_of(c, "seq"), s.num_states = step_size_of(c, "num_states");
    s.q.data = step_data(c, "q"), s.k.data = step_data(c, "k"), s.v.data = step_data(c, "v");
    s.decay.data = step_data(c, "decay"), s.beta.data = step_data(c, "beta"), s.gate.data = step_data(c, "gate");
    s.norm_weights = step_data(c, "norm_weights");
    s.cu_seqlens = step_data(c, "cu_seqlens"), s.state_ids = step_data(c, "state_ids");
    s.out.data = step_data(c, "out"), s.state.data = step_data(c, "state"), s.max_threads = c->o->threads;
    return (is_interpreted ? attune_linear_run_interpreted : attune_linear_run)(c->object, &s);
}

static void destroy(step_call *c) { attune_linear_destroy(c->object); }

static double flops(const step_call *c) {
    const attune_linear_desc *const d = desc_of(c);
    return 6 * (double)step_tokens(c) * (double)d->num_kv_heads * (double)d->head_dim * (double)d->head_dim_v;
}

static const void *rows_at(const step_call *c, const char *name, int64_t token) {
    const npy_array *const a = step_array(c, name);
    if (!a) return NULL;
    int64_t row = 1; /* elements of a token */
    for (size_t i = step_data(c, "cu_seqlens") ? 1 : 2; i < a->header.rank; i++) row *= a->header.shape[i];
    return (const char *)a->data + (size_t)(token * row) * npy_type_bytes(a->header.type);
}

/* The state of a sequence, by the limits of its columns. */
static void judge_state(step_call *c, int64_t slot, const double *state, const double *of_columns, double *limits) {
    const attune_linear_desc *const d = desc_of(c);
    const int64_t columns = d->head_dim_v, of_head = d->head_dim * columns, numbers = d->num_kv_heads * of_head;
    for (int64_t i = 0; i < numbers; i++)
        limits[i] = step_limit(d->state_dtype, state[i], of_columns[i / of_head * columns + i % columns]);
    step_compare(c, "state", slot * numbers, state, limits, numbers);
}

/* One sequence: out, and its state. */
static bool judge_one(step_call *c, int64_t first, int64_t tokens, int64_t slot) {
    const attune_linear_desc *const d = desc_of(c);
    const int64_t numbers = d->num_kv_heads * d->head_dim * d->head_dim_v, columns = d->num_kv_heads * d->head_dim_v;
    const int64_t row = step_size_of(c, "out_heads") * d->head_dim_v, all = tokens * row;
    double *const state = malloc((size_t)(2 * numbers + columns) * sizeof *state);
    double *const out = malloc((size_t)(2 * all + 1) * sizeof *out), *const limits = out + all;
    double *const of_columns = state + 2 * numbers;
    const ref_linear r = {.desc = d,
                          .tokens = tokens,
                          .q = rows_at(c, "q", first),
                          .k = rows_at(c, "k", first),
                          .v = rows_at(c, "v", first),
                          .decay = rows_at(c, "decay", first),
                          .beta = rows_at(c, "beta", first),
                          .gate = rows_at(c, "gate", first),
                          .norm_weights = step_data(c, "norm_weights")};
    bool good = state && out;
    for (int64_t i = 0; good && i < numbers; i++)
        state[i] = npy_element(step_before(c, "state"), (size_t)(slot * numbers + i));
    good = good && ref_linear_compute(&r, state, out, limits, of_columns);
    if (good) step_compare(c, "out", first * row, out, limits, all);
    if (good) judge_state(c, slot, state, of_columns, state + numbers);
    free(state), free(out);
    return good;
}

static bool judge(step_call *c) { return step_judge_sequences(c, judge_one); }

const step_operator step_linear = {STEP_OPERATOR(&lin_table), .follow = follow, .take_files = take_files};
