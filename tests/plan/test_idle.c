/* How many threads a list of work keeps busy, by simulation: each takes as long for a task as the list says it costs.
 * The chosen schedules are those of named targets, so the outcome does not depend on this CPU. */
#include "base/integers.h"
#include "plan/work.h"
#include "support/problems.h"
#include "support/tensor_calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_BATCH = 64, PAGE = 16, THREADS = 64 };

typedef struct step {
    const char *name;
    int batch;
    int32_t starts[MOST_BATCH + 1], lens[MOST_BATCH];
} step;

static void add(step *s, int queries, int keys) {
    s->starts[s->batch + 1] = s->starts[s->batch] + queries;
    s->lens[s->batch++] = keys;
}

/* Decoding of 100 to 8000 keys, in no order. */
static void add_decoding(step *s, int count) {
    for (int i = 0; i < count; i++) add(s, 1, 100 + i * 37 % count * 7900 / (count - 1));
}

static step step_number(int number) {
    step s = {0};
    switch (number) {
    case 0:
        s.name = "64 decodes of 100 to 8000 keys";
        add_decoding(&s, 64);
        break;
    case 1:
        s.name = "a prompt of 4096 and 63 decodes";
        add_decoding(&s, 20);
        add(&s, 4096, 4096);
        add_decoding(&s, 43);
        break;
    case 2:
        s.name = "8 prompts of 128 to 2048";
        for (int i = 0; i < 8; i++) add(&s, 128 + i * 5 % 8 * 1920 / 7, 128 + i * 5 % 8 * 1920 / 7);
        break;
    default:
        s.name = "a decode of 131,072 keys";
        add(&s, 1, 131072);
        break;
    }
    return s;
}

static attune_arguments arguments_of(const attune_plan *plan, const step *s) {
    attune_arguments a;
    int32_t most = 0;
    for (int b = 0; b < s->batch; b++) most = s->lens[b] > most ? s->lens[b] : most;
    assert_int_equal(attune_plan_arguments_init(plan, &a), ATTUNE_OK);
    a.batch = s->batch;
    a.cu_seqlens_q = s->starts;
    a.kv_lens = s->lens;
    a.total_q = s->starts[s->batch];
    a.max_pages = ceil_div(most, PAGE);
    a.num_pages = s->batch * a.max_pages;
    return a;
}

/* The tasks of sequences of many queries in the first stage. */
static int64_t tasks_of_many(const pl_work *work) {
    int64_t tasks = 0;
    for (size_t i = work->stage_begin[0]; i < work->stage_begin[1]; i++)
        if (work->segments[i].part == work->part_of[PL_MANY]) tasks += work->segments[i].count;
    return tasks;
}

/* The share of the threads' time in which they wait for others, and the tasks of sequences of many queries. */
static double idle_of(attune_plan *plan, const step *s, uint32_t threads, int64_t *tasks) {
    static pl_work work;
    at_error err = {0};
    at_settled settled;
    pl_choice choices[PL_NUM_KINDS];
    const attune_arguments a = arguments_of(plan, s);
    assert_int_equal(at_call_settle(&plan->signature, &a, &settled, &err), ATTUNE_OK);
    assert_int_equal(pl_work_choose(plan, &a, 0, false, 0, choices, &err), ATTUNE_OK);
    assert_int_equal(pl_work_settle(plan, &a, &settled, choices, &work, &err), ATTUNE_OK);
    pl_segment *const segments = malloc(pl_work_most_segments(&work) * sizeof *segments);
    assert_non_null(segments);
    pl_work_list(&work, true, segments);
    assert_true(work.num_segments <= pl_work_most_segments(&work));
    const pl_idle idle = pl_work_simulate(&work, threads);
    if (tasks) *tasks = tasks_of_many(&work);
    free(segments);
    assert_true(idle.cost > 0 && idle.time > 0);
    return 1 - idle.cost / (idle.time * threads);
}

static attune_plan *plan_of(attune_context *context, int heads, int kv_heads) {
    attune_plan *plan;
    attune_problem p = problem_parsed("num_heads=32,num_kv_heads=8,head_dim=128,dtype=bf16,is_causal=1,is_ragged=1,"
                                      "has_kv_lens=1,page_size=16,seq_q=dynamic,seq_kv=dynamic");
    p.num_heads = heads;
    p.num_kv_heads = kv_heads;
    if (attune_plan_create(context, &p, NULL, &plan)) fail_msg("%s", attune_last_message());
    return plan;
}

static void check(const char *target, double most) {
    attune_context *const context = tensors_context_for(at_target_find(target));
    attune_plan *const plan = plan_of(context, 32, 8);
    for (int i = 0; i < 4; i++) {
        const step s = step_number(i);
        const double idle = idle_of(plan, &s, THREADS, NULL);
        printf("# %s, %s: %d threads, %.1f %% idle\n", target, s.name, THREADS, 100 * idle);
        if (idle > most) fail_msg("%s: %.1f %% idle", s.name, 100 * idle);
        assert_true(fabs(idle_of(plan, &s, 1, NULL)) < 1e-9);
    }
    attune_plan_destroy(plan);
    attune_context_destroy(context);
}

/* A kernel says itself how many tasks it has, so it must run here. */
static bool runs_here(const char *name) {
    const at_target *const target = at_target_find(name);
    return target && at_target_runs_here(target);
}

static void many_threads_are_busy(void **state) {
    (void)state;
    static const char *const targets[] = {"avx2", "avx512", "avx512_bf16", "neon"};
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
        if (runs_here(targets[i])) check(targets[i], 0.10);
}

/* Rows of a task are whole register tiles. Those of AVX-512 divide 512 rows; with AVX2 35 to 40 tasks are left. */
static const char *const wide[] = {"avx512", "avx512_bf16"};

static void for_wide_targets(void (*check_target)(const char *target)) {
    int checked = 0;
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        if (!runs_here(wide[i])) continue;
        check_target(wide[i]);
        checked++;
    }
    if (!checked) skip();
}

static void check_long_tasks(const char *target) {
    attune_context *const context = tensors_context_for(at_target_find(target));
    attune_plan *const plan = plan_of(context, 32, 8);
    step near = {0}, far = {0};
    int64_t tasks_near, tasks_far;
    add(&near, 512, 16383);
    add(&far, 512, 16384);
    idle_of(plan, &near, 32, &tasks_near);
    const double idle = idle_of(plan, &far, 32, &tasks_far);
    printf("# %s: %lld and %lld tasks, %.1f %% idle\n", target, (long long)tasks_near, (long long)tasks_far,
           100 * idle);
    assert_true(tasks_near >= 64);
    assert_int_equal(tasks_far, 32);
    assert_true(idle < 0.05);
    attune_plan_destroy(plan);
    attune_context_destroy(context);
}

/* From 16,384 keys on, tasks of a chunk are as long as leaves 32 of them, and the list knows which they are. */
static void long_tasks_are_listed(void **state) {
    (void)state;
    for_wide_targets(check_long_tasks);
}

static void check_chunk_beside_decoding(const char *target) {
    attune_context *const context = tensors_context_for(at_target_find(target));
    attune_plan *const plan = plan_of(context, 16, 1);
    for (int decoding = 0; decoding <= 32; decoding += 16) {
        step near = {0}, far = {0};
        int64_t tasks_near, tasks_far;
        add(&near, 512, 16383);
        add(&far, 512, 16384);
        for (int i = 0; i < decoding; i++) add(&near, 1, 100 + i), add(&far, 1, 100 + i);
        idle_of(plan, &near, 32, &tasks_near);
        idle_of(plan, &far, 32, &tasks_far);
        printf("# %s, %d decodes: %lld and %lld tasks\n", target, decoding, (long long)tasks_near,
               (long long)tasks_far);
        assert_true(tasks_near >= 64);
        assert_int_equal(tasks_far, 32);
    }
    attune_plan_destroy(plan);
    attune_context_destroy(context);
}

/* A chunk has that many however many sequences decode in the same step. */
static void decoding_leaves_a_chunk_its_tasks(void **state) {
    (void)state;
    for_wide_targets(check_chunk_beside_decoding);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(many_threads_are_busy), cmocka_unit_test(long_tasks_are_listed),
                                       cmocka_unit_test(decoding_leaves_a_chunk_its_tasks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
