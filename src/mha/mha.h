/* What attention means: a problem made canonical, a schedule for it, and the loop IR that both give.
 * problem.c: parse, print, check, canonicalise. schedule.c: legality and text. choose.c: a good schedule without
 * measuring. q_lanes.c: the builder. */
#ifndef ATTUNE_MHA_MHA_H
#define ATTUNE_MHA_MHA_H

#include "base/error.h"
#include "ir/ir.h"
#include "target/target.h"

/* Fills in every default (num_kv_heads, seq_kv, head_dim_v, softmax_scale, strides) and normalises what cannot
 * matter (causal fields of a problem without causal); checks everything. *out is fully initialised, padding too. */
attune_status mha_canonicalize(const attune_problem *problem, attune_problem *out, at_error *err);

attune_status mha_problem_parse(const char *text, attune_problem *problem, at_error *err);
size_t mha_problem_print(const attune_problem *problem, char *text, size_t capacity);
double mha_problem_flops(const attune_problem *canonical);

/* The canonical key: what the kernel is specialised for, serialised byte by byte. batch, num_heads at equal group
 * size and outer strides are not in it. Returns its length; the buffer must hold MHA_KEY_BYTES. */
enum { MHA_KEY_BYTES = 256 };
size_t mha_key(const attune_problem *canonical, uint8_t key[MHA_KEY_BYTES]);

/* Schedules. */
attune_status mha_schedule_check(const attune_problem *canonical, const attune_schedule *schedule,
                                 const at_target *target, at_error *err);
void mha_choose(const attune_problem *canonical, const at_target *target, attune_schedule *schedule);
attune_status mha_schedule_parse(const char *text, attune_schedule *schedule, at_error *err);
size_t mha_schedule_print(const attune_schedule *schedule, char *text, size_t capacity);

/* Scheduled IR of the kernel. Buffer params in order: q, k, v, out, then lse if the problem has one. Scalar params in
 * the order of mha_scalars. */
ir_kernel *mha_build(at_arena *arena, const attune_problem *canonical, const attune_schedule *schedule,
                     const at_target *target, at_error *err);

/* The scalar arguments of that kernel for one call, in the order that mha_build declares them. */
enum { MHA_MAX_SCALARS = 32, MHA_MAX_BUFFERS = 8 };
size_t mha_scalars(const attune_arguments *arguments, int64_t scalars[MHA_MAX_SCALARS]);

#endif
