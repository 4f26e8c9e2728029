/* The whole block: every sort of problem under chosen schedules and any others of both strategies, as machine code and
 * by the interpreter, against the reference. */
#include "check/check_case.h"
#include "problem/mha.h"
#include "schedule/schedule.h"
#include "support/ir/jit_run.h"
#include "support/problems.h"
#include "support/tensor_calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CACHED "is_causal=1,causal_align=bottom_right"

static const sample cases[] = {
    {"embed_dim=1,num_heads=1,seq_q=1"},
    {"embed_dim=64,num_heads=4,seq_q=20"},
    {"batch=3,embed_dim=30,num_heads=3,seq_q=7,has_lse=1"},
    {"batch=2,embed_dim=20,num_heads=6,num_kv_heads=2,head_dim=7,head_dim_v=5,out_dim=33,seq_q=9"},
    {"embed_dim=24,num_heads=3,head_dim=24,seq_q=11"},
    {"batch=2,embed_dim=300,num_heads=7,head_dim=40,out_dim=301,seq_q=19"},
    {"batch=2,embed_dim=600,num_heads=8,seq_q=9,no_out_projection=1"},
    /* groups of several whole tiles: taken apart where rows are few */
    {"batch=2,embed_dim=128,num_heads=4,seq_q=3"},
    {"batch=2,embed_dim=36,num_heads=8,num_kv_heads=4,head_dim=64,head_dim_v=32,out_dim=128,seq_q=40"},
    /* fields that hide keys or change scores */
    {"batch=2,embed_dim=40,num_heads=4,seq_q=30,is_causal=1,has_lse=1"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=60,window_left=5,window_right=3,global_tokens=2"},
    {"batch=2,embed_dim=40,num_heads=4,num_kv_heads=2,seq_q=20,attn_mask_dims=bqk,has_sinks=1,has_lse=1"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=20,attn_bias_dims=hqk,attn_mask_dims=k,has_alibi_slopes=1,"
     "logits_soft_cap=3"},
    {"batch=3,embed_dim=40,num_heads=4,seq_q=9,has_kv_lens=1"},
    {"batch=3,embed_dim=40,num_heads=4,seq_q=9,has_causal_offsets=1,is_causal=1"},
    /* rotary */
    {"batch=2,embed_dim=40,num_heads=4,seq_q=9,rotary_dim=10,is_causal=1", "rotary_positions=9"},
    {"batch=2,embed_dim=40,num_heads=4,num_kv_heads=1,seq_q=9,rotary_dim=6,rotary_interleaved=1",
     "rotary_positions=12"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=9,rotary_dim=6,has_position_ids=1", "rotary_positions=12"},
    {"batch=3,embed_dim=40,num_heads=4,seq_q=9,has_kv_lens=1,rotary_dim=8", "rotary_positions=9"},
    /* lengths of a call */
    {"batch=3,embed_dim=40,num_heads=4,seq_q=dynamic,rotary_dim=4,is_causal=1", "seq_q=7,rotary_positions=8"},
    {"batch=3,embed_dim=40,num_heads=4,seq_q=dynamic", "seq_q=0"},
    {"batch=3,embed_dim=40,kv_embed_dim=27,num_heads=4,seq_q=dynamic,seq_kv=dynamic", "seq_q=4,seq_kv=6"},
    {"batch=3,embed_dim=40,kv_embed_dim=27,num_heads=4,seq_q=dynamic,seq_kv=dynamic", "seq_q=4,seq_kv=0"},
    /* other inputs */
    {"batch=3,embed_dim=40,num_heads=4,seq_q=5,seq_kv=13,is_cross=1"},
    {"batch=3,embed_dim=40,kv_embed_dim=27,v_embed_dim=19,num_heads=4,num_kv_heads=2,seq_q=5,seq_kv=13"},
    {"batch=3,embed_dim=40,v_embed_dim=19,num_heads=4,seq_q=5"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=5,v_in_k=1,head_dim_v=7"},
    {"batch=2,embed_dim=8,num_heads=4,seq_q=9,x_strides=1000:20:2,out_strides=1000:9:1"},
    /* caches */
    {"batch=2,embed_dim=40,num_heads=4,seq_q=5,seq_kv=13,kv_projected=1"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=5,seq_kv=13,kv_projected=1,rotary_dim=6", "rotary_positions=20"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=5,seq_kv=13,kv_projected=1,v_in_k=1"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=1,seq_kv=300,kv_projected=1,has_lse=1"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=1,seq_kv=20,seq_new=1," CACHED},
    {"batch=2,embed_dim=40,num_heads=4,num_kv_heads=2,seq_q=3,seq_kv=20,seq_new=3,has_kv_lens=1,rotary_dim=10," CACHED,
     "rotary_positions=20"},
    {"batch=2,embed_dim=40,num_heads=4,num_kv_heads=2,seq_q=9,qk_norm_eps=1e-6,rotary_dim=10,is_causal=1",
     "rotary_positions=9"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=9,qk_norm_eps=0.5,weights_mode=scaled,has_kv_lens=1"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=5,seq_kv=13,kv_projected=1,qk_norm_eps=1e-6"},
    {"batch=2,embed_dim=40,num_heads=4,num_kv_heads=2,seq_q=3,seq_kv=20,seq_new=3,has_kv_lens=1,rotary_dim=6,"
     "rotary_interleaved=1,qk_norm_eps=1e-6," CACHED,
     "rotary_positions=20"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=2,seq_kv=20,seq_new=2,has_kv_lens=1,page_size=4,qk_norm_eps=0.25," CACHED,
     "num_pages=11,max_pages=5"},
    {"batch=3,embed_dim=40,num_heads=4,is_ragged=1,dtype=bf16,rotary_dim=10,qk_norm_eps=1e-6,is_causal=1",
     "total_q=20,rotary_positions=20"},
    {"batch=2,embed_dim=40,num_heads=4,head_dim=16,seq_q=9,qk_hadamard=1,weights_mode=scaled"},
    {"batch=2,embed_dim=40,num_heads=4,head_dim=16,seq_q=5,seq_kv=13,kv_projected=1,qk_hadamard=1"},
    {"batch=2,embed_dim=40,num_heads=4,num_kv_heads=2,head_dim=32,seq_q=3,seq_kv=20,seq_new=3,has_kv_lens=1,"
     "rotary_dim=6,qk_norm_eps=1e-6,qk_hadamard=1," CACHED,
     "rotary_positions=20"},
    {"batch=3,embed_dim=40,num_heads=4,head_dim=16,is_ragged=1,dtype=bf16,rotary_dim=10,qk_hadamard=1,is_causal=1",
     "total_q=20,rotary_positions=20"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=1,seq_kv=20,seq_new=1,rotary_dim=10,has_position_ids=1," CACHED,
     "rotary_positions=20"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=2,seq_kv=20,seq_new=2,has_kv_lens=1,page_size=4,rotary_dim=10," CACHED,
     "rotary_positions=20,num_pages=11,max_pages=5"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=dynamic,seq_kv=dynamic,seq_new=dynamic,has_kv_lens=1," CACHED,
     "seq_q=3,seq_new=3,seq_kv=9"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=3,seq_kv=20,seq_new=4,is_cross=1"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=2,seq_kv=20,seq_new=2,v_in_k=1,head_dim_v=4,k_dtype=f16," CACHED},
    /* ragged batches */
    {"batch=3,embed_dim=40,num_heads=4,is_ragged=1", "seq_q=7,seq_kv=7,total_q=15"},
    {"batch=3,embed_dim=40,num_heads=4,is_ragged=1,is_causal=1,rotary_dim=10,has_lse=1",
     "seq_q=7,seq_kv=7,total_q=15,rotary_positions=9"},
    {"batch=3,embed_dim=40,num_heads=4,is_ragged=1,is_causal=1,rotary_dim=10,has_position_ids=1",
     "seq_q=7,seq_kv=7,total_q=15,rotary_positions=9"},
    {"batch=3,embed_dim=40,num_heads=4,is_ragged=1,is_cross=1,no_out_projection=1",
     "seq_q=7,seq_kv=9,total_q=15,total_kv=20"},
    {"batch=3,embed_dim=40,num_heads=4,is_ragged=1,seq_new=dynamic,rotary_dim=10," CACHED,
     "seq_q=7,seq_kv=12,total_q=15,total_kv=30,rotary_positions=12"},
    {"batch=3,embed_dim=40,num_heads=4,is_ragged=1,seq_new=dynamic,page_size=4,has_kv_lens=1," CACHED,
     "seq_q=5,seq_kv=12,total_q=15,num_pages=12,max_pages=3"},
    {"batch=2,embed_dim=40,num_heads=4,is_ragged=1,kv_projected=1,page_size=4,has_kv_lens=1",
     "seq_q=5,seq_kv=12,total_q=15,num_pages=12,max_pages=3"},
    /* Linformer */
    {"batch=2,embed_dim=40,num_heads=4,num_kv_heads=2,seq_q=30,low_rank=6"},
    {"batch=2,embed_dim=40,num_heads=4,num_kv_heads=2,seq_q=30,low_rank=6,low_rank_heads=1,low_rank_shared=1"},
    {"embed_dim=40,num_heads=4,seq_q=30,low_rank=6,low_rank_shared=1,v_in_k=1,head_dim_v=3"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=3,seq_kv=30,low_rank=7,low_rank_heads=1,is_cross=1,weights_mode=softmax"},
    {"embed_dim=40,num_heads=1,seq_q=3,seq_kv=29,low_rank=300,is_cross=1"},
    /* weights */
    {"batch=2,embed_dim=40,num_heads=4,seq_q=9,weights_mode=softmax,has_lse=1"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=9,weights_mode=softmax,weights_average=1,is_causal=1"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=9,weights_mode=scaled,has_kv_lens=1"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=9,weights_mode=scaled,has_kv_lens=1,rotary_dim=4", "rotary_positions=9"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=9,weights_mode=capped,logits_soft_cap=3,no_out_projection=1"},
    /* types */
    {"batch=2,embed_dim=40,num_heads=4,seq_q=9,dtype=f16"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=9,dtype=bf16,w_dtype=f32"},
    {"batch=2,embed_dim=64,num_heads=4,seq_q=19,dtype=bf16,has_lse=1"},
    {"batch=2,embed_dim=41,num_heads=3,head_dim=9,out_dim=33,seq_q=9,dtype=bf16,has_lse=1"},
    {"embed_dim=40,num_heads=4,seq_q=1,dtype=bf16,softmax_precision=f64"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=9,dtype=bf16,rotary_dim=10,is_causal=1,weights_mode=softmax",
     "rotary_positions=9"},
    {"batch=2,embed_dim=40,num_heads=4,num_kv_heads=2,seq_q=9,dtype=bf16,rotary_dim=6,rotary_interleaved=1",
     "rotary_positions=9"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=2,seq_kv=20,seq_new=2,dtype=bf16,rotary_dim=10," CACHED,
     "rotary_positions=20"},
    {"batch=3,embed_dim=40,num_heads=4,is_ragged=1,dtype=bf16,rotary_dim=10,is_causal=1",
     "seq_q=7,seq_kv=7,total_q=15,rotary_positions=9"},
    {"batch=3,embed_dim=41,num_heads=4,head_dim=10,is_ragged=1,dtype=bf16,no_out_projection=1",
     "seq_q=7,seq_kv=7,total_q=15"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=9,dtype=bf16,reproducible=1"},
    {"batch=2,embed_dim=40,num_heads=4,num_kv_heads=2,seq_q=30,low_rank=6,dtype=bf16"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=9,w_dtype=bf16"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=9,dtype=f64"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=9,dtype=f16,softmax_precision=f64"},
    {"batch=2,embed_dim=40,num_heads=4,seq_q=2,seq_kv=9,seq_new=2,k_dtype=bf16,v_dtype=f16,rotary_dim=4," CACHED,
     "rotary_positions=9"},
    /* the same bits as from a cache */
    {"batch=2,embed_dim=40,num_heads=4,seq_q=9,reproducible=1,k_dtype=bf16,v_dtype=f16,rotary_dim=4",
     "rotary_positions=9"},
    {"batch=2,embed_dim=40,num_heads=4,is_ragged=1,reproducible=1,k_dtype=bf16,v_dtype=f16,rotary_dim=4",
     "seq_q=7,seq_kv=7,total_q=12,rotary_positions=9"},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

static tool_random random_source;

static int32_t one_of(int32_t low, int32_t high) { return (int32_t)tool_random_range(&random_source, low, high); }

/* ---- Problems, schedules and calls ---- */

static mha_schedule random_schedule(const attune_problem *p, const at_target *target, mha_strategy strategy) {
    const bool by_q = strategy == MHA_Q_LANES;
    for (;;) {
        mha_schedule s = {0};
        s.strategy = strategy;
        s.lanes = 1 << one_of(0, 4);
        s.score_keys = 1 << one_of(0, 3);
        *(by_q ? &s.score_row_vectors : &s.score_rows) = one_of(1, 3);
        *(by_q ? &s.score_columns : &s.score_column_vectors) = one_of(1, 2);
        *(by_q ? &s.value_columns : &s.value_rows) = one_of(1, 4);
        *(by_q ? &s.value_row_vectors : &s.value_column_vectors) = one_of(1, 3);
        s.value_keys = one_of(1, 2);
        s.task_row_vectors = by_q ? s.score_row_vectors * one_of(1, 3) : 0;
        s.kv_tile = p->reproducible ? mha_reproducible_kv_tile(p) : s.lanes * s.score_keys * one_of(1, 3);
        s.kv_chunk = by_q ? 0 : s.kv_tile * one_of(1, 3);
        s.gemm_rows = one_of(1, 7);
        s.gemm_column_vectors = 1 << one_of(0, 2);
        s.gemm_task_rows = s.gemm_rows * one_of(1, 4);
        s.gemm_depth = one_of(0, 1) ? one_of(1, 70) : 0;
        if (!mha_schedule_check(p, &s, target, NULL)) return s;
    }
}

/* ---- Every sort of problem ---- */

/* Once by machine code, where this CPU can run it, and once by the interpreter, which checks every access. The
 * reference needs the old contents of caches: its copy is one that was not yet written to. */
static void check_one(const at_target *target, attune_context *context, const sample *from,
                      const mha_schedule *schedule, input_kind kind, uint64_t seed) {
    tensors t, again;
    tensors_open_sample(&t, from, kind, seed);
    assert_true(tensors_share(&again, &t));
    char what[1024], text[320] = "chosen";
    if (schedule) mha_schedule_print(schedule, text, sizeof text);
    snprintf(what, sizeof what, "%s %s %s, %s inputs", from->problem, from->sizes ? from->sizes : "", text,
             input_kind_name(kind));
    if (at_target_runs_here(target))
        tensors_run_chosen(context, &t, schedule);
    else
        tensors_interpret(context, &t, schedule);
    tensors_interpret(context, &again, schedule);
    tensors_assert_right(&t, kind, what);
    tensors_assert_same(&t, &again, what);
    tensors_free(&again);
    tensors_free(&t);
}

/* Each sample on each target: with ordinary inputs, and with one of the other kinds in turn. */
static void test_chosen_schedules(void **state) {
    (void)state;
    static const input_kind others[] = {INPUT_CONSTANT, INPUT_NONFINITE, INPUT_HIDDEN};
    uint64_t seed = 0;
    for (const at_target *target = at_targets(); target->name; target++) {
        if (!target_is_tested(target) || !target_can_run(target)) continue;
        attune_context *context = tensors_context(target->name, 2);
        for (int i = 0; i < NUM_CASES; i++, seed++) {
            check_one(target, context, &cases[i], NULL, INPUT_ORDINARY, seed);
            if (!tests_are_short() || i % 2) check_one(target, context, &cases[i], NULL, others[seed % 3], seed);
        }
        attune_context_destroy(context);
    }
}

/* The next target that is tested; after the last one the first again. */
static const at_target *next_target(const at_target *target) {
    do target = target && target[1].name ? target + 1 : at_targets();
    while (!target_is_tested(target));
    return target;
}

/* Each sample on one of the targets in turn. */
static void test_any_schedule(void **state) {
    (void)state;
    const at_target *target = NULL;
    for (int i = 0; i < NUM_CASES; i++) {
        target = next_target(target);
        attune_context *context =
            target_can_run(target) ? tensors_context(target->name, 2) : tensors_context_for(target);
        const attune_problem p = problem_canonical(cases[i].problem);
        for (int strategy = 0; strategy < MHA_STRATEGY_COUNT; strategy++) {
            if (tests_are_short() && strategy != i / 2 % MHA_STRATEGY_COUNT) continue;
            random_source.state = (uint64_t)(2 * i + strategy);
            const mha_schedule s = random_schedule(&p, target, (mha_strategy)strategy);
            check_one(target, context, &cases[i], &s, INPUT_ORDINARY, (uint64_t)i);
        }
        attune_context_destroy(context);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chosen_schedules),
        cmocka_unit_test(test_any_schedule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
