/* ai.onnx Attention, opset 23 to 25. ONNX's words and attune's:
 *     scale, softcap                    softmax_scale, logits_soft_cap
 *     qk_matmul_output_mode 0 to 3      weights_mode scaled, capped, masked, softmax
 *     nonpad_kv_seqlen                  kv_lens
 *     a query's position                i + past length, or i + nonpad_kv_seqlen - queries (bottom_right), or i
 *     attn_mask of bool, of a number    attn_mask, attn_bias; both may end before the last key */
#include "call.h"

#include <string.h>

enum { Q, K, V, ATTN_MASK, PAST_KEY, PAST_VALUE, NONPAD_KV_SEQLEN, NUM_INPUTS };
static const char *const names[NUM_INPUTS] = {"Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"};

typedef struct attention {
    call *c;
    tensor in[NUM_INPUTS];
    int64_t past;
} attention;

static bool take_inputs(attention *a) {
    for (size_t i = 0; i < NUM_INPUTS; i++)
        if (!call_input(a->c, i, names[i], i > V, &a->in[i])) return false;
    return true;
}

static bool view(const attention *a, int input, int64_t num_heads, heads *view) {
    const tensor *const t = &a->in[input];
    if (!common_is_float(t->dtype))
        return call_fail(a->c, "%s must be float, float16, bfloat16 or double", names[input]);
    if (t->rank == 4) {
        *view = call_separate(t->data, t->dtype, t->dims[0], t->dims[1], t->dims[2], t->dims[3]);
        return !num_heads || num_heads == t->dims[1] ||
               call_fail(a->c, "%s has %lld heads; the node says %lld", names[input], (long long)t->dims[1],
                         (long long)num_heads);
    }
    if (t->rank != 3) return call_fail(a->c, "%s has %d dims; it must have 3 or 4", names[input], t->rank);
    if (!num_heads) return call_fail(a->c, "%s has 3 dims, and no attribute gives its number of heads", names[input]);
    if (t->dims[2] % num_heads)
        return call_fail(a->c, "%s has %lld columns, which %lld heads do not divide", names[input],
                         (long long)t->dims[2], (long long)num_heads);
    *view = call_packed(t, num_heads);
    return true;
}

static bool view_inputs(attention *a) {
    call *const c = a->c;
    const node_attributes *const said = &c->n->spec.attributes;
    if (!view(a, Q, said->num_heads, &c->q) || !view(a, K, said->kv_num_heads, &c->k) ||
        !view(a, V, said->kv_num_heads, &c->v))
        return false;
    if (a->in[K].type != a->in[Q].type) return call_fail(c, "K must have the type of Q");
    if (c->k.dims[0] != c->q.dims[0] || c->v.dims[0] != c->q.dims[0] || c->k.dims[3] != c->q.dims[3] ||
        c->v.dims[1] != c->k.dims[1] || c->v.dims[2] != c->k.dims[2])
        return call_fail(c,
                         "batch, heads, rows and columns of Q, K and V do not fit: [%lld, %lld, %lld, %lld], "
                         "[%lld, %lld, %lld, %lld], [%lld, %lld, %lld, %lld]",
                         (long long)c->q.dims[0], (long long)c->q.dims[1], (long long)c->q.dims[2],
                         (long long)c->q.dims[3], (long long)c->k.dims[0], (long long)c->k.dims[1],
                         (long long)c->k.dims[2], (long long)c->k.dims[3], (long long)c->v.dims[0],
                         (long long)c->v.dims[1], (long long)c->v.dims[2], (long long)c->v.dims[3]);
    return true;
}

static bool check_past(attention *a) {
    call *const c = a->c;
    const tensor *const key = &a->in[PAST_KEY], *const value = &a->in[PAST_VALUE];
    const int64_t batch = c->k.dims[0], heads_ = c->k.dims[1];
    c->keys = c->k.dims[2];
    if (key->is_given != value->is_given) return call_fail(c, "past_key and past_value must both be there, or neither");
    if (!key->is_given) return true;
    if (key->type != a->in[K].type || value->type != a->in[V].type)
        return call_fail(c, "past_key and past_value must have the types of K and V");
    if (a->in[NONPAD_KV_SEQLEN].is_given) return call_fail(c, "nonpad_kv_seqlen does not go with past_key");
    a->past = key->dims[2];
    c->keys += a->past;
    return call_expect(c, "past_key", key, 4, (int64_t[]){batch, heads_, -1, c->k.dims[3]}) &&
           call_expect(c, "past_value", value, 4, (int64_t[]){batch, heads_, a->past, c->v.dims[3]});
}

static bool set_lengths(attention *a) {
    call *const c = a->c;
    const tensor *const lengths = &a->in[NONPAD_KV_SEQLEN];
    if (!lengths->is_given) return call_set_positions(c, a->past);
    if (!call_expect(c, "nonpad_kv_seqlen", lengths, 1, c->q.dims)) return false;
    c->kind.bottom_right = 1;
    return (c->kv_lens = call_indices(c, "nonpad_kv_seqlen", lengths, c->q.dims[0], 0, c->keys));
}

/* ---- The mask ---- */

/* Its only column, and a second one that hides: with more keys, a mask of one column means "hide the other keys" in
 * ONNX, and "the same for all keys" in attune. */
static const void *two_columns(call *c, const tensor *mask, int64_t rows) {
    const size_t bytes = adapter_type_bytes(mask->dtype);
    static const float f32 = -__builtin_inff();
    static const double f64 = -__builtin_inf();
    static const uint16_t f16 = 0xfc00, bf16 = 0xff80;
    static const uint8_t no = 0;
    const void *const hidden = mask->dtype == ATTUNE_F32    ? (const void *)&f32
                               : mask->dtype == ATTUNE_F64  ? (const void *)&f64
                               : mask->dtype == ATTUNE_F16  ? (const void *)&f16
                               : mask->dtype == ATTUNE_BF16 ? (const void *)&bf16
                                                            : (const void *)&no;
    char *const wide = call_scratch(c, (size_t)rows * 2 * bytes);
    for (int64_t i = 0; wide && i < rows; i++) {
        memcpy(wide + (size_t)(2 * i) * bytes, (const char *)mask->data + (size_t)i * bytes, bytes);
        memcpy(wide + (size_t)(2 * i + 1) * bytes, hidden, bytes);
    }
    return wide;
}

/* Its dims, from the right, must be 1 or the full size. The last one may also be less than the number of keys; the keys
 * beyond it are hidden. */
static bool set_mask(attention *a) {
    call *const c = a->c;
    const tensor *const t = &a->in[ATTN_MASK];
    const int64_t full[4] = {c->q.dims[0], c->q.dims[1], c->q.dims[2], c->keys};
    if (!t->is_given) return true;
    if (t->dtype != ATTUNE_BOOL && !common_is_float(t->dtype))
        return call_fail(c, "attn_mask must be bool or of a float type");
    bool fits = t->rank >= 1 && t->rank <= 4 && t->dims[t->rank - 1] <= c->keys;
    for (int i = 0; fits && i + 1 < t->rank; i++) fits = t->dims[i] == 1 || t->dims[i] == full[4 - t->rank + i];
    if (!fits)
        return call_fail(c, "attn_mask does not broadcast to [%lld, %lld, %lld, %lld]", (long long)full[0],
                         (long long)full[1], (long long)full[2], (long long)full[3]);
    call_mask mask = {.data = t->data, .dtype = t->dtype, .columns = t->dims[t->rank - 1]};
    int64_t rows = 1;
    for (int i = 0; i + 1 < t->rank; i++) rows *= t->dims[i];
    if (mask.columns == 1 && c->keys > 1) {
        mask.columns = 2;
        if (!(mask.data = two_columns(c, t, rows))) return false;
    }
    int64_t stride = mask.columns;
    for (int i = t->rank - 2; i >= 0; i--) {
        mask.strides[4 - t->rank + i] = t->dims[i] == 1 ? 0 : stride;
        stride *= t->dims[i];
    }
    mask.strides[3] = 1;
    *(t->dtype == ATTUNE_BOOL ? &c->mask : &c->bias) = mask;
    return true;
}

/* ---- The whole ---- */

static bool make_y(attention *a) {
    call *const c = a->c;
    const int64_t batch = c->q.dims[0], num_heads = c->q.dims[1], rows = c->q.dims[2], columns = c->v.dims[3];
    const tensor packed = {.dtype = c->q.dtype, .dims = {batch, rows, num_heads * columns}};
    void *data;
    if (a->in[Q].rank == 3) {
        if (!call_output(c, 0, 3, packed.dims, &data)) return false;
        c->out = call_packed(&packed, num_heads);
        c->out.data = data;
    } else {
        if (!call_output(c, 0, 4, (int64_t[]){batch, num_heads, rows, columns}, &data)) return false;
        c->out = call_separate(data, c->q.dtype, batch, num_heads, rows, columns);
    }
    return true;
}

static bool make_outputs(attention *a) {
    call *const c = a->c;
    const int64_t batch = c->k.dims[0], kv_heads = c->k.dims[1];
    void *key, *value;
    if (!make_y(a) || !call_output(c, 1, 4, (int64_t[]){batch, kv_heads, c->keys, c->k.dims[3]}, &key) ||
        !call_output(c, 2, 4, (int64_t[]){batch, kv_heads, c->keys, c->v.dims[3]}, &value))
        return false;
    if (c->n->spec.wants_weights) {
        const int64_t dims[4] = {c->q.dims[0], c->q.dims[1], c->q.dims[2], c->keys};
        if (!call_output(c, 3, 4, dims, &c->weights)) return false;
        if (c->weights) c->kind.weights_mode = (uint8_t)(ATTUNE_WEIGHTS_SCALED + c->n->spec.attributes.weights_mode);
    }
    return (!(key || a->past) || call_gather(c, &a->in[PAST_KEY], key, &c->k)) &&
           (!(value || a->past) || call_gather(c, &a->in[PAST_VALUE], value, &c->v));
}

bool call_attention(call *c) {
    attention a = {.c = c};
    return take_inputs(&a) && view_inputs(&a) && check_past(&a) && set_lengths(&a) && set_mask(&a) &&
           make_outputs(&a) && call_attend(c);
}
