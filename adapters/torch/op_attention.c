/* attune::attention and attune::attention_append. */
#include "op_call.h"

static void finish(op_call *call, bool done, torch_value *stack, torch_tensor out, torch_tensor lse) {
    if (!done) {
        if (out) torch.aoti_torch_delete_tensor_object(out);
        if (lse) torch.aoti_torch_delete_tensor_object(lse);
    }
    op_end(call);
    stack[0] = torch_value_of(out);
    if (lse) stack[1] = torch_value_of(lse);
}

void op_attention(torch_value *stack, uint64_t num_arguments, uint64_t num_results) {
    (void)num_arguments, (void)num_results;
    op_call call = {.op = "attune::attention", .stack = stack};
    torch_view q, k, v, mask, bias, kv_lens, sinks;
    bool ok = op_tensor(&call, 0, "q", 4, &q);
    ok = op_tensor(&call, 1, "k", 4, &k) && ok;
    ok = op_tensor(&call, 2, "v", 4, &v) && ok;
    const bool has_mask = op_optional_tensor(&call, 3, "attn_mask", &mask);
    const bool has_bias = op_optional_tensor(&call, 4, "attn_bias", &bias);
    const bool has_kv_lens = op_optional_tensor(&call, 5, "kv_lens", &kv_lens);
    const bool has_sinks = op_optional_tensor(&call, 6, "sinks", &sinks);
    op_options(&call, torch_bool_of(stack[7]), op_is_bottom_right(&call, 8), (int64_t)stack[9], (int64_t)stack[10],
               torch_double_of(stack[11]), op_optional_double(&call, 12));
    if (has_mask && mask.dtype != torch.boolean)
        op_fail(&call, "attn_mask must be bool; pass numbers that are added as attn_bias");
    if (has_bias && bias.dtype == torch.boolean)
        op_fail(&call, "attn_bias must be numbers; pass a boolean mask as attn_mask");
    torch_tensor out = NULL, lse = NULL;
    ok = ok && !call.message[0] && op_bind_q(&call, &q) && op_bind_kv(&call, &k, &v) &&
         (!has_mask || op_bind_mask(&call, "attn_mask", &mask)) &&
         (!has_bias || op_bind_mask(&call, "attn_bias", &bias)) && (!has_sinks || op_bind_sinks(&call, &sinks)) &&
         (!has_kv_lens || op_bind_kv_lens(&call, &kv_lens)) && op_run(&call, &out, &lse);
    if (ok) ADAPTER_COUNT("attention.ran");
    finish(&call, ok, stack, out, lse);
}

/* ---- Appending ---- */

static bool bind_new(op_call *call, const char *name, const torch_view *fresh, int64_t columns, int64_t strides[4]) {
    const bool is_coded = call->kind.k_dtype == ATTUNE_I8;
    if (adapter_dtype(fresh->dtype) != (attune_dtype)(is_coded ? call->kind.dtype : call->kind.k_dtype))
        return op_fail(call, "%s must have the dtype of %s", name, is_coded ? "q" : "the cache");
    if (!op_check_size(call, name, fresh, 0, call->batch) || !op_check_size(call, name, fresh, 1, call->kv_heads) ||
        !op_check_size(call, name, fresh, 3, columns))
        return false;
    if (attention_strides(fresh, strides)) return true;
    return op_fail(call, "%s has the innermost stride %lld; it must be 1", name, (long long)fresh->strides[3]);
}

static bool bind_scale(op_call *call, const char *name, bool given, const torch_view *scale,
                       attune_mutable_view *view) {
    const bool wanted = call->kind.k_dtype == ATTUNE_I8;
    if (!wanted) return !given || op_fail(call, "%s needs a cache of int8", name);
    if (!given) return op_fail(call, "caches of int8 need %s, float32 of [batch, kv heads, capacity]", name);
    if (scale->dtype != torch.f32 || scale->rank != 3) return op_fail(call, "%s must be float32 of 3 dims", name);
    if (!op_check_size(call, name, scale, 0, call->batch) || !op_check_size(call, name, scale, 1, call->kv_heads) ||
        !op_check_size(call, name, scale, 2, call->keys))
        return false;
    if (scale->strides[2] != 1 && scale->sizes[2] != 1)
        return op_fail(call, "%s has the innermost stride %lld; it must be 1", name, (long long)scale->strides[2]);
    view->data = scale->data;
    view->batch = scale->strides[0], view->head = scale->strides[1], view->token = 1;
    return true;
}

/* The lengths after appending; keys beyond the longest one are not read. */
static bool bind_lengths(op_call *call, const torch_view *kv_lens) {
    const int64_t fresh = call->arguments.seq_new;
    int64_t longest = fresh;
    if (!op_bind_kv_lens(call, kv_lens)) return false;
    for (int64_t b = 0; b < call->batch; b++) {
        const int32_t length = call->arguments.kv_lens[b];
        if (length < fresh)
            return op_fail(call, "kv_lens[%lld] is %d; with the %lld new keys it must be at least %lld", (long long)b,
                           length, (long long)fresh, (long long)fresh);
        if (length > longest) longest = length;
    }
    call->keys = longest;
    return true;
}

/* A mask has as many columns as the longest sequence has keys, or as the cache has slots. */
static bool bind_mask(op_call *call, torch_view *mask, int64_t capacity) {
    const int last = mask->rank - 1;
    if (last >= 0 && mask->sizes[last] == capacity && capacity > 1) mask->sizes[last] = call->keys;
    return op_bind_mask(call, "attn_mask", mask);
}

void op_append(torch_value *stack, uint64_t num_arguments, uint64_t num_results) {
    (void)num_arguments, (void)num_results;
    op_call call = {.op = "attune::attention_append", .stack = stack, .kind = {.appends = 1}};
    torch_view q, k_new, v_new, k, v, k_scale, v_scale, kv_lens, mask, sinks;
    attune_arguments *const a = &call.arguments;
    bool ok = op_tensor(&call, 0, "q", 4, &q);
    ok = op_tensor(&call, 1, "k_new", 4, &k_new) && ok;
    ok = op_tensor(&call, 2, "v_new", 4, &v_new) && ok;
    ok = op_tensor(&call, 3, "k_cache", 4, &k) && ok;
    ok = op_tensor(&call, 4, "v_cache", 4, &v) && ok;
    const bool has_k_scale = op_optional_tensor(&call, 5, "k_scale", &k_scale);
    const bool has_v_scale = op_optional_tensor(&call, 6, "v_scale", &v_scale);
    ok = op_tensor(&call, 7, "kv_lens", 1, &kv_lens) && ok;
    const bool has_mask = op_optional_tensor(&call, 8, "attn_mask", &mask);
    const bool has_sinks = op_optional_tensor(&call, 9, "sinks", &sinks);
    op_options(&call, torch_bool_of(stack[10]), true, (int64_t)stack[11], (int64_t)stack[12],
               torch_double_of(stack[13]), op_optional_double(&call, 14));
    torch_tensor out = NULL;
    ok = ok && !call.message[0] && op_bind_q(&call, &q) && op_bind_kv(&call, &k, &v);
    a->seq_new = ok ? k_new.sizes[2] : 0;
    call.kind.appends_one = a->seq_new == 1;
    ok = ok && op_check_size(&call, "v_new", &v_new, 2, a->seq_new) &&
         bind_new(&call, "k_new", &k_new, call.kind.head_dim, a->k_new.strides) &&
         bind_new(&call, "v_new", &v_new, call.kind.head_dim_v, a->v_new.strides) &&
         bind_scale(&call, "k_scale", has_k_scale, &k_scale, &a->k_scale) &&
         bind_scale(&call, "v_scale", has_v_scale, &v_scale, &a->v_scale) && bind_lengths(&call, &kv_lens) &&
         (!has_mask || bind_mask(&call, &mask, k.sizes[2])) && (!has_sinks || op_bind_sinks(&call, &sinks));
    if (ok) a->k_new.data = k_new.data, a->v_new.data = v_new.data;
    ok = ok && op_run(&call, &out, NULL);
    if (ok) ADAPTER_COUNT("attention_append.ran");
    finish(&call, ok, stack, out, NULL);
}
