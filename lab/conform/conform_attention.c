/* Attention, opset 23 to 25, as a problem. The operator's words and attune's:
 *     scale, softcap                    softmax_scale, logits_soft_cap
 *     qk_matmul_output_mode 0 to 3      weights_mode scaled, capped, masked, softmax
 *     past_key, present_key             k in place, with seq_new keys appended to it by the call
 *     nonpad_kv_seqlen                  kv_lens
 *     a query's position                i + past length, or i + nonpad_kv_seqlen - queries (bottom_right), or i
 *     attn_mask of bool, of a number    attn_mask, attn_bias; both with short_masks */
#include "conform/conform_call.h"

#include <math.h>
#include <string.h>

/* The inputs as views, and the sizes that follow from them. */
typedef struct attention {
    conform_call *call;
    const npy_array *in;
    const conform_attribute *attributes;
    attune_problem *p;
    conform_view q, k, v;
    int64_t past, keys; /* keys: past ones and new ones */
    bool appends;       /* K and V go into a cache: there is a past, or present outputs are expected */
} attention;

static int64_t whole(const attention *a, int attribute) { return a->attributes[attribute].integer; }
static bool has(const attention *a, int input) { return a->in[input].data != NULL; }

/* ---- Sizes ---- */

static bool check_heads(const attention *a, int attribute, const char *name, const conform_view *view) {
    const int64_t given = whole(a, attribute);
    return !given || given == view->dims[1] ||
           conform_fail(a->call, "%s is %lld, but the input has %lld heads", name, (long long)given,
                        (long long)view->dims[1]);
}

static bool view_inputs(attention *a) {
    conform_call *const call = a->call;
    const int64_t q_heads = whole(a, ATTENTION_Q_NUM_HEADS), kv_heads = whole(a, ATTENTION_KV_NUM_HEADS);
    const size_t rank = a->in[ATTENTION_Q].header.rank;
    if (!conform_view_input(call, ATTENTION_Q, q_heads, &a->q) ||
        !conform_view_input(call, ATTENTION_K, kv_heads, &a->k) ||
        !conform_view_input(call, ATTENTION_V, kv_heads, &a->v))
        return false;
    if (a->in[ATTENTION_K].header.rank != rank || a->in[ATTENTION_V].header.rank != rank)
        return conform_fail(call, "Q, K and V have %zu, %zu and %zu dimensions; all must have 3 or all 4", rank,
                            a->in[ATTENTION_K].header.rank, a->in[ATTENTION_V].header.rank);
    if (!check_heads(a, ATTENTION_Q_NUM_HEADS, "q_num_heads", &a->q) ||
        !check_heads(a, ATTENTION_KV_NUM_HEADS, "kv_num_heads", &a->k))
        return false;
    const int64_t *const q = a->q.dims, *const k = a->k.dims, *const v = a->v.dims;
    if (q[0] != k[0] || k[0] != v[0] || k[1] != v[1] || k[2] != v[2] || q[3] != k[3])
        return conform_fail(call,
                            "Q, K and V do not go together: batches %lld, %lld, %lld; heads of K and V %lld, %lld; "
                            "tokens of K and V %lld, %lld; columns of Q and K %lld, %lld",
                            (long long)q[0], (long long)k[0], (long long)v[0], (long long)k[1], (long long)v[1],
                            (long long)k[2], (long long)v[2], (long long)q[3], (long long)k[3]);
    if (q[1] % k[1])
        return conform_fail(call, "%lld heads of Q are no multiple of %lld heads of K", (long long)q[1],
                            (long long)k[1]);
    return true;
}

/* past_key and past_value: [batch, heads, past, columns], of the types of K and V. */
static bool check_past(attention *a) {
    conform_call *const call = a->call;
    const npy_array *const expected = call->c->expected;
    const bool has_past = has(a, ATTENTION_PAST_KEY);
    a->appends = has_past || expected[ATTENTION_PRESENT_KEY].data || expected[ATTENTION_PRESENT_VALUE].data;
    if (has_past != has(a, ATTENTION_PAST_VALUE))
        return conform_fail(call, "past_key and past_value must be given together");
    if (a->appends && has(a, ATTENTION_NONPAD_KV_SEQLEN))
        return conform_fail(call,
                            "nonpad_kv_seqlen does not go with past_key, past_value, present_key and present_value");
    if (has_past) {
        const npy_header *const h = &a->in[ATTENTION_PAST_KEY].header;
        a->past = h->rank == 4 ? h->shape[2] : 0;
        const int64_t key[4] = {a->k.dims[0], a->k.dims[1], a->past, a->k.dims[3]};
        const int64_t value[4] = {a->v.dims[0], a->v.dims[1], a->past, a->v.dims[3]};
        if (!conform_expect_shape(call, ATTENTION_PAST_KEY, 4, key) ||
            !conform_expect_shape(call, ATTENTION_PAST_VALUE, 4, value) ||
            !conform_expect_type(call, ATTENTION_PAST_KEY, a->in[ATTENTION_K].header.type) ||
            !conform_expect_type(call, ATTENTION_PAST_VALUE, a->in[ATTENTION_V].header.type))
            return false;
    }
    a->keys = a->past + a->k.dims[2];
    return true;
}

/* ---- Attributes ---- */

static bool map_attributes(const attention *a) {
    attune_problem *const p = a->p;
    const conform_attribute *const attributes = a->attributes;
    const int64_t precision = whole(a, ATTENTION_SOFTMAX_PRECISION);
    if (attributes[ATTENTION_SCALE].is_given) p->softmax_scale = attributes[ATTENTION_SCALE].real;
    if (attributes[ATTENTION_SOFTCAP].real > 0) p->logits_soft_cap = attributes[ATTENTION_SOFTCAP].real;
    p->is_causal = (int)whole(a, ATTENTION_IS_CAUSAL);
    /* No sequence is as long: beyond that, a window is open. */
    const int64_t left = whole(a, ATTENTION_LEFT_WINDOW), right = whole(a, ATTENTION_RIGHT_WINDOW);
    p->window_left = left < INT32_MAX ? left : -1;
    p->window_right = right < INT32_MAX ? right : -1;
    if (a->call->c->expected[ATTENTION_QK_MATMUL].data)
        p->weights_mode = (attune_weights_mode)(ATTUNE_WEIGHTS_SCALED + whole(a, ATTENTION_QK_MATMUL_MODE));
    /* ONNX's numbers of types. attune computes in f32 at least, which is as good as bfloat16 and float16. */
    enum { ONNX_FLOAT = 1, ONNX_FLOAT16 = 10, ONNX_DOUBLE = 11, ONNX_BFLOAT16 = 16 };
    if (precision == ONNX_DOUBLE) p->softmax_precision = ATTUNE_F64;
    return precision == 0 || precision == ONNX_FLOAT || precision == ONNX_FLOAT16 || precision == ONNX_DOUBLE ||
           precision == ONNX_BFLOAT16 ||
           conform_fail(a->call, "softmax_precision is %lld; it must be 1, 10, 11 or 16", (long long)precision);
}

static bool map_lengths(const attention *a) {
    attune_arguments *const arguments = &a->call->arguments;
    if (!a->p->has_kv_lens) return true;
    return conform_expect_shape(a->call, ATTENTION_NONPAD_KV_SEQLEN, 1, a->q.dims) &&
           (arguments->kv_lens = conform_indices(a->call, ATTENTION_NONPAD_KV_SEQLEN, a->keys));
}

/* ---- The mask ---- */

/* Its dims from the right must each be 1 or the full size, except the last, which may be any up to the number of keys:
 * those beyond are hidden, even if it is 1. */
static bool check_mask(const attention *a) {
    const npy_header *const h = &a->in[ATTENTION_MASK].header;
    const int64_t full[4] = {a->q.dims[0], a->q.dims[1], a->q.dims[2], a->keys};
    bool fits = h->rank >= 1 && h->rank <= 4 && h->shape[h->rank - 1] <= a->keys;
    for (size_t i = 0; fits && i + 1 < h->rank; i++) fits = h->shape[i] == 1 || h->shape[i] == full[4 - h->rank + i];
    char have[NPY_SHAPE_TEXT], want[NPY_SHAPE_TEXT];
    return fits || conform_fail(a->call, "attn_mask is of shape %s, which does not broadcast to %s",
                                npy_print_shape(h->rank, h->shape, have), npy_print_shape(4, full, want));
}

static void store_number(npy_array *array, size_t at, double value) {
    if (array->header.type == NPY_F8)
        ((double *)array->data)[at] = value;
    else
        ((float *)array->data)[at] = (float)value;
}

/* A mask as attune takes it. Whole numbers become the type of the arithmetic. One column where there are more keys
 * means "hide the others" in ONNX and "the same for all" in attune: it gets a second one, hidden. */
static const npy_array *convert_mask(const attention *a) {
    const npy_array *const mask = &a->in[ATTENTION_MASK];
    const npy_header *const h = &mask->header;
    attune_dtype dtype;
    const bool is_bool = h->type == NPY_B1, is_float = conform_dtype_of(h->type, &dtype);
    const int64_t have = h->shape[h->rank - 1], least = a->keys < 2 ? a->keys : 2, want = have < least ? least : have;
    if (have == want && (is_bool || is_float)) return mask;
    int64_t shape[4];
    memcpy(shape, h->shape, sizeof shape);
    shape[h->rank - 1] = want;
    const npy_type type = is_bool ? NPY_B1 : h->type == NPY_F8 || a->p->dtype == ATTUNE_F64 ? NPY_F8 : NPY_F4;
    npy_array *const converted = conform_own(a->call, type, h->rank, shape);
    for (size_t i = 0; converted && i < converted->header.count; i++) {
        const size_t row = i / (size_t)want, column = i % (size_t)want;
        const bool is_there = column < (size_t)have;
        const double value = is_there ? npy_element(mask, row * (size_t)have + column) : is_bool ? 0 : -INFINITY;
        if (is_bool)
            ((uint8_t *)converted->data)[i] = value != 0;
        else
            store_number(converted, i, value);
    }
    return converted;
}

/* Sets the problem's fields for the mask that convert_mask gave. */
static void map_mask(const attention *a, const npy_array *mask) {
    attune_problem *const p = a->p;
    const npy_header *const h = &mask->header;
    int64_t *const dims = h->type == NPY_B1 ? p->attn_mask_dims : p->attn_bias_dims;
    for (size_t i = 0; i < 4; i++) dims[i] = i + h->rank < 4 ? 1 : h->shape[i + h->rank - 4];
    p->short_masks = dims[3] < a->keys;
    if (h->type != NPY_B1) conform_dtype_of(h->type, &p->bias_dtype);
}

/* ---- The whole ---- */

static void map_sizes(const attention *a) {
    attune_problem *const p = a->p;
    p->batch = a->q.dims[0];
    p->num_heads = a->q.dims[1];
    p->num_kv_heads = a->k.dims[1];
    p->seq_q = a->q.dims[2];
    p->seq_kv = a->keys;
    p->head_dim = a->q.dims[3];
    p->head_dim_v = a->v.dims[3];
    p->seq_new = a->appends ? a->k.dims[2] : 0;
    p->has_kv_lens = has(a, ATTENTION_NONPAD_KV_SEQLEN);
    p->causal_align = p->has_kv_lens ? ATTUNE_BOTTOM_RIGHT : ATTUNE_TOP_LEFT;
    p->causal_offset = a->past;
    /* A cache is contiguous. K and V are either the cache, or appended to it. */
    memcpy(p->q_strides, a->q.strides, sizeof a->q.strides);
    memcpy(a->appends ? p->k_new_strides : p->k_strides, a->k.strides, sizeof a->k.strides);
    memcpy(a->appends ? p->v_new_strides : p->v_strides, a->v.strides, sizeof a->v.strides);
}

static bool create_outputs(const attention *a) {
    conform_call *const call = a->call;
    const npy_type type = a->in[ATTENTION_Q].header.type, v_type = a->in[ATTENTION_V].header.type;
    const int64_t *const q = a->q.dims, *const k = a->k.dims;
    conform_view y = {{q[0], q[1], q[2], a->v.dims[3]}, {0}}, weights = {{q[0], q[1], q[2], a->keys}, {0}};
    conform_view key = {{k[0], k[1], a->keys, k[3]}, {0}}, value = {{k[0], k[1], a->keys, a->v.dims[3]}, {0}};
    if (!conform_create_output(call, ATTENTION_Y, type, a->in[ATTENTION_Q].header.rank == 3, &y)) return false;
    memcpy(a->p->out_strides, y.strides, sizeof y.strides);
    return (!a->appends || (conform_create_output(call, ATTENTION_PRESENT_KEY, type, false, &key) &&
                            conform_create_output(call, ATTENTION_PRESENT_VALUE, v_type, false, &value))) &&
           (!a->p->weights_mode || conform_create_output(call, ATTENTION_QK_MATMUL, type, false, &weights));
}

static void set_pointers(const attention *a, const npy_array *mask) {
    attune_arguments *const arguments = &a->call->arguments;
    const npy_array *const outputs = a->call->outputs;
    arguments->q.data = a->in[ATTENTION_Q].data;
    arguments->k.data = a->appends ? outputs[ATTENTION_PRESENT_KEY].data : a->in[ATTENTION_K].data;
    arguments->v.data = a->appends ? outputs[ATTENTION_PRESENT_VALUE].data : a->in[ATTENTION_V].data;
    arguments->k_new.data = a->appends ? a->in[ATTENTION_K].data : NULL;
    arguments->v_new.data = a->appends ? a->in[ATTENTION_V].data : NULL;
    arguments->out.data = outputs[ATTENTION_Y].data;
    arguments->weights.data = outputs[ATTENTION_QK_MATMUL].data;
    arguments->attn_mask.data = mask && mask->header.type == NPY_B1 ? mask->data : NULL;
    arguments->attn_bias.data = mask && mask->header.type != NPY_B1 ? mask->data : NULL;
}

bool conform_attention(conform_call *call) {
    attention a = {call, call->c->inputs, call->c->attributes, &call->problem, .past = 0};
    const npy_array *mask = NULL;
    if (!conform_float_type(call, ATTENTION_Q, &a.p->dtype) || !conform_float_type(call, ATTENTION_V, &a.p->v_dtype) ||
        !conform_expect_type(call, ATTENTION_K, a.in[ATTENTION_Q].header.type) || !view_inputs(&a) || !check_past(&a) ||
        !map_attributes(&a))
        return false;
    map_sizes(&a);
    if (has(&a, ATTENTION_MASK)) {
        if (!check_mask(&a) || !(mask = convert_mask(&a))) return false;
        map_mask(&a, mask);
    }
    if (!create_outputs(&a)) return false;
    if (attune_arguments_init(&call->arguments, a.p) != ATTUNE_OK)
        return conform_fail(call, "%s", attune_last_message());
    set_pointers(&a, mask);
    return map_lengths(&a);
}

/* Each head's past keys to the front of its part of the cache; the kernel appends the new ones. */
static void put_past(const npy_array *past, npy_array *present) {
    const npy_header *const h = &present->header;
    const size_t row = (size_t)h->shape[3] * npy_type_bytes(h->type);
    const size_t whole_part = (size_t)h->shape[2] * row, past_part = (size_t)past->header.shape[2] * row;
    for (size_t head = 0; head < (size_t)(h->shape[0] * h->shape[1]); head++)
        memcpy((char *)present->data + head * whole_part, (const char *)past->data + head * past_part, past_part);
}

void conform_attention_prepare(conform_call *call) {
    const npy_array *const in = call->c->inputs;
    if (!in[ATTENTION_PAST_KEY].data) return;
    put_past(&in[ATTENTION_PAST_KEY], &call->outputs[ATTENTION_PRESENT_KEY]);
    put_past(&in[ATTENTION_PAST_VALUE], &call->outputs[ATTENTION_PRESENT_VALUE]);
}
