/* The interpreter: statements and accesses, every check and the place that it names, and whole kernels against plain C
 * loops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ir/eval.h"
#include "ir/interp.h"
#include "ir/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ir_kernel *parse(at_arena *arena, const char *text) {
    at_error err = {0};
    at_arena_init(arena, NULL);
    ir_kernel *kernel = ir_parse(arena, text, strlen(text), &err);
    if (!kernel) fail_msg("%s in\n%s", err.message, text);
    return kernel;
}

static attune_status run(const char *text, void *const *buffers, const int64_t *scalars, at_error *err) {
    at_arena arena;
    const ir_kernel *kernel = parse(&arena, text);
    *err = (at_error){0};
    const attune_status status = ir_interpret(kernel, buffers, scalars, NULL, err);
    at_arena_free(&arena);
    return status;
}

static void run_ok(const char *text, void *const *buffers, const int64_t *scalars) {
    at_error err;
    if (run(text, buffers, scalars, &err) != ATTUNE_OK) fail_msg("%s in\n%s", err.message, text);
}

static void expect_floats(const float *got, const float *expected, int count) {
    for (int i = 0; i < count; i++)
        if (memcmp(&got[i], &expected[i], sizeof *got) != 0) fail_msg("[%d] is %a, not %a", i, got[i], expected[i]);
}

/* ---- Checks that must fire ---- */

typedef struct bad_kernel {
    const char *body;    /* of a kernel with the parameters below */
    const char *message; /* part of the check's message */
} bad_kernel;

#define BAD_PARAMS      "(x: f32[n,8] in, k: idx[8] in, b: bool[8] in, o: f32[n,8] out, n: idx, zero: idx, one: f32)"
#define BAD_TASK(stmts) "parallel for i in 0..n { " stmts " }"

static const bad_kernel bad_kernels[] = {
    {BAD_TASK("o[i, i + 5] = one"), "index 8 of dimension 1 is outside parameter o, whose size there is 8"},
    {BAD_TASK("o[i + 1, 0] = one"), "index 4 of dimension 0"},
    {BAD_TASK("o[i - 1, 0] = one"), "index -1 of dimension 0"},
    {BAD_TASK("o[0, 8] = one"), "index 8 of dimension 1"},
    {BAD_TASK("o[i, 0] = x[0, 8 + i]"), "index 8 of dimension 1 is outside parameter x"},
    {BAD_TASK("o[i, 0] = x[i * 9223372036854775807 * 2, 0]"), "index -2 of dimension 0"},
    {BAD_TASK("o[i, i]:x8 = splat.x8(one)"), "indices 1 to 8 of dimension 1 are outside parameter o"},
    {BAD_TASK("o[i, 0]:x4 @ 0 = splat.x4(one)"), "indices 1 to 4 of dimension 0 are outside parameter o"},
    {BAD_TASK("o[0, 0]:x8 = x[0, 1]:x8"), "indices 1 to 8 of dimension 1 are outside parameter x"},
    {BAD_TASK("o[0, 0]:x4 = x[i, ramp.x4(k[6], k[1])]:x4"), "index 8 of dimension 1 is outside parameter x"},
    {BAD_TASK("o[i, 0]:x8 = x[i, 4]:x8 ? (ramp.x8(0, 1) < splat.x8(5))"), "index 8 of dimension 1"},
    {BAD_TASK("o[i, 4]:x8 ? (ramp.x8(0, 1) < splat.x8(5)) = splat.x8(one)"), "index 8 of dimension 1"},
    {BAD_TASK("alloc t: f32[4, 4] scratch t[2, 2 + i] = one"), "index 4 of dimension 1 is outside scratch t"},
    {BAD_TASK("alloc t: f32x8[4] reg for r in 0..5 { t[r]:x8 = splat.x8(one) }"), "outside reg t"},
    {BAD_TASK("alloc t: f32[4] scratch o[i, 0] = t[2]"), "element 2 of scratch t is read but has not been written"},
    {BAD_TASK("alloc t: f32[2, 8] scratch t[1, 0]:x4 = splat.x4(one) o[i, 0]:x8 = t[1, 0]:x8"),
     "element 12 of scratch t"},
    {BAD_TASK("alloc t: f32[16] scratch t[0]:x8 = splat.x8(one) o[i, 0]:x8 = t[i + 1]:x8"), "element 8 of scratch t"},
    {BAD_TASK("alloc t: f32[8, 2] scratch t[0, 0]:x4 @ 0 = splat.x4(one) o[0, 0]:x8 = t[0, 0]:x8 @ 0"), "element 8 of"},
    {BAD_TASK("alloc t: f32[8] scratch t[0]:x8 ? (ramp.x8(0, 1) != splat.x8(5)) = splat.x8(one) o[i, 0]:x8 = t[0]:x8"),
     "element 5 of scratch t"},
    {BAD_TASK("alloc t: f32[8] scratch t[0]:x4 = splat.x4(one) o[i, 0]:x4 = t[ramp.x4(k[1], k[1])]:x4"),
     "element 4 of scratch t"},
    {BAD_TASK("alloc t: f32x8[2] reg t[0]:x8 = splat.x8(one) o[i, 0]:x8 = t[1]:x8"), "element 1 of reg t"},
    {BAD_TASK("alloc t: f32[4] scratch if i < 3 { t[0] = one } o[i, 0] = t[0]"), "i = 3"},
    {BAD_TASK("for s in 0..600 { alloc t: f32[1] scratch if s == 0 { t[0] = one } if s >= 255 { o[i, 0] = t[0] } }"),
     "s = 255"},
    {BAD_TASK("for s in 0..600 { alloc t: f32[1] reg if s == 255 { t[0] = one } if s == 510 { o[i, 0] = t[0] } }"),
     "s = 510"},
    {"alloc t: f32[n] shared parallel for i in 0..n { t[i] = one } parallel for j in 0..n { o[j, 0] = t[j] }"
     "parallel for h in 0..1 { o[h, 0] = t[h + 1] + t[h + 4] }",
     "index 4 of dimension 0 is outside shared t"},
    {"alloc t: f32[n] shared parallel for i in 0..3 { t[i] = one } parallel for j in 0..n { o[j, 0] = t[j] }",
     "element 3 of shared t is read but has not been written (in @bad, phase 1, j = 3, at `o["},
    {"assume n <= 3 parallel for i in 0..n { o[i, 0] = one }",
     "the assumption does not hold (in @bad, at `assume n <= 3`)"},
    {BAD_TASK("assume k[i] < 3"), "the assumption does not hold (in @bad, phase 0, i = 3, at `assume "},
    {BAD_TASK("let q in 0..3 = k[i] o[i, 0] = one"),
     "3 is not in 0..3 (in @bad, phase 0, i = 3, at `let q in 0..3 = k[i]`)"},
    {BAD_TASK("let q in i..k[3] = 2 o[i, 0] = one"), "2 is not in 3..3"},
    {BAD_TASK("let q = k[i + 1] / k[i] o[0, 0] = cast.f32(q)"), "division by zero"},
    {BAD_TASK("let q = 7 % zero o[0, 0] = cast.f32(q)"), "division by zero"},
    {BAD_TASK("o[i, 0]:x8 = cast.f32(k[0]:x8 / k[0]:x8)"), "division by zero in lane 0"},
    {BAD_TASK("if b[i] { o[i, 0] = one }"), "a bool in memory is 2, neither 0 nor 1"},
    {BAD_TASK("for r in 2..7 by 3 { for s in 0..r { o[i, r + s] = one } }"), "i = 0, r = 5, s = 3, at `o["},
};

static void check_bad_kernel(const bad_kernel *bad) {
    enum { N = 4 };
    float x[N * 8] = {0}, o[N * 8];
    int64_t k[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    uint8_t b[8] = {0, 1, 2};
    void *buffers[] = {x, k, b, o};
    const int64_t scalars[] = {N, 0, 0x3f800000};
    char text[1024];
    snprintf(text, sizeof text, "kernel @bad " BAD_PARAMS " { %s }", bad->body);
    at_error err;
    assert_int_equal(run(text, buffers, scalars, &err), ATTUNE_CHECK_FAILED);
    if (!strstr(err.message, bad->message)) fail_msg("expected: %s\ngot: %s\nin: %s", bad->message, err.message, text);
    assert_non_null(strstr(err.message, "@bad"));
}

static void test_checks(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad_kernels / sizeof *bad_kernels; i++) check_bad_kernel(&bad_kernels[i]);
}

/* ---- Arguments that cannot be ---- */

static void expect_refused(const char *text, void *const *buffers, const int64_t *scalars, attune_status status,
                           const char *message) {
    at_error err;
    assert_int_equal(run(text, buffers, scalars, &err), status);
    if (!strstr(err.message, message)) fail_msg("expected: %s\ngot: %s", message, err.message);
}

static void test_refused_arguments(void **state) {
    (void)state;
    static const char copy[] = "kernel @copy (x: f32[n,m] strides [s,1] in, o: f32[n] out, n: idx, m: idx, s: idx) {"
                               " parallel for i in 0..n { o[i] = x[i,0] } }";
    float x[8] = {0}, o[8];
    void *buffers[] = {x, o}, *null[] = {NULL, o}, *misaligned[] = {(char *)x + 2, o};
    expect_refused(copy, buffers, (const int64_t[]){-1, 1, 1}, ATTUNE_INVALID_ARGUMENT,
                   "dimension 0 of x in @copy is -1");
    expect_refused(copy, null, (const int64_t[]){2, 1, 1}, ATTUNE_INVALID_ARGUMENT, "x of @copy is NULL");
    expect_refused(copy, misaligned, (const int64_t[]){2, 1, 1}, ATTUNE_INVALID_ARGUMENT, "not aligned");
    expect_refused(copy, buffers, (const int64_t[]){INT64_C(1) << 40, INT64_C(1) << 40, 1}, ATTUNE_INVALID_ARGUMENT,
                   "the size of x in @copy overflows");
    expect_refused(copy, buffers, (const int64_t[]){3, 1, INT64_MAX / 2}, ATTUNE_INVALID_ARGUMENT,
                   "the strides of x in @copy overflow");
    expect_refused(copy, buffers, (const int64_t[]){3, 1, INT64_MIN}, ATTUNE_INVALID_ARGUMENT, "overflow");
    run_ok(copy, null, (const int64_t[]){0, 1, 1}); /* nothing there is nothing to point to */
}

static void test_refused_sizes(void **state) {
    (void)state;
    float o[1];
    void *buffers[] = {o};
    expect_refused("kernel @k (o: f32[1] out, n: idx) { parallel for i in 0..n*n { o[0] = 1.0 } }", buffers,
                   (const int64_t[]){INT64_C(1) << 32}, ATTUNE_INVALID_ARGUMENT, "a size of @k overflows");
    expect_refused("kernel @k (o: f32[1] out, n: idx) { parallel for i in 0..n, j in 0..n { o[0] = 1.0 } }", buffers,
                   (const int64_t[]){INT64_C(1) << 32}, ATTUNE_INVALID_ARGUMENT, "tasks of a phase of @k overflows");
    expect_refused("kernel @k (o: f32[1] out, n: idx) { parallel for i in 0..1/n { o[0] = 1.0 } }", buffers,
                   (const int64_t[]){0}, ATTUNE_INVALID_ARGUMENT, "a size of @k divides by zero");
    expect_refused("kernel @k (o: f32[1] out) { parallel for i in 0..1 { o[0] = exp2(cast.f32(i)) } }", buffers, NULL,
                   ATTUNE_UNSUPPORTED, "@k still holds exp2 of f32");
    expect_refused("kernel @k (o: f32[1] out) { parallel for i in 0..1 { o[0] = o[0] + 1.0 } }", buffers, NULL,
                   ATTUNE_INVALID_IR, "is read");
    expect_refused("kernel @k (o: f32[1] in) { parallel for i in 0..1 { o[0] = 1.0 } }", buffers, NULL,
                   ATTUNE_INVALID_IR, "is written");
}

/* ---- Memory that is refused ---- */

typedef struct counting_allocator {
    int left, live;
} counting_allocator;

enum { LARGEST = 1 << 30 }; /* the most that it gives at once: sanitizers treat a larger request as an error */

static void *counted_alloc(void *user, size_t bytes, size_t align) {
    counting_allocator *counter = user;
    if (counter->left-- <= 0 || bytes > LARGEST) return NULL;
    counter->live++;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void counted_free(void *user, void *pointer) {
    ((counting_allocator *)user)->live--;
    free(pointer);
}

static void test_each_allocation_refused(void **state) {
    (void)state;
    at_arena arena;
    const ir_kernel *kernel = parse(&arena, "kernel @k (o: f32[8] out) { alloc s: f32[8] shared"
                                            " parallel for i in 0..8 { alloc t: f32[8] scratch t[i] = 1.0 s[i] = t[i] }"
                                            " parallel for j in 0..8 { o[j] = s[j] } }");
    attune_status status = ATTUNE_OUT_OF_MEMORY;
    int refused = 0;
    for (; status != ATTUNE_OK; refused++) {
        float o[8] = {0};
        counting_allocator counter = {.left = refused};
        const attune_allocator allocator = {counted_alloc, counted_free, &counter};
        at_error err = {0};
        status = ir_interpret(kernel, (void *[]){o}, NULL,
                              &(ir_interp_options){.shuffle_seed = 1, .allocator = &allocator}, &err);
        assert_int_equal(counter.live, 0);
        if (status != ATTUNE_OK) assert_int_equal(status, ATTUNE_OUT_OF_MEMORY);
    }
    assert_in_range(refused, 6, 100); /* the arena, two buffers with their shadows, the order of the tasks */
    at_arena_free(&arena);
}

static void test_huge_scratch_refused(void **state) {
    (void)state;
    at_arena arena;
    const ir_kernel *kernel = parse(&arena, "kernel @k (o: f32[1] out) { parallel for i in 0..1 {"
                                            " alloc t: f32[1125899906842624] scratch t[0] = 1.0 o[0] = t[0] } }");
    float o[1];
    counting_allocator counter = {.left = 1000};
    const attune_allocator allocator = {counted_alloc, counted_free, &counter};
    at_error err = {0};
    assert_int_equal(ir_interpret(kernel, (void *[]){o}, NULL, &(ir_interp_options){.allocator = &allocator}, &err),
                     ATTUNE_OUT_OF_MEMORY);
    assert_non_null(strstr(err.message, "4503599627370496"));
    assert_int_equal(counter.live, 0);
    at_arena_free(&arena);
}

/* A failed check releases everything too, its printer's memory included. */
static void test_failure_releases_memory(void **state) {
    (void)state;
    at_arena arena;
    const ir_kernel *kernel = parse(&arena, "kernel @k (o: f32[8] out) { parallel for i in 0..8 {"
                                            " alloc t: f32[8] scratch o[i] = t[i] } }");
    float o[8];
    counting_allocator counter = {.left = 1000};
    const attune_allocator allocator = {counted_alloc, counted_free, &counter};
    at_error err = {0};
    assert_int_equal(ir_interpret(kernel, (void *[]){o}, NULL,
                                  &(ir_interp_options){.shuffle_seed = 1, .allocator = &allocator}, &err),
                     ATTUNE_CHECK_FAILED);
    assert_int_equal(counter.live, 0);
    at_arena_free(&arena);
}

/* A single task reads and writes the shared memory that it is given; tasks that have not run are no error.
 */
static void test_single_tasks(void **state) {
    (void)state;
    at_arena arena;
    const ir_kernel *kernel =
        parse(&arena, "kernel @k (n: idx, o: f32[n] out) { alloc s: f32[n] shared alloc t: f32[2] shared"
                      " parallel for i in 0..n { s[i] = cast.f32(i) }"
                      " parallel for c in 0..2, j in 0..n { if c == 1 { o[j] = s[j] + t[1] } } }");
    float o[4] = {-1, -1, -1, -1}, s[4] = {10, 20, 30, 40}, t[2] = {0, 0.5F};
    void *const buffers[] = {o}, *const shared[] = {s, t};
    at_error err = {0};
    ir_interp_task only = {.phase = 1, .task = 6, .shared = shared};
    const ir_interp_options options = {.only = &only};
    if (ir_interpret(kernel, buffers, (const int64_t[]){4}, &options, &err)) fail_msg("%s", err.message);
    expect_floats(o, (const float[]){-1, -1, 30.5F, -1}, 4);
    only = (ir_interp_task){.phase = 0, .task = 3, .shared = shared};
    if (ir_interpret(kernel, buffers, (const int64_t[]){4}, &options, &err)) fail_msg("%s", err.message);
    expect_floats(s, (const float[]){10, 20, 30, 3}, 4);
    const ir_interp_task missing[] = {{2, 0, shared}, {0, 4, shared}, {0, -1, shared}, {1, 8, shared}};
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++) {
        only = missing[i];
        at_error_clear(&err);
        assert_int_equal(ir_interpret(kernel, buffers, (const int64_t[]){4}, &options, &err), ATTUNE_INVALID_ARGUMENT);
        assert_non_null(strstr(err.message, "has no task"));
    }
    at_arena_free(&arena);
}

/* ---- Accesses ---- */

static void test_masked_lanes_are_untouched(void **state) {
    (void)state;
    /* Both vectors run past the end of their rows; the masked-off lanes must neither fail nor be written. */
    float x[5] = {1, 2, 3, 4, 5}, o[5] = {-1, -1, -1, -1, -1}, p[8];
    run_ok("kernel @k (x: f32[5] in, o: f32[5] out, p: f32[8] out) { parallel for i in 0..1 {"
           " p[0]:x8 = x[2]:x8 ? (ramp.x8(0, 1) < splat.x8(3))"
           " o[1]:x8 ? ((ramp.x8(0, 1) % splat.x8(2) == splat.x8(1)) & (ramp.x8(0, 1) < splat.x8(4))) = x[ramp.x8(0, 1)"
           " % splat.x8(5)]:x8 } }",
           (void *[]){x, o, p}, NULL);
    expect_floats(p, (const float[]){3, 4, 5, 0, 0, 0, 0, 0}, 8);
    expect_floats(o, (const float[]){-1, -1, 2, -1, 4}, 5);
}

static void test_lane_strides(void **state) {
    (void)state;
    float x[4 * 6], o[4 * 6] = {0}, q[4] = {0};
    for (int i = 0; i < 24; i++) x[i] = (float)i;
    /* a column to a row; a column by the axis; rows backwards through a negative stride; a stride of 0 */
    run_ok("kernel @k (x: f32[4,6] in, r: f32[4] strides [back] in, c: f32[4] strides [0] in, o: f32[4,6] out,"
           " q: f32[4] strides [back] out, back: idx) { parallel for i in 0..1 {"
           " o[0,0]:x4 = x[0,5]:x4 @ 0  o[0,5]:x4 @ 0 = x[1,0]:x4  o[1,0]:x4 = r[0]:x4  o[2,0]:x4 = c[0]:x4"
           " q[0]:x4 = x[3,0]:x4 } }",
           (void *[]){x, x + 3, x + 2, o, q + 3}, (const int64_t[]){-1});
    expect_floats(o, (const float[]){5, 11, 17, 23, 0, 6, 3, 2, 1, 0, 0, 7, 2, 2, 2, 2, 0, 8}, 18);
    expect_floats(q, (const float[]){21, 20, 19, 18}, 4);
}

static void test_overlapping_store_reads_first(void **state) {
    (void)state;
    float x[12];
    for (int i = 0; i < 12; i++) x[i] = (float)i;
    run_ok("kernel @k (x: f32[12] inout) { parallel for i in 0..1 { x[2]:x8 = x[0]:x8 } }", (void *[]){x}, NULL);
    expect_floats(x, (const float[]){0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 10, 11}, 12);
    for (int i = 0; i < 12; i++) x[i] = (float)i;
    run_ok("kernel @k (x: f32[12] inout) { parallel for i in 0..1 {"
           " x[1]:x8 ? (ramp.x8(0, 1) < splat.x8(7)) = x[0]:x8 } }",
           (void *[]){x}, NULL);
    expect_floats(x, (const float[]){0, 0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11}, 12);
}

static void test_scalar_buffer_and_widths(void **state) {
    (void)state;
    for (int lanes = 1; lanes <= IR_MAX_LANES; lanes *= 2) {
        char text[512];
        snprintf(text, sizeof text,
                 "kernel @k (x: i8[64] in, o: f64[64] out, s: f32[] out) { parallel for i in 0..1 {"
                 " alloc t: f64[64] scratch alloc r: f64x%d[2] reg t[0]:x%d = cast.f64(cast.i32(x[0]:x%d))"
                 " r[1]:x%d = t[0]:x%d + t[0]:x%d o[0]:x%d = r[1]:x%d s[] = 7.0 } }",
                 lanes, lanes, lanes, lanes, lanes, lanes, lanes, lanes);
        int8_t x[64];
        double o[64] = {0};
        float s = 0;
        for (int i = 0; i < 64; i++) x[i] = (int8_t)(3 * i - 90);
        run_ok(text, (void *[]){x, o, &s}, NULL);
        for (int i = 0; i < 64; i++) assert_true(o[i] == (i < lanes ? 2.0 * x[i] : 0));
        assert_true(s == 7);
    }
}

/* ---- Expressions and statements ---- */

/* Pairs need not lie where an i32 may. */
static void test_pairs_at_odd_places(void **state) {
    (void)state;
    at_arena arena;
    const ir_kernel *kernel = parse(&arena, "kernel @k (x: bf16[6] in, o: i32[2] out) { parallel for i in 0..1 {"
                                            " o[0]:x2 = splat.x2(bitcast.i32(x[1]:x2)) + bitcast.i32(x[1]:x4) } }");
    _Alignas(4) const uint16_t x[6] = {9, 1, 2, 3, 4, 9};
    int32_t o[2];
    at_error err = {0};
    if (ir_interpret(kernel, (void *[]){(void *)x, o}, NULL, NULL, &err)) fail_msg("%s", err.message);
    assert_int_equal(o[0], 2 * (1 + (2 << 16)));
    assert_int_equal(o[1], 1 + (2 << 16) + 3 + (4 << 16));
    at_arena_free(&arena);
}

static void test_special_operators(void **state) {
    (void)state;
    float x[8] = {0, -1, 2, -3, 4, -5, 6, -7}, o[8], p[4];
    int32_t bits[8];
    int64_t ramp[4];
    uint16_t half[4] = {0x3f80, 0x4000, 0x4040, 0x4080}; /* bf16 1 2 3 4 */
    float d[2];
    run_ok("kernel @k (x: f32[8] in, h: bf16[4] in, o: f32[8] out, p: f32[4] out, b: i32[8] out, r: idx[4] out,"
           " d: f32[2] out, z: i32) { parallel for i in 0..1 {"
           " let v = x[0]:x8 let w = select(v < splat.x8(0.0), neg(v), v + splat.x8(0.5))"
           " o[0]:x8 = w b[0]:x8 = bitcast.i32(v) p[0]:x4 = shuffle(v, w, [7, 8, 0, 15])"
           " r[0]:x4 = ramp.x4(5, -2) b[0]:x4 = ramp.x4(2147483647:i32, z)"
           " d[0]:x2 = dot2(h[0]:x4, h[0]:x4, splat.x2(0.5)) } }",
           (void *[]){x, half, o, p, bits, ramp, d}, (const int64_t[]){1});
    expect_floats(o, (const float[]){0.5f, 1, 2.5f, 3, 4.5f, 5, 6.5f, 7}, 8);
    expect_floats(p, (const float[]){-7, 0.5f, 0, 7}, 4);
    expect_floats(d, (const float[]){5.5f, 25.5f}, 2);
    assert_memory_equal(&bits[4], &x[4], 16);
    assert_memory_equal(ramp, ((const int64_t[]){5, 3, 1, -1}), sizeof ramp);
    assert_memory_equal(bits, ((const int32_t[]){INT32_MAX, INT32_MIN, INT32_MIN + 1, INT32_MIN + 2}), 16);
}

/* A number of two bytes among others of one, at an odd address. */
static void test_numbers_among_bytes(void **state) {
    (void)state;
    const uint8_t bytes[5] = {7, 0x00, 0x3e, 0x00, 0xc0}; /* f16 1.5 and -2 */
    uint8_t out[5] = {0};
    float numbers[2] = {0};
    run_ok("kernel @k (x: i8[5] in, y: i8[5] out, o: f32[2] inout) { parallel for i in 0..1 {"
           " let v = bitcast.f16(x[1]:x4)"
           " o[0]:x2 = cast.f32(v) y[0] = x[0] y[1]:x2 = bitcast.i8(cast.f16(o[1])) y[3]:x2 = x[1]:x2 } }",
           (void *[]){(void *)(uintptr_t)bytes, out, numbers}, NULL);
    expect_floats(numbers, (const float[]){1.5f, -2}, 2);
    assert_memory_equal(out, ((const uint8_t[]){7, 0x00, 0xc0, 0x00, 0x3e}), 5);
}

static void test_control_flow(void **state) {
    (void)state;
    int64_t o[12];
    memset(o, 0xff, sizeof o);
    run_ok(
        "kernel @k (o: idx[12] out, n: idx) { parallel for i in 0..3, j in 0..n { let at = i * n + j"
        " if (i + j) % 2 == 0 { o[at] = at * 10 } else { if j == 3 { o[at] = -2 } } }"
        " parallel for t in 0..1 { alloc sum: idx[1] reg sum[0] = 0"
        " for u in 1..10 by 4 { sum[0] = sum[0] + u } for e in 5..5 { sum[0] = 0 } for f in 5..4 unroll { sum[0] = 0 }"
        " for g in 9223372036854775806..9223372036854775807 by 2 { sum[0] = sum[0] + 100 }"
        " for h in 0..2 unroll { prefetch o[h + 1000] sum[0] = sum[0] + 1000 } o[11] = sum[0] } }",
        (void *[]){o}, (const int64_t[]){4});
    assert_memory_equal(o, ((const int64_t[]){0, -1, 20, -2, -1, 50, -1, 70, 80, -1, 100, 2115}), sizeof o);
}

static void test_index_arithmetic(void **state) {
    (void)state;
    /* indices that fold into an affine sum, and others: products of variables, divisions, loads, too many terms */
    int64_t k[4] = {3, 1, 2, 0}, o[5];
    run_ok("kernel @k (k: idx[4] in, o: idx[5] out, n: idx) { parallel for i in 0..1 {"
           " for a in 2..3 { for b in 3..4 { o[a - b + 1] = (a + b) * (a - b) - neg(a * n)"
           " o[k[k[0] - 1 + a * 0] - 1] = (a * b) / 4 + a * 3 - (b - a) * 5 o[min(a, b)] = k[a] + k[a] * 2 - k[1] } }"
           " let c = i + 1 let d = i + 2 let e = i + 3 let f = i + 4 let g = i + 5 let h = i + 6 let p = i + 7"
           " let q = i + 8 let r = i + 9 let s = i + 10 let t = i + 11 let u = i + 12 let v = i + 13 let w = i + 14"
           " o[3] = c + d + e + f + g + h + p + q + r + s + t + u + v + w o[4] = (c * d) * (e * f) * g - c } }",
           (void *[]){k, o}, (const int64_t[]){7});
    assert_memory_equal(o, ((const int64_t[]){9, 2, 5, 105, 119}), sizeof o);
}

static void test_scalar_params(void **state) {
    (void)state;
    float f;
    double d;
    int32_t i;
    const float quarter = 0.25f;
    const double third = 1.0 / 3;
    int64_t scalars[3] = {0, 0, -5};
    memcpy(&scalars[0], &quarter, sizeof quarter);
    memcpy(&scalars[1], &third, sizeof third);
    run_ok("kernel @k (f: f32[] out, s: f32, d: f64[] out, t: f64, i: i32[] out, u: i32) {"
           " parallel for z in 0..1 { f[] = s d[] = t * 0x1p1:f64 i[] = u * 3:i32 } }",
           (void *[]){&f, &d, &i}, scalars);
    assert_true(f == quarter && d == third * 2 && i == -15);
}

/* ---- Whole kernels ---- */

static uint32_t random_state = 12345;

static float random_float(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return (float)((int32_t)random_state) * 0x1p-31f;
}

/* c = a * b, b packed into column panels of 16 by a first phase; tiles of 4 rows by 2 vectors. */
static const char matmul[] =
    "kernel @matmul (a: f32[m,k] in, b: f32[k,n] strides [ldb,1] in, c: f32[m,n] out, m: idx, n: idx, k: idx, ldb: "
    "idx) {"
    " assume m % 4 == 0 assume n % 16 == 0"
    " alloc packed: f32[n / 16, k, 16] shared"
    " parallel for j in 0..n / 16, p in 0..k { for v in 0..16 by 8 { packed[j,p,v]:x8 = b[p,j*16+v]:x8 } }"
    " parallel for i in 0..m / 4, jj in 0..n / 16 {"
    "   alloc acc: f32x8[4,2] reg"
    "   for r0 in 0..4 unroll { for s0 in 0..2 unroll { acc[r0,s0]:x8 = splat.x8(0.0) } }"
    "   for q in 0..k { for r in 0..4 unroll { for s in 0..2 unroll {"
    "     acc[r,s]:x8 = fma(splat.x8(a[i*4+r,q]), packed[jj,q,s*8]:x8, acc[r,s]:x8) } } }"
    "   for r1 in 0..4 unroll { for s1 in 0..2 unroll { c[i*4+r1,jj*16+s1*8]:x8 = acc[r1,s1]:x8 } } } }";

static void plain_matmul(const float *a, const float *b, float *c, int m, int n, int k, int ldb) {
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int p = 0; p < k; p++) sum = fmaf(a[i * k + p], b[p * ldb + j], sum);
            c[i * n + j] = sum;
        }
}

static void test_matmul(void **state) {
    (void)state;
    enum { M = 12, N = 48, K = 37, LDB = 51 };
    float a[M * K], b[K * LDB], c[M * N], expected[M * N];
    for (int i = 0; i < M * K; i++) a[i] = random_float();
    for (int i = 0; i < K * LDB; i++) b[i] = random_float();
    plain_matmul(a, b, expected, M, N, K, LDB);
    at_arena arena;
    const ir_kernel *kernel = parse(&arena, matmul);
    const int64_t scalars[] = {M, N, K, LDB};
    for (uint64_t seed = 0; seed < 20; seed++) {
        memset(c, 0xff, sizeof c);
        at_error err = {0};
        if (ir_interpret(kernel, (void *[]){a, b, c}, scalars, &(ir_interp_options){.shuffle_seed = seed}, &err))
            fail_msg("%s", err.message);
        expect_floats(c, expected, M * N);
    }
    at_arena_free(&arena);
}

/* Rows of a softmax in base 2: the maximum and the sum as fixed trees over 8 lanes, 2^x by a cubic and ldexp. */
static const char softmax[] =
    "kernel @softmax (x: f32[n,w] in, o: f32[n,w] out, n: idx, w: idx) { assume w % 8 == 0"
    " parallel for i in 0..n {"
    "   alloc top: f32x8[1] reg alloc sum: f32x8[1] reg alloc e: f32[1024] scratch"
    "   top[0]:x8 = splat.x8(-inf) sum[0]:x8 = splat.x8(0.0)"
    "   for a in 0..w by 8 { top[0]:x8 = max(top[0]:x8, x[i,a]:x8) }"
    "   let m4 = max(shuffle(top[0]:x8, top[0]:x8, [0,1,2,3]), shuffle(top[0]:x8, top[0]:x8, [4,5,6,7]))"
    "   let m2 = max(shuffle(m4, m4, [0,1]), shuffle(m4, m4, [2,3]))"
    "   let m1 = max(shuffle(m2, m2, [0]), shuffle(m2, m2, [1]))"
    "   for b in 0..w by 8 {"
    "     let d = x[i,b]:x8 - splat.x8(m1) let whole = rint(d) let f = d - whole"
    "     let p = fma(fma(fma(splat.x8(0x1.cp-5), f, splat.x8(0x1.ecp-3)), f, splat.x8(0x1.62ep-1)), f, splat.x8(1.0))"
    "     let y = ldexp(p, whole) e[b]:x8 = y sum[0]:x8 = sum[0]:x8 + y }"
    "   let s4 = shuffle(sum[0]:x8, sum[0]:x8, [0,1,2,3]) + shuffle(sum[0]:x8, sum[0]:x8, [4,5,6,7])"
    "   let s2 = shuffle(s4, s4, [0,1]) + shuffle(s4, s4, [2,3])"
    "   let s1 = shuffle(s2, s2, [0]) + shuffle(s2, s2, [1])"
    "   for c in 0..w by 8 { o[i,c]:x8 = e[c]:x8 / splat.x8(s1) } } }";

static float tree_of_8(const float *lanes, bool maximum) {
    float x[8];
    memcpy(x, lanes, sizeof x);
    for (int half = 4; half; half /= 2)
        for (int l = 0; l < half; l++) x[l] = maximum ? (x[l] > x[l + half] ? x[l] : x[l + half]) : x[l] + x[l + half];
    return x[0];
}

static void plain_softmax(const float *x, float *o, int w) {
    float top[8], sum[8] = {0};
    for (int l = 0; l < 8; l++) top[l] = -INFINITY;
    for (int j = 0; j < w; j++) top[j % 8] = top[j % 8] > x[j] ? top[j % 8] : x[j];
    const float max = tree_of_8(top, true);
    for (int j = 0; j < w; j++) {
        const float d = x[j] - max, whole = rintf(d), f = d - whole;
        o[j] = ldexpf(fmaf(fmaf(fmaf(0x1.cp-5f, f, 0x1.ecp-3f), f, 0x1.62ep-1f), f, 1.0f), (int)whole);
        sum[j % 8] += o[j];
    }
    const float total = tree_of_8(sum, false);
    for (int j = 0; j < w; j++) o[j] /= total;
}

static void test_softmax(void **state) {
    (void)state;
    enum { N = 5, W = 104 };
    float x[N * W], o[N * W], expected[N * W];
    for (int i = 0; i < N * W; i++) x[i] = random_float() * (i < W ? 300 : 12);
    for (int i = 0; i < N; i++) plain_softmax(x + i * W, expected + i * W, W);
    at_arena arena;
    const ir_kernel *kernel = parse(&arena, softmax);
    for (uint64_t seed = 0; seed < 5; seed++) {
        at_error err = {0};
        memset(o, 0xff, sizeof o);
        if (ir_interpret(kernel, (void *[]){x, o}, (const int64_t[]){N, W}, &(ir_interp_options){.shuffle_seed = seed},
                         &err))
            fail_msg("%s", err.message);
        expect_floats(o, expected, N * W);
    }
    at_arena_free(&arena);
}

/* Tasks that count one another show their order: it is the plain one without a seed, and changes with the seed. */
static void test_shuffle(void **state) {
    (void)state;
    at_arena arena;
    const ir_kernel *kernel = parse(&arena, "kernel @order (next: idx[] inout, o: idx[4,8] out) {"
                                            " parallel for i in 0..4, j in 0..8 {"
                                            " o[i,j] = next[] next[] = next[] + 1 } }");
    int64_t first[32] = {0};
    for (uint64_t seed = 0; seed < 6; seed++) {
        int64_t next = 0, o[32], seen[32] = {0};
        at_error err = {0};
        assert_int_equal(
            ir_interpret(kernel, (void *[]){&next, o}, NULL, &(ir_interp_options){.shuffle_seed = seed}, &err),
            ATTUNE_OK);
        for (int t = 0; t < 32; t++) {
            if (seed == 0) assert_int_equal(o[t], t);
            assert_in_range(o[t], 0, 31);
            assert_int_equal(seen[o[t]]++, 0);
        }
        if (seed) assert_memory_not_equal(o, first, sizeof o);
        memcpy(first, o, sizeof o);
    }
    at_arena_free(&arena);
}

/* ---- ir_eval_scalar ---- */

static void test_eval_scalar(void **state) {
    (void)state;
    at_arena arena;
    const ir_kernel *kernel =
        parse(&arena, "kernel @k (x: f32[min(n, 100) * 2, (n + 7) / 8 % 5, select(n > m, n, m)] in,"
                      " n: idx, s: f32, m: idx, o: f32[cast.idx(cast.i32(n)), n - m] out) {"
                      " parallel for i in 0..n << 2 { o[0,0] = s } }");
    const int64_t scalars[] = {70, 0, 75};
    const ir_buffer *x = kernel->params[0].buffer, *o = kernel->params[4].buffer;
    const ir_expr *const exprs[] = {x->dims[0], x->dims[1], x->dims[2],
                                    o->dims[0], o->dims[1], kernel->phases->loops[0].hi};
    static const int64_t expected[] = {140, 4, 75, 70, -5, 280};
    for (int e = 0; e < 6; e++) {
        int64_t value = 0;
        at_error err = {0};
        assert_int_equal(ir_eval_scalar(kernel, exprs[e], scalars, &value, &err), ATTUNE_OK);
        assert_int_equal(value, expected[e]);
    }
    int64_t value = 0;
    at_error err = {0};
    assert_int_equal(ir_eval_scalar(kernel, o->dims[1], (const int64_t[]){INT64_MIN, 0, 1}, &value, &err),
                     ATTUNE_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "overflows"));
    at_arena_free(&arena);
}

int main(void) {
    printf("seed %u\n", random_state);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checks),
        cmocka_unit_test(test_refused_arguments),
        cmocka_unit_test(test_refused_sizes),
        cmocka_unit_test(test_each_allocation_refused),
        cmocka_unit_test(test_huge_scratch_refused),
        cmocka_unit_test(test_failure_releases_memory),
        cmocka_unit_test(test_single_tasks),
        cmocka_unit_test(test_masked_lanes_are_untouched),
        cmocka_unit_test(test_lane_strides),
        cmocka_unit_test(test_overlapping_store_reads_first),
        cmocka_unit_test(test_scalar_buffer_and_widths),
        cmocka_unit_test(test_pairs_at_odd_places),
        cmocka_unit_test(test_special_operators),
        cmocka_unit_test(test_numbers_among_bytes),
        cmocka_unit_test(test_control_flow),
        cmocka_unit_test(test_index_arithmetic),
        cmocka_unit_test(test_scalar_params),
        cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_shuffle),
        cmocka_unit_test(test_eval_scalar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
