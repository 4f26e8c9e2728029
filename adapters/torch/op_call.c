/* Each step of a call returns false after the first failure, whose sentence it has kept, so operators read as lists of
 * steps. */
#include "op_call.h"

#include "runner.h"

#include "fpenv.h"
#include "plain_text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool op_fail(op_call *call, const char *format, ...) {
    if (call->message[0]) return false;
    const int length = snprintf(call->message, sizeof call->message, "%s: ", call->op);
    va_list list;
    va_start(list, format);
    at_vprint(call->message + length, sizeof call->message - (size_t)length, format, list);
    va_end(list);
    return false;
}

/* ---- Arguments ---- */

static bool view(op_call *call, torch_tensor tensor, const char *name, torch_view *view) {
    call->owned[call->num_owned++] = tensor;
    if (torch_view_of(tensor, view)) return true;
    return op_fail(call, "%s must be a strided tensor in CPU memory of at most %d dims", name, TORCH_MAX_RANK);
}

bool op_tensor(op_call *call, int index, const char *name, int rank, torch_view *v) {
    if (!view(call, torch_tensor_of(call->stack[index]), name, v)) return false;
    return v->rank == rank || op_fail(call, "%s has %d dims; it must have %d", name, v->rank, rank);
}

bool op_optional_tensor(op_call *call, int index, const char *name, torch_view *v) {
    bool given;
    const torch_tensor tensor = torch_tensor_of(torch_take_optional(call->stack[index], &given));
    return given && view(call, tensor, name, v);
}

double op_optional_double(op_call *call, int index) {
    AT_DEFAULT_FPENV;
    bool given;
    const double value = torch_double_of(torch_take_optional(call->stack[index], &given));
    if (given && !(fabs(value) <= 1e38)) op_fail(call, "softmax_scale is %g; it must be within +-1e38", value);
    return given ? value : (double)NAN;
}

bool op_is_bottom_right(op_call *call, int index) {
    const torch_string text = torch_string_of(call->stack[index]);
    const char *data = "";
    torch.torch_string_c_str(text, &data);
    const bool is_bottom_right = !strcmp(data, "bottom_right");
    if (!is_bottom_right && strcmp(data, "top_left"))
        op_fail(call, "causal_align is \"%.40s\"; it must be bottom_right or top_left", data);
    torch.torch_delete_string(text);
    return is_bottom_right;
}

bool op_check_size(op_call *call, const char *name, const torch_view *v, int dim, int64_t size) {
    if (v->sizes[dim] == size) return true;
    return op_fail(call, "%s has the size %lld in dim %d; it must have %lld", name, (long long)v->sizes[dim], dim,
                   (long long)size);
}

static bool bind(op_call *call, const char *name, const torch_view *v, int64_t strides[4]) {
    if (attention_strides(v, strides)) return true;
    return op_fail(call, "%s has the innermost stride %lld; it must be 1: call contiguous() on it", name,
                   (long long)v->strides[3]);
}

static bool check_dtype(op_call *call, const char *name, const torch_view *v, attune_dtype wanted) {
    const attune_dtype dtype = adapter_dtype(v->dtype);
    if (wanted ? dtype == wanted : common_is_float(dtype)) return true;
    if (wanted) return op_fail(call, "%s must have the dtype of q", name);
    return op_fail(call, "%s must be float32, bfloat16, float16 or float64", name);
}

bool op_bind_q(op_call *call, const torch_view *q) {
    if (!check_dtype(call, "q", q, 0) || !bind(call, "q", q, call->arguments.q.strides)) return false;
    call->arguments.q.data = q->data;
    call->batch = q->sizes[0];
    call->heads = q->sizes[1];
    call->rows = q->sizes[2];
    if (q->sizes[3] < 1 || q->sizes[3] > INT32_MAX || call->heads > INT32_MAX)
        return op_fail(call, "q has %lld heads of %lld columns, which attune does not support", (long long)call->heads,
                       (long long)q->sizes[3]);
    call->torch_dtype = q->dtype;
    call->kind.dtype = (uint8_t)adapter_dtype(q->dtype);
    call->kind.head_dim = (int32_t)q->sizes[3];
    call->kind.has_scale = !attention_is_default_scale(call->arguments.softmax_scale, call->kind.head_dim);
    return true;
}

bool op_bind_kv(op_call *call, const torch_view *k, const torch_view *v) {
    const bool is_cache = call->kind.appends;
    const char *const k_name = is_cache ? "k_cache" : "k", *const v_name = is_cache ? "v_cache" : "v";
    call->kv_heads = k->sizes[1];
    call->keys = k->sizes[2];
    const attune_dtype dtype = adapter_dtype(k->dtype);
    if (!(is_cache && dtype == ATTUNE_I8) && !check_dtype(call, k_name, k, is_cache ? 0 : call->kind.dtype))
        return false;
    if (v->dtype != k->dtype) return op_fail(call, "%s must have the dtype of %s", v_name, k_name);
    if (!op_check_size(call, k_name, k, 0, call->batch) || !op_check_size(call, k_name, k, 3, call->kind.head_dim) ||
        !op_check_size(call, v_name, v, 0, call->batch) || !op_check_size(call, v_name, v, 1, call->kv_heads) ||
        !op_check_size(call, v_name, v, 2, call->keys))
        return false;
    if (call->kv_heads < 1 && call->heads)
        return op_fail(call, "%s has 0 heads; q has %lld", k_name, (long long)call->heads);
    if (call->kv_heads && call->heads % call->kv_heads)
        return op_fail(call, "q has %lld heads, which is no multiple of the %lld heads of %s", (long long)call->heads,
                       (long long)call->kv_heads, k_name);
    if (v->sizes[3] < 1 || v->sizes[3] > INT32_MAX)
        return op_fail(call, "%s has %lld columns, which attune does not support", v_name, (long long)v->sizes[3]);
    call->arguments.k.data = k->data;
    call->arguments.v.data = v->data;
    call->kind.head_dim_v = (int32_t)v->sizes[3];
    call->kind.k_dtype = call->kind.v_dtype = (uint8_t)dtype;
    call->kind.group = call->kv_heads ? (int32_t)(call->heads / call->kv_heads) : 1;
    return bind(call, k_name, k, call->arguments.k.strides) && bind(call, v_name, v, call->arguments.v.strides);
}

bool op_bind_mask(op_call *call, const char *name, const torch_view *mask) {
    const int64_t sizes[4] = {call->batch, call->heads, call->rows, call->keys};
    const bool is_mask = adapter_dtype(mask->dtype) == ATTUNE_BOOL;
    common_mask *const described = is_mask ? &call->kind.mask : &call->kind.bias;
    int64_t *const strides = is_mask ? call->arguments.attn_mask.strides : call->arguments.attn_bias.strides;
    if (!is_mask && !check_dtype(call, name, mask, 0)) return false;
    /* A float64 tensor would make all arithmetic, and lse, float64. */
    if (adapter_dtype(mask->dtype) == ATTUNE_F64 && call->kind.dtype != ATTUNE_F64)
        return op_fail(call, "%s is float64; with a q of another dtype it must be float32 or narrower", name);
    if (!attention_mask_of(mask, sizes, described, strides))
        return op_fail(call,
                       "%s cannot be broadcast to [%lld, %lld, %lld, %lld], or its innermost stride is neither 0 nor 1",
                       name, (long long)sizes[0], (long long)sizes[1], (long long)sizes[2], (long long)sizes[3]);
    *(is_mask ? &call->arguments.attn_mask.data : &call->arguments.attn_bias.data) = mask->data;
    return true;
}

bool op_bind_sinks(op_call *call, const torch_view *sinks) {
    if (sinks->dtype != torch.f32 || sinks->rank != 1 || sinks->sizes[0] != call->heads ||
        (sinks->strides[0] != 1 && call->heads != 1))
        return op_fail(call, "sinks must be contiguous float32 of [%lld] (one for each head)", (long long)call->heads);
    call->kind.has_sinks = 1;
    call->arguments.sinks = sinks->data;
    return true;
}

bool op_bind_kv_lens(op_call *call, const torch_view *kv_lens) {
    if (kv_lens->dtype != torch.i32 || kv_lens->rank != 1 || kv_lens->sizes[0] != call->batch ||
        (kv_lens->strides[0] != 1 && call->batch != 1))
        return op_fail(call, "kv_lens must be contiguous int32 of [%lld] (one for each sequence)",
                       (long long)call->batch);
    call->kind.has_kv_lens = 1;
    call->arguments.kv_lens = kv_lens->data;
    for (int64_t b = 0; b < call->batch; b++)
        if (call->arguments.kv_lens[b] < 0 || call->arguments.kv_lens[b] > call->keys)
            return op_fail(call, "kv_lens[%lld] is %d; there are %lld keys", (long long)b, call->arguments.kv_lens[b],
                           (long long)call->keys);
    return true;
}

void op_options(op_call *call, bool is_causal, bool bottom_right, int64_t left, int64_t right, double cap,
                double scale) {
    call->kind.scale = ATTUNE_DEFAULT_SCALE; /* any other is an argument */
    call->kind.is_causal = is_causal;
    call->kind.bottom_right = bottom_right;
    call->kind.window_left = left < 0 ? -1 : left;
    call->kind.window_right = right < 0 ? -1 : right;
    call->kind.soft_cap = cap;
    call->arguments.softmax_scale = scale;
    call->kind.reproducible = adapter_is_reproducible();
}

/* ---- Running ---- */

static bool allocate(op_call *call, torch_tensor *out, torch_tensor *lse) {
    const int64_t heads = call->heads, rows = call->rows, dim = call->kind.head_dim_v;
    const int64_t sizes[4] = {call->batch, heads, rows, dim};
    const int64_t strides[4] = {rows * heads * dim, dim, heads * dim, 1};
    attune_arguments *const a = &call->arguments;
    memcpy(a->out.strides, strides, sizeof strides);
    if (torch.aoti_torch_empty_strided(4, sizes, strides, call->torch_dtype, torch.cpu, 0, out) ||
        torch.aoti_torch_get_data_ptr(*out, &a->out.data))
        return op_fail(call, "there is no memory for out");
    if (!lse) return true;
    call->kind.lse_stride = attention_lse_stride(heads, rows);
    return attention_make_lse(sizes, call->kind.dtype, lse, a) || op_fail(call, "there is no memory for lse");
}

/* The plan's arguments, with the pointers and strides of the call. */
static void complete(const op_call *call, const common_plan *p, attune_arguments *a) {
    const attune_arguments *const b = &call->arguments;
    *a = p->arguments;
#define TAKE(name) a->name = b->name
    TAKE(q), TAKE(k), TAKE(v), TAKE(out), TAKE(lse), TAKE(attn_mask), TAKE(attn_bias);
    TAKE(sinks), TAKE(kv_lens), TAKE(k_new), TAKE(v_new), TAKE(k_scale), TAKE(v_scale);
#undef TAKE
    a->batch = call->batch, a->num_heads = call->heads, a->num_kv_heads = call->kv_heads;
    a->seq_q = call->rows, a->seq_kv = call->keys;
    if (call->kind.has_scale) a->softmax_scale = b->softmax_scale;
    if (call->kind.appends) a->seq_new = b->seq_new;
}

bool op_run(op_call *call, torch_tensor *out, torch_tensor *lse) {
    if (!allocate(call, out, lse)) return false;
    if (!call->batch || !call->heads || (!call->rows && !call->kind.appends)) return true;
    attune_status status;
    const char *message;
    const common_plan *const p = common_plan_of(&attention_plans, &call->kind, &status, &message);
    if (!p) return op_fail(call, "%s", message);
    attune_arguments a;
    complete(call, p, &a);
    const attune_runner runner = torch_runner();
    return !common_plan_run(p, &a, &runner, 0, &message) || op_fail(call, "%s", message);
}

void op_end(op_call *call) {
    for (int i = 0; i < call->num_owned; i++) torch.aoti_torch_delete_tensor_object(call->owned[i]);
    if (call->message[0]) adapter_throw(call->message);
}
