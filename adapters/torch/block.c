/* aten::_native_multi_head_attention, computed by attune's blocks. It is the fast path of nn.MultiheadAttention, and
 * aten::_transformer_encoder_layer_fwd, the fast path of nn.TransformerEncoderLayer, calls it through the dispatcher.
 * So attune computes attention with its projections in both, and PyTorch computes the rest. */
#include "adapter.h"
#include "encoder_mask.h"
#include "block_stock.h"
#include "common/plans.h"
#include "runner.h"
#include "weights.h"

#include <string.h>

/* Reasons to run as stock. */
#define REASON(reason) static adapter_counter reason = {.name = "block.stock." #reason}
REASON(cross);  /* query, key and value are not one tensor */
REASON(tensor); /* not a strided tensor in CPU memory */
REASON(dtype);
REASON(shape);
REASON(layout);     /* strides, or nothing to compute */
REASON(mask);       /* a type or shape that attune does not support */
REASON(hidden_row); /* a query without a visible key: PyTorch gives NaN, attune 0 */
REASON(no_gain);    /* stock is as fast or faster */
REASON(weights_changing);
REASON(weights_busy);
REASON(weights_full);
REASON(unsupported);
REASON(not_compiled);
REASON(broken);
REASON(memory);

static common_plans plans;

/* A call that attune might compute. */
typedef struct job {
    const block_call *call;
    torch_view x, weights[WEIGHTS_COUNT];
    encoder_mask mask;
    common_kind kind;
    const common_plan *plan;
    weights_blob *blob;
    torch_tensor out, probabilities;
} job;

static bool is_vector(const torch_view *v, int64_t n) {
    return v->rank == 1 && v->sizes[0] == n && (v->strides[0] == 1 || n == 1);
}

static bool is_matrix(const torch_view *v, int64_t rows, int64_t columns) {
    return v->rank == 2 && v->sizes[0] == rows && v->sizes[1] == columns && v->strides[0] == columns &&
           (v->strides[1] == 1 || columns == 1);
}

/* Each step returns the reason to run PyTorch's kernel, or NULL. PyTorch's kernel also reports errors of a call. */
static adapter_counter *look_at_tensors(job *j) {
    const block_call *const c = j->call;
    const torch_tensor weights[WEIGHTS_COUNT] = {c->qkv_weight, c->qkv_bias, c->out_weight, c->out_bias};
    const void *const query = torch_object_of(c->query);
    if (query != torch_object_of(c->key) || query != torch_object_of(c->value)) return &cross;
    if (!torch_view_of(c->query, &j->x)) return &tensor;
    for (int i = 0; i < WEIGHTS_COUNT; i++) {
        if (!torch_view_of(weights[i], &j->weights[i])) return &tensor;
        if (j->weights[i].dtype != j->x.dtype) return &dtype;
    }
    return common_is_float(adapter_dtype(j->x.dtype)) ? NULL : &dtype;
}

/* In f64, PyTorch's products are faster than attune's, so attune pays only if attention takes much of the time. */
static bool pays(const job *j) {
    enum { FEW_TOKENS = 32, WIDE = 256 };
    const int64_t length = j->x.sizes[1], width = j->call->embed_dim;
    return j->x.dtype != torch.f64 || width < WIDE || length >= width || j->x.sizes[0] * length <= FEW_TOKENS;
}

static adapter_counter *look_at_shapes(job *j) {
    const block_call *const c = j->call;
    const torch_view *const w = j->weights;
    const int64_t width = c->embed_dim;
    if (j->x.rank != 3 || j->x.sizes[2] != width || width < 1 || c->num_heads < 1 || width % c->num_heads)
        return &shape;
    if (!is_matrix(&w[WEIGHTS_QKV], 3 * width, width) || !is_vector(&w[WEIGHTS_QKV_BIAS], 3 * width) ||
        !is_matrix(&w[WEIGHTS_OUT], width, width) || !is_vector(&w[WEIGHTS_OUT_BIAS], width))
        return &layout;
    if (!j->x.sizes[0] || !j->x.sizes[1] || (j->x.strides[2] != 1 && width != 1)) return &layout;
    if (!pays(j)) return &no_gain;
    j->kind.embed_dim = j->kind.out_dim = (int32_t)width;
    j->kind.num_heads = (int32_t)c->num_heads;
    j->kind.head_dim = j->kind.head_dim_v = (int32_t)(width / c->num_heads);
    j->kind.dtype = (uint8_t)adapter_dtype(j->x.dtype);
    j->kind.weights_mode = c->need_weights ? ATTUNE_WEIGHTS_SOFTMAX : 0;
    j->kind.weights_average = c->need_weights && c->average_weights;
    return NULL;
}

static adapter_counter *look_at_mask(job *j) {
    const block_call *const c = j->call;
    torch_view view;
    if (!c->has_mask) return NULL;
    if (!c->has_mask_type || !torch_view_of(c->mask, &view)) return &mask;
    encoder_mask_read(&view, c->mask_type, j->x.sizes[0], c->num_heads, j->x.sizes[1], &j->mask);
    if (j->mask.kind == ENCODER_MASK_EMPTY) return &hidden_row;
    if (j->mask.kind == ENCODER_MASK_FOREIGN) return &mask;
    if (j->mask.kind == ENCODER_MASK_NO_MEMORY) return &memory;
    j->kind.is_causal = j->mask.is_causal;
    j->kind.has_kv_lens = j->mask.kind == ENCODER_MASK_LENGTHS;
    if (j->mask.kind == ENCODER_MASK_KEEP)
        j->kind.mask = (common_mask){.dtype = ATTUNE_BOOL,
                                     .rows = j->mask.per_row,
                                     .columns = 1,
                                     .one_batch = !j->mask.per_batch,
                                     .one_head = !j->mask.per_head};
    return NULL;
}

/* Handles a failure of attune: it does not support the call after all, or something is broken. */
static adapter_counter *failed(attune_status status, const char *message) {
    if (adapter_is_unsupported(status)) return &unsupported;
    if (adapter_is_not_compiled("nn.MultiheadAttention", status)) return &not_compiled;
    adapter_broken("nn.MultiheadAttention", status, message);
    return &broken;
}

static adapter_counter *find_weights(job *j) {
    const block_call *const c = j->call;
    weights_request r = {.tensor = {c->qkv_weight, c->qkv_bias, c->out_weight, c->out_bias}};
    const int64_t bytes = j->kind.dtype == ATTUNE_F64 ? 8 : j->kind.dtype == ATTUNE_F32 ? 4 : 2;
    attune_status status;
    const char *message;
    j->plan = common_plan_of(&plans, &j->kind, &status, &message);
    if (!j->plan) return failed(status, message);
    r.problem = &j->plan->problem;
    for (int i = 0; i < WEIGHTS_COUNT; i++) {
        r.data[i] = j->weights[i].data;
        r.bytes[i] = (size_t)bytes;
        for (int d = 0; d < j->weights[i].rank; d++) r.bytes[i] *= (size_t)j->weights[i].sizes[d];
    }
    switch (weights_get(&r, &j->blob, &status)) {
    case WEIGHTS_READY: return NULL;
    case WEIGHTS_CHANGING: return &weights_changing;
    case WEIGHTS_BUSY: return &weights_busy;
    case WEIGHTS_FULL: return &weights_full;
    case WEIGHTS_FAILED: break;
    }
    return failed(status, attune_last_message());
}

static torch_tensor empty(int32_t rank, const int64_t *sizes, int32_t type) {
    int64_t strides[4];
    torch_tensor tensor_ = NULL;
    strides[rank - 1] = 1;
    for (int i = rank - 1; i > 0; i--) strides[i - 1] = strides[i] * sizes[i];
    return torch.aoti_torch_empty_strided(rank, sizes, strides, type, torch.cpu, 0, &tensor_) ? NULL : tensor_;
}

static bool make_results(job *j) {
    const int64_t batch = j->x.sizes[0], n = j->x.sizes[1], heads = j->call->num_heads;
    j->out = empty(3, (int64_t[]){batch, n, j->call->embed_dim}, j->x.dtype);
    if (!j->kind.weights_mode)
        torch.aoti_torch_new_uninitialized_tensor(&j->probabilities);
    else if (j->kind.weights_average)
        j->probabilities = empty(3, (int64_t[]){batch, n, n}, j->x.dtype);
    else
        j->probabilities = empty(4, (int64_t[]){batch, heads, n, n}, j->x.dtype);
    return j->out && j->probabilities;
}

static adapter_counter *run(job *j) {
    attune_arguments a = j->plan->arguments;
    if (!make_results(j)) return &memory;
    a.batch = j->x.sizes[0];
    a.seq_q = j->x.sizes[1];
    a.x.data = j->x.data;
    memcpy(a.x.strides, (int64_t[4]){j->x.strides[0], j->x.strides[1], 1}, sizeof a.x.strides);
    a.packed_weights = weights_packed(j->blob);
    a.kv_lens = j->kind.has_kv_lens ? j->mask.lengths : NULL;
    a.attn_mask.data = j->mask.keep;
    torch.aoti_torch_get_data_ptr(j->out, &a.out.data);
    if (j->kind.weights_mode) torch.aoti_torch_get_data_ptr(j->probabilities, &a.weights.data);
    const attune_runner runner = torch_runner();
    const char *message;
    const attune_status status = common_plan_run(j->plan, &a, &runner, 0, &message);
    return status ? failed(status, message) : NULL;
}

static void end(job *j) {
    encoder_mask_free(&j->mask);
    weights_release(j->blob);
    if (j->out) torch.aoti_torch_delete_tensor_object(j->out);
    if (j->probabilities) torch.aoti_torch_delete_tensor_object(j->probabilities);
}

/* Whether attune has computed the call. */
static bool computed(const block_call *call, torch_tensor *out, torch_tensor *probabilities) {
    /* Freed even if an exception of PyTorch passes through here, such as a warning that Python turns into an error. */
    __attribute__((cleanup(end))) job j = {.call = call, .kind = COMMON_KIND_INIT};
    adapter_counter *reason = look_at_tensors(&j);
    if (!reason) reason = look_at_shapes(&j);
    if (!reason) reason = look_at_mask(&j);
    if (!reason) reason = find_weights(&j);
    if (!reason) reason = run(&j);
    if (reason) {
        adapter_count(reason);
        return false;
    }
    ADAPTER_COUNT("block.ran");
    *out = j.out;
    *probabilities = j.probabilities;
    j.out = j.probabilities = NULL; /* they are the caller's now */
    return true;
}

static void kernel(torch_value *stack, uint64_t num_arguments, uint64_t num_results) {
    (void)num_arguments, (void)num_results;
    /* Dropped even if an exception of PyTorch's kernel passes through here. */
    __attribute__((cleanup(block_drop))) block_call call;
    block_take(stack, &call);
    torch_tensor out, probabilities;
    if (!adapter_is_on(ADAPTER_BLOCK) || !computed(&call, &out, &probabilities))
        block_stock(&call, &out, &probabilities);
    stack[0] = torch_value_of(out);
    stack[1] = torch_value_of(probabilities);
}

const char *block_register(void) {
    const char *failure = block_stock_open();
    if (!failure) failure = weights_open();
    return failure ? failure : adapter_override("_native_multi_head_attention", kernel);
}
