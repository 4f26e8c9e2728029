/* A matrix product as an operator of one's own: written in loop IR for the sizes at hand, cached, and tuned.
 *     cc matmul.c $(pkg-config --cflags --libs attune) -lm -o matmul && ./matmul 120 200 96 */
#include <attune.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if ((call) != ATTUNE_OK) {                                                                                     \
            fprintf(stderr, "%s\n", attune_last_message());                                                            \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

/* The schedule: a register tile of C has `rows` rows of `vectors` vectors. Each element of C is the same sum in the
 * same order, whatever the tile, so all schedules have the same bits. */
enum { ROWS, VECTORS };
static const int32_t rows_values[] = {1, 2, 3, 4, 6, 8}, vectors_values[] = {1, 2, 3, 4};
static const attune_choice choices[] = {{"rows", rows_values, 6, 4, 0}, {"vectors", vectors_values, 4, 2, 0}};

/* c = a · b, for a problem such as "m=120,n=200,k=96". */
static int build(void *user, const attune_build_request *request, attune_ir_writer *w) {
    (void)user;
    int m, n, k;
    if (sscanf(request->problem, "m=%d,n=%d,k=%d", &m, &n, &k) != 3 || m < 1 || n < 1 || k < 1) {
        attune_ir_print(w, "sizes are given as m=120,n=200,k=96, each at least 1");
        return 1;
    }
    const int rows = request->schedule[ROWS], vectors = request->schedule[VECTORS];
    const int lanes = request->vector_bytes / 4, width = vectors * lanes;
    char live[96] = ""; /* where the last vectors may reach beyond the rows of b and c: which lanes do not */
    if (n % width) snprintf(live, sizeof live, " ? (ramp.x%d(column, 1) < splat.x%d(%d))", lanes, lanes, n);

    attune_ir_print(w, "kernel @matmul (a: f32[%d, %d] in, b: f32[%d, %d] in, c: f32[%d, %d] out) {\n", m, k, k, n, m,
                    n);
    attune_ir_print(w, "parallel for block in 0..%d, panel in 0..%d {\n", (m + rows - 1) / rows,
                    (n + width - 1) / width);
    attune_ir_print(w, "alloc sum: f32x%d[%d, %d] reg\n", lanes, rows, vectors);
    attune_ir_print(w, "for r in 0..%d unroll { for v in 0..%d unroll { sum[r, v] = splat.x%d(0.0) } }\n", rows,
                    vectors, lanes);
    attune_ir_print(w, "for d in 0..%d { for v.1 in 0..%d unroll {\n", k, vectors);
    attune_ir_print(w, "let column = panel * %d + v.1 * %d\nlet right = b[d, column]:x%d%s\n", width, lanes, lanes,
                    live);
    /* Rows beyond the last one are the last one again: computed and stored twice, with the same bits. */
    attune_ir_print(w, "for r.1 in 0..%d unroll {\nlet left = splat.x%d(a[min(block * %d + r.1, %d), d])\n", rows,
                    lanes, rows, m - 1);
    attune_ir_print(w, request->has_fma ? "sum[r.1, v.1] = fma(left, right, sum[r.1, v.1])\n"
                                        : "sum[r.1, v.1] = left * right + sum[r.1, v.1]\n");
    attune_ir_print(w, "} } }\n");
    if (n % width) snprintf(live, sizeof live, " ? (ramp.x%d(to, 1) < splat.x%d(%d))", lanes, lanes, n);
    attune_ir_print(w, "for r.2 in 0..%d unroll { for v.2 in 0..%d unroll {\n", rows, vectors);
    attune_ir_print(w, "let to = panel * %d + v.2 * %d\n", width, lanes);
    attune_ir_print(w, "c[min(block * %d + r.2, %d), to]:x%d%s = sum[r.2, v.2]\n} }\n}\n}\n", rows, m - 1, lanes, live);
    return 0;
}

static double worst_error(const float *a, const float *b, const float *c, int m, int n, int k) {
    double worst = 0;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int d = 0; d < k; d++) sum += (double)a[i * k + d] * b[d * n + j];
            worst = fmax(worst, fabs(sum - c[i * n + j]));
        }
    return worst;
}

static attune_status show(const char *when, const attune_kernel *kernel) {
    static const char *const origins[] = {"memory", "disk", "the compiler"};
    attune_kernel_info info = {.struct_size = sizeof info};
    const int32_t *numbers;
    attune_status status = attune_kernel_get_info(kernel, &info);
    if (!status) status = attune_operator_numbers(kernel, &numbers, NULL);
    if (!status)
        printf("%s: rows=%d, vectors=%d, from %s\n", when, (int)numbers[ROWS], (int)numbers[VECTORS],
               origins[info.origin]);
    return status;
}

int main(int argc, char **argv) {
    const int m = argc > 3 ? atoi(argv[1]) : 120, n = argc > 3 ? atoi(argv[2]) : 200, k = argc > 3 ? atoi(argv[3]) : 96;
    char problem[64];
    snprintf(problem, sizeof problem, "m=%d,n=%d,k=%d", m, n, k);

    attune_context *context = NULL;
    attune_operator *matmul = NULL;
    attune_kernel *kernel = NULL;
    attune_operator_options options = ATTUNE_OPERATOR_OPTIONS_INIT;
    options.name = "matmul";
    options.version = 1; /* to be raised when build writes other text for the same request */
    options.build = build;
    options.choices = choices;
    options.num_choices = sizeof choices / sizeof *choices;
    TRY(attune_context_create(NULL, &context));
    TRY(attune_operator_add(context, &options, &matmul));
    TRY(attune_operator_compile(matmul, problem, NULL, &kernel));
    TRY(show("before", kernel));

    float *a = malloc((size_t)m * k * sizeof *a), *b = malloc((size_t)k * n * sizeof *b);
    float *c = malloc((size_t)m * n * sizeof *c);
    if (!a || !b || !c) return 1;
    for (int i = 0; i < m * k; i++) a[i] = (float)(i % 17) / 16 - 0.5f;
    for (int i = 0; i < k * n; i++) b[i] = (float)(i % 13) / 8 - 0.75f;
    void *const buffers[] = {a, b, c};
    TRY(attune_ir_run(context, kernel, ATTUNE_ENGINE_JIT, buffers, NULL));
    const double error = worst_error(a, b, c, m, n, k);
    printf("max error %.2g\n", error);
    attune_kernel_release(kernel);

    attune_tune_options how = ATTUNE_TUNE_OPTIONS_INIT;
    attune_tune_result result = {.struct_size = sizeof result};
    how.budget_seconds = 1;
    TRY(attune_operator_tune(matmul, problem, buffers, NULL, &how, NULL, &result));
    printf("%d of %d schedules timed: %.1f %% faster\n", (int)result.measured, (int)result.space,
           100 * (1 - result.ratio));
    TRY(attune_operator_compile(matmul, problem, NULL, &kernel));
    TRY(show("after", kernel));
    attune_kernel_release(kernel);
    attune_context_destroy(context);
    free(a), free(b), free(c);
    return error < 1e-4 * k && !result.wrong ? 0 : 1;
}
