/* Descriptions of causal convolutions: which are sound, their defaults, and their text. */
#include "described/desc_table.h"
#include "linear/conv_kernel.h"
#include "problem/problem_fields.h"

static attune_status settle(void *desc, at_error *err) {
    attune_conv_desc *const d = desc;
    if (!d->dilation) d->dilation = 1;
    if (d->dtype == ATTUNE_DTYPE_DEFAULT) d->dtype = ATTUNE_F32;
    if (d->dtype != ATTUNE_F32 && d->dtype != ATTUNE_BF16 && d->dtype != ATTUNE_F16)
        return at_fail(err, ATTUNE_UNSUPPORTED, "dtype is %s; it must be f32, bf16 or f16",
                       (unsigned)d->dtype < ATTUNE_DTYPE_COUNT ? mha_dtype_name(d->dtype) : "no attune_dtype");
    if (at_check_size("channels", d->channels, 1, INT32_MAX, err) || at_check_size("taps", d->taps, 1, 64, err) ||
        at_check_size("dilation", d->dilation, 1, 64, err) || at_check_size("has_bias", d->has_bias, 0, 1, err))
        return err->status;
    return at_check_size("has_silu", d->has_silu, 0, 1, err);
}

/* Channels are an argument. */
static void narrow(void *desc, uint32_t which) {
    (void)which;
    ((attune_conv_desc *)desc)->channels = 1;
}

#define DESC attune_conv_desc
static const at_described_field fields[] = {AT_SIZE(channels), AT_SIZE(taps),     AT_SIZE(dilation),
                                            AT_DTYPE(dtype),   AT_FLAG(has_bias), AT_FLAG(has_silu)};
static const char *const kernels[] = {
    [CONV_CHANNELS] = "channels", [CONV_STATE_APART] = "state_apart", [CONV_APART] = "apart", [CONV_TOKENS] = "tokens"};

const at_desc_table conv_table = {AT_DESC_TABLE(conv, CONV, NULL, sizeof(attune_conv_desc)),
                                  .what = "convolution",
                                  .kernels = kernels,
                                  .num_kernels = CONV_NUM_KERNELS,
                                  .settle = settle,
                                  .narrow = narrow};
