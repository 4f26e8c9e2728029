/* The kernels of examples/ir, verified, lowered and run by the interpreter at sizes with every kind of tail, against
 * plain loops. The lowered kernel's text must give the same bits again. */
#include "ir/interp.h"
#include "ir/passes.h"
#include "ir/text.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const int sizes[] = {1, 2, 3, 5, 8, 13, 16, 17, 31};
enum { NUM_SIZES = sizeof sizes / sizeof *sizes, MOST = 31 * 64 };

static uint64_t random_state = 7;

static void fill(float *x, size_t count) {
    for (size_t i = 0; i < count; i++) {
        random_state = random_state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)((double)(random_state >> 40) / 0x1p22 - 2.0);
    }
}

/* The example, lowered for `target`, in the arena. */
static const ir_kernel *lower_example(at_arena *arena, const char *path, const char *target) {
    char text[8192];
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("cannot open %s", path);
    const size_t length = fread(text, 1, sizeof text, file);
    fclose(file);
    at_arena_init(arena, NULL);
    at_error err = {0};
    const ir_kernel *kernel = ir_parse(arena, text, length, &err);
    if (kernel) kernel = ir_lower(kernel, at_target_find(target), NULL, NULL, &err);
    if (!kernel) fail_msg("%s: %s", path, err.message);
    return kernel;
}

static const ir_kernel *parse_again(at_arena *arena, const ir_kernel *kernel) {
    at_string text;
    at_string_init(&text, NULL);
    ir_print(kernel, &text);
    at_arena_init(arena, NULL);
    at_error err = {0};
    const ir_kernel *again = ir_parse(arena, text.data, text.length, &err);
    if (!again) fail_msg("%s", err.message);
    at_string_free(&text);
    return again;
}

static void run(const ir_kernel *kernel, void *const *buffers, const int64_t *scalars) {
    const ir_interp_options options = {.shuffle_seed = 11};
    at_error err = {0};
    if (ir_interpret(kernel, buffers, scalars, &options, &err) != ATTUNE_OK) fail_msg("%s", err.message);
}

/* Runs kernel and its re-parsed text on one output each, which must come out equal; `out` is the last buffer. */
static void run_both(const ir_kernel *kernel, const ir_kernel *again, void **buffers, int out, size_t count,
                     const int64_t *scalars) {
    float *first = buffers[out], second[MOST];
    run(kernel, buffers, scalars);
    buffers[out] = second;
    run(again, buffers, scalars);
    buffers[out] = first;
    assert_memory_equal(first, second, count * sizeof *first);
}

static void scale_rows(void **state) {
    (void)state;
    at_arena arena, arena_again;
    const ir_kernel *kernel = lower_example(&arena, "examples/ir/scale_rows.air", "x86-64");
    const ir_kernel *again = parse_again(&arena_again, kernel);
    for (int s = 0; s < NUM_SIZES; s++) {
        static float x[MOST], o[MOST];
        const int64_t n = sizes[s];
        fill(x, (size_t)n * 64);
        run_both(kernel, again, (void *[]){x, o}, 1, (size_t)n * 64, &n);
        for (int i = 0; i < n * 64; i++) assert_true(o[i] == x[i] / 8);
    }
    at_arena_free(&arena);
    at_arena_free(&arena_again);
}

static void check_softmax(const ir_kernel *kernel, const ir_kernel *again, int n, int m) {
    static float x[MOST], o[MOST];
    fill(x, (size_t)(n * m));
    run_both(kernel, again, (void *[]){x, o}, 1, (size_t)(n * m), (const int64_t[]){n, m});
    for (int i = 0; i < n; i++) {
        double largest = -INFINITY, sum = 0;
        for (int c = 0; c < m; c++) largest = fmax(largest, (double)x[i * m + c]);
        for (int c = 0; c < m; c++) sum += exp((double)x[i * m + c] - largest);
        for (int c = 0; c < m; c++) {
            const double exact = exp((double)x[i * m + c] - largest) / sum;
            assert_true(fabs((double)o[i * m + c] - exact) <= 2e-6 * exact);
        }
    }
}

static void softmax_rows(void **state) {
    (void)state;
    static const char *const targets[] = {"avx512_bf16", "avx512", "avx2", "x86-64"};
    for (int t = 0; t < 3; t++) {
        at_arena arena, arena_again;
        const ir_kernel *kernel = lower_example(&arena, "examples/ir/softmax_rows.air", targets[t]);
        const ir_kernel *again = parse_again(&arena_again, kernel);
        for (int s = 0; s < NUM_SIZES; s++) check_softmax(kernel, again, sizes[s], sizes[NUM_SIZES - 1 - s]);
        at_arena_free(&arena);
        at_arena_free(&arena_again);
    }
}

static void check_matmul(const ir_kernel *kernel, const ir_kernel *again, int m, int n, int k) {
    static float a[MOST], b[MOST], c[MOST];
    fill(a, (size_t)(m * k));
    fill(b, (size_t)(k * n));
    run_both(kernel, again, (void *[]){a, b, c}, 2, (size_t)(m * n), (const int64_t[]){m, n, k});
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0; /* the same operations in the same order: the bits are pinned */
            for (int d = 0; d < k; d++) sum = fmaf(a[i * k + d], b[d * n + j], sum);
            assert_true(c[i * n + j] == sum);
        }
}

static void matmul(void **state) {
    (void)state;
    at_arena arena, arena_again;
    const ir_kernel *kernel = lower_example(&arena, "examples/ir/matmul.air", "avx2");
    const ir_kernel *again = parse_again(&arena_again, kernel);
    for (int x = 0; x < NUM_SIZES; x++)
        for (int y = 0; y < NUM_SIZES; y++) check_matmul(kernel, again, sizes[x], sizes[y], sizes[(x + y) % NUM_SIZES]);
    at_arena_free(&arena);
    at_arena_free(&arena_again);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scale_rows),
        cmocka_unit_test(softmax_rows),
        cmocka_unit_test(matmul),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
