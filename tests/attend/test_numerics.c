/* Sums over many keys, and numbers at the ends of f32, by either strategy: docs/numerics.md has the limits. */
#include "problem/mha.h"
#include "schedule/choose.h"
#include "schedule/schedule.h"
#include "support/ir/jit_run.h"
#include "support/problems.h"
#include "support/tensor_calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- Long sums ---- */

/* All keys and values are alike, except that the first key is three times the others: the weights are no round numbers,
 * and a serial sum is wrong in one direction all the way. */
static void fill_alike(const tensors *t, int64_t keys, int64_t dim) {
    float *const k = tensors_find(t, "k")->data, *const v = tensors_find(t, "v")->data;
    for (int64_t j = 1; j < keys; j++) {
        memcpy(k + j * dim, k, (size_t)dim * sizeof *k);
        memcpy(v + j * dim, v, (size_t)dim * sizeof *v);
    }
    for (int64_t d = 0; d < dim; d++) k[d] *= 3;
}

/* The largest relative error of `out`, whose rows should be the one value, and the largest error of `lse`. */
static void assert_close(const tensors *t, int64_t rows, int64_t keys, int64_t dim, double most, double most_lse) {
    const float *const q = tensors_find(t, "q")->data, *const k = tensors_find(t, "k")->data;
    const float *const v = tensors_find(t, "v")->data, *const out = tensors_find(t, "out")->data;
    const float *const lse = tensors_find(t, "lse")->data;
    for (int64_t i = 0; i < rows; i++) {
        double score = 0;
        for (int64_t d = 0; d < dim; d++) {
            const double error = fabs((double)out[i * dim + d] / (double)v[d] - 1);
            if (error > most) fail_msg("out is off by %.3g of itself, more than %.3g", error, most);
            score += (double)q[i * dim + d] * (double)k[dim + d] / sqrt((double)dim);
        }
        const double wanted = log(exp(3 * score) + (double)(keys - 1) * exp(score));
        const double error = fabs((double)lse[i] - wanted);
        if (error > most_lse) fail_msg("lse is off by %.3g, more than %.3g", error, most_lse);
    }
}

/* By the schedule, and if `interpreted` once more by the interpreter, with the same bits. */
static void check_long_sums(attune_context *context, const char *text, const mha_schedule *schedule, bool interpreted,
                            double most, double most_lse) {
    const attune_problem p = problem_canonical(text);
    tensors t, again;
    tensors_open_call(&t, text, "", INPUT_ORDINARY, 3);
    fill_alike(&t, p.seq_kv, p.head_dim);
    assert_true(tensors_share(&again, &t));
    tensors_run_chosen(context, &t, schedule);
    assert_close(&t, p.seq_q, p.seq_kv, p.head_dim, most, most_lse);
    if (interpreted) {
        if (tensors_run(&again, context, NULL, TEXT_OF(schedule), ATTUNE_ENGINE_INTERPRETER))
            fail_msg("%s", attune_last_message());
        tensors_assert_same(&t, &again, text);
    }
    tensors_free(&again);
    tensors_free(&t);
}

/* docs/numerics.md has these limits. A serial sum of f32 is wrong by 2e-3 to 4e-3 here. */
static void test_long_sums(void **state) {
    (void)state;
    static const char reproducible_text[] = "seq_q=1,seq_kv=262144,head_dim=3,has_lse=1,reproducible=1";
    static const char other_text[] = "seq_q=8,seq_kv=262144,head_dim=2,has_lse=1";
    const attune_problem p = problem_canonical(reproducible_text), other = problem_canonical(other_text);
    bool interpreted = true;
    for (const at_target *target = at_targets(); target->name; target++) {
        if (!target_can_run(target)) continue;
        attune_context *context = tensors_context(target->name, 1);
        mha_schedule by_columns = {0};
        mha_schedule by_rows = schedule_reproducible(&p, target), others = schedule_reproducible(&other, target);
        mha_choose_by(MHA_D_LANES, mha_read(&p), target, usual_machine(target), &by_columns);
        check_long_sums(context, reproducible_text, &by_columns, interpreted, 1e-5, 4e-6);
        check_long_sums(context, reproducible_text, &by_rows, interpreted, 1e-5, 4e-6);
        check_long_sums(context, other_text, &others, false, 1e-4, 1e-4);
        attune_context_destroy(context);
        interpreted = false;
    }
}

/* ---- Numbers at the ends of f32 ---- */

static mha_schedule schedule_by(mha_strategy strategy, const attune_problem *p, attune_context *context) {
    if (strategy == MHA_Q_LANES) return schedule_reproducible(p, at_target_find("x86-64"));
    mha_schedule s = schedule_read("strategy=d_lanes,lanes=4,score_rows=1,score_keys=4,score_column_vectors=1,"
                                   "value_rows=1,value_column_vectors=1,value_keys=4,kv_tile=192,kv_chunk=192");
    if (p->reproducible) s.kv_tile = s.kv_chunk = mha_reproducible_kv_tile(p);
    assert_int_equal(attune_schedule_choose(context, p, mha_schedule_text(&s).text, NULL, 0), ATTUNE_OK);
    return s;
}

/* `value` in all of V; what `out` is then, by either strategy, reproducible or not. All keys weigh the same. */
static void check_value(int keys, float value, float wanted) {
    attune_context *context = tensors_context(NULL, 1);
    for (int i = 0; i < 4; i++) {
        char text[128];
        snprintf(text, sizeof text, "seq_q=2,seq_kv=%d,head_dim=9,softmax_scale=0,reproducible=%d", keys, i / 2);
        const attune_problem p = problem_canonical(text);
        const mha_schedule schedule = schedule_by(i % 2 ? MHA_D_LANES : MHA_Q_LANES, &p, context);
        tensors t;
        tensors_open_call(&t, text, "", INPUT_ORDINARY, 1);
        float *const v = tensors_find(&t, "v")->data;
        for (int64_t at = 0; at < (int64_t)keys * p.head_dim_v; at++) v[at] = value;
        tensors_run_chosen(context, &t, &schedule);
        const float out = ((const float *)tensors_find(&t, "out")->data)[17];
        const float gap = isinf(wanted) ? 0 : 1e-5F * wanted;
        if (!(out == wanted || fabsf(out - wanted) <= gap))
            fail_msg("%s, strategy %d, V = %g: %g", text, (int)schedule.strategy, (double)value, (double)out);
        tensors_free(&t);
    }
    attune_context_destroy(context);
}

/* V is summed before it is divided: it may be as large as the largest number divided by the number of keys. */
static void test_large_values(void **state) {
    (void)state;
    static const int keys[] = {4, 400};
    for (int i = 0; i < 2; i++) {
        const float limit = 3.4028235e38F / (float)keys[i];
        check_value(keys[i], 0.999F * limit, 0.999F * limit);
        check_value(keys[i], 1.001F * limit, INFINITY);
        check_value(keys[i], -INFINITY, -INFINITY);
    }
}

/* A row that sees no key gives 0 and -infinity even if its q is NaN; one that sees some gives NaN. */
static void test_nan_in_q(void **state) {
    (void)state;
    static const char text[] = "seq_q=2,seq_kv=100,head_dim=9,is_causal=1,causal_offset=-99,has_lse=1,reproducible=1";
    const attune_problem p = problem_canonical(text);
    attune_context *context = tensors_context(NULL, 1);
    for (int i = 0; i < 2; i++) {
        const mha_schedule schedule = schedule_by(i ? MHA_D_LANES : MHA_Q_LANES, &p, context);
        tensors t;
        tensors_open_call(&t, text, "", INPUT_ORDINARY, 1);
        float *const q = tensors_find(&t, "q")->data;
        for (int64_t at = 0; at < p.seq_q * p.head_dim; at++) q[at] = NAN;
        tensors_run_chosen(context, &t, &schedule);
        const float *const out = tensors_find(&t, "out")->data, *const lse = tensors_find(&t, "lse")->data;
        for (int64_t d = 0; d < p.head_dim; d++) assert_true(out[d] == 0 && isnan(out[p.head_dim + d]));
        assert_true(lse[0] == -INFINITY && isnan(lse[1]));
        tensors_free(&t);
    }
    attune_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_long_sums),
        cmocka_unit_test(test_large_values),
        cmocka_unit_test(test_nan_in_q),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
