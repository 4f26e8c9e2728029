/* New keys and values written into the caches, before anything is read there: entry b's last keys are the new ones.
 *
 * attune.h says how a cache of codes holds a row. All of it is arithmetic of c->elem. The scale of a row is rounded to
 * f32 before the row is divided by it, so that the codes fit the scale that is stored. */
#include "nest/codes.h"
#include "attend/phases.h"

/* ---- codes ---- */

/* A row that becomes codes: `columns` of them. */
typedef struct coding {
    const mha_row *source, *target;
    const ir_access *scale; /* NULL: none */
    attune_scales scales;
    int64_t columns;
    ir_elem elem; /* of a code */
} coding;

static double largest_code(const coding *row) { return row->elem == IR_I8 ? 127 : 448; }

/* The row's scale: max|x| / largest. */
static void measure(const mha_context *c, const coding *row) {
    const ir_expr *range = mha_row_range(c, row->source, row->columns);
    mha_store(c, row->scale, ir_div(c->b, range, mha_number(c, largest_code(row), 1)));
}

/* Constants come first, so that a NaN stays one. */
static const ir_expr *clamp(const mha_context *c, const ir_expr *x, double most) {
    const int lanes = x ? x->type.lanes : 1;
    return ir_min(c->b, mha_number(c, most, lanes), ir_max(c->b, mha_number(c, -most, lanes), x));
}

/* Whole numbers of at most 127; NaN is no code and becomes 0. */
static void store_bytes(const mha_context *c, const ir_access *target, const ir_expr *x) {
    ir_builder *b = c->b;
    const ir_expr *whole = ir_rint(b, ir_select(b, ir_eq(b, x, x), x, mha_number(c, 0, target->lanes)));
    ir_store(b, target, ir_cast(b, IR_I8, ir_cast(b, IR_I32, whole)));
}

static void encode(const mha_context *c, const coding *row) {
    ir_builder *b = c->b;
    const ir_expr *scale = row->scale ? ir_let(b, "scale", mha_load(c, row->scale)) : NULL;
    const ir_expr *usable = scale ? ir_let(b, "usable", mha_is_usable_scale(c, scale)) : NULL;
    MHA_COLUMNS(c, at, row->columns, c->lanes) {
        const ir_expr *x = mha_load(c, mha_row_access(c, row->source, at.at, at.lanes));
        if (scale) x = mha_over_scale(c, x, scale, usable);
        x = ir_let(b, "code", clamp(c, x, largest_code(row)));
        const ir_access *target = mha_row_access(c, row->target, at.at, at.lanes);
        if (row->elem == IR_I8)
            store_bytes(c, target, x);
        else
            mha_store(c, target, x);
    }
}

static void append_codes(const mha_context *c, const coding *row) {
    if (row->scales == ATTUNE_SCALES_TOKEN) measure(c, row);
    encode(c, row);
}

/* ---- rows ---- */

static void append_row(mha_context *c, const mha_row *source, const mha_row *target, const ir_access *scale,
                       attune_scales scales, int64_t columns) {
    const ir_elem elem = target->buffer ? (ir_elem)target->buffer->type.elem : c->elem;
    const coding row = {source, target, scale, scales, columns, elem};
    if (elem == IR_I8 || elem == IR_F8)
        append_codes(c, &row);
    else
        mha_copy_row(c, source, target, 0, columns);
}

/* Codes are made of prepared rows, so the row is prepared in scratch first. */
static void append_prepared(mha_context *c, const mha_entry *e, const ir_expr *position, const mha_row *source,
                            const mha_row *target, const ir_access *scale) {
    const int64_t columns = c->p->head_dim;
    if (!mha_is_quantised(c->p->k_dtype)) {
        mha_prepare_row(c, MHA_K_NORM, e->number, position, source, target);
        return;
    }
    const ir_buffer *prepared = ir_scratch(c->b, "rotated", c->elem, 2, (int64_t[]){1, columns});
    const mha_row row = {prepared, {ir_idx(c->b, 0)}, NULL};
    mha_prepare_row(c, MHA_K_NORM, e->number, position, source, &row);
    append_row(c, &row, target, scale, c->p->k_scales, columns);
}

static void append_token(mha_context *c, const mha_entry *e, const ir_expr *kv_head, const ir_expr *token,
                         const ir_expr *key) {
    const attune_problem *p = c->p;
    const ir_expr *source = ir_add(c->b, e->first_q, token);
    const mha_row k_new = {c->k_new, {e->batch, kv_head, source}, NULL};
    const mha_row v_new = {c->v_new, {e->batch, kv_head, source}, NULL};
    const mha_kv_row row = mha_kv_row_at(c, e, kv_head, key);
    const mha_row k = mha_kv_row_of(c, c->k, &row), v = mha_kv_row_of(c, c->v, &row);
    const ir_access *k_scale = mha_scale_access(c, MHA_K_SCALE, &row);
    const ir_expr *position = p->rotary_dim ? mha_token_position(c, e, token, key) : NULL;
    if (mha_prepares(p))
        append_prepared(c, e, position, &k_new, &k, k_scale);
    else
        append_row(c, &k_new, &k, k_scale, p->k_scales, p->head_dim);
    if (p->v_in_k) return;
    append_row(c, &v_new, &v, mha_scale_access(c, MHA_V_SCALE, &row), p->v_scales, p->head_dim_v);
}

/* The runtime has checked that an entry has at least as many keys as are new. */
const ir_expr *mha_new_key(const mha_context *c, const mha_entry *e, const ir_expr *token, const ir_expr *count) {
    ir_builder *b = c->b;
    const ir_expr *key = ir_add(b, ir_sub(b, e->seq_kv, count), token);
    return ir_let_index(b, "key", e->seq_kv, key);
}

void mha_append(mha_context *c) {
    ir_builder *b = c->b;
    const ir_expr *most = c->params.size[c->p->is_ragged ? MHA_SEQ_Q : MHA_SEQ_NEW];
    IR_PHASE(b) {
        const ir_expr *number = ir_parallel(b, "entry", c->params.size[MHA_BATCH]);
        const ir_expr *kv_head = ir_parallel(b, "kv_head", c->params.size[MHA_KV_HEADS]);
        const ir_expr *task = ir_parallel(b, "task", mha_row_tasks(c, most));
        const mha_entry e = mha_entry_open(c, number);
        const ir_expr *count = c->p->is_ragged ? e.seq_q : most;
        MHA_ROWS(c, token, task, count) append_token(c, &e, kv_head, token, mha_new_key(c, &e, token, count));
    }
}
