/* Kernels under the tuner: which tasks are timed, and whether the results are right. */
#include "operator/build.h"
#include "schedule/schedule.h"
#include "support/engine/contexts.h"
#include "support/problems.h"
#include "tune/candidates.h"
#include "tune/sample.h"

#include "common/tensors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* ---- Samples ---- */

static double cost_of(const at_run_part *part, int64_t tasks, double base, double slope) {
    double sum = 0;
    for (int64_t i = 0; i < part->count; i++) sum += base + slope * (double)(at_part_task(part, i) % tasks);
    return sum;
}

static void assert_is_inside(const at_run_part *part, int64_t tasks) {
    assert_true(part->count > 0 && part->run > 0);
    for (int64_t i = 0; i < part->count; i++) assert_in_range(at_part_task(part, i), 0, tasks - 1);
}

/* Tasks that cost as much as each other, or more one by one as under a causal mask: a sample tells the time of all of
 * them, into however many tasks the call is cut. */
static void a_sample_tells_the_whole(void **state) {
    (void)state;
    static const double shares[] = {1e-6, 1e-3, 0.01, 0.05, 0.3, 0.5};
    for (int64_t units = 1; units < 40; units += 3)
        for (int64_t tasks = 1; tasks < 70; tasks++)
            for (size_t n = 0; n < sizeof shares / sizeof *shares; n++)
                for (int kind = 0; kind < 4; kind++) {
                    const tune_phase phase = {units, tasks, kind & 1, kind & 2};
                    const double base = 100, slope = phase.are_level ? 0 : 7, all = (double)(units * tasks);
                    const double whole = all * base + all * slope * (double)(tasks - 1) / 2;
                    const tune_sample s = tune_sample_of(&phase, shares[n], 5, 1);
                    double told = 0;
                    for (int i = 0; i < s.count; i++) {
                        assert_is_inside(&s.parts[i], units * tasks);
                        told += s.factors[i] * cost_of(&s.parts[i], tasks, base, slope);
                    }
                    if (fabs(told - whole) > 1e-9 * whole)
                        fail_msg("%lld units of %lld tasks, share %g, kind %d: %g, not %g", (long long)units,
                                 (long long)tasks, shares[n], kind, told, whole);
                }
}

/* A few rows of a product more than tasks of equal size have: the last task does little, and counts once. */
static void a_last_task_counts_once(void **state) {
    (void)state;
    const tune_phase phase = {12, 20, true, true};
    const tune_sample s = tune_sample_of(&phase, 0.02, 0, 1);
    double last = 0;
    for (int i = 0; i < s.count; i++)
        for (int64_t t = 0; t < s.parts[i].count; t++)
            if (at_part_task(&s.parts[i], t) % 20 == 19) last += s.factors[i];
    assert_true(fabs(last - 12) < 1e-9);
}

/* Units that are alike take turns, each as often as the others. */
static void units_take_turns(void **state) {
    (void)state;
    enum { UNITS = 12, TASKS = 3 };
    const tune_phase phase = {UNITS, TASKS, true, true};
    int taken[UNITS] = {0};
    for (int64_t turn = 0; turn < 2 * UNITS; turn++) {
        const tune_sample s = tune_sample_of(&phase, 0.08, turn, 1);
        const at_run_part *part = &s.parts[s.count - 1];
        assert_int_equal(part->count, TASKS);
        taken[part->first / TASKS]++;
    }
    for (int u = 0; u < UNITS; u++) assert_int_equal(taken[u], 2);
}

/* Five tasks keep two threads busy for as long as six do. */
static void threads_that_wait_are_counted(void **state) {
    (void)state;
    const tune_phase phase = {5, 1, true, true};
    const tune_sample s = tune_sample_of(&phase, 0.01, 0, 2);
    const at_run_part *part = &s.parts[s.count - 1];
    assert_int_equal(part->count, 2);
    assert_true(fabs(s.factors[s.count - 1] - 3) < 1e-9);
}

/* ---- A problem with tensors and a kernel ---- */

typedef struct case_of {
    attune_context *context;
    attune_problem canonical;
    tensors tensors;
    attune_arguments arguments;
    tune_runner runner;
    attune_kernel *kernel;
} case_of;

static void open_case(case_of *c, const char *problem, const char *sizes, const char *schedule) {
    at_error err = {0};
    call_sizes run_time = CALL_SIZES_NONE;
    mha_schedule s;
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.cache_dir = "";
    options.max_workers = 2;
    c->context = test_context(&options, NULL);
    c->canonical = problem_canonical(problem);
    assert_true(!sizes || sizes_parse(sizes, &run_time));
    assert_true(tensors_create_sized(&c->tensors, &c->canonical, &run_time));
    assert_true(tensors_fill(&c->tensors, INPUT_ORDINARY, 1));
    tensors_arguments(&c->tensors, &c->arguments);
    mha_choose(mha_read(&c->canonical), c->context->target, &c->context->machine_class.description, &s);
    if (schedule && mha_schedule_parse(schedule, &s, &err)) fail_msg("%s", err.message);
    if (at_kernel_make_uncached(c->context, at_attention_of(&c->canonical), &s, &c->kernel, &err))
        fail_msg("%s", err.message);
    if (tune_runner_init(&c->runner, c->context,
                         &(tune_task){at_attention_of(&c->canonical), .arguments = &c->arguments}, &err))
        fail_msg("%s", err.message);
}

static void close_case(case_of *c) {
    tune_runner_free(&c->runner);
    at_kernel_destroy(&c->kernel->node);
    tensors_free(&c->tensors);
    attune_context_destroy(c->context);
}

static bool check_case(case_of *c) {
    at_error err = {0};
    bool same = false;
    if (tune_runner_check(&c->runner, c->kernel, c->kernel->ir->kernel, &same, &err)) fail_msg("%s", err.message);
    return same;
}

/* ---- Kernels of one phase ---- */

/* The check finds a kernel that computes something else: here, another problem. */
static void a_wrong_kernel_is_found(void **state) {
    (void)state;
    case_of right, wrong;
    at_error err = {0};
    bool same = true;
    open_case(&right, "num_heads=2,seq_q=32,head_dim=16", NULL, NULL);
    open_case(&wrong, "num_heads=2,seq_q=32,head_dim=16,softmax_scale=0.3", NULL, NULL);
    for (int i = 0; i < 8; i++) {
        assert_true(check_case(&right));
        if (tune_runner_check(&right.runner, wrong.kernel, right.kernel->ir->kernel, &same, &err))
            fail_msg("%s", err.message);
        assert_false(same);
    }
    close_case(&right);
    close_case(&wrong);
}

/* Rows of the output lie in a larger tensor. The memory between them does not belong to the kernel: it must not be
 * written, or cleared while kernels are checked. */
static void what_lies_between_outputs_stays(void **state) {
    (void)state;
    enum { DIM = 16, WIDTH = 2 * DIM };
    case_of c;
    at_error err = {0};
    open_case(&c, "num_heads=2,seq_q=32,head_dim=16,out_strides=2048:1024:32:1", NULL, NULL);
    const tensor *out = tensors_find(&c.tensors, "out");
    float *wide = out->data;
    for (size_t i = 0; i < out->count; i++) wide[i] = (float)i;
    assert_true(check_case(&c));
    for (size_t i = 0; i < out->count; i++) assert_true(wide[i] == (float)i);
    if (tune_runner_calibrate(&c.runner, c.kernel, &err)) fail_msg("%s", err.message);
    for (size_t i = 0; i < out->count; i++) assert_true((wide[i] == (float)i) == (i % WIDTH >= DIM));
    close_case(&c);
}

/* ---- Kernels of several phases ---- */

static AT_GENERATED void do_nothing(void *const *buffers, const int64_t *scalars, int64_t begin, int64_t end,
                                    void *scratch) {
    (void)buffers, (void)scalars, (void)begin, (void)end, (void)scratch;
}

static const struct {
    const char *problem, *sizes, *schedule;
} blocks[] = {
    {"embed_dim=32,num_heads=2,seq_q=24"},
    {"embed_dim=32,num_heads=2,seq_q=24,batch=3,is_causal=1,rotary_dim=16", "rotary_positions=24",
     "gemm_rows=4,gemm_task_rows=8"},
    {"embed_dim=32,num_heads=4,num_kv_heads=2,seq_q=1,batch=2,seq_new=1,seq_kv=dynamic", "seq_kv=40", NULL},
    {"num_heads=2,seq_q=1,seq_kv=512,head_dim=16", NULL,
     "strategy=d_lanes,score_rows=1,score_keys=1,score_column_vectors=1,"
     "value_rows=1,value_column_vectors=1,value_keys=1,"
     "kv_tile=64,kv_chunk=64"},
    {"num_heads=2,seq_q=20,head_dim=16,rotary_dim=16,has_lse=1,weights_mode=softmax", "rotary_positions=20", NULL},
    {"num_heads=2,seq_q=4,seq_new=4,seq_kv=32,head_dim=16,kv_dtype=i8,kv_scales=token"},
};

/* The check sees wrong machine code in any phase and in any task. The caller's caches stay unchanged. */
static void each_phase_is_checked(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        case_of c;
        open_case(&c, blocks[i].problem, blocks[i].sizes, blocks[i].schedule);
        assert_true(c.kernel->num_phases > 1);
        tensors before;
        char difference[DIFFERENCE_TEXT];
        assert_true(tensors_share(&before, &c.tensors));
        for (int round = 0; round < 4; round++)
            if (!check_case(&c)) fail_msg("%s: the right kernel is called wrong", blocks[i].problem);
        for (uint32_t p = 0; p < c.kernel->num_phases; p++) {
            const at_kernel_phase right = c.kernel->phases[p];
            c.kernel->phases[p].run = do_nothing;
            for (int round = 0; round < 4; round++)
                if (check_case(&c)) fail_msg("%s: phase %u does nothing, and nobody saw it", blocks[i].problem, p);
            c.kernel->phases[p] = right;
        }
        if (!tensors_same_outputs(&before, &c.tensors, difference)) fail_msg("%s: %s", blocks[i].problem, difference);
        tensors_free(&before);
        close_case(&c);
    }
}

static void nans_are_equal(void **state) {
    (void)state;
    case_of c;
    open_case(&c, blocks[0].problem, NULL, NULL);
    tensor *const x = tensors_find(&c.tensors, "x");
    for (size_t i = 0; i < x->count; i += 7) ((float *)x->data)[i] = NAN;
    assert_true(check_case(&c));
    close_case(&c);
}

/* Kernels are timed on a workspace that others have left: nothing there may be an index. */
static void phases_hand_on_nothing_but_numbers(void **state) {
    (void)state;
    static const char *const more[] = {
        "embed_dim=64,seq_q=8,is_ragged=1,batch=2,rotary_dim=8,num_heads=2",
        "embed_dim=64,num_heads=2,low_rank=8,seq_q=32",
        "num_heads=2,seq_q=8,head_dim=16,rotary_dim=16,page_size=16,has_kv_lens=1,batch=2"};
    const at_target *target = at_target_find("avx2");
    for (size_t i = 0; i < sizeof more / sizeof *more + sizeof blocks / sizeof *blocks; i++) {
        const size_t first = sizeof more / sizeof *more;
        const attune_problem p = problem_canonical(i < first ? more[i] : blocks[i - first].problem);
        at_arena arena;
        at_error err = {0};
        mha_schedule s;
        at_arena_init(&arena, NULL);
        mha_choose(mha_read(&p), target, usual_machine(target), &s);
        const ir_kernel *kernel = mha_build(&arena, &p, &s, target, &err);
        if (!kernel) fail_msg("%s", err.message);
        for (uint32_t n = 0; n < kernel->num_shared; n++) {
            const ir_elem elem = (ir_elem)kernel->shared[n]->type.elem;
            assert_true(elem == IR_F32 || elem == IR_F64 || elem == IR_BF16 || elem == IR_F16);
        }
        at_arena_free(&arena);
    }
}

/* A sample writes where the call does, and nowhere else. */
static void a_sampled_block_stays_in_its_outputs(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        case_of c;
        at_error err = {0};
        tune_times times = {0};
        tensors before;
        char difference[DIFFERENCE_TEXT];
        open_case(&c, blocks[i].problem, blocks[i].sizes, blocks[i].schedule);
        if (tune_runner_time(&c.runner, c.kernel, &times, &err)) fail_msg("%s", err.message);
        assert_true(tensors_share(&before, &c.tensors));
        if (tune_runner_calibrate(&c.runner, c.kernel, &err)) fail_msg("%s", err.message);
        if (!tensors_same_outputs(&before, &c.tensors, difference)) fail_msg("%s: %s", blocks[i].problem, difference);
        c.runner.share = 0.01;
        times.count = 0;
        for (int turn = 0; turn < 9; turn++)
            if (tune_runner_time(&c.runner, c.kernel, &times, &err)) fail_msg("%s", err.message);
        assert_true(times.count >= (int)c.kernel->num_phases && tune_times_sum(&times) > 0);
        tensors_free(&before);
        close_case(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sample_tells_the_whole),
        cmocka_unit_test(a_last_task_counts_once),
        cmocka_unit_test(units_take_turns),
        cmocka_unit_test(threads_that_wait_are_counted),
        cmocka_unit_test(a_wrong_kernel_is_found),
        cmocka_unit_test(each_phase_is_checked),
        cmocka_unit_test(nans_are_equal),
        cmocka_unit_test(phases_hand_on_nothing_but_numbers),
        cmocka_unit_test(a_sampled_block_stays_in_its_outputs),
        cmocka_unit_test(what_lies_between_outputs_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
