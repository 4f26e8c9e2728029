/* New keys and values written into the caches, before anything is read there: entry b's last keys are the new ones. */
#include "mha/rows.h"

static void append_token(mha_context *c, const mha_entry *e, const ir_expr *kv_head, const ir_expr *token,
                         const ir_expr *key) {
    const ir_expr *source = ir_add(c->b, e->first_q, token);
    const mha_row k_new = {c->k_new, {e->batch, kv_head, source}, NULL};
    const mha_row v_new = {c->v_new, {e->batch, kv_head, source}, NULL};
    const mha_kv_row row = mha_kv_row_at(c, e, kv_head, key);
    const mha_row k = {c->k, {row.index[0], row.index[1], row.index[2]}, NULL};
    const mha_row v = {c->v, {row.index[0], row.index[1], row.index[2]}, NULL};
    if (c->p->rotary_dim)
        mha_rotate_row(c, e->number, mha_token_position(c, e, token, key), &k_new, &k);
    else
        mha_copy_row(c, &k_new, &k, 0, c->p->head_dim);
    if (!c->p->v_in_k) mha_copy_row(c, &v_new, &v, 0, c->p->head_dim_v);
}

/* The clamp and what is assumed follow from the runtime's checks: entries have at least as many keys as are new. */
const ir_expr *mha_new_key(const mha_context *c, const mha_entry *e, const ir_expr *token, const ir_expr *count) {
    ir_builder *b = c->b;
    const ir_expr *key = ir_add(b, ir_sub(b, e->seq_kv, count), token);
    key = ir_let(b, "key", ir_min(b, ir_sub(b, e->seq_kv, mha_i(c, 1)), key));
    ir_assume(b, ir_apply(b, IR_GE, key, mha_i(c, 0), NULL));
    return key;
}

void mha_append(mha_context *c) {
    ir_builder *b = c->b;
    const ir_expr *most = c->params.size[c->p->is_ragged ? MHA_SEQ_Q : MHA_SEQ_NEW];
    ir_phase_begin(b);
    const ir_expr *number = ir_parallel(b, "entry", c->params.size[MHA_BATCH]);
    const ir_expr *kv_head = ir_parallel(b, "kv_head", c->params.size[MHA_KV_HEADS]);
    const ir_expr *task = ir_parallel(b, "task", mha_row_tasks(c, most));
    const mha_entry e = mha_entry_open(c, number);
    const ir_expr *count = c->p->is_ragged ? e.seq_q : most;
    const ir_expr *token = mha_rows_begin(c, "token", task, count);
    append_token(c, &e, kv_head, token, mha_new_key(c, &e, token, count));
    ir_for_end(b);
    ir_phase_end(b);
}
