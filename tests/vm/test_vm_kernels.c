/* The virtual machine beside the interpreter, on kernels that attune's builders do not write. */
#include "attune.h"
#include "support/statuses.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { NUMBERS = 64 };

#if defined(__aarch64__)
static const char *const isas[] = {"aarch64"};
#else
static const char *const isas[] = {"avx512", "avx2", "x86-64"};
#endif

static void run(attune_context *context, const attune_kernel *kernel, attune_engine engine, float z[NUMBERS]) {
    float x[NUMBERS], y[NUMBERS];
    const int64_t scalars[] = {1, NUMBERS};
    for (int i = 0; i < NUMBERS; i++) {
        x[i] = 0.3f + (float)(i * 37 % 64) / 64;
        y[i] = 1.7f - (float)(i * 29 % 64) / 64;
        z[i] = 0;
    }
    if (attune_ir_run(context, kernel, engine, (void *[]){x, y, z}, scalars)) fail_msg("%s", attune_last_message());
}

static void check_on(const char *isa, const char *text) {
    const attune_context_options options = {
        .struct_size = sizeof options, .cache_dir = "", .isa = isa, .compile_mode = ATTUNE_COMPILE_NEVER};
    attune_context *context;
    attune_kernel *kernel;
    float by_vm[NUMBERS], expected[NUMBERS];
    if (attune_context_create(&options, &context)) return; /* this CPU lacks it */
    if (attune_ir_compile(context, text, &kernel)) fail_msg("%s: %s", isa, attune_last_message());
    const attune_kernel_info info = kernel_info_of(kernel);
    assert_int_equal(info.engine, ATTUNE_ENGINE_VM);
    run(context, kernel, ATTUNE_ENGINE_JIT, by_vm);
    run(context, kernel, ATTUNE_ENGINE_INTERPRETER, expected);
    if (memcmp(by_vm, expected, sizeof by_vm)) fail_msg("%s: other bits than the interpreter's: %s", isa, text);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}

static void check(const char *text) {
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) check_on(isas[i], text);
}

#define HEAD                                                                                                           \
    "kernel @k (x: f32[64] in, y: f32[64] in, z: f32[64] out, n: idx, m: idx) {\n"                                     \
    "  parallel for i in 0..n {\n"

/* A let between two sums of products uses for the last time what the first sum reads; sums come together. */
static void check_products(const char *isa, int lanes, const char *first, const char *second) {
    char text[1024];
    const int l = lanes;
    snprintf(text, sizeof text,
             HEAD "    alloc s: f32x%d[2] reg\n"
                  "    s[0] = splat.x%d(0.0)\n"
                  "    s[1] = splat.x%d(0.0)\n"
                  "    let a = x[0]:x%d\n"
                  "    let b = y[0]:x%d\n"
                  "    let c = y[16]:x%d\n"
                  "    s[0] = %s\n"
                  "    let d = a * c\n"
                  "    let e = b + c\n"
                  "    let f = e * c\n"
                  "    s[1] = %s\n"
                  "    z[0]:x%d = s[0]\n"
                  "    z[16]:x%d = s[1]\n"
                  "  }\n}\n",
             l, l, l, l, l, l, first, second, l, l);
    check_on(isa, text);
}

static void products_keep_what_they_read(void **state) {
    (void)state;
#if defined(__x86_64__)
    check_products("avx512", 16, "fma(a, b, s[0])", "fma(d, f, s[1])");
    check_products("avx2", 8, "fma(a, b, s[0])", "fma(d, f, s[1])");
    check_products("x86-64", 4, "a * b + s[0]", "d * f + s[1]");
#else
    check_products("aarch64", 4, "fma(a, b, s[0])", "fma(d, f, s[1])");
#endif
}

/* A number that has the bits of another value outlives that value's place. */
static void numbers_from_bits_stay(void **state) {
    (void)state;
    check(HEAD "    let p = cast.f64(x[0])\n"
               "    let k = bitcast.i64(p)\n"
               "    let q = p + cast.f64(x[1])\n"
               "    let r = q * cast.f64(x[2])\n"
               "    let t = r * q\n"
               "    z[0] = cast.f32(t)\n"
               "    z[1] = cast.f32(r)\n"
               "    z[2] = cast.f32(bitcast.f64(k))\n"
               "  }\n}\n");
    check(HEAD "    alloc p: f64[1] reg\n"
               "    p[0] = cast.f64(x[0])\n"
               "    let k = bitcast.i64(p[0])\n"
               "    p[0] = cast.f64(x[1])\n"
               "    z[0] = cast.f32(bitcast.f64(k))\n"
               "    z[1] = cast.f32(p[0])\n"
               "  }\n}\n");
}

/* Two operands of each select wait for the third. */
static void sizes_may_be_deep(void **state) {
    (void)state;
    enum { DEEP = 190, MOST = DEEP * 40 };
    char text[MOST + 256], *end = text;
    end += sprintf(end, "kernel @k (x: f32[64] in, y: f32[64] in, z: f32[64] out, n: idx, m: idx) {\n"
                        "  parallel for i in 0..min(");
    for (int d = DEEP; d > 0; d--) end += sprintf(end, "select(n > %d, n + %d, ", 3 * d, d);
    end += sprintf(end, "m");
    for (int d = DEEP; d > 0; d--) *end++ = ')';
    sprintf(end, ", 64) {\n    z[i] = x[i] + y[i]\n  }\n}\n");
    check(text);
}

/* ---- Random programs: values that are used late, registers that change, numbers that have bits of others ---- */

enum { SUMS = 4, VALUES = 40, STEPS = 24, PROGRAM_BYTES = 8192 };

typedef struct program {
    unsigned seed;
    int values; /* v0, v1, …, of which only the first loads are bounded */
    size_t length;
    char text[PROGRAM_BYTES];
} program;

static int below(program *p, int n) { return (int)(rand_r(&p->seed) / 7 % (unsigned)n); }

static void line(program *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void line(program *p, const char *format, ...) {
    va_list args;
    va_start(args, format);
    p->length += (size_t)vsnprintf(p->text + p->length, sizeof p->text - p->length, format, args);
    va_end(args);
    assert_true(p->length < sizeof p->text);
}

/* Old values are as likely as new ones. A factor is a load, so that nothing grows without end. */
static void put_value(program *p, int loads) {
    const int a = below(p, p->values), b = below(p, p->values), c = below(p, loads);
    switch (below(p, 3)) {
    case 0: line(p, "    let v%d = v%d + v%d\n", p->values, a, b); break;
    case 1: line(p, "    let v%d = v%d - v%d\n", p->values, a, b); break;
    default: line(p, "    let v%d = v%d * v%d\n", p->values, a, c); break;
    }
    p->values++;
}

/* Sums of products in registers, with lets between them. */
static void check_random_sums(const char *isa, int lanes, bool has_fma, unsigned seed) {
    enum { LOADS = 6 };
    program p = {.seed = seed};
    line(&p, HEAD "    alloc s: f32x%d[%d] reg\n", lanes, SUMS);
    for (int i = 0; i < SUMS; i++) line(&p, "    s[%d] = splat.x%d(0.0)\n", i, lanes);
    for (; p.values < LOADS; p.values++)
        line(&p, "    let v%d = %s[%d]:x%d\n", p.values, below(&p, 2) ? "x" : "y", lanes * below(&p, NUMBERS / lanes),
             lanes);
    for (int i = 0; i < STEPS; i++) {
        const int to = below(&p, SUMS), a = below(&p, p.values), b = below(&p, p.values);
        if (p.values < VALUES && below(&p, 2)) put_value(&p, LOADS);
        line(&p, has_fma ? "    s[%d] = fma(v%d, v%d, s[%d])\n" : "    s[%d] = v%d * v%d + s[%d]\n", to, a, b, to);
    }
    for (int i = 0; i < SUMS; i++) line(&p, "    z[%d]:x%d = s[%d]\n", i * lanes, lanes, i);
    line(&p, "  }\n}\n");
    check_on(isa, p.text);
}

/* Numbers that are casts of bits, of values and of registers that change afterwards. */
static void check_random_bits(unsigned seed) {
    enum { LOADS = 4 };
    program p = {.seed = seed};
    int bits = 0;
    line(&p, HEAD "    alloc r: f64[2] reg\n    r[0] = cast.f64(x[7])\n    r[1] = cast.f64(x[8])\n");
    for (; p.values < LOADS; p.values++) line(&p, "    let v%d = cast.f64(x[%d])\n", p.values, below(&p, NUMBERS));
    for (int i = 0; i < STEPS; i++) {
        const int reg = below(&p, 2), value = below(&p, p.values);
        switch (below(&p, 4)) {
        case 0: line(&p, "    let k%d = bitcast.i64(v%d)\n", bits++, value); break;
        case 1: line(&p, "    let k%d = bitcast.i64(r[%d])\n", bits++, reg); break;
        case 2: line(&p, "    r[%d] = v%d\n", reg, value); break;
        default: put_value(&p, LOADS); break;
        }
    }
    for (int i = 0; i < bits; i++) line(&p, "    z[%d] = cast.f32(bitcast.f64(k%d))\n", i, i);
    for (int i = 0; i < 2; i++) line(&p, "    z[%d] = cast.f32(r[%d])\n", STEPS + i, i);
    line(&p, "  }\n}\n");
    check(p.text);
}

static void random_programs_agree(void **state) {
    (void)state;
    enum { PROGRAMS = 60 };
    for (unsigned seed = 1; seed <= PROGRAMS; seed++) {
        check_random_bits(seed);
#if defined(__x86_64__)
        check_random_sums("avx512", 16, true, seed);
        check_random_sums("avx2", 8, true, seed);
        check_random_sums("x86-64", 4, false, seed);
#else
        check_random_sums("aarch64", 4, true, seed);
#endif
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_keep_what_they_read),
        cmocka_unit_test(numbers_from_bits_stay),
        cmocka_unit_test(random_programs_agree),
        cmocka_unit_test(sizes_may_be_deep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
