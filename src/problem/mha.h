/* What attention means: a problem made canonical, a schedule for it, and the loop IR that both give.
 * problem*.c: canonicalise, key, text. signature.c: the tensors and sizes of a call. schedule.c: legality and text.
 * choose.c: a good schedule without measuring. build.c: problem and schedule become phases, each by a builder of its
 * own (q_lanes.c, d_lanes.c, …), which share context.h. */
#ifndef ATTUNE_MHA_MHA_H
#define ATTUNE_MHA_MHA_H

#include "base/struct.h"
#include "ir/ir.h"
#include "target/target.h"

/* The structs of a caller, which may be of another version. mha_canonicalize and the functions on text take them as
 * they are, all others want whole ones. */
extern const at_struct mha_problem_struct, mha_schedule_struct, mha_weights_struct;

/* Fills in every default (num_kv_heads, seq_kv, head_dim_v, softmax_scale, dtypes, strides) and normalises what cannot
 * matter (causal fields of a problem without causal, fields of another op); checks everything. *out is fully
 * initialised, padding too. Strides of a tensor with a dynamic or ragged size stay zero if they were: contiguous at run
 * time. Masks: leading zero dims are 1; strides of dims that are 1 are 0. */
attune_status mha_canonicalize(const attune_problem *problem, attune_problem *out, at_error *err);

attune_status mha_problem_parse(const char *text, attune_problem *problem, at_error *err);
size_t mha_problem_print(const attune_problem *problem, char *text, size_t capacity);
double mha_problem_flops(const attune_problem *canonical);

/* The canonical key: what the kernel is specialised for, serialised byte by byte. Outer strides are not in it, nor are
 * batch and, at equal group size, num_heads; but a block's num_heads is, and where it has few rows, their number
 * (mha_few_rows). Returns its length; the buffer must hold MHA_KEY_BYTES. */
enum { MHA_KEY_BYTES = 704 };
size_t mha_key(const attune_problem *canonical, uint8_t key[MHA_KEY_BYTES]);

/* ---- What a problem is ---- */

/* Attention with the projections around it. */
static inline bool mha_is_block(const attune_problem *p) { return p->op == ATTUNE_MHA; }
/* Attention, alone or in a block: there are values. */
static inline bool mha_attends(const attune_problem *p) { return p->op == ATTUNE_ATTENTION || mha_is_block(p); }
/* There are scores of queries and keys. */
static inline bool mha_has_keys(const attune_problem *p) { return mha_attends(p) || p->op == ATTUNE_WEIGHTS; }

/* ---- What a canonical problem's keys are ---- */

/* Whether the caller has them in k (and v): of a block only those of a cache. */
static inline bool mha_has_caches(const attune_problem *p) {
    return mha_is_block(p) ? p->seq_new || p->kv_projected : mha_has_keys(p);
}
/* A block that projects its keys from x. Without a cache they are as many as there are queries, with one the new keys
 * are. */
static inline bool mha_is_self(const attune_problem *p) { return mha_is_block(p) && !p->is_cross && !p->kv_projected; }
static inline bool mha_keys_follow_queries(const attune_problem *p) { return mha_is_self(p) && !p->seq_new; }
/* Keys that are given projected are taken to be rotated, as a cache holds them. */
static inline bool mha_rotates_keys(const attune_problem *p) {
    return p->rotary_dim && mha_has_keys(p) && !p->kv_projected;
}

/* ---- Quantised caches ---- */

static inline bool mha_is_quantised(attune_dtype dtype) { return dtype == ATTUNE_I8 || dtype == ATTUNE_F8; }
/* Whether k (v) holds codes that what is appended must be rounded to. */
static inline bool mha_appends_codes(const attune_problem *p) {
    return p->seq_new && (mha_is_quantised(p->k_dtype) || mha_is_quantised(p->v_dtype));
}
static inline bool mha_has_scales(attune_scales scales) {
    return scales == ATTUNE_SCALES_HEAD || scales == ATTUNE_SCALES_TOKEN;
}

/* Bytes of an element. */
int64_t mha_dtype_bytes(attune_dtype dtype);

/* ---- Arithmetic by pairs of bf16 (dot2), where the target has that ---- */

/* Whether Q K^T and P V are computed so: Q, K, V and P are bf16 then, sums and softmax f32. Not with `reproducible`,
 * whose bits are those of f32 on every target, nor where a row of Q has half a pair. */
bool mha_attends_by_pairs(const attune_problem *canonical, const at_target *target);
/* Whether a block's projections are: inputs, weights and what the products are of are bf16 then, sums f32. */
bool mha_projects_by_pairs(const attune_problem *canonical, const at_target *target);
/* Whether these products may go by tiles, where their sizes allow it. Not with `reproducible`: these sums have another
 * order, and schedules for few rows have no tiles. */
bool mha_projects_by_tiles(const attune_problem *canonical, const at_target *target);

/* Schedules. */

/* Reads a caller's schedule into `whole` and lets *schedule point there; NULL stays NULL. */
attune_status mha_schedule_in(const attune_schedule **schedule, attune_schedule *whole, at_error *err);

/* Whether two have the same numbers. */
bool mha_schedule_same(const attune_schedule *a, const attune_schedule *b);

attune_status mha_schedule_check(const attune_problem *canonical, const attune_schedule *schedule,
                                 const at_target *target, at_error *err);
void mha_choose(const attune_problem *canonical, const at_target *target, attune_schedule *schedule);
/* The kv_tile that every schedule of a problem with `reproducible` has. */
int32_t mha_reproducible_kv_tile(const attune_problem *canonical);
attune_status mha_schedule_parse(const char *text, attune_schedule *schedule, at_error *err);
size_t mha_schedule_print(const attune_schedule *schedule, char *text, size_t capacity);

/* Scheduled IR of the kernel. Its parameters are those of problem/signature.h, in that order. */
ir_kernel *mha_build(at_arena *arena, const attune_problem *canonical, const attune_schedule *schedule,
                     const at_target *target, at_error *err);

#endif
