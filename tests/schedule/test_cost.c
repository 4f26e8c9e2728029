/* What the cost of a schedule must obey, whatever its constants: no test pins a choice that was tuned. */
#include "base/error.h"
#include "check/check_case.h"
#include "problem/problem_sight.h"
#include "schedule/choose.h"
#include "schedule/corrections.h"
#include "schedule/cost_parts.h"
#include "schedule/variant.h"
#include "support/ir/jit_run.h"
#include "support/problems.h"
#include "target/tuning_class.h"
#include "tune/space.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { LIST = 3000 };
static tune_candidate list[LIST];

static const char *const shapes[] = {
    "num_heads=12,seq_q=512,head_dim=64",
    "num_heads=9,seq_q=700,head_dim=80,is_causal=1",
    "num_heads=8,seq_q=1024,head_dim=64,is_causal=1,window_left=100",
    "num_heads=4,seq_q=17,head_dim=40,attn_mask_dims=qk",
    "num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128",
    "dtype=bf16,num_heads=8,num_kv_heads=2,seq_q=33,head_dim=96,has_kv_lens=1",
    "dtype=f64,num_heads=2,seq_q=100,seq_kv=3,head_dim=8,head_dim_v=5",
    "seq_q=-1,seq_kv=-1,head_dim=64",
    "num_heads=3,seq_q=1,seq_kv=1,head_dim=1",
    "embed_dim=96,num_heads=6,seq_q=200",
    "op=weights,num_heads=2,seq_q=20,head_dim=24",
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static bool is_cost(double cost) { return isfinite(cost) && cost >= 0; }

static void check_costs(const char *text, const attune_problem *p, const mha_machine *machine) {
    const size_t count = tune_space(p, machine, list, LIST);
    assert_true(count > 0);
    for (size_t i = 0; i < count; i++) {
        const mha_costs c = mha_costs_of(p, machine, &list[i].schedule);
        const double sum = mha_cost(p, machine, &list[i].schedule);
        if (!is_cost(c.scores) || !is_cost(c.softmax) || !is_cost(c.values) || !is_cost(c.tasks) ||
            !is_cost(c.products) || !is_cost(sum) || sum <= 0)
            fail_msg("%s for %s: %g %g %g %g %g", text, machine->target->name, c.scores, c.softmax, c.values, c.tasks,
                     c.products);
        assert_true(list[i].cost == sum);
    }
}

/* What a schedule has in common with the one before is not computed again, and comes to the same. */
static void check_next_costs(const char *text, const attune_problem *p, const mha_machine *machine) {
    const mha_cost_context c = mha_cost_context_of(p, machine);
    const size_t count = tune_space(p, machine, list, LIST);
    mha_q_costs next = {.head.c = NULL};
    for (size_t i = 0; i < 2 * count; i++) {
        const mha_schedule *s = &list[i < count ? i : 2 * count - 1 - i].schedule;
        if (s->strategy != MHA_Q_LANES) continue;
        const mha_variant variant = mha_variant_of(c.p, s, c.machine.target);
        const mha_costs all = mha_cost_q_lanes(&c, s, &variant);
        mha_cost_q_lanes_next(&c, s, &variant, &next);
        if (memcmp(&all, &next.costs, sizeof all))
            fail_msg("%s for %s: %g %g %g %g instead of %g %g %g %g", text, machine->target->name, next.costs.scores,
                     next.costs.softmax, next.costs.values, next.costs.tasks, all.scores, all.softmax, all.values,
                     all.tasks);
    }
}

static void next_costs_are_the_same(void **state) {
    (void)state;
    for (size_t i = 0; i < SHAPES; i++)
        for (const at_target *target = at_targets(); target->name; target++) {
            const attune_problem p = problem_canonical(shapes[i]);
            const mha_machine machine = {target, at_description_of("zen4", false)};
            check_next_costs(shapes[i], &p, &machine);
        }
}

/* On an Intel core of 512 bits, on one that is narrower than its vectors, and on a small one. */
static void costs_are_finite_and_positive(void **state) {
    static const char *const classes[] = {"generic", "zen4", "sapphire-rapids", "gracemont"};
    (void)state;
    for (size_t i = 0; i < SHAPES; i++)
        for (const at_target *target = at_targets(); target->name; target++)
            for (size_t k = 0; k < sizeof classes / sizeof *classes; k++) {
                const bool is_arm = target->required & AT_CPU_AARCH64;
                const attune_problem p = problem_canonical(shapes[i]);
                if (!at_class_is_of(classes[k], is_arm)) continue;
                if (tests_are_short() && !is_arm && (i + k + (size_t)(target - at_targets())) % 4) continue;
                check_costs(shapes[i], &p, &(mha_machine){target, at_description_of(classes[k], is_arm)});
            }
}

/* More work costs more: rows, keys and columns. */
static void more_costs_more(void **state) {
    static const char *const names[] = {"seq_q", "seq_kv", "head_dim", "num_heads"};
    const at_target *target = at_target_find("avx2");
    const mha_machine machine = {target, usual_machine(target)};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        double last = 0;
        for (int n = 32; n <= 1024; n *= 2) {
            char text[200];
            mha_schedule s;
            snprintf(text, sizeof text, "num_heads=%d,seq_q=%d,seq_kv=%d,head_dim=%d", i == 3 ? n : 8, i == 0 ? n : 100,
                     i == 1 ? n : 100, i == 2 ? n : 64);
            const attune_problem p = problem_canonical(text);
            mha_choose(mha_read(&p), target, machine.description, &s);
            const double cost = mha_cost(&p, &machine, &s);
            if (cost <= last) fail_msg("%s costs %g, no more than half as much work", text, cost);
            last = cost;
        }
    }
}

/* A cost follows from problem, machine and schedule alone: not from what was priced before, and not from the batch, of
 * which each head costs as much. */
static void a_cost_is_a_function(void **state) {
    (void)state;
    for (size_t i = 0; i < SHAPES; i++)
        for (const at_target *target = at_targets(); target->name; target++) {
            const attune_problem p = problem_canonical(shapes[i]);
            attune_problem twice = p;
            const mha_machine machine = {target, usual_machine(target)};
            mha_schedule s;
            mha_choose(mha_read(&p), target, machine.description, &s);
            const double cost = mha_cost(&p, &machine, &s);
            twice.batch = 2;
            const mha_costs more = mha_costs_of(&twice, &machine, &s), once = mha_costs_of(&p, &machine, &s);
            assert_true(cost == mha_cost(&p, &machine, &s));
            assert_true(mha_costs_sum(&more) >= mha_costs_sum(&once));
            if (!mha_is_block(&p)) assert_true(more.softmax == 2 * once.softmax);
        }
}

/* A better machine is no slower: of each number of a description that is a rate, or the size of a cache. */
static void better_machines_cost_no_more(void **state) {
    static const size_t better[] = {offsetof(at_description, fma),     offsetof(at_description, load),
                                    offsetof(at_description, store),   offsetof(at_description, shuffle),
                                    offsetof(at_description, l2_rate), offsetof(at_description, l3_rate)};
    (void)state;
    for (size_t i = 0; i < SHAPES; i++)
        for (const at_target *target = at_targets(); target->name; target++)
            for (size_t k = 0; k < sizeof better / sizeof *better; k++) {
                const attune_problem p = problem_canonical(shapes[i]);
                at_description description = *usual_machine(target);
                const mha_machine before = {target, usual_machine(target)}, after = {target, &description};
                mha_schedule s;
                mha_choose(mha_read(&p), target, before.description, &s);
                *(double *)(void *)((char *)&description + better[k]) *= 2;
                const double slow = mha_cost(&p, &before, &s), fast = mha_cost(&p, &after, &s);
                /* Two limits that come near each other delay each other (cost.def: soft). */
                if (fast > slow * 1.01) fail_msg("%s, %s: %g, not %g", shapes[i], target->name, fast, slow);
            }
}

/* What a row may take whatever it costs. */
static bool may_be_chosen(mha_priced of) {
    static const mha_priced ruled[] = {MHA_LONG_TILE,   MHA_SHORT_TASK,  MHA_HELD_TILE, MHA_MEMORY_ROWS,
                                       MHA_MEMORY_KEYS, MHA_MEMORY_HELD, MHA_NARROW,    MHA_TILES};
    for (size_t i = 0; i < sizeof ruled / sizeof *ruled; i++)
        if (ruled[i] == of) return true;
    return false;
}

/* Corrections are positive, but for what is taken whatever it costs, and what is promised less than 1. NEVER leaves
 * something in each part: all choices are legal. */
static void corrections_are_factors(void **state) {
    (void)state;
    for (size_t i = 0; i < SHAPES; i++)
        for (const at_target *target = at_targets(); target->name; target++) {
            const attune_problem p = problem_canonical(shapes[i]);
            const mha_machine machine = {target, usual_machine(target)};
            const mha_cost_context c = mha_cost_context_of(&p, &machine);
            mha_schedule s;
            mha_choose(mha_read(&p), target, machine.description, &s);
            const mha_variant v = mha_variant_of(&p, &s, target);
            for (int of = MHA_DECODING; of <= MHA_TILES; of++) {
                const double factor = mha_correction(of, &c, &s, &v);
                assert_true(factor > 0 || (may_be_chosen(of) && factor >= 0));
            }
            assert_true(mha_correction(MHA_USUAL_TILE, &c, &s, &v) < 1);
            assert_true(mha_correction(MHA_USUAL_PRODUCT, &c, &s, &v) < 1);
            if (mha_is_block(&p)) assert_true(mha_correction(MHA_PRODUCT, &c, &s, &v) == 1);
            if (s.strategy == MHA_Q_LANES && mha_attends(&p)) assert_true(mha_correction(MHA_PREFILL, &c, &s, &v) == 1);
        }
}

/* Whatever the problem and the machine. */
static void choices_are_legal(void **state) {
    const int problems = tests_are_short() ? 3000 : 10000;
    const char *order[AT_MAX_CLASSES];
    const size_t count = at_class_neighbours("zen5", order);
    const at_target *target = at_targets();
    tool_random random = {20261123};
    (void)state;
    for (int i = 0; i < problems; i++, target++) {
        attune_problem problem, p;
        call_sizes sizes;
        mha_schedule s, again;
        at_error err = {0};
        if (!target->name) target = at_targets();
        const bool is_arm = target->required & AT_CPU_AARCH64;
        const char *name = order[(size_t)i / 7 % count];
        const at_description *machine = at_description_of(at_class_is_of(name, is_arm) ? name : "generic", is_arm);
        assert_true(check_draw_problem(&random, 1e9, &problem, &sizes));
        if (mha_canonicalize(&problem, &p, &err)) continue;
        mha_choose(mha_read(&p), target, machine, &s);
        if (mha_schedule_check(&p, &s, target, &err)) fail_msg("%s, %s: %s", name, target->name, err.message);
        mha_choose(mha_read(&p), target, machine, &again);
        assert_true(mha_schedule_same(&s, &again));
    }
}

/* Tasks of a block's products: a register tile of rows by a whole group of columns, and by a narrow one where there is
 * one tile only. So 128 tokens are shared by many threads, and no rows are copied more often than that takes. */
static void products_have_many_tasks(void **state) {
    static const char *const blocks[] = {"embed_dim=768,num_heads=12,seq_q=128", "embed_dim=768,num_heads=12,seq_q=100",
                                         "embed_dim=768,num_heads=12,seq_q=1"};
    (void)state;
    for (const at_target *target = at_targets(); target->name; target++)
        for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
            const attune_problem p = problem_canonical(blocks[i]);
            mha_schedule s;
            mha_choose(mha_read(&p), target, usual_machine(target), &s);
            assert_int_equal(s.gemm_task_rows, s.gemm_rows);
            assert_int_equal(s.gemm_groups, p.seq_q == 1 ? MHA_GROUPS_NARROW : MHA_GROUPS_WHOLE);
        }
}

static void low_wide_products_cost_more(void **state) {
    const attune_problem p = problem_canonical("embed_dim=768,num_heads=12,seq_q=256");
    const mha_machine machine = {at_target_find("avx2"), at_description_of("zen3", false)};
    mha_schedule s;
    (void)state;
    mha_choose(mha_read(&p), machine.target, machine.description, &s);
    const mha_costs chosen = mha_costs_of(&p, &machine, &s);
    s.gemm_rows = 2;
    s.gemm_column_vectors = 4;
    s.gemm_task_rows = 4;
    const mha_costs other = mha_costs_of(&p, &machine, &s);
    assert_true(other.products > 1.3 * chosen.products);
}

static void values_by_rows_leave_out_what_is_hidden(void **state) {
    const attune_problem p = problem_canonical("num_heads=8,seq_q=96,seq_kv=96,head_dim=32,is_causal=1");
    const mha_machine machine = {at_target_find("avx2"), at_description_of("zen3", false)};
    mha_schedule one;
    (void)state;
    mha_choose(mha_read(&p), machine.target, machine.description, &one);
    assert_int_equal(one.value_by, MHA_VALUE_BY_ROWS);
    mha_schedule four = one;
    one.score_row_vectors = one.task_row_vectors = 1;
    four.score_row_vectors = four.task_row_vectors = 4;
    assert_true(mha_costs_of(&p, &machine, &four).values < 1.02 * mha_costs_of(&p, &machine, &one).values);
}

/* The end of a turn is that of all its keys; what is left of a tile has turns of one key. */
static void keys_in_a_turn_share_its_end(void **state) {
    const mha_machine machine = {at_target_find("avx2"), at_description_of("zen3", false)};
    (void)state;
    for (int64_t keys = 3; keys <= 96; keys *= 32) {
        attune_problem p = problem_canonical("num_heads=8,seq_q=96,seq_kv=96,head_dim=64,is_causal=1");
        mha_schedule s;
        mha_choose(mha_read(&p), machine.target, machine.description, &s);
        p.is_causal = keys > 3;
        p.seq_kv = keys;
        s.value_keys = 1;
        const double one = mha_costs_of(&p, &machine, &s).values;
        s.value_keys = 4;
        const double four = mha_costs_of(&p, &machine, &s).values;
        assert_true(keys > 3 ? four < one : four == one);
    }
}

/* Tasks go from the last rows to the first where later rows see more. Behind a short window they see as many as each
 * other: memory is read in its order (notes/2026-11-28-shapes.md). */
static void tasks_behind_windows_go_upwards(void **state) {
    static const struct {
        const char *problem;
        bool sees_more;
    } cases[] = {{"num_heads=8,seq_q=1024,seq_kv=1024,head_dim=64,is_causal=1", true},
                 {"num_heads=8,seq_q=1024,seq_kv=1024,head_dim=64,is_causal=1,window_left=63", false},
                 {"num_heads=8,seq_q=1024,seq_kv=1024,head_dim=64,is_causal=1,window_left=511", false},
                 {"num_heads=8,seq_q=1024,seq_kv=1024,head_dim=64,is_causal=1,window_left=512", true},
                 {"num_heads=8,seq_q=dynamic,seq_kv=dynamic,head_dim=64,is_causal=1,window_left=100", false},
                 {"num_heads=8,seq_q=dynamic,seq_kv=dynamic,head_dim=64,is_causal=1,window_left=4095", true},
                 {"num_heads=8,seq_q=1024,seq_kv=1024,head_dim=64,window_left=63,window_right=63", false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const attune_problem p = problem_canonical(cases[i].problem);
        if (mha_sees_more_later(&p) != cases[i].sees_more) fail_msg("%s", cases[i].problem);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(costs_are_finite_and_positive),
        cmocka_unit_test(next_costs_are_the_same),
        cmocka_unit_test(more_costs_more),
        cmocka_unit_test(a_cost_is_a_function),
        cmocka_unit_test(better_machines_cost_no_more),
        cmocka_unit_test(corrections_are_factors),
        cmocka_unit_test(choices_are_legal),
        cmocka_unit_test(products_have_many_tasks),
        cmocka_unit_test(low_wide_products_cost_more),
        cmocka_unit_test(values_by_rows_leave_out_what_is_hidden),
        cmocka_unit_test(keys_in_a_turn_share_its_end),
        cmocka_unit_test(tasks_behind_windows_go_upwards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
