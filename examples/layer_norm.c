/* A layer norm as an operator of one's own: y = (x - mean) / sqrt(variance + 1e-5) * gamma + beta, for each row of x.
 *     cc layer_norm.c $(pkg-config --cflags --libs attune) -lm -o layer_norm && ./layer_norm 100 200 */
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

/* The schedule: the rows of a task, and how many rows ahead x is brought into the cache. Neither changes a bit; more
 * sums at a time would, as they add up in another order. */
enum { ROWS, AHEAD };
static const int32_t rows_values[] = {1, 4, 16, 64}, ahead_values[] = {0, 1, 2};
static const attune_choice choices[] = {{"rows", rows_values, 4, 4, 0}, {"ahead", ahead_values, 3, 0, 0}};

/* The sum of the lanes of `name`, as a tree, becomes `name`1. */
static void add_lanes(attune_ir_writer *w, const char *name, int lanes) {
    for (; lanes > 1; lanes /= 2) {
        attune_ir_print(w, "let %s%d = ", name, lanes / 2);
        for (int half = 0; half < 2; half++) {
            attune_ir_print(w, "%sshuffle(%s%d, %s%d, [", half ? " + " : "", name, lanes, name, lanes);
            for (int i = 0; i < lanes / 2; i++) attune_ir_print(w, "%s%d", i ? ", " : "", half * lanes / 2 + i);
            attune_ir_print(w, "])");
        }
        attune_ir_print(w, "\n");
    }
}

/* A problem is "rows=100,columns=200". */
static int build(void *user, const attune_build_request *request, attune_ir_writer *w) {
    (void)user;
    int rows, columns;
    if (sscanf(request->problem, "rows=%d,columns=%d", &rows, &columns) != 2 || rows < 1 || columns < 1) {
        attune_ir_print(w, "sizes are given as rows=100,columns=200, each at least 1");
        return 1;
    }
    const int lanes = request->vector_bytes / 4, block = request->schedule[ROWS], ahead = request->schedule[AHEAD];
    attune_ir_print(
        w, "kernel @layer_norm (x: f32[%d, %d] in, gamma: f32[%d] in, beta: f32[%d] in, y: f32[%d, %d] out) {\n", rows,
        columns, columns, columns, rows, columns);
    attune_ir_print(w, "parallel for b in 0..%d { for r in 0..%d {\n", (rows + block - 1) / block, block);
    attune_ir_print(w, "let row = min(b * %d + r, %d)\nalloc sum: f32x%d[2] reg\n", block, rows - 1, lanes);

    attune_ir_print(w, "sum[0] = splat.x%d(0.0)\nfor c in 0..%d by %d {\n", lanes, columns, lanes);
    attune_ir_print(w, "let live = ramp.x%d(c, 1) < splat.x%d(%d)\n", lanes, lanes, columns);
    if (ahead) attune_ir_print(w, "prefetch x[row + %d, c]\n", ahead);
    attune_ir_print(w, "sum[0] = sum[0] + x[row, c]:x%d ? (live)\n}\nlet s%d = sum[0]\n", lanes, lanes);
    add_lanes(w, "s", lanes);
    attune_ir_print(w, "let mean = splat.x%d(s1 / %d.0)\n", lanes, columns);

    attune_ir_print(w, "sum[1] = splat.x%d(0.0)\nfor c.1 in 0..%d by %d {\n", lanes, columns, lanes);
    attune_ir_print(w, "let live.1 = ramp.x%d(c.1, 1) < splat.x%d(%d)\n", lanes, lanes, columns);
    attune_ir_print(w, "let d = select(live.1, x[row, c.1]:x%d ? (live.1) - mean, splat.x%d(0.0))\n", lanes, lanes);
    attune_ir_print(w, "sum[1] = sum[1] + d * d\n}\nlet q%d = sum[1]\n", lanes);
    add_lanes(w, "q", lanes);
    attune_ir_print(w, "let factor = splat.x%d(1.0 / sqrt(q1 / %d.0 + 0.00001))\n", lanes, columns);

    attune_ir_print(w, "for c.2 in 0..%d by %d {\n", columns, lanes);
    attune_ir_print(w, "let live.2 = ramp.x%d(c.2, 1) < splat.x%d(%d)\n", lanes, lanes, columns);
    attune_ir_print(w, "let n = (x[row, c.2]:x%d ? (live.2) - mean) * factor\n", lanes);
    attune_ir_print(w, "y[row, c.2]:x%d ? (live.2) = n * gamma[c.2]:x%d ? (live.2) + beta[c.2]:x%d ? (live.2)\n", lanes,
                    lanes, lanes);
    attune_ir_print(w, "}\n} }\n}\n");
    return 0;
}

static double worst_error(const float *x, const float *gamma, const float *beta, const float *y, int rows,
                          int columns) {
    double worst = 0;
    for (int r = 0; r < rows; r++) {
        double mean = 0, variance = 0;
        for (int c = 0; c < columns; c++) mean += x[r * columns + c];
        mean /= columns;
        for (int c = 0; c < columns; c++) variance += pow(x[r * columns + c] - mean, 2);
        const double factor = 1 / sqrt(variance / columns + 1e-5);
        for (int c = 0; c < columns; c++) {
            const double wanted = (x[r * columns + c] - mean) * factor * gamma[c] + beta[c];
            worst = fmax(worst, fabs(wanted - y[r * columns + c]));
        }
    }
    return worst;
}

int main(int argc, char **argv) {
    const int rows = argc > 2 ? atoi(argv[1]) : 100, columns = argc > 2 ? atoi(argv[2]) : 200;
    char problem[64];
    snprintf(problem, sizeof problem, "rows=%d,columns=%d", rows, columns);

    attune_context *context = NULL;
    attune_operator *layer_norm = NULL;
    attune_kernel *kernel = NULL;
    attune_operator_options options = ATTUNE_OPERATOR_OPTIONS_INIT;
    options.name = "layer_norm";
    options.version = 1; /* to be raised when build writes other text for the same request */
    options.build = build;
    options.choices = choices;
    options.num_choices = sizeof choices / sizeof *choices;
    TRY(attune_context_create(NULL, &context));
    TRY(attune_operator_add(context, &options, &layer_norm));

    const size_t count = (size_t)rows * columns;
    float *x = malloc(count * sizeof *x), *y = malloc(count * sizeof *y);
    float *gamma = malloc(columns * sizeof *gamma), *beta = malloc(columns * sizeof *beta);
    if (!x || !y || !gamma || !beta) return 1;
    for (size_t i = 0; i < count; i++) x[i] = (float)(i * 7 % 23) / 4 - 2;
    for (int c = 0; c < columns; c++) gamma[c] = 1 + (float)(c % 5) / 8, beta[c] = (float)(c % 3) / 2;
    void *const buffers[] = {x, gamma, beta, y};

    attune_tune_options how = ATTUNE_TUNE_OPTIONS_INIT;
    attune_tune_result result = {.struct_size = sizeof result};
    int32_t numbers[2];
    how.budget_seconds = 1;
    TRY(attune_operator_tune(layer_norm, problem, buffers, NULL, &how, numbers, &result));
    printf("%d of %d schedules timed; rows=%d, ahead=%d are %.1f %% faster\n", (int)result.measured, (int)result.space,
           (int)numbers[ROWS], (int)numbers[AHEAD], 100 * (1 - result.ratio));
    TRY(attune_operator_compile(layer_norm, problem, NULL, &kernel));
    TRY(attune_ir_run(context, kernel, ATTUNE_ENGINE_JIT, buffers, NULL));
    const double error = worst_error(x, gamma, beta, y, rows, columns);
    printf("max error %.2g\n", error);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
    free(x), free(y), free(gamma), free(beta);
    return error < 1e-4 && !result.wrong ? 0 : 1;
}
