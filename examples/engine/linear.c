/* y = x W^T as an operator of attune: loop IR for the sizes at hand, compiled once and cached on disk.
 *
 * Weights lie in panels of 32 columns, [panel][input][column]: a task multiplies all rows by one panel, and reads it
 * from front to back. Each element is one sum in the order of the inputs, so that a row's bits depend neither on the
 * other rows of a batch nor on the threads. */
#include "engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[NUM_LINEAR_KINDS] = {"store", "add", "swiglu"};

typedef struct tile {
    linear_kind kind;
    int inputs, outputs, rows, vectors, lanes;
} tile;

/* What becomes of the sums of row `r`. */
static void print_result(attune_ir_writer *w, const tile *t) {
    const int half = t->vectors / 2, n = t->lanes;
    attune_ir_print(w, "for r.2 in 0..%d unroll {\nlet row = min(block * %d + r.2, m - 1)\n", t->rows, t->rows);
    if (t->kind == LINEAR_SWIGLU) {
        attune_ir_print(w, "for v.2 in 0..%d unroll {\nlet gate = sum[r.2, v.2]\n", half);
        attune_ir_print(w, "let away = splat.x%d(1.0) + exp2(gate * splat.x%d(-1.4426950408889634))\n", n, n);
        attune_ir_print(w, "y[row, panel * %d + v.2 * %d]:x%d = gate / away * sum[r.2, v.2 + %d]\n} } }\n", PANEL / 2,
                        n, n, half);
        return;
    }
    attune_ir_print(w, "for v.2 in 0..%d unroll {\nlet to = panel * %d + v.2 * %d\n", t->vectors, PANEL, n);
    if (t->kind == LINEAR_ADD) /* rows beyond the last are the last one again, which must be added once */
        attune_ir_print(w, "if block * %d + r.2 < m { y[row, to]:x%d = y[row, to]:x%d + sum[r.2, v.2] }\n} } }\n",
                        t->rows, n, n);
    else
        attune_ir_print(w, "y[row, to]:x%d = sum[r.2, v.2]\n} } }\n", n);
}

static void print_kernel(attune_ir_writer *w, const tile *t, bool has_fma) {
    const int panels = t->outputs * (t->kind == LINEAR_SWIGLU ? 2 : 1) / PANEL, n = t->lanes;
    attune_ir_print(w, "kernel @linear (m: idx, x: f32[m, %d] in, w: f32[%d, %d, %d] in, y: f32[m, %d] %s) {\n",
                    t->inputs, panels, t->inputs, PANEL, t->outputs, t->kind == LINEAR_ADD ? "inout" : "out");
    attune_ir_print(w, "assume 0 < m\nparallel for panel in 0..%d {\nfor block in 0..(m + %d) / %d {\n", panels,
                    t->rows - 1, t->rows);
    attune_ir_print(w, "alloc sum: f32x%d[%d, %d] reg\n", n, t->rows, t->vectors);
    attune_ir_print(w, "for r in 0..%d unroll { for v in 0..%d unroll { sum[r, v] = splat.x%d(0.0) } }\n", t->rows,
                    t->vectors, n);
    attune_ir_print(w, "for k in 0..%d {\nfor v.1 in 0..%d unroll {\nlet weight = w[panel, k, v.1 * %d]:x%d\n",
                    t->inputs, t->vectors, n, n);
    attune_ir_print(w, "for r.1 in 0..%d unroll {\nlet left = splat.x%d(x[min(block * %d + r.1, m - 1), k])\n", t->rows,
                    n, t->rows);
    attune_ir_print(w, has_fma ? "sum[r.1, v.1] = fma(left, weight, sum[r.1, v.1])\n} } }\n"
                               : "sum[r.1, v.1] = left * weight + sum[r.1, v.1]\n} } }\n");
    print_result(w, t);
    attune_ir_print(w, "} }\n");
}

static int build(void *user, const attune_build_request *request, attune_ir_writer *w) {
    (void)user;
    char kind[16];
    tile t = {.kind = NUM_LINEAR_KINDS};
    if (sscanf(request->problem, "%15[a-z],inputs=%d,outputs=%d,rows=%d", kind, &t.inputs, &t.outputs, &t.rows) != 4) {
        attune_ir_print(w, "a problem is such as add,inputs=64,outputs=32,rows=4");
        return 1;
    }
    for (int i = 0; i < NUM_LINEAR_KINDS; i++)
        if (strcmp(kind, kind_names[i]) == 0) t.kind = (linear_kind)i;
    t.lanes = request->vector_bytes / (int)sizeof(float);
    if (t.lanes > PANEL / 2) t.lanes = PANEL / 2;
    t.vectors = PANEL / t.lanes;
    while (t.rows > 1 && t.rows * t.vectors > 16) t.rows--; /* what registers hold */
    print_kernel(w, &t, request->has_fma);
    return 0;
}

attune_operator *linear_operator(attune_context *context) {
    attune_operator_options options = ATTUNE_OPERATOR_OPTIONS_INIT;
    attune_operator *op = NULL;
    options.name = "attune_example_engine_linear";
    options.version = 1;
    options.build = build;
    check(attune_operator_add(context, &options, &op));
    return op;
}

void linear_open(linear *l, linear_kind kind, int inputs, int outputs, const float *weights, const float *up) {
    const int parts = kind == LINEAR_SWIGLU ? 2 : 1, columns = PANEL / parts, panels = outputs / columns;
    *l = (linear){.kind = kind, .inputs = inputs, .outputs = outputs};
    if (outputs % columns) die("%d outputs: only multiples of %d are packed", outputs, columns);
    float *to = l->packed = allocate((size_t)panels * (size_t)inputs * PANEL * sizeof *to);
    for (int panel = 0; panel < panels; panel++)
        for (int k = 0; k < inputs; k++)
            for (int c = 0; c < PANEL; c++) {
                const float *from = c < columns ? weights : up;
                *to++ = from[(size_t)(panel * columns + c % columns) * (size_t)inputs + (size_t)k];
            }
}

attune_call *linear_begin(linear *l, attune_context *context, attune_operator *op, const float *x, float *y,
                          int64_t rows, int num_threads) {
    const int tile_rows = rows < 8 ? (int)rows : 8;
    attune_kernel **const kernel = &l->kernels[tile_rows];
    if (!*kernel) {
        char problem[80];
        snprintf(problem, sizeof problem, "%s,inputs=%d,outputs=%d,rows=%d", kind_names[l->kind], l->inputs, l->outputs,
                 tile_rows);
        check(attune_operator_compile(op, problem, NULL, kernel));
    }
    attune_call *call = NULL;
    void *const buffers[] = {(void *)x, l->packed, y};
    check(attune_ir_call_begin(context, *kernel, buffers, &rows, (uint32_t)num_threads, &call));
    return call;
}

void linear_close(linear *l) {
    for (int i = 0; i <= 8; i++) attune_kernel_release(l->kernels[i]);
    free(l->packed);
}
