/* Products of matrices as tasks, scratch and register tiles.
 *
 * A register tile (gemm_tile.c) is gemm_rows rows of A by gemm_column_vectors vectors of columns of B:
 *
 *                  B   | column group of the task |
 *                      | tile 0 | tile 1 | tile 2 |
 *     A  gemm_rows     [   C    |   C    |   C    ]        rows of A stay in L1, the group of B in L2
 *
 * Register tiles of the same rows follow each other, so that their rows of A stay in the L1 cache while the column
 * group of B is read from L2.
 *
 * With gemm_depth 0 there is one pass over the depth, and scratch has the rows of one register tile at a time. Products
 * so deep that a column group of B does not fit into L2 take several passes: scratch then has all rows of the task, and
 * each gemm_depth rows of B serve all of them before the next rows of B are read.
 *
 * A register tile that is not full repeats the last row, and stores it once. If the number of rows is a constant, the
 * last rows may get a smaller register tile instead. */
#include "nest/gemm.h"
#include "base/integers.h"
#include "nest/gemm_tile.h"

/* Elements from one row of the slab to the next: an odd number of cache lines, so that one column of neighbouring rows,
 * which a register tile reads together, is in different sets of the L1 cache. */
static int64_t slab_row(const mha_gemm_task *c) {
    const int64_t line = 64 / ir_elem_get(c->elem)->bytes;
    return (ceil_div(c->steps * c->inputs, line) | 1) * line;
}

/* Which of the gemm_rows rows of A or C from `first` on are prefetched in column tile n of `tiles`; at most
 * MHA_MAX_NEXT. */
static int64_t find_rows(const mha_gemm_task *c, const ir_expr *first, const ir_expr *n, int64_t tiles,
                         mha_token *found) {
    ir_builder *b = c->b;
    const int64_t count = min_of(MHA_MAX_NEXT, ceil_div(c->rows, tiles));
    for (int64_t i = 0; i < count; i++) {
        const ir_expr *r = ir_plus(b, ir_times(b, n, count), i);
        const ir_expr *row = ir_add(b, first, ir_min(b, ir_idx(b, c->rows - 1), r));
        row = ir_let_index(b, "asked", c->g->rows, ir_min(b, ir_plus(b, c->g->rows, -1), row));
        found[i] = c->g->locate(c->m, c->g, row);
    }
    return count;
}

/* Prefetches the rows of C that this tile will write, as another core probably owns their lines. */
static void prefetch_results(const mha_gemm_task *c, const ir_expr *first, const ir_expr *n, int64_t tiles) {
    ir_builder *b = c->b;
    mha_token found[MHA_MAX_NEXT];
    const int64_t count = find_rows(c, first, n, tiles, found);
    for (int64_t i = 0; i < count; i++) {
        const ir_access *start = c->g->result(c->m, c->g, &found[i], ir_idx(b, 0));
        const int64_t line = start ? 64 / ir_elem_get((ir_elem)start->buffer->type.elem)->bytes : 1;
        IR_LOOP(b, column, ir_for_begin(b, "line", ir_idx(b, 0), ir_idx(b, c->g->group_columns), line, false)) {
            ir_prefetch(b, c->g->result(c->m, c->g, &found[i], column));
        }
    }
}
/* ---- All columns of a group ---- */

/* All columns of the group for `rows` rows from `base` on. `first`: the number of the first row, if rows are
 * prefetched; else NULL. */
static void row_of_tiles(const mha_gemm_task *c, int64_t rows, const ir_expr *base, const ir_expr *from,
                         const ir_expr *to, const ir_expr *first) {
    ir_builder *b = c->b;
    const int64_t columns = c->vectors * c->m->lanes, tiles = c->g->group_columns / columns;
    mha_gemm_tile t = {.base = base, .product = mha_product_of(c->m, c->kind, rows, c->vectors)};
    IR_LOOP(b, n, ir_for_begin(b, "column_tile", ir_idx(b, 0), ir_idx(b, tiles), 1, false)) {
        t.column = ir_times(b, n, columns);
        /* Quantised rows have been copied already. */
        if (first && c->g->left && !c->left.values)
            t.num_next = find_rows(c, ir_plus(b, first, c->rows), n, tiles, t.next);
        if (first && c->g->result) prefetch_results(c, first, n, tiles);
        mha_gemm_build_tile(c, &t, from, to);
    }
}

/* ---- Rows of a task ---- */

/* Pads a row of the slab with zeros to a whole step. */
static void fill_row(const mha_gemm_task *c, const ir_expr *row) {
    ir_builder *b = c->b;
    const int64_t missing = c->steps * c->inputs - c->g->depth;
    if (missing == 1) mha_store(c->m, ir_at(b, c->slab, 1, 2, row, ir_idx(b, c->g->depth)), mha_number(c->m, 0, 1));
    if (missing <= 1) return;
    MHA_COLUMNS(c->m, d, missing, c->m->lanes) {
        const ir_expr *column = ir_plus(b, d.at, c->g->depth);
        mha_store(c->m, ir_at(b, c->slab, d.lanes, 2, row, column), mha_number(c->m, 0, d.lanes));
    }
}

/* Copies `rows` rows of the task from `at` on to the slab from `base` on. */
static void load_rows(const mha_gemm_task *c, const ir_expr *rows, const ir_expr *at, const ir_expr *base) {
    ir_builder *b = c->b;
    IR_LOOP(b, r, ir_for_begin(b, "load", ir_idx(b, 0), rows, 1, false)) {
        const ir_expr *row = ir_add(b, ir_add(b, c->first, at), r);
        row = ir_let_index(b, "row", c->g->rows, ir_min(b, ir_plus(b, c->g->rows, -1), row));
        const ir_expr *slab_at = ir_add(b, base, r);
        if (c->left.values) {
            mha_copy_left(c->m, &c->encoded, row, &c->left, slab_at);
            continue;
        }
        c->g->load_row(c->m, c->g, row, &(mha_row){c->slab, {slab_at}, NULL});
        fill_row(c, slab_at);
    }
}

/* A separate phase, so that A is quantised once and not in each task. */
static void encode_rows(mha_gemm_task *c) {
    ir_builder *b = c->b;
    IR_PHASE(b) {
        const ir_expr *row = ir_parallel(b, "row", c->g->rows);
        c->slab = ir_scratch(b, c->g->name, c->elem, 2, (int64_t[]){1, slab_row(c)});
        c->g->load_row(c->m, c->g, row, &(mha_row){c->slab, {ir_idx(b, 0)}, NULL});
        fill_row(c, ir_idx(b, 0));
        mha_encode_left(c->m, &c->encoded, c->slab, row);
    }
}

static void store_rows(const mha_gemm_task *c, const ir_expr *rows, const ir_expr *at, const ir_expr *base) {
    ir_builder *b = c->b;
    IR_LOOP(b, r, ir_for_begin(b, "store", ir_idx(b, 0), rows, 1, false)) {
        const ir_expr *row = ir_let_index(b, "row", c->g->rows, ir_add(b, ir_add(b, c->first, at), r));
        c->g->store_row(c->m, c->g, row, &(mha_row){c->tile, {ir_add(b, base, r)}, NULL});
    }
}

static void start_rows(const mha_gemm_task *c, const ir_expr *rows) {
    ir_builder *b = c->b;
    const int64_t lanes = c->m->lanes;
    IR_LOOP(b, n, ir_for_begin(b, "column_vector", ir_idx(b, 0), ir_idx(b, c->g->group_columns / lanes), 1, false)) {
        const ir_expr *column = ir_times(b, n, lanes);
        const ir_expr *start = mha_gemm_start(c, column);
        IR_FOR(b, r, ir_idx(b, 0), rows, 1) {
            ir_store(b, mha_gemm_at(c, r, column), start);
        }
    }
}

/* ---- A task ---- */

/* The task's register tiles of gemm_rows rows; the remaining rows are of a smaller tile. */
static const ir_expr *num_tiles(const mha_gemm_task *c) {
    ir_builder *b = c->b;
    const ir_expr *count = c->rest ? c->count : ir_plus(b, c->count, c->rows - 1);
    return ir_let(b, "tiles", ir_min(b, ir_idx(b, c->task_rows / c->rows), ir_div(b, count, ir_idx(b, c->rows))));
}

/* Whether the task has the smaller tile, as it is not full; and the first row of that tile. */
static const ir_expr *has_rest(const mha_gemm_task *c) { return ir_lt(c->b, c->count, ir_idx(c->b, c->task_rows)); }
static const ir_expr *first_of_rest(const mha_gemm_task *c, const ir_expr *tiles) {
    ir_builder *b = c->b;
    return ir_let(b, "at", ir_min(b, ir_idx(b, c->task_rows - c->rows), ir_times(b, tiles, c->rows)));
}

/* Computes `rows` rows of the task from `at` on. Rows beyond the task's last one are not stored. */
static void whole_depth(const mha_gemm_task *c, int64_t rows, const ir_expr *at, const ir_expr *first) {
    load_rows(c, ir_idx(c->b, rows), at, ir_idx(c->b, 0));
    row_of_tiles(c, rows, ir_idx(c->b, 0), ir_idx(c->b, 0), ir_idx(c->b, c->depth), first);
    store_rows(c, ir_min(c->b, ir_idx(c->b, rows), ir_sub(c->b, c->count, at)), at, ir_idx(c->b, 0));
}

/* Whether other rows follow those of a tile: of its task, or of the next task, which the same thread usually runs. */
static bool has_next(const mha_gemm_task *c) { return !ir_is_const(c->g->rows) || c->g->rows->value.i > c->rows; }

static void one_pass(const mha_gemm_task *c, const ir_expr *tiles) {
    ir_builder *b = c->b;
    IR_FOR(b, t, ir_idx(b, 0), tiles, 1) {
        const ir_expr *at = ir_let(b, "at", ir_times(b, t, c->rows));
        whole_depth(c, c->rows, at, has_next(c) ? ir_add(b, c->first, at) : NULL);
    }
    if (!c->rest) return;
    IR_IF(b, has_rest(c)) whole_depth(c, c->rest, first_of_rest(c, tiles), NULL);
}

static void all_tiles(const mha_gemm_task *c, const ir_expr *tiles, const ir_expr *from, const ir_expr *to) {
    ir_builder *b = c->b;
    IR_FOR(b, t, ir_idx(b, 0), tiles, 1) {
        row_of_tiles(c, c->rows, ir_let(b, "at", ir_times(b, t, c->rows)), from, to, NULL);
    }
    if (!c->rest) return;
    IR_IF(b, has_rest(c)) row_of_tiles(c, c->rest, first_of_rest(c, tiles), from, to, NULL);
}

static void several_passes(const mha_gemm_task *c, const ir_expr *tiles) {
    ir_builder *b = c->b;
    const ir_expr *filled = c->count;
    if (!c->rest) filled = ir_times(b, tiles, c->rows);
    filled = ir_let(b, "filled", ir_min(b, ir_idx(b, c->task_rows), filled));
    load_rows(c, filled, ir_idx(b, 0), ir_idx(b, 0));
    start_rows(c, filled);
    IR_LOOP(b, from, ir_for_begin(b, "pass", ir_idx(b, 0), ir_idx(b, c->steps), c->depth, false)) {
        const ir_expr *to = ir_let(b, "end", ir_min(b, ir_idx(b, c->steps), ir_plus(b, from, c->depth)));
        all_tiles(c, tiles, from, to);
    }
    store_rows(c, c->count, ir_idx(b, 0), ir_idx(b, 0));
}

/* A smaller register tile takes compile time, so it must save at least 2 % of the work. */
static int64_t rest_of(const mha_gemm_task *c) {
    if (c->m->s->gemm_rest != MHA_REST_OWN || !ir_is_const(c->g->rows)) return 0;
    const int64_t rows = c->g->rows->value.i, rest = rows % c->rows;
    return (c->rows - rest) * 50 >= rows ? rest : 0;
}

static mha_gemm_task task_of(mha_context *m, mha_gemm *g) {
    const mha_schedule *s = m->s;
    mha_gemm_task c = {.m = m,
                       .b = m->b,
                       .g = g,
                       .rows = s->gemm_rows,
                       .vectors = s->gemm_column_vectors,
                       .task_rows = s->gemm_task_rows};
    c.kind = mha_kind_of(g->inputs == 2 && m->variant.projects_by_pairs);
    c.elem = mha_factor_elem(m, c.kind);
    c.inputs = g->inputs;
    c.steps = ceil_div(g->depth, c.inputs);
    c.one_pass = !s->gemm_depth || s->gemm_depth >= g->depth;
    c.depth = c.one_pass ? c.steps : ceil_div(s->gemm_depth, c.inputs);
    if (g->rows && !mha_gemm_goes_by_tiles(&c, c.rows))
        c.rest = rest_of(&c); /* a smaller register tile does not consist of hardware tiles */
    return c;
}

static void open_task(mha_gemm_task *c, mha_gemm *g) {
    ir_builder *b = c->b;
    for (int n = 0; n < g->num_outer; n++) g->outer[n] = ir_parallel(b, g->outer_names[n], g->outer_counts[n]);
    g->column_group = ir_parallel(b, "column_group", ir_idx(b, g->num_groups));
    const ir_expr *task = ir_parallel(b, "task", ir_ceil_div(b, g->rows, c->task_rows));
    c->first = ir_let(b, "first", ir_times(b, task, c->task_rows));
    c->count = ir_let(b, "count", ir_min(b, ir_idx(b, c->task_rows), ir_sub(b, g->rows, c->first)));
    const int64_t rows = c->one_pass ? c->rows : c->task_rows;
    if (c->encoded.values)
        c->left = mha_left_scratch(c->m, &c->encoded, rows);
    else
        c->slab = ir_scratch(b, g->name, c->elem, 2, (int64_t[]){rows, slab_row(c)});
    c->tile = ir_scratch(b, "product", c->m->elem, 2, (int64_t[]){rows, g->group_columns});
}

void mha_gemm_phase(mha_context *m, mha_gemm *g) {
    mha_gemm_task c = task_of(m, g);
    if (g->quantised && g->quantised->left) {
        c.encoded = *g->quantised->left;
        encode_rows(&c);
    }
    IR_PHASE(c.b) {
        open_task(&c, g);
        const ir_expr *tiles = num_tiles(&c);
        if (c.one_pass)
            one_pass(&c, tiles);
        else
            several_passes(&c, tiles);
    }
}
