/* New keys and values written into the caches, before anything is read there: entry b's last keys are the new ones. */
#include "mha/rows.h"

static void append_token(mha_context *c, const mha_entry *e, const ir_expr *kv_head, const ir_expr *token,
                         const ir_expr *key) {
    const ir_buffer *const *tensor = c->params.tensor;
    const ir_expr *const source[3] = {e->batch, kv_head, ir_add(c->b, e->first_q, token)};
    const mha_kv_row row = mha_kv_row_at(c, e, kv_head, key);
    if (c->p->rotary_dim) {
        const ir_expr *position = mha_token_position(c, e, token, key);
        mha_rotate_row(c, e->number, position, tensor[MHA_K_NEW], source, tensor[MHA_K], row.index);
    } else {
        mha_copy_row(c, tensor[MHA_K_NEW], source, tensor[MHA_K], row.index, 0, c->p->head_dim);
    }
    if (!c->p->v_in_k) mha_copy_row(c, tensor[MHA_V_NEW], source, tensor[MHA_V], row.index, 0, c->p->head_dim_v);
}

void mha_append(mha_context *c) {
    ir_builder *b = c->b;
    const ir_expr *most = c->params.size[c->p->is_ragged ? MHA_SEQ_Q : MHA_SEQ_NEW];
    ir_phase_begin(b);
    const ir_expr *number = ir_parallel(b, "entry", c->params.size[MHA_BATCH]);
    const ir_expr *kv_head = ir_parallel(b, "kv_head", c->params.size[MHA_KV_HEADS]);
    const ir_expr *task = ir_parallel(b, "task", mha_row_tasks(c, most));
    const mha_entry e = mha_entry_open(c, number);
    /* The clamp and what is assumed follow from the runtime's checks: entries have at least as many keys as are new. */
    const ir_expr *count = c->p->is_ragged ? e.seq_q : most;
    const ir_expr *token = mha_rows_begin(c, "token", task, count);
    const ir_expr *key = ir_add(b, ir_sub(b, e.seq_kv, count), token);
    key = ir_let(b, "key", ir_min(b, ir_sub(b, e.seq_kv, mha_i(c, 1)), key));
    ir_assume(b, ir_apply(b, IR_GE, key, mha_i(c, 0), NULL));
    append_token(c, &e, kv_head, token, key);
    ir_for_end(b);
    ir_phase_end(b);
}
