/* The virtual machine beside the interpreter, on kernels that attune's builders do not write. */
#include "attune.h"

#include <setjmp.h>
#include <stdarg.h>
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
    attune_kernel_info info = {.struct_size = sizeof info};
    float by_vm[NUMBERS], expected[NUMBERS];
    if (attune_context_create(&options, &context)) return; /* this CPU lacks it */
    if (attune_ir_compile(context, text, &kernel)) fail_msg("%s: %s", isa, attune_last_message());
    assert_int_equal(attune_kernel_get_info(kernel, &info), ATTUNE_OK);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_keep_what_they_read),
        cmocka_unit_test(numbers_from_bits_stay),
        cmocka_unit_test(sizes_may_be_deep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
