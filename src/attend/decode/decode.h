/* Attention with few query rows (strategy=d_lanes): writes c->out, and c->lse where it is set. The first function
 * declares what the chunks of keys leave in shared memory, before the first phase is opened. */
#ifndef ATTUNE_ATTEND_DECODE_DECODE_H
#define ATTUNE_ATTEND_DECODE_DECODE_H

#include "nest/context.h"

void mha_d_lanes_shared(mha_context *c);
void mha_d_lanes(mha_context *c);

#endif
