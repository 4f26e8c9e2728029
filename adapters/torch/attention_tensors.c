/* Views, strides and masks in PyTorch's order become those of attune's arguments; nothing is copied. */
#include "attention_tensors.h"

#include <math.h>
#include <string.h>

common_plans attention_plans;

bool attention_is_default_scale(double scale, int32_t head_dim) { return isnan(scale) || scale == 1 / sqrt(head_dim); }

bool attention_mask_of(const torch_view *view, const int64_t sizes[4], common_mask *mask, int64_t strides[4]) {
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
    /* Strides of 0 broadcast. If all strides are 0, which would mean contiguous, the dims of 1 broadcast instead. */
    mask->one_batch = mask->one_head = !strides[0] && !strides[1] && !strides[2] && !strides[3];
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
    memcpy(a->lse.strides, (int64_t[]){strides[0], 1, attention_lse_stride(heads, rows)}, sizeof strides);
    return !torch.aoti_torch_empty_strided(3, sizes, strides, type, torch.cpu, 0, lse) &&
           !torch.aoti_torch_get_data_ptr(*lse, &a->lse.data);
}
