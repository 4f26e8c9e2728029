/* Which rows of corrections.def decided a choice: those without which another schedule is chosen. */
#include "problem/mha.h"
#include "schedule/choose.h"
#include "schedule/corrections.h"
#include "support/problems.h"
#include "target/tuning_class.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 64 };

static mha_machine machine_of(const char *target, const char *class_name) {
    return (mha_machine){at_target_find(target), at_description_of(class_name, false)};
}

/* The subjects of all rows that decided, with blanks around each. */
static void list_subjects(const char *text, const mha_machine *machine, char *list, size_t capacity) {
    const attune_problem p = problem_canonical(text);
    mha_schedule instead;
    size_t length = (size_t)snprintf(list, capacity, " ");
    for (int row = 0; (row = mha_next_reason(row, mha_read(&p), machine, &instead)) > 0;)
        length += (size_t)snprintf(list + length, capacity - length, "%s ", mha_correction_row_of(row)->of);
    assert_true(length < capacity);
}

static void rows_that_decide(void **state) {
    static const struct {
        const char *problem, *target, *machine, *decides;
    } cases[] = {
        {"num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=8192,head_dim=128", "avx512", "zen4", " MEMORY_ROWS "},
        {"dtype=bf16,num_heads=48,num_kv_heads=8,seq_q=1,seq_kv=8192,head_dim=128", "avx2", "zen3",
         " MEMORY_HELD CHEAPER_TILES "},
        {"num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=512,head_dim=48", "avx2", "zen3", " NARROW "},
        {"num_heads=8,seq_q=64,seq_kv=24,head_dim=64", "avx2", "zen3", NULL},
        {"num_heads=2,seq_q=1,seq_kv=1,head_dim=1", "avx512", "zen4", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mha_machine machine = machine_of(cases[i].target, cases[i].machine);
        char list[400];
        list_subjects(cases[i].problem, &machine, list, sizeof list);
        if (cases[i].decides ? !strstr(list, cases[i].decides) : !!strstr(list, "MEMORY"))
            fail_msg("%s: the rows that decide are%s", cases[i].problem, list);
    }
}

/* Leaving out a row that is not among them changes nothing, and each of them changes something. */
static void all_others_decide_nothing(void **state) {
    static const char *const problems[] = {
        "num_heads=12,seq_q=512,head_dim=64,is_causal=1",
        "num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128",
        "embed_dim=96,num_heads=6,seq_q=3",
        "num_heads=4,seq_q=9,seq_kv=300,head_dim=64",
        "num_heads=8,num_kv_heads=2,seq_q=3,seq_kv=700,head_dim=64,kv_ids=query,num_ids=64",
        "seq_q=dynamic,seq_kv=dynamic,head_dim=64"};
    (void)state;
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        const attune_problem p = problem_canonical(problems[i]);
        const mha_machine machine = machine_of("avx512", "zen4");
        mha_schedule chosen, other, instead;
        mha_choose(mha_read(&p), machine.target, machine.description, &chosen);
        int next = mha_next_reason(0, mha_read(&p), &machine, &instead);
        for (int row = 1; mha_correction_row_of(row); row++) {
            mha_choose_without(row, mha_read(&p), &machine, &other);
            assert_int_equal(!mha_schedule_same(&other, &chosen), row == next);
            if (row != next) continue;
            assert_true(mha_schedule_same(&other, &instead));
            next = mha_next_reason(row, mha_read(&p), &machine, &instead);
        }
        assert_int_equal(next, 0);
    }
}

/* Each row says in a sentence of its own what was measured: readers see it without its neighbours. */
static void rows_speak_for_themselves(void **state) {
    int row = 1, line = 0;
    (void)state;
    for (const mha_correction_row *r; (r = mha_correction_row_of(row)); row++) {
        assert_true(r->line > line);
        line = r->line;
        assert_true(strlen(r->of) > 2 && strlen(r->when) > 2 && strlen(r->factor) > 2);
        if (strlen(r->evidence) < 20 || !strncmp(r->evidence, "the same", 8) || !strncmp(r->evidence, "as for", 6))
            fail_msg("corrections.def:%d: \"%s\"", line, r->evidence);
    }
    assert_in_range(row, 20, ROWS);
    assert_null(mha_correction_row_of(0));
    assert_null(mha_correction_row_of(-1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_decide),
        cmocka_unit_test(all_others_decide_nothing),
        cmocka_unit_test(rows_speak_for_themselves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
