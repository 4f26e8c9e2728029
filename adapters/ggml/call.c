/* What a mask says chooses the class of the kernel (class_of), and becomes arguments (bind_mask). Everything else of
 * the node is translated one to one: ggml's strides in bytes become strides in elements or blocks. */
#include "call.h"

#include "rows.h"

static kernel_class class_of(const ggml_call *c) {
    const ggml_node *const n = c->node;
    const bool has_slopes = n->max_bias > 0 && c->rows.has_bias;
    if (c->alibi) return c->alibi == MASK_CAUSAL_ALIBI ? KERNEL_ALIBI : KERNEL_WHOLE_ALIBI;
    if (has_slopes) return c->rows.class == MASK_LISTS ? KERNEL_LISTS_HEADS_BIAS : KERNEL_SLOPES;
    switch (c->rows.class) {
    case MASK_EMPTY:
    case MASK_NONE: return n->rows == 1 ? KERNEL_ONE : KERNEL_PLAIN;
    case MASK_CAUSAL: return KERNEL_CAUSAL;
    case MASK_WINDOW: return KERNEL_WINDOW;
    case MASK_RANGES: return KERNEL_RANGES;
    case MASK_HOLES: return KERNEL_HOLES;
    case MASK_LISTS: return c->rows.has_bias ? KERNEL_LISTS_BIAS : KERNEL_LISTS;
    case MASK_GROUPS: return c->rows.groups == n->rows ? KERNEL_PAGES : KERNEL_GROUPS;
    case MASK_DENSE: break;
    }
    return n->mask->ne[2] == 1 ? KERNEL_BIAS : KERNEL_HEADS_BIAS;
}

/* Whether V is the first columns of K, as in multi-head latent attention. */
static bool is_v_in_k(const ggml_node *n) {
    const ggml_tensor *const k = n->k, *const v = n->v;
    return k->data == v->data && n->k_cache == n->v_cache && n->dim_v <= n->dim && k->nb[1] == v->nb[1] &&
           k->nb[2] == v->nb[2] && k->nb[3] == v->nb[3];
}

void call_kind(const ggml_call *c, ggml_kind *kind) {
    const ggml_node *const n = c->node;
    const kernel_class class = class_of(c);
    *kind = (ggml_kind){
        .dim = (int32_t)n->dim,
        .dim_v = (int32_t)n->dim_v,
        .group = (int32_t)(n->heads / n->kv_heads),
        .heads = class == KERNEL_SLOPES ? (int32_t)n->heads : 0,
        .window = (int32_t)(class == KERNEL_WINDOW   ? c->rows.longest
                            : class == KERNEL_GROUPS ? c->rows.window
                                                     : 0),
        .soft_cap = n->soft_cap,
        .class = (uint8_t)class,
        .k_cache = (uint8_t)cache_formats[n->k_cache].becomes,
        .v_cache = (uint8_t)cache_formats[n->v_cache].becomes,
        .has_sinks = n->sinks != NULL,
        .v_in_k = is_v_in_k(n),
        .has_lens = c->lens != NULL,
    };
}

/* ---- Arguments ---- */

typedef struct place {
    void *data;
    int64_t strides[4]; /* [streams, KV heads, keys, columns] */
} place;

/* K or V of the call's first stream, from its first visible key on. */
static place place_of(const ggml_call *c, const ggml_tensor *t, ggml_cache cache, const void *converted) {
    const int64_t unit = cache_formats[cache_formats[cache].becomes].unit;
    int64_t row = (int64_t)t->nb[1], head = (int64_t)t->nb[2], stream = (int64_t)t->nb[3];
    const char *data = t->data;
    if (converted) {
        data = converted;
        row = (int64_t)rows_bytes(cache, t->ne[0]);
        head = row * t->ne[1], stream = head * t->ne[2];
    }
    data += c->first * stream + c->rows.begin * row;
    return (place){(void *)data, {stream / unit, head / unit, row / unit, 1}};
}

static void set_strides(int64_t *strides, int64_t batch, int64_t head, int64_t token) {
    strides[0] = batch, strides[1] = head, strides[2] = token, strides[3] = 1;
}

/* The lists of keys, and their biases if they have some. */
static void bind_lists(const ggml_call *c, attune_arguments *a) {
    const int64_t list = c->rows.longest;
    a->num_ids = list;
    a->kv_ids = c->table;
    a->kv_id_lens = c->rows.count;
    if (!c->list_bias) return;
    a->attn_bias.data = c->list_bias;
    set_strides(a->attn_bias.strides, 0, c->slopes ? c->node->rows * list : 0, list);
}

/* Each key is a page. With `is_ragged` each group of rows is a sequence, otherwise each row is one. */
static void bind_groups(const ggml_call *c, bool is_ragged, attune_arguments *a) {
    a->batch = c->rows.groups;
    a->seq_kv = a->max_pages = c->rows.listed;
    a->num_pages = c->rows.keys;
    a->kv_lens = c->rows.lens;
    a->block_table = c->table;
    set_strides(a->k.strides, a->k.strides[2], a->k.strides[1], a->k.strides[2]);
    set_strides(a->v.strides, a->v.strides[2], a->v.strides[1], a->v.strides[2]);
    if (is_ragged) {
        a->seq_q = ATTUNE_NOT_SET;
        a->total_q = c->node->rows;
        a->cu_seqlens_q = c->rows.starts;
    } else {
        a->seq_q = 1;
        set_strides(a->q.strides, a->q.strides[2], a->q.strides[1], a->q.strides[2]);
        set_strides(a->out.strides, a->out.strides[2], a->out.strides[1], a->out.strides[2]);
    }
}

static void bind_tensor(attune_arguments *a, int index, const void *data, int64_t outer) {
    a->tensors[index].data = data;
    a->tensors[index].strides[0] = outer;
    if (outer != 1) a->tensors[index].strides[1] = 1;
}

static void bind_mask(const ggml_call *c, const ggml_kind *kind, attune_arguments *a) {
    const uint16_t *const mask = c->mask ? c->mask + c->rows.begin : NULL;
    switch ((kernel_class)kind->class) {
    case KERNEL_RANGES:
        bind_tensor(a, 0, c->rows.lo, 1);
        bind_tensor(a, 1, c->rows.hi, 1);
        break;
    case KERNEL_HOLES:
        bind_tensor(a, 0, c->rows.lo, 1);
        bind_tensor(a, 1, c->rows.mid, 1);
        bind_tensor(a, 2, c->rows.next, 1);
        bind_tensor(a, 3, c->rows.hi, 1);
        break;
    case KERNEL_LISTS:
    case KERNEL_LISTS_BIAS:
    case KERNEL_LISTS_HEADS_BIAS: bind_lists(c, a); break;
    case KERNEL_PAGES: bind_groups(c, false, a); break;
    case KERNEL_GROUPS: bind_groups(c, true, a); break;
    case KERNEL_BIAS:
    case KERNEL_HEADS_BIAS:
        a->attn_bias.data = mask;
        set_strides(a->attn_bias.strides, 0,
                    kind->class == KERNEL_HEADS_BIAS ? (int64_t)(c->node->mask->nb[2] / sizeof *mask) : 0,
                    c->mask_stride);
        break;
    case KERNEL_ALIBI:
    case KERNEL_WHOLE_ALIBI: a->alibi_slopes = c->slopes; break;
    case KERNEL_SLOPES:
        bind_tensor(a, 0, c->slopes, 1);
        bind_tensor(a, 1, mask, c->mask_stride);
        break;
    default: break;
    }
}

void call_bind(const ggml_call *c, const ggml_kind *kind, attune_arguments *a) {
    const ggml_node *const n = c->node;
    const int64_t f32 = sizeof(float);
    const int64_t q[] = {(int64_t)n->q->nb[3] / f32, (int64_t)n->q->nb[2] / f32, (int64_t)n->q->nb[1] / f32};
    const int64_t out[] = {(int64_t)n->out->nb[3] / f32, (int64_t)n->out->nb[1] / f32, (int64_t)n->out->nb[2] / f32};
    const place k = place_of(c, n->k, n->k_cache, c->k_rows), v = place_of(c, n->v, n->v_cache, c->v_rows);
    a->batch = c->count, a->num_heads = n->heads, a->num_kv_heads = n->kv_heads;
    a->seq_q = n->rows, a->seq_kv = c->rows.keys;
    a->q.data = (const float *)n->q->data + c->first * q[0];
    a->out.data = (float *)n->out->data + c->first * out[0];
    set_strides(a->q.strides, q[0], q[1], q[2]);
    set_strides(a->out.strides, out[0], out[1], out[2]);
    a->k.data = k.data, a->v.data = kind->v_in_k ? k.data : v.data;
    set_strides(a->k.strides, k.strides[0], k.strides[1], k.strides[2]);
    set_strides(a->v.strides, v.strides[0], v.strides[1], v.strides[2]);
    a->softmax_scale = n->scale;
    a->sinks = n->sinks ? n->sinks->data : NULL;
    if (kind->has_lens) a->kv_lens = c->lens;
    bind_mask(c, kind, a);
}

/* ---- Rows as heads ---- */

void call_rows_kind(const ggml_call *c, const call_rows *r, ggml_kind *kind) {
    call_kind(c, kind);
    kind->class = KERNEL_ONE;
    kind->group = (int32_t)(r->end - r->begin);
    kind->has_lens = 0;
}

void call_rows_bind(const ggml_call *c, const call_rows *r, int64_t head, const ggml_kind *kind, attune_arguments *a) {
    const int64_t group = c->node->heads / c->node->kv_heads;
    ggml_call one = *c;
    one.first += r->stream;
    one.rows.begin += r->lo;
    call_bind(&one, kind, a);
    a->batch = c->node->kv_heads, a->num_heads = kind->group, a->num_kv_heads = 1;
    a->seq_q = 1, a->seq_kv = r->hi - r->lo;
    a->q.data = (const float *)a->q.data + r->begin * a->q.strides[2] + head * a->q.strides[1];
    a->out.data = (float *)a->out.data + r->begin * a->out.strides[2] + head * a->out.strides[1];
    set_strides(a->q.strides, group * a->q.strides[1], a->q.strides[2], a->q.strides[2]);
    set_strides(a->out.strides, group * a->out.strides[1], a->out.strides[2], a->out.strides[2]);
    set_strides(a->k.strides, a->k.strides[1], a->k.strides[1], a->k.strides[2]);
    set_strides(a->v.strides, a->v.strides[1], a->v.strides[1], a->v.strides[2]);
}
