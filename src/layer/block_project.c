/* The input projections: rows of x times packed weights. The epilogue splits a row of the product into heads, prepares
 * them (norm, rotary embedding), and writes them to where attention reads them:
 *
 *     row of x Wq    [ head 0 | head 1 | … ]     ->     q[batch, head, token, :] */
#include "attend/around/around.h"
#include "layer/block.h"

/* Projections of the same input, which are column groups of one product. */
typedef struct projections {
    const mha_block *block;
    const ir_buffer *x;
    mha_projection first, last;
} projections;

static const mha_packed_section *section_of(const mha_gemm *g, mha_projection which) {
    const projections *p = g->user;
    return &p->block->layout.section[which];
}

/* ---- Factors ---- */

static void load_input(mha_context *c, const mha_gemm *g, const ir_expr *row, const mha_row *to) {
    const projections *p = g->user;
    const mha_token t = mha_token_of(c, p->x, row);
    mha_copy_row(c, &(mha_row){p->x, {t.sequence, t.token}, NULL}, to, 0, g->depth);
}

static mha_token locate_input(mha_context *c, const mha_gemm *g, const ir_expr *row) {
    return mha_token_of(c, ((const projections *)g->user)->x, row);
}

static const ir_access *input_at(mha_context *c, const mha_gemm *g, const mha_token *t, const ir_expr *k) {
    return ir_at(c->b, ((const projections *)g->user)->x, 1, 3, t->sequence, t->token, k);
}

/* ---- A row of the product ---- */

/* The destination of a token's heads, target[…, head, …]. They are prepared with the weights `norm` and `position`, or
 * copied. */
typedef struct heads {
    mha_row target;
    int64_t dim, padding; /* columns of the head, and of the zeros after it */
    const ir_expr *sequence, *position;
    mha_tensor_id norm;
    bool is_prepared;
} heads;

static const ir_expr *num_heads(mha_context *c, const mha_packed_section *s, int64_t dim, const ir_expr *column_group) {
    const int64_t all = s->columns / dim;
    if (all % s->heads == 0) return ir_idx(c->b, s->heads);
    const ir_expr *left = ir_sub(c->b, ir_idx(c->b, all), ir_times(c->b, column_group, s->heads));
    return ir_min(c->b, ir_idx(c->b, s->heads), left);
}

static void store_padding(mha_context *c, const heads *h, const mha_row *target) {
    if (!h->padding) return;
    MHA_COLUMNS(c, d, h->padding, c->lanes) {
        const ir_expr *column = ir_add(c->b, ir_idx(c->b, h->dim), d.at);
        mha_store(c, mha_row_access(c, target, column, d.lanes), mha_number(c, 0, d.lanes));
    }
}

/* The heads of a column group. */
static void store_heads(mha_context *c, const mha_packed_section *s, const ir_expr *column_group, const heads *h,
                        const mha_row *from) {
    ir_builder *b = c->b;
    IR_FOR(b, n, ir_idx(b, 0), num_heads(c, s, h->dim, column_group), 1) {
        const mha_row source = {from->buffer, {from->index[0]}, ir_times(b, n, h->dim)};
        mha_row target = h->target;
        target.index[1] = ir_let(b, "head", ir_add(b, ir_times(b, column_group, s->heads), n));
        if (h->is_prepared)
            mha_prepare_row(c, h->norm, h->sequence, h->position, &source, &target);
        else
            mha_copy_row(c, &source, &target, 0, h->dim);
        store_padding(c, h, &target);
    }
}

static heads query_heads(mha_context *c, const mha_block *block, const mha_token *t) {
    heads h = {
        .target = {block->q, {t->sequence, NULL, t->token}, NULL}, .dim = c->p->head_dim, .sequence = t->sequence};
    h.is_prepared = mha_prepares(c->p) && !c->p->is_ragged;
    h.norm = MHA_Q_NORM;
    if (!c->p->rotary_dim || c->p->is_ragged) return h;
    const mha_sequence e = mha_sequence_open(c, t->sequence);
    h.position = mha_token_position(c, &e, t->token, ir_add(c->b, e.base, t->token));
    return h;
}

/* The destination of K or V of a token; with caches, one of its sequence's last keys. */
static heads key_heads(mha_context *c, const projections *p, mha_projection which, const mha_sequence *e,
                       const mha_token *t) {
    const bool is_k = which == MHA_PROJECT_K;
    const ir_buffer *target = is_k ? p->block->k : p->block->v;
    heads h = {.target = {target, {t->sequence, NULL, t->token}, NULL}, .sequence = t->sequence, .norm = MHA_K_NORM};
    h.dim = is_k ? c->p->head_dim : c->p->head_dim_v;
    if (c->p->low_rank) h.padding = mha_whole_tiles(c, h.dim) - h.dim;
    if (c->p->is_ragged || mha_appends_quantised(c->p)) return h;
    const ir_expr *key = t->token;
    if (c->p->seq_new) {
        key = mha_new_key(c, e, t->token, p->x->dims[1]);
        const mha_kv_row row = mha_kv_row_at(c, e, NULL, key);
        h.target.index[0] = row.index[0];
        h.target.index[2] = row.index[2];
    }
    h.is_prepared = is_k && mha_prepares(c->p);
    if (is_k && c->p->rotary_dim) h.position = mha_token_position(c, e, t->token, key);
    return h;
}

static void store_queries(mha_context *c, const mha_gemm *g, const ir_expr *column_group, const mha_token *t,
                          const mha_row *from) {
    const projections *p = g->user;
    const heads h = query_heads(c, p->block, t);
    store_heads(c, section_of(g, MHA_PROJECT_Q), column_group, &h, from);
}

/* Keys beyond kv_len may have no position. They are not rotated, and never read. */
static void store_keys(mha_context *c, const mha_gemm *g, mha_projection which, const ir_expr *column_group,
                       const mha_token *t, const mha_row *from) {
    const projections *p = g->user;
    const bool skips = which == MHA_PROJECT_K && c->prepares_keys && c->p->has_kv_lens && !c->p->is_ragged;
    const bool moves = !c->p->is_ragged && !mha_appends_quantised(c->p);
    const bool opens = skips || (moves && (c->p->seq_new || c->p->rotary_dim));
    const mha_sequence e = opens ? mha_sequence_open(c, t->sequence) : (mha_sequence){0};
    IR_GUARD(c->b, skips, ir_lt(c->b, t->token, e.seq_kv)) {
        const heads h = key_heads(c, p, which, &e, t);
        store_heads(c, section_of(g, which), column_group, &h, from);
    }
}

/* Emits the epilogues of projection `which` and those after it, whose column groups begin at `column_group`. */
static void store_groups(mha_context *c, const mha_gemm *g, mha_projection which, const ir_expr *column_group,
                         const mha_token *t, const mha_row *from) {
    const projections *p = g->user;
    const ir_expr *count = ir_idx(c->b, section_of(g, which)->num_groups);
    IR_GUARD(c->b, which < p->last, ir_lt(c->b, column_group, count)) {
        if (which == MHA_PROJECT_Q)
            store_queries(c, g, column_group, t, from);
        else
            store_keys(c, g, which, column_group, t, from);
    }
    if (which == p->last) return;
    IR_ELSE(c->b) store_groups(c, g, which + 1, ir_sub(c->b, column_group, count), t, from);
}

static void store_projected(mha_context *c, const mha_gemm *g, const ir_expr *row, const mha_row *from) {
    const projections *p = g->user;
    const mha_token t = mha_token_of(c, p->x, row);
    store_groups(c, g, p->first, g->column_group, &t, from);
}

/* ---- Phases ---- */

static void project(mha_block *block, mha_projection first, mha_projection last) {
    static const char *const names[] = {"x", "x_kv", "x_v"};
    mha_context *c = block->c;
    const mha_packed_section *s = block->layout.section;
    projections p = {block, mha_input_of(c, first), first, last};
    mha_quantised_weights quantised;
    mha_gemm g = {.name = names[first],
                  .rows = mha_tokens_of(c, p.x),
                  .depth = s[first].depth,
                  .inputs = mha_inputs_of_step(&s[first]),
                  .quantised = mha_quantised_weights_of(block, first, &quantised),
                  .group_columns = s[first].panels * MHA_PANEL,
                  .user = &p,
                  .packed = &s[first],
                  .load_row = load_input,
                  .locate = locate_input,
                  .left = input_at,
                  .start = mha_packed_bias,
                  .right = mha_packed_weight,
                  .store_row = store_projected};
    for (mha_projection which = first; which <= last; which++) g.num_groups += s[which].num_groups;
    mha_gemm_phase(c, &g);
}

void mha_block_inputs(mha_block *block) {
    mha_projection first = MHA_PROJECT_Q;
    while (first <= MHA_PROJECT_V) {
        mha_projection last = first;
        while (last < MHA_PROJECT_V && mha_block_continues(block, last, last + 1)) last++;
        if (block->layout.section[first].exists) project(block, first, last);
        first = last + 1;
    }
    if (block->c->p->low_rank) mha_block_low_rank(block);
}
