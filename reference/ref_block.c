/* Projects x into tensors of its own, lets ref_attention.c attend to them, and projects the result: the plain order of
 * the formula. */
#include "ref_block.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum projection { PROJECT_Q, PROJECT_K, PROJECT_V, PROJECT_OUT, NUM_PROJECTIONS } projection;

/* A call of a block and the call of attention inside of it. */
typedef struct block {
    const ref_call *call;
    int64_t sequences, tokens; /* of x: a ragged batch is one sequence */
    int64_t heads, kv_heads, dim, dim_v;
    const attune_tensor *inputs[PROJECT_OUT]; /* inputs of the projections of q, k and v; NULL: not projected */
    const attune_tensor *keys_low, *values_low;
    /* Intermediate tensors: [sequences, heads, tokens, columns], NULL if absent. */
    long double *q, *k, *v, *k_low, *v_low, *heads_out;
    attune_problem problem;
    attune_arguments arguments;
    attune_tensor tensors[REF_MAX_TENSORS + 4];
    ref_call inner;
} block;

bool ref_is_block(const attune_problem *p) {
    return p->embed_dim > 0 && (p->op == ATTUNE_ATTENTION || p->op == ATTUNE_MHA);
}

/* ---- Tensors ---- */

static const attune_tensor *find(const ref_call *call, const char *name) {
    for (size_t i = 0; i < call->count; i++)
        if (strcmp(call->tensors[i].name, name) == 0) return &call->tensors[i];
    return NULL;
}

static const void *data_of(const ref_call *call, const attune_tensor *t) {
    const void *data;
    memcpy(&data, (const char *)call->arguments + t->pointer_offset, sizeof data);
    return data;
}

/* Adds a dense tensor of long double to the call of attention. NULL: out of memory. */
static long double *add_tensor(block *b, const char *name, size_t pointer, const int64_t dims[4]) {
    attune_tensor t = {.name = name, .dtype = (attune_dtype)REF_WIDE, .rank = 4, .is_input = 1};
    int64_t count = 1;
    t.is_output = strcmp(name, "out") == 0;
    t.pointer_offset = pointer;
    for (int d = 3; d >= 0; d--) {
        t.dims[d] = dims[d];
        t.strides[d] = count;
        count *= dims[d];
    }
    long double *const data = calloc((size_t)(count ? count : 1), sizeof *data);
    if (!data) return NULL;
    memcpy((char *)&b->arguments + pointer, &data, sizeof data);
    b->tensors[b->inner.count++] = t;
    return data;
}

/* ---- Weights ---- */

static int64_t outputs_of(const block *b, projection which) {
    switch (which) {
    case PROJECT_Q: return b->heads * b->dim;
    case PROJECT_K: return b->kv_heads * b->dim;
    case PROJECT_V: return b->kv_heads * b->dim_v;
    default: return find(b->call, "out")->dims[2];
    }
}

static int64_t inputs_of(const block *b, projection which) {
    return which == PROJECT_OUT ? b->heads * b->dim_v : b->inputs[which]->dims[2];
}

/* The separate tensor, or the one of all three and where this projection's outputs begin in it. */
static const attune_weight *weight_of(const block *b, projection which, bool is_bias, int64_t *first, int64_t *all) {
    const attune_weight *const tensors = b->call->weights->tensor;
    const attune_weight *const own = &tensors[(is_bias ? ATTUNE_Q_BIAS : ATTUNE_Q_WEIGHT) + (int)which];
    *first = 0;
    *all = outputs_of(b, which);
    if (own->data || which == PROJECT_OUT) return own;
    *all = outputs_of(b, PROJECT_Q) + outputs_of(b, PROJECT_K) + outputs_of(b, PROJECT_V);
    for (int before = 0; before < (int)which; before++) *first += outputs_of(b, (projection)before);
    return &tensors[is_bias ? ATTUNE_QKV_BIAS : ATTUNE_QKV_WEIGHT];
}

static long double weight_at(const block *b, projection which, int64_t output, int64_t input) {
    int64_t first, all;
    const attune_weight *const w = weight_of(b, which, false, &first, &all);
    const bool by_output = b->call->weights->layout == ATTUNE_OUT_IN;
    const int64_t at = by_output ? (first + output) * inputs_of(b, which) + input : input * all + first + output;
    return ref_load(w->dtype, w->data, at);
}

static long double bias_at(const block *b, projection which, int64_t output) {
    int64_t first, all;
    const attune_weight *const w = weight_of(b, which, true, &first, &all);
    return w->data ? ref_load(w->dtype, w->data, first + output) : 0;
}

/* A group of weights as w_dtype = i8 or i4 has them: codes times a scale of f16. In f32, as attune.h says. */
static void round_to_codes(long double *weights, int64_t count, bool is_i4) {
    float largest = 0;
    for (int64_t i = 0; i < count; i++)
        if (fabsf((float)weights[i]) > fabsf(largest)) largest = (float)weights[i];
    const float scale = (float)ref_rounded(ATTUNE_F16, is_i4 ? largest / -8 : fabsf(largest) / 127);
    for (int64_t i = 0; i < count; i++) {
        const float code = scale != 0 ? rintf((float)weights[i] / scale) : 0;
        weights[i] = scale * (is_i4 ? fmaxf(-8, fminf(7, code)) : fmaxf(-127, fminf(127, code)));
    }
}

/* The weights of an output. */
static void load_weights(const block *b, projection which, int64_t output, long double *weights) {
    const int64_t inputs = inputs_of(b, which);
    const attune_dtype dtype = b->call->problem->w_dtype;
    for (int64_t i = 0; i < inputs; i++) weights[i] = weight_at(b, which, output, i);
    if (dtype != ATTUNE_I8 && dtype != ATTUNE_I4) return;
    const int64_t group = b->call->problem->w_group ? b->call->problem->w_group : 32;
    for (int64_t first = 0; first < inputs; first += group)
        round_to_codes(weights + first, inputs - first < group ? inputs - first : group, dtype == ATTUNE_I4);
}

/* ---- Magnitudes ---- */

static double larger_finite(double largest, double value) {
    return isfinite(value) && value > largest ? value : largest;
}

/* The loss of one element of a sum of n products: the roundings of n additions, which rarely all go one way. */
static double loss_of(double terms, int64_t n) { return (2 + 0.5 * sqrt((double)n)) * terms; }

/* f32 arithmetic rounds to f32. */
static double in_precision(const attune_problem *p, double x) {
    return p->softmax_precision == ATTUNE_F64 ? x : (double)(float)x;
}

/* Inputs that are computed may be off by a little, and then some of their codes by one: each by the scale times a
 * weight. In units of the arithmetic's epsilon. */
static double lost_to_codes(const block *b, double scale, double gain, int64_t inputs) {
    const bool is_double = b->call->problem->softmax_precision == ATTUNE_F64;
    const double epsilon = is_double ? DBL_EPSILON : (double)FLT_EPSILON;
    return scale * gain * (2 / sqrt((double)inputs)) / epsilon;
}

/* The Euclidean length of the longest row. */
static double longest_row(const long double *data, int64_t rows, int64_t columns) {
    double longest = 0;
    for (int64_t row = 0; data && row < rows; row++) {
        double squares = 0;
        for (int64_t c = 0; c < columns; c++) {
            const double value = (double)data[row * columns + c];
            if (isfinite(value)) squares += value * value;
        }
        longest = larger_finite(longest, sqrt(squares));
    }
    return longest;
}

/* ---- Attention inside ---- */

static bool is_for_block_only(const attune_tensor *t) {
    static const char *const names[] = {"x", "x_kv", "x_v", "packed_weights", "keys_low", "values_low"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(t->name, names[i]) == 0) return true;
    return false;
}

/* Without an input and caches of their own, keys are those of x: as many, in the same places. */
static bool is_plain_self(const attune_problem *p) { return !p->is_cross && !p->seq_new && !p->kv_projected; }

static void open_problem(block *b) {
    const attune_problem *const p = b->call->problem;
    const attune_arguments *const a = b->call->arguments;
    b->problem = *p;
    b->problem.op = ATTUNE_ATTENTION;
    b->problem.embed_dim = 0;
    b->problem.head_dim = b->dim;
    b->problem.head_dim_v = b->dim_v;
    b->arguments = *a;
    if (is_plain_self(p)) {
        b->problem.seq_kv = p->seq_q;
        b->arguments.seq_kv = a->seq_q;
        b->arguments.cu_seqlens_kv = a->cu_seqlens_q;
    }
    if (p->seq_new && !p->is_cross) {
        b->problem.seq_new = p->seq_q;
        b->arguments.seq_new = a->seq_q;
    }
    if (p->low_rank) b->problem.seq_kv = p->low_rank;
}

static void copy_tensors(block *b) {
    const ref_call *const call = b->call;
    for (size_t i = 0; i < call->count; i++) {
        const attune_tensor *const t = &call->tensors[i];
        if (is_for_block_only(t) || (strcmp(t->name, "out") == 0 && t->rank != 4)) continue;
        b->tensors[b->inner.count++] = *t;
    }
    const attune_tensor *const cu = find(call, "cu_seqlens_q");
    if (!cu || !is_plain_self(call->problem)) return;
    attune_tensor keys = *cu;
    keys.name = "cu_seqlens_kv";
    keys.pointer_offset = offsetof(attune_arguments, cu_seqlens_kv);
    b->tensors[b->inner.count++] = keys;
}

/* The call of attention uses one pointer for tensors that attention reads and for tensors that are only projected. */
static bool open_keys(block *b) {
    const bool appends = b->call->problem->seq_new != 0;
    const int64_t tokens = b->inputs[PROJECT_K]->dims[1], rank = b->keys_low ? b->call->problem->low_rank : tokens;
    const int64_t k[4] = {b->sequences, b->kv_heads, rank, b->dim}, v[4] = {b->sequences, b->kv_heads, rank, b->dim_v};
    const size_t k_pointer = appends ? offsetof(attune_arguments, k_new) : offsetof(attune_arguments, k);
    const size_t v_pointer = appends ? offsetof(attune_arguments, v_new) : offsetof(attune_arguments, v);
    const int64_t rows = b->sequences * b->kv_heads * tokens;
    bool good = (b->k = add_tensor(b, appends ? "k_new" : "k", k_pointer, k)) != NULL;
    if (b->inputs[PROJECT_V]) good = (b->v = add_tensor(b, appends ? "v_new" : "v", v_pointer, v)) && good;
    if (!b->keys_low) return good;
    b->k_low = b->k;
    b->v_low = b->v;
    b->k = malloc((size_t)(rows * b->dim + 1) * sizeof *b->k);
    if (b->v) good = (b->v = malloc((size_t)(rows * b->dim_v + 1) * sizeof *b->v)) && good;
    return b->k && good;
}

static void close_block(block *b) {
    free(b->q);
    free(b->k);
    free(b->v);
    free(b->k_low);
    free(b->v_low);
    free(b->heads_out);
}

static void open_sizes(block *b) {
    const ref_call *const call = b->call;
    const attune_problem *const p = call->problem;
    const attune_tensor *const x = find(call, "x"), *const x_kv = find(call, "x_kv"), *const x_v = find(call, "x_v");
    b->sequences = x->dims[0];
    b->tokens = x->dims[1];
    b->heads = p->num_heads;
    b->kv_heads = p->num_kv_heads ? p->num_kv_heads : p->num_heads;
    b->dim = p->head_dim ? p->head_dim : p->embed_dim / p->num_heads;
    b->dim_v = p->head_dim_v ? p->head_dim_v : b->dim;
    b->inputs[PROJECT_Q] = x;
    if (p->kv_projected) return;
    b->inputs[PROJECT_K] = x_kv ? x_kv : x;
    if (!p->v_in_k) b->inputs[PROJECT_V] = x_v ? x_v : b->inputs[PROJECT_K];
    b->keys_low = find(call, "keys_low");
    b->values_low = p->low_rank_shared ? b->keys_low : find(call, "values_low");
}

static bool open_block(block *b, const ref_call *call) {
    const attune_problem *const p = call->problem;
    *b = (block){.call = call};
    b->inner = (ref_call){.problem = &b->problem, .arguments = &b->arguments, .tensors = b->tensors};
    b->inner.k_taken = call->k_taken;
    b->inner.v_taken = call->v_taken;
    open_sizes(b);
    open_problem(b);
    copy_tensors(b);
    /* The same keys must have the same bits whether a cache holds them or not; those that are given come from one. */
    if (p->reproducible && !p->seq_new && !p->kv_projected) {
        b->inner.k_rounding = p->k_dtype ? p->k_dtype : p->dtype;
        b->inner.v_rounding = p->v_dtype ? p->v_dtype : p->dtype;
    }
    const int64_t q[4] = {b->sequences, b->heads, b->tokens, b->dim},
                  out[4] = {b->sequences, b->heads, b->tokens, b->dim_v};
    bool good = (b->q = add_tensor(b, "q", offsetof(attune_arguments, q), q)) != NULL;
    if (!p->no_out_projection)
        good = (b->heads_out = add_tensor(b, "out", offsetof(attune_arguments, out), out)) && good;
    return (!b->inputs[PROJECT_K] || open_keys(b)) && good;
}

/* Whether a sequence owns this token of x. */
static bool is_owned(const block *b, int64_t token) {
    const int32_t *const cu = b->call->arguments->cu_seqlens_q;
    return !b->call->problem->is_ragged || (token >= cu[0] && token < cu[b->call->arguments->batch]);
}

/* ---- The loops, in each precision ---- */

#define REAL    float
#define NAME(x) x##_float
#include "ref_block_loops.h"
#undef REAL
#undef NAME

#define REAL    double
#define NAME(x) x##_double
#include "ref_block_loops.h"
#undef REAL
#undef NAME

#define REAL    long double
#define NAME(x) x##_long_double
#include "ref_block_loops.h"
#undef REAL
#undef NAME

typedef enum precision { FLOAT, DOUBLE, LONG_DOUBLE } precision;

static bool before(block *b, precision in, ref_block_scale *scale) {
    switch (in) {
    case FLOAT: return before_float(b, scale);
    case DOUBLE: return before_double(b, scale);
    default: return before_long_double(b, scale);
    }
}

static bool put_together(const block *b, precision in, const long double *heads, long double *out,
                         ref_block_scale *scale) {
    switch (in) {
    case FLOAT: return put_together_float(b, heads, out, scale);
    case DOUBLE: return put_together_double(b, heads, out, scale);
    default: return put_together_long_double(b, heads, out, scale);
    }
}

/* Rows that will be normalised: how long they become at most, and how many times their loss becomes larger. */
static void measure_normalised(const block *b, const char *weights, const long double *data, int64_t rows,
                               double *longest, double *loss) {
    const attune_tensor *const t = find(b->call, weights);
    double largest = 0, gain = 0;
    for (int64_t c = 0; t && c < b->dim; c++)
        largest = larger_finite(largest, fabs((double)ref_load(t->dtype, data_of(b->call, t), c)));
    for (int64_t row = 0; t && data && row < rows; row++) {
        double squares = 0;
        for (int64_t c = 0; c < b->dim; c++) squares += (double)(data[row * b->dim + c] * data[row * b->dim + c]);
        gain = larger_finite(gain, largest / sqrt(squares / (double)b->dim + b->call->problem->qk_norm_eps));
    }
    *longest = sqrt((double)b->dim) * largest;
    *loss *= gain;
}

/* The projected rows; checks of the caches add their contents. */
static void measure(const block *b, ref_block_scale *scale) {
    const long double *const keys = b->keys_low ? b->k_low : b->k, *const values = b->keys_low ? b->v_low : b->v;
    const int64_t tokens = b->keys_low ? b->call->problem->low_rank : keys ? b->inputs[PROJECT_K]->dims[1] : 0;
    const int64_t rows = b->sequences * b->kv_heads * tokens;
    if (b->call->problem->qk_norm_eps > 0) {
        measure_normalised(b, "q_norm", b->q, b->sequences * b->heads * b->tokens, &scale->q_row, &scale->q_loss);
        measure_normalised(b, "k_norm", keys, rows, &scale->k_row, &scale->k_loss);
        scale->value = longest_row(values, values ? rows * b->dim_v : 0, 1);
        return;
    }
    scale->q_row = longest_row(b->q, b->sequences * b->heads * b->tokens, b->dim);
    scale->k_row = longest_row(keys, rows, b->dim);
    scale->value = values ? longest_row(values, rows * b->dim_v, 1) : longest_row(keys, rows * b->dim, 1);
}

/* Dense, as the output is now, and then as it should be. NULL: out of memory. */
static long double *project_out(const block *b, precision in, const long double *heads, ref_block_scale *scale) {
    const attune_tensor *const t = find(b->call, "out");
    const int64_t rows = t->dims[0] * t->dims[1], columns = t->dims[2];
    const void *const data = data_of(b->call, t);
    long double *const out = malloc((size_t)(rows * columns + 1) * sizeof *out);
    for (int64_t i = 0; out && i < rows * columns; i++) {
        const int64_t row = i / columns, at = row / t->dims[1] * t->strides[0] + row % t->dims[1] * t->strides[1];
        out[i] = ref_load(t->dtype, data, at + i % columns * t->strides[2]);
    }
    if (out && put_together(b, in, heads, out, scale)) return out;
    free(out);
    return NULL;
}

static bool compute_block(block *b, bool is_plain, ref_result *result) {
    const bool is_double = b->call->problem->softmax_precision == ATTUNE_F64;
    const precision in = is_plain ? (is_double ? DOUBLE : FLOAT) : is_double ? LONG_DOUBLE : DOUBLE;
    ref_block_scale scale = {0};
    if (!before(b, in, &scale)) return false;
    measure(b, &scale);
    const double epsilon = is_double ? DBL_EPSILON : (double)FLT_EPSILON;
    const double spread = b->call->problem->qk_hadamard ? 2 * sqrt((double)b->dim) : 1;
    b->inner.k_error = spread * epsilon * (8 * scale.k_row + scale.k_loss); /* rotated, too */
    b->inner.v_error = epsilon * scale.v_loss;
    if (!(is_plain ? ref_attention_plain(&b->inner, result) : ref_attention(&b->inner, result))) return false;
    result->scale = scale;
    if (b->call->problem->no_out_projection) return true;
    long double *const heads = result->out;
    const attune_dtype dtype = b->call->problem->dtype;
    const int64_t count = b->sequences * b->heads * b->tokens * b->dim_v;
    for (int64_t i = 0; is_plain && dtype == ATTUNE_BF16 && i < count; i++) heads[i] = ref_rounded(dtype, heads[i]);
    result->out = project_out(b, in, heads, &result->scale);
    free(heads);
    if (!result->out) return false;
    const attune_tensor *const t = find(b->call, "out");
    for (int64_t i = 0; is_plain && i < t->dims[0] * t->dims[1] * t->dims[2]; i++)
        result->out[i] = ref_rounded(t->dtype, result->out[i]);
    return true;
}

static bool compute(const ref_call *call, bool is_plain, ref_result *result) {
    block b;
    *result = (ref_result){0};
    const bool good = open_block(&b, call) && compute_block(&b, is_plain, result);
    close_block(&b);
    if (!good) ref_result_free(result);
    return good;
}

bool ref_block_mark_seen(const ref_call *call, const ref_seen *seen) {
    block b;
    unsigned char *rows = NULL;
    bool good = open_block(&b, call);
    const int64_t tokens = good && b.k ? b.inputs[PROJECT_K]->dims[1] : 0;
    if (good) good = (rows = calloc((size_t)(b.sequences * b.kv_heads * tokens * b.dim + 1), 1)) != NULL;
    if (good && !b.keys_low) {
        const bool has_caches = call->problem->seq_new || call->problem->kv_projected;
        const ref_seen inner =
            has_caches ? (ref_seen){seen->k, seen->v, rows, NULL, seen->k_scale, seen->v_scale} : (ref_seen){.k = rows};
        ref_mark_seen(&b.inner, &inner);
    }
    for (int64_t head = 0; good && head < b.sequences * b.kv_heads; head++)
        for (int64_t j = 0; j < tokens; j++)
            if (b.keys_low || rows[(head * tokens + j) * b.dim]) seen->k_new[head / b.kv_heads * tokens + j] = 1;
    free(rows);
    close_block(&b);
    return good;
}

bool ref_compute(const ref_call *call, ref_result *result) {
    return ref_is_block(call->problem) ? compute(call, false, result) : ref_attention(call, result);
}

bool ref_compute_plain(const ref_call *call, ref_result *result) {
    return ref_is_block(call->problem) ? compute(call, true, result) : ref_attention_plain(call, result);
}
