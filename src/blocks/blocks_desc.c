/* Descriptions of an estimator of key blocks: which are sound, their defaults, and their text. */
#include "blocks/kernel.h"
#include "described/desc_table.h"
#include "problem/problem_fields.h"

#include <math.h>

static const attune_blocks_desc initial = ATTUNE_BLOCKS_DESC_INIT;

static attune_status check_sizes(const attune_blocks_desc *d, at_error *err) {
    enum { MOST_HEADS = 1024, MOST_DIM = 512, MOST_BLOCK = 65536, MOST_SQUARE = 32768 };
    if (at_check_size("num_heads", d->num_heads, 1, MOST_HEADS, err) ||
        at_check_size("num_kv_heads", d->num_kv_heads, 1, MOST_HEADS, err) ||
        at_check_size("head_dim", d->head_dim, 1, MOST_DIM, err) ||
        at_check_size("block_size", d->block_size, 1, MOST_BLOCK, err) ||
        at_check_size("stride", d->stride, 1, d->block_size, err) ||
        at_check_size("is_causal", d->is_causal, 0, 1, err))
        return err->status;
    if (d->num_heads % d->num_kv_heads)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "num_kv_heads is %lld, which does not divide num_heads, %lld",
                       (long long)d->num_kv_heads, (long long)d->num_heads);
    if (d->block_size % d->stride)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "stride is %lld; it must divide block_size, %lld",
                       (long long)d->stride, (long long)d->block_size);
    if (d->stride * d->head_dim > MOST_SQUARE)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "stride is %lld and head_dim %lld; their product must be at most %d", (long long)d->stride,
                       (long long)d->head_dim, MOST_SQUARE);
    return ATTUNE_OK;
}

static attune_status settle(void *desc, at_error *err) {
    attune_blocks_desc *const d = desc;
    if (!d->num_kv_heads) d->num_kv_heads = d->num_heads;
    if (d->dtype == ATTUNE_DTYPE_DEFAULT) d->dtype = ATTUNE_F32;
    if (check_sizes(d, err)) return err->status;
    if (d->dtype != ATTUNE_F32 && d->dtype != ATTUNE_BF16 && d->dtype != ATTUNE_F16)
        return at_fail(err, ATTUNE_UNSUPPORTED, "dtype is %s; it must be f32, bf16 or f16",
                       (unsigned)d->dtype < ATTUNE_DTYPE_COUNT ? mha_dtype_name(d->dtype) : "no attune_dtype");
    if (isnan(d->softmax_scale)) d->softmax_scale = 1 / sqrt((double)d->head_dim);
    if (!(fabs(d->softmax_scale) <= 1e38))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "softmax_scale is %g; it must be within +-1e38", d->softmax_scale);
    return ATTUNE_OK;
}

#define DESC attune_blocks_desc
static const at_described_field fields[] = {AT_SIZE(num_heads), AT_SIZE(num_kv_heads),   AT_SIZE(head_dim),
                                            AT_DTYPE(dtype),    AT_SIZE(block_size),     AT_SIZE(stride),
                                            AT_FLAG(is_causal), AT_NUMBER(softmax_scale)};
static const char *const kernels[BLK_NUM_KERNELS] = {"64", "512", "4096", "32768"};

const at_desc_table blk_table = {AT_DESC_TABLE(blocks, BLOCKS, &initial, sizeof(attune_blocks_desc)),
                                 .what = "estimator", .kernels = kernels, .num_kernels = BLK_NUM_KERNELS,
                                 .settle = settle};
