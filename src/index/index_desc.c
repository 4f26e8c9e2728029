/* Descriptions of an index: which are sound, their defaults, and their text. */
#include "described/desc_table.h"
#include "problem/problem_fields.h"

static attune_status check_dtype(const char *name, attune_dtype dtype, bool may_be_bytes, at_error *err) {
    if (dtype == ATTUNE_F32 || dtype == ATTUNE_BF16 || dtype == ATTUNE_F16) return ATTUNE_OK;
    if (may_be_bytes && (dtype == ATTUNE_I8 || dtype == ATTUNE_F8)) return ATTUNE_OK;
    const char *const word = (unsigned)dtype < ATTUNE_DTYPE_COUNT ? mha_dtype_name(dtype) : "no attune_dtype";
    return at_fail(err, ATTUNE_UNSUPPORTED, "%s is %s; it must be f32, bf16%s", name, word,
                   may_be_bytes ? ", f16, i8 or f8" : " or f16");
}

static attune_status settle(void *desc, at_error *err) {
    enum { MOST_HEADS = 256, MOST_DIM = 512, MOST_IDS = 65536, MOST_PAGE = 65536 };
    attune_index_desc *const d = desc;
    if (d->dtype == ATTUNE_DTYPE_DEFAULT) d->dtype = ATTUNE_F32;
    if (d->w_dtype == ATTUNE_DTYPE_DEFAULT) d->w_dtype = ATTUNE_F32;
    if (at_check_size("num_heads", d->num_heads, 1, MOST_HEADS, err) ||
        at_check_size("head_dim", d->head_dim, 1, MOST_DIM, err) ||
        at_check_size("num_ids", d->num_ids, 1, MOST_IDS, err) || check_dtype("dtype", d->dtype, true, err) ||
        check_dtype("w_dtype", d->w_dtype, false, err) || at_check_size("is_causal", d->is_causal, 0, 1, err) ||
        at_check_size("page_size", d->page_size, 0, MOST_PAGE, err))
        return err->status;
    return at_check_size("has_scores", d->has_scores, 0, 1, err);
}

#define DESC attune_index_desc
static const at_described_field fields[] = {AT_SIZE(num_heads), AT_SIZE(head_dim),  AT_SIZE(num_ids),
                                            AT_DTYPE(dtype),    AT_DTYPE(w_dtype),  AT_FLAG(is_causal),
                                            AT_SIZE(page_size), AT_FLAG(has_scores)};

const at_desc_table idx_table = {AT_DESC_TABLE(index, INDEX, NULL, sizeof(attune_index_desc)), .what = "index",
                                 .num_kernels = 1, .settle = settle};
