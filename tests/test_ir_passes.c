/* The passes: mathematics in units of the last place, and that every other pass keeps the bits. */
#include "ir/interp.h"
#include "ir/passes.h"
#include "ir/rewrite.h"
#include "ir/text.h"
#include "ir/verify.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static uint64_t random_state;

static uint64_t random_bits(void) { /* splitmix64 */
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double random_between(double lo, double hi) { return lo + (hi - lo) * ((double)(random_bits() >> 11) * 0x1p-53); }

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
    double lo, hi;     /* where most inputs are taken from */
    double limit, limit_without_fma; /* in ULP */
} function;

static const function functions[] = {
    {"exp2", exp2l, -130, 130, 1.0, 1.5},
    {"log2", log2l, 0, 4, 2.0, 2.0},
    {"tanh", tanhl, -4, 4, 2.0, 2.0},
};

static const double edges[] = {
    0.0, -0.0, INFINITY, -INFINITY, NAN, 1, -1, 0.5, -0.5, 2, 0.625, 0.75, 127, 127.5, 0x1.fffffep6, 128, 128.5, 129, 1e9,
    3e38, -126, -126.5, -127, -127.5, -128, -149, -150, -151, -1e9, -3e38, 0x1p-126, 0x1p-127, 0x1p-149, -0x1p-149,
    0x1.fffffcp-127, 0x1.fffffep127, 0x1.6a09e6p-1, 0x1.6a09e8p-1, 0x1.6a09e6p0, 0x1.6a09e8p0, 0x1.fffffep-1, 0x1.000002p0,
    1023, 1023.75, 1024, 1025, 1e300, -1021, -1022, -1022.5, -1023, -1024, -1074, -1075, 0x1p-1022, 0x1p-1030,
    0x1p-1074, -0x1p-1074, 0x1.fffffffffffffp1023, 0x1.fffffffffffffp-1, 0x1.0000000000001p0, 20, -20, 9.1, 18.8, -40,
};

static double make_input(const function *f, size_t i, bool f64) {
    double x;
    const uint64_t bits = random_bits();
    if (i < LENGTH(edges)) x = edges[i];
    else if (i % 4 == 0) { /* any bits at all */
        float single;
        memcpy(&single, &bits, sizeof single);
        if (f64) memcpy(&x, &bits, sizeof x);
        else x = single;
    } else if (i % 4 == 1) x = random_between(f->lo, f->hi) / 64; /* round 0, or between 0 and 1/16 */
    else if (i % 4 == 2 && f64) x = random_between(f->lo, f->hi) * 8;
    else if (i % 4 == 2) x = random_between(0.5, 2); /* where log2 goes through 0 and tanh changes its method */
    else x = random_between(f->lo, f->hi);
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

static void run_math(const char *name, bool f64, int lanes, const at_target *target, const void *in, void *out) {
    char text[512];
    const char *elem = f64 ? "f64" : "f32";
    snprintf(text, sizeof text,
             "kernel @f (x: %s[n, %d] in, o: %s[n, %d] out, n: idx) { parallel for i in 0 .. n {"
             " o[i, 0]:x%d = %s(x[i, 0]:x%d) } }", elem, lanes, elem, lanes, lanes, name, lanes);
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
        if (f64) ((double *)in)[i] = x;
        else ((float *)in)[i] = (float)x;
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

/* What callers of exp2 count on, exactly. */
static void test_exp2_exact(void **state) {
    (void)state;
    static const struct {
        float x, y;
    } cases[] = {
        {0, 1}, {-0.0f, 1}, {1, 2}, {-1, 0.5f}, {127, 0x1p127f}, {128, INFINITY}, {1e30f, INFINITY}, {INFINITY, INFINITY},
        {-126, 0x1p-126f}, {-150, 0}, {-1e30f, 0}, {-INFINITY, 0},
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

int main(void) {
    const char *seed = getenv("ATTUNE_TEST_SEED");
    random_state = seed ? strtoull(seed, NULL, 0) : 20261121;
    print_message("# ATTUNE_TEST_SEED=%llu\n", (unsigned long long)random_state);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_math),
        cmocka_unit_test(test_exp2_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
