/* A dilation, an order of channels or a number of taps that attune has no kernel for is refused with a sentence. */
#include "conv.h"

#include <stdio.h>

const char *const conv_activations[] = {"none", "silu", "swish", NULL};

bool conv_check(const node_source *s, int64_t dilation, int64_t channels_last, char *message) {
    graph_shape weight;
    if (dilation < 1 || dilation > 64)
        snprintf(message, ATTUNE_MESSAGE_BYTES, "dilation is %lld; attune computes 1 to 64", (long long)dilation);
    else if (channels_last < 0 || channels_last > 1)
        snprintf(message, ATTUNE_MESSAGE_BYTES, "channels_last is %lld; it must be 0 or 1", (long long)channels_last);
    else if (source_shape(s, CONV_WEIGHT, &weight) && weight.rank &&
             (!weight.dims[weight.rank - 1] || weight.dims[weight.rank - 1] > CONV_MOST_TAPS))
        snprintf(message, ATTUNE_MESSAGE_BYTES, "weight has %lld taps; attune computes 1 to %d",
                 (long long)weight.dims[weight.rank - 1], CONV_MOST_TAPS);
    else
        return true;
    return false;
}
