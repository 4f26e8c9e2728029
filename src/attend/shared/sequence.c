/* Sequences of the batch, and the addresses of their keys:
 *
 *     dense     k[b, head, j, :]                      lengths are constants, or kv_lens[b]
 *     ragged    k[0, head, cu_seqlens_kv[b] + j, :]
 *     paged     k[block_table[b, j / page_size], head, j % page_size, :]
 *
 * If the problem is static and dense, everything folds to constants. */
#include "attend/shared/sequence.h"
#include "nest/transpose.h"

/* Element `index` of a table of i32. */
static const ir_expr *table_at(const mha_context *c, mha_tensor_id id, const ir_expr *index) {
    return ir_cast(c->b, IR_IDX, ir_load(c->b, ir_at(c->b, c->params.tensor[id], 1, 1, index)));
}

/* A value that the runtime has checked to be between 0 and a size. The clamp tells the prover both bounds, and costs
 * next to nothing once per task. */
static const ir_expr *within(const mha_context *c, const ir_expr *value, const ir_expr *most) {
    value = ir_max(c->b, ir_idx(c->b, 0), value);
    return most ? ir_min(c->b, most, value) : value;
}

/* A sequence's tokens between two elements of a table of cumulative lengths. */
static void open_ragged(const mha_context *c, const ir_expr *number, mha_tensor_id table, mha_size total,
                        mha_size longest, const char *const names[2], const ir_expr **first, const ir_expr **length) {
    ir_builder *b = c->b;
    const ir_expr *all = c->params.size[total], *most = c->params.size[longest];
    *first = ir_let(b, names[0], within(c, table_at(c, table, number), all));
    const ir_expr *end = table_at(c, table, ir_plus(b, number, 1));
    *length = within(c, ir_sub(b, end, *first), all ? ir_sub(b, all, *first) : NULL);
    if (most) *length = ir_min(b, most, *length);
    *length = ir_let(b, names[1], *length);
}

/* The sequence's index in cu_seqlens_q. General kernels also compute batches that are not ragged. */
static const ir_expr *start_of(const mha_context *c, mha_sequence *e) {
    ir_builder *b = c->b;
    if (!c->p->is_general) return e->number;
    const ir_expr *batches = c->params.size[MHA_Q_BATCH], *starts = c->params.size[MHA_STARTS];
    e->batch = ir_let_index(b, "sequence", batches, ir_min(b, e->number, ir_plus(b, batches, -1)));
    const ir_expr *last = ir_max(b, ir_idx(b, 0), ir_plus(b, starts, -1));
    return ir_let_index(b, "start", ir_plus(b, c->params.size[MHA_Q_ENTRIES], -1), ir_min(b, e->number, last));
}

static void open_queries(const mha_context *c, mha_sequence *e) {
    static const char *const names[2] = {"first_q", "entry_q"};
    e->first_q = ir_idx(c->b, 0);
    e->seq_q = c->params.size[MHA_SEQ_Q];
    if (!c->p->is_ragged) return;
    e->batch = ir_idx(c->b, 0);
    open_ragged(c, start_of(c, e), MHA_CU_SEQLENS_Q, MHA_TOTAL_Q, MHA_SEQ_Q, names, &e->first_q, &e->seq_q);
}

static void open_keys(const mha_context *c, mha_sequence *e) {
    static const char *const names[2] = {"first_kv", "entry_kv"};
    e->first_kv = ir_idx(c->b, 0);
    e->seq_kv = c->params.size[MHA_SEQ_KV];
    if (c->params.tensor[MHA_CU_SEQLENS_KV]) {
        e->kv_batch = ir_idx(c->b, 0);
        open_ragged(c, e->number, MHA_CU_SEQLENS_KV, MHA_TOTAL_KV, MHA_SEQ_KV, names, &e->first_kv, &e->seq_kv);
    }
    if (!c->params.tensor[MHA_KV_LENS]) return;
    e->seq_kv = ir_let(c->b, "kv_len", within(c, table_at(c, MHA_KV_LENS, e->number), e->seq_kv));
}

mha_sequence mha_sequence_open(const mha_context *c, const ir_expr *number) {
    ir_builder *b = c->b;
    mha_sequence e = {.number = number, .batch = number, .kv_batch = number};
    open_queries(c, &e);
    open_keys(c, &e);
    if (!c->has_position) return e;
    e.base = ir_idx(b, c->p->causal_offset);
    if (mha_is_bottom_right(c->p)) e.base = ir_add(b, e.base, ir_sub(b, e.seq_kv, e.seq_q));
    if (c->params.tensor[MHA_CAUSAL_OFFSETS]) e.base = ir_add(b, e.base, table_at(c, MHA_CAUSAL_OFFSETS, number));
    e.base = ir_let(b, "base", e.base);
    return e;
}

/* ---- keys ---- */

const ir_expr *mha_page_of(const mha_context *c, const ir_expr *j) {
    if (c->p->is_general) return ir_apply(c->b, IR_SHR, j, c->params.size[MHA_PAGE_SHIFT], NULL);
    return ir_div(c->b, j, ir_idx(c->b, c->p->page_size));
}

static const ir_expr *slot_of(const mha_context *c, const ir_expr *j) {
    ir_builder *b = c->b;
    const ir_expr *size = c->params.size[MHA_PAGE_SIZE];
    if (c->p->is_general) return ir_let_index(b, "slot", size, ir_apply(b, IR_AND, j, ir_plus(b, size, -1), NULL));
    return ir_let(b, "slot", ir_mod(b, j, size));
}

mha_kv_row mha_kv_row_at(const mha_context *c, const mha_sequence *e, const ir_expr *kv_head, const ir_expr *j) {
    ir_builder *b = c->b;
    if (!c->p->page_size) return (mha_kv_row){.index = {e->kv_batch, kv_head, ir_add(b, e->first_kv, j)}};
    const ir_expr *column = ir_let_index(b, "table_column", c->params.size[MHA_MAX_PAGES], mha_page_of(c, j));
    const ir_access *at = ir_at(b, c->params.tensor[MHA_BLOCK_TABLE], 1, 2, e->number, column);
    const ir_expr *page = ir_let_index(b, "page", c->params.size[MHA_NUM_PAGES], ir_cast(b, IR_IDX, ir_load(b, at)));
    return (mha_kv_row){{page, kv_head, slot_of(c, j)}, {e->number, kv_head, j}};
}

const ir_expr *mha_kv_tokens(const mha_context *c, const ir_buffer *k_or_v) {
    if (!k_or_v) return NULL;
    return mha_is_paneled(c, k_or_v) ? ir_times(c->b, k_or_v->dims[2], ATTUNE_PANEL_TOKENS) : k_or_v->dims[2];
}

mha_row mha_kv_row_of(const mha_context *c, const ir_buffer *k_or_v, const mha_kv_row *row) {
    const ir_expr *const *index = mha_kv_index(c, k_or_v, row);
    if (mha_is_paneled(c, k_or_v)) return mha_panel_row(c, k_or_v, index, index[2]);
    return (mha_row){k_or_v, {index[0], index[1], index[2]}, NULL};
}

const ir_access *mha_kv_access(const mha_context *c, const ir_buffer *k_or_v, const mha_kv_row *row,
                               const ir_expr *column, int lanes) {
    const mha_row of = mha_kv_row_of(c, k_or_v, row);
    return mha_row_access(c, &of, column, lanes);
}

const ir_access *mha_kv_line(const mha_context *c, const ir_buffer *k_or_v, const mha_kv_row *row,
                             const ir_expr *column) {
    if (!mha_is_paneled(c, k_or_v)) return mha_kv_access(c, k_or_v, row, column, 1);
    return mha_panel_line(c, k_or_v, mha_kv_index(c, k_or_v, row), column);
}

const ir_expr *mha_load_kv(const mha_context *c, const ir_buffer *k_or_v, const mha_kv_row *row, const ir_expr *column,
                           int lanes) {
    const mha_row of = mha_kv_row_of(c, k_or_v, row);
    return mha_load_row(c, &of, column, lanes);
}

/* ---- scales ---- */

const ir_access *mha_scale_access(const mha_context *c, mha_tensor_id id, const mha_kv_row *row) {
    const ir_buffer *scales = c->params.tensor[id];
    const ir_expr *const *at = row->index;
    if (!scales) return NULL;
    return scales->num_dims == 1 ? ir_at(c->b, scales, 1, 1, at[1]) : ir_at(c->b, scales, 1, 3, at[0], at[1], at[2]);
}

const ir_expr *mha_scales_of_keys(const mha_context *c, mha_tensor_id id, const mha_kv_row *first, int lanes) {
    const ir_access *at = mha_scale_access(c, id, first);
    if (!at) return NULL;
    return mha_load(c, ir_access_make(c->b, at->buffer, lanes, -1, at->buffer->num_dims, at->indices, NULL));
}

const ir_expr *mha_k_scale(const mha_context *c, const mha_kv_row *row) {
    return mha_load(c, mha_scale_access(c, MHA_K_SCALE, row));
}

const ir_expr *mha_v_scale(const mha_context *c, const mha_kv_row *row) {
    return mha_load(c, mha_scale_access(c, MHA_V_SCALE, row));
}

/* ---- positions ---- */

const ir_expr *mha_token_position(const mha_context *c, const mha_sequence *e, const ir_expr *token,
                                  const ir_expr *otherwise) {
    ir_builder *b = c->b;
    const ir_buffer *ids = c->params.tensor[MHA_POSITION_IDS];
    const ir_expr *position = otherwise;
    if (ids) {
        const ir_expr *at = ir_let_index(b, "id_at", ids->dims[1], ir_add(b, e->first_q, token));
        position = ir_cast(b, IR_IDX, ir_load(b, ir_at(b, ids, 1, 2, e->batch, at)));
    }
    return ir_let_index(b, "position", c->params.size[MHA_ROTARY_POSITIONS], position);
}

/* ---- keys along the lanes ---- */

void mha_transposed_keys(const mha_context *c, const mha_kv_row *rows, const ir_expr *column, int width,
                         const ir_expr **columns) {
    const ir_expr *parts[IR_MAX_LANES];
    for (int i = 0; i < width; i++) {
        for (int part = 0; part < c->lanes / width; part++)
            parts[part] = mha_load_kv(c, c->k, &rows[part * width + i], column, width);
        columns[i] = ir_let(c->b, "k", mha_concat(c->b, parts, c->lanes / width, width));
    }
    if (width > 1) mha_transpose_quarters(c->b, c->lanes, columns);
}
