/* The parts of tensors_fill that have files of their own. */
#ifndef ATTUNE_TOOLS_FILL_H
#define ATTUNE_TOOLS_FILL_H

#include "common/tensors.h"

/* NaN or an infinity. */
long double fill_odd(tool_random *random);

/* The power of two at which the type's denormals begin. */
int fill_denormal_exponent(attune_dtype dtype);

/* Random weights of a block, packed; nothing if it is none. false after a message. */
bool fill_weights(tensors *t, input_kind kind, uint64_t seed);

/* NaN and infinities where no row sees them, and some that rows see. false: out of memory. */
bool fill_hidden(tensors *t, tool_random *random);

#endif
