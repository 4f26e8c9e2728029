/* Problems as text: "num_heads=12,seq_q=512,head_dim=64,is_causal=1". */
#include "mha/mha.h"
#include "mha/text.h"

#include <math.h>
#include <string.h>

/* ---- the integer fields ---- */

typedef struct int_field {
    const char *name;
    size_t offset;
} int_field;

static const int_field int_fields[] = {
    {"batch", offsetof(attune_problem, batch)},
    {"num_heads", offsetof(attune_problem, num_heads)},
    {"num_kv_heads", offsetof(attune_problem, num_kv_heads)},
    {"seq_q", offsetof(attune_problem, seq_q)},
    {"seq_kv", offsetof(attune_problem, seq_kv)},
    {"head_dim", offsetof(attune_problem, head_dim)},
    {"head_dim_v", offsetof(attune_problem, head_dim_v)},
    {"causal_offset", offsetof(attune_problem, causal_offset)},
};
enum { NUM_INT_FIELDS = sizeof int_fields / sizeof *int_fields };

static const char *const known_keys =
    "batch, num_heads, num_kv_heads, seq_q, seq_kv, head_dim, head_dim_v, dtype, softmax_scale, is_causal, "
    "causal_align, causal_offset, lse, layout, q_strides, k_strides, v_strides, out_strides, lse_strides";

static int64_t *int_at(attune_problem *p, size_t offset) { return (int64_t *)(void *)((char *)p + offset); }

/* ---- the stride arrays ---- */

typedef struct stride_field {
    const char *name;
    size_t offset;
    int rank;
} stride_field;

static const stride_field stride_fields[] = {
    {"q_strides", offsetof(attune_problem, q_strides), 4},
    {"k_strides", offsetof(attune_problem, k_strides), 4},
    {"v_strides", offsetof(attune_problem, v_strides), 4},
    {"out_strides", offsetof(attune_problem, out_strides), 4},
    {"lse_strides", offsetof(attune_problem, lse_strides), 3},
};
enum { NUM_STRIDE_FIELDS = sizeof stride_fields / sizeof *stride_fields };

typedef enum layout { LAYOUT_NONE, LAYOUT_BHSD, LAYOUT_BSHD } layout;

typedef struct parse_state {
    attune_problem problem;
    layout layout;
} parse_state;

static attune_status parse_strides(const mha_pair *pair, int rank, int64_t *strides, at_error *err) {
    const char *at = pair->value, *end = at + pair->value_length;
    for (int i = 0; i < rank; i++) {
        const char *colon = memchr(at, ':', (size_t)(end - at));
        const char *stop = colon ? colon : end;
        if ((colon != NULL) != (i < rank - 1))
            return at_fail(err, ATTUNE_INVALID_PROBLEM, "%.*s is '%.*s'; it must be %d strides separated by ':'",
                           pair->key_length, pair->key, pair->value_length, pair->value, rank);
        const mha_pair item = {pair->key, at, pair->key_length, (int)(stop - at)};
        attune_status status = mha_value_int(&item, ATTUNE_INVALID_PROBLEM, &strides[i], err);
        if (status) return status;
        at = stop + 1;
    }
    return ATTUNE_OK;
}

static attune_status bad_choice(const mha_pair *pair, const char *choices, at_error *err) {
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%.*s is '%.*s'; it must be %s", pair->key_length, pair->key,
                   pair->value_length, pair->value, choices);
}

static attune_status parse_flag(const mha_pair *pair, int *out, at_error *err) {
    if (!mha_value_is(pair, "0") && !mha_value_is(pair, "1")) return bad_choice(pair, "0 or 1", err);
    *out = pair->value[0] == '1';
    return ATTUNE_OK;
}

/* A NaN stands for the default in attune_problem, but nobody means that who writes one. */
static attune_status parse_scale(const mha_pair *pair, double *out, at_error *err) {
    if (mha_value_is(pair, "default")) {
        *out = ATTUNE_DEFAULT_SCALE;
        return ATTUNE_OK;
    }
    attune_status status = mha_value_double(pair, ATTUNE_INVALID_PROBLEM, out, err);
    return !status && isnan(*out) ? bad_choice(pair, "a number or 'default'", err) : status;
}

static attune_status parse_choice(parse_state *state, const mha_pair *pair, at_error *err) {
    attune_problem *p = &state->problem;
    if (mha_key_is(pair, "dtype")) {
        if (!mha_value_is(pair, "f32")) return bad_choice(pair, "f32", err);
        p->dtype = ATTUNE_F32;
        return ATTUNE_OK;
    }
    if (mha_key_is(pair, "causal_align")) {
        if (mha_value_is(pair, "top_left"))
            p->causal_align = ATTUNE_TOP_LEFT;
        else if (mha_value_is(pair, "bottom_right"))
            p->causal_align = ATTUNE_BOTTOM_RIGHT;
        else
            return bad_choice(pair, "top_left or bottom_right", err);
        return ATTUNE_OK;
    }
    if (mha_key_is(pair, "layout")) {
        if (mha_value_is(pair, "bhsd"))
            state->layout = LAYOUT_BHSD;
        else if (mha_value_is(pair, "bshd"))
            state->layout = LAYOUT_BSHD;
        else
            return bad_choice(pair, "bhsd or bshd", err);
        return ATTUNE_OK;
    }
    if (mha_key_is(pair, "is_causal")) return parse_flag(pair, &p->is_causal, err);
    if (mha_key_is(pair, "lse")) return parse_flag(pair, &p->has_lse, err);
    if (mha_key_is(pair, "softmax_scale")) return parse_scale(pair, &p->softmax_scale, err);
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "'%.*s' is not a field of a problem; there are: %s", pair->key_length,
                   pair->key, known_keys);
}

static attune_status parse_pair(void *user, const mha_pair *pair, at_error *err) {
    parse_state *state = user;
    for (int i = 0; i < NUM_INT_FIELDS; i++)
        if (mha_key_is(pair, int_fields[i].name))
            return mha_value_int(pair, ATTUNE_INVALID_PROBLEM, int_at(&state->problem, int_fields[i].offset), err);
    for (int i = 0; i < NUM_STRIDE_FIELDS; i++)
        if (mha_key_is(pair, stride_fields[i].name))
            return parse_strides(pair, stride_fields[i].rank, int_at(&state->problem, stride_fields[i].offset), err);
    return parse_choice(state, pair, err);
}

/* [batch, seq, heads, dim] in memory, described in the order batch, heads, seq, dim. Overflow shows up in
 * mha_canonicalize as a stride out of range, because the products are clamped here. */
static void set_bshd(int64_t *strides, int64_t heads, int64_t seq, int64_t dim) {
    const int64_t limit = INT64_C(1) << 62;
    int64_t row, all;
    if (__builtin_mul_overflow(heads, dim, &row)) row = limit;
    if (__builtin_mul_overflow(row, seq, &all)) all = limit;
    strides[0] = all;
    strides[1] = dim;
    strides[2] = row;
    strides[3] = 1;
}

static void apply_layout(attune_problem *p, layout order) {
    if (order == LAYOUT_NONE) return;
    for (int i = 0; i < 4; i++) memset(int_at(p, stride_fields[i].offset), 0, 4 * sizeof(int64_t));
    if (order == LAYOUT_BHSD) return;
    const int64_t kv_heads = p->num_kv_heads ? p->num_kv_heads : p->num_heads;
    const int64_t seq_kv = p->seq_kv ? p->seq_kv : p->seq_q;
    const int64_t dim_v = p->head_dim_v ? p->head_dim_v : p->head_dim;
    set_bshd(p->q_strides, p->num_heads, p->seq_q, p->head_dim);
    set_bshd(p->k_strides, kv_heads, seq_kv, p->head_dim);
    set_bshd(p->v_strides, kv_heads, seq_kv, dim_v);
    set_bshd(p->out_strides, p->num_heads, p->seq_q, dim_v);
}

static attune_status check_struct(const attune_problem *p, at_error *err) {
    if (p->struct_size == sizeof *p) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                   "attune_problem.struct_size is %zu, expected %zu: start from ATTUNE_PROBLEM_INIT", p->struct_size,
                   sizeof *p);
}

attune_status mha_problem_parse(const char *text, attune_problem *problem, at_error *err) {
    if (check_struct(problem, err)) return ATTUNE_INVALID_ARGUMENT;
    parse_state state = {.problem = *problem};
    attune_status status = mha_for_each_pair(text, ATTUNE_INVALID_PROBLEM, parse_pair, &state, err);
    if (status) return status;
    apply_layout(&state.problem, state.layout);
    *problem = state.problem;
    return ATTUNE_OK;
}

/* ---- print ---- */

static void print_strides(mha_writer *w, const attune_problem *p, const attune_problem *plain, int field) {
    const stride_field *f = &stride_fields[field];
    const int64_t *strides = int_at((attune_problem *)(uintptr_t)p, f->offset);
    const int64_t *usual = int_at((attune_problem *)(uintptr_t)plain, f->offset);
    if (!memcmp(strides, usual, (size_t)f->rank * sizeof *strides)) return;
    mha_write_key(w, f->name);
    for (int i = 0; i < f->rank; i++) mha_write(w, "%s%lld", i ? ":" : "", (long long)strides[i]);
}

static void print_int(mha_writer *w, const char *key, int64_t value, int64_t usual) {
    if (value == usual) return;
    mha_write_key(w, key);
    mha_write(w, "%lld", (long long)value);
}

size_t mha_problem_print(const attune_problem *problem, char *text, size_t capacity) {
    attune_problem p, plain;
    mha_writer w = {text, capacity, 0};
    if (capacity) *text = '\0';
    if (check_struct(problem, NULL)) return 0;
    if (mha_canonicalize(problem, &p, NULL)) p = *problem; /* print what is wrong as it stands */
    print_int(&w, "batch", p.batch, 1);
    print_int(&w, "num_heads", p.num_heads, -1);
    print_int(&w, "num_kv_heads", p.num_kv_heads, p.num_heads);
    print_int(&w, "seq_q", p.seq_q, -1);
    print_int(&w, "seq_kv", p.seq_kv, -1);
    print_int(&w, "head_dim", p.head_dim, -1);
    print_int(&w, "head_dim_v", p.head_dim_v, p.head_dim);
    if (!isnan(p.softmax_scale) && (float)p.softmax_scale != (float)(1.0 / sqrt((double)p.head_dim))) {
        mha_write_key(&w, "softmax_scale");
        mha_write(&w, "%.17g", p.softmax_scale);
    }
    print_int(&w, "is_causal", p.is_causal, 0);
    if (p.causal_align == ATTUNE_BOTTOM_RIGHT) {
        mha_write_key(&w, "causal_align");
        mha_write(&w, "bottom_right");
    }
    print_int(&w, "causal_offset", p.causal_offset, 0);
    print_int(&w, "lse", p.has_lse, 0);
    plain = p;
    for (int i = 0; i < NUM_STRIDE_FIELDS; i++)
        memset(int_at(&plain, stride_fields[i].offset), 0, (size_t)stride_fields[i].rank * sizeof(int64_t));
    attune_problem settled;
    if (!mha_canonicalize(&plain, &settled, NULL)) plain = settled;
    for (int i = 0; i < NUM_STRIDE_FIELDS; i++) print_strides(&w, &p, &plain, i);
    return w.length;
}
