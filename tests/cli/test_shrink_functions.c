/* Functions that shrink as long as a word is in them: what is left is the least that the library takes. */
#include "check/check_case.h"
#include "support/problems.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define BASE "num_heads=2,seq_q=16,seq_kv=16,head_dim=8,"

static bool has(const attune_problem *p, const char *word) {
    return strstr(p->score_mod, word) || strstr(p->mask_mod, word) || strstr(p->prob_mod, word);
}

/* As check_shrink goes through moves. Every progress makes less of the text, so it ends. */
static void shrink(attune_problem *p, const char *word) {
    for (bool progress = true; progress;) {
        progress = false;
        attune_problem smaller = *p;
        for (int move = 0; check_shrink_function(&smaller, move); move++, smaller = *p) {
            if (!memcmp(&smaller, p, sizeof *p) || !has(&smaller, word)) continue;
            if (attune_problem_check(&smaller) != ATTUNE_OK) continue;
            *p = smaller;
            progress = true;
        }
    }
}

static attune_problem shrunk(const char *functions, const char *word) {
    char text[2048] = BASE;
    strcat(text, functions);
    attune_problem p = problem_parsed(text);
    assert_int_equal(attune_problem_check(&p), ATTUNE_OK);
    shrink(&p, word);
    return p;
}

static void parts_become_constants(void **state) {
    (void)state;
    const attune_problem p =
        shrunk("score_mod=\"select(((q - kv) % 7) < (h * 3), 18 * tanh((score + 2) / 18), score)\"", "tanh");
    assert_string_equal(p.score_mod, "tanh(0)");
}

static void operands_are_left_out(void **state) {
    (void)state;
    assert_string_equal(shrunk("mask_mod=\"(q >= kv & (kv // 3) != 2) | abs(q - kv) < 4\"", "//").mask_mod,
                        "0 // 3 != 2");
    assert_string_equal(shrunk("prob_mod=\"2 * max(0, prob - 1e-07) * 3\"", "prob").prob_mod, "prob");
}

static void tensors_are_dropped(void **state) {
    (void)state;
    const attune_problem p = shrunk("tensors=\"a:f32[h], b2:i32[q, kv], c:bool[kv]\","
                                    "score_mod=\"score + a[h] * b2[q, clamp(kv - 3)]\",mask_mod=\"c[kv] | q > 2\"",
                                    "b2");
    assert_string_equal(p.tensors[0].name, "b2");
    assert_string_equal(p.tensors[1].name, "");
    assert_string_equal(p.score_mod, "b2[0, 0]");
}

static void there_is_an_end(void **state) {
    (void)state;
    attune_problem p = ATTUNE_PROBLEM_INIT;
    assert_false(check_shrink_function(&p, 0));
    for (int move = 0; move < 40; move++) { /* no text of the library's, but no reason to read beyond it */
        memset(p.score_mod, '(', sizeof p.score_mod - 1);
        assert_true(check_shrink_function(&p, move));
    }
    strcpy(p.score_mod, "a <");
    for (int move = 0; check_shrink_function(&p, move); move++) strcpy(p.score_mod, "a <");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_become_constants),
        cmocka_unit_test(operands_are_left_out),
        cmocka_unit_test(tensors_are_dropped),
        cmocka_unit_test(there_is_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
