/* Keys that mask_mod hides from all rows, next to those that it shows: they lie in one register tile, or one pair, with
 * these, and are as hidden as any other. */
#include "support/ir/jit_run.h"
#include "support/tensor_calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { KEYS = 150, COLUMNS = 24 };

static bool is_seen(int kv) { return kv >= 45 && kv < 61; }

static void put(const tensor *one, int i, float value) { ref_store(one->info.dtype, one->data, i, value); }

/* Hidden keys and values are NaN, or 7: no bit of the result may tell. */
static void fill_hidden(const tensors *t, float value) {
    const tensor *const rows[2] = {tensors_find(t, "k"), tensors_find(t, "v")};
    for (int i = 0; i < 2 * KEYS * COLUMNS; i++)
        if (!is_seen(i / COLUMNS % KEYS)) put(rows[i / (KEYS * COLUMNS)], i % (KEYS * COLUMNS), value);
}

/* By the interpreter, as for the target, and by machine code where that runs here. */
static void compare(const at_target *target, attune_context *context, const char *dtype, const mha_schedule *schedule) {
    char problem[256];
    tensors with_nan, with_numbers;
    snprintf(problem, sizeof problem,
             "num_heads=1,seq_q=20,seq_kv=150,head_dim=24,dtype=%s,mask_mod=\"kv >= 45 & kv < 61\"", dtype);
    tensors_open_call(&with_nan, problem, "", INPUT_ORDINARY, 3);
    tensors_open_call(&with_numbers, problem, "", INPUT_ORDINARY, 3);
    fill_hidden(&with_nan, NAN);
    fill_hidden(&with_numbers, 7);
    if (at_target_runs_here(target)) {
        tensors_run_chosen(context, &with_nan, schedule);
        tensors_run_chosen(context, &with_numbers, schedule);
        tensors_assert_same(&with_nan, &with_numbers, problem);
    }
    tensors_interpret(context, &with_nan, schedule);
    tensors_interpret(context, &with_numbers, schedule);
    tensors_assert_same(&with_nan, &with_numbers, problem);
    tensors_free(&with_nan);
    tensors_free(&with_numbers);
}

static void neighbours_are_hidden_on(const at_target *target) {
    static const char *const dtypes[] = {"f32", "bf16", "f64"};
    attune_context *context = target_can_run(target) ? tensors_context(target->name, 2) : tensors_context_for(target);
    for (int i = 0; i < 24; i++) {
        mha_schedule s = {.score_columns = 2, .value_columns = 3};
        s.lanes = i % 3 == 2 && target->vector_bytes < 32 ? 2 : 4;
        s.score_row_vectors = s.value_row_vectors = s.task_row_vectors = 1;
        s.value_keys = 4;
        s.score_keys = i / 3 % 2 ? 8 : 2;
        s.kv_tile = i / 6 % 2 ? 152 : 64;
        s.value_by = i / 12 && s.lanes == 4 ? MHA_VALUE_BY_ROWS : MHA_VALUE_BY_COLUMNS;
        compare(target, context, dtypes[i % 3], &s);
    }
    attune_context_destroy(context);
}

static void neighbours_are_hidden(void **state) {
    (void)state;
    for (const at_target *target = at_targets(); target->name; target++)
        if (target_is_tested(target)) neighbours_are_hidden_on(target);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(neighbours_are_hidden)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
