/* aten::_scaled_dot_product_flash_attention_for_cpu, computed by attune. */
#include "attention_tensors.h"
#include "runner.h"

#include <math.h>
#include <string.h>

typedef struct call {
    torch_tensor query, key, value, mask;
    double dropout_p, scale;
    bool is_causal, has_mask, has_scale;
    torch_view q, k, v, m;
} call;

static call take(const torch_value *stack) {
    call c = {.query = torch_tensor_of(stack[0]),
              .key = torch_tensor_of(stack[1]),
              .value = torch_tensor_of(stack[2]),
              .dropout_p = torch_double_of(stack[3]),
              .is_causal = torch_bool_of(stack[4])};
    c.mask = torch_tensor_of(torch_take_optional(stack[5], &c.has_mask));
    c.scale = torch_double_of(torch_take_optional(stack[6], &c.has_scale));
    return c;
}

static void drop(call *c) {
    torch.aoti_torch_delete_tensor_object(c->query);
    torch.aoti_torch_delete_tensor_object(c->key);
    torch.aoti_torch_delete_tensor_object(c->value);
    if (c->has_mask) torch.aoti_torch_delete_tensor_object(c->mask);
}

static torch_status stock(call *c, torch_tensor *out, torch_tensor *lse) {
    return torch.aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu(c->query, c->key, c->value, c->dropout_p,
                                                                            c->is_causal, c->has_mask ? &c->mask : NULL,
                                                                            c->has_scale ? &c->scale : NULL, out, lse);
}

#define STOCK(reason)                                                                                                  \
    do {                                                                                                               \
        ADAPTER_COUNT("sdpa.stock." reason);                                                                           \
        return false;                                                                                                  \
    } while (0)

/* Whether attune can compute the call; counts the reason if not. The operator's callers have checked the arguments;
 * PyTorch's kernel handles everything else. */
static bool describe(call *c, common_kind *kind, attune_arguments *mask_strides) {
    torch_view *const q = &c->q, *const k = &c->k, *const v = &c->v;
    if (c->dropout_p != 0) STOCK("dropout");
    if (!torch_view_of(c->query, q) || !torch_view_of(c->key, k) || !torch_view_of(c->value, v) || q->rank != 4 ||
        k->rank != 4 || v->rank != 4)
        STOCK("rank");
    const attune_dtype dtype = adapter_dtype(q->dtype);
    if (k->dtype != q->dtype || v->dtype != q->dtype || !common_is_float(dtype)) STOCK("dtype");
    const int64_t batch = q->sizes[0], heads = q->sizes[1], rows = q->sizes[2], dim = q->sizes[3];
    const int64_t kv_heads = k->sizes[1], keys = k->sizes[2];
    if (!batch || !heads || !rows || !dim || !kv_heads || !keys) STOCK("empty");
    if (k->sizes[0] != batch || v->sizes[0] != batch || v->sizes[1] != kv_heads || v->sizes[2] != keys ||
        k->sizes[3] != dim || v->sizes[3] != dim || heads % kv_heads || dim > INT32_MAX || heads > INT32_MAX)
        STOCK("shape");
    if (c->has_mask && c->is_causal) STOCK("mask_and_causal");
    *kind = (common_kind)COMMON_KIND_INIT;
    if (c->has_scale && !(fabs(c->scale) <= 1e38)) STOCK("scale");
    kind->head_dim = kind->head_dim_v = (int32_t)dim;
    kind->has_scale = c->has_scale && !attention_is_default_scale(c->scale, kind->head_dim);
    kind->group = (int32_t)(heads / kv_heads);
    kind->dtype = kind->k_dtype = kind->v_dtype = (uint8_t)dtype;
    kind->is_causal = c->is_causal;
    kind->reproducible = adapter_is_reproducible();
    kind->lse_stride = attention_lse_stride(heads, rows);
    if (!c->has_mask) return true;
    common_mask mask = {0};
    int64_t *const strides = mask_strides->attn_mask.strides;
    if (!torch_view_of(c->mask, &c->m) ||
        !attention_mask_of(&c->m, (int64_t[]){batch, heads, rows, keys}, &mask, strides))
        STOCK("mask");
    if (mask.dtype != ATTUNE_BOOL && mask.dtype != dtype && mask.dtype != ATTUNE_F32) STOCK("mask");
    if (mask.dtype == ATTUNE_BOOL)
        kind->mask = mask;
    else
        kind->bias = mask;
    return true;
}

/* The layouts are PyTorch's: out has that of q. */
static bool allocate(const call *c, const common_kind *kind, torch_tensor *out, torch_tensor *lse,
                     attune_arguments *a) {
    int64_t out_strides[4];
    torch_strides_like(&c->q, out_strides);
    memcpy(a->out.strides, out_strides, 3 * sizeof *out_strides);
    a->out.strides[3] = 1;
    return !torch.aoti_torch_empty_strided(4, c->q.sizes, out_strides, c->q.dtype, torch.cpu, 0, out) &&
           !torch.aoti_torch_get_data_ptr(*out, &a->out.data) && attention_make_lse(c->q.sizes, kind->dtype, lse, a);
}

/* The lse of a row without a visible key is -inf in attune, and 0 in PyTorch, whose backward relies on it. */
static void clear_empty_rows(void *lse, int64_t count, bool is_f64) {
    double *const wide = lse;
    float *const narrow = lse;
    for (int64_t i = 0; i < count; i++)
        if (is_f64)
            wide[i] = wide[i] == -INFINITY ? 0 : wide[i];
        else
            narrow[i] = narrow[i] == -INFINITY ? 0 : narrow[i];
}

static bool bind(const call *c, const common_kind *kind, const attune_arguments *mask_strides, attune_arguments *a) {
    if (!attention_strides(&c->q, a->q.strides) || !attention_strides(&c->k, a->k.strides) ||
        !attention_strides(&c->v, a->v.strides))
        STOCK("strides");
    if (c->has_mask) {
        const size_t bytes = sizeof a->attn_mask.strides;
        memcpy(kind->mask.dtype ? a->attn_mask.strides : a->attn_bias.strides, mask_strides->attn_mask.strides, bytes);
        if (kind->mask.dtype)
            a->attn_mask.data = c->m.data;
        else
            a->attn_bias.data = c->m.data;
    }
    if (kind->has_scale) a->softmax_scale = c->scale;
    a->q.data = c->q.data, a->k.data = c->k.data, a->v.data = c->v.data;
    a->batch = c->q.sizes[0], a->num_heads = c->q.sizes[1], a->num_kv_heads = c->k.sizes[1];
    a->seq_q = c->q.sizes[2], a->seq_kv = c->k.sizes[2];
    return true;
}

static bool failed(attune_status status, const char *message) {
    if (adapter_is_unsupported(status)) STOCK("unsupported");
    if (adapter_is_not_compiled("scaled_dot_product_attention", status)) STOCK("not_compiled");
    adapter_broken("scaled_dot_product_attention", status, message);
    STOCK("broken");
}

static bool compute(call *c, torch_tensor *out, torch_tensor *lse) {
    common_kind kind;
    attune_arguments a, mask_strides;
    attune_status status;
    const char *message;
    if (!describe(c, &kind, &mask_strides)) return false;
    const common_plan *const p = common_plan_of(&attention_plans, &kind, &status, &message);
    if (!p) return failed(status, message);
    a = p->arguments;
    if (!bind(c, &kind, &mask_strides, &a)) return false;
    if (!allocate(c, &kind, out, lse, &a)) STOCK("memory");
    const attune_runner runner = torch_runner();
    status = common_plan_run(p, &a, &runner, 0, &message);
    if (status) return failed(status, message);
    ADAPTER_COUNT("sdpa.ran");
    if (c->has_mask) clear_empty_rows(a.lse.data, a.batch * a.num_heads * a.seq_q, kind.dtype == ATTUNE_F64);
    return true;
}

static void release(torch_tensor *tensor) {
    if (*tensor) torch.aoti_torch_delete_tensor_object(*tensor);
    *tensor = NULL;
}

static void kernel(torch_value *stack, uint64_t num_arguments, uint64_t num_results) {
    (void)num_arguments, (void)num_results;
    call c = take(stack);
    torch_tensor out = NULL, lse = NULL;
    torch_status status = 0;
    if (!adapter_is_on(ADAPTER_SDPA) || !compute(&c, &out, &lse)) {
        release(&out);
        release(&lse);
        status = stock(&c, &out, &lse);
    }
    drop(&c);
    if (status) adapter_rethrow("scaled_dot_product_attention");
    stack[0] = torch_value_of(out);
    stack[1] = torch_value_of(lse);
}

const char *sdpa_register(void) { return adapter_override("_scaled_dot_product_flash_attention_for_cpu", kernel); }
