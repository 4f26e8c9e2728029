/* The builder: folding, unique names, failures, and copies of kernels. */
#include "ir/build.h"
#include "ir/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- folding ---- */

/* Written on the left, printed as on the right. n and m are idx, c is i32, f is f32, p is bool. */
static const struct {
    const char *written, *folded;
} folds[] = {
    {"1 + 2 * 3", "7"},
    {"-7 / 2", "-4"},
    {"-7 % 2", "1"},
    {"7 / 0", "7 / 0"},
    {"7 % 0", "7 % 0"},
    {"9223372036854775807 + 1", "-9223372036854775808"},
    {"2147483647:i32 + 1:i32", "-2147483648:i32"},
    {"n + 0", "n"},
    {"0 + n", "n"},
    {"n - 0", "n"},
    {"0 - n", "neg(n)"},
    {"n * 1", "n"},
    {"1 * n", "n"},
    {"n * 0", "0"},
    {"n / 1", "n"},
    {"n % 1", "0"},
    {"n / 2", "n / 2"},
    {"4 + n", "n + 4"},
    {"n - 4", "n - 4"},
    {"n + -4", "n - 4"},
    {"(n + 3) + 4", "n + 7"},
    {"(n + 3) - 4", "n - 1"},
    {"(n - 3) + 3", "n"},
    {"3 - (n + 4)", "-1 - n"},
    {"3 - (n - 4)", "7 - n"},
    {"(n + 1) + (m + 2)", "(n + m) + 3"},
    {"(n + 1) - (m + 2)", "(n - m) - 1"},
    {"n + (m + 2)", "(n + m) + 2"},
    {"(n + 2) * 8", "(n * 8) + 16"},
    {"8 * (n - 2)", "(n * 8) - 16"},
    {"(n * 4) * 8", "n * 32"},
    {"((n + 1) * 8 + m) * 2 + 5", "(((n * 8) + m) * 2) + 21"},
    {"n + 9223372036854775807 + 1", "n + -9223372036854775808"},
    {"c + 2147483647:i32 + 1:i32", "c + -2147483648:i32"},
    {"c * 0:i32", "0:i32"},
    {"min(3, 5)", "3"},
    {"max(3, 5)", "5"},
    {"min(n, n)", "n"},
    {"max(n + m * 2, n + m * 2)", "n + (m * 2)"},
    {"min(4, n)", "min(n, 4)"},
    {"min(min(n, 6), 4)", "min(n, 4)"},
    {"max(max(2, n), 4)", "max(n, 4)"},
    {"min(max(n, 6), 4)", "min(max(n, 6), 4)"},
    {"n << 0", "n"},
    {"1 << 65", "2"},
    {"-8 >> 1", "-4"},
    {"neg(5)", "-5"},
    {"not(0)", "-1"},
    {"3 < 4", "true"},
    {"3 == 4", "false"},
    {"p & true", "p"},
    {"true & p", "p"},
    {"p & false", "false"},
    {"p | true", "true"},
    {"false | p", "p"},
    {"not(true)", "false"},
    {"select(true, n, m)", "n"},
    {"select(1 > 2, n, m)", "m"},
    {"0.5 + 0.25", "0x1.8p-1"},
    {"0.1:f64 + 0.2:f64", "0x1.3333333333334p-2:f64"},
    {"fma(2.0, 3.0, 4.0)", "0x1.4p+3"},
    {"sqrt(2.0)", "0x1.6a09e6p+0"},
    {"1.0 < nan", "false"},
    {"max(1.0, nan)", "max(0x1p+0, nan)"}, /* NaNs are never made by folding */
    {"0.0 / 0.0", "0x0p+0 / 0x0p+0"},
    {"1.0 / 0.0", "inf"},
    {"f + 0.0", "f + 0x0p+0"}, /* -0 + 0 is 0 */
    {"f * 1.0", "f * 0x1p+0"},
    {"f * 0.0", "f * 0x0p+0"},
    {"1.0 + f", "0x1p+0 + f"},
    {"exp2(1.0)", "exp2(0x1p+0)"},
    {"cast.f32(3)", "0x1.8p+1"},
    {"cast.i32(-2.75)", "-2:i32"},
    {"cast.i32(3e9)", "-2147483648:i32"},
    {"cast.i32(nan)", "-2147483648:i32"},
    {"cast.idx(true)", "1"},
    {"cast.idx(n)", "n"},
    {"cast.f32(0.1:f64)", "0x1.99999ap-4"},
    {"bitcast.i32(1.0)", "1065353216:i32"},
    {"bitcast.f32(1065353216:i32)", "0x1p+0"},
    {"bitcast.f32(-1:i32)", "bitcast.f32(-1:i32)"},
    {"bitcast.i32(nan)", "bitcast.i32(nan)"},
    {"splat.x1(f)", "f"},
    {"splat.x4(0.0) + splat.x4(0.0)", "splat.x4(0x0p+0) + splat.x4(0x0p+0)"},
};

/* Prints `let v = written` to `out`. */
static void print_folded(const char *written, char *out, size_t capacity) {
    char text[512];
    snprintf(text, sizeof text,
             "kernel @k (n: idx, m: idx, c: i32, f: f32, b: bool[1] in) { parallel for i in 0..1 {\n"
             "let p = b[0]\nlet v = %s }}",
             written);
    at_arena arena;
    at_arena_init(&arena, NULL);
    at_error err = {0};
    const ir_kernel *kernel = ir_parse(&arena, text, strlen(text), &err);
    if (!kernel) fail_msg("%s: %s", written, err.message);
    at_string printed;
    at_string_init(&printed, NULL);
    ir_print_expr(kernel->phases->body.last->u.let.value, &printed);
    snprintf(out, capacity, "%s", printed.data);
    at_string_free(&printed);
    at_arena_free(&arena);
}

static void expressions_fold(void **state) {
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof folds / sizeof *folds; i++) {
        char once[256], twice[256];
        print_folded(folds[i].written, once, sizeof once);
        print_folded(once, twice, sizeof twice);
        if (!strcmp(once, folds[i].folded) && !strcmp(twice, once)) continue;
        print_error("%s: %s, then %s; expected %s\n", folds[i].written, once, twice, folds[i].folded);
        wrong++;
    }
    assert_int_equal(wrong, 0);
}

/* ---- building ---- */

static ir_builder *new_builder(at_arena *arena) {
    at_arena_init(arena, NULL);
    return ir_builder_new(arena, "k");
}

/* The kernel's text, to be compared; ends the builder's life. */
static void assert_prints(ir_builder *b, at_arena *arena, const char *expected) {
    at_error err = {0};
    const ir_kernel *kernel = ir_builder_finish(b, &err);
    if (!kernel) fail_msg("%s", err.message);
    at_string text;
    at_string_init(&text, NULL);
    ir_print(kernel, &text);
    assert_string_equal(text.data, expected);
    at_string_free(&text);
    at_arena_free(arena);
}

static void names_are_kept_apart(void **state) {
    (void)state;
    at_arena arena;
    ir_builder *b = new_builder(&arena);
    const ir_expr *n = ir_param_scalar(b, "n", IR_IDX);
    ir_phase_begin(b);
    const ir_expr *i = ir_parallel(b, "i", n);
    const ir_expr *a = ir_let(b, "a", ir_mul(b, i, n));
    const ir_expr *second = ir_let(b, "a", ir_mul(b, a, n));
    ir_let(b, "a.1", ir_mul(b, second, n)); /* a copy of a copy is no longer than a copy */
    ir_let(b, "max", ir_mul(b, a, n));      /* a word of the language */
    ir_let(b, "i.7", ir_mul(b, a, n));      /* free, whatever it looks like */
    ir_let(b, "i.7", ir_mul(b, a, n));
    assert_ptr_equal(ir_let(b, "same", a), a);
    ir_phase_end(b);
    assert_prints(b, &arena,
                  "kernel @k (n: idx) {\n"
                  "  parallel for i in 0..n {\n"
                  "    let a = i * n\n"
                  "    let a.1 = a * n\n"
                  "    let a.2 = a.1 * n\n"
                  "    let max.1 = a * n\n"
                  "    let i.7 = a * n\n"
                  "    let i.1 = a * n\n"
                  "  }\n"
                  "}\n");
}

static void many_equal_names_stay_cheap(void **state) {
    (void)state;
    enum { COUNT = 200000 }; /* for ever, if looking for a free suffix began at 1 each time */
    at_arena arena;
    ir_builder *b = new_builder(&arena);
    ir_phase_begin(b);
    const ir_expr *i = ir_parallel(b, "i", ir_idx(b, 4));
    for (int k = 0; k < COUNT; k++) ir_let(b, "value", ir_mul(b, i, i));
    ir_phase_end(b);
    at_error err = {0};
    const ir_kernel *kernel = ir_builder_finish(b, &err);
    assert_non_null(kernel);
    assert_int_equal(kernel->num_vars, COUNT + 1);
    assert_string_equal(kernel->phases->body.last->u.let.var->name, "value.199999");
    at_arena_free(&arena);
}

static void reduction_is_a_tree_by_halving(void **state) {
    (void)state;
    at_arena arena;
    ir_builder *b = new_builder(&arena);
    const ir_expr *dims[] = {ir_idx(b, 4)};
    const ir_buffer *x = ir_param_buffer(b, "x", IR_F32, 1, dims, NULL, IR_IN | IR_OUT);
    ir_phase_begin(b);
    ir_parallel(b, "i", ir_idx(b, 1));
    const ir_expr *sum = ir_reduce(b, IR_ADD, ir_load(b, ir_at(b, x, 4, 1, ir_idx(b, 0))));
    ir_store(b, ir_at(b, x, 1, 1, ir_idx(b, 0)), sum);
    ir_phase_end(b);
    assert_prints(b, &arena,
                  "kernel @k (x: f32[4] inout) {\n"
                  "  parallel for i in 0..1 {\n"
                  "    let half = x[0]:x4\n"
                  "    let half.1 = shuffle(half, half, [0, 1]) + shuffle(half, half, [2, 3])\n"
                  "    x[0] = shuffle(half.1, half.1, [0]) + shuffle(half.1, half.1, [1])\n"
                  "  }\n"
                  "}\n");
}

/* C's blocks become the IR's, also where a body is left early, stands alone, or is one statement. */
static void blocks_of_c_are_blocks_of_the_ir(void **state) {
    (void)state;
    at_arena arena;
    ir_builder *b = new_builder(&arena);
    const ir_expr *n = ir_param_scalar(b, "n", IR_IDX);
    const ir_expr *dims[] = {n};
    const ir_buffer *x = ir_param_buffer(b, "x", IR_F32, 1, dims, NULL, IR_IN | IR_OUT);
    IR_PHASE(b) {
        const ir_expr *i = ir_parallel(b, "i", n);
        IR_FOR(b, j, i, n, 4) {
            IR_IF(b, ir_lt(b, i, ir_idx(b, 9))) {
                IR_UNROLLED(b, r, 2) ir_prefetch(b, ir_at(b, x, 1, 1, r));
            }
            IR_ELSE(b) {
                IR_IF(b, ir_eq(b, i, j)) {
                    if (n) continue;
                    ir_prefetch(b, ir_at(b, x, 1, 1, n));
                }
            }
            for (int needed = 0; needed < 2; needed++)
                IR_GUARD(b, needed, ir_ge(b, i, j)) ir_prefetch(b, ir_at(b, x, 1, 1, ir_ceil_div(b, j, 3)));
        }
    }
    assert_prints(b, &arena,
                  "kernel @k (n: idx, x: f32[n] inout) {\n"
                  "  parallel for i in 0..n {\n"
                  "    for j in i..n by 4 {\n"
                  "      if i < 9 {\n"
                  "        for r in 0..2 unroll {\n"
                  "          prefetch x[r]\n"
                  "        }\n"
                  "      } else {\n"
                  "        if i == j {\n"
                  "        }\n"
                  "      }\n"
                  "      prefetch x[(j + 2) / 3]\n"
                  "      if i >= j {\n"
                  "        prefetch x[(j + 2) / 3]\n"
                  "      }\n"
                  "    }\n"
                  "  }\n"
                  "}\n");
}

static void blocks_of_c_are_left_at_their_end(void **state) {
    (void)state;
    at_arena arena;
    at_error err = {0};
    ir_builder *b = new_builder(&arena);
    IR_PHASE(b) {
        ir_parallel(b, "i", ir_idx(b, 4));
        IR_FOR(b, j, ir_idx(b, 0), ir_idx(b, 4), 1)
            if (j) break;
    }
    assert_null(ir_builder_finish(b, &err));
    assert_string_equal(err.message, "the end of a phase without the block that it ends");
    at_arena_free(&arena);

    b = new_builder(&arena);
    at_error_clear(&err);
    IR_PHASE(b) {
        ir_parallel(b, "i", ir_idx(b, 4));
        IR_ELSE(b) ir_assume(b, ir_int(b, IR_BOOL, 1));
    }
    assert_null(ir_builder_finish(b, &err));
    assert_string_equal(err.message, "'else' without the block that it ends");
    at_arena_free(&arena);
}

static void signature_is_copied(void **state) {
    (void)state;
    at_arena arena;
    ir_builder *b = new_builder(&arena);
    const ir_expr *n = ir_param_scalar(b, "n", IR_IDX);
    ir_param_buffer(b, "x", IR_F32, 1, &n, NULL, IR_IN);
    ir_kernel_assume(b, ir_apply(b, IR_GE, n, ir_idx(b, 1), NULL));
    ir_shared(b, "all", IR_F64, 1, &n);
    ir_phase_begin(b);
    ir_parallel(b, "i", n);
    ir_phase_end(b);
    at_error err = {0};
    const ir_kernel *old = ir_builder_finish(b, &err);
    assert_non_null(old);

    ir_builder *copy = ir_builder_like(&arena, old);
    ir_phase_begin(copy);
    const ir_expr *j = ir_parallel(copy, "n", old->params[1].buffer->dims[0]);
    assert_int_equal(j->value.var->id, 1);
    const ir_buffer *tmp = ir_alloc(copy, "x", IR_SCRATCH, ir_type_of(IR_F32, 1), 0, NULL);
    assert_int_equal(tmp->id, 2);
    ir_phase_end(copy);
    assert_prints(copy, &arena,
                  "kernel @k (n: idx, x: f32[n] in) {\n"
                  "  assume n >= 1\n"
                  "  alloc all: f64[n] shared\n"
                  "  parallel for n.1 in 0..n {\n"
                  "    alloc x.1: f32[] scratch\n"
                  "  }\n"
                  "}\n");
}

/* ---- failing ---- */

/* Each makes one mistake; the builder is inside a phase over i (idx), with a parameter x: f32[4]. */
static void add_mixed(ir_builder *b, const ir_expr *i, const ir_buffer *x) {
    ir_add(b, i, ir_load(b, ir_at(b, x, 1, 1, i)));
}
static void late_param(ir_builder *b, const ir_expr *i, const ir_buffer *x) {
    (void)i, (void)x;
    ir_param_scalar(b, "late", IR_IDX);
}
static void late_parallel(ir_builder *b, const ir_expr *i, const ir_buffer *x) {
    (void)x;
    ir_assume(b, ir_apply(b, IR_LT, i, ir_idx(b, 4), NULL));
    ir_parallel(b, "j", i);
}
static void wrong_end(ir_builder *b, const ir_expr *i, const ir_buffer *x) {
    (void)i, (void)x;
    ir_for_end(b);
}
static void open_if(ir_builder *b, const ir_expr *i, const ir_buffer *x) {
    (void)x;
    ir_if_begin(b, ir_apply(b, IR_LT, i, ir_idx(b, 3), NULL));
}
static void bad_name(ir_builder *b, const ir_expr *i, const ir_buffer *x) {
    (void)x;
    ir_let(b, "a b", ir_mul(b, i, i));
}
static void operator_name(ir_builder *b, const ir_expr *i, const ir_buffer *x) {
    (void)x;
    ir_let(b, "splat.x8", ir_mul(b, i, i));
}
static void special(ir_builder *b, const ir_expr *i, const ir_buffer *x) {
    (void)x;
    ir_apply(b, IR_SPLAT, i, NULL, NULL);
}
static void large_i32(ir_builder *b, const ir_expr *i, const ir_buffer *x) {
    (void)i, (void)x;
    ir_int(b, IR_I32, INT64_C(1) << 31);
}
static void own_message(ir_builder *b, const ir_expr *i, const ir_buffer *x) {
    (void)i, (void)x;
    ir_build_fail(b, "no tile of %d rows", 3);
}
static void too_deep(ir_builder *b, const ir_expr *i, const ir_buffer *x) {
    (void)x;
    for (int k = 0; k < 1000; k++) i = ir_mul(b, i, i);
}
static void shared_reg(ir_builder *b, const ir_expr *i, const ir_buffer *x) {
    (void)i, (void)x;
    ir_alloc(b, "r", IR_SHARED, ir_type_of(IR_F32, 1), 0, NULL);
}

static void failures_are_sticky(void **state) {
    (void)state;
    static const struct {
        void (*make)(ir_builder *b, const ir_expr *i, const ir_buffer *x);
        const char *message;
    } cases[] = {
        {add_mixed, "'+' needs operands of one type, not idx and f32"},
        {late_param, "parameters must come before the first phase"},
        {late_parallel, "a parallel loop must come before the first statement of a phase"},
        {wrong_end, "the end of a loop without the block that it ends"},
        {open_if, "the end of a phase without the block that it ends"},
        {bad_name, "the name 'a b' holds a character other than letters, digits, '_' and '.'"},
        {operator_name, "the name 'splat.x8' reads as an operator"},
        {special, "'splat' has a function of its own"},
        {large_i32, "2147483648 is out of range for i32"},
        {own_message, "no tile of 3 rows"},
        {too_deep, "an expression is nested more than 200 deep"},
        {shared_reg, "'r' can only be allocated in scratch, reg or tiles here"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        at_arena arena;
        ir_builder *b = new_builder(&arena);
        const ir_expr *dims[] = {ir_idx(b, 4)};
        const ir_buffer *x = ir_param_buffer(b, "x", IR_F32, 1, dims, NULL, IR_IN | IR_OUT);
        ir_phase_begin(b);
        const ir_expr *i = ir_parallel(b, "i", ir_idx(b, 4));
        cases[k].make(b, i, x);
        const bool failed = ir_failed(b);
        ir_phase_end(b);
        assert_true(failed || cases[k].make == open_if);
        /* Whatever comes after a failure is ignored, and must not crash. */
        const ir_expr *v = ir_let(b, "v", ir_fma(b, NULL, ir_splat(b, NULL, 8), NULL));
        ir_store(b, ir_at(b, x, 1, 1, ir_add(b, i, v)), ir_reduce(b, IR_ADD, v));
        at_error err = {0};
        assert_null(ir_builder_finish(b, &err));
        assert_int_equal(err.status, ATTUNE_INVALID_IR);
        assert_string_equal(err.message, cases[k].message);
        at_arena_free(&arena);
    }
}

static void unfinished_kernels_are_refused(void **state) {
    (void)state;
    at_arena arena;
    ir_builder *b = new_builder(&arena);
    at_error err = {0};
    assert_null(ir_builder_finish(b, &err));
    assert_string_equal(err.message, "kernel 'k' has no phase");
    at_arena_free(&arena);

    b = new_builder(&arena);
    ir_phase_begin(b);
    ir_parallel(b, "i", ir_idx(b, 1));
    at_error_clear(&err);
    assert_null(ir_builder_finish(b, &err));
    assert_string_equal(err.message, "kernel 'k' has a block that was not closed");
    at_arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expressions_fold),
        cmocka_unit_test(names_are_kept_apart),
        cmocka_unit_test(many_equal_names_stay_cheap),
        cmocka_unit_test(reduction_is_a_tree_by_halving),
        cmocka_unit_test(blocks_of_c_are_blocks_of_the_ir),
        cmocka_unit_test(blocks_of_c_are_left_at_their_end),
        cmocka_unit_test(signature_is_copied),
        cmocka_unit_test(failures_are_sticky),
        cmocka_unit_test(unfinished_kernels_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
