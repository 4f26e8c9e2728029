/* Masks of which it is known that each query sees keys without a gap: it is true of them, and it is known of those that
 * are in use. */
#include "problem/problem.h"
#include "problem/problem_functions.h"
#include "ref_functions.h"
#include "support/problems.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { QUERIES = 24, KEYS = 40 };

static attune_problem problem_of(const char *mask) {
    attune_problem p = ATTUNE_PROBLEM_INIT, canonical;
    char text[1024];
    at_error err = {0};
    /* An offset that ALiBi counts from keeps the mask from becoming fields. */
    snprintf(text, sizeof text,
             "num_heads=2,seq_q=%d,seq_kv=%d,head_dim=16,has_alibi_slopes=1,causal_offset=1,mask_mod=\"%s\"", QUERIES,
             KEYS, mask);
    assert_string_equal((mha_problem_parse(text, &p, &err), err.message), "");
    assert_string_equal((mha_canonicalize(&p, &canonical, &err), err.message), "");
    return canonical;
}

/* The runs of keys that query q sees. */
static int count_runs(const attune_problem *p, int64_t q) {
    const ref_call call = {.problem = p};
    int runs = 0;
    for (int64_t kv = 0, before = 0; kv < KEYS; kv++) {
        const ref_place place = {.call = &call, .q = q, .kv = kv, .seq_q = QUERIES, .seq_kv = KEYS};
        const bool sees = ref_function_sees(&place);
        runs += sees && !before;
        before = sees;
    }
    return runs;
}

static int most_runs(const attune_problem *p) {
    int most = 0;
    for (int64_t q = 0; q < QUERIES; q++) {
        const int runs = count_runs(p, q);
        if (runs > most) most = runs;
    }
    return most;
}

static void assert_known(const char *mask) {
    const attune_problem p = problem_of(mask);
    if (mha_read(&p).has_gaps) fail_msg("not known of %s", mask);
    if (most_runs(&p) > 1) fail_msg("%s shows a query %d runs of keys", mask, most_runs(&p));
}

static void assert_unknown(const char *mask) {
    const attune_problem p = problem_of(mask);
    if (!mha_read(&p).has_gaps) fail_msg("taken for known of %s", mask);
}

static void without_gaps(void **state) {
    (void)state;
    assert_known("q // 8 == kv // 8");
    assert_known("q >= kv & q // 8 == kv // 8");
    assert_known("kv <= 5 * (q % 3) | q >= kv");
    assert_known("!(kv > q | kv // 4 < q // 8)");
    assert_known("abs(q // 5 - kv // 5) <= 1");
    assert_known("abs(-2 * kv + q) < 9 & kv >= 2");
    assert_known("select(q % 2 == 0, kv < 9, kv > 20)");
    assert_known("min(kv, 30) >= max(q, 7) & max(kv - 3, q) < 22");
    assert_known("exp(float(kv) * -0.25) > 0.1 & sqrt(kv + 0.5) > 1.5");
    assert_known("floor(kv / 4) == floor(q / 4) & int(-0.5 * kv) < -3");
    assert_known("q % 2 == 0");
}

static void with_gaps(void **state) {
    (void)state;
    const char *const masks[] = {
        "kv < 4 | abs(q - kv) <= 2", "kv != q", "kv % 2 == 0", "abs(q - kv) >= 5", "!(abs(kv - 9) < 4)",
        "(q < kv) == (kv > 30)"};
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        const attune_problem p = problem_of(masks[i]);
        assert_unknown(masks[i]);
        if (i < 5) assert_true(most_runs(&p) > 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(without_gaps), cmocka_unit_test(with_gaps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
