/* Attention with few query rows (strategy=d_lanes): mha_d_lanes writes c->out, and c->lse unless it is NULL. Before the
 * first phase is opened, mha_d_lanes_shared declares the shared memory for the results of chunks of keys. */
#ifndef ATTUNE_ATTEND_DECODE_DECODE_H
#define ATTUNE_ATTEND_DECODE_DECODE_H

#include "nest/context.h"

void mha_d_lanes_shared(mha_context *c);
void mha_d_lanes(mha_context *c);

#endif
