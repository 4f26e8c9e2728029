/* com.microsoft MultiHeadAttention. ONNX Runtime's words and attune's:
 *     key_padding_mask    kv_lens where padding is on the right, otherwise attn_mask
 *     attention_bias      attn_bias
 *     unidirectional      is_causal; positions begin after the past
 *     bias                of the projections before: added to query, key and value here */
#include "call.h"
#include "fpenv.h"

#include <string.h>

enum { QUERY, KEY, VALUE, BIAS, KEY_PADDING_MASK, ATTENTION_BIAS, PAST_KEY, PAST_VALUE, NUM_INPUTS };
static const char *const names[NUM_INPUTS] = {"query",          "key",      "value",     "bias", "key_padding_mask",
                                              "attention_bias", "past_key", "past_value"};

typedef struct multi_head {
    call *c;
    tensor in[NUM_INPUTS];
    int64_t num_heads, past;
} multi_head;

/* ---- Inputs ---- */

static bool take_inputs(multi_head *m) {
    for (size_t i = 0; i < NUM_INPUTS; i++) {
        if (!call_input(m->c, i, names[i], i != QUERY, &m->in[i])) return false;
        if (i != KEY_PADDING_MASK && m->in[i].is_given && m->in[i].type != m->in[QUERY].type)
            return call_fail(m->c, "%s must have the type of query", names[i]);
    }
    return common_is_float(m->in[QUERY].dtype) || call_fail(m->c, "query must be float, float16 or bfloat16");
}

/* Keys or values: [batch, keys, heads * columns], or [batch, heads, keys, columns]. */
static bool view_keys(multi_head *m, int input, int64_t columns, heads *view) {
    const tensor *const t = &m->in[input];
    const int64_t batch = m->in[QUERY].dims[0], heads_ = m->num_heads;
    if (t->rank == 4) {
        if (!call_expect(m->c, names[input], t, 4, (int64_t[]){batch, heads_, -1, columns})) return false;
        *view = call_separate(t->data, t->dtype, batch, heads_, t->dims[2], t->dims[3]);
        return true;
    }
    if (!call_expect(m->c, names[input], t, 3, (int64_t[]){batch, -1, columns < 0 ? -1 : columns * heads_}))
        return false;
    if (t->dims[2] % heads_)
        return call_fail(m->c, "%s has %lld columns, which %lld heads do not divide", names[input],
                         (long long)t->dims[2], (long long)heads_);
    *view = call_packed(t, heads_);
    return true;
}

static bool view_inputs(multi_head *m) {
    call *const c = m->c;
    const tensor *const query = &m->in[QUERY];
    if (query->rank == 5 || m->in[KEY].rank == 5 || !m->in[KEY].is_given || !m->in[VALUE].is_given) {
        c->code = ORT_NOT_IMPLEMENTED;
        return call_fail(c, "queries, keys and values that are packed into one input are not supported");
    }
    if (!call_expect(c, "query", query, 3, (int64_t[]){-1, -1, -1})) return false;
    if (query->dims[2] % m->num_heads)
        return call_fail(c, "query has %lld columns, which %lld heads do not divide", (long long)query->dims[2],
                         (long long)m->num_heads);
    if (m->in[KEY].rank != m->in[VALUE].rank)
        return call_fail(c, "key has %d dims and value %d; both must have 3 or 4", m->in[KEY].rank, m->in[VALUE].rank);
    c->q = call_packed(query, m->num_heads);
    if (!view_keys(m, KEY, c->q.dims[3], &c->k) || !view_keys(m, VALUE, -1, &c->v)) return false;
    return c->v.dims[2] == c->k.dims[2] ||
           call_fail(c, "key and value have %lld and %lld rows", (long long)c->k.dims[2], (long long)c->v.dims[2]);
}

static bool check_past(multi_head *m) {
    call *const c = m->c;
    const tensor *const key = &m->in[PAST_KEY], *const value = &m->in[PAST_VALUE];
    if (key->is_given != value->is_given) return call_fail(c, "past_key and past_value must both be there, or neither");
    c->keys = c->k.dims[2];
    if (!key->is_given) return true;
    if (m->in[KEY].rank == 4) return call_fail(c, "there is a past, so key must have 3 dims; it has 4");
    const int64_t batch = c->q.dims[0];
    if (!call_expect(c, "past_key", key, 4, (int64_t[]){batch, m->num_heads, -1, c->q.dims[3]}) ||
        !call_expect(c, "past_value", value, 4, (int64_t[]){batch, m->num_heads, key->dims[2], c->v.dims[3]}))
        return false;
    m->past = key->dims[2];
    c->keys += m->past;
    return true;
}

/* With more new keys than queries, ONNX Runtime hides keys from all rows except the last one, which attends to all
 * keys. */
static bool check_causality(multi_head *m) {
    call *const c = m->c;
    if (!c->kind.is_causal || c->k.dims[2] <= c->q.dims[2]) return true;
    c->kind.is_causal = 0;
    if (c->q.dims[2] <= 1) return true;
    c->code = ORT_NOT_IMPLEMENTED;
    return call_fail(c,
                     "unidirectional is 1 with %lld queries and %lld new keys; more keys than queries need one query",
                     (long long)c->q.dims[2], (long long)c->k.dims[2]);
}

/* ---- The bias of the projections ---- */

typedef struct biased {
    const float *from, *bias;
    float *to;
    int64_t columns;
} biased;

static void add_bias(void *argument, int64_t begin, int64_t end, uint32_t worker) {
    AT_DEFAULT_FPENV;
    const biased *const b = argument;
    (void)worker;
    for (int64_t row = begin; row < end; row++)
        for (int64_t i = 0; i < b->columns; i++)
            b->to[row * b->columns + i] = b->from[row * b->columns + i] + b->bias[i];
}

static bool bias_input(multi_head *m, int64_t first, tensor *t) {
    const int64_t rows = t->dims[0] * t->dims[1], bytes = rows * t->dims[2] * (int64_t)sizeof(float);
    biased b = {.from = t->data,
                .bias = (const float *)m->in[BIAS].data + first,
                .to = call_scratch(m->c, (size_t)bytes),
                .columns = t->dims[2]};
    if (!b.to) return false;
    call_parallel(m->c, add_bias, &b, rows, bytes);
    t->data = b.to;
    return true;
}

/* Keys of 4 dims come from an earlier node, which has added their bias. */
static bool add_biases(multi_head *m) {
    call *const c = m->c;
    tensor *const in = m->in;
    if (!in[BIAS].is_given) return true;
    const int64_t q = in[QUERY].dims[2], k = c->k.dims[1] * c->k.dims[3], v = c->v.dims[1] * c->v.dims[3];
    if (in[BIAS].dtype != ATTUNE_F32) return call_fail(c, "bias is supported for float only");
    if (!call_expect(c, "bias", &in[BIAS], 1, (int64_t[]){q + k + v}) || !bias_input(m, 0, &in[QUERY])) return false;
    if (in[KEY].rank == 3 && (!bias_input(m, q, &in[KEY]) || !bias_input(m, q + k, &in[VALUE]))) return false;
    c->q.data = in[QUERY].data, c->k.data = in[KEY].data, c->v.data = in[VALUE].data;
    return true;
}

/* ---- The whole ---- */

static bool make_outputs(multi_head *m) {
    call *const c = m->c;
    const int64_t batch = c->q.dims[0], dims = c->q.dims[3], dims_v = c->v.dims[3];
    const tensor out = {.dtype = c->q.dtype, .dims = {batch, c->q.dims[2], m->num_heads * dims_v}};
    void *data, *key, *value;
    if (!call_output(c, 0, 3, out.dims, &data) ||
        !call_output(c, 1, 4, (int64_t[]){batch, m->num_heads, c->keys, dims}, &key) ||
        !call_output(c, 2, 4, (int64_t[]){batch, m->num_heads, c->keys, dims_v}, &value))
        return false;
    c->out = call_packed(&out, m->num_heads);
    c->out.data = data;
    if (!key && !value && !m->past) return true;
    return call_gather(c, &m->in[PAST_KEY], key, &c->k) && call_gather(c, &m->in[PAST_VALUE], value, &c->v);
}

bool call_multi_head(call *c) {
    multi_head m = {.c = c, .num_heads = c->n->spec.attributes.num_heads};
    if (!take_inputs(&m) || !view_inputs(&m) || !check_past(&m) || !check_causality(&m) || !add_biases(&m) ||
        !call_padding(c, names[KEY_PADDING_MASK], &m.in[KEY_PADDING_MASK]) || !call_set_positions(c, m.past))
        return false;
    if (m.in[ATTENTION_BIAS].is_given && !call_bias(c, "attention_bias", &m.in[ATTENTION_BIAS])) return false;
    return make_outputs(&m) && call_attend(c);
}
