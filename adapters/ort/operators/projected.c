/* Takes the one matrix and bias of all three projections apart into those of Q, K and V, as a block has them. */
#include "projected.h"

#include "block.h"

#include <stdio.h>

static bool refuse(char message[ATTUNE_MESSAGE_BYTES], const char *sentence) {
    snprintf(message, ATTUNE_MESSAGE_BYTES, "%s", sentence);
    return false;
}

static bool read_weights(const node_source *s, tensor *weight, tensor *bias, char message[ATTUNE_MESSAGE_BYTES]) {
    *bias = (tensor){0};
    if (!source_constant(s, PROJECTED_WEIGHT, weight) || weight->rank != 2 || !common_is_float(weight->dtype))
        return refuse(message, "its weights are not a constant matrix");
    if (!source_has_input(s, PROJECTED_BIAS)) return true;
    if (!source_constant(s, PROJECTED_BIAS, bias) || bias->type != weight->type || bias->rank != 1 ||
        bias->dims[0] != weight->dims[1])
        return refuse(message, "its bias is not a constant vector, one number for each column of the weights");
    return true;
}

bool projected_sizes(const node_source *s, int64_t num_heads, int64_t sizes[3], char message[ATTUNE_MESSAGE_BYTES]) {
    tensor weight, bias;
    if (!read_weights(s, &weight, &bias, message)) return false;
    if (!source_wholes(s, "qkv_hidden_sizes", sizes, 3)) sizes[0] = sizes[1] = sizes[2] = weight.dims[1] / 3;
    for (int i = 0; i < 3; i++)
        if (sizes[i] < 1 || sizes[i] > weight.dims[1] || sizes[i] % num_heads)
            return refuse(message, "its heads do not divide the columns of its weights");
    if (sizes[0] != sizes[1] || sizes[0] + sizes[1] + sizes[2] != weight.dims[1])
        return refuse(message, "qkv_hidden_sizes does not fit its weights");
    return true;
}

block *projected_create(const node_source *s, int64_t num_heads, char message[ATTUNE_MESSAGE_BYTES]) {
    tensor given[ATTUNE_NUM_WEIGHTS] = {{0}};
    int64_t sizes[3];
    if (!read_weights(s, &given[ATTUNE_QKV_WEIGHT], &given[ATTUNE_QKV_BIAS], message) ||
        !projected_sizes(s, num_heads, sizes, message))
        return NULL;
    const block_shape shape = {.dtype = given[ATTUNE_QKV_WEIGHT].dtype,
                               .layout = ATTUNE_IN_OUT,
                               .width = given[ATTUNE_QKV_WEIGHT].dims[0],
                               .num_heads = num_heads,
                               .head_width = sizes[0] / num_heads,
                               .v_head_width = sizes[2] / num_heads,
                               .x = PROJECTED_X,
                               .bias = PROJECTED_SCORE_BIAS,
                               .padding = PROJECTED_MASK,
                               .bias_name = "attention_bias",
                               .padding_name = "mask_index"};
    return block_create(&shape, given, message);
}
