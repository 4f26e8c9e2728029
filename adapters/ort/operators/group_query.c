/* com.microsoft GroupQueryAttention. ONNX Runtime's words and attune's:
 *     seqlens_k + 1              the keys of a sequence, the new ones among them
 *     past and present           k and v in place; where they are two buffers, the past is copied first
 *     local_window_size w        window_left = w - 1
 *     head_sink, smooth_softmax  sinks; smooth_softmax alone is a sink whose logit is 0
 *     q_norm_weight, k_norm_weight  q_norm and k_norm
 * A quantised cache is written here, in ONNX Runtime's order of columns (quantised_cache.h), and only read by attune.
 */
#include "call.h"
#include "quantised_cache.h"

#include <string.h>

enum {
    QUERY,
    KEY,
    VALUE,
    PAST_KEY,
    PAST_VALUE,
    SEQLENS_K,
    TOTAL_LENGTH,
    COS_CACHE,
    SIN_CACHE,
    POSITION_IDS,
    ATTENTION_BIAS,
    HEAD_SINK,
    K_SCALE,
    V_SCALE,
    Q_NORM,
    K_NORM,
    NUM_INPUTS
};
static const char *const names[NUM_INPUTS] = {"query",
                                              "key",
                                              "value",
                                              "past_key",
                                              "past_value",
                                              "seqlens_k",
                                              "total_sequence_length",
                                              "cos_cache",
                                              "sin_cache",
                                              "position_ids",
                                              "attention_bias",
                                              "head_sink",
                                              "k_scale",
                                              "v_scale",
                                              "q_norm_weight",
                                              "k_norm_weight"};

typedef struct group_query {
    call *c;
    tensor in[NUM_INPUTS];
    int64_t batch, rows, num_heads, kv_heads, head_dim;
    int64_t total, room;    /* the most keys of a sequence, and the capacity of present */
    const int32_t *lengths; /* lengths of the sequences if they differ; otherwise NULL */
} group_query;

static bool take_inputs(group_query *g) {
    for (size_t i = 0; i < NUM_INPUTS; i++) {
        const bool is_optional = i != QUERY && i != SEQLENS_K && i != TOTAL_LENGTH;
        if (!call_input(g->c, i, names[i], is_optional, &g->in[i])) return false;
    }
    return true;
}

static bool same_type(const group_query *g, int input) {
    return !g->in[input].is_given || g->in[input].type == g->in[QUERY].type ||
           call_fail(g->c, "%s must have the type of query", names[input]);
}

static heads part(const tensor *packed, int64_t first, int64_t num_heads, int64_t head_dim) {
    const int64_t row = packed->dims[2];
    const size_t offset = (size_t)(first * head_dim) * adapter_type_bytes(packed->dtype);
    return (heads){.data = (char *)packed->data + offset,
                   .dtype = packed->dtype,
                   .dims = {packed->dims[0], num_heads, packed->dims[1], head_dim},
                   .strides = {packed->dims[1] * row, head_dim, row, 1}};
}

/* q, k and v, separate or packed in the columns of query. */
static bool view_inputs(group_query *g) {
    call *const c = g->c;
    const tensor *const query = &g->in[QUERY], *const key = &g->in[KEY], *const value = &g->in[VALUE];
    if (!call_expect(c, "query", query, 3, (int64_t[]){-1, -1, -1})) return false;
    if (!common_is_float(query->dtype)) return call_fail(c, "query must be float, float16 or bfloat16");
    if (key->is_given != value->is_given) return call_fail(c, "key and value must both be there, or neither");
    g->batch = query->dims[0];
    g->rows = query->dims[1];
    const int64_t all = key->is_given ? g->num_heads : g->num_heads + 2 * g->kv_heads;
    if (query->dims[2] % all || !query->dims[2])
        return call_fail(c, "query has %lld columns, which %lld heads do not divide", (long long)query->dims[2],
                         (long long)all);
    g->head_dim = query->dims[2] / all;
    const int64_t kv[3] = {g->batch, g->rows, g->kv_heads * g->head_dim};
    if (key->is_given && (!call_expect(c, "key", key, 3, kv) || !call_expect(c, "value", value, 3, kv) ||
                          !same_type(g, KEY) || !same_type(g, VALUE)))
        return false;
    c->q = part(query, 0, g->num_heads, g->head_dim);
    c->k = key->is_given ? call_packed(key, g->kv_heads) : part(query, g->num_heads, g->kv_heads, g->head_dim);
    c->v = key->is_given ? call_packed(value, g->kv_heads)
                         : part(query, g->num_heads + g->kv_heads, g->kv_heads, g->head_dim);
    return true;
}

static int64_t cache_bits(const group_query *g) { return g->c->n->spec.attributes.cache_bits; }

/* Elements of a row of the caches; bytes if they are quantised. */
static int64_t cache_columns(const group_query *g) { return cache_bits(g) == 4 ? g->head_dim / 2 : g->head_dim; }

static bool has_cache_type(const group_query *g, int input) {
    const int type = cache_bits(g) == 4 ? ORT_UINT8 : ORT_INT8;
    if (!cache_bits(g)) return same_type(g, input);
    return g->in[input].type == type || call_fail(g->c, "%s must be %s where kv_cache_bit_width is %lld", names[input],
                                                  type == ORT_INT8 ? "int8" : "uint8", (long long)cache_bits(g));
}

static bool check_past(group_query *g) {
    const tensor *const key = &g->in[PAST_KEY], *const value = &g->in[PAST_VALUE];
    const int64_t dims[4] = {g->batch, g->kv_heads, key->is_given ? key->dims[2] : -1, cache_columns(g)};
    if (key->is_given != value->is_given)
        return call_fail(g->c, "past_key and past_value must both be there, or neither");
    return !key->is_given ||
           (has_cache_type(g, PAST_KEY) && has_cache_type(g, PAST_VALUE) &&
            call_expect(g->c, "past_key", key, 4, dims) && call_expect(g->c, "past_value", value, 4, dims));
}

/* Without causality, all rows of a prompt would attend to the padding after it, so a mask hides it. */
static bool hide_padding(group_query *g, const int32_t *lengths) {
    call *const c = g->c;
    uint8_t *const shown = call_scratch(c, (size_t)(g->batch * g->rows));
    if (!shown) return false;
    for (int64_t i = 0; i < g->batch * g->rows; i++) shown[i] = i % g->rows < lengths[i / g->rows];
    c->mask = (call_mask){.data = shown, .dtype = ATTUNE_BOOL, .strides = {g->rows, 0, 0, 1}, .columns = g->rows};
    return true;
}

/* A prompt begins at position 0, even with padding: rows beyond a sequence's length attend to the padding before them,
 * as in ONNX Runtime. Otherwise sequences end at seqlens_k. */
static bool find_lengths(group_query *g) {
    call *const c = g->c;
    const tensor *const total = &g->in[TOTAL_LENGTH], *const lens = &g->in[SEQLENS_K];
    int64_t count = 1, longest = g->rows;
    for (int i = 0; i < total->rank; i++) count *= total->dims[i];
    if (count != 1 || total->type != ORT_INT32) return call_fail(c, "total_sequence_length must be one int32");
    for (int i = count = 1; i <= lens->rank; i++) count *= lens->dims[i - 1];
    if (count != g->batch || lens->type != ORT_INT32)
        return call_fail(c, "seqlens_k must be int32 of [%lld]", (long long)g->batch);
    g->total = *(const int32_t *)total->data;
    if (g->total < g->rows)
        return call_fail(c, "total_sequence_length is %lld; there are %lld new keys", (long long)g->total,
                         (long long)g->rows);
    const int64_t past = g->in[PAST_KEY].is_given ? g->in[PAST_KEY].dims[2] : 0;
    if (g->total > past + g->rows)
        return call_fail(c, "total_sequence_length is %lld; there are %lld keys in the past and %lld new ones",
                         (long long)g->total, (long long)past, (long long)g->rows);
    g->room = g->total > past ? g->total : past;
    c->keys = g->total;
    const bool is_causal = c->n->spec.attributes.is_causal;
    if ((g->rows == g->total && is_causal) || !g->batch) return true;
    const bool is_prompt = g->rows == g->total;
    const int32_t *const last = call_indices(c, "seqlens_k", lens, g->batch, is_prompt ? 0 : g->rows - 1, g->total - 1);
    if (!last) return false;
    int32_t *const lengths = (int32_t *)(uintptr_t)last; /* its own scratch */
    bool differ = false;
    for (int64_t b = 0; b < g->batch; b++) {
        lengths[b]++;
        if (lengths[b] > longest) longest = lengths[b];
        differ |= lengths[b] != lengths[0];
    }
    if (is_prompt) return !(differ || lengths[0] != g->total) || hide_padding(g, lengths);
    /* A bias has total_sequence_length columns. */
    if (!g->in[ATTENTION_BIAS].is_given) c->keys = longest;
    if (differ || c->keys != lengths[0]) g->lengths = c->kv_lens = lengths;
    return true;
}

/* A first prompt has only the position of its first token; other calls have a position for each new key. */
static bool find_positions(group_query *g) {
    call *const c = g->c;
    const tensor *const ids = &g->in[POSITION_IDS];
    const int64_t most = c->rotary_positions - 1, count = g->batch * g->rows;
    if (!ids->is_given || !count) return true;
    if (ids->type != ORT_INT64 || ids->rank != 2 || ids->dims[0] != g->batch || ids->dims[1] < g->rows)
        return call_fail(c, "position_ids must be int64 of [%lld, %lld]", (long long)g->batch, (long long)g->rows);
    int32_t *const positions = call_scratch(c, (size_t)count * sizeof *positions);
    if (!positions) return false;
    const int64_t *const given = ids->data;
    for (int64_t i = 0; i < count; i++) {
        const int64_t row = i % g->rows;
        const int64_t id = g->rows == g->total ? given[0] + row : given[i];
        if (id < 0 || id > most)
            return call_fail(c, "a position is %lld; cos_cache has rows from 0 to %lld", (long long)id,
                             (long long)most);
        positions[i] = (int32_t)id;
    }
    c->position_ids = positions;
    return true;
}

static bool set_rotary(group_query *g) {
    call *const c = g->c;
    const tensor *const cos = &g->in[COS_CACHE], *const sin = &g->in[SIN_CACHE];
    if (!c->n->spec.attributes.do_rotary) return true;
    if (!cos->is_given || !sin->is_given) return call_fail(c, "do_rotary is 1, but cos_cache or sin_cache is missing");
    if (!same_type(g, COS_CACHE) || !same_type(g, SIN_CACHE) ||
        !call_expect(c, "cos_cache", cos, 2, (int64_t[]){-1, -1}) || !call_expect(c, "sin_cache", sin, 2, cos->dims))
        return false;
    if (cos->dims[1] < 1 || cos->dims[1] > g->head_dim / 2 || cos->dims[0] < g->total)
        return call_fail(c, "cos_cache is of shape [%lld, %lld]; heads have %lld columns, and there are %lld keys",
                         (long long)cos->dims[0], (long long)cos->dims[1], (long long)g->head_dim, (long long)g->total);
    c->kind.rotary_dim = (int32_t)(2 * cos->dims[1]);
    c->kind.rotary_interleaved = c->n->spec.attributes.rotary_interleaved != 0;
    c->cos = cos->data, c->sin = sin->data;
    c->rotary_positions = cos->dims[0];
    return find_positions(g);
}

static bool set_sinks(group_query *g) {
    call *const c = g->c;
    const tensor *const sink = &g->in[HEAD_SINK];
    if (sink->is_given)
        return call_expect(c, "head_sink", sink, 1, (int64_t[]){g->num_heads}) && same_type(g, HEAD_SINK) &&
               (c->sinks = call_floats(c, sink, g->num_heads));
    if (c->n->spec.attributes.smooth_softmax != 1) return true;
    const size_t bytes = (size_t)g->num_heads * sizeof(float);
    void *const zeros = call_scratch(c, bytes);
    c->sinks = zeros ? memset(zeros, 0, bytes) : NULL;
    return zeros;
}

/* If the model does not use present, the appended keys are not needed afterwards, but attune still needs memory for
 * them. */
static bool make_cache(group_query *g, size_t output, heads *cache) {
    const int64_t dims[4] = {g->batch, g->kv_heads, g->room, cache_columns(g)};
    const attune_dtype dtype = cache_bits(g) ? ATTUNE_I8 : g->in[QUERY].dtype;
    void *data;
    if (!call_output(g->c, output, 4, dims, &data)) return false;
    const size_t bytes = (size_t)(dims[0] * dims[1] * dims[2] * dims[3]) * adapter_type_bytes(dtype);
    if (!data && !(data = call_scratch(g->c, bytes))) return false;
    *cache = call_separate(data, dtype, dims[0], dims[1], dims[2], dims[3]);
    return true;
}

static bool make_outputs(group_query *g) {
    const tensor out = {.dtype = g->in[QUERY].dtype, .dims = {g->batch, g->rows, g->num_heads * g->head_dim}};
    void *data;
    if (!call_output(g->c, 0, 3, out.dims, &data) || !make_cache(g, 1, &g->c->k_cache) ||
        !make_cache(g, 2, &g->c->v_cache))
        return false;
    g->c->out = call_packed(&out, g->num_heads);
    g->c->out.data = data;
    return true;
}

/* The kernel normalises, unless keys are quantised here. */
static bool set_norms(group_query *g) {
    call *const c = g->c;
    const int64_t dims[1] = {g->head_dim};
    if (!g->in[Q_NORM].is_given && !g->in[K_NORM].is_given) return true;
    for (int i = Q_NORM; i <= K_NORM; i++)
        if (!g->in[i].is_given || !same_type(g, i) || !call_expect(c, names[i], &g->in[i], 1, dims))
            return call_fail(c, "%s is missing", names[i]);
    c->kind.qk_norm_eps = (double)c->n->spec.attributes.k_norm_eps;
    c->q_norm = g->in[Q_NORM].data, c->k_norm = g->in[K_NORM].data;
    return true;
}

static bool attend_quantised(group_query *g) {
    const node_attributes *const a = &g->c->n->spec.attributes;
    quantised_cache cache = {.c = g->c,
                             .bits = (int)a->cache_bits,
                             .lengths = g->lengths,
                             .k_scale = g->in[K_SCALE],
                             .v_scale = g->in[V_SCALE],
                             .q_norm_eps = a->q_norm_eps,
                             .k_norm_eps = a->k_norm_eps};
    if (!quantised_append(&cache) || !call_attend(g->c)) return false;
    quantised_finish(&cache);
    return true;
}

bool call_group_query(call *c) {
    const node_attributes *const a = &c->n->spec.attributes;
    group_query g = {.c = c, .num_heads = a->num_heads, .kv_heads = a->kv_num_heads};
    if (!take_inputs(&g) || !view_inputs(&g) || !check_past(&g) || !find_lengths(&g)) return false;
    c->kind.is_causal = a->is_causal != 0;
    c->kind.bottom_right = 1; /* the positions of queries for rotary embedding, also without causality */
    if (!set_rotary(&g) || !set_sinks(&g) || !set_norms(&g)) return false;
    if (g.in[ATTENTION_BIAS].is_given &&
        (!same_type(&g, ATTENTION_BIAS) || !call_bias(c, "attention_bias", &g.in[ATTENTION_BIAS])))
        return false;
    if (!make_outputs(&g)) return false;
    const bool is_clean = g.room > c->keys || g.lengths;
    call_copy_past(c, &g.in[PAST_KEY], &c->k_cache, g.lengths, g.rows, is_clean);
    call_copy_past(c, &g.in[PAST_VALUE], &c->v_cache, g.lengths, g.rows, is_clean);
    return a->cache_bits ? attend_quantised(&g) : call_attend(c);
}
