/* The weights of a block as callers pass them: checks which are there, and their shapes, and finds the weights of each
 * projection. */
#include "layer/weight_source.h"

#include "base/plain_text.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const names[ATTUNE_NUM_WEIGHTS] = {
    [ATTUNE_Q_WEIGHT] = "q_weight",     [ATTUNE_K_WEIGHT] = "k_weight", [ATTUNE_V_WEIGHT] = "v_weight",
    [ATTUNE_OUT_WEIGHT] = "out_weight", [ATTUNE_Q_BIAS] = "q_bias",     [ATTUNE_K_BIAS] = "k_bias",
    [ATTUNE_V_BIAS] = "v_bias",         [ATTUNE_OUT_BIAS] = "out_bias", [ATTUNE_QKV_WEIGHT] = "qkv_weight",
    [ATTUNE_QKV_BIAS] = "qkv_bias"};

const char *mha_weight_name(attune_weight_id id) { return (unsigned)id < ATTUNE_NUM_WEIGHTS ? names[id] : NULL; }

/* ---- Expected shapes ---- */

typedef struct expected {
    bool is_matrix;
    int64_t in, out; /* out = 0: the problem has no such weight */
} expected;

static bool same_inputs(const mha_packed_section *s) {
    return s[MHA_PROJECT_Q].depth == s[MHA_PROJECT_K].depth && s[MHA_PROJECT_Q].depth == s[MHA_PROJECT_V].depth;
}

static expected expect(const mha_packed_layout *layout, int id) {
    const mha_packed_section *s = layout->section;
    if (id < ATTUNE_QKV_WEIGHT) {
        const mha_packed_section *one = &s[id % MHA_NUM_PROJECTIONS];
        return (expected){id < ATTUNE_Q_BIAS, one->depth, one->columns};
    }
    const bool all = s[MHA_PROJECT_K].exists && s[MHA_PROJECT_V].exists;
    const int64_t out = s[MHA_PROJECT_Q].columns + s[MHA_PROJECT_K].columns + s[MHA_PROJECT_V].columns;
    if (id == ATTUNE_QKV_BIAS) return (expected){false, 0, all ? out : 0};
    return (expected){true, s[MHA_PROJECT_Q].depth, all && same_inputs(s) ? out : 0};
}
static_assert((int)ATTUNE_OUT_WEIGHT == (int)MHA_PROJECT_OUT && (int)ATTUNE_Q_BIAS == (int)MHA_NUM_PROJECTIONS &&
                  (int)ATTUNE_QKV_WEIGHT == 2 * (int)MHA_NUM_PROJECTIONS,
              "the first four weights and the four biases are those of the projections, in their order");

void mha_weights_init(const attune_problem *p, attune_weight_layout storage, attune_mha_weights *weights) {
    mha_packed_layout layout;
    mha_packed_layout_of(p, &layout);
    *weights = (attune_mha_weights){.struct_size = sizeof *weights, .layout = storage};
    for (int id = 0; id < ATTUNE_NUM_WEIGHTS; id++) {
        const expected e = expect(&layout, id);
        attune_weight *w = &weights->tensor[id];
        w->dtype = mha_has_quantised_weights(p) ? p->dtype : p->w_dtype;
        if (!e.out) continue;
        w->rank = e.is_matrix ? 2 : 1;
        w->dims[0] = !e.is_matrix || storage == ATTUNE_OUT_IN ? e.out : e.in;
        if (e.is_matrix) w->dims[1] = storage == ATTUNE_OUT_IN ? e.in : e.out;
    }
}

/* ---- Words for messages ---- */

typedef struct words {
    char text[200];
    size_t length;
} words;

static void say(words *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(words *w, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int n = at_vprint(w->text + w->length, sizeof w->text - w->length, format, arguments);
    va_end(arguments);
    if (n > 0) w->length += (size_t)n;
    if (w->length >= sizeof w->text) w->length = sizeof w->text - 1;
}

static void say_size(words *w, const char *name, int64_t value) {
    say(w, "%s%s=%lld", w->length ? ", " : "", name, (long long)value);
}

static void say_dims(words *w, int rank, const int64_t *dims) {
    say(w, "[");
    for (int d = 0; d < rank; d++) say(w, "%s%lld", d ? ", " : "", (long long)dims[d]);
    say(w, "]");
}

static const char *dtype_name(attune_dtype dtype) {
    static const char *const dtypes[ATTUNE_DTYPE_COUNT] = {"no dtype", "f32", "f16", "bf16", "f64",
                                                           "bool",     "i32", "i8",  "f8",   "i4"};
    return (unsigned)dtype < ATTUNE_DTYPE_COUNT ? dtypes[dtype] : dtypes[0];
}

/* The fields of the problem that determine a weight's dims. */
static void say_reasons(words *w, const attune_problem *p, int id, bool is_matrix) {
    const bool is_qkv = id >= ATTUNE_QKV_WEIGHT;
    const int projection = is_qkv ? MHA_PROJECT_Q : id % MHA_NUM_PROJECTIONS;
    if (projection == MHA_PROJECT_OUT) {
        say_size(w, "out_dim", p->out_dim);
        if (!is_matrix) return;
    }
    const bool of_q = projection == MHA_PROJECT_Q, of_values = projection >= MHA_PROJECT_V;
    if (of_q || projection == MHA_PROJECT_OUT) say_size(w, "num_heads", p->num_heads);
    if (is_qkv || projection == MHA_PROJECT_K || projection == MHA_PROJECT_V)
        say_size(w, "num_kv_heads", p->num_kv_heads);
    if (!of_values) say_size(w, "head_dim", p->head_dim);
    if (of_values || (is_qkv && p->head_dim_v != p->head_dim)) say_size(w, "head_dim_v", p->head_dim_v);
    if (!is_matrix || projection == MHA_PROJECT_OUT) return;
    if (of_q)
        say_size(w, "embed_dim", p->embed_dim);
    else if (of_values && p->v_embed_dim)
        say_size(w, "v_embed_dim", p->v_embed_dim);
    else
        say_size(w, "kv_embed_dim", p->kv_embed_dim);
}

/* ---- Checking one ---- */

/* Whether `rank` dims can be split into two parts with the products rows and columns; rows = 0: whether all of them
 * multiply to columns. */
static bool multiplies(const attune_weight *w, int64_t rows, int64_t columns) {
    int64_t product = 1, split = rows ? rows : columns;
    bool in_second = rows == 0;
    for (int d = 0; d < w->rank; d++) {
        if (w->dims[d] < 1 || __builtin_mul_overflow(product, w->dims[d], &product)) return false;
        /* Dims of 1 may belong to either part: the first part ends as soon as its product is complete, and before the
         * last dim. */
        if (!in_second && product == split && d + 1 < w->rank) {
            in_second = true;
            product = 1;
            split = columns;
        }
    }
    return in_second && product == split;
}

/* Weights in floating point: they are quantised here, or copied. */
static bool has_dtype(const attune_problem *p, const attune_weight *w, bool is_matrix) {
    if (mha_has_quantised_weights(p) && w->dtype >= ATTUNE_F32 && w->dtype <= ATTUNE_F64) return true;
    return w->dtype == p->w_dtype && (is_matrix || !mha_has_quantised_weights(p));
}

static const char *dtypes_for(const attune_problem *p, bool is_matrix) {
    if (!mha_has_quantised_weights(p)) return dtype_name(p->w_dtype);
    if (!is_matrix) return "f32, f16, bf16 or f64";
    return p->w_dtype == ATTUNE_I8 ? "f32, f16, bf16, f64 or i8" : "f32, f16, bf16, f64 or i4";
}

/* Weights that the caller has quantised, in blocks along the inputs. */
static attune_status check_blocks(const attune_problem *p, const attune_weight *w, int id, const expected *e,
                                  attune_weight_layout layout, at_error *err) {
    if (w->dtype != ATTUNE_I8 && w->dtype != ATTUNE_I4) return ATTUNE_OK;
    if (layout != ATTUNE_OUT_IN)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "%s is %s, which needs the layout [out_dim, in_dim] (ATTUNE_OUT_IN)", names[id],
                       dtype_name(w->dtype));
    if (p->w_group != MHA_BLOCK)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is %s, in blocks of %d inputs; w_group is %lld", names[id],
                       dtype_name(w->dtype), MHA_BLOCK, (long long)p->w_group);
    if (e->in % MHA_BLOCK)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is %s, in blocks of %d inputs; it has %lld inputs", names[id],
                       dtype_name(w->dtype), MHA_BLOCK, (long long)e->in);
    return ATTUNE_OK;
}

static attune_status wrong_shape(const attune_problem *p, const attune_weight *w, int id, const expected *e,
                                 attune_weight_layout layout, at_error *err) {
    words found = {.length = 0}, wanted = {.length = 0}, reasons = {.length = 0};
    const bool out_first = !e->is_matrix || layout == ATTUNE_OUT_IN;
    const int64_t dims[2] = {out_first ? e->out : e->in, out_first ? e->in : e->out};
    say_dims(&found, w->rank, w->dims);
    say_dims(&wanted, e->is_matrix ? 2 : 1, dims);
    say_reasons(&reasons, p, id, e->is_matrix);
    if (!has_dtype(p, w, e->is_matrix)) say(&reasons, ", w_dtype=%s", dtype_name(p->w_dtype));
    const bool turned = e->is_matrix && !multiplies(w, dims[0], dims[1]) && multiplies(w, dims[1], dims[0]);
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is %s %s; expected %s %s%s for %s%s%s", names[id], found.text,
                   dtype_name(w->dtype), wanted.text, dtypes_for(p, e->is_matrix),
                   !e->is_matrix ? ""
                   : out_first   ? " ([out_dim, in_dim])"
                                 : " ([in_dim, out_dim])",
                   reasons.text, turned ? "; it would fit the other layout, " : "",
                   !turned     ? ""
                   : out_first ? "ATTUNE_IN_OUT"
                               : "ATTUNE_OUT_IN");
}

/* The message why the problem has no such weight. */
static attune_status too_much(const attune_problem *p, const mha_packed_layout *layout, int id, at_error *err) {
    const bool is_qkv = id >= ATTUNE_QKV_WEIGHT;
    const mha_packed_section *s = layout->section;
    if (is_qkv && s[MHA_PROJECT_K].exists && s[MHA_PROJECT_V].exists)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "%s is given, but q has %lld inputs, k %lld and v %lld: give their weights one by one",
                       names[id], (long long)s[MHA_PROJECT_Q].depth, (long long)s[MHA_PROJECT_K].depth,
                       (long long)s[MHA_PROJECT_V].depth);
    const char *missing = id % MHA_NUM_PROJECTIONS == MHA_PROJECT_OUT && !is_qkv ? "no output projection"
                          : p->kv_projected                                      ? "keys and values that are projected"
                                            : "values that are columns of the keys";
    const char *field = id % MHA_NUM_PROJECTIONS == MHA_PROJECT_OUT && !is_qkv ? "no_out_projection"
                        : p->kv_projected                                      ? "kv_projected"
                                                                               : "v_in_k";
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is given, but the problem has %s (%s=1)", names[id], missing,
                   field);
}

static attune_status check_weight(const attune_problem *p, const mha_packed_layout *layout,
                                  const attune_mha_weights *weights, int id, at_error *err) {
    const attune_weight *w = &weights->tensor[id];
    const expected e = expect(layout, id);
    if (!w->data) return ATTUNE_OK;
    if (!e.out) return too_much(p, layout, id, err);
    if (w->rank < 1 || w->rank > 4)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s has rank %d; it must be from 1 to 4", names[id], w->rank);
    const bool out_first = weights->layout == ATTUNE_OUT_IN;
    const bool fits =
        !e.is_matrix ? multiplies(w, 0, e.out) : multiplies(w, out_first ? e.out : e.in, out_first ? e.in : e.out);
    if (fits && has_dtype(p, w, e.is_matrix)) return check_blocks(p, w, id, &e, weights->layout, err);
    return wrong_shape(p, w, id, &e, weights->layout, err);
}

/* ---- All of them ---- */

/* Fails if a caller passes q, k or v together with the packed form of all three, or neither. */
static attune_status check_choice(const attune_mha_weights *weights, const mha_packed_layout *layout, int projection,
                                  at_error *err) {
    const attune_weight *t = weights->tensor;
    const bool may_pack = projection != MHA_PROJECT_OUT;
    for (int kind = 0; may_pack && kind < 2; kind++) {
        const int one = kind * ATTUNE_Q_BIAS + projection, all = ATTUNE_QKV_WEIGHT + kind;
        if (t[one].data && t[all].data)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s and %s are both given: they say the same", names[one],
                           names[all]);
    }
    if (t[projection].data || (may_pack && t[ATTUNE_QKV_WEIGHT].data)) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is missing%s", names[projection],
                   may_pack && expect(layout, ATTUNE_QKV_WEIGHT).out ? ", and so is qkv_weight" : "");
}

const at_struct mha_weights_struct = {"attune_mha_weights", "start from attune_mha_weights_init",
                                      sizeof(attune_mha_weights), NULL, 496};

static attune_status check_all(const attune_problem *p, const mha_packed_layout *layout,
                               const attune_mha_weights *weights, at_error *err) {
    if (weights->layout != ATTUNE_OUT_IN && weights->layout != ATTUNE_IN_OUT)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "layout is %d, which is no attune_weight_layout",
                       (int)weights->layout);
    attune_status status = ATTUNE_OK;
    for (int id = 0; !status && id < ATTUNE_NUM_WEIGHTS; id++) status = check_weight(p, layout, weights, id, err);
    for (int i = 0; !status && i < MHA_NUM_PROJECTIONS; i++)
        if (layout->section[i].exists) status = check_choice(weights, layout, i, err);
    return status;
}

/* Bytes of a scale and MHA_BLOCK quantised values; 0: the weights are not quantised. */
static size_t block_bytes(attune_dtype dtype) {
    return dtype == ATTUNE_I8   ? sizeof(uint16_t) + MHA_BLOCK
           : dtype == ATTUNE_I4 ? sizeof(uint16_t) + MHA_BLOCK / 2
                                : 0;
}

/* The address of a projection's weights, whose outputs come after `before` others in the packed form. */
static void find_weight(const attune_mha_weights *weights, int projection, bool out_first,
                        const mha_packed_layout *layout, int64_t before, mha_packed_source *source) {
    const bool packed = !weights->tensor[projection].data;
    const int id = packed ? ATTUNE_QKV_WEIGHT : projection;
    const mha_packed_section *s = &layout->section[projection];
    const int64_t outputs = packed ? expect(layout, ATTUNE_QKV_WEIGHT).out : s->columns;
    source->dtype = weights->tensor[id].dtype;
    const size_t size = mha_weight_bytes(source->dtype);
    source->name = names[id];
    source->block = block_bytes(source->dtype);
    source->stride = (size_t)(out_first ? s->depth : outputs) * size;
    if (source->block) source->stride = (size_t)(s->depth / MHA_BLOCK) * source->block;
    source->between_outputs = out_first ? source->stride : size;
    source->between_inputs = out_first ? size : source->stride;
    source->first_output = packed ? before : 0;
    source->weight = weights->tensor[id].data;
    source->weight += (size_t)source->first_output * source->between_outputs;
}

static void find_bias(const attune_mha_weights *weights, int projection, int64_t before, mha_packed_source *source) {
    const bool packed = projection != MHA_PROJECT_OUT && weights->tensor[ATTUNE_QKV_BIAS].data;
    const attune_weight *const bias = &weights->tensor[packed ? ATTUNE_QKV_BIAS : ATTUNE_Q_BIAS + projection];
    source->bias_dtype = bias->dtype;
    source->bias = bias->data;
    if (packed) source->bias += (size_t)before * mha_weight_bytes(bias->dtype);
}

attune_status mha_packed_sources(const attune_problem *p, const mha_packed_layout *layout,
                                 const attune_mha_weights *given, mha_packed_source sources[MHA_NUM_PROJECTIONS],
                                 at_error *err) {
    attune_mha_weights whole;
    const attune_mha_weights *const weights = &whole;
    attune_status status = at_copy_in(&mha_weights_struct, given, &whole, err);
    if (!status) status = check_all(p, layout, weights, err);
    if (status) return status;
    const bool out_first = weights->layout == ATTUNE_OUT_IN;
    int64_t before = 0; /* outputs of the packed form that belong to earlier projections */
    for (int i = 0; i < MHA_NUM_PROJECTIONS; i++) {
        const mha_packed_section *s = &layout->section[i];
        if (!s->exists) continue;
        find_weight(weights, i, out_first, layout, before, &sources[i]);
        find_bias(weights, i, before, &sources[i]);
        before += s->columns;
    }
    return ATTUNE_OK;
}
