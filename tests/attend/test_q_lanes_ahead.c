/* task_prefetch (attend/prefill/prefetch.c): every sort of problem has the same bits with it and without, and by the
 * interpreter; and attune chooses it where it pays. */
#include "problem/mha.h"
#include "schedule/schedule.h"
#include "schedule/schedule_fields.h"
#include "support/calls.h"
#include "support/problems.h"
#include "target/target.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static mha_schedule schedule_of(const attune_problem *p, mha_task_prefetch prefetch) {
    mha_schedule s = {0};
    s.strategy = MHA_Q_LANES;
    s.lanes = p->softmax_precision == ATTUNE_F64 ? 2 : 4;
    s.score_row_vectors = s.score_columns = s.value_row_vectors = s.value_columns = s.value_keys = 1;
    s.score_keys = 4;
    s.task_row_vectors = 2;
    s.kv_tile = p->reproducible ? mha_reproducible_kv_tile(p) : 12;
    s.task_prefetch = prefetch;
    return s;
}

static bool takes_q_lanes(const sample *from) {
    const attune_problem p = problem_parsed(from->problem);
    const mha_schedule s = schedule_of(&p, MHA_PREFETCH_HEAD);
    return p.op == ATTUNE_ATTENTION &&
           attune_schedule_choose(sample_context, &p, mha_schedule_text(&s).text, NULL, 0) == ATTUNE_OK;
}

/* Memory ends where a page cannot be read: the lines that are asked for beyond it must touch nothing. */
static void compare(const sample *from) {
    sample_call ahead, plain, interpreted;
    sample_call *all[] = {&ahead, &plain, &interpreted};
    for (int i = 0; i < 3; i++) sample_call_open(all[i], from, BEFORE_A_GUARD);
    const mha_schedule with = schedule_of(&ahead.problem, MHA_PREFETCH_HEAD);
    const mha_schedule without = schedule_of(&plain.problem, MHA_PREFETCH_NONE);
    sample_call_run(sample_context, &ahead, &with);
    sample_call_run(sample_context, &plain, &without);
    if (!sample_calls_agree(&ahead, &plain)) fail_msg("%s: other bits with task_prefetch", from->problem);
    const mha_schedule s = schedule_of(&interpreted.problem, MHA_PREFETCH_HEAD);
    if (attune_run_interpreted(sample_context, &interpreted.problem, mha_schedule_text(&s).text,
                               &interpreted.arguments))
        fail_msg("%s", attune_last_message());
    if (!sample_calls_agree(&ahead, &interpreted)) fail_msg("%s: other bits by the interpreter", from->problem);
    for (int i = 0; i < 3; i++) sample_call_close(all[i]);
}

static void bits_without(void **state) {
    (void)state;
    int compared = 0;
    for (int i = 0; i < NUM_SAMPLES; i++)
        if (takes_q_lanes(&samples[i])) {
            compare(&samples[i]);
            compared++;
        }
    assert_true(compared >= 20);
}

static mha_task_prefetch chosen_for(const char *isa, const char *text) {
    mha_schedule s;
    const attune_problem canonical = problem_canonical(text);
    const at_target *const target = at_target_find(isa);
    mha_choose(mha_read(&canonical), target, usual_machine(target), &s);
    assert_int_equal(s.strategy, MHA_Q_LANES);
    return s.task_prefetch;
}

static mha_task_prefetch chosen(const char *text) { return chosen_for("avx512", text); }

static void chosen_where_it_pays(void **state) {
    (void)state;
    assert_int_equal(chosen("num_heads=12,seq_q=128,seq_kv=128,head_dim=64"), MHA_PREFETCH_HEAD);
    assert_int_equal(chosen("num_heads=6,seq_q=49,seq_kv=49,head_dim=32"), MHA_PREFETCH_HEAD);
    assert_int_equal(chosen("num_heads=6,seq_q=dynamic,seq_kv=dynamic,head_dim=64"), MHA_PREFETCH_HEAD);
    /* little to compute for each line; a head that no cache near by holds */
    assert_int_equal(chosen("num_heads=6,seq_q=16,seq_kv=16,head_dim=64"), MHA_PREFETCH_NONE);
    assert_int_equal(chosen("num_heads=6,seq_q=32,seq_kv=32,head_dim=32"), MHA_PREFETCH_NONE);
    assert_int_equal(chosen("num_heads=6,seq_q=4096,seq_kv=4096,head_dim=64"), MHA_PREFETCH_NONE);
}

/* With few registers it is the size of a call that counts: up to 1 MiB asking cost up to 13 % of the time, and from 4
 * MiB on it saved some however little was computed. */
static void chosen_by_the_size_of_a_call(void **state) {
    static const struct {
        const char *problem;
        mha_task_prefetch asks;
    } cases[] = {
        {"num_heads=4,seq_q=64,seq_kv=64,head_dim=64", MHA_PREFETCH_NONE},
        {"num_heads=8,seq_q=64,seq_kv=16,head_dim=64,dtype=bf16", MHA_PREFETCH_NONE},
        {"num_heads=24,seq_q=49,seq_kv=49,head_dim=32", MHA_PREFETCH_NONE},
        {"num_heads=12,seq_q=128,seq_kv=128,head_dim=64", MHA_PREFETCH_HEAD},
        {"batch=15,num_heads=8,seq_q=16,seq_kv=16,head_dim=64", MHA_PREFETCH_NONE},
        {"batch=38,num_heads=8,seq_q=16,seq_kv=16,head_dim=64", MHA_PREFETCH_HEAD},
        {"batch=32,num_heads=16,seq_q=32,seq_kv=32,head_dim=32,is_causal=1", MHA_PREFETCH_HEAD},
        {"batch=16,num_heads=12,seq_q=16,seq_kv=403,head_dim=64,is_causal=1,causal_align=top_left", MHA_PREFETCH_NONE}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (chosen_for("avx2", cases[i].problem) != cases[i].asks) fail_msg("%s", cases[i].problem);
        if (chosen_for("x86-64", cases[i].problem) != cases[i].asks) fail_msg("x86-64: %s", cases[i].problem);
    }
}

/* How far is far follows from the last cache: half of it for a call, a quarter for its K and V. What text leaves out is
 * the same everywhere, and what is chosen otherwise is named in a choice. */
static void last_caches_say_what_is_far(void **state) {
    enum { MEGABYTE = 1024 * 1024 };
    static const struct {
        const char *problem;
        int usual, l3, task_prefetch, kv_prefetch; /* l3: MB. 0: the schedule has none */
    } cases[] = {{"batch=128,num_heads=6,seq_q=32,seq_kv=32,head_dim=32", true, 32, MHA_PREFETCH_NONE, 0},
                 {"batch=128,num_heads=6,seq_q=32,seq_kv=32,head_dim=32", false, 16, MHA_PREFETCH_HEAD, 0},
                 {"num_heads=64,num_kv_heads=16,seq_q=1,seq_kv=700,head_dim=128", true, 32, 0, 2048},
                 {"num_heads=64,num_kv_heads=16,seq_q=1,seq_kv=700,head_dim=128", false, 96, 0, MHA_SCHEDULE_NONE}};
    const at_target *const target = at_target_find("avx512");
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const attune_problem p = problem_canonical(cases[i].problem);
        at_description machine = *at_description_of("zen4", false);
        mha_schedule s, left;
        machine.l3 = (double)cases[i].l3 * MEGABYTE;
        mha_choose(mha_read(&p), target, &machine, &s);
        if ((int)s.task_prefetch != cases[i].task_prefetch || s.kv_prefetch != cases[i].kv_prefetch)
            fail_msg("%s, %d MB: %d, %d", cases[i].problem, cases[i].l3, (int)s.task_prefetch, (int)s.kv_prefetch);
        left = s;
        left.task_prefetch = left.kv_prefetch = MHA_SCHEDULE_AUTO;
        mha_schedule_settle(&p, target, NULL, &left);
        assert_int_equal(mha_schedule_same(&left, &s), cases[i].usual);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_without),
        cmocka_unit_test(chosen_where_it_pays),
        cmocka_unit_test(chosen_by_the_size_of_a_call),
        cmocka_unit_test(last_caches_say_what_is_far),
    };
    return cmocka_run_group_tests(tests, sample_context_open, sample_context_close);
}
