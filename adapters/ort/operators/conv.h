/* CausalConvWithState of ONNX and com.microsoft: describes attune's convolution from the attributes and shapes of a
 * node. */
#ifndef ATTUNE_ORT_CONV_H
#define ATTUNE_ORT_CONV_H

#include "ort/model/source.h"

enum { CONV_INPUT, CONV_WEIGHT, CONV_BIAS, CONV_PAST, CONV_NUM_INPUTS, CONV_MOST_TAPS = 64 };

/* Values of activation, and a NULL. The first value means no activation. */
extern const char *const conv_activations[];

/* Whether attune can compute a node with these attributes; otherwise message is a sentence. */
bool conv_check(const node_source *source, int64_t dilation, int64_t channels_last, char *message);

#endif
