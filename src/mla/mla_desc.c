/* Descriptions of an MLA block: which are sound, their defaults, and their text. */
#include "described/desc_table.h"
#include "mla/kernel.h"
#include "problem/problem_fields.h"

#include <math.h>

static const attune_mla_desc initial = ATTUNE_MLA_DESC_INIT;

static attune_status check_sizes(const attune_mla_desc *d, at_error *err) {
    enum { MOST_EMBED = 1 << 20, MOST_HEADS = 1024, MOST_RANK = 1 << 16, MOST_DIM = 512 };
    if (at_check_size("embed_dim", d->embed_dim, 1, MOST_EMBED, err) ||
        at_check_size("out_dim", d->out_dim, 1, MOST_EMBED, err) ||
        at_check_size("num_heads", d->num_heads, 1, MOST_HEADS, err) ||
        at_check_size("q_lora_rank", d->q_lora_rank, 0, MOST_RANK, err) ||
        at_check_size("kv_lora_rank", d->kv_lora_rank, 1, 2 * MOST_DIM, err) ||
        at_check_size("qk_nope_head_dim", d->qk_nope_head_dim, 1, MOST_DIM, err) ||
        at_check_size("qk_rope_head_dim", d->qk_rope_head_dim, 2, MOST_DIM, err) ||
        at_check_size("v_head_dim", d->v_head_dim, 1, MOST_DIM, err) ||
        at_check_size("page_size", d->page_size, 0, MOST_EMBED, err))
        return err->status;
    if (d->qk_rope_head_dim % 2)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "qk_rope_head_dim is %lld; it must be even",
                       (long long)d->qk_rope_head_dim);
    if (d->page_size % 16)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "page_size is %lld; it must be a multiple of 16, or 0",
                       (long long)d->page_size);
    return ATTUNE_OK;
}

static attune_status check_choices(const attune_mla_desc *d, at_error *err) {
    if (d->dtype != ATTUNE_F32 && d->dtype != ATTUNE_BF16 && d->dtype != ATTUNE_F16)
        return at_fail(err, ATTUNE_UNSUPPORTED, "dtype is %s; it must be f32, bf16 or f16",
                       (unsigned)d->dtype < ATTUNE_DTYPE_COUNT ? mha_dtype_name(d->dtype) : "no attune_dtype");
    if ((unsigned)d->rope_interleaved > 1)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "rope_interleaved is %d; it must be 0 or 1", d->rope_interleaved);
    if ((unsigned)d->reproducible > 1)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "reproducible is %d; it must be 0 or 1", d->reproducible);
    if ((unsigned)d->form >= ATTUNE_MLA_FORM_COUNT)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "form is %d, which is no attune_mla_form", (int)d->form);
    if (d->reproducible && d->form == ATTUNE_MLA_BY_COST)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "reproducible is 1 and form ATTUNE_MLA_BY_COST; the two forms have different bits: name one");
    if ((unsigned)d->has_ids > 1)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "has_ids is %d; it must be 0 or 1", d->has_ids);
    if (d->has_ids && d->form == ATTUNE_MLA_UNABSORBED)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "has_ids is 1 and form ATTUNE_MLA_UNABSORBED; listed keys are attended to in the absorbed form");
    if (d->reserved) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "reserved is %u; it must be 0", d->reserved);
    if (!isnan(d->softmax_scale) && !(fabs(d->softmax_scale) <= 1e6))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "softmax_scale is %g; it must be within +-1e6", d->softmax_scale);
    if (!(d->norm_eps >= 1e-12 && d->norm_eps <= 1))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "norm_eps is %g; it must be 0, or from 1e-12 to 1", d->norm_eps);
    return ATTUNE_OK;
}

static attune_status settle(void *desc, at_error *err) {
    attune_mla_desc *const d = desc;
    if (!d->out_dim) d->out_dim = d->embed_dim;
    if (!d->v_head_dim) d->v_head_dim = d->qk_nope_head_dim;
    if (d->dtype == ATTUNE_DTYPE_DEFAULT) d->dtype = ATTUNE_F32;
    if (d->norm_eps == 0) d->norm_eps = 1e-6;
    if (check_sizes(d, err) || check_choices(d, err)) return err->status;
    if (isnan(d->softmax_scale)) d->softmax_scale = 1 / sqrt((double)(d->qk_nope_head_dim + d->qk_rope_head_dim));
    return ATTUNE_OK;
}

static bool has_kernel(const void *desc, uint32_t which) {
    const attune_mla_desc *const d = desc;
    const mla_kind kind = mla_kind_of(which);
    if (kind == MLA_ABSORB || kind == MLA_VALUES) return d->form != ATTUNE_MLA_UNABSORBED;
    return kind != MLA_EXPAND || d->form != ATTUNE_MLA_ABSORBED;
}

/* Members that only attention depends on. */
static void narrow(void *desc, uint32_t which) {
    attune_mla_desc *const d = desc;
    d->page_size = 0, d->has_ids = 0, d->softmax_scale = ATTUNE_DEFAULT_SCALE;
    d->form = mla_kind_of(which) == MLA_EXPAND ? ATTUNE_MLA_UNABSORBED : ATTUNE_MLA_ABSORBED;
}

static const char *const ways[] = {"by_cost", "absorbed", "unabsorbed", NULL};

#define DESC attune_mla_desc
static const at_described_field fields[] = {
    AT_SIZE(embed_dim),    AT_SIZE(out_dim),          AT_SIZE(num_heads),        AT_SIZE(q_lora_rank),
    AT_SIZE(kv_lora_rank), AT_SIZE(qk_nope_head_dim), AT_SIZE(qk_rope_head_dim), AT_SIZE(v_head_dim),
    AT_DTYPE(dtype),       AT_SIZE(page_size),        AT_FLAG(rope_interleaved), AT_NUMBER(softmax_scale),
    AT_NUMBER(norm_eps),   AT_WORD(form, ways),       AT_FLAG(reproducible),     AT_FLAG(has_ids)};
static const char *const kernels[MLA_NUM_KERNELS] = {
    "project_1",  "project_4",  "project_16", "project_512", "absorb_1",   "absorb_4", "absorb_16",
    "absorb_512", "values_1",   "values_4",   "values_16",   "values_512", "expand_1", "expand_4",
    "expand_16",  "expand_512", "out_1",      "out_4",       "out_16",     "out_512"};
_Static_assert((int)MLA_NUM_KERNELS <= (int)AT_MOST_KERNELS, "an object holds all kernels");

const at_desc_table mla_table = {AT_DESC_TABLE(mla, MLA, &initial, offsetof(attune_mla_desc, has_ids)),
                                 .what = "block",
                                 .kernels = kernels,
                                 .num_kernels = MLA_NUM_KERNELS,
                                 .settle = settle,
                                 .has_kernel = has_kernel,
                                 .narrow = narrow};
