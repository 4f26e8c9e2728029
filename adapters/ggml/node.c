/* Each check of node_read returns NULL or a sentence, which becomes a line of the log. A node that passes all of them
 * is safe to compute: what a call of attune reads and writes lies within the node's tensors. */
#include "node.h"

#include <math.h>
#include <string.h>

const cache_format cache_formats[GGML_NUM_CACHES] = {
    [GGML_F32] = {"f32", 1, 4, 4, GGML_F32},
    [GGML_F16] = {"f16", 1, 2, 2, GGML_F16},
    [GGML_BF16] = {"bf16", 1, 2, 2, GGML_BF16},
    [GGML_Q8_0] = {"i8,#_scales=inline", 32, 34, 1, GGML_Q8_0},
    [GGML_Q4_0] = {"i4,#_scales=inline", 32, 18, 1, GGML_Q4_0},
    [GGML_Q4_1] = {"i4,#_scales=inline_min", 32, 20, 1, GGML_Q4_1},
    [GGML_Q5_0] = {NULL, 32, 22, 1, GGML_Q8_0},
    [GGML_Q5_1] = {NULL, 32, 24, 1, GGML_F32},
    [GGML_IQ4_NL] = {NULL, 32, 18, 1, GGML_Q8_0},
};

static bool has_stride(const ggml_tensor *t, size_t innermost, size_t unit) {
    return t->nb[0] == innermost && t->nb[1] % unit == 0 && t->nb[2] % unit == 0 && t->nb[3] % unit == 0;
}

/* Finds the type of K or V, and checks that its rows are contiguous. */
static const char *read_cache(const ggml_tensor *t, ggml_cache *cache) {
    int c = 0;
    while (c < GGML_NUM_CACHES && host.caches[c] != t->type) c++;
    if (c == GGML_NUM_CACHES) return "K or V is of a type that attune does not read";
    const cache_format *const f = &cache_formats[c];
    *cache = (ggml_cache)c;
    if (t->ne[0] % f->columns) return "a head of K or V is no multiple of the type's block";
    return has_stride(t, (size_t)f->bytes, (size_t)f->unit) ? NULL : "rows of K or V are not contiguous";
}

static const char *read_shapes(const ggml_tensor *q, const ggml_tensor *k, const ggml_tensor *v,
                               const ggml_tensor *out) {
    for (int d = 0; d < 4; d++)
        if (q->ne[d] < 1 || k->ne[d] < 1 || v->ne[d] < 1 || k->ne[d] > INT32_MAX || q->ne[d] > INT32_MAX)
            return "a tensor is empty or too large";
    if (k->ne[0] != q->ne[0] || v->ne[1] != k->ne[1] || v->ne[2] != k->ne[2] || k->ne[3] != q->ne[3] ||
        v->ne[3] != q->ne[3] || q->ne[2] % k->ne[2])
        return "shapes of q, K and V do not fit";
    if (out->ne[0] != v->ne[0] || out->ne[1] != q->ne[2] || out->ne[2] != q->ne[1] || out->ne[3] != q->ne[3])
        return "the shape of the result does not fit";
    return NULL;
}

static const char *read_mask(const ggml_node *n) {
    const ggml_tensor *const m = n->mask;
    if (!m) return n->max_bias > 0 ? "ALiBi without a mask" : NULL;
    if (m->type != host.caches[GGML_F16]) return "the mask is not f16";
    if (!has_stride(m, 2, 2)) return "rows of the mask are not contiguous";
    if (m->ne[0] != n->keys || m->ne[1] < n->rows || m->ne[3] < 1 || n->streams % m->ne[3])
        return "the shape of the mask does not fit";
    if (m->ne[2] != 1 && (m->ne[2] != n->heads || n->max_bias > 0)) return "the mask differs by heads";
    return NULL;
}

static const char *read_types(const ggml_tensor *op, ggml_node *n) {
    const int f32 = host.caches[GGML_F32];
    if (n->q->type != f32 || op->type != f32) return "q or the result is not f32";
    if (!has_stride(n->q, 4, 4) || !has_stride(op, 4, 4)) return "rows of q or of the result are not contiguous";
    if (n->sinks && (n->sinks->type != f32 || n->sinks->ne[0] != n->heads || n->sinks->nb[0] != 4))
        return "sinks are not f32 numbers, one for each head";
    const char *const reason = read_cache(n->k, &n->k_cache);
    return reason ? reason : read_cache(n->v, &n->v_cache);
}

const char *node_read(const ggml_tensor *op, ggml_node *n) {
    *n = (ggml_node){
        .q = op->src[0], .k = op->src[1], .v = op->src[2], .mask = op->src[3], .sinks = op->src[4], .out = op};
    if (!n->q || !n->k || !n->v) return "q, K or V is missing";
    for (int i = 5; i < GGML_ABI_SOURCES; i++)
        if (op->src[i]) return "the node has a source that attune does not know";
    const char *reason = read_shapes(n->q, n->k, n->v, op);
    if (reason) return reason;
    n->dim = n->q->ne[0], n->rows = n->q->ne[1], n->heads = n->q->ne[2], n->streams = n->q->ne[3];
    n->dim_v = n->v->ne[0], n->keys = n->k->ne[1], n->kv_heads = n->k->ne[2];
    memcpy(&n->scale, &op->op_params[0], sizeof n->scale);
    memcpy(&n->max_bias, &op->op_params[1], sizeof n->max_bias);
    memcpy(&n->soft_cap, &op->op_params[2], sizeof n->soft_cap);
    if (!(fabsf(n->scale) <= 1e30F) || !(n->max_bias >= 0 && n->max_bias <= 1e30F) ||
        !(n->soft_cap >= 0 && n->soft_cap <= 1e30F))
        return "scale, soft cap or the bias of ALiBi is out of range";
    reason = read_types(op, n);
    return reason ? reason : read_mask(n);
}
