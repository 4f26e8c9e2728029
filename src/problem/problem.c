/* Makes a problem canonical: fills in defaults, normalises fields that cannot matter, and checks everything. */
#include "problem/problem.h"

#include <math.h>

/* ---- fields without effect ---- */

/* op=weights computes probabilities by default. op=merge has one width: head_dim_v, or else head_dim. */
static void settle_op(attune_problem *p) {
    const bool is_default = p->weights_mode == ATTUNE_WEIGHTS_NONE;
    if (p->op == ATTUNE_WEIGHTS && is_default) p->weights_mode = ATTUNE_WEIGHTS_SOFTMAX;
    if (p->op == ATTUNE_MERGE && !p->head_dim_v) p->head_dim_v = p->head_dim;
    if (p->op == ATTUNE_MERGE) p->head_dim = p->head_dim_v;
}

/* op=weights has no sinks: its input lse includes them. */
static void forget_fields(attune_problem *p) {
    for (int i = 0; i < MHA_NUM_FIELDS; i++) {
        const mha_field *field = &mha_fields[i];
        const bool is_zero = field->kind == MHA_FIELD_NUMBER && mha_field_is_initial(p, field); /* perhaps -0 */
        if (is_zero || !mha_field_counts(p, field)) mha_field_reset(p, field);
    }
    if (p->op == ATTUNE_WEIGHTS) p->has_lse = p->weights_mode == ATTUNE_WEIGHTS_SOFTMAX;
}

/* Scores that are the output of a step do not depend on later steps. Called after all checks. */
static void forget_later_steps(attune_problem *p) {
    if (p->op != ATTUNE_WEIGHTS) return;
    for (int i = 0; i < MHA_NUM_FIELDS; i++)
        if (mha_fields[i].step > p->weights_mode) mha_field_reset(p, &mha_fields[i]);
    if (!p->bias_dtype) p->bias_dtype = p->dtype;
}

/* ---- defaults ---- */

static void fill_dtypes(attune_problem *p) {
    if (!p->dtype) p->dtype = ATTUNE_F32;
    if (!p->k_dtype) p->k_dtype = p->dtype;
    if (!p->v_dtype) p->v_dtype = p->v_in_k ? p->k_dtype : p->dtype;
    if (!p->bias_dtype) p->bias_dtype = p->dtype;
    if (!p->softmax_precision) p->softmax_precision = mha_field_of_f64(p) ? ATTUNE_F64 : ATTUNE_F32;
}

/* The default precision follows from the types. f64 and `reproducible` never round; quantised caches round only on
 * request, so that panels give the same bits as rows. */
static void settle_matmul_precision(attune_problem *p) {
    const bool is_quantised = mha_is_quantised(p->k_dtype) || mha_is_quantised(p->v_dtype);
    const bool rounds =
        p->dtype == ATTUNE_BF16 && p->softmax_precision == ATTUNE_F32 && !p->reproducible && !is_quantised;
    const attune_dtype usual = rounds ? ATTUNE_BF16 : ATTUNE_F32;
    if (p->matmul_precision == usual) p->matmul_precision = ATTUNE_DTYPE_DEFAULT;
}

/* Scales of a K or V that is not quantised stay, as mha_check_fields rejects them. */
static void fill_scales(attune_dtype dtype, attune_scales *scales) {
    if (!*scales && !mha_is_quantised(dtype))
        *scales = ATTUNE_SCALES_NONE;
    else if (!*scales)
        *scales = dtype == ATTUNE_I8   ? ATTUNE_SCALES_HEAD
                  : dtype == ATTUNE_I4 ? ATTUNE_SCALES_GROUP
                                       : ATTUNE_SCALES_NONE;
}

enum { USUAL_GROUP = 32 }; /* columns that share a scale */

static void fill_group(attune_scales scales, int64_t *group) {
    if (mha_is_by_group(scales) && !*group) *group = USUAL_GROUP;
}

static void fill_planes(attune_problem *p) {
    if (p->integer && !p->q_planes) p->q_planes = mha_quantises_keys(p) ? ATTUNE_Q_PLANES_1 : ATTUNE_Q_PLANES_2;
}

static void fill_all_scales(attune_problem *p) {
    fill_scales(p->k_dtype, &p->k_scales);
    if (p->v_in_k && !p->v_scales) p->v_scales = p->k_scales;
    fill_scales(p->v_dtype, &p->v_scales);
    fill_group(p->k_scales, &p->k_group);
    if (p->v_in_k && !p->v_group) p->v_group = p->k_group;
    fill_group(p->v_scales, &p->v_group);
}

/* The sequences of a ragged batch have their own lengths; a given size is their bound. */
static void fill_ragged_size(int64_t *size, int64_t *most) {
    if (*size > 0 && (!*most || *size < *most)) *most = *size;
    if (*size >= 0) *size = ATTUNE_DYNAMIC;
}

static void fill_sizes(attune_problem *p) {
    if (!p->num_kv_heads) p->num_kv_heads = p->num_heads;
    if (!p->head_dim_v) p->head_dim_v = p->head_dim;
    if (p->is_ragged) {
        fill_ragged_size(&p->seq_q, &p->max_seq_q);
        fill_ragged_size(&p->seq_kv, &p->max_seq_kv);
        if (p->seq_new > 0) p->seq_new = ATTUNE_DYNAMIC; /* as many as there are queries */
    }
    if (!p->seq_kv) p->seq_kv = mha_default_keys(p);
    if (p->kv_ids && !p->num_ids) p->num_ids = ATTUNE_DYNAMIC;
}

/* A scale that equals the default after rounding becomes the default. */
static void fill_scale(attune_problem *p) {
    const double usual = 1.0 / sqrt((double)p->head_dim);
    if (p->has_softmax_scale) p->softmax_scale = usual; /* for calls that set none */
    const bool rounds = p->softmax_precision == ATTUNE_F32 && (float)p->softmax_scale == (float)usual;
    if (isnan(p->softmax_scale) || rounds) p->softmax_scale = usual;
}

int64_t mha_likely_queries(const attune_problem *p) {
    return p->seq_q >= 0 ? p->seq_q : p->max_seq_q ? p->max_seq_q : MHA_MAX_SIZE;
}

int64_t mha_most_queries(const attune_problem *p) { return p->is_general ? MHA_MAX_SIZE : mha_likely_queries(p); }

int64_t mha_usual_size(int64_t size, int64_t bound) {
    return size != ATTUNE_DYNAMIC ? size : bound ? bound : MHA_USUAL_LENGTH;
}

int64_t mha_most_scored(const attune_problem *p) {
    if (!p->kv_ids) return mha_most_keys(p);
    return p->num_ids >= 0 ? p->num_ids : MHA_MAX_IDS;
}

int64_t mha_most_keys(const attune_problem *p) {
    return p->seq_kv >= 0 ? p->seq_kv : p->max_seq_kv ? p->max_seq_kv : MHA_MAX_SIZE;
}

/* ---- all of it ---- */

static const attune_problem initial = ATTUNE_PROBLEM_INIT;
const at_struct mha_problem_struct = {"attune_problem", "start from ATTUNE_PROBLEM_INIT", sizeof(attune_problem),
                                      &initial, 832};

attune_status mha_canonicalize(const attune_problem *problem, attune_problem *out, at_error *err) {
    const attune_status status = at_copy_in(&mha_problem_struct, problem, out, err);
    return status ? status : mha_make_canonical(out, err);
}

attune_status mha_make_canonical(attune_problem *out, at_error *err) {
    attune_status status = mha_check_choices(out, err);
    if (!status) status = mha_keep_block(out, err);
    if (status) return status;
    settle_op(out);
    status = mha_check_parts(out, err);
    if (status) return status;
    forget_fields(out);
    if (out->page_size > 0 && !out->is_ragged && !out->has_kv_lens && !out->seq_kv)
        return at_fail(
            err, ATTUNE_INVALID_PROBLEM,
            "page_size is %lld, but nothing says how many keys there are: set has_kv_lens, is_ragged or seq_kv",
            (long long)out->page_size);
    fill_dtypes(out);
    settle_matmul_precision(out);
    fill_all_scales(out);
    fill_planes(out);
    status = mha_fill_block(out, err);
    if (status) return status;
    fill_sizes(out);
    status = mha_check_ranges(out, err);
    if (!status) status = mha_check_fields(out, err);
    if (!status) status = mha_check_block(out, err);
    if (status) return status;
    mha_settle_block(out);
    status = mha_settle_masks(out, err);
    if (status) return status;
    status = mha_settle_functions(out, err);
    if (status) return status;
    if (out->seq_q >= 0) out->max_seq_q = 0;
    if (out->seq_kv >= 0) out->max_seq_kv = 0;
    fill_scale(out);
    forget_later_steps(out);
    status = mha_settle_positions(out, err);
    if (!status) status = mha_settle_band(out, err);
    return status ? status : mha_settle_problem_strides(out, err);
}
