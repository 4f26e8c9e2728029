/* Writes new keys and values to the caches, in a phase before anything reads them. The new keys are the sequence's last
 * ones:
 *
 *     cache of sequence b    [ old keys … | new 0 | new 1 | … ]        seq_kv includes the new keys
 *
 * append_quantised.c quantises them. */
#include "attend/around/append.h"

/* The columns of a token are not contiguous in a panel, so they are quantised to scratch and then copied. */
static void append_quantised(mha_context *c, const mha_row *source, const mha_row *target, const ir_access *scale,
                             int64_t columns) {
    mha_quantising coding = {source, target, mha_format_of(c, target->buffer), scale};
    if (!mha_is_paneled(c, target->buffer)) {
        mha_append_quantised(c, &coding);
        return;
    }
    const ir_elem elem = (ir_elem)target->buffer->type.elem;
    const int64_t elements = mha_row_elements(c, target->buffer, columns);
    const mha_row quantised = {
        ir_scratch(c->b, "quantised", elem, 2, (int64_t[]){1, elements}), {ir_idx(c->b, 0)}, NULL};
    coding.target = &quantised;
    mha_append_quantised(c, &coding);
    mha_copy_row(c, &quantised, target, 0, elements);
}

static void append_row(mha_context *c, const mha_row *source, const mha_row *target, const ir_access *scale,
                       int64_t columns) {
    if (mha_is_quantised(mha_format_of(c, target->buffer).dtype))
        append_quantised(c, source, target, scale, columns);
    else
        mha_copy_row(c, source, target, 0, columns);
}

/* Prepares the row (norm, rotary embedding, Hadamard) before it is written. If it is then quantised, or goes to a
 * panel, whose columns are not contiguous, it is prepared in scratch. */
static void append_prepared(mha_context *c, const mha_sequence *e, const ir_expr *position, const mha_row *source,
                            const mha_row *target, const ir_access *scale) {
    const int64_t columns = c->p->head_dim;
    const bool is_quantised = mha_is_quantised(c->p->k_dtype);
    if (!is_quantised && !mha_is_paneled(c, target->buffer)) {
        mha_prepare_row(c, MHA_K_NORM, e->number, position, source, target);
        return;
    }
    const ir_elem elem = is_quantised ? c->elem : (ir_elem)target->buffer->type.elem;
    const ir_buffer *prepared = ir_scratch(c->b, "rotated", elem, 2, (int64_t[]){1, columns});
    const mha_row row = {prepared, {ir_idx(c->b, 0)}, NULL};
    mha_prepare_row(c, MHA_K_NORM, e->number, position, source, &row);
    append_row(c, &row, target, scale, columns);
}

static void append_token(mha_context *c, const mha_sequence *e, const ir_expr *kv_head, const ir_expr *token,
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
        append_row(c, &k_new, &k, k_scale, p->head_dim);
    if (p->v_in_k) return;
    append_row(c, &v_new, &v, mha_scale_access(c, MHA_V_SCALE, &row), p->head_dim_v);
}

/* The runtime has checked that a sequence has at least `count` keys. */
const ir_expr *mha_new_key(const mha_context *c, const mha_sequence *e, const ir_expr *token, const ir_expr *count) {
    ir_builder *b = c->b;
    const ir_expr *key = ir_add(b, ir_sub(b, e->seq_kv, count), token);
    return ir_let_index(b, "key", e->seq_kv, key);
}

/* New tokens of a sequence in a general kernel: as many as queries in a ragged batch, else a size of the call. */
static const ir_expr *tokens_of_general(const mha_context *c, const mha_sequence *e) {
    ir_builder *b = c->b;
    const ir_expr *is_ragged = ir_gt(b, c->params.size[MHA_STARTS], ir_idx(b, 0));
    const ir_expr *count = ir_select(b, is_ragged, e->seq_q, c->params.size[MHA_SEQ_NEW]);
    const ir_expr *most = ir_sub(b, c->params.size[MHA_TOTAL_Q], e->first_q);
    return ir_let_in(b, "count", ir_idx(b, 0), ir_plus(b, most, 1), count);
}

void mha_append(mha_context *c) {
    ir_builder *b = c->b;
    /* The call tells a general kernel whether to append. */
    const bool has_number = !c->p->is_ragged || c->params.size[MHA_SEQ_NEW];
    const ir_expr *most = c->params.size[has_number ? MHA_SEQ_NEW : MHA_SEQ_Q];
    IR_PHASE(b) {
        const ir_expr *number = ir_parallel(b, "sequence", c->params.size[MHA_BATCH]);
        const ir_expr *kv_head = ir_parallel(b, "kv_head", c->params.size[MHA_KV_HEADS]);
        const ir_expr *task = ir_parallel(b, "task", mha_row_tasks(c, most));
        const mha_sequence e = mha_sequence_open(c, number);
        const ir_expr *count = c->p->is_ragged ? e.seq_q : most;
        if (c->p->is_ragged && has_number) count = tokens_of_general(c, &e);
        MHA_ROWS(c, token, task, count) append_token(c, &e, kv_head, token, mha_new_key(c, &e, token, count));
    }
}
