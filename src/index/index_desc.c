/* Descriptions of an index: which are sound, their defaults, and their text. */
#include "described/desc_table.h"
#include "index/kernel.h"
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

static bool has_kernel(const void *desc, uint32_t which) {
    (void)desc;
    return which == IDX_OWN;
}

static attune_status check_kernel(const void *desc, uint32_t which, at_error *err) {
    const attune_index_desc *const d = desc;
    if (which == IDX_OWN) return ATTUNE_OK;
    if (d->dtype != ATTUNE_F32 && d->dtype != ATTUNE_BF16)
        return at_fail(err, ATTUNE_UNSUPPORTED, "dtype is %s; of kernel=any it must be f32 or bf16",
                       mha_dtype_name(d->dtype));
    if (d->head_dim != IDX_ANY_DIM)
        return at_fail(err, ATTUNE_UNSUPPORTED, "head_dim is %lld; of kernel=any it must be %d", (long long)d->head_dim,
                       IDX_ANY_DIM);
    attune_status status = at_check_size("num_heads of kernel=any", d->num_heads, 1, IDX_ANY_HEADS, err);
    if (!status) status = at_check_size("num_ids of kernel=any", d->num_ids, 1, IDX_ANY_IDS, err);
    return status ? status : at_check_size("has_scores of kernel=any", d->has_scores, 0, 0, err);
}

static void narrow(void *desc, uint32_t which) {
    attune_index_desc *const d = desc;
    if (which == IDX_OWN) return;
    d->num_heads = IDX_ANY_HEADS, d->num_ids = IDX_ANY_IDS;
    d->page_size = 0, d->is_causal = 0;
}

static bool generalise(void *desc, uint32_t *which) {
    if (*which == IDX_ANY || check_kernel(desc, IDX_ANY, NULL)) return false;
    *which = IDX_ANY;
    return true;
}

#define DESC attune_index_desc
static const at_described_field fields[] = {AT_SIZE(num_heads), AT_SIZE(head_dim),  AT_SIZE(num_ids),
                                            AT_DTYPE(dtype),    AT_DTYPE(w_dtype),  AT_FLAG(is_causal),
                                            AT_SIZE(page_size), AT_FLAG(has_scores)};

static const char *const kernels[IDX_NUM_KERNELS] = {[IDX_OWN] = "own", [IDX_ANY] = "any"};

const at_desc_table idx_table = {AT_DESC_TABLE(index, INDEX, NULL, sizeof(attune_index_desc)),
                                 .what = "index",
                                 .kernels = kernels,
                                 .num_kernels = IDX_NUM_KERNELS,
                                 .settle = settle,
                                 .has_kernel = has_kernel,
                                 .check_kernel = check_kernel,
                                 .narrow = narrow,
                                 .generalise = generalise};
