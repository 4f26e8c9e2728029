/* Products: kernels of one phase each, for every target and many schedules, as machine code where this CPU runs it and
 * by the interpreter, which checks all accesses: to the bits of a plain loop in the order that gemm.h states. */
#include "nest/gemm.h"
#include "nest/pairs.h"

#include "ir/interp.h"
#include "ir/passes.h"
#include "layer/packed_weights.h"
#include "schedule/variant.h"
#include "support/ir/jit_run.h"
#include "support/ir/random_ir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Types of the factors: the arithmetic's element, or B in pairs of bf16, or both factors of bf16. */
typedef enum factors { PLAIN, RIGHT_IS_PAIRED, BOTH_ARE_NARROW } factors;

/* C = bias + A B: a[outer, rows, depth], b as pack.h lays it out, o[outer, rows, groups * columns]. */
typedef struct product {
    ir_elem elem; /* of the arithmetic and of o */
    factors factors;
    int64_t outer, rows, depth, groups, columns;
    bool rows_at_run_time;
    /* the schedule */
    int32_t lanes, tile_rows, vectors, block, pass;
} product;

typedef struct operands {
    const ir_buffer *a, *b, *o;
} operands;

static random_ir random_source;

static int below(int n) { return random_ir_below(&random_source, n); }
static double random_number(void) { return (double)(random_ir_bits(&random_source) >> 40) / 8388608.0 - 1.0; }

/* ---- The kernel ---- */

static bool is_paired(const product *p) { return p->factors != PLAIN; }
static ir_elem left_elem(const product *p) { return p->factors == BOTH_ARE_NARROW ? IR_BF16 : p->elem; }
static ir_elem right_elem(const product *p) { return is_paired(p) ? IR_BF16 : p->elem; }
static bool by_pairs(const product *p, const at_target *target) {
    return p->factors == BOTH_ARE_NARROW && p->elem == IR_F32 && target->flags & AT_TARGET_BF16_DOT;
}

/* As gemm.h says. */
static bool by_tiles(const product *p, const at_target *target) {
    return by_pairs(p, target) && target->flags & AT_TARGET_TILES && p->lanes == 16 &&
           (!p->pass || p->pass >= p->depth) && mha_gemm_tiles(p->tile_rows, p->vectors, p->depth);
}

static void load_row(mha_context *c, const mha_gemm *g, const ir_expr *row, const mha_row *target) {
    ir_builder *b = c->b;
    const operands *o = g->user;
    const ir_expr *k = ir_for_begin(b, "k", ir_idx(c->b, 0), ir_idx(c->b, g->depth), 1, false);
    const ir_access *from = ir_at(b, o->a, 1, 3, g->outer[0], row, k), *to = mha_row_access(c, target, k, 1);
    if (target->buffer->type.elem == o->a->type.elem)
        ir_store(b, to, ir_load(b, from));
    else
        mha_store(c, to, mha_load(c, from));
    ir_for_end(b);
}

/* Row `row` of a panel, as a block finds it in the blob of its weights. */
static const ir_expr *packed(mha_context *c, const mha_gemm *g, const ir_expr *row, const ir_expr *column, int lanes) {
    ir_builder *b = c->b;
    const operands *o = g->user;
    const int inputs = (int)g->inputs;
    const ir_expr *panel = ir_times(b, g->column_group, g->group_columns / MHA_PANEL);
    panel = ir_add(b, panel, ir_div(b, column, ir_idx(c->b, MHA_PANEL)));
    row = ir_add(b, ir_mul(b, panel, ir_idx(c->b, (g->depth + inputs - 1) / inputs + 1)), row);
    const ir_expr *at = ir_add(b, ir_mul(b, row, ir_idx(c->b, MHA_PANEL)), ir_mod(b, column, ir_idx(c->b, MHA_PANEL)));
    return ir_load(b, ir_at(b, o->b, lanes * inputs, 1, ir_mul(b, at, ir_idx(c->b, inputs))));
}

static const ir_expr *start(mha_context *c, const mha_gemm *g, const ir_expr *column, int lanes) {
    const ir_expr *row = packed(c, g, ir_idx(c->b, 0), column, lanes);
    return g->inputs == 2 ? mha_half_of_pairs(c, row, 1) : row;
}

static const ir_expr *right(mha_context *c, const mha_gemm *g, const ir_expr *k, const ir_expr *column, int lanes) {
    return packed(c, g, ir_add(c->b, k, ir_idx(c->b, 1)), column, lanes);
}

static mha_token locate(mha_context *c, const mha_gemm *g, const ir_expr *row) {
    (void)c;
    return (mha_token){g->outer[0], row};
}

static const ir_access *left_at(mha_context *c, const mha_gemm *g, const mha_token *t, const ir_expr *k) {
    return ir_at(c->b, ((const operands *)g->user)->a, 1, 3, t->sequence, t->token, k);
}

static const ir_access *result_at(mha_context *c, const mha_gemm *g, const mha_token *t, const ir_expr *column) {
    column = ir_add(c->b, ir_mul(c->b, g->column_group, ir_idx(c->b, g->group_columns)), column);
    return ir_at(c->b, ((const operands *)g->user)->o, 1, 3, t->sequence, t->token, column);
}

static void store_row(mha_context *c, const mha_gemm *g, const ir_expr *row, const mha_row *from) {
    ir_builder *b = c->b;
    const operands *o = g->user;
    const ir_expr *n = ir_for_begin(b, "n", ir_idx(c->b, 0), ir_idx(c->b, g->group_columns), 1, false);
    const ir_expr *column = ir_add(b, ir_mul(b, g->column_group, ir_idx(c->b, g->group_columns)), n);
    ir_store(b, ir_at(b, o->o, 1, 3, g->outer[0], row, column), ir_load(b, mha_row_access(c, from, n, 1)));
    ir_for_end(b);
}

static int64_t panel_rows(const product *p) { return is_paired(p) ? (p->depth + 1) / 2 + 1 : p->depth + 1; }
static int64_t panel_elements(const product *p) {
    return p->groups * p->columns * panel_rows(p) * (is_paired(p) ? 2 : 1);
}

static ir_kernel *build(at_arena *arena, const product *p, const at_target *target, at_error *err) {
    const bool pairs = by_pairs(p, target), tiles = pairs && target->flags & AT_TARGET_TILES;
    const mha_schedule schedule = {.lanes = p->lanes,
                                   .gemm_rows = p->tile_rows,
                                   .gemm_column_vectors = p->vectors,
                                   .gemm_task_rows = p->block,
                                   .gemm_depth = p->pass,
                                   .gemm_by = tiles ? MHA_GEMM_BY_TILES : MHA_GEMM_BY_VECTORS,
                                   .gemm_prefetch = 64,
                                   .gemm_rest = MHA_REST_OWN};
    ir_builder *b = ir_builder_new(arena, "product");
    mha_context c = {.b = b, .s = &schedule, .target = target, .elem = p->elem, .lanes = p->lanes};
    c.has_fma = target->flags & AT_TARGET_FMA;
    c.variant.projects_by_pairs = pairs;
    const ir_expr *rows = ir_param_scalar(b, "rows", IR_IDX);
    ir_kernel_assume(b, ir_apply(b, IR_GE, rows, ir_idx(b, 0), NULL));
    if (!p->rows_at_run_time) rows = ir_idx(b, p->rows);
    const ir_expr *outer = ir_idx(b, p->outer), *size = ir_idx(b, panel_elements(p));
    const ir_expr *const a_dims[] = {outer, rows, ir_idx(b, p->depth)};
    const ir_expr *const o_dims[] = {outer, rows, ir_idx(b, p->groups * p->columns)};
    operands o;
    o.a = ir_param_buffer(b, "a", left_elem(p), 3, a_dims, NULL, IR_IN);
    o.b = ir_param_buffer(b, "b", right_elem(p), 1, &size, NULL, IR_IN);
    o.o = ir_param_buffer(b, "o", p->elem, 3, o_dims, NULL, IR_OUT);
    mha_gemm g = {.name = "a_rows",
                  .num_outer = 1,
                  .outer_names = {"sequence"},
                  .outer_counts = {outer},
                  .rows = rows,
                  .depth = p->depth,
                  .inputs = is_paired(p) ? 2 : 1,
                  .num_groups = p->groups,
                  .group_columns = p->columns,
                  .user = &o,
                  .load_row = load_row,
                  .locate = locate,
                  .left = p->rows % 2 ? left_at : NULL,
                  .start = start,
                  .right = right,
                  .result = p->depth % 2 ? result_at : NULL,
                  .store_row = store_row};
    mha_gemm_phase(&c, &g);
    return ir_builder_finish(b, err);
}

/* ---- The plain loop ---- */

static int64_t bytes_of(ir_elem elem) { return elem == IR_F64 ? 8 : elem == IR_F32 ? 4 : 2; }

static double get(ir_elem elem, const void *data, int64_t at) {
    if (elem == IR_F64) return ((const double *)data)[at];
    if (elem == IR_F32) return (double)((const float *)data)[at];
    const uint32_t bits = (uint32_t)((const uint16_t *)data)[at] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* To bf16 by cutting off. */
static void put(ir_elem elem, void *data, int64_t at, double value) {
    const float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    if (elem == IR_F64)
        ((double *)data)[at] = value;
    else if (elem == IR_F32)
        ((float *)data)[at] = narrow;
    else
        ((uint16_t *)data)[at] = (uint16_t)(bits >> 16);
}

static double madd(const product *p, bool fused, double x, double y, double z) {
    if (p->elem == IR_F64) return fused ? fma(x, y, z) : x * y + z;
    const float xy = (float)x * (float)y;
    return (double)(fused ? fmaf((float)x, (float)y, (float)z) : xy + (float)z);
}

/* Where B[k][column] lies; k = -1: the bias. */
static int64_t place(const product *p, int64_t k, int64_t column) {
    const int64_t panel = column / MHA_PANEL * panel_rows(p), c = column % MHA_PANEL;
    if (!is_paired(p)) return (panel + k + 1) * MHA_PANEL + c;
    return k < 0 ? 2 * (panel * MHA_PANEL + c) + 1 : 2 * ((panel + k / 2 + 1) * MHA_PANEL + c) + k % 2;
}

/* The contribution of 32 columns from `first` on: the even and the odd ones apart. */
static float tile_sum(const product *p, const void *a, const void *b, int64_t row, int64_t column, int64_t first) {
    float part[2] = {0, 0};
    for (int64_t k = first; k < first + 32; k++) {
        const double left = get(IR_BF16, a, row * p->depth + k), right = get(IR_BF16, b, place(p, k, column));
        part[k % 2] = fmaf((float)left, (float)right, part[k % 2]);
    }
    return part[0] + part[1];
}

/* dot2 begins with the second number of each pair; these are far from denormal. */
static void plain(const product *p, const at_target *target, const void *a, const void *b, void *o) {
    const bool fused = target->flags & AT_TARGET_FMA;
    const int64_t turned = by_pairs(p, target);
    const bool tiles = by_tiles(p, target);
    for (int64_t row = 0; row < p->outer * p->rows; row++)
        for (int64_t column = 0; column < p->groups * p->columns; column++) {
            double sum = get(right_elem(p), b, place(p, -1, column));
            for (int64_t k = 0; tiles && k < p->depth; k += 32)
                sum = (double)((float)sum + tile_sum(p, a, b, row, column, k));
            for (int64_t n = 0; !tiles && n < p->depth + p->depth % 2; n++) {
                const int64_t k = n ^ turned;
                if (k >= p->depth) continue;
                const double left = get(left_elem(p), a, row * p->depth + k);
                sum = madd(p, fused, left, get(right_elem(p), b, place(p, k, column)), sum);
            }
            put(p->elem, o, row * p->groups * p->columns + column, sum);
        }
}

/* ---- Running it ---- */

static void *filled(ir_elem elem, int64_t elements) {
    void *data = calloc((size_t)elements + 1, (size_t)bytes_of(elem));
    assert_non_null(data);
    for (int64_t n = 0; n < elements; n++) put(elem, data, n, random_number());
    return data;
}

/* The bias is f32, and the partner of a last row is 0. */
static void *filled_right(const product *p) {
    void *b = filled(right_elem(p), panel_elements(p));
    for (int64_t column = 0; is_paired(p) && column < p->groups * p->columns; column++) {
        put(IR_BF16, b, place(p, -1, column) - 1, 0);
        if (p->depth % 2) put(IR_BF16, b, place(p, p->depth, column), 0);
    }
    return b;
}

static void describe(char text[256], const product *p, const at_target *target, const char *how) {
    static const char *const kinds[] = {"", ", pairs of bf16 on the right", ", bf16"};
    snprintf(
        text, 256,
        "%s, %s, %s%s: %lld x %lld rows%s, depth %lld, %lld x %lld columns; lanes %d, tile %d x %d, block %d, pass %d",
        target->name, how, p->elem == IR_F64 ? "f64" : "f32", kinds[p->factors], (long long)p->outer,
        (long long)p->rows, p->rows_at_run_time ? " at run time" : "", (long long)p->depth, (long long)p->groups,
        (long long)p->columns, p->lanes, p->tile_rows, p->vectors, p->block, p->pass);
}

static void check_product(const product *p, const at_target *target) {
    if (!target_is_tested(target)) return;
    const int64_t outputs = p->outer * p->rows * p->groups * p->columns;
    const size_t bytes = (size_t)(outputs * bytes_of(p->elem));
    void *a = filled(left_elem(p), p->outer * p->rows * p->depth), *b = filled_right(p);
    void *wanted = filled(p->elem, outputs), *got = filled(p->elem, outputs);
    void *const buffers[] = {a, b, got};
    at_error err = {0};
    at_arena arena;
    char what[256];
    plain(p, target, a, b, wanted);
    at_arena_init(&arena, NULL);
    const ir_kernel *kernel = build(&arena, p, target, &err);
    if (kernel) kernel = ir_lower(kernel, target, NULL, NULL, &err);
    describe(what, p, target, "interpreter");
    const ir_interp_options options = {.shuffle_seed = 3};
    if (!kernel || ir_interpret(kernel, buffers, &p->rows, &options, &err)) fail_msg("%s: %s", what, err.message);
    if (memcmp(wanted, got, bytes)) fail_msg("%s: other bits", what);
    if (target_can_run(target)) {
        describe(what, p, target, "machine code");
        memset(got, 0, bytes);
        if (jit_run(kernel, target, buffers, &p->rows, 1, &err)) fail_msg("%s: %s", what, err.message);
        if (memcmp(wanted, got, bytes)) fail_msg("%s: other bits", what);
    }
    at_arena_free(&arena);
    free(a);
    free(b);
    free(wanted);
    free(got);
}

/* ---- Tests ---- */

static product random_product(ir_elem elem, const at_target *target) {
    static const int sizes[] = {1, 2, 3, 5, 8, 17, 33};
    product p = {.elem = elem, .outer = 1 + below(2), .rows = below(30), .depth = sizes[below(7)]};
    p.groups = 1 + below(3);
    p.columns = MHA_PANEL_TILE * (1 + below(2));
    p.rows_at_run_time = below(2);
    const int most = target->vector_bytes / (elem == IR_F64 ? 8 : 4);
    do p.lanes = 1 << below(5);
    while (p.lanes > most);
    do p.vectors = 1 << below(3);
    while (p.lanes * p.vectors > MHA_PANEL_TILE);
    p.tile_rows = 1 + below(9);
    p.block = p.tile_rows * (1 + below(3));
    p.factors = (factors)below(3);
    if (target->flags & AT_TARGET_TILES && below(2)) {
        p.depth = 32 * (1 + below(3));
        p.lanes = 16;
        p.vectors = 1 << below(2);
        p.tile_rows = 16 * (1 + below(2));
        p.block = p.tile_rows * (1 + below(2));
        p.rows = below(80);
    }
    p.pass = below(3) ? 0 : 1 + below((int)p.depth + 2);
    return p;
}

static void test_random_products(void **state) {
    (void)state;
    enum { CASES = 30 };
    for (const at_target *target = at_targets(); target->name; target++)
        for (int n = 0; n < 2 * CASES; n += tests_are_short() ? 3 : 1) {
            random_source.state = (uint64_t)n;
            const product p = random_product(n % 2 ? IR_F64 : IR_F32, target);
            check_product(&p, target);
        }
}

/* The most frequent case in a block. */
static void test_shapes_of_blocks(void **state) {
    (void)state;
    static const product shapes[] = {
        {.outer = 1, .rows = 1, .depth = 40, .groups = 3, .columns = 64, .tile_rows = 1, .block = 1},
        {.outer = 1, .rows = 0, .depth = 4, .groups = 1, .columns = 64, .tile_rows = 4, .block = 8},
        {.outer = 2, .rows = 29, .depth = 3, .groups = 1, .columns = 64, .tile_rows = 8, .block = 16},
        {.outer = 1, .rows = 13, .depth = 21, .groups = 2, .columns = 128, .tile_rows = 6, .block = 6, .pass = 8},
        {.outer = 1, .rows = 19, .depth = 21, .groups = 2, .columns = 64, .tile_rows = 6, .block = 12, .pass = 20},
    };
    for (const at_target *target = at_targets(); target->name; target++)
        for (size_t n = 0; n < sizeof shapes / sizeof *shapes * 4; n += tests_are_short() ? 3 : 1) {
            product p = shapes[n / 4];
            p.elem = IR_F32;
            p.factors = n / 2 % 2 ? BOTH_ARE_NARROW : PLAIN;
            p.lanes = target->vector_bytes / 4;
            p.vectors = MHA_PANEL_TILE / p.lanes < 4 ? MHA_PANEL_TILE / p.lanes : 2;
            p.rows_at_run_time = n % 2;
            random_source.state = n;
            check_product(&p, target);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_products),
        cmocka_unit_test(test_shapes_of_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
