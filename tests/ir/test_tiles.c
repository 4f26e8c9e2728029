/* Tiles: their text, refusals of the verifier and the builder, the interpreter, and blocks made of them. No machine on
 * which this was written has such instructions: machine code is compared where one does. */
#include "check/check_case.h"
#include "ir/eval.h"
#include "ir/interp.h"
#include "ir/passes.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "nest/gemm.h"
#include "operator/build.h"
#include "schedule/schedule.h"
#include "support/ir/ir_text_helpers.h"
#include "support/ir/jit_run.h"
#include "support/problems.h"
#include "support/tensor_calls.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cmocka.h>

enum { ROWS = 16, PAIRS = 16, COLUMNS = 16, DEPTH = 2 };

/* o += x y over DEPTH tiles; x[16, 32 DEPTH], y of one dimension, o[16, 20] from column 3 on. */
static const char product[] = "kernel @product (x: bf16[16, 64] in, y: bf16[1024] in, o: f32[16, 20] inout) {\n"
                              "  parallel for task in 0..1 {\n"
                              "    alloc sum: f32[1] tiles\n"
                              "    alloc factor: bf16[2] tiles\n"
                              "    alloc zero: f32[] tiles\n"
                              "    tile_zero zero[]\n"
                              "    tile_load sum[0], o[0, 3]:x16\n"
                              "    for k in 0..2 {\n"
                              "      tile_load factor[0], x[0, k * 32]:x32\n"
                              "      tile_load factor[1], y[k * 512]:x32\n"
                              "      tile_dot2 sum[0], factor[0], factor[1]\n"
                              "    }\n"
                              "    tile_store o[0, 3]:x16, sum[0]\n"
                              "  }\n"
                              "}\n";

static ir_kernel *parsed(at_arena *arena, const char *text) {
    at_error err = {0};
    ir_kernel *kernel = ir_parse(arena, text, strlen(text), &err);
    if (!kernel) fail_msg("%s\n%s", err.message, text);
    return kernel;
}

static void test_text(void **state) {
    (void)state;
    at_arena arena;
    at_arena_init(&arena, NULL);
    const ir_kernel *kernel = parsed(&arena, product);
    assert_round_trip(kernel);
    at_string text;
    at_string_init(&text, NULL);
    ir_print(kernel, &text);
    assert_string_equal(text.data, product);
    at_string_free(&text);
    at_arena_free(&arena);
}

/* ---- What is refused ---- */

static const char frame[] =
    "kernel @k (x: bf16[20, 64] in, y: bf16[1024] in, f: f32[32, 32] inout, s: f32[32, 32] strides "
    "[1, 32] inout, n: idx) { parallel for i in 0..1 { alloc c: f32[2] tiles alloc a: bf16[2] tiles "
    "alloc r: f32x16[1] reg %s } }";

/* Parsed, and if that goes well lowered for `target`: the sentence, "" if both do. */
static void refused(const char *body, const char *target, at_error *err) {
    char text[1024];
    at_arena arena;
    at_arena_init(&arena, NULL);
    snprintf(text, sizeof text, frame, body);
    *err = (at_error){0};
    const ir_kernel *kernel = ir_parse(&arena, text, strlen(text), err);
    if (kernel && !ir_verify(kernel, IR_SCHEDULED, NULL, err))
        ir_lower(kernel, at_target_find(target), NULL, NULL, err);
    at_arena_free(&arena);
}

static void test_refusals(void **state) {
    static const struct {
        const char *body, *sentence;
    } cases[] = {
        {"tile_load a[0], x[4, 32]:x32", ""},
        {"tile_load a[0], x[5, 0]:x32", "cannot prove 20 <= 20 - 1"},
        {"tile_load a[0], x[0, 33]:x32", "cannot prove 33 + 31 <= 64 - 1"},
        {"tile_load a[0], x[n, 0]:x32", "cannot prove 0 <= n"},
        {"tile_load a[0], y[512]:x32", ""},
        {"tile_load a[0], y[513]:x32", "cannot prove 993 + 31 <= 1024 - 1"},
        {"tile_store f[17, 0]:x16, c[0]", "cannot prove 32 <= 32 - 1"},
        {"tile_store x[0, 0]:x32, a[0]", "'x' is only read"},
        {"tile_zero c[2]", "cannot prove 2 <= 2 - 1"},
        {"tile_zero c[i]", "an index into tiles must be a constant"},
        {"tile_load a[0], x[0, 0]:x16", "must be 64 bytes side by side"},
        {"tile_load c[0], s[0, 0]:x16", "must be 64 bytes side by side"},
        {"tile_load c[0], f[0, 0]:x16 @0", "must be 64 bytes side by side"},
        {"tile_load c[0], r[0]", "the rows of a tile cannot lie in 'r'"},
        {"tile_load c[0], x[0, 0]:x32", "which are of different elements"},
        {"tile_zero f[0, 0]", "'tile_zero' needs a tile, and 'f' holds none"},
        {"tile_dot2 c[0], c[1], a[0]", "takes tiles of f32, bf16 and bf16; 'c' is another"},
        {"tile_dot2 c[0], a[0]", "','"},
        {"f[0, 0] = c[0]", "'c' holds tiles, which only tile statements read and write"},
        {"c[0] = f[0, 0]", "'c' holds tiles, which only tile statements read and write"},
        {"prefetch c[0]", "'c' is in registers and cannot be prefetched"},
        {"alloc t: i32[1] tiles", "tiles 't' cannot be of i32, only of f32 and bf16"},
        {"alloc t: f32x4[1] tiles", "only reg holds vectors"},
    };
    (void)state;
    at_error err;
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        refused(cases[n].body, "amx", &err);
        if (!*cases[n].sentence ? err.status != ATTUNE_OK : !strstr(err.message, cases[n].sentence))
            fail_msg("%s: \"%s\" instead of \"%s\"", cases[n].body, err.message, cases[n].sentence);
    }
    refused("tile_zero c[0]", "avx512_bf16", &err);
    assert_non_null(strstr(err.message, "target avx512_bf16 has no instruction for 'tile_zero'"));
}

/* Errors that the interpreter finds at run time. */
static void test_unwritten(void **state) {
    static const char *const bodies[] = {"tile_store f[0, 0]:x16, c[1]", "tile_dot2 c[0], a[0], a[1]"};
    (void)state;
    for (size_t n = 0; n < 2; n++) {
        char text[1024];
        at_error err = {0};
        at_arena arena;
        static uint16_t x[20 * 64], y[1024];
        static float f[32 * 32], s[32 * 32];
        const int64_t size = 0;
        at_arena_init(&arena, NULL);
        snprintf(text, sizeof text, frame, bodies[n]);
        assert_int_not_equal(ir_interpret(parsed(&arena, text), (void *[]){x, y, f, s}, &size, NULL, &err), ATTUNE_OK);
        assert_non_null(strstr(err.message, "is read but has not been written"));
        at_arena_free(&arena);
    }
}

static void test_too_many(void **state) {
    (void)state;
    at_error err = {0};
    at_arena arena;
    at_arena_init(&arena, NULL);
    const ir_kernel *kernel =
        parsed(&arena, "kernel @k () { parallel for i in 0..1 { alloc a: f32[5] tiles tile_zero a[4] "
                       "alloc b: f32[4] tiles tile_zero b[3] } }");
    assert_int_not_equal(jit_run(kernel, at_target_find("amx"), NULL, NULL, 1, &err), ATTUNE_OK);
    assert_non_null(strstr(err.message, "with b there are more than 8 tiles at a time"));
    at_arena_free(&arena);
}

/* ---- What it means ---- */

static float of_bf16(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float no_denormal(float x) { return fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x; }

/* Denormals are recognised before their own rounding: the sum of f64 is exact wherever that matters. */
static float fma_without_denormals(float x, float y, float sum) {
    const double exact = (double)x * y + sum;
    return fabs(exact) < 0x1p-126 - 0x1p-151 ? copysignf(0, fmaf(x, y, sum)) : fmaf(x, y, sum);
}

/* Intel's pseudocode of TDPBF16PS, the rows of `right` being pairs of rows. */
static void dot(float sum[ROWS][COLUMNS], const uint16_t *left, const uint16_t *right, int left_row) {
    for (int m = 0; m < ROWS; m++) {
        float temp[2 * COLUMNS] = {0};
        for (int k = 0; k < PAIRS; k++)
            for (int n = 0; n < 2 * COLUMNS; n++) {
                const float x = no_denormal(of_bf16(left[m * left_row + 2 * k + n % 2]));
                const float y = no_denormal(of_bf16(right[k * 2 * COLUMNS + n]));
                temp[n] = fma_without_denormals(x, y, temp[n]);
            }
        for (int n = 0; n < COLUMNS; n++) {
            const float both = no_denormal(temp[2 * n] + temp[2 * n + 1]);
            sum[m][n] = no_denormal(no_denormal(sum[m][n]) + both);
        }
    }
}

/* So different that sums are rounded, and now and then so large or small that something overflows or is flushed. */
static uint16_t any_bf16(tool_random *random) {
    static const int odd[] = {0, 1, 64, 190, 255};
    const int64_t kind = tool_random_range(random, 0, 600);
    const int64_t exponent = kind < 5 ? odd[kind] : tool_random_range(random, 117, 137);
    const int64_t mantissa = exponent == 255 ? 0 : tool_random_range(random, 0, 127);
    return (uint16_t)(tool_random_range(random, 0, 1) << 15 | exponent << 7 | mantissa);
}

static void expect_bits(const float *wanted, const float *got, int count, const char *what) {
    for (int i = 0; i < count; i++)
        if (memcmp(&wanted[i], &got[i], sizeof *got) && !(isnan(wanted[i]) && isnan(got[i])))
            fail_msg("%s: element %d is %a, not %a", what, i, got[i], wanted[i]);
}

static void test_bits(void **state) {
    enum { WIDTH = 20, FIRST = 3, RUNS = 40 };
    (void)state;
    const at_target *amx = at_target_find("amx");
    at_arena arena;
    at_error err = {0};
    at_arena_init(&arena, NULL);
    const ir_kernel *kernel = ir_lower(parsed(&arena, product), amx, NULL, NULL, &err);
    assert_non_null(kernel);
    tool_random random = {.state = 11};
    for (int run = 0; run < RUNS; run++) {
        uint16_t x[ROWS * 32 * DEPTH], y[DEPTH * 512];
        float o[ROWS * WIDTH], wanted[ROWS * WIDTH], sum[ROWS][COLUMNS];
        for (int i = 0; i < ROWS * 32 * DEPTH; i++) x[i] = any_bf16(&random);
        for (int i = 0; i < DEPTH * 512; i++) y[i] = any_bf16(&random);
        for (int i = 0; i < ROWS * WIDTH; i++) wanted[i] = o[i] = of_bf16(any_bf16(&random));
        float again[ROWS * WIDTH];
        memcpy(again, o, sizeof o);
        for (int m = 0; m < ROWS; m++) memcpy(sum[m], &o[m * WIDTH + FIRST], sizeof sum[m]);
        for (int k = 0; k < DEPTH; k++) dot(sum, x + 32 * k, y + 512 * k, 32 * DEPTH);
        for (int m = 0; m < ROWS; m++) memcpy(&wanted[m * WIDTH + FIRST], sum[m], sizeof sum[m]);
        if (ir_interpret(kernel, (void *[]){x, y, o}, NULL, NULL, &err)) fail_msg("%s", err.message);
        expect_bits(wanted, o, ROWS * WIDTH, "interpreter");
        if (!at_target_runs_here(amx)) continue;
        if (jit_run(kernel, amx, (void *[]){x, y, again}, NULL, 1, &err)) fail_msg("%s", err.message);
        expect_bits(wanted, again, ROWS * WIDTH, "machine code");
    }
    at_arena_free(&arena);
    if (!at_target_runs_here(amx)) print_message("machine code not run: this CPU has no AMX\n");
}

/* ---- Blocks ---- */

static mha_schedule chosen(const char *problem, const at_target *target) {
    const attune_problem p = problem_canonical(problem);
    mha_schedule schedule = {0};
    mha_choose(mha_read(&p), target, usual_machine(target), &schedule);
    return schedule;
}

static void test_which_blocks_have_tiles(void **state) {
    static const struct {
        const char *problem;
        bool has_tiles;
    } cases[] = {
        {"embed_dim=768,num_heads=12,seq_q=512,dtype=bf16", true},
        {"embed_dim=64,num_heads=2,seq_q=16,dtype=bf16", true},
        {"embed_dim=64,num_heads=2,seq_q=16", false},
        {"embed_dim=64,num_heads=2,seq_q=16,dtype=bf16,w_dtype=f32", false},
        {"embed_dim=64,num_heads=2,seq_q=16,dtype=bf16,reproducible=1", false},
        {"embed_dim=64,num_heads=2,seq_q=14,dtype=bf16", false}, /* reading weights takes most of the time */
        {"embed_dim=72,num_heads=2,head_dim=64,seq_q=64,dtype=bf16", false},
        {"embed_dim=64,num_heads=3,head_dim=24,seq_q=64,dtype=bf16", false},
    };
    (void)state;
    const at_target *amx = at_target_find("amx");
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        const attune_problem p = problem_canonical(cases[n].problem);
        const mha_schedule s = chosen(cases[n].problem, amx);
        at_error err = {0};
        at_arena arena;
        at_string text;
        at_arena_init(&arena, NULL);
        at_string_init(&text, NULL);
        assert_int_equal(mha_schedule_check(&p, &s, amx, &err), ATTUNE_OK);
        const ir_kernel *kernel = mha_build(&arena, &p, &s, amx, &err);
        assert_non_null(kernel);
        ir_print(kernel, &text);
        if (!strstr(text.data, "tile_dot2") == cases[n].has_tiles) fail_msg("%s", cases[n].problem);
        at_string_free(&text);
        at_arena_free(&arena);
    }
}

/* By the interpreter; its result is as good as a plain implementation in bf16. */
static void test_blocks(void **state) {
    static const char *const problems[] = {
        "embed_dim=64,num_heads=2,seq_q=40,dtype=bf16",
        "batch=3,embed_dim=96,num_heads=3,seq_q=7,is_causal=1,dtype=bf16,out_dim=50",
        "embed_dim=32,kv_embed_dim=64,num_heads=2,num_kv_heads=1,head_dim=48,seq_q=20,seq_kv=35,dtype=bf16",
    };
    (void)state;
    const at_target *amx = at_target_find("amx");
    for (size_t n = 0; n < sizeof problems / sizeof *problems; n++) {
        const mha_schedule schedule = chosen(problems[n], amx);
        tensors t;
        assert_int_equal(schedule.gemm_rows % 16, 0);
        tensors_open_call(&t, problems[n], "", INPUT_ORDINARY, n);
        tensors_interpret_for(&t, amx, &schedule);
        tensors_assert_right(&t, INPUT_ORDINARY, problems[n]);
        tensors_free(&t);
    }
}

/* ---- Permission ---- */

/* Whether this process may use tile registers. */
static bool is_permitted(void) {
    uint64_t mask = 0;
#if defined(__x86_64__)
    enum { GET_PERMITTED = 0x1022, TILE_DATA = 18 };
    if (syscall(SYS_arch_prctl, GET_PERMITTED, &mask)) return false;
    mask = mask >> TILE_DATA & 1;
#endif
    return mask;
}

/* First of all: later tests may need it. */
static void permission_is_asked_for_by_code(void **state) {
    (void)state;
    const at_target *amx = at_target_find("amx");
    const bool runs = at_target_runs_here(amx);
    assert_false(is_permitted()); /* looking asks for nothing */
    assert_true(at_cpu_request(at_cpu_features() & ~(uint32_t)AT_CPU_AMX_BF16));
    assert_false(is_permitted());
    assert_int_equal(at_cpu_request(amx->required), runs);
    assert_int_equal(is_permitted(), runs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(permission_is_asked_for_by_code),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_unwritten),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_which_blocks_have_tiles),
        cmocka_unit_test(test_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
