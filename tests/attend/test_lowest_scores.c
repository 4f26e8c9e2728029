/* Rows all of whose scores are the lowest number of a type: each key counts alike, as in any other row of equal scores.
 * Masks come so, as a bias of torch.finfo(dtype).min, and rows of padding are masked as a whole. */
#include "ref_attention.h"
#include "schedule/choose.h"
#include "support/problems.h"
#include "support/tensor_calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { DIM = 64 };

static void assert_mean_of_values(const tensors *t, int64_t rows, int64_t keys, const char *what) {
    const tensor *const v = tensors_find(t, "v"), *const out = tensors_find(t, "out");
    for (int64_t column = 0; column < DIM; column++) {
        double mean = 0;
        for (int64_t j = 0; j < keys; j++)
            mean += (double)ref_load(v->info.dtype, v->data, j * DIM + column) / (double)keys;
        for (int64_t row = 0; row < rows; row++) {
            const double found = (double)ref_load(out->info.dtype, out->data, row * DIM + column);
            if (!(fabs(found - mean) <= 0.01)) fail_msg("%s: row %d has %g, not %g", what, (int)row, found, mean);
        }
    }
}

static void check(const char *more, int64_t rows, int64_t keys, double lowest) {
    char text[200];
    snprintf(text, sizeof text, "num_heads=1,seq_q=%d,seq_kv=%d,head_dim=%d,dtype=bf16,attn_bias_dims=qk%s", (int)rows,
             (int)keys, DIM, more);
    const attune_problem p = problem_canonical(text);
    tensors t;
    tensors_open_call(&t, text, "", INPUT_ORDINARY, 3);
    const tensor *const bias = tensors_find(&t, "attn_bias");
    for (int64_t i = 0; i < rows * keys; i++) ref_store(bias->info.dtype, bias->data, i, lowest);
    for (const at_target *target = at_targets(); target->name; target++) {
        mha_schedule schedule;
        char what[300];
        mha_choose(mha_read(&p), target, usual_machine(target), &schedule);
        tensors_interpret_for(&t, target, &schedule);
        snprintf(what, sizeof what, "%s with %g for %s", text, lowest, target->name);
        assert_mean_of_values(&t, rows, keys, what);
    }
    tensors_free(&t);
}

/* One query, many, and several tiles of keys. */
static void test_rows_of_lowest_scores(void **state) {
    (void)state;
    static const double lowest[] = {-1e10, -0x1.fep127};
    for (size_t i = 0; i < sizeof lowest / sizeof *lowest; i++) {
        check("", 1, 40, lowest[i]);
        check("", 1, 600, lowest[i]);
        check("", 20, 40, lowest[i]);
        check(",has_lse=1", 20, 40, lowest[i]);
        check(",has_lse=1", 1, 40, lowest[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows_of_lowest_scores)};
    return cmocka_run_group_tests_name("lowest scores", tests, NULL, NULL);
}
