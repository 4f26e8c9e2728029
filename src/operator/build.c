/* Assembles the phases of a kernel from a problem and a schedule. Attention:
 *
 *     mask table  ->  prepare (norm, rotary, Hadamard)  ->  append  ->  quantise K, pair V
 *         ->  prefill or decoding  ->  probabilities, if they are an output
 *
 * A block adds projections before these phases, and the output projection after them. */
#include "operator/build.h"

#include "attend/around/around.h"
#include "attend/decode/decode.h"
#include "attend/prefill/prefill.h"
#include "attend/prefill/quantised_keys.h"
#include "attend/prefill/value_pairs.h"
#include "attend/shared/mask_table.h"
#include "attend/shared/score.h"
#include "layer/block.h"
#include "problem/problem_functions.h"
#include "problem/problem_sight.h"
#include "schedule/schedule.h"
#include "problem/problem_fields.h"

static ir_elem elem_of(attune_dtype dtype) {
    return dtype == ATTUNE_F64 ? IR_F64 : dtype == ATTUNE_F16 ? IR_F16 : dtype == ATTUNE_BF16 ? IR_BF16 : IR_F32;
}

/* The element of K or V that this kernel computes: the cache's, unless that is quantised. */
static ir_elem kept_elem(const mha_context *c, bool as_cached, attune_dtype dtype) {
    return as_cached && !mha_is_quantised(dtype) ? elem_of(dtype) : c->elem;
}

/* Fills in everything that follows from a canonical problem. */
static void read_problem(mha_context *c) {
    const attune_problem *p = c->p;
    c->elem = p->softmax_precision == ATTUNE_F64 ? IR_F64 : IR_F32;
    c->lanes = c->s->lanes;
    c->is_pinned = mha_is_pinned(p);
    c->has_fma = !c->is_pinned && c->target->flags & AT_TARGET_FMA;
    c->has_scalef = !c->is_pinned && c->target->flags & AT_TARGET_SCALEF;
    c->group = p->num_heads / p->num_kv_heads;
    c->is_natural = mha_has_natural_scores(p);
    c->in_log2 = mha_quantises_keys(p) && !c->is_natural;
    c->has_first = mha_has_first_key(p);
    c->has_last = mha_has_last_key(p);
    c->has_global = p->global_tokens > 0;
    c->has_position = c->has_first || c->has_last || p->has_alibi_slopes || p->rotary_dim;
    /* A block's keys must have the bits that they would have after a round trip through a cache. */
    const bool as_cached = mha_is_block(p) && p->reproducible;
    c->variant = mha_variant_of(p, c->s, c->target);
    c->q_elem = c->variant.by_pairs ? IR_BF16 : c->elem;
    c->k_elem = c->variant.by_pairs ? IR_BF16 : kept_elem(c, as_cached, p->k_dtype);
    c->v_elem = c->variant.by_pairs ? IR_BF16 : kept_elem(c, as_cached, p->v_dtype);
    c->prepares_keys = mha_prepares_keys(p) && !p->seq_new;
    c->q = c->params.tensor[MHA_Q];
    c->k = c->params.tensor[MHA_K];
    c->v = c->params.tensor[MHA_V];
    c->out = c->params.tensor[MHA_OUT];
    c->lse = c->params.tensor[MHA_LSE];
    c->k_new = c->params.tensor[MHA_K_NEW];
    c->v_new = c->params.tensor[MHA_V_NEW];
}

/* The phase of probabilities needs the LSE. As an output cannot be read, the LSE is in shared memory, and that phase
 * copies it to the caller's memory if it is an output. */
static void share_lse(mha_context *c) {
    if (c->p->weights_mode != ATTUNE_WEIGHTS_SOFTMAX || c->variant.writes_probabilities) return;
    const ir_expr *const dims[] = {c->params.size[MHA_BATCH], c->params.size[MHA_HEADS], c->params.size[MHA_SEQ_Q]};
    c->lse = ir_shared(c->b, "kept_lse", c->elem, 3, dims);
}

/* The epilogues of a block's projections prepare and append, except in a ragged batch. append.c quantises. */
static bool prepares_first(const mha_context *c) { return mha_is_block(c->p) && !c->p->is_ragged; }
static bool appends_first(const mha_context *c) { return prepares_first(c) && !mha_appends_quantised(c->p); }

static void share_attention(mha_context *c) {
    share_lse(c);
    if (mha_prepares(c->p) && !prepares_first(c)) mha_prepare_shared(c);
    if (c->s->strategy == MHA_D_LANES) mha_d_lanes_shared(c);
    mha_quantised_keys_shared(c);
    mha_value_pairs_shared(c);
}

static void build_attention(mha_context *c) {
    if (mha_prepares(c->p) && !prepares_first(c)) mha_prepare(c);
    if (c->p->seq_new && !appends_first(c)) mha_append(c);
    mha_quantised_keys(c);
    mha_value_pairs(c);
    if (c->s->strategy == MHA_D_LANES)
        mha_d_lanes(c);
    else
        mha_q_lanes(c);
    if (c->p->weights_mode && !c->variant.writes_probabilities) mha_probabilities(c);
}

static void build_block(mha_context *c) {
    mha_block block;
    mha_block_shared(&block, c);
    share_attention(c);
    if (c->mask_table) mha_mask_table(c);
    mha_block_inputs(&block);
    build_attention(c);
    mha_block_output(&block);
}

static void build_weights(mha_context *c) {
    if (mha_prepares(c->p)) mha_prepare_shared(c);
    if (mha_prepares(c->p)) mha_prepare(c);
    mha_probabilities(c);
}

static void build_phases(void *user) {
    mha_context *c = user;
    mha_declare_params(c->b, c->p, &c->params);
    read_problem(c);
    if (c->variant.has_mask_table) mha_mask_table_shared(c);
    switch (c->p->op) {
    case ATTUNE_WEIGHTS: build_weights(c); break;
    case ATTUNE_ROTARY: mha_rotary_op(c); break;
    case ATTUNE_MERGE: mha_merge_op(c); break;
    case ATTUNE_MHA: build_block(c); break;
    default:
        share_attention(c);
        if (c->mask_table) mha_mask_table(c);
        build_attention(c);
        break;
    }
}

ir_kernel *mha_build(at_arena *arena, const attune_problem *canonical, const mha_schedule *schedule,
                     const at_target *target, at_error *err) {
    mha_schedule settled = *schedule;
    mha_schedule_settle(canonical, target, NULL, &settled);
    mha_context c = {.p = canonical, .s = &settled, .target = target};
    c.b = ir_builder_new(arena, mha_op_name(canonical->op));
    if (!c.b) {
        at_fail_memory(err, sizeof(ir_kernel));
        return NULL;
    }
    if (mha_has_functions(canonical)) {
        ex_program *const functions = at_arena_alloc(arena, sizeof *functions); /* too large for a caller's stack */
        if (!functions) {
            at_fail_memory(err, sizeof *functions);
            return NULL;
        }
        if (mha_read_functions(canonical, functions, err)) return NULL;
        c.functions = functions;
    }
    ir_builder_run(c.b, build_phases, &c);
    return ir_builder_finish(c.b, err);
}
