#include "mha/q_lanes.h"

#include <math.h>

const ir_expr *ql_madd(const q_lanes *c, const ir_expr *x, const ir_expr *y, const ir_expr *z) {
    return c->has_fma ? ir_fma(c->b, x, y, z) : ir_add(c->b, ir_mul(c->b, x, y), z);
}

const ir_expr *ql_splat(const q_lanes *c, float value) {
    return ir_splat(c->b, ir_float(c->b, IR_F32, (double)value), c->s->lanes);
}

float ql_score_scale(const q_lanes *c) { return c->p->softmax_scale == 0 ? 1.0f : fabsf((float)c->p->softmax_scale); }

const ir_expr *ql_unrolled(const q_lanes *c, const char *name, int64_t count) {
    return ir_for_begin(c->b, name, ql_i(c, 0), ql_i(c, count), 1, true);
}

const ir_buffer *ql_registers(const q_lanes *c, const char *name, int num_dims, const int64_t *dims) {
    return ir_alloc(c->b, name, IR_REG, ir_type_of(IR_F32, c->s->lanes), num_dims, dims);
}

/* ---- the kernel's signature ---- */

static const ir_buffer *tensor(q_lanes *c, const char *name, const char *const stride_names[3],
                               const ir_expr *const dims[4], int64_t inner_stride, int access) {
    const ir_expr *strides[4];
    for (int i = 0; i < 3; i++) strides[i] = ir_param_scalar(c->b, stride_names[i], IR_IDX);
    strides[3] = ql_i(c, inner_stride);
    return ir_param_buffer(c->b, name, IR_F32, 4, dims, strides, access);
}

/* Scalars in the order of mha_scalars. */
static void declare_params(q_lanes *c) {
    static const char *const names[5][3] = {{"q_sb", "q_sh", "q_ss"},
                                            {"k_sb", "k_sh", "k_ss"},
                                            {"v_sb", "v_sh", "v_ss"},
                                            {"o_sb", "o_sh", "o_ss"},
                                            {"lse_sb", "lse_sh", NULL}};
    const attune_problem *p = c->p;
    const ir_expr *batch = c->num_batch = ir_param_scalar(c->b, "batch", IR_IDX);
    const ir_expr *kv_heads = c->num_kv_heads = ir_param_scalar(c->b, "num_kv_heads", IR_IDX);
    const ir_expr *heads = ir_mul(c->b, kv_heads, ql_i(c, c->group));
    const ir_expr *seq_q = ql_i(c, p->seq_q), *seq_kv = ql_i(c, p->seq_kv);
    const ir_expr *dim = ql_i(c, p->head_dim), *dim_v = ql_i(c, p->head_dim_v);
    c->q = tensor(c, "q", names[0], (const ir_expr *[]){batch, heads, seq_q, dim}, p->q_strides[3], IR_IN);
    c->k = tensor(c, "k", names[1], (const ir_expr *[]){batch, kv_heads, seq_kv, dim}, p->k_strides[3], IR_IN);
    c->v = tensor(c, "v", names[2], (const ir_expr *[]){batch, kv_heads, seq_kv, dim_v}, p->v_strides[3], IR_IN);
    c->out = tensor(c, "o", names[3], (const ir_expr *[]){batch, heads, seq_q, dim_v}, p->out_strides[3], IR_OUT);
    const ir_expr *lse_sb = ir_param_scalar(c->b, names[4][0], IR_IDX);
    const ir_expr *lse_sh = ir_param_scalar(c->b, names[4][1], IR_IDX);
    if (p->has_lse)
        c->lse = ir_param_buffer(c->b, "lse", IR_F32, 3, (const ir_expr *[]){batch, heads, seq_q},
                                 (const ir_expr *[]){lse_sb, lse_sh, ql_i(c, p->lse_strides[2])}, IR_OUT);
    ir_kernel_assume(c->b, ir_apply(c->b, IR_GE, batch, ql_i(c, 1), NULL));
    ir_kernel_assume(c->b, ir_apply(c->b, IR_GE, kv_heads, ql_i(c, 1), NULL));
}

static const ir_buffer *scratch(q_lanes *c, const char *name, ir_elem elem, int num, const int64_t *dims) {
    return ir_alloc(c->b, name, IR_SCRATCH, ir_type_of(elem, 1), num, dims);
}

static void alloc_scratch(q_lanes *c) {
    const int64_t blocks = c->max_blocks, width = c->block_rows;
    c->qt = scratch(c, "qt", IR_F32, 3, (int64_t[]){blocks, c->p->head_dim, width});
    c->scores = scratch(c, "scores", IR_F32, 2, (int64_t[]){c->s->kv_tile + c->s->score_rows, width});
    c->ot = scratch(c, "ot", IR_F32, 3, (int64_t[]){blocks, c->p->head_dim_v, width});
    c->row_max = scratch(c, "row_max", IR_F32, 2, (int64_t[]){blocks, width});
    c->row_sum = scratch(c, "row_sum", IR_F32, 2, (int64_t[]){blocks, width});
    c->tile_max = scratch(c, "tile_max", IR_F32, 1, (int64_t[]){width});
    c->factor = scratch(c, "factor", IR_F32, 1, (int64_t[]){width});
    if (c->p->is_causal) c->last_key = scratch(c, "last_key", IR_I32, 2, (int64_t[]){blocks, width});
}

/* ---- rows and keys ---- */

const ir_expr *ql_clamp_row(const q_lanes *c, const ir_expr *row) {
    return c->rows_fill_tasks ? row : ir_min(c->b, row, ql_i(c, c->rows - 1));
}

/* Row number of the first row of the task's block `block`. */
const ir_expr *ql_first_row(const q_lanes *c, const ir_expr *block) {
    return ir_mul(c->b, ir_add(c->b, c->first_block, block), ql_i(c, c->block_rows));
}

/* Keys that the row number `row` sees, counted from key 0; may be negative or beyond seq_kv. */
static const ir_expr *keys_of_row(const q_lanes *c, const ir_expr *row) {
    return ir_add(c->b, ir_div(c->b, ql_clamp_row(c, row), ql_i(c, c->group)), ql_i(c, c->p->causal_offset + 1));
}

static void init_block(q_lanes *c, const ir_expr *block) {
    ir_builder *b = c->b;
    const int lanes = c->s->lanes;
    const ir_expr *row = ir_let(b, "row", ql_first_row(c, block));
    const ir_expr *at = ir_for_begin(b, "at", ql_i(c, 0), ql_i(c, c->block_rows), lanes, false);
    ir_store(b, ir_at(b, c->row_max, lanes, 2, block, at), ql_splat(c, -INFINITY));
    ir_store(b, ir_at(b, c->row_sum, lanes, 2, block, at), ql_splat(c, 0));
    const ir_expr *d = ir_for_begin(b, "d", ql_i(c, 0), ql_i(c, c->p->head_dim_v), 1, false);
    ir_store(b, ir_at(b, c->ot, lanes, 3, block, d, at), ql_splat(c, 0));
    ir_for_end(b);
    ir_for_end(b);
    if (c->last_key) {
        const ir_expr *r = ir_for_begin(b, "r", ql_i(c, 0), ql_i(c, c->block_rows), 1, false);
        const ir_expr *last = ir_sub(b, keys_of_row(c, ir_add(b, row, r)), ql_i(c, 1));
        /* No further than the last key there is: the sum of a query and an offset may not fit 32 bits. */
        const ir_expr *seen = ir_min(b, last, ql_i(c, c->p->seq_kv - 1));
        ir_store(b, ir_at(b, c->last_key, 1, 2, block, r), ir_cast(b, IR_I32, seen));
        ir_for_end(b);
    }
    ql_load_queries(c, block);
}

/* ---- one task ---- */

/* One tile of keys for one block. `keys` is bounded by what K holds (first minimum), by what fits the scores (the
 * select: only the last tile may be longer than kv_tile), and by what the block's last row sees. */
static void tile_for_block(q_lanes *c, const ir_expr *tile_number, const ir_expr *first_key, const ir_expr *block) {
    ir_builder *b = c->b;
    const ir_expr *is_last = ir_apply(b, IR_EQ, tile_number, ql_i(c, c->num_tiles - 1), NULL);
    const ir_expr *room = ir_select(b, is_last, ql_i(c, c->s->kv_tile + c->s->score_rows - 1), ql_i(c, c->s->kv_tile));
    const ir_expr *keys = ir_min(b, ir_sub(b, ql_i(c, c->p->seq_kv), first_key), room);
    q_lanes_tile tile = {.block = block, .first_key = first_key};
    if (!c->p->is_causal) {
        tile.keys = ir_let(b, "keys", keys);
        ql_scores(c, &tile);
        ql_softmax(c, &tile);
        ql_values(c, &tile);
        return;
    }
    const ir_expr *row = ir_let(b, "row", ql_first_row(c, block));
    const ir_expr *last_sees = keys_of_row(c, ir_add(b, row, ql_i(c, c->block_rows - 1)));
    tile.keys = ir_let(b, "keys", ir_min(b, keys, ir_sub(b, last_sees, first_key)));
    ir_if_begin(b, ir_apply(b, IR_GT, tile.keys, ql_i(c, 0), NULL));
    const ir_expr *all_see = ir_sub(b, keys_of_row(c, row), first_key);
    tile.full_keys = ir_let(b, "full_keys", ir_max(b, ql_i(c, 0), ir_min(b, all_see, tile.keys)));
    ql_scores(c, &tile);
    ql_softmax(c, &tile);
    ql_values(c, &tile);
    ir_if_end(b);
}

/* Tiles that the task's last row sees. */
static const ir_expr *tiles_of_task(q_lanes *c) {
    ir_builder *b = c->b;
    if (!c->p->is_causal) return ql_i(c, c->num_tiles);
    const ir_expr *end_row = ql_first_row(c, c->blocks);
    const ir_expr *keys = ir_max(b, ql_i(c, 0), keys_of_row(c, ir_sub(b, end_row, ql_i(c, 1))));
    const ir_expr *tiles = ir_div(b, ir_add(b, keys, ql_i(c, c->s->kv_tile - 1)), ql_i(c, c->s->kv_tile));
    return ir_let(b, "tiles", ir_min(b, tiles, ql_i(c, c->num_tiles)));
}

static void build_task(q_lanes *c, const ir_expr *task) {
    ir_builder *b = c->b;
    /* Under a causal mask later rows see more keys: the long tasks go first, so that threads end together. */
    if (c->p->is_causal) task = ir_let(b, "task", ir_sub(b, ql_i(c, c->num_tasks - 1), task));
    const int64_t base = c->num_blocks / c->num_tasks, extra = c->num_blocks % c->num_tasks;
    c->first_block = ir_mul(b, task, ql_i(c, base));
    c->blocks = ql_i(c, base);
    if (extra) { /* the first tasks take one block more */
        const ir_expr *is_longer = ir_apply(b, IR_LT, task, ql_i(c, extra), NULL);
        c->first_block = ir_add(b, c->first_block, ir_min(b, task, ql_i(c, extra)));
        c->blocks = ir_let(b, "blocks", ir_select(b, is_longer, ql_i(c, base + 1), ql_i(c, base)));
    }
    c->first_block = ir_let(b, "first_block", c->first_block);
    alloc_scratch(c);

    const ir_expr *block = ir_for_begin(b, "block", ql_i(c, 0), c->blocks, 1, false);
    init_block(c, block);
    ir_for_end(b);

    /* Where no row sees any key, no tile: its accesses are out of bounds, and provably never made. */
    if (!c->p->is_causal || c->p->seq_q + c->p->causal_offset > 0) {
        const ir_expr *tile = ir_for_begin(b, "tile", ql_i(c, 0), tiles_of_task(c), 1, false);
        const ir_expr *first_key = ir_let(b, "first_key", ir_mul(b, tile, ql_i(c, c->s->kv_tile)));
        block = ir_for_begin(b, "block", ql_i(c, 0), c->blocks, 1, false);
        tile_for_block(c, tile, first_key, block);
        ir_for_end(b);
        ir_for_end(b);
    }

    block = ir_for_begin(b, "block", ql_i(c, 0), c->blocks, 1, false);
    ql_store_rows(c, block);
    ir_for_end(b);
}

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static void derive_sizes(q_lanes *c) {
    const attune_problem *p = c->p;
    const attune_schedule *s = c->s;
    c->group = p->num_heads / p->num_kv_heads;
    c->rows = p->seq_q * c->group;
    c->block_rows = (int64_t)s->score_vectors * s->lanes;
    c->num_blocks = ceil_div(c->rows, c->block_rows);
    c->num_tasks = ceil_div(c->num_blocks, s->q_vectors / s->score_vectors);
    c->rows_fill_tasks = c->rows % c->block_rows == 0 && c->num_blocks % c->num_tasks == 0;
    c->max_blocks = ceil_div(c->num_blocks, c->num_tasks);
    /* The last tile takes what would be shorter than score_rows, so that its score tile can overlap. */
    c->num_tiles = ceil_div(p->seq_kv - s->score_rows + 1, s->kv_tile);
}

ir_kernel *mha_build(at_arena *arena, const attune_problem *canonical, const attune_schedule *schedule,
                     const at_target *target, at_error *err) {
    q_lanes c = {.b = ir_builder_new(arena, "attention"), .p = canonical, .s = schedule};
    if (!c.b) {
        at_fail_memory(err, sizeof(ir_kernel));
        return NULL;
    }
    c.has_fma = target->flags & AT_TARGET_FMA;
    c.has_scalef = target->flags & AT_TARGET_SCALEF;
    derive_sizes(&c);
    declare_params(&c);
    ir_phase_begin(c.b);
    c.batch = ir_parallel(c.b, "b", c.num_batch);
    c.kv_head = ir_parallel(c.b, "h", c.num_kv_heads);
    build_task(&c, ir_parallel(c.b, "t", ql_i(&c, c.num_tasks)));
    ir_phase_end(c.b);
    return ir_builder_finish(c.b, err);
}
