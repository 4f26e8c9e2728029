/* Sinks that are no numbers: one of +inf leaves nothing to the keys, one of NaN makes NaN of rows that see a key. A row
 * that sees no key gives 0, and the sink as the logarithm, whatever the sink is. */
#include "ref_attention.h"
#include "schedule/choose.h"
#include "support/problems.h"
#include "support/tensor_calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const float sinks[4] = {INFINITY, NAN, -INFINITY, 0.5F};

static bool is_same(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

/* `first`: the first query that sees a key. */
static void assert_rows(const tensors *t, int64_t first, const char *what) {
    const tensor *const out = tensors_find(t, "out"), *const lse = tensors_find(t, "lse"),
                        *const weights = tensors_find(t, "weights");
    const int64_t heads = out->info.dims[1], queries = out->info.dims[2], columns = out->info.dims[3];
    for (int64_t row = 0; row < heads * queries; row++) {
        const double sink = sinks[row / queries % 4];
        const bool sees = row % queries >= first, is_usual = sink < (double)INFINITY;
        const double l = (double)ref_load(lse->info.dtype, lse->data, row);
        for (int64_t i = 0; i < columns; i++) {
            const double x = (double)ref_load(out->info.dtype, out->data, row * columns + i);
            const double expected = !sees || sink == (double)INFINITY ? 0 : sink;
            if (sees && is_usual ? !isfinite(x) : !is_same(x, expected))
                fail_msg("%s: row %d with the sink %g has %g", what, (int)row, sink, x);
        }
        if (sees && is_usual ? !isfinite(l) : !is_same(l, sink))
            fail_msg("%s: row %d with the sink %g has the lse %g", what, (int)row, sink, l);
        for (int64_t j = 0; weights && !sees && j < weights->info.dims[3]; j++)
            if (ref_load(weights->info.dtype, weights->data, row * weights->info.dims[3] + j) != 0)
                fail_msg("%s: row %d, which sees no key, has a weight", what, (int)row);
    }
}

/* The bits of the interpreter, where this CPU has the instruction set. */
static void run_on(const tensors *from, const char *isa, const mha_schedule *schedule, attune_compile_mode mode,
                   const char *problem) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context = NULL;
    tensors t;
    options.isa = isa;
    options.cache_dir = "";
    options.compile_mode = mode;
    if (attune_context_create(&options, &context)) return; /* this CPU lacks it */
    tensors_open_call(&t, problem, "", INPUT_ORDINARY, 3);
    memcpy(tensors_find(&t, "sinks")->data, sinks, sizeof sinks);
    tensors_run_chosen(context, &t, schedule);
    tensors_assert_same(&t, from, problem);
    tensors_free(&t);
    attune_context_destroy(context);
}

static void check(const char *problem, int64_t first) {
    const attune_problem p = problem_canonical(problem);
    tensors t;
    tensors_open_call(&t, problem, "", INPUT_ORDINARY, 3);
    memcpy(tensors_find(&t, "sinks")->data, sinks, sizeof sinks);
    for (const at_target *target = at_targets(); target->name; target++) {
        mha_schedule schedule;
        char what[400];
        mha_choose(mha_read(&p), target, usual_machine(target), &schedule);
        for (int chunks = 0; chunks < 2; chunks++) {
            if (chunks) schedule.kv_chunk = schedule.kv_tile; /* more parts to merge */
            tensors_interpret_for(&t, target, &schedule);
            snprintf(what, sizeof what, "%s for %s", problem, target->name);
            assert_rows(&t, first, what);
            if (p.seq_kv > 8) run_on(&t, target->name, &schedule, ATTUNE_COMPILE_IN_PROCESS, problem);
            if (p.seq_kv == 8) run_on(&t, target->name, &schedule, ATTUNE_COMPILE_NEVER, problem);
            if (schedule.strategy != MHA_D_LANES) break;
        }
    }
    tensors_free(&t);
}

/* Few queries and many, of which the first two see no key, all, or none; more keys than a tile. */
static void check_all(const char *fields) {
    static const int64_t queries[] = {1, 5, 40}, keys[] = {8, 700};
    char problem[400];
    for (size_t q = 0; q < sizeof queries / sizeof *queries; q++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            for (int64_t first = 0; first <= queries[q]; first += queries[q] == 5 ? 2 : queries[q]) {
                snprintf(
                    problem, sizeof problem,
                    "num_heads=4,seq_q=%d,seq_kv=%d,head_dim=32,has_sinks=1,has_lse=1,is_causal=1,causal_offset=%d%s",
                    (int)queries[q], (int)keys[k], (int)(queries[q] - keys[k] - first), fields);
                check(problem, first);
            }
}

static void test_types(void **state) {
    (void)state;
    check_all("");
    check_all(",dtype=bf16");
    check_all(",dtype=f16,num_kv_heads=2");
    check_all(",dtype=f64");
}

static void test_caches(void **state) {
    (void)state;
    check_all(",kv_dtype=i8,num_kv_heads=1");
    check_all(",kv_dtype=i8,integer=all");
    check_all(",kv_dtype=i4,integer=scores");
}

static void test_features(void **state) {
    (void)state;
    check_all(",reproducible=1");
    check_all(",weights_mode=softmax");
    check_all(",prob_mod=\"prob * 2.0\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_types), cmocka_unit_test(test_caches),
                                       cmocka_unit_test(test_features)};
    return cmocka_run_group_tests_name("sinks", tests, NULL, NULL);
}
