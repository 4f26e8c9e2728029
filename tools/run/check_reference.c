/* Outputs against the reference: the limits that rounding sets, and whether they are kept. */
#include "run/check_reference.h"

#include "ref_codes.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- Magnitudes of the inputs ---- */

static double largest_finite(const tensor *one) {
    double largest = 0;
    for (size_t i = 0; one && i < one->count; i++) {
        const double value = fabs((double)ref_load(one->info.dtype, one->data, (int64_t)i));
        if (isfinite(value)) largest = fmax(largest, value);
    }
    return largest;
}

/* The Euclidean length of the longest row, and the largest number. Numbers that are not finite are left out; codes
 * count as the numbers that they stand for. `scale` may be NULL. */
typedef struct magnitude {
    double row, number;
} magnitude;

static magnitude magnitude_of(const tensor *one, const tensor *scale, const ref_format *f) {
    const attune_tensor *const scales = scale ? &scale->info : NULL;
    int64_t dims[4], strides[4];
    magnitude most = {0, 0};
    if (!one || !one->count) return most;
    tensor_shape(&one->info, dims, strides);
    const ref_format plain = {.dtype = one->info.dtype, .columns = dims[3]};
    if (!f) f = &plain;
    /* The last panel may have room for more tokens than there are scales. */
    int64_t tokens = ref_tokens(f, dims[2]);
    if (scales && scales->rank > 2 && scales->dims[2] < tokens) tokens = scales->dims[2];
    for (int64_t a = 0; a < dims[0]; a++)
        for (int64_t b = 0; b < dims[1]; b++)
            for (int64_t c = 0; c < tokens; c++) {
                double squares = 0;
                for (int64_t d = 0; d < f->columns; d++) {
                    const int64_t row[3] = {a, b, c};
                    const double value =
                        (double)ref_cached(f, &one->info, one->data, scales, scale ? scale->data : NULL, row, d);
                    if (!isfinite(value)) continue;
                    squares += value * value;
                    most.number = fmax(most.number, fabs(value));
                }
                most.row = fmax(most.row, sqrt(squares));
            }
    return most;
}

static double longest_row(const tensor *one) { return magnitude_of(one, NULL, NULL).row; }
static magnitude keys_of(const tensors *t) {
    const ref_format f = ref_format_of(&t->problem, true);
    return magnitude_of(tensors_find(t, "k"), tensors_find(t, "k_scale"), &f);
}
static magnitude values_of(const tensors *t) {
    const ref_format f = ref_format_of(&t->problem, false);
    if (t->problem.v_in_k) return keys_of(t);
    return magnitude_of(tensors_find(t, "v"), tensors_find(t, "v_scale"), &f);
}

static int64_t extent(const tensors *t, const char *name, int dim) {
    const tensor *const one = tensors_find(t, name);
    return one ? one->info.dims[dim] : 0;
}

/* No score of the call is larger than this (Cauchy and Schwarz), whatever is added to the product. */
static double scale_of(const tensors *t) {
    const attune_problem *const p = &t->problem;
    const double scale = p->has_softmax_scale ? t->arguments.softmax_scale : p->softmax_scale;
    return isnan(scale) ? 1 / sqrt((double)p->head_dim) : fabs(scale);
}

/* No row that these weights have normalised is longer. */
static double longest_normalised(const tensors *t, const char *weights) {
    return sqrt((double)t->problem.head_dim) * largest_finite(tensors_find(t, weights));
}

/* Those of a cache are finished; others count as they are after their norm. */
static double longest_key(const tensors *t, const ref_block_scale *block) {
    const attune_problem *const p = &t->problem;
    const bool is_finished = p->qk_norm_eps == 0 || p->seq_new || p->kv_projected;
    const double given = is_finished ? keys_of(t).row : 0;
    const double fresh = p->qk_norm_eps > 0 ? longest_normalised(t, "k_norm") : longest_row(tensors_find(t, "k_new"));
    return fmax(block->k_row, fmax(given, fresh));
}

static double longest_query(const tensors *t, const ref_block_scale *block) {
    if (t->problem.qk_norm_eps > 0) return longest_normalised(t, "q_norm");
    return fmax(block->q_row, longest_row(tensors_find(t, "q")));
}

/* How far a number of k_new may be off after its norm and its rotations. A Hadamard rotation makes a number of a whole
 * row, with its errors. */
static double error_of_prepared(const tensors *t, double epsilon) {
    const double spread = t->problem.qk_hadamard ? 2 * sqrt((double)t->problem.head_dim) : 1;
    if (t->problem.qk_norm_eps > 0) return 16 * spread * epsilon * longest_normalised(t, "k_norm");
    return 8 * spread * epsilon * largest_finite(tensors_find(t, "k_new"));
}

static double largest_given(const tensors *t, const ref_block_scale *block) {
    const attune_problem *const p = &t->problem;
    if (p->op == ATTUNE_MERGE) return largest_finite(tensors_find(t, "parts_lse"));
    const double tokens = (double)(extent(t, "q", 2) + extent(t, "x", 1) + extent(t, "x_kv", 1) + extent(t, "k", 2) +
                                   t->arguments.max_pages * p->page_size);
    const double distance = tokens + fabs((double)p->causal_offset) + 8;
    return scale_of(t) * longest_query(t, block) * longest_key(t, block) +
           largest_finite(tensors_find(t, "attn_bias")) + largest_finite(tensors_find(t, "alibi_slopes")) * distance +
           largest_finite(tensors_find(t, "sinks"));
}

/* A score_mod may make more of it, and of its error: those that are drawn at most twice as much. */
static double largest_score(const tensors *t, const ref_result *wanted) {
    const double given = largest_given(t, &wanted->scale);
    return t->problem.score_mod[0] ? 2 * given + 2 * wanted->largest_modified : given;
}

/* The largest of the numbers whose mean or rotation the output is. */
static double largest_value(const tensors *t, const ref_block_scale *block) {
    if (t->problem.op == ATTUNE_ROTARY) return 2 * largest_finite(tensors_find(t, "q"));
    if (t->problem.op == ATTUNE_MERGE) return largest_finite(tensors_find(t, "parts"));
    return fmax(block->value,
                fmax(values_of(t).number, largest_finite(tensors_find(t, t->problem.v_in_k ? "k_new" : "v_new"))));
}

static double epsilon_of(attune_dtype dtype) {
    switch (dtype) {
    case ATTUNE_F16: return 0x1p-10;
    case ATTUNE_BF16: return 0x1p-7;
    case ATTUNE_F64: return DBL_EPSILON;
    case ATTUNE_I8: return 0x1p-6;
    case ATTUNE_F8: return 0x1p-3;
    default: return (double)FLT_EPSILON;
    }
}

/* Half of the gap between numbers near 0. */
static double tiny_of(attune_dtype dtype) {
    return dtype == ATTUNE_F16   ? 0x1p-25
           : dtype == ATTUNE_F64 ? 0x1p-1040
                                 : 0x1p-126; /* bf16: denormals count little */
}

/* ---- One output against the reference ---- */

long double check_element(const tensor *one, int64_t i) {
    int64_t at = 0;
    for (int d = one->info.rank - 1; d >= 0; d--) {
        at += i % one->info.dims[d] * one->info.strides[d];
        i /= one->info.dims[d];
    }
    return ref_load(one->info.dtype, one->data, at);
}

static int64_t elements(const tensor *one) {
    int64_t count = 1;
    for (int d = 0; d < one->info.rank; d++) count *= one->info.dims[d];
    return count;
}

typedef struct bound {
    double absolute, relative;
    bool by_class; /* only whether it is finite */
    double summed; /* the output is the mean of so many numbers; 0: it is a number itself */
} bound;

/* The largest number of the output's type that the arithmetic has, too. */
static long double largest_of(const attune_problem *p, attune_dtype dtype) {
    if (dtype == ATTUNE_F16) return 65504;
    if (dtype == ATTUNE_BF16) return 0x1.fep127L;
    return dtype == ATTUNE_F64 && p->softmax_precision == ATTUNE_F64 ? DBL_MAX : FLT_MAX;
}

/* Whether the wanted number, or the sum that it is the mean of, may exceed `largest` within the errors. */
static bool may_overflow(long double wanted, const bound *b, long double largest) {
    const long double error = (long double)b->absolute + (long double)b->relative * fabsl(wanted);
    return (fabsl(wanted) + error) * (b->summed > 0 ? b->summed : 1) >= largest;
}

static bool is_good(long double got, long double wanted, const bound *b, long double largest) {
    if (got == wanted) return true;
    if (isinf(got) && isfinite(wanted)) return signbit(got) == signbit(wanted) && may_overflow(wanted, b, largest);
    if (b->by_class || isnan(wanted) || wanted == (long double)INFINITY) return isfinite(got) == isfinite(wanted);
    if (!isfinite(wanted)) return false;
    return fabsl(got - wanted) <= (long double)b->absolute + (long double)b->relative * fabsl(wanted);
}

/* With NaN and infinities among the inputs, a row may have lost a key, or its last one, to an infinite score. Such a
 * row proves nothing. */
static bool is_doubtful(const tensors *t, const tensor *out, const ref_result *rows, int64_t row) {
    const int64_t tokens = out->info.dims[1], heads = out->info.rank == 4 ? 1 : t->problem.num_heads;
    for (int64_t head = 0; head < heads; head++) {
        const int64_t at = out->info.rank == 4 ? row : (row / tokens * heads + head) * tokens + row % tokens;
        if (rows->row_lse[at] == -(long double)INFINITY || rows->loses_key[at]) return true;
    }
    return false;
}

/* `rows`: the rows of attention, of which doubtful ones are skipped; NULL: all count. */
static bool compare(const tensors *t, const char *name, const long double *wanted, const ref_result *rows,
                    const bound *b, char *reason) {
    const tensor *const one = tensors_find(t, name);
    if (!one || !wanted) return true;
    const int64_t count = elements(one), columns = one->info.dims[one->info.rank - 1];
    const long double largest = largest_of(&t->problem, one->info.dtype);
    for (int64_t i = 0; i < count; i++) {
        if (rows && is_doubtful(t, one, rows, i / columns)) continue;
        const long double got = check_element(one, i);
        if (is_good(got, wanted[i], b, largest)) continue;
        snprintf(reason, ATTUNE_MESSAGE_BYTES, "%s is off at element %lld: %.9Lg instead of %.9Lg (limit %.3g)", name,
                 (long long)i, got, wanted[i], b->absolute + b->relative * fabs((double)wanted[i]));
        return false;
    }
    return true;
}

/* ---- Errors ---- */

/* The gap between numbers of the output's type. */
static double ulp_of(const attune_problem *p, double value) {
    static const struct {
        int digits, least;
    } types[ATTUNE_DTYPE_COUNT] = {
        [ATTUNE_F32] = {FLT_MANT_DIG, -149},
        [ATTUNE_F16] = {11, -24},
        [ATTUNE_BF16] = {8, -133},
        [ATTUNE_F64] = {DBL_MANT_DIG, -1074},
    };
    const int digits = types[p->dtype].digits, least = types[p->dtype].least;
    int exponent;
    frexp(value, &exponent);
    if (value == 0) return INFINITY; /* a row that cancels out has no digits to be wrong */
    return ldexp(1, exponent - digits < least ? least : exponent - digits);
}

static void add_errors(const tensors *t, const ref_result *wanted, const ref_result *plain, check_errors *e) {
    const tensor *const out = tensors_find(t, "out");
    if (!out || !wanted->out) return;
    const int64_t columns = out->info.dims[out->info.rank - 1], count = elements(out);
    for (int64_t row = 0; row < count; row += columns) {
        double largest = 0;
        for (int64_t i = row; i < row + columns; i++)
            if (isfinite(wanted->out[i])) largest = fmax(largest, fabs((double)wanted->out[i]));
        const double ulp = ulp_of(&t->problem, largest);
        for (int64_t i = row; i < row + columns; i++) {
            const double own = (double)fabsl(check_element(out, i) - wanted->out[i]);
            const double other = (double)fabsl(plain->out[i] - wanted->out[i]);
            if (!isfinite(own) || !isfinite(other)) continue;
            e->max = fmax(e->max, own);
            e->max_ulp = fmax(e->max_ulp, own / ulp);
            e->squares += own * own;
            e->plain_max = fmax(e->plain_max, other);
            e->plain_max_ulp = fmax(e->plain_max_ulp, other / ulp);
            e->plain_squares += other * other;
            e->count++;
        }
    }
}

void check_add_errors(check_errors *sum, const check_errors *e) {
    if (e->max > sum->max) sum->worst = e->worst;
    sum->max = fmax(sum->max, e->max);
    sum->max_ulp = fmax(sum->max_ulp, e->max_ulp);
    sum->squares += e->squares;
    sum->plain_max = fmax(sum->plain_max, e->plain_max);
    sum->plain_max_ulp = fmax(sum->plain_max_ulp, e->plain_max_ulp);
    sum->plain_squares += e->plain_squares;
    sum->count += e->count;
}

typedef struct bounds {
    bound out, lse, weights, keys, values, k_scales, v_scales;
    double score; /* the largest */
} bounds;

/* The relative error of a weight, exp(score - lse), whose score is off by `off`. It is not proportional where slopes at
 * huge distances make `off` large. */
static double weight_loss(const attune_problem *p, double off) {
    enum { MOST_OFF = 500 }; /* a weight is 0 long before */
    const bool is_weight = p->weights_mode == ATTUNE_WEIGHTS_SOFTMAX || p->weights_mode == ATTUNE_WEIGHTS_NONE;
    return is_weight ? expm1(fmin(off, MOST_OFF)) : 0;
}

/* Whether Q and K are normalised or rotated. */
static bool is_prepared(const attune_problem *p) { return p->rotary_dim || p->qk_norm_eps > 0 || p->qk_hadamard; }

/* The relative error of Q and K in a problem that is bf16 throughout, and rounds them between its steps, or in one that
 * may round them before they are multiplied. */
static double lost_between(const attune_problem *p) {
    if (ref_may_round(p) && p->softmax_precision != ATTUNE_F64) return epsilon_of(ATTUNE_BF16);
    const bool fits = p->k_dtype == ATTUNE_BF16 || p->k_dtype == ATTUNE_F8;
    const bool all = p->dtype == ATTUNE_BF16 && fits && p->softmax_precision != ATTUNE_F64;
    return all && (ref_is_block(p) || is_prepared(p)) ? epsilon_of(ATTUNE_BF16) : 0;
}

/* How far a score may be off if Q is quantised after it has been computed: any quantised value may be one off. */
static double lost_to_codes(const tensors *t, const ref_block_scale *block) {
    const attune_problem *const p = &t->problem;
    if (!p->integer || !(ref_is_block(p) || is_prepared(p))) return 0;
    const bool is_byte = p->q_planes == ATTUNE_Q_PLANES_1 || !ref_is_quantised(p->k_dtype);
    const double largest = is_byte ? 127 : 127 * 128;
    const double of_query =
        scale_of(t) * longest_query(t, block) * sqrt((double)p->head_dim) / largest * longest_key(t, block);
    /* So may any value of a key, whose mean was subtracted, which makes it twice as long at most. */
    return ref_is_quantised(p->k_dtype) ? of_query : 4 * of_query;
}

/* How far the sum of a row may be off, relatively, if probabilities are quantised: as far as in the plain
 * implementation, or one quantised value. */
static double lost_to_shares(const tensors *t, const ref_result *wanted, const ref_result *plain) {
    const tensor *const lse = tensors_find(t, "lse");
    if (t->problem.integer != ATTUNE_INTEGER_ALL || !lse || !wanted->lse) return 0;
    double most = t->problem.q_planes == ATTUNE_Q_PLANES_1 ? 1.0 / 255 : 1.0 / 65535;
    for (int64_t i = 0; i < elements(lse); i++) {
        const double off = fabs((double)(plain->lse[i] - wanted->lse[i]));
        if (isfinite(off)) most = fmax(most, 4 * off);
    }
    return most;
}

/* The bound for quantised values of numbers that may be off by `loss`. A reference that knows the caches rounds as the
 * call did; otherwise a quantised value may be one off. With a denormal scale any value is possible. */
static bound bound_of_codes(const ref_format *f, double loss, bool is_known, input_kind inputs) {
    const bool is_i8 = f->dtype == ATTUNE_I8;
    if (loss > 0 && f->is_packed && (inputs == INPUT_DENORMAL || !is_known)) return (bound){.absolute = 255};
    if (loss > 0 && inputs == INPUT_DENORMAL) return (bound){.absolute = is_i8 ? 254 : 896};
    if (loss == 0 || is_known) return (bound){0};
    return (bound){.absolute = is_i8 ? 1.05 : 0x1p-6, .relative = is_i8 ? 0 : 0.13};
}

static bound bound_of_scales(double loss) {
    return (bound){.absolute = loss / 7, .relative = 4 * (loss > 0 ? FLT_EPSILON : 0)};
}

/* Whether K and V are rounded as by a cache, but in no tensor of the call. */
static bool rounds_unseen(const attune_problem *p) {
    return ref_is_block(p) && p->reproducible && !p->kv_projected && !p->seq_new;
}

void check_take_caches(ref_call *call, const tensors *after) {
    const attune_problem *const p = &after->problem;
    const tensor *const k = tensors_find(after, "k"), *const v = tensors_find(after, "v");
    if (!p->seq_new || !k) return;
    call->k_taken = k->data;
    call->v_taken = v ? v->data : NULL;
    if (is_prepared(p)) call->k_error = error_of_prepared(after, epsilon_of(p->softmax_precision));
}

/* The limits: every score may be off by some epsilons of the largest that can occur, and a weight by as much
 * relatively. The plain implementation shows how much of that this data suffers. A computed number that goes through a
 * cache may be rounded to either side, unless the reference knows the side. */
static bounds bounds_of(const tensors *t, const ref_result *wanted, double plain_max, input_kind inputs) {
    const attune_problem *const p = &t->problem;
    const ref_block_scale *const block = &wanted->scale; /* zeros if there is none */
    const bool is_block = ref_is_block(p);
    const double epsilon = epsilon_of(p->softmax_precision), tiny = tiny_of(p->dtype);
    const double score = largest_score(t, wanted), value = largest_value(t, block);
    double out_value = value;
    const bool has_cache = p->seq_new || rounds_unseen(p);
    const bool is_known = wanted->knows_caches && p->seq_new && inputs != INPUT_DENORMAL;
    const double cached_k = has_cache && (is_block || is_prepared(p)) ? epsilon_of(p->k_dtype) : 0;
    const double cached_v = has_cache && is_block ? epsilon_of(p->v_in_k ? p->k_dtype : p->v_dtype) : 0;
    const double q_loss = block->q_loss, k_loss = block->k_loss, v_loss = p->v_in_k ? k_loss : block->v_loss;
    const double projected = q_loss * longest_key(t, block) + k_loss * block->q_row;
    const double rounded = (p->qk_norm_eps > 0 ? 8 : 4) + (p->qk_hadamard ? 16 : 0);
    double off = rounded * epsilon * (4 + score) + (is_known ? 0 : 4 * cached_k * score);
    off += lost_to_codes(t, block);
    if (is_block) off += 2 * epsilon * scale_of(t) * sqrt((double)p->head_dim) * projected; /* merge has no head_dim */
    /* A prob_mod that is drawn makes at most twice as much of a probability's error, and may give more in all. */
    if (p->prob_mod[0]) out_value *= 2 + wanted->most_mixed;
    double out = off * out_value + epsilon * v_loss + (is_known ? 0 : cached_v * value);
    if (is_block && !p->no_out_projection) out = out * block->out_gain + epsilon * block->out_loss;
    const double of_scores = off + lost_between(p) * score; /* `out` has that in plain_max */
    const double prepared = error_of_prepared(t, epsilon);
    const double spread = p->qk_hadamard ? 2 * sqrt((double)p->head_dim) : 1; /* over a row */
    const double appended = spread * epsilon * (8 * block->k_row + k_loss);
    bounds b = {
        .out = {.absolute = 4 * plain_max + out + tiny, .relative = 2 * epsilon_of(p->dtype)},
        .lse = {.absolute = of_scores, .relative = 4 * epsilon},
        .weights = {.absolute = of_scores + tiny,
                    .relative = 2 * epsilon_of(p->dtype) + weight_loss(p, of_scores),
                    .summed = p->weights_average ? (double)t->arguments.num_heads : 0},
        .keys = {.absolute = cached_k > 0 ? prepared + appended + tiny_of(p->k_dtype) : 0, .relative = 2 * cached_k},
        .values = {.absolute = cached_v > 0 ? epsilon * v_loss + tiny_of(p->v_dtype) : 0, .relative = 2 * cached_v},
        .k_scales = bound_of_scales(cached_k > 0 ? prepared + appended : 0),
        .v_scales = bound_of_scales(cached_v > 0 ? epsilon * v_loss : 0),
        .score = score,
    };
    const ref_format k = ref_format_of(p, true), v = ref_format_of(p, p->v_in_k);
    if (ref_is_quantised(k.dtype)) b.keys = bound_of_codes(&k, cached_k, is_known, inputs);
    if (ref_is_quantised(v.dtype)) b.values = bound_of_codes(&v, cached_v, is_known, inputs);
    return b;
}

bool check_reference(const tensors *t, const ref_result *wanted, const ref_result *plain, input_kind inputs,
                     check_errors *errors, char reason[ATTUNE_MESSAGE_BYTES]) {
    const bool by_class = inputs == INPUT_NONFINITE;
    check_errors own = {0};
    add_errors(t, wanted, plain, &own);
    bounds b = bounds_of(t, wanted, own.plain_max, inputs);
    b.lse.absolute += lost_to_shares(t, wanted, plain);
    b.out.by_class = b.lse.by_class = b.weights.by_class = b.keys.by_class = b.values.by_class = by_class;
    b.k_scales.by_class = b.v_scales.by_class = by_class;
    const ref_result *const rows = by_class && wanted->row_lse ? wanted : NULL;
    if (!compare(t, "out", wanted->out, rows, &b.out, reason) ||
        !compare(t, "lse", wanted->lse, NULL, &b.lse, reason) ||
        !compare(t, "weights", wanted->weights, NULL, &b.weights, reason) ||
        !compare(t, "k", wanted->k, NULL, &b.keys, reason) || !compare(t, "v", wanted->v, NULL, &b.values, reason) ||
        !compare(t, "k_scale", wanted->k_scale, NULL, &b.k_scales, reason) ||
        !compare(t, "v_scale", wanted->v_scale, NULL, &b.v_scales, reason))
        return false;
    /* Scores of many thousands (slopes at huge distances) leave nothing of a weight but rounding. Where K and V are
     * rounded unseen to a type of fewer digits than the output's, the errors only show which way each number was
     * rounded. */
    const attune_problem *const p = &t->problem;
    const double digits = epsilon_of(p->dtype);
    const bool unseen = rounds_unseen(p) && (epsilon_of(p->k_dtype) > digits || epsilon_of(p->v_dtype) > digits);
    if (errors && !by_class && !unseen && b.score * epsilon_of(p->softmax_precision) < 1e-3)
        check_add_errors(errors, &own);
    return true;
}

/* ---- Inputs from files ---- */

static bool is_odd(const tensor *one, double value) {
    /* Minus infinity in a bias hides a key, exactly. */
    return isnan(value) || (isinf(value) && (value > 0 || strcmp(one->info.name, "attn_bias")));
}

input_kind check_kind_of(const tensors *t) {
    input_kind kind = INPUT_ORDINARY;
    for (size_t n = 0; n < t->count; n++) {
        const tensor *const one = &t->list[n];
        const double least = one->info.dtype == ATTUNE_F16 ? 0x1p-14 : 0x1p-118;
        for (size_t i = 0; one->info.is_input && i < one->count; i++) {
            const double value = (double)ref_load(one->info.dtype, one->data, (int64_t)i);
            if (is_odd(one, value)) return INPUT_NONFINITE;
            if (value != 0 && fabs(value) < least) kind = INPUT_DENORMAL;
        }
    }
    return kind;
}

const char *check_has_no_limits(const tensors *t, const ref_result *wanted) {
    const attune_problem *const p = &t->problem;
    const ref_block_scale *const block = &wanted->scale;
    if (p->score_mod[0] || p->mask_mod[0] || p->prob_mod[0]) return "a function of the problem may enlarge any error";
    /* Sums of many numbers, and scores in base 2, overflow earlier than what they are made of. */
    const double room = p->softmax_precision == ATTUNE_F16 ? 8 : 0x1p20;
    const double largest = (double)largest_of(p, p->softmax_precision) / room;
    const double most = fmax(fmax(largest_score(t, wanted), largest_value(t, block)), fmax(block->q_row, block->k_row));
    return most < largest ? NULL : "numbers may be beyond the range of its arithmetic";
}
