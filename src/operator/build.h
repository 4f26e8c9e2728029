/* From problem and schedule to the loop IR of a kernel. */
#ifndef ATTUNE_OPERATOR_BUILD_H
#define ATTUNE_OPERATOR_BUILD_H

#include "ir/ir.h"
#include "problem/mha.h"
#include "schedule/schedule_fields.h"
#include "target/target.h"

/* Scheduled IR of the kernel. Its parameters are those of problem/signature.h, in that order. */
ir_kernel *mha_build(at_arena *arena, const attune_problem *canonical, const mha_schedule *schedule,
                     const at_target *target, at_error *err);

#endif
