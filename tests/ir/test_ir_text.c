/* The text form of the loop IR: printed text parses to the same kernel, for every operator, statement and example, and
 * for constants of any bits. */
#include "ir/build.h"
#include "ir/text.h"
#include "support/ir/ir_text_helpers.h"
#include "support/ir/random_ir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static random_ir random_source;

static uint64_t random_bits(void) { return random_ir_bits(&random_source); }

static void seed_random(void) {
    random_source.state = 20240607;
    print_message("seed %llu\n", (unsigned long long)random_source.state);
}

/* ---- round trips ---- */

static void examples_round_trip(void **state) {
    (void)state;
    static const char *const paths[] = {"examples/ir/scale_rows.air", "examples/ir/softmax_rows.air",
                                        "examples/ir/matmul.air"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        size_t length;
        char *text = read_whole_text(paths[i], &length);
        at_arena arena;
        at_arena_init(&arena, NULL);
        at_error err = {0};
        const ir_kernel *kernel = ir_parse(&arena, text, length, &err);
        if (!kernel) fail_msg("%s:%s", paths[i], err.message);
        assert_round_trip(kernel);
        at_arena_free(&arena);
        free(text);
    }
}

/* Already in the printer's own spelling, so the text itself must survive. */
static const char every_statement[] = "kernel @every_statement (\n"
                                      "    x: f32[n, m] strides [s, 1] in,\n"
                                      "    y: f32[n, m] inout,\n"
                                      "    h: bf16[n, 64] in,\n"
                                      "    single: f64[] out,\n"
                                      "    t: idx[n] in,\n"
                                      "    n: idx,\n"
                                      "    m: idx,\n"
                                      "    s: idx,\n"
                                      "    scale: f32,\n"
                                      "    wide: f64,\n"
                                      "    count: i32,\n"
                                      "    long: i64) {\n"
                                      "  assume (n >= 1) & (m >= 64)\n"
                                      "  assume s >= m\n"
                                      "  alloc whole: f32[n * 2, 16] shared\n"
                                      "  alloc flags: bool[8] shared\n"
                                      "  parallel for i in 0..n, j in 0..m / 8 {\n"
                                      "    alloc acc: f32x8[2, 3] reg\n"
                                      "    alloc one: f32[] reg\n"
                                      "    alloc pairs: bf16x16[1] reg\n"
                                      "    alloc tmp: i8[64, 4] scratch\n"
                                      "    prefetch x[min(i + 1, n - 1), j * 8]\n"
                                      "    prefetch.far x[i + 9, j]\n"
                                      "    for k in 0..m by 8 {\n"
                                      "      for r in i..n unroll {\n"
                                      "        acc[0, 2] = fma(x[i, k]:x8, splat.x8(scale), acc[1, 1])\n"
                                      "      }\n"
                                      "    }\n"
                                      "    if ((i % 2) == 0) & (scale < inf) {\n"
                                      "      y[i, 0]:x8 @0 = acc[0, 0]\n"
                                      "      assume t[i] < n\n"
                                      "    } else {\n"
                                      "      let live = ramp.x4(j, 1) < splat.x4(m)\n"
                                      "      y[i, j]:x4 ? (live) = x[i, j]:x4 ? (live)\n"
                                      "    }\n"
                                      "    if true {\n"
                                      "    }\n"
                                      "    let rows = t[ramp.x4(i, 1)]:x4\n"
                                      "    let gathered = x[rows, 3]:x4 ? (splat.x4(true))\n"
                                      "    let inside in 0..n + 1 = t[i]\n"
                                      "    let known in -1..1 = 0\n"
                                      "    one[] = x[i, m - 1]\n"
                                      "    single[] = wide\n"
                                      "    flags[7] = false\n"
                                      "    tmp[63, 3] = cast.i8(count)\n"
                                      "    pairs[0] = h[i, 0]:x16\n"
                                      "  }\n"
                                      "  parallel for p in 0..1 {\n"
                                      "    y[0, 0] = -0x0p+0\n"
                                      "    single[] = -inf:f64\n"
                                      "    single[] = nan:f64\n"
                                      "  }\n"
                                      "}\n";

static void statements_round_trip(void **state) {
    (void)state;
    at_arena arena;
    at_arena_init(&arena, NULL);
    at_error err = {0};
    const ir_kernel *kernel = ir_parse(&arena, every_statement, strlen(every_statement), &err);
    if (!kernel) fail_msg("%s", err.message);
    assert_round_trip(kernel);
    at_string printed;
    at_string_init(&printed, NULL);
    ir_print(kernel, &printed);
    assert_string_equal(printed.data, every_statement);
    at_string_free(&printed);
    at_arena_free(&arena);
}

/* A builder inside a phase, to put expressions into. */
static ir_builder *open_builder(at_arena *arena) {
    at_arena_init(arena, NULL);
    ir_builder *b = ir_builder_new(arena, "expressions");
    ir_phase_begin(b);
    ir_parallel(b, "i", ir_idx(b, 4));
    return b;
}

static void close_and_check(ir_builder *b, at_arena *arena) {
    ir_phase_end(b);
    at_error err = {0};
    const ir_kernel *kernel = ir_builder_finish(b, &err);
    if (!kernel) fail_msg("%s", err.message);
    assert_round_trip(kernel);
    at_arena_free(arena);
}

/* An operand that does not fold. */
static const ir_expr *operand(ir_builder *b, ir_type type) {
    const ir_buffer *buffer = ir_alloc(b, "r", IR_REG, type, 0, NULL);
    return ir_load(b, ir_at(b, buffer, type.lanes, 0));
}

static void operators_round_trip(void **state) {
    (void)state;
    at_arena arena;
    ir_builder *b = open_builder(&arena);
    int built = 0;
    for (int op = 0; op < IR_OP_COUNT; op++) {
        const ir_op_info *info = ir_op_get(op);
        for (int elem = 0; elem < IR_ELEM_COUNT && info->result != IR_RESULT_SPECIAL; elem++) {
            if (!(ir_elem_get(elem)->class & info->accepts)) continue;
            for (int lanes = 1; lanes <= IR_MAX_LANES; lanes *= 8) {
                const ir_type type = ir_type_of(elem, lanes);
                const ir_expr *args[3];
                for (int i = 0; i < 3; i++) args[i] = i < info->arity ? operand(b, type) : NULL;
                ir_let(b, "v", ir_apply(b, op, args[0], args[1], args[2]));
                built++;
            }
        }
    }
    assert_true(built > 150);
    close_and_check(b, &arena);
}

static void special_operators_round_trip(void **state) {
    (void)state;
    at_arena arena;
    ir_builder *b = open_builder(&arena);
    const uint8_t pick[64] = {15, 0, 7, 8, 1, 1};
    for (int lanes = 1; lanes <= IR_MAX_LANES; lanes *= 2) {
        for (int elem = 0; elem < IR_ELEM_COUNT; elem++) {
            const ir_expr *x = operand(b, ir_type_of(elem, lanes)), *y = operand(b, ir_type_of(elem, lanes));
            ir_let(b, "v", ir_select(b, operand(b, ir_type_of(IR_BOOL, lanes)), x, y));
            ir_let(b, "v", ir_splat(b, operand(b, ir_type_of(elem, 1)), lanes));
            if (lanes >= 8) ir_let(b, "v", ir_shuffle(b, x, y, lanes / 2, pick));
            if (elem == IR_IDX || elem == IR_I32 || elem == IR_I64)
                ir_let(b, "v", ir_ramp(b, operand(b, ir_type_of(elem, 1)), ir_int(b, elem, 3), lanes));
        }
        static const ir_elem casts[][2] = {{IR_F64, IR_F32},  {IR_F32, IR_F64},  {IR_F32, IR_F16}, {IR_F16, IR_F32},
                                           {IR_F32, IR_BF16}, {IR_BF16, IR_F32}, {IR_F32, IR_F8},  {IR_F8, IR_F32},
                                           {IR_I8, IR_I32},   {IR_I32, IR_I8},   {IR_IDX, IR_I32}, {IR_I32, IR_I64},
                                           {IR_F32, IR_I32},  {IR_I32, IR_F32},  {IR_F64, IR_IDX}, {IR_I64, IR_F64},
                                           {IR_BOOL, IR_I32}, {IR_BOOL, IR_IDX}};
        for (size_t i = 0; i < sizeof casts / sizeof *casts; i++)
            ir_let(b, "v", ir_cast(b, casts[i][1], operand(b, ir_type_of(casts[i][0], lanes))));
        static const ir_elem bits[][2] = {{IR_F32, IR_I32}, {IR_I32, IR_F32}, {IR_F64, IR_I64}, {IR_I64, IR_F64}};
        for (size_t i = 0; i < sizeof bits / sizeof *bits; i++)
            ir_let(b, "v", ir_bitcast(b, bits[i][1], operand(b, ir_type_of(bits[i][0], lanes))));
        if (lanes * 2 > IR_MAX_LANES) continue;
        const ir_expr *x = operand(b, ir_type_of(IR_BF16, lanes * 2)), *y = operand(b, ir_type_of(IR_BF16, lanes * 2));
        ir_let(b, "v", ir_dot2(b, x, y, operand(b, ir_type_of(IR_F32, lanes))));
        ir_let(b, "v", ir_bitcast(b, IR_I32, x));
        ir_let(b, "v", ir_bitcast(b, IR_BF16, operand(b, ir_type_of(IR_I32, lanes))));
        ir_let(b, "v", ir_pack2(b, operand(b, ir_type_of(IR_F32, lanes)), operand(b, ir_type_of(IR_F32, lanes))));
        ir_let(b, "v", ir_bitcast(b, IR_F16, operand(b, ir_type_of(IR_I8, lanes * 2))));
        ir_let(b, "v", ir_bitcast(b, IR_I8, operand(b, ir_type_of(IR_F16, lanes))));
        if (lanes * 4 > IR_MAX_LANES) continue;
        const ir_expr *codes = operand(b, ir_type_of(IR_I8, lanes * 4)), *sum = operand(b, ir_type_of(IR_I32, lanes));
        ir_let(b, "v", ir_dot4(b, codes, operand(b, ir_type_of(IR_I8, lanes * 4)), sum));
        ir_let(b, "v", ir_bitcast(b, IR_I32, codes));
        ir_let(b, "v", ir_bitcast(b, IR_I8, sum));
        ir_let(b, "v", ir_bitcast(b, IR_F8, sum));
        ir_let(b, "v", ir_bitcast(b, IR_I32, operand(b, ir_type_of(IR_F8, lanes * 4))));
        if (lanes * 4 >= IR_LEAST_LOOKUP) ir_let(b, "v", ir_lookup(b, codes, codes, codes));
        const ir_expr *numbers = operand(b, ir_type_of(IR_F32, lanes));
        if (lanes >= IR_LEAST_WORDS) ir_let(b, "v", ir_lookup(b, numbers, numbers, sum));
    }
    close_and_check(b, &arena);
}

static void constants_round_trip(void **state) {
    (void)state;
    seed_random();
    at_arena arena;
    ir_builder *b = open_builder(&arena);
    static const double values[] = {0.0,         -0.0,
                                    1.0,         -0.5,
                                    INFINITY,    -INFINITY,
                                    NAN,         0x1p-1074,
                                    0x1.8p-1060, 0x1.fffffffffffffp+1023,
                                    0x1p-1022,   0x1p-149,
                                    0x1.8p-140,  0x1.fffffep+127,
                                    0x1p-126};
    static const int64_t integers[] = {0, 1, -1, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        ir_assume(b, ir_apply(b, IR_LT, operand(b, ir_type_of(IR_F64, 1)), ir_float(b, IR_F64, values[i]), NULL));
        ir_assume(b, ir_apply(b, IR_LT, operand(b, ir_type_of(IR_F32, 1)), ir_float(b, IR_F32, values[i]), NULL));
    }
    for (int i = 0; i < 2000; i++) {
        const uint64_t random = random_bits();
        double wide;
        float narrow;
        memcpy(&wide, &random, sizeof wide);
        memcpy(&narrow, &random, sizeof narrow);
        ir_assume(b, ir_apply(b, IR_LT, operand(b, ir_type_of(IR_F64, 1)), ir_float(b, IR_F64, wide), NULL));
        ir_assume(b, ir_apply(b, IR_LT, operand(b, ir_type_of(IR_F32, 1)), ir_float(b, IR_F32, (double)narrow), NULL));
    }
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        ir_assume(b, ir_apply(b, IR_LT, operand(b, ir_type_of(IR_IDX, 1)), ir_idx(b, integers[i]), NULL));
        ir_assume(b, ir_apply(b, IR_LT, operand(b, ir_type_of(IR_I64, 1)), ir_int(b, IR_I64, integers[i]), NULL));
        if (integers[i] == (int32_t)integers[i])
            ir_assume(b, ir_apply(b, IR_LT, operand(b, ir_type_of(IR_I32, 1)), ir_int(b, IR_I32, integers[i]), NULL));
    }
    close_and_check(b, &arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(examples_round_trip),  cmocka_unit_test(statements_round_trip),
        cmocka_unit_test(operators_round_trip), cmocka_unit_test(special_operators_round_trip),
        cmocka_unit_test(constants_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
