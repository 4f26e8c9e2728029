/* Functions on scores and masks: canonical text, and a sentence with a column for each thing that is wrong. */
#include "problem/problem_functions.h"
#include "support/problems.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define BASE    "num_heads=4,num_kv_heads=2,seq_q=64,seq_kv=96,head_dim=32"
#define TENSORS "tensors=\"slope:f32[h], doc:i32[b, q], wheel:f32[8], seen:bool[q, kv]\","

static void assert_canonical(const char *function, const char *expected) {
    char text[2048], again[2048];
    attune_problem p = ATTUNE_PROBLEM_INIT, canonical;
    at_error err = {0};
    snprintf(text, sizeof text, BASE ",%s", function);
    assert_int_equal(mha_problem_parse(text, &p, &err), ATTUNE_OK);
    assert_string_equal((mha_canonicalize(&p, &canonical, &err), err.message), "");
    assert_true(mha_problem_print(&canonical, text, sizeof text) < sizeof text);
    if (!strstr(text, expected)) fail_msg("%s is not in %s", expected, text);
    /* It is a fixed point. */
    p = (attune_problem)ATTUNE_PROBLEM_INIT;
    assert_int_equal(mha_problem_parse(text, &p, &err), ATTUNE_OK);
    assert_int_equal(mha_canonicalize(&p, &canonical, &err), ATTUNE_OK);
    mha_problem_print(&canonical, again, sizeof again);
    assert_string_equal(text, again);
}

static void text_is_canonical(void **state) {
    (void)state;
    assert_canonical("score_mod=\"score+2*(q-kv)\"", "score_mod=\"score + float(2 * (q - kv))\"");
    assert_canonical("score_mod=\"((score)) * 2\"", "score_mod=\"score * 2.0\"");
    assert_canonical("score_mod=\"20*tanh(score/20)\"", "\"20.0 * tanh(score / 20.0)\"");
    assert_canonical("mask_mod=\"q>=kv|q-kv<=16\"", "mask_mod=\"q >= kv | q - kv <= 16\"");
    assert_canonical("mask_mod=\"(q>=kv)|((q-kv)<=16)\"", "mask_mod=\"q >= kv | q - kv <= 16\"");
    assert_canonical("mask_mod=\"~(q // 16 == kv // 16)\"", "\"!(q // 16 == kv // 16)\"");
    assert_canonical("mask_mod=\"q - (kv - 1) > -3 | q > 9\"", "\"q - (kv - 1) > -3 | q > 9\"");
    assert_canonical("score_mod=\"select(q<kv, -inf, score)\"", "\"select(q < kv, -inf, score)\"");
    assert_canonical("prob_mod=\"prob*2+h\"", "prob_mod=\"prob * 2.0 + float(h)\"");
    assert_canonical("score_mod=\"score*2\",prob_mod=\"prob*2\"", "score_mod=\"score * 2.0\",prob_mod=\"prob * 2.0\"");
    assert_canonical("score_mod=\"clamp(score, -1e-7, 1e9)\"", "\"min(1e+09, max(-1e-07, score))\"");
}

static void what_does_nothing_is_dropped(void **state) {
    (void)state;
    attune_problem p = ATTUNE_PROBLEM_INIT, canonical;
    assert_int_equal(mha_problem_parse(BASE ",score_mod=\"score\",mask_mod=\"true\",prob_mod=\"(prob)\"", &p, NULL),
                     ATTUNE_OK);
    assert_int_equal(mha_canonicalize(&p, &canonical, NULL), ATTUNE_OK);
    assert_false(mha_has_functions(&canonical));
}

static void assert_refused(const char *function, const char *message) {
    char text[2048];
    attune_problem p = ATTUNE_PROBLEM_INIT, canonical;
    at_error err = {0};
    snprintf(text, sizeof text, BASE ",%s", function);
    if (mha_problem_parse(text, &p, &err) == ATTUNE_OK) mha_canonicalize(&p, &canonical, &err);
    if (!strstr(err.message, message)) fail_msg("'%s' does not say '%s'", err.message, message);
}

static void malformed_text(void **state) {
    (void)state;
    assert_refused("score_mod=\"score +\"", "score_mod, column 8: the text ends where a number, a name or '(' is");
    assert_refused("score_mod=\"(score\"", "score_mod, column 7: the text ends where ')' is expected");
    assert_refused("score_mod=\"score score\"", "column 7: 'score' stands where an operator or the end is expected");
    assert_refused("mask_mod=\"q >= kv and true\"",
                   "column 9: 'and' stands where an operator or the end is expected; write &");
    assert_refused("mask_mod=\"q >= kv or true\"", "; write |");
    assert_refused("mask_mod=\"not true\"", "column 1: 'not' is not known; write !");
    assert_refused("mask_mod=\"q >= kv && true\"", "column 9: '&&' stands where an operator or the end is expected; ");
    assert_refused("mask_mod=\"0 <= q < kv\"", "column 8: comparisons do not chain; join them by &");
    assert_refused("score_mod=\"score @ 2\"", "column 7: '@' has no meaning here");
    assert_refused("score_mod=\"score * 99999999999999999999\"", "column 9: 99999999999999999999 does not fit");
    assert_refused("score_mod=\"score * 1e999\"", "column 9: 1e999 is too large for a number");
    assert_refused("score_mod=\"sin(score)\"", "column 1: 'sin' is not a function; there are select");
    assert_refused("score_mod=\"tanh(score, 1)\"", "column 1: tanh takes 1 operand, and here are 2");
    assert_refused("score_mod=\"max(score)\"", "column 1: max takes 2 operands, and here is 1");
    assert_refused("score_mod=\"2 * score[0]\"", "column 5: score is one number and has no elements");
    assert_refused("score_mod=\"score + x\"", "column 9: 'x' is not known; there are score");
    assert_refused("score_mod=\"score + x[q]\"", "column 9: 'x' is not a tensor of the problem; declare it");
    assert_refused("score_mod=\"score", "in which a quotation mark stands alone");
}

static void wrong_types(void **state) {
    (void)state;
    assert_refused("score_mod=\"q >= kv\"", "score_mod, column 1: this is a condition; a score is a number");
    assert_refused("mask_mod=\"q - kv\"", "mask_mod, column 1: this is a number; a mask is a condition");
    assert_refused("mask_mod=\"score > 0\"", "mask_mod, column 1: score is not known here");
    assert_refused("mask_mod=\"prob > 0\"", "mask_mod, column 1: prob is not known here: a mask depends on");
    assert_refused("score_mod=\"1 + prob\"", "score_mod, column 5: prob is not known here: score_mod is given score");
    assert_refused("prob_mod=\"2 * score\"", "prob_mod, column 5: score is not known here: prob_mod is given prob");
    assert_refused("prob_mod=\"prob > 0\"", "prob_mod, column 1: this is a condition; a probability is a number");
    assert_refused("prob_mod=\"p\"", "prob_mod, column 1: 'p' is not known; there are prob b h");
    assert_refused("k_dtype=i8,integer=scores,prob_mod=\"prob * 2\"", "leave out prob_mod or integer");
    assert_refused("score_mod=\"select(q, score, 0)\"", "column 1: select wants a condition, and this is a number");
    assert_refused("mask_mod=\"!(q - kv)\"", "column 1: ! wants a condition");
    assert_refused("score_mod=\"score & 1\"", "column 7: & wants conditions or integers");
    assert_refused("score_mod=\"score + q % (kv - 3)\"", "column 11: the divisor kv - 3 may be 0");
    assert_refused(TENSORS "mask_mod=\"slope[h] + wheel[1.5] > 0\"", "column 18: an index of wheel is not an integer");
}

static void indices(void **state) {
    (void)state;
    assert_refused(TENSORS "score_mod=\"score + slope[q]\"",
                   "column 15: the index q of slope may be beyond its dim of h");
    assert_refused(TENSORS "score_mod=\"score + wheel[q - kv]\"",
                   "the index q - kv of wheel may be negative; write clamp(");
    assert_refused(TENSORS "score_mod=\"score + wheel[8]\"", "the index 8 of wheel may be beyond its dim of 8");
    assert_refused(TENSORS "mask_mod=\"doc[b, q + 1] > 0\"",
                   "column 8: the index q + 1 of doc may be beyond its dim of q");
    assert_refused(TENSORS "mask_mod=\"doc[b] > 0\"", "column 1: doc has 2 dims, and here is 1");
    assert_refused(TENSORS "mask_mod=\"doc > 0\"", "column 1: doc is a tensor; write which element");
    assert_canonical(TENSORS "mask_mod=\"doc[b, q] == doc[b, clamp(kv)] & seen[q, kv] & seen[q // 2, abs(kv)]\","
                             "score_mod=\"score + slope[h] + wheel[(q + kv) % 8] + wheel[clamp(q-kv)]\"",
                     "doc[b, q] == doc[b, clamp(kv)] & seen[q, kv] & seen[q // 2, abs(kv)]");
}

static void declarations(void **state) {
    (void)state;
    assert_refused("tensors=\"x:f32\",mask_mod=\"q > 0\"",
                   "tensors, column 6: the text ends where '[' and the dims is");
    assert_refused("tensors=\"t:f31[h]\",mask_mod=\"q > 0\"",
                   "tensors, column 3: 'f31[h]' stands where one of the types");
    assert_refused("tensors=\"t:f32[0]\",mask_mod=\"q > 0\"", "tensors, column 7: '0]' stands where a dim");
    assert_refused("tensors=\"t:f32[h, h, h, h, h]\"", "column 19: 'h]' stands where ']', as four dims are the most,");
    assert_refused("tensors=\"t:f32[h]\",mask_mod=\"q > 0\"", "tensor 't' is declared, but no function uses");
    assert_refused("tensors=\"kv:f32[h]\",mask_mod=\"q > 0\"", "a tensor cannot be named 'kv': that is a word of the");
    assert_refused("tensors=\"out:f32[h]\",mask_mod=\"out[h] > 0\"", "a tensor cannot be named 'out': attention has a");
    assert_refused("tensors=\"t:f32[h], t:i32[h]\",mask_mod=\"t[h] > 0\"", "tensor 't' is declared twice");
}

/* A clamp within a clamp is parsed once, and not once for each of those around it: that would take hours here. */
static void nested_clamps(void **state) {
    (void)state;
    char text[2 * ATTUNE_FUNCTION_BYTES] = "tensors=\"t:i32[2]\",mask_mod=\"";
    for (int i = 0; i < 40; i++) strcat(text, "t[clamp(");
    strcat(text, "q");
    for (int i = 0; i < 40; i++) strcat(text, i % 2 ? ")]" : ", 0, 1)]");
    attune_problem p = ATTUNE_PROBLEM_INIT;
    p.num_heads = 1, p.seq_q = p.seq_kv = 4, p.head_dim = 8;
    assert_int_equal(attune_problem_parse(&p, strcat(text, " > 0\"")), ATTUNE_OK);
    assert_int_equal(attune_problem_check(&p), ATTUNE_OK);
}

/* As many brackets as text holds, and a chain of operators: no recursion runs away. */
static void depth(void **state) {
    (void)state;
    char text[ATTUNE_FUNCTION_BYTES + 64] = "score_mod=\"";
    for (int i = 0; i < 500; i++) strcat(text, "(");
    assert_refused(strcat(text, "\""), "this is nested more than 100 deep");
    strcpy(text, "score_mod=\"score");
    for (int i = 0; i < 120; i++) strcat(text, "*score");
    assert_refused(strcat(text, "\""), "this is nested more than 100 deep");
    strcpy(text, "score_mod=\"score");
    for (int i = 0; i < 20; i++) strcat(text, "%2.5");
    assert_refused(strcat(text, "\""), "score_mod is too long: its canonical text");
}

/* Its canonical text, in which each minus has parentheses, is no deeper than may be. */
static void deep_text_is_canonical(void **state) {
    (void)state;
    char text[ATTUNE_FUNCTION_BYTES] = "num_heads=1,seq_q=4,head_dim=8,score_mod=\"",
         printed[4 * ATTUNE_FUNCTION_BYTES];
    for (int i = 0; i < 100; i++) strcat(text, "-");
    const attune_problem p = problem_parsed(strcat(text, "score\""));
    if (attune_problem_check(&p)) fail_msg("%s", attune_last_message());
    attune_problem_print(&p, printed, sizeof printed);
    const attune_problem again = problem_parsed(printed);
    if (attune_problem_check(&again)) fail_msg("%s", attune_last_message());
    assert_non_null(strstr(printed, "-(-(-score))"));
}

/* ---- Blocks ---- */

static void expect_runs(const char *mask, int64_t queries, int64_t keys) {
    attune_problem p = ATTUNE_PROBLEM_INIT, canonical;
    ex_program program;
    char text[512];
    at_error err = {0};
    snprintf(text, sizeof text,
             "num_heads=2,seq_q=64,seq_kv=96,head_dim=16,tensors=\"seen:bool[h, 16, 24]\",mask_mod=\"%s\"", mask);
    assert_string_equal((mha_problem_parse(text, &p, &err), err.message), "");
    assert_string_equal((mha_canonicalize(&p, &canonical, &err), err.message), "");
    assert_int_equal(mha_read_functions(&canonical, &program, &err), ATTUNE_OK);
    assert_int_equal(ex_run_length(&program, program.mask, EX_V_Q), queries);
    assert_int_equal(ex_run_length(&program, program.mask, EX_V_KV), keys);
}

static void runs_that_a_mask_cannot_tell_apart(void **state) {
    (void)state;
    expect_runs("seen[h, q // 4, kv // 4]", 4, 4);
    expect_runs("seen[h, q // 8, kv // 6] & kv // 4 != 3", 8, 2);
    expect_runs("seen[h, q // 8, kv // 4] | kv % 3 == 0", 8, 1);
    expect_runs("seen[h, 3, kv // 4]", 0, 4);
    expect_runs("seen[h, q // 8, clamp((kv + 1) // 4)]", 8, 1);
    expect_runs("seen[h, clamp(q // 4 - kv // 16), kv // 8]", 4, 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_canonical),
        cmocka_unit_test(what_does_nothing_is_dropped),
        cmocka_unit_test(malformed_text),
        cmocka_unit_test(wrong_types),
        cmocka_unit_test(indices),
        cmocka_unit_test(declarations),
        cmocka_unit_test(nested_clamps),
        cmocka_unit_test(depth),
        cmocka_unit_test(deep_text_is_canonical),
        cmocka_unit_test(runs_that_a_mask_cannot_tell_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
