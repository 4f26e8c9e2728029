/* y = x W^T without attune: the panels of linear.c, multiplied in plain C. The compiler makes vectors of it, once for
 * each instruction set; which one runs is as the bundle says, so that both are of one mind. */
#include "static.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef float vector __attribute__((vector_size(PANEL * sizeof(float)), aligned(4)));

enum { MOST_ROWS = 8 };

/* What becomes of the sums of a row. */
static inline __attribute__((always_inline)) void put(const product *p, int64_t panel, int64_t row, const float *sum) {
    const linear *const l = p->linear;
    const int columns = l->kind == LINEAR_SWIGLU ? PANEL / 2 : PANEL;
    float *const y = p->y + row * l->outputs + panel * columns;
    for (int c = 0; c < columns; c++) {
        if (l->kind == LINEAR_SWIGLU)
            y[c] = sum[c] / (1.0f + expf(-sum[c])) * sum[c + PANEL / 2];
        else
            y[c] = l->kind == LINEAR_ADD ? y[c] + sum[c] : sum[c];
    }
}

/* Some rows by a panel: each sum goes in the order of the inputs. */
static inline __attribute__((always_inline)) void multiply(const product *p, int64_t panel, int64_t first, int count) {
    const linear *const l = p->linear;
    const float *weights = l->packed + (size_t)panel * (size_t)l->inputs * PANEL;
    vector sum[MOST_ROWS];
    for (int r = 0; r < count; r++) memset(&sum[r], 0, sizeof sum[r]);
    for (int k = 0; k < l->inputs; k++, weights += PANEL) {
        vector w;
        memcpy(&w, weights, sizeof w);
        for (int r = 0; r < count; r++) sum[r] += p->x[(first + r) * l->inputs + k] * w;
    }
    for (int r = 0; r < count; r++) {
        float values[PANEL];
        memcpy(values, &sum[r], sizeof values);
        put(p, panel, first + r, values);
    }
}

static inline __attribute__((always_inline)) void panels(const product *p, int64_t begin, int64_t end, int rows) {
    for (int64_t panel = begin; panel < end; panel++) {
        int64_t row = 0;
        for (; row + rows <= p->rows; row += rows) multiply(p, panel, row, rows);
        for (; row < p->rows; row++) multiply(p, panel, row, 1);
    }
}

static void panels_plain(const product *p, int64_t begin, int64_t end) { panels(p, begin, end, 1); }

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static void panels_avx512(const product *p, int64_t begin, int64_t end) {
    panels(p, begin, end, MOST_ROWS);
}

__attribute__((target("avx2,fma"))) static void panels_avx2(const product *p, int64_t begin, int64_t end) {
    panels(p, begin, end, 2);
}
#endif

void product_run(const product *p, const char *target, int64_t begin, int64_t end) {
#if defined(__x86_64__)
    if (!strncmp(target, "avx512", 6)) return panels_avx512(p, begin, end);
    if (!strncmp(target, "avx2", 4)) return panels_avx2(p, begin, end);
#endif
    (void)target;
    panels_plain(p, begin, end);
}

/* ---- As linear.c has them ---- */

attune_operator *linear_operator(attune_context *context) {
    (void)context;
    return NULL;
}

attune_call *linear_begin(linear *l, attune_context *context, attune_operator *op, const float *x, float *y,
                          int64_t rows, int num_threads) {
    (void)context, (void)op, (void)num_threads;
    return product_begin(&(product){l, x, y, rows});
}

void linear_close(linear *l) { free(l->packed); }
