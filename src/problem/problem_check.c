/* Checks of a problem: choices, ranges, and fields that contradict each other. */
#include "problem/problem.h"

#include <math.h>
#include <stdio.h>

static attune_status refuse(at_error *err, const char *sentence) {
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s", sentence);
}

/* ---- choices ---- */

static attune_status check_flag(const char *before, const char *name, int64_t value, at_error *err) {
    if (value == 0 || value == 1) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s%s is %lld; it must be 0 or 1", before, name, (long long)value);
}

static attune_status check_word(const mha_field *field, int64_t value, at_error *err) {
    char choices[128] = "";
    mha_writer w = {choices, sizeof choices, 0};
    const char *const word = mha_field_word(field, value);
    if (!word && value)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is %lld, which is no %s", field->name, (long long)value,
                       field->words->type);
    if (!word || mha_field_choice(field, value)) return ATTUNE_OK;
    mha_write_choices(&w, field);
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is %s; it must be %s", field->name, word, choices);
}

static attune_status check_choice(const attune_problem *p, const mha_field *field, at_error *err) {
    if (field->open) return check_flag("has_", field->name, mha_field_open(p, field), err);
    if (field->kind == MHA_FIELD_FLAG) return check_flag("", field->name, mha_field_value(p, field), err);
    return field->kind == MHA_FIELD_WORD ? check_word(field, mha_field_value(p, field), err) : ATTUNE_OK;
}

attune_status mha_check_choices(const attune_problem *p, at_error *err) {
    for (int i = 0; i < MHA_NUM_FIELDS; i++) {
        const attune_status status = check_choice(p, &mha_fields[i], err);
        if (status) return status;
    }
    if (p->is_ragged && !mha_has_keys(p))
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "op=%s takes no ragged batch: its rows do not depend on each other, so give all tokens as one",
                       mha_op_name(p->op));
    return ATTUNE_OK;
}

/* ---- fields without effect ---- */

static attune_status refuse_part(const attune_problem *p, const mha_field *field, const char *why, at_error *err) {
    const int64_t value = mha_field_value(p, field);
    const char *const word = field->kind == MHA_FIELD_WORD ? mha_field_word(field, value) : NULL;
    if (word) return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is %s, but %s", field->name, word, why);
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is %lld, but %s", field->name, (long long)value, why);
}

/* bias_dtype may also be the type of q, which is its default. */
static bool is_default(const attune_problem *p, const mha_field *field) {
    const int64_t dtype = p->dtype ? (int64_t)p->dtype : ATTUNE_F32;
    if (field == &mha_fields[MHA_ID_bias_dtype] && mha_field_value(p, field) == dtype) return true;
    return mha_field_is_initial(p, field);
}

/* A field of the block without embed_dim, or an option of a feature that is not used, is a mistake. */
attune_status mha_check_parts(const attune_problem *p, at_error *err) {
    for (int i = 0; i < MHA_NUM_FIELDS; i++) {
        const mha_field *field = &mha_fields[i];
        const bool is_of_block = field->operators == 1u << ATTUNE_MHA;
        char why[96];
        if (field->kind == MHA_FIELD_STRIDES || is_default(p, field) || mha_field_counts(p, field)) continue;
        if (is_of_block && !mha_is_block(p)) return refuse_part(p, field, "embed_dim is 0: there is no block", err);
        const bool is_of_op = field->operators >> p->op & 1;
        if (!is_of_op && !mha_attends(p)) continue; /* the problem is that of an attention */
        if (is_of_op)
            snprintf(why, sizeof why, "%s is not set", mha_fields[field->part_of].name);
        else
            snprintf(why, sizeof why, "it means nothing with op = %s", mha_op_name(p->op));
        return refuse_part(p, field, why, err);
    }
    return ATTUNE_OK;
}

/* ---- ranges ---- */

/* From `least` to `most`, both included. */
typedef struct range {
    double least, most;
} range;

/* Two depend on other fields. */
static range range_of(const attune_problem *p, const mha_field *field) {
    const mha_field_id id = (mha_field_id)(field - mha_fields);
    const bool is_free = id == MHA_ID_out_dim && p->no_out_projection;
    if (id == MHA_ID_rotary_dim) return (range){mha_has_keys(p) ? 0 : 2, (double)p->head_dim};
    return (range){is_free ? 0 : field->least, field->most};
}

/* A size of 0 was most likely never set. */
static attune_status check_integer(const attune_problem *p, const mha_field *field, at_error *err) {
    static const attune_problem initial = ATTUNE_PROBLEM_INIT;
    const bool may_be_dynamic = field->kind == MHA_FIELD_SIZE;
    const int64_t value = mha_field_value(p, field);
    const range r = range_of(p, field);
    char is[32] = "is not given, or 0";
    if ((double)value >= r.least && (double)value <= r.most) return ATTUNE_OK;
    if (may_be_dynamic && value == ATTUNE_DYNAMIC) return ATTUNE_OK;
    if (value || mha_field_value(&initial, field)) snprintf(is, sizeof is, "is %lld", (long long)value);
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s %s; it must be from %.0f to %.0f%s", field->name, is, r.least,
                   r.most, may_be_dynamic ? ", or dynamic" : "");
}

/* The default is legal even if it is out of range: 0, or NaN. */
static attune_status check_number(const attune_problem *p, const mha_field *field, at_error *err) {
    static const attune_problem initial = ATTUNE_PROBLEM_INIT;
    const double number = mha_field_number(p, field), usual = mha_field_number(&initial, field);
    const bool has_none = usual < field->least || usual > field->most;
    if (number >= field->least && number <= field->most) return ATTUNE_OK;
    if (mha_field_open(p, field) || mha_field_is_initial(p, field)) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is %g; it must be %sfrom %g to %g", field->name, number,
                   has_none ? "0, or " : "", field->least, field->most);
}

static attune_status check_range(const attune_problem *p, const mha_field *field, at_error *err) {
    if (!mha_field_counts(p, field)) return ATTUNE_OK;
    switch (field->kind) {
    case MHA_FIELD_INT:
    case MHA_FIELD_SIZE: return check_integer(p, field, err);
    case MHA_FIELD_NUMBER: return check_number(p, field, err);
    default: return ATTUNE_OK;
    }
}

attune_status mha_check_ranges(const attune_problem *p, at_error *err) {
    for (int i = 0; i < MHA_NUM_FIELDS; i++) {
        const attune_status status = check_range(p, &mha_fields[i], err);
        if (status) return status;
    }
    if (p->has_softmax_scale && !isnan(p->softmax_scale) && p->softmax_scale != 1.0 / sqrt((double)p->head_dim))
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "softmax_scale is %g, but has_softmax_scale leaves it to the calls",
                       p->softmax_scale);
    if (p->num_heads % p->num_kv_heads)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "num_kv_heads is %lld, which does not divide num_heads = %lld",
                       (long long)p->num_kv_heads, (long long)p->num_heads);
    if (p->rotary_dim % 2)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "rotary_dim is %lld; it must be even", (long long)p->rotary_dim);
    return ATTUNE_OK;
}

/* ---- fields that contradict each other ---- */

const mha_field *mha_field_of_f64(const attune_problem *p) {
    for (int i = 0; i < MHA_NUM_FIELDS; i++) {
        const mha_field *field = &mha_fields[i];
        const bool is_type = field->words == mha_fields[MHA_ID_dtype].words && i != MHA_ID_softmax_precision;
        if (is_type && mha_field_value(p, field) == ATTUNE_F64) return field;
    }
    return NULL;
}

static attune_status check_precision(const attune_problem *p, at_error *err) {
    const mha_field *const f64 = p->softmax_precision == ATTUNE_F64 ? NULL : mha_field_of_f64(p);
    if (!f64) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "softmax_precision is f32, but %s is f64", f64->name);
}

/* Operands of products that must not be rounded. */
static attune_status check_matmul_precision(const attune_problem *p, at_error *err) {
    const char *const why = p->softmax_precision == ATTUNE_F64 ? "softmax_precision is f64"
                            : p->reproducible                  ? "reproducible is 1, which computes in f32 on every CPU"
                            : p->integer                       ? "integer multiplies quantised values"
                                                               : NULL;
    if (p->matmul_precision != ATTUNE_BF16 || !why) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "matmul_precision is bf16, but %s", why);
}

static attune_status check_bound(const char *name, int64_t size, const char *bound_name, int64_t bound, at_error *err) {
    if (!bound || size <= bound) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is %lld, more than %s = %lld", name, (long long)size, bound_name,
                   (long long)bound);
}

static attune_status check_bounds(const attune_problem *p, at_error *err) {
    attune_status status = check_bound("seq_q", p->seq_q, "max_seq_q", p->max_seq_q, err);
    if (!status) status = check_bound("seq_kv", p->seq_kv, "max_seq_kv", p->max_seq_kv, err);
    if (!status) status = check_bound("seq_new", p->seq_new, "seq_kv", p->seq_kv > 0 ? p->seq_kv : 0, err);
    if (!status) status = check_bound("seq_new", p->seq_new, "max_seq_kv", p->max_seq_kv, err);
    return status;
}

/* Query i and key i, or new key i, share an id. */
static attune_status check_position_ids(const attune_problem *p, at_error *err) {
    if (!p->has_position_ids) return ATTUNE_OK;
    if (!p->rotary_dim) return refuse(err, "position_ids are for the rotary embedding, but rotary_dim is 0");
    if (!mha_rotates_keys(p) || p->is_ragged) return ATTUNE_OK;
    const int64_t keys = p->seq_new ? p->seq_new : p->seq_kv;
    if (keys == p->seq_q) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_PROBLEM,
                   "position_ids are those of queries and of %s keys alike, but seq_q is %lld and %s %lld",
                   p->seq_new ? "new" : "all", (long long)p->seq_q, p->seq_new ? "seq_new" : "seq_kv", (long long)keys);
}

static attune_status check_v_in_k(const attune_problem *p, at_error *err) {
    if (!p->v_in_k) return ATTUNE_OK;
    if (p->head_dim_v > p->head_dim)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "v_in_k takes the first head_dim_v columns of k, but head_dim_v is %lld and head_dim %lld",
                       (long long)p->head_dim_v, (long long)p->head_dim);
    if (p->v_dtype != p->k_dtype)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "v_in_k takes v from k, but v_dtype is %s and k_dtype %s",
                       mha_dtype_name(p->v_dtype), mha_dtype_name(p->k_dtype));
    if (p->rotary_dim)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "v_in_k and rotary_dim = %lld do not go together: columns of k that are rotated are no values",
                       (long long)p->rotary_dim);
    if (p->qk_norm_eps > 0)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "v_in_k and qk_norm_eps = %g do not go together: columns of k that are normalised are no values",
                       p->qk_norm_eps);
    if (p->qk_hadamard)
        return refuse(err,
                      "v_in_k and qk_hadamard = 1 do not go together: columns of k that are rotated are no values");
    return ATTUNE_OK;
}

static attune_status check_hadamard(const attune_problem *p, at_error *err) {
    if (!p->qk_hadamard) return ATTUNE_OK;
    if (p->head_dim & (p->head_dim - 1))
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "head_dim is %lld; with qk_hadamard=1 it must be a power of two",
                       (long long)p->head_dim);
    if (mha_is_quantised(p->k_dtype) && mha_prepares_keys(p) && !p->seq_new)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "qk_hadamard is 1, k_dtype %s, but keys are rotated before they are quantised: %s",
                       mha_dtype_name(p->k_dtype),
                       p->op == ATTUNE_WEIGHTS ? "ask the attention call for weights" : "set seq_new");
    return ATTUNE_OK;
}

static attune_status check_weights(const attune_problem *p, at_error *err) {
    if (p->weights_mode && p->is_ragged)
        return refuse(err, "weights are for batches of equal lengths; is_ragged has none");
    if (p->has_row_ids && p->op != ATTUNE_WEIGHTS)
        return refuse(err, "row_ids choose rows of the weights afterwards: they need op=weights");
    if (p->op == ATTUNE_WEIGHTS && p->seq_new)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "seq_new is %lld, but op=weights appends nothing: the new keys are in k already",
                       (long long)p->seq_new);
    return ATTUNE_OK;
}

/* The format of K or V, and the names of its fields. */
typedef struct stored {
    attune_dtype dtype;
    attune_scales scales;
    int64_t group, columns;
    const int64_t *strides;
    const char *dtype_name, *scales_name, *group_name, *columns_name, *strides_name, *layout_name;
} stored;

static stored stored_k(const attune_problem *p) {
    return (stored){p->k_dtype, p->k_scales, p->k_group, p->head_dim, p->k_strides, "k_dtype",
                    "k_scales", "k_group",   "head_dim", "k_strides", "k_layout"};
}

static stored stored_v(const attune_problem *p) {
    return (stored){p->v_dtype, p->v_scales, p->v_group,   p->head_dim_v, p->v_strides, "v_dtype",
                    "v_scales", "v_group",   "head_dim_v", "v_strides",   "v_layout"};
}

static attune_status check_group(const stored *s, at_error *err) {
    if (!mha_is_by_group(s->scales) && !s->group) return ATTUNE_OK;
    if (!mha_is_by_group(s->scales))
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is %lld, but only scales of groups have one: %s is %s",
                       s->group_name, (long long)s->group, s->scales_name,
                       mha_field_word(&mha_fields[MHA_ID_k_scales], s->scales));
    if (s->group != 32 && s->group != 64 && s->group != 128)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is %lld; it must be 32, 64 or 128", s->group_name,
                       (long long)s->group);
    if (s->columns % s->group == 0) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is %lld, which does not divide %s = %lld", s->group_name,
                   (long long)s->group, s->columns_name, (long long)s->columns);
}

/* Integer quantised values need a scale. */
static attune_status check_stored(const stored *s, at_error *err) {
    const char *const dtype = mha_dtype_name(s->dtype);
    const bool is_packed = mha_is_packed(s->dtype, s->scales);
    const int64_t *const strides = s->strides;
    if (!mha_is_quantised(s->dtype) && s->scales != ATTUNE_SCALES_NONE)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is %s, but %s is %s, which is not quantised", s->scales_name,
                       mha_field_word(&mha_fields[MHA_ID_k_scales], s->scales), s->dtype_name, dtype);
    if (!mha_is_quantised(s->dtype)) return check_group(s, err);
    if (s->dtype != ATTUNE_F8 && s->scales == ATTUNE_SCALES_NONE)
        return at_fail(
            err, ATTUNE_INVALID_PROBLEM, "%s is %s, but %s is none; it must be head, token, group, channel or inline%s",
            s->dtype_name, dtype, s->scales_name,
            s->dtype == ATTUNE_I4 ? ", or with a minimum: inline_min, token_min, group_min, channel_min" : "");
    if (s->dtype == ATTUNE_F8 && s->scales == ATTUNE_SCALES_INLINE)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is inline, but %s is f8; it must be i8 or i4", s->scales_name,
                       s->dtype_name);
    if (mha_has_least(s->scales) && s->dtype != ATTUNE_I4)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is %s, but %s is %s; it must be i4", s->scales_name,
                       mha_field_word(&mha_fields[MHA_ID_k_scales], s->scales), s->dtype_name, dtype);
    if ((is_packed || mha_scales_elements(s->scales)) && s->columns % MHA_BLOCK_COLUMNS)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is %lld; with %s = %s and %s = %s it must be a multiple of %d",
                       s->columns_name, (long long)s->columns, s->dtype_name, dtype, s->scales_name,
                       mha_field_word(&mha_fields[MHA_ID_k_scales], s->scales), MHA_BLOCK_COLUMNS);
    if (is_packed && (strides[0] || strides[1] || strides[2] || strides[3]) && strides[3] != 1)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s[3] is %lld; it must be 1, as rows of %s are bytes",
                       s->strides_name, (long long)strides[3], dtype);
    return check_group(s, err);
}

static attune_status check_codes(const attune_problem *p, at_error *err) {
    const stored k = stored_k(p), v = stored_v(p);
    if (p->v_in_k && (p->v_scales != p->k_scales || p->v_group != p->k_group))
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "v_in_k takes v from k, but %s",
                       p->v_scales != p->k_scales ? "v_scales is not k_scales" : "v_group is not k_group");
    attune_status status = check_stored(&k, err);
    if (!status) status = check_stored(&v, err);
    if (status) return status;
    if (p->qk_norm_eps > 0 && mha_is_quantised(p->k_dtype) && !p->seq_new && !p->kv_projected)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "qk_norm_eps is %g, k_dtype %s, but keys are normalised before they are quantised: set seq_new",
                       p->qk_norm_eps, mha_dtype_name(p->k_dtype));
    const bool is_quantised = mha_is_quantised(p->k_dtype) || mha_is_quantised(p->v_dtype);
    if (!is_quantised || mha_has_caches(p)) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_PROBLEM,
                   "%s is %s, but only a cache is quantised, and the block has none without seq_new or kv_projected",
                   mha_is_quantised(p->k_dtype) ? "k_dtype" : "v_dtype",
                   mha_dtype_name(mha_is_quantised(p->k_dtype) ? p->k_dtype : p->v_dtype));
}

/* Checks type and columns of K or V in panels. A unit of K is several columns. */
static attune_status check_panels_of(const stored *s, bool is_k, at_error *err) {
    const int64_t *const strides = s->strides;
    if (s->dtype != ATTUNE_F32 && s->dtype != ATTUNE_BF16 && s->dtype != ATTUNE_I8 && s->dtype != ATTUNE_I4)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is panels, but %s is %s; it must be f32, bf16, i8 or i4",
                       s->layout_name, s->dtype_name, mha_dtype_name(s->dtype));
    if (mha_scales_elements(s->scales))
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is panels, but %s is %s; it must be head or token",
                       s->layout_name, s->scales_name, mha_field_word(&mha_fields[MHA_ID_k_scales], s->scales));
    if (is_k && s->columns % mha_unit_of_dtype(s->dtype))
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is panels of %s, but %s is %lld; it must be %s", s->layout_name,
                       mha_dtype_name(s->dtype), s->columns_name, (long long)s->columns,
                       s->dtype == ATTUNE_I8 ? "a multiple of 4" : "even");
    if ((strides[0] || strides[1] || strides[2] || strides[3]) && strides[3] != 1)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s[3] is %lld; it must be 1 with %s=panels", s->strides_name,
                       (long long)strides[3], s->layout_name);
    return ATTUNE_OK;
}

static attune_status check_panels(const attune_problem *p, at_error *err) {
    const stored k = stored_k(p), v = stored_v(p);
    attune_status status = ATTUNE_OK;
    if (!mha_has_panels(p)) return ATTUNE_OK;
    const char *const name = p->k_layout == ATTUNE_LAYOUT_PANELS ? k.layout_name : v.layout_name;
    if (mha_is_block(p))
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is panels, but embed_dim is %lld: a block has caches of rows",
                       name, (long long)p->embed_dim);
    if (p->v_in_k) return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is panels, but v_in_k takes v from rows of k", name);
    if (p->page_size % ATTUNE_PANEL_TOKENS)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "page_size is %lld; with %s=panels it must be a multiple of %d",
                       (long long)p->page_size, name, ATTUNE_PANEL_TOKENS);
    if (p->is_ragged && !p->page_size)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "%s is panels, but keys of a ragged batch begin anywhere in them: set page_size", name);
    if (mha_prepares_keys(p) && !p->seq_new)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "%s is panels, but %s prepares all of k in this call: append prepared keys (seq_new)", name,
                       p->rotary_dim        ? "rotary_dim"
                       : p->qk_norm_eps > 0 ? "qk_norm_eps"
                                            : "qk_hadamard");
    if (p->k_layout == ATTUNE_LAYOUT_PANELS) status = check_panels_of(&k, true, err);
    if (!status && p->v_layout == ATTUNE_LAYOUT_PANELS) status = check_panels_of(&v, false, err);
    return status;
}

static bool is_integer(attune_dtype dtype) { return dtype == ATTUNE_I8 || dtype == ATTUNE_I4; }

/* If each call quantises K to 8 bits, a second plane of Q would add no accuracy. */
static attune_status check_key_codes(const attune_problem *p, at_error *err) {
    if (p->q_planes != ATTUNE_Q_PLANES_1)
        return refuse(err, "q_planes is 2, but integer=scores quantises k to one byte: leave out q_planes");
    if (p->softmax_precision != ATTUNE_F32)
        return refuse(err, "integer=scores quantises k in f32, but softmax_precision is f64");
    if (p->reproducible)
        return refuse(err, "integer=scores subtracts the mean of a call's keys, so no row can be reproducible");
    return ATTUNE_OK;
}

static attune_status check_integer_products(const attune_problem *p, at_error *err) {
    enum { MOST_COLUMNS = 1024 }; /* dot products of 16-bit and 8-bit values must fit into i32 */
    const char *const how = mha_field_word(&mha_fields[MHA_ID_integer], p->integer);
    if (!p->integer) return ATTUNE_OK;
    const mha_field *const scales = &mha_fields[MHA_ID_k_scales];
    if (p->k_dtype == ATTUNE_F8 && p->integer == ATTUNE_INTEGER_SCORES)
        return refuse(err, "integer=scores takes k of i8, i4, f32, f16 or bf16, but k_dtype is f8");
    if (!is_integer(p->k_dtype) && p->integer == ATTUNE_INTEGER_ALL)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "integer=%s multiplies quantised i8 or i4, but k_dtype is %s", how,
                       mha_dtype_name(p->k_dtype));
    if (p->integer == ATTUNE_INTEGER_ALL && !is_integer(p->v_dtype))
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "integer=all multiplies quantised i8 or i4, but v_dtype is %s",
                       mha_dtype_name(p->v_dtype));
    if (mha_scales_elements(p->k_scales) && !mha_scales_runs(p->k_scales))
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "integer=%s wants scales of heads, tokens or groups for k, but k_scales is %s", how,
                       mha_field_word(scales, p->k_scales));
    if (p->integer == ATTUNE_INTEGER_ALL && mha_scales_elements(p->v_scales))
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "integer=all wants scales of heads or tokens for v, but v_scales is %s",
                       mha_field_word(scales, p->v_scales));
    if (p->head_dim > MOST_COLUMNS)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "head_dim is %lld; with integer=%s it must be at most %d",
                       (long long)p->head_dim, how, MOST_COLUMNS);
    if (mha_rotates_keys(p) && !p->seq_new && !mha_quantises_keys(p))
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "integer=%s multiplies k as it is stored, but rotary_dim rotates it first", how);
    if (p->prob_mod[0] && p->integer == ATTUNE_INTEGER_ALL)
        return refuse(err, "prob_mod changes probabilities before they are quantised: leave out prob_mod or integer");
    if (p->prob_mod[0] && !mha_quantises_keys(p))
        return refuse(err, "prob_mod needs the sum of a row before values are added, and integer=scores of quantised K "
                           "does not know it then: leave out prob_mod or integer");
    if (p->weights_mode)
        return refuse(err, "weights need scores that are not computed in integers: leave out weights_mode or integer");
    return mha_quantises_keys(p) ? check_key_codes(p, err) : ATTUNE_OK;
}

/* With listed keys, the list alone decides which keys are visible, so other masks are not allowed; the remaining fields
 * need all keys of a sequence in order. */
static attune_status check_lists(const attune_problem *p, at_error *err) {
    const struct {
        bool is_set;
        const char *name;
    } hiding[] = {
        {p->is_causal != 0, "is_causal=1"},
        {p->window_left >= 0, "window_left"},
        {p->window_right >= 0, "window_right"},
        {p->global_tokens > 0, "global_tokens"},
        {p->has_alibi_slopes != 0, "has_alibi_slopes"},
        {p->mask_mod[0] != 0, "mask_mod"},
        {p->score_mod[0] != 0, "score_mod"},
    };
    if (!p->kv_ids) return ATTUNE_OK;
    for (size_t i = 0; i < sizeof hiding / sizeof *hiding; i++)
        if (hiding[i].is_set)
            return at_fail(err, ATTUNE_INVALID_PROBLEM,
                           "%s depends on where a key is in its sequence, but queries attend to the keys that kv_ids "
                           "lists, and to no others: leave it out, and list the keys that are to be visible",
                           hiding[i].name);
    if (mha_is_block(p)) return refuse(err, "kv_ids lists keys of a cache, but embed_dim makes this a block");
    if (p->integer) return refuse(err, "kv_ids lists keys, which integer products do not support: leave out integer");
    if (mha_has_panels(p)) return refuse(err, "kv_ids lists rows of k and v, but their layout is panels");
    if (p->prob_mod[0]) return refuse(err, "kv_ids and prob_mod do not go together");
    if (p->weights_mode) return refuse(err, "kv_ids and weights do not go together: there are none of unlisted keys");
    if (mha_prepares_keys(p) && !p->seq_new)
        return refuse(err, "kv_ids lists keys of a cache, which are prepared already: set seq_new to append keys with "
                           "rotary_dim, qk_norm_eps or qk_hadamard, or leave these out");
    return ATTUNE_OK;
}

/* A general problem has one kernel for all groups. Features that distinguish rows by more than positions and heads, or
 * need their number when compiling, are not supported. */
static attune_status check_general(const attune_problem *p, at_error *err) {
    const struct {
        bool is_set;
        const char *what;
    } others[] = {
        {mha_is_block(p), "embed_dim makes this a block"},
        {p->seq_q != ATTUNE_DYNAMIC, "seq_q is not dynamic"},
        {(p->page_size & (p->page_size - 1)) != 0, "page_size is no power of two"},
        {mha_has_functions(p), "there are functions"},
        {p->attn_mask_dims[3] || p->attn_bias_dims[3], "there are masks"},
        {p->kv_ids == ATTUNE_KV_IDS_SEQUENCE, "queries share a list of keys"},
        {p->weights_mode != ATTUNE_WEIGHTS_NONE, "there are weights"},
        {p->integer != ATTUNE_INTEGER_NONE, "integer is set"},
        {mha_has_panels(p), "the layout of k or v is panels"},
        {mha_prepares(p), "q and k are rotated or normalised"},
    };
    for (size_t i = 0; p->is_general && i < sizeof others / sizeof *others; i++)
        if (others[i].is_set)
            return at_fail(err, ATTUNE_INVALID_PROBLEM, "is_general is 1, but %s, which general kernels do not support",
                           others[i].what);
    return ATTUNE_OK;
}

attune_status mha_check_fields(const attune_problem *p, at_error *err) {
    attune_status status = check_precision(p, err);
    if (!status) status = check_matmul_precision(p, err);
    if (!status) status = check_bounds(p, err);
    if (!status) status = check_position_ids(p, err);
    if (!status) status = check_v_in_k(p, err);
    if (!status) status = check_hadamard(p, err);
    if (!status) status = check_codes(p, err);
    if (!status) status = check_panels(p, err);
    if (!status) status = check_weights(p, err);
    if (!status) status = check_lists(p, err);
    if (!status) status = check_integer_products(p, err);
    if (!status) status = check_general(p, err);
    return status;
}
