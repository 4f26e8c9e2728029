/* Conditions of mask_mod that become causality and windows: the same keys are seen, and what is left is a fixed point.
 */
#include "problem/problem.h"
#include "ref_functions.h"
#include "support/problems.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define BASE "num_heads=2,seq_q=24,seq_kv=40,head_dim=16,"

static attune_problem problem_of(const char *fields) {
    attune_problem p = ATTUNE_PROBLEM_INIT;
    char text[1024];
    at_error err = {0};
    snprintf(text, sizeof text, BASE "%s", fields);
    assert_string_equal((mha_problem_parse(text, &p, &err), err.message), "");
    return p;
}

static attune_problem canonical_of(const attune_problem *p) {
    attune_problem canonical;
    at_error err = {0};
    assert_string_equal((mha_canonicalize(p, &canonical, &err), err.message), "");
    return canonical;
}

/* Whether query q sees key kv by the fields and the mask. */
static bool sees(const attune_problem *p, int64_t q, int64_t kv) {
    const ref_call call = {.problem = p};
    const ref_place place = {.call = &call, .q = q, .kv = kv, .seq_q = 24, .seq_kv = 40};
    attune_sight sight = {.struct_size = sizeof sight};
    assert_int_equal(attune_sight_of(p, 24, 40, 0, q, q + 1, &sight), ATTUNE_OK);
    return kv >= sight.some_begin && kv < sight.some_end && ref_function_sees(&place);
}

static void assert_same_keys(const attune_problem *given, const attune_problem *canonical, const char *fields) {
    for (int64_t q = 0; q < 24; q++)
        for (int64_t kv = 0; kv < 40; kv++)
            if (sees(given, q, kv) != sees(canonical, q, kv))
                fail_msg("%s: query %d and key %d", fields, (int)q, (int)kv);
}

/* `rest`: what is left of the mask. */
static void assert_becomes(const char *fields, const char *rest) {
    const attune_problem given = problem_of(fields), canonical = canonical_of(&given), again = canonical_of(&canonical);
    assert_string_equal(canonical.mask_mod, rest);
    assert_memory_equal(&canonical, &again, sizeof canonical);
    assert_same_keys(&given, &canonical, fields);
}

static void comparisons(void **state) {
    (void)state;
    assert_becomes("mask_mod=\"q >= kv\"", "");
    assert_becomes("mask_mod=\"kv < q\"", "");
    assert_becomes("mask_mod=\"q - 3 >= kv\"", "");
    assert_becomes("mask_mod=\"q + 7 > kv & kv - q > -5\"", "");
    assert_becomes("mask_mod=\"2 * q - kv - (q - 4) >= 3\"", "");
    assert_becomes("mask_mod=\"abs(q - kv) <= 4\"", "");
    assert_becomes("mask_mod=\"6 > abs(2 - (kv - q))\"", "");
    assert_becomes("mask_mod=\"!(kv > q) & !(q - kv >= 9)\"", "");
    assert_becomes("mask_mod=\"kv == q + 2\"", "");
    assert_becomes("mask_mod=\"!(kv != q)\"", "");
    assert_becomes("mask_mod=\"q - kv <= -3\"", "");
    assert_becomes("mask_mod=\"kv - q < 1000\"", "");
}

static void others_stay(void **state) {
    (void)state;
    assert_becomes("mask_mod=\"q >= kv & q // 8 == kv // 8\"", "q // 8 == kv // 8");
    assert_becomes("mask_mod=\"kv % 2 == 0 & q >= kv & (q < 9 | kv < 7) & q - kv < 20\"",
                   "kv % 2 == 0 & (q < 9 | kv < 7)");
    assert_becomes("mask_mod=\"q >= kv | kv < 4\"", "q >= kv | kv < 4");
    assert_becomes("mask_mod=\"q >= 2 * kv\"", "q >= 2 * kv");
    assert_becomes("mask_mod=\"q + kv >= 9\"", "q + kv >= 9");
    assert_becomes("mask_mod=\"kv < 30\"", "kv < 30");
    assert_becomes("mask_mod=\"abs(q - kv) >= 4\"", "abs(q - kv) >= 4");
    assert_becomes("mask_mod=\"q != kv\"", "q != kv");
    assert_becomes("mask_mod=\"q >= kv & q - kv < 0\"", "q >= kv & q - kv < 0");
    assert_becomes("mask_mod=\"!(q >= kv & kv > 3)\"", "!(q >= kv & kv > 3)");
    assert_becomes("mask_mod=\"0.5 * q >= kv\"", "0.5 * float(q) >= float(kv)");
    assert_becomes("mask_mod=\"q - kv > 9223372036854775807\"", "q - kv > 9223372036854775807");
    /* Each side wraps from 2^24 keys on, which the difference does not. */
    assert_becomes("mask_mod=\"kv * 1000000 * 1000000 <= kv * 999999 * 1000001 + q\"",
                   "kv * 1000000 * 1000000 <= kv * 999999 * 1000001 + q");
    assert_becomes("mask_mod=\"kv * 1000 <= kv * 999 + q\"", "");
    assert_becomes("mask_mod=\"kv * 1099511627775 > q * 1099511627775\"", "kv * 1099511627775 > q * 1099511627775");
}

/* Positions that fields have set stay where they are. */
static void beside_fields(void **state) {
    (void)state;
    assert_becomes("causal_align=top_left,is_causal=1,mask_mod=\"q - kv < 9\"", "");
    assert_becomes("causal_align=top_left,is_causal=1,causal_offset=4,mask_mod=\"q - kv < 9 & kv - q < 50\"", "");
    assert_becomes("causal_align=top_left,window_left=12,mask_mod=\"q >= kv & q - kv < 9\"", "");
    assert_becomes("causal_align=top_left,window_right=5,causal_offset=2,mask_mod=\"kv - q <= 4\"", "");
    assert_becomes("causal_align=top_left,is_causal=1,causal_offset=4,mask_mod=\"q >= kv\"", "q >= kv");
    assert_becomes("is_causal=1,mask_mod=\"q + 16 >= kv\"", "");
    assert_becomes("causal_align=top_left,has_alibi_slopes=1,causal_offset=3,mask_mod=\"q + 3 >= kv\"", "");
    assert_becomes("causal_align=top_left,has_alibi_slopes=1,mask_mod=\"q + 3 >= kv\"", "");
    assert_becomes("causal_offset=9,mask_mod=\"q >= kv\"", "");
    assert_becomes("causal_align=top_left,is_causal=1,causal_offset=1000,mask_mod=\"q - kv < 0\"", "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comparisons),
        cmocka_unit_test(others_stay),
        cmocka_unit_test(beside_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
