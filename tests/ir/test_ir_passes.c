/* The passes: mathematics in units of the last place, and that every other pass keeps the bits. */
#include "support/seed.h"
#include "ir/interp.h"
#include "ir/passes.h"
#include "ir/passes/rewrite.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "support/ir/random_ir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static random_ir generator;

static double random_between(double lo, double hi) {
    return lo + (hi - lo) * ((double)(random_ir_bits(&generator) >> 11) * 0x1p-53);
}

static const ir_kernel *parse(at_arena *arena, const char *text) {
    at_error err = {.status = ATTUNE_OK};
    const ir_kernel *kernel = ir_parse(arena, text, strlen(text), &err);
    if (!kernel) fail_msg("does not parse: %s\n%s", err.message, text);
    return kernel;
}

static void interpret(const ir_kernel *kernel, void *const *buffers, const int64_t *scalars) {
    at_error err = {.status = ATTUNE_OK};
    if (ir_interpret(kernel, buffers, scalars, &(ir_interp_options){.shuffle_seed = 7}, &err))
        fail_msg("%s: %s", kernel->name, err.message);
}

/* ---- Mathematics ---- */

enum { NUM_INPUTS = 24 * 1024 };

typedef struct function {
    const char *name;
    long double (*exact)(long double x);
    double lo, hi;                   /* where most inputs are taken from */
    double limit, limit_without_fma; /* in ULP */
} function;

static const function functions[] = {
    {"exp2", exp2l, -130, 130, 1.0, 1.5},
    {"log2", log2l, 0, 4, 2.0, 2.0},
    {"tanh", tanhl, -4, 4, 2.5, 2.0},
};

static const double edges[] = {
    0.0,
    -0.0,
    INFINITY,
    -INFINITY,
    NAN,
    1,
    -1,
    0.5,
    -0.5,
    2,
    0.625,
    0.75,
    127,
    127.5,
    0x1.fffffep6,
    128,
    128.5,
    129,
    1e9,
    3e38,
    -126,
    -126.5,
    -127,
    -127.5,
    -128,
    -149,
    -150,
    -151,
    -1e9,
    -3e38,
    0x1p-126,
    0x1p-127,
    0x1p-149,
    -0x1p-149,
    0x1.fffffcp-127,
    0x1.fffffep127,
    0x1.6a09e6p-1,
    0x1.6a09e8p-1,
    0x1.6a09e6p0,
    0x1.6a09e8p0,
    0x1.fffffep-1,
    0x1.000002p0,
    1023,
    1023.75,
    1024,
    1025,
    1e300,
    -1021,
    -1022,
    -1022.5,
    -1023,
    -1024,
    -1074,
    -1075,
    0x1p-1022,
    0x1p-1030,
    0x1p-1074,
    -0x1p-1074,
    0x1.fffffffffffffp1023,
    0x1.fffffffffffffp-1,
    0x1.0000000000001p0,
    20,
    -20,
    9.1,
    18.8,
    -40,
    0x1.fc1832p-5, /* where f32's tanh has been 2.57 ULP off, and where it is least exact now */
    0x1.646988p-3,
};

static double make_input(const function *f, size_t i, bool f64) {
    double x;
    const uint64_t bits = random_ir_bits(&generator);
    if (i < LENGTH(edges))
        x = edges[i];
    else if (i % 4 == 0) { /* any bits at all */
        float single;
        memcpy(&single, &bits, sizeof single);
        if (f64)
            memcpy(&x, &bits, sizeof x);
        else
            x = single;
    } else if (i % 4 == 1)
        x = random_between(f->lo, f->hi) / 64; /* round 0, or between 0 and 1/16 */
    else if (i % 4 == 2 && f64)
        x = random_between(f->lo, f->hi) * 8;
    else if (i % 4 == 2)
        x = random_between(0.5, 2); /* where log2 goes through 0 and tanh changes its method */
    else
        x = random_between(f->lo, f->hi);
    return f64 ? x : (double)(float)x;
}

/* The distance in units of the last place that a number of the result's size has; NaN if only one of them is NaN. */
static double ulp_error(double got, long double exact, bool f64) {
    if (isnan(got) || isnan(exact)) return isnan(got) && isnan(exact) ? 0 : NAN;
    const double rounded = f64 ? (double)exact : (double)(float)exact;
    if (isinf(got) || isinf(rounded)) return got == rounded ? 0 : NAN;
    int exponent = 0;
    frexpl(exact, &exponent);
    const int least = f64 ? -1021 : -125, fraction = f64 ? 53 : 24;
    if (exact == 0 || exponent < least) exponent = least;
    return (double)(fabsl((long double)got - exact) / ldexpl(1, exponent - fraction));
}

/* `name` may be a nest of functions that lacks its closing parentheses: "exp2(neg(abs". */
static void run_math(const char *name, bool f64, int lanes, const at_target *target, const void *in, void *out) {
    char text[512], closing[8] = "";
    for (const char *c = name; *c; c++)
        if (*c == '(') strcat(closing, ")");
    const char *elem = f64 ? "f64" : "f32";
    snprintf(text, sizeof text,
             "kernel @f (x: %s[n, %d] in, o: %s[n, %d] out, n: idx) { parallel for i in 0 .. n {"
             " o[i, 0]:x%d = %s(x[i, 0]:x%d)%s } }",
             elem, lanes, elem, lanes, lanes, name, lanes, closing);
    at_arena arena;
    at_arena_init(&arena, NULL);
    at_error err = {.status = ATTUNE_OK};
    const ir_kernel *kernel = ir_lower(parse(&arena, text), target, NULL, NULL, &err);
    if (!kernel) fail_msg("%s for %s: %s", name, target->name, err.message);
    interpret(kernel, (void *const[]){(void *)in, out}, &(int64_t){NUM_INPUTS / lanes});
    at_arena_free(&arena);
}

static double element(const void *array, size_t i, bool f64) {
    return f64 ? ((const double *)array)[i] : (double)((const float *)array)[i];
}

/* Below the normal numbers exp2 may be off by one of the smallest of these where ldexp is not in hardware. */
static bool in_flushed_range(const function *f, const at_target *target, long double exact, double got, bool f64) {
    const double least = f64 ? 0x1p-1022 : 0x1p-126;
    return !strcmp(f->name, "exp2") && !(target->flags & AT_TARGET_SCALEF) && exact < least && got >= 0 && got <= least;
}

static double max_ulp(const function *f, const at_target *target, bool f64, const void *in, const void *out) {
    double worst = 0;
    for (size_t i = 0; i < NUM_INPUTS; i++) {
        const double x = element(in, i, f64), got = element(out, i, f64);
        const long double exact = f->exact(x);
        if (in_flushed_range(f, target, exact, got, f64)) continue;
        const double error = ulp_error(got, exact, f64);
        if (isnan(error)) fail_msg("%s(%a) is %a, not %La (%s)", f->name, x, got, exact, target->name);
        if (error > worst) worst = error;
        if (x == 0 && f->exact == tanhl && signbit(got) != signbit(x)) fail_msg("tanh(%a) is %a", x, got);
    }
    return worst;
}

static void check_math(const function *f, const at_target *target, bool f64) {
    static double in_memory[NUM_INPUTS], out_memory[NUM_INPUTS], again_memory[NUM_INPUTS];
    void *in = in_memory, *out = out_memory, *again = again_memory;
    const size_t bytes = f64 ? sizeof(double) : sizeof(float);
    for (size_t i = 0; i < NUM_INPUTS; i++) {
        const double x = make_input(f, i, f64);
        if (f64)
            ((double *)in)[i] = x;
        else
            ((float *)in)[i] = (float)x;
    }
    run_math(f->name, f64, 8, target, in, out);
    const double worst = max_ulp(f, target, f64, in, out);
    const double limit = target->flags & AT_TARGET_FMA ? f->limit : f->limit_without_fma;
    print_message("# %-6s %s %s: %.3f ULP\n", target->name, f64 ? "f64" : "f32", f->name, worst);
    if (!(worst < limit)) fail_msg("%s: the limit is %.1f ULP", f->name, limit);
    static const int lane_counts[] = {1, 4, 16};
    for (size_t l = 0; l < LENGTH(lane_counts); l++) {
        run_math(f->name, f64, lane_counts[l], target, in, again);
        for (size_t i = 0; i < NUM_INPUTS; i++)
            if (!isnan(element(out, i, f64)) || !isnan(element(again, i, f64)))
                assert_memory_equal((char *)out + i * bytes, (char *)again + i * bytes, bytes);
    }
}

static void test_math(void **state) {
    (void)state;
    for (const at_target *target = at_targets(); target->name; target++)
        for (size_t f = 0; f < LENGTH(functions); f++)
            for (int f64 = 0; f64 < 2; f64++) check_math(&functions[f], target, f64);
}

/* Exact properties that callers of exp2 rely on. */
static void test_exp2_exact(void **state) {
    (void)state;
    static const struct {
        float x, y;
    } cases[] = {
        {0, 1},
        {-0.0f, 1},
        {1, 2},
        {-1, 0.5f},
        {127, 0x1p127f},
        {128, INFINITY},
        {1e30f, INFINITY},
        {INFINITY, INFINITY},
        {-126, 0x1p-126f},
        {-150, 0},
        {-1e30f, 0},
        {-INFINITY, 0},
    };
    static float in[NUM_INPUTS], out[NUM_INPUTS];
    for (const at_target *target = at_targets(); target->name; target++) {
        memset(in, 0, sizeof in);
        for (size_t i = 0; i < LENGTH(cases); i++) in[i] = cases[i].x;
        run_math("exp2", false, 8, target, in, out);
        for (size_t i = 0; i < LENGTH(cases); i++)
            if (out[i] != cases[i].y || signbit(out[i]))
                fail_msg("%s: exp2(%a) is %a, not %a", target->name, cases[i].x, out[i], cases[i].y);
    }
}

/* exp2 of an expression that is obviously never positive is lowered without an upper clamp, to the same bits. */
static void test_exp2_never_positive(void **state) {
    (void)state;
    static float in[NUM_INPUTS], negative[NUM_INPUTS], out[NUM_INPUTS], expected[NUM_INPUTS];
    for (size_t i = 0; i < NUM_INPUTS; i++) {
        in[i] = (float)make_input(&functions[0], i, false);
        negative[i] = -fabsf(in[i]);
    }
    for (const at_target *target = at_targets(); target->name; target++) {
        run_math("exp2(neg(abs", false, 8, target, in, out);
        run_math("exp2", false, 8, target, negative, expected);
        for (size_t i = 0; i < NUM_INPUTS; i++)
            if (memcmp(&out[i], &expected[i], sizeof *out) && !(isnan(out[i]) && isnan(expected[i])))
                fail_msg("%s: exp2(-|%a|) is %a, not %a", target->name, in[i], out[i], expected[i]);
    }
}

/* ---- Passes that keep the bits ---- */

/* The buffers of one run. */
typedef struct memory {
    float *x, *y, t[RANDOM_IR_T];
    size_t n, m;
} memory;

static memory make_memory(const int64_t arguments[3]) {
    memory s = {.n = (size_t)arguments[0], .m = (size_t)arguments[1]};
    random_ir values = {.state = 99};
    s.x = calloc(s.n + 1, sizeof *s.x);
    s.y = calloc(s.n * s.m + 1, sizeof *s.y);
    float *const arrays[] = {s.x, s.y, s.t};
    const size_t sizes[] = {s.n, s.n * s.m, RANDOM_IR_T};
    static const float odd[] = {INFINITY, -INFINITY, NAN, -0.0f, 0x1p-149f, -0.5f, 1.5f, 2.5f, 0x1.8p23f, -3e38f};
    for (int a = 0; a < 3; a++)
        for (size_t i = 0; i < sizes[a]; i++) {
            const uint64_t bits = random_ir_bits(&values);
            arrays[a][i] = bits % 16 ? (float)(int32_t)(bits >> 32) * 0x1p-28f : odd[bits / 16 % LENGTH(odd)];
        }
    return s;
}

static void free_memory(memory *s) {
    free(s->x);
    free(s->y);
}

static bool same_floats(const float *a, const float *b, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (memcmp(&a[i], &b[i], sizeof a[i]) && !(isnan(a[i]) && isnan(b[i]))) return false;
    return true;
}

/* The reference of the pipeline's observer: the kernel after lower_math, which is the first that runs. */
typedef struct observation {
    const char *text;
    const ir_kernel *first;
    int64_t arguments[3];
    int passes, changed;
} observation;

static void run_both(const observation *o, const char *pass, const ir_kernel *kernel) {
    memory a = make_memory(o->arguments), b = make_memory(o->arguments);
    interpret(o->first, (void *const[]){a.x, a.y, a.t}, o->arguments);
    interpret(kernel, (void *const[]){b.x, b.y, b.t}, o->arguments);
    if (!same_floats(a.x, b.x, a.n) || !same_floats(a.y, b.y, a.n * a.m) || !same_floats(a.t, b.t, RANDOM_IR_T)) {
        at_string after;
        at_string_init(&after, NULL);
        ir_print(kernel, &after);
        print_error("%s\nafter %s:\n%s\n", o->text, pass, after.data);
        fail_msg("%s changed the result", pass);
    }
    free_memory(&a);
    free_memory(&b);
}

static void observe(void *user, const char *pass, const ir_kernel *kernel) {
    observation *o = user;
    o->passes++;
    if (!strcmp(pass, "scheduled")) return;
    if (!o->first)
        o->first = kernel;
    else if (kernel != o->first) {
        o->changed++;
        run_both(o, pass, kernel);
    }
}

static void test_passes_keep_bits(void **state) {
    (void)state;
    int changed = 0;
    for (int k = 0; k < 1500; k++) {
        const at_target *target = at_target_find(k % 3 == 0 ? "avx512" : k % 3 == 1 ? "avx2" : "x86-64");
        generator.careful = 100;
        generator.arithmetic = 1;
        generator.fma = (target->flags & AT_TARGET_FMA) != 0;
        random_ir_kernel(&generator);
        observation o = {.text = generator.text};
        random_ir_arguments(&generator, o.arguments);
        at_arena arena;
        at_arena_init(&arena, NULL);
        at_error err = {.status = ATTUNE_OK};
        if (!ir_lower(parse(&arena, generator.text), target, observe, &o, &err))
            fail_msg("%s\n%s", err.message, generator.text);
        assert_int_equal(o.passes, 5);
        changed += o.changed;
        at_arena_free(&arena);
    }
    assert_true(changed > 1500);
}

/* rint as legalize writes it is the operator's, on every kind of number. */
static void test_rint(void **state) {
    (void)state;
    static float in[NUM_INPUTS], out[NUM_INPUTS];
    static double in64[NUM_INPUTS], out64[NUM_INPUTS];
    for (size_t i = 0; i < NUM_INPUTS; i++) {
        const uint64_t bits = random_ir_bits(&generator);
        if (i % 2)
            in[i] = (float)((int32_t)bits >> (bits >> 40) % 24) * 0.5f;
        else
            memcpy(&in[i], &bits, sizeof in[i]);
        if (i % 2)
            in64[i] = (double)((int64_t)bits >> (bits >> 32) % 50) * 0.25;
        else
            memcpy(&in64[i], &bits, sizeof in64[i]);
    }
    run_math("rint", false, 8, at_target_find("x86-64"), in, out);
    run_math("rint", true, 4, at_target_find("x86-64"), in64, out64);
    for (size_t i = 0; i < NUM_INPUTS; i++) {
        const float single = rintf(in[i]);
        const double wide = rint(in64[i]);
        if (!isnan(single) || !isnan(out[i])) assert_memory_equal(&single, &out[i], sizeof single);
        if (!isnan(wide) || !isnan(out64[i])) assert_memory_equal(&wide, &out64[i], sizeof wide);
    }
}

/* ---- What a pass does to a text ---- */

typedef ir_kernel *pass_fn(const ir_kernel *kernel, const at_target *target, at_error *err);

typedef struct pass_case {
    pass_fn *pass;
    const char *target, *body, *expected, *refusal;
} pass_case;

static const pass_case pass_cases[] = {
    {ir_pass_unroll, "avx2", "for j in 0 .. 3 unroll { o[j] = 1.0 }", "o[0] = 0x1p+0 o[1] = 0x1p+0 o[2] = 0x1p+0",
     NULL},
    {ir_pass_unroll, "avx2", "for j in 1 .. 6 by 2 unroll { let a = j * 2 o[a + i] = 1.0 }",
     "o[i + 2] = 0x1p+0 o[i + 6] = 0x1p+0 o[i + 10] = 0x1p+0", NULL},
    {ir_pass_unroll, "avx2", "for j in 0 .. 2 unroll { let a = i + j alloc r: f32[] reg r[] = 1.0 o[a] = r[] }",
     "alloc r: f32[] reg r[] = 0x1p+0 o[i] = r[] let a = i + 1 alloc r.1: f32[] reg r.1[] = 0x1p+0 o[a] = r.1[]", NULL},
    {ir_pass_unroll, "avx2", "for j in 0 .. 3 unroll { for l in j .. 2 unroll { o[j * 2 + l] = 1.0 } }",
     "o[0] = 0x1p+0 o[1] = 0x1p+0 o[3] = 0x1p+0", NULL},
    {ir_pass_unroll, "avx2", "for j in 0 .. 3 unroll { for l in 0 .. j { o[l] = 1.0 } }",
     "for l in 0..0 { o[l] = 0x1p+0 } for l.1 in 0..1 { o[l.1] = 0x1p+0 } for l.2 in 0..2 { o[l.2] = 0x1p+0 }", NULL},
    {ir_pass_unroll, "avx2", "for j in 0 .. i unroll { o[j] = 1.0 }", NULL, "its ends are not constants"},
    {ir_pass_unroll, "avx2", "for j in 0 .. 1000000 unroll { o[j] = 1.0 }", NULL, "more than 131072 copies"},
    {ir_pass_lower_lets, "avx2", "let q in 0..n = i o[q] = 1.0",
     "alloc q: idx[] reg q[] = i let q.1 = q[] assume 0 <= q.1 assume q.1 <= (n - 1) o[q.1] = 0x1p+0", NULL},
    {ir_pass_lower_lets, "avx2", "for j in 0 .. n { let q in j..n + 1 = 0 let r = q + 1 o[r] = 1.0 }",
     "q[] = 0 let q.1 = q[] assume j <= q.1 assume q.1 <= n let r = q.1 + 1 o[r] = 0x1p+0", NULL},
    {ir_pass_unroll, "avx2", "for j in 0 .. 2 unroll { let q in j..n = i * j o[q] = 1.0 }",
     "assume true assume 0 <= (n - 1) o[0] = 0x1p+0 let q in 1..n = i o[q] = 0x1p+0", NULL},
    {ir_pass_legalize, "x86-64", "o[i] = fma(x[i], x[i], x[i])", NULL, "target x86-64 has no instruction for 'fma'"},
    {ir_pass_legalize, "avx2", "o[i] = ldexp(x[i], x[i])", NULL, "target avx2 has no instruction for 'ldexp'"},
    {ir_pass_lower_math, "avx512", "if exp2(x[i]) < 1.0 { o[i] = 1.0 }",
     "let exp2.x = x[i] let exp2.n = rint(exp2.x) let exp2.f = exp2.x - exp2.n "
     "if ldexp(fma(fma(fma(fma(fma(fma(0x1.41fdfcp-13, exp2.f, 0x1.5f3f26p-10), exp2.f, 0x1.3b2d62p-7), exp2.f, "
     "0x1.c6aefap-5), exp2.f, 0x1.ebfbd8p-3), exp2.f, 0x1.62e43p-1), exp2.f, 0x1p+0), exp2.n) < 0x1p+0 "
     "{ o[i] = 0x1p+0 }",
     NULL},
};

/* The text without line ends and indentation. */
static void squeeze(char *text) {
    char *to = text;
    for (const char *from = text; *from; from++) {
        const char c = *from == '\n' ? ' ' : *from;
        if (c != ' ' || (to > text && to[-1] != ' ')) *to++ = c;
    }
    *to = 0;
}

static void test_pass_texts(void **state) {
    (void)state;
    for (size_t c = 0; c < LENGTH(pass_cases); c++) {
        const pass_case *one = &pass_cases[c];
        char text[1024];
        snprintf(text, sizeof text,
                 "kernel @k (x: f32[n] in, o: f32[n] out, n: idx) { parallel for i in 0 .. n { %s } }", one->body);
        at_arena arena;
        at_arena_init(&arena, NULL);
        at_error err = {.status = ATTUNE_OK};
        const ir_kernel *kernel = one->pass(parse(&arena, text), at_target_find(one->target), &err);
        if (one->refusal) {
            assert_null(kernel);
            assert_int_equal(err.status, ATTUNE_INVALID_IR);
            if (!strstr(err.message, one->refusal)) fail_msg("expected '%s', got '%s'", one->refusal, err.message);
        } else {
            at_string printed;
            at_string_init(&printed, NULL);
            if (!kernel) fail_msg("%s: %s", one->body, err.message);
            ir_print(kernel, &printed);
            squeeze(printed.data);
            if (!strstr(printed.data, one->expected)) fail_msg("expected %s\nin %s", one->expected, printed.data);
            at_string_free(&printed);
        }
        at_arena_free(&arena);
    }
}

/* A pass with nothing to do returns its argument. */
static void test_nothing_to_do(void **state) {
    (void)state;
    at_arena arena;
    at_arena_init(&arena, NULL);
    at_error err = {.status = ATTUNE_OK};
    const ir_kernel *kernel = parse(&arena, "kernel @k (o: f32[8] out) { parallel for i in 0 .. 8 { o[i] = 1.0 } }");
    const at_target *target = at_target_find("x86-64");
    assert_ptr_equal(ir_pass_lower_math(kernel, target, &err), kernel);
    assert_ptr_equal(ir_pass_lower_lets(kernel, target, &err), kernel);
    assert_ptr_equal(ir_pass_legalize(kernel, target, &err), kernel);
    assert_ptr_equal(ir_pass_unroll(kernel, target, &err), kernel);
    at_arena_free(&arena);
}

int main(void) {
    generator.state = test_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_math),
        cmocka_unit_test(test_exp2_exact),
        cmocka_unit_test(test_exp2_never_positive),
        cmocka_unit_test(test_passes_keep_bits),
        cmocka_unit_test(test_rint),
        cmocka_unit_test(test_pass_texts),
        cmocka_unit_test(test_nothing_to_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
