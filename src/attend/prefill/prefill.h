/* Attention with many query rows (strategy=q_lanes): writes c->out, and c->lse unless it is NULL. */
#ifndef ATTUNE_ATTEND_PREFILL_PREFILL_H
#define ATTUNE_ATTEND_PREFILL_PREFILL_H

#include "nest/context.h"

void mha_q_lanes(mha_context *c);

#endif
