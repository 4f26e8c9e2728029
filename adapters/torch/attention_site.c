#include "attention_site.h"

#include <math.h>
#include <string.h>

static void set_mask(const attention_mask *mask, const attune_problem *problem, int64_t dims[4]) {
    if (!mask->dtype) return;
    /* Batch and heads are arguments: a stride of 0 broadcasts. A mask of one element has no strides other than 0,
     * which would mean contiguous, so it says so by its dims. */
    dims[0] = mask->is_single ? 1 : problem->batch;
    dims[1] = mask->is_single ? 1 : problem->num_heads;
    dims[2] = mask->rows ? ATTUNE_DYNAMIC : 1;
    dims[3] = mask->columns ? ATTUNE_DYNAMIC : 1;
}

/* Two of each, so that nothing is taken as broadcast. The kernel serves any number. */
static void describe(const void *key_, attune_problem *problem) {
    const attention_key *const key = key_;
    problem->batch = 2;
    problem->num_kv_heads = 2;
    problem->num_heads = 2 * (int64_t)key->group;
    problem->seq_q = ATTUNE_DYNAMIC;
    problem->seq_kv = ATTUNE_DYNAMIC;
    problem->head_dim = key->head_dim;
    problem->head_dim_v = key->head_dim_v;
    problem->dtype = key->dtype;
    problem->k_dtype = problem->v_dtype = key->kv_dtype;
    if (key->kv_dtype == ATTUNE_I8) problem->k_scales = problem->v_scales = ATTUNE_SCALES_TOKEN;
    problem->has_softmax_scale = key->has_scale;
    problem->logits_soft_cap = key->soft_cap;
    problem->is_causal = key->is_causal;
    problem->causal_align = key->bottom_right ? ATTUNE_BOTTOM_RIGHT : ATTUNE_TOP_LEFT;
    problem->window_left = key->window_left;
    problem->window_right = key->window_right;
    problem->has_sinks = key->has_sinks;
    problem->has_kv_lens = key->has_kv_lens;
    problem->has_lse = key->lse_stride != 0;
    if (key->lse_stride > 1)
        memcpy(problem->lse_strides, (int64_t[]){1 << 20, 1, key->lse_stride}, sizeof problem->lse_strides);
    if (key->appends) problem->seq_new = key->appends == ATTENTION_APPENDS_ONE ? 1 : ATTUNE_DYNAMIC;
    problem->reproducible = key->reproducible;
    set_mask(&key->mask, problem, problem->attn_mask_dims);
    set_mask(&key->bias, problem, problem->attn_bias_dims);
    problem->bias_dtype = key->bias.dtype;
}

site *attention_site(const attention_key *key) {
    static site_table table = {.key_bytes = sizeof *key, .describe = describe};
    return site_find(&table, key);
}

bool attention_is_default_scale(double scale, int32_t head_dim) { return isnan(scale) || scale == 1 / sqrt(head_dim); }

bool attention_mask_of(const torch_view *view, const int64_t sizes[4], attention_mask *mask, int64_t strides[4]) {
    const int missing = 4 - view->rank;
    for (int i = 0; i < 4; i++) {
        const int64_t size = i < missing ? 1 : view->sizes[i - missing];
        if (size != 1 && size != sizes[i]) return false;
        strides[i] = size == 1 ? 0 : view->strides[i - missing];
    }
    if (strides[3] > 1) return false;
    mask->dtype = (uint8_t)adapter_dtype(view->dtype);
    mask->rows = strides[2] != 0;
    mask->columns = strides[3] != 0;
    mask->is_single = !strides[0] && !strides[1] && !strides[2] && !strides[3];
    return true;
}

bool attention_strides(const torch_view *view, int64_t strides[4]) {
    if (view->strides[3] != 1 && view->sizes[3] != 1) return false;
    memcpy(strides, view->strides, 3 * sizeof *strides);
    strides[3] = 1;
    return true;
}

bool attention_make_lse(const int64_t sizes[3], attune_dtype dtype, torch_tensor *lse, attune_arguments *a) {
    const int64_t heads = sizes[1], rows = sizes[2], strides[3] = {rows * heads, 1, heads};
    const int32_t type = dtype == ATTUNE_F64 ? torch.f64 : torch.f32;
    memcpy(a->lse_strides, (int64_t[]){strides[0], 1, attention_lse_stride(heads, rows)}, sizeof strides);
    return !torch.aoti_torch_empty_strided(3, sizes, strides, type, torch.cpu, 0, lse) &&
           !torch.aoti_torch_get_data_ptr(*lse, &a->lse);
}
