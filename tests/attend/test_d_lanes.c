/* The d-lanes strategy and the merging of partial results: every sort of problem with few query rows, as machine code
 * and by the interpreter, also as lowered for targets that this CPU cannot run, against the reference; with bits that
 * depend neither on the threads nor, where they are promised, on strategy and chunks. */
#include "attend/decode/layout.h"
#include "check/check_case.h"
#include "engine/context.h"
#include "problem/signature.h"
#include "schedule/choose.h"
#include "schedule/variant.h"
#include "support/attend/attend_samples.h"
#include "support/ir/jit_run.h"
#include "support/problems.h"
#include "support/tensor_calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static tool_random random_source;

static int32_t one_of(int32_t low, int32_t high) { return (int32_t)tool_random_range(&random_source, low, high); }

/* ---- Problems, schedules and calls ---- */

static mha_schedule random_schedule(const attune_problem *p, const at_target *target) {
    for (;;) {
        mha_schedule s = {0};
        s.strategy = MHA_D_LANES;
        s.lanes = 1 << one_of(0, 4);
        s.score_keys = one_of(0, 1) ? 1 << one_of(0, 3) : one_of(1, 8);
        s.score_rows = one_of(1, 5);
        s.score_column_vectors = one_of(1, 4);
        s.value_rows = one_of(1, 5);
        s.value_column_vectors = one_of(1, 4);
        s.value_keys = one_of(1, 4);
        if (p->integer == ATTUNE_INTEGER_ALL) s.value_keys = s.value_column_vectors = 1;
        const bool is_fixed = p->reproducible || p->integer == ATTUNE_INTEGER_ALL;
        s.kv_tile = is_fixed ? mha_reproducible_kv_tile(p) : s.lanes * s.score_keys * one_of(1, 4);
        s.kv_chunk = s.kv_tile * one_of(1, 4);
        if (!mha_schedule_check(p, &s, target, NULL)) return s;
    }
}

/* ---- Tests ---- */

static const input_kind kinds[] = {INPUT_ORDINARY, INPUT_CONSTANT, INPUT_NONFINITE, INPUT_HIDDEN};
enum { NUM_KINDS = sizeof kinds / sizeof *kinds };

/* Once by machine code and once by the interpreter, which checks every access. */
static void check_one(attune_context *context, const sample *from, const mha_schedule *schedule, uint64_t seed) {
    const input_kind kind = kinds[seed % NUM_KINDS];
    tensors t, again;
    tensors_open_sample(&t, from, kind, seed);
    assert_true(tensors_share(&again, &t));
    char what[1024], text[256];
    mha_schedule_print(schedule, text, sizeof text);
    snprintf(what, sizeof what, "%s %s %s, %s inputs", from->problem, from->sizes ? from->sizes : "", text,
             input_kind_name(kind));
    tensors_run_chosen(context, &t, schedule);
    tensors_interpret(context, &again, schedule);
    tensors_assert_right(&t, kind, what);
    tensors_assert_same(&t, &again, what);
    tensors_free(&again);
    tensors_free(&t);
}

/* Whether another target gives the same kernel apart from its widths: without pairs and without codes of f8, a target
 * with dot products gives the kernel of the one below it; problems of pairs are for targets with dot products. */
static bool is_covered(const attune_problem *p, const at_target *target) {
    const bool has_pairs = mha_attends_by_pairs(p, at_target_find("avx512_bf16"));
    const bool has_dots = target->flags & AT_TARGET_BF16_DOT,
               has_tables = p->k_dtype == ATTUNE_F8 || p->v_dtype == ATTUNE_F8;
    return has_pairs != has_dots && !(has_dots && has_tables);
}

static void test_every_sort_of_problem(void **state) {
    (void)state;
    for (const at_target *target = at_targets(); target->name; target++) {
        if (!target_is_tested(target) || !target_can_run(target)) continue;
        attune_context *context = tensors_context(target->name, 2);
        for (int i = 0; i < NUM_DECODING; i++) {
            const attune_problem p = problem_canonical(attend_decoding[i].problem);
            if (is_covered(&p, target)) continue;
            random_source.state = (uint64_t)i;
            for (uint64_t n = 0; n < NUM_KINDS; n++) {
                const mha_schedule schedule = random_schedule(&p, target);
                if (tests_are_short() && n != (uint64_t)i % NUM_KINDS) continue;
                check_one(context, &attend_decoding[i], &schedule, n);
            }
        }
        attune_context_destroy(context);
    }
}

static void test_chosen_schedules_of_all_targets(void **state) {
    (void)state;
    for (int i = 0; i < NUM_DECODING; i++) {
        const attune_problem p = problem_canonical(attend_decoding[i].problem);
        if (attend_decoding[i].sizes || p.seq_new) continue;
        for (const at_target *target = at_targets(); target->name; target++) {
            mha_schedule schedule = {0};
            mha_choose_by(MHA_D_LANES, mha_read(&p), target, usual_machine(target), &schedule);
            assert_int_equal(mha_schedule_check(&p, &schedule, target, NULL), ATTUNE_OK);
            tensors t;
            tensors_open_sample(&t, &attend_decoding[i], INPUT_HIDDEN, 3);
            tensors_interpret_for(&t, target, &schedule);
            tensors_assert_right(&t, INPUT_HIDDEN, attend_decoding[i].problem);
            tensors_free(&t);
        }
    }
}

/* Groups of heads under a window, over caches of open length: many facts are about the keys that a tile has. */
static void test_bounds_of_windows_are_proved(void **state) {
    static const int windows[] = {1, 57, 100, 255}, groups[] = {1, 4, 8};
    (void)state;
    for (const at_target *target = at_targets(); target->name; target++) {
        attune_context *context = tensors_context_for(target);
        for (size_t w = 0; w < sizeof windows / sizeof *windows; w++)
            for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
                char text[200];
                void *data;
                snprintf(
                    text, sizeof text,
                    "num_heads=8,num_kv_heads=%d,head_dim=64,seq_q=dynamic,seq_kv=dynamic,has_kv_lens=1,is_causal=1,"
                    "window_left=%d",
                    8 / groups[g], windows[w]);
                const attune_problem p = problem_canonical(text);
                if (attune_emit(context, &p, NULL, ATTUNE_STAGE_LOWERED, &data, &(size_t){0}))
                    fail_msg("%s: %s: %s", target->name, text, attune_last_message());
                attune_free(context, data);
            }
        attune_context_destroy(context);
    }
}

/* The caller's thread alone, and with one and two others. */
static void test_bits_do_not_depend_on_threads(void **state) {
    (void)state;
    static const sample many = {"batch=2,num_heads=8,num_kv_heads=4,seq_q=2,seq_kv=700,head_dim=24,has_lse=1"};
    const attune_problem p = problem_canonical(many.problem);
    tensors first, other;
    random_source.state = 1;
    const mha_schedule schedule = random_schedule(&p, at_target_find("x86-64"));
    for (uint32_t workers = 1; workers <= 3; workers++) {
        attune_context *context = tensors_context(NULL, workers);
        if (workers == 1) tensors_open_sample(&first, &many, INPUT_ORDINARY, 1);
        if (workers > 1) assert_true(tensors_share(&other, &first));
        tensors_run_chosen(context, workers == 1 ? &first : &other, &schedule);
        if (workers > 1) {
            tensors_assert_same(&first, &other, "threads");
            tensors_free(&other);
        }
        attune_context_destroy(context);
    }
    tensors_free(&first);
}

static const sample reproducible[] = {
    {"num_heads=4,num_kv_heads=2,seq_q=3,seq_kv=230,head_dim=20,has_lse=1,reproducible=1"},
    {"num_heads=2,seq_q=5,seq_kv=220,head_dim=7,head_dim_v=5,is_causal=1,causal_align=bottom_right,has_lse=1,"
     "reproducible=1"},
    {"num_heads=2,seq_q=5,seq_kv=500,head_dim=12,window_left=40,window_right=3,global_tokens=4,has_lse=1,"
     "reproducible=1"},
    {"num_heads=2,seq_q=1,seq_kv=500,head_dim=12,window_left=40,is_causal=1,causal_align=bottom_right,reproducible=1"},
    {"batch=2,num_heads=4,num_kv_heads=2,seq_q=2,seq_kv=230,head_dim=12,attn_bias_dims=hqk,attn_mask_dims=k,"
     "has_sinks=1,has_lse=1,"
     "has_alibi_slopes=1,logits_soft_cap=3,has_kv_lens=1,reproducible=1"},
    {"batch=2,num_heads=4,num_kv_heads=2,seq_q=2,seq_kv=dynamic,head_dim=20,page_size=5,has_kv_lens=1,is_causal=1,"
     "causal_align=bottom_right,reproducible=1",
     "seq_kv=201,num_pages=200,max_pages=50"},
    {"num_heads=2,seq_q=2,seq_kv=230,head_dim=6,dtype=f64,has_lse=1,reproducible=1"},
    {"num_heads=2,seq_q=3,seq_kv=100,head_dim=20,has_lse=1,reproducible=1"}, /* q-lanes: by rows, one tile */
    {"num_heads=2,seq_q=3,seq_kv=700,head_dim=40,head_dim_v=130,has_sinks=1,has_lse=1,reproducible=1"},
    {"num_heads=2,seq_q=2,seq_kv=230,head_dim=6,dtype=f16,softmax_scale=-1,reproducible=1"},
    {"num_heads=4,num_kv_heads=2,seq_q=3,seq_kv=230,seq_new=200,head_dim=32,kv_dtype=i4,kv_scales=group,qk_hadamard=1,"
     "reproducible=1"},
};
enum { NUM_REPRODUCIBLE = sizeof reproducible / sizeof *reproducible };

static void test_reproducible_bits_are_those_of_q_lanes(void **state) {
    (void)state;
    for (const at_target *target = at_targets(); target->name; target++) {
        if (!target_is_tested(target) || !target_can_run(target)) continue;
        attune_context *context = tensors_context(target->name, 1);
        for (int i = 0; i < NUM_REPRODUCIBLE * NUM_KINDS; i++) {
            const sample *from = &reproducible[i / NUM_KINDS];
            const attune_problem p = problem_canonical(from->problem);
            const mha_schedule q_lanes = schedule_reproducible(&p, target);
            tensors t, other;
            if (tests_are_short() && i % NUM_KINDS != i / NUM_KINDS % NUM_KINDS) continue;
            random_source.state = (uint64_t)i;
            const mha_schedule schedule = random_schedule(&p, target);
            tensors_open_sample(&t, from, kinds[i % NUM_KINDS], (uint64_t)i);
            assert_true(tensors_share(&other, &t));
            tensors_run_chosen(context, &t, &q_lanes);
            tensors_run_chosen(context, &other, &schedule);
            tensors_assert_same(&t, &other, from->problem);
            tensors_free(&other);
            tensors_free(&t);
        }
        attune_context_destroy(context);
    }
}

/* Row i of a causal problem over KEYS keys, computed alone over the keys up to it, has the bits that it has in the
 * whole. */
static void test_decoding_gives_the_rows_of_the_whole(void **state) {
    (void)state;
    enum { KEYS = 230, DIM = 9 };
    static const sample whole = {"seq_q=230,seq_kv=230,head_dim=9,is_causal=1,reproducible=1"};
    static const sample step = {"seq_q=1,seq_kv=dynamic,max_seq_kv=230,head_dim=9,reproducible=1", "seq_kv=230"};
    const attune_problem p = problem_canonical(step.problem);
    const at_target *x86 = at_target_find("x86-64");
    const at_target *target = at_target_runs_here(x86) ? x86 : at_targets();
    while (!at_target_runs_here(target)) target++;
    attune_context *context = tensors_context(target->name, 1);
    random_source.state = 5;
    const mha_schedule schedule = random_schedule(&p, target);
    tensors t, one;
    tensors_open_sample(&t, &whole, INPUT_ORDINARY, 5);
    tensors_run_chosen(context, &t, NULL);
    tensors_open_sample(&one, &step, INPUT_ORDINARY, 5);
    for (int i = 0; i < KEYS; i += 13) {
        const float *rows = tensors_find(&t, "out")->data, *row = tensors_find(&one, "out")->data;
        memcpy(tensors_find(&one, "q")->data, (const float *)tensors_find(&t, "q")->data + i * DIM,
               DIM * sizeof(float));
        memcpy(tensors_find(&one, "k")->data, tensors_find(&t, "k")->data, KEYS * DIM * sizeof(float));
        memcpy(tensors_find(&one, "v")->data, tensors_find(&t, "v")->data, KEYS * DIM * sizeof(float));
        one.arguments.seq_kv = i + 1;
        tensors_run_chosen(context, &one, &schedule);
        assert_memory_equal(row, rows + i * DIM, DIM * sizeof(float));
    }
    tensors_free(&one);
    tensors_free(&t);
    attune_context_destroy(context);
}

/* ---- Scores of integers ---- */

/* Of one key lse is the score, and nothing else rounds it: the same bits on every instruction set, whatever its order
 * of sums. Codes of -128 and 127 and the largest head are the extremes of the sums. */
static void test_integer_scores_have_the_same_bits_everywhere(void **state) {
    (void)state;
    static const sample one_key[] = {
        {"num_heads=6,num_kv_heads=2,seq_q=3,seq_kv=1,head_dim=1024,k_dtype=i8,has_lse=1,integer=scores"},
        {"num_heads=3,num_kv_heads=1,seq_q=2,seq_kv=1,head_dim=77,k_dtype=i8,has_lse=1,integer=scores,q_planes=1"},
    };
    for (size_t i = 0; i < sizeof one_key / sizeof *one_key; i++) {
        const attune_problem p = problem_canonical(one_key[i].problem);
        tensors first;
        tensors_open_sample(&first, &one_key[i], INPUT_ORDINARY, 7);
        signed char *codes = tensors_find(&first, "k")->data;
        memset(codes, -128, (size_t)p.head_dim);
        memset(codes + p.head_dim / 2, 127, (size_t)p.head_dim / 4);
        for (const at_target *target = at_targets(); target->name; target++) {
            mha_schedule schedule = {0};
            mha_choose_by(MHA_D_LANES, mha_read(&p), target, usual_machine(target), &schedule);
            if (target == at_targets()) tensors_interpret_for(&first, target, &schedule);
            tensors other;
            assert_true(tensors_share(&other, &first));
            tensors_interpret_for(&other, target, &schedule);
            assert_memory_equal(tensors_find(&first, "lse")->data, tensors_find(&other, "lse")->data,
                                (size_t)(p.num_heads * p.seq_q) * sizeof(float));
            tensors_free(&other);
        }
        tensors_free(&first);
    }
}

/* Sums of integers do not depend on the order of the columns, however different these are in size. */
static void test_columns_of_integer_scores_may_be_moved(void **state) {
    (void)state;
    enum { ROWS = 4, KEYS = 9, DIM = 96 };
    static const sample from = {"num_heads=2,num_kv_heads=1,seq_q=2,seq_kv=9,head_dim=96,k_dtype=i8,integer=scores"};
    attune_context *context = tensors_context(NULL, 1);
    tensors t, moved;
    tensors_open_sample(&t, &from, INPUT_ORDINARY, 8);
    float *q = tensors_find(&t, "q")->data;
    for (int i = 0; i < ROWS * DIM; i += 5) q[i] *= 100;
    assert_true(tensors_share(&moved, &t));
    tensors_run_chosen(context, &t, NULL);
    signed char *k = tensors_find(&moved, "k")->data;
    q = tensors_find(&moved, "q")->data;
    for (int i = 0; i < ROWS; i++)
        for (int d = 0; d < DIM / 2; d++) {
            const float last = q[i * DIM + DIM - 1 - d];
            q[i * DIM + DIM - 1 - d] = q[i * DIM + d];
            q[i * DIM + d] = last;
        }
    for (int j = 0; j < KEYS; j++)
        for (int d = 0; d < DIM / 2; d++) {
            const signed char last = k[j * DIM + DIM - 1 - d];
            k[j * DIM + DIM - 1 - d] = k[j * DIM + d];
            k[j * DIM + d] = last;
        }
    tensors_run_chosen(context, &moved, NULL);
    assert_memory_equal(tensors_find(&t, "out")->data, tensors_find(&moved, "out")->data, ROWS * DIM * sizeof(float));
    tensors_free(&moved);
    tensors_free(&t);
    attune_context_destroy(context);
}

/* ---- Merging ---- */

static void test_merge(void **state) {
    (void)state;
    static const sample merges[] = {
        {"op=merge,batch=2,num_heads=3,seq_q=37,head_dim_v=21,num_parts=4,has_lse=1"},
        {"op=merge,num_heads=1,seq_q=1,head_dim_v=1,num_parts=1"},
        {"op=merge,num_heads=2,seq_q=dynamic,head_dim_v=8,num_parts=2,has_lse=1", "seq_q=5"},
        {"op=merge,num_heads=2,seq_q=4,head_dim_v=8,num_parts=3,dtype=f16,has_lse=1"},
        {"op=merge,num_heads=2,seq_q=4,head_dim_v=7,num_parts=3,dtype=f64,has_lse=1"},
    };
    for (const at_target *target = at_targets(); target->name; target++) {
        if (!target_is_tested(target) || !target_can_run(target)) continue;
        attune_context *context = tensors_context(target->name, 2);
        for (size_t i = 0; i < sizeof merges / sizeof *merges; i++) {
            const attune_problem p = problem_canonical(merges[i].problem);
            mha_schedule schedule;
            mha_choose(mha_read(&p), target, usual_machine(target), &schedule);
            check_one(context, &merges[i], &schedule, 0);
            check_one(context, &merges[i], &schedule, 1);
        }
        attune_context_destroy(context);
    }
}

/* A part of weight 0 contributes nothing, even if it is NaN; where all are, the row is one that saw no key. */
static void test_merge_of_empty_parts(void **state) {
    (void)state;
    static const sample from = {"op=merge,num_heads=1,seq_q=4,head_dim_v=3,num_parts=2,has_lse=1"};
    enum { ROWS = 4, COLUMNS = 3 };
    attune_context *context = tensors_context(NULL, 1);
    tensors t;
    tensors_open_sample(&t, &from, INPUT_ORDINARY, 1);
    float *parts = tensors_find(&t, "parts")->data, *parts_lse = tensors_find(&t, "parts_lse")->data;
    const float lses[2][ROWS] = {{-INFINITY, -INFINITY, 1, INFINITY}, {2, -INFINITY, NAN, 0}};
    memcpy(parts_lse, lses, sizeof lses);
    for (int i = 0; i < COLUMNS; i++) parts[i] = parts[COLUMNS + i] = NAN;
    tensors_run_chosen(context, &t, NULL);
    const float *out = tensors_find(&t, "out")->data, *lse = tensors_find(&t, "lse")->data;
    for (int i = 0; i < COLUMNS; i++) {
        assert_true(out[i] == parts[ROWS * COLUMNS + i]);
        assert_true(out[COLUMNS + i] == 0);
        assert_true(isnan(out[2 * COLUMNS + i]));
        assert_true(out[3 * COLUMNS + i] == parts[3 * COLUMNS + i]);
    }
    assert_true(lse[0] == 2 && lse[1] == -INFINITY && isnan(lse[2]) && lse[3] == INFINITY);
    tensors_free(&t);
    attune_context_destroy(context);
}

/* In all chunks of the keys together. */
static void test_sinks_count_once(void **state) {
    static const sample from = {"num_heads=3,seq_q=2,seq_kv=600,head_dim=4,has_sinks=1,has_lse=1"};
    (void)state;
    attune_context *context = tensors_context(NULL, 1);
    const attune_problem p = problem_canonical(from.problem);
    mha_schedule schedule = {0};
    mha_choose_by(MHA_D_LANES, mha_read(&p), context->target, usual_machine(context->target), &schedule);
    schedule.kv_tile = schedule.kv_chunk = 64;
    check_one(context, &from, &schedule, 0);
    attune_context_destroy(context);
}

/* 130 KV heads have at most two chunks each, so chunks of 16 keys become longer: in sight of a window as well, and of
 * sequences that are longer and shorter. */
static void test_long_sequences_have_longer_chunks(void **state) {
    static const sample samples[] = {
        {"batch=3,num_heads=130,seq_q=1,seq_kv=dynamic,head_dim=3,has_lse=1,has_kv_lens=1", "seq_kv=150"},
        {"num_heads=130,seq_q=3,seq_kv=170,head_dim=3,window_left=60,is_causal=1,causal_align=bottom_right,has_lse=1"},
        {"num_heads=130,seq_q=2,seq_kv=150,head_dim=3,window_left=9,window_right=70,has_sinks=1"},
        {"num_heads=130,seq_q=2,seq_kv=150,head_dim=3,window_left=40,global_tokens=5,is_causal=1,has_lse=1"},
        {"num_heads=130,seq_q=40,seq_kv=20,head_dim=3,window_left=4,window_right=0"}, /* rows that see no key */
        {"batch=2,num_heads=130,seq_q=dynamic,seq_kv=dynamic,head_dim=8,is_ragged=1,is_causal=1,"
         "causal_align=bottom_right,page_size=16,has_kv_lens=1",
         "total_q=5,seq_q=4,seq_kv=120,num_pages=16,max_pages=8"},
        {"num_heads=130,seq_q=1,seq_kv=150,head_dim=8,kv_dtype=i8,kv_scales=token,integer=scores"},
    };
    (void)state;
    attune_context *context = tensors_context(NULL, 2);
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const attune_problem p = problem_canonical(samples[i].problem);
        mha_schedule schedule = {0};
        mha_choose_by(MHA_D_LANES, mha_read(&p), context->target, usual_machine(context->target), &schedule);
        schedule.kv_tile = schedule.kv_chunk = 16;
        assert_int_equal(mha_most_chunks(&p, &schedule, 20, 130), 2);
        assert_int_equal(mha_most_chunks(&p, &schedule, 1000, 130), 2);
        for (uint64_t n = 0; n < NUM_KINDS; n++) check_one(context, &samples[i], &schedule, n);
    }
    attune_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_sort_of_problem),
        cmocka_unit_test(test_chosen_schedules_of_all_targets),
        cmocka_unit_test(test_bounds_of_windows_are_proved),
        cmocka_unit_test(test_bits_do_not_depend_on_threads),
        cmocka_unit_test(test_reproducible_bits_are_those_of_q_lanes),
        cmocka_unit_test(test_decoding_gives_the_rows_of_the_whole),
        cmocka_unit_test(test_integer_scores_have_the_same_bits_everywhere),
        cmocka_unit_test(test_columns_of_integer_scores_may_be_moved),
        cmocka_unit_test(test_merge),
        cmocka_unit_test(test_merge_of_empty_parts),
        cmocka_unit_test(test_sinks_count_once),
        cmocka_unit_test(test_long_sequences_have_longer_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
