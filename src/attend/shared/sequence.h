/* One sequence of the batch: its lengths, the positions of its queries, and the addresses of its keys. */
#ifndef ATTUNE_ATTEND_SHARED_SEQUENCE_H
#define ATTUNE_ATTEND_SHARED_SEQUENCE_H

#include "nest/cached.h"
#include "nest/panel_rows.h"

typedef struct mha_sequence {
    const ir_expr *number;             /* of the sequence in the batch: indexes masks and tables */
    const ir_expr *batch, *kv_batch;   /* first index of q, out, lse / of unpaged k, v: the number, or 0 if ragged */
    const ir_expr *first_q, *first_kv; /* token of its query 0, of its key 0; 0 unless ragged */
    const ir_expr *seq_q, *seq_kv;     /* its queries, and its keys up to kv_len; constants if static */
    const ir_expr *base;               /* position of its query 0; NULL unless c->has_position */
    bool positions_are_keys; /* visible ranges end at the position (mha_positions_are_keys); set by the strategy */
} mha_sequence;

/* Reads the tables, within the bounds that the runtime has checked. Inside a task. */
mha_sequence mha_sequence_open(const mha_context *c, const ir_expr *number);

/* The first three indices of key j in k and v; the column is the fourth. 0 <= j < seq_kv, and the prover must be able
 * to prove it. With pages, this reads the block table. */
typedef struct mha_kv_row {
    const ir_expr *index[3];
    const ir_expr *linear[3]; /* the indices in c->k if c->k_is_linear */
} mha_kv_row;
mha_kv_row mha_kv_row_at(const mha_context *c, const mha_sequence *e, const ir_expr *kv_head, const ir_expr *j);

/* The page of the sequence that has key j. */
const ir_expr *mha_page_of(const mha_context *c, const ir_expr *j);

/* The indices that apply to this buffer. */
static inline const ir_expr *const *mha_kv_index(const mha_context *c, const ir_buffer *k_or_v, const mha_kv_row *row) {
    return c->k_is_linear && k_or_v == c->k ? row->linear : row->index;
}
/* How many tokens a page, or a sequence's part of the buffer, has memory for. */
const ir_expr *mha_kv_tokens(const mha_context *c, const ir_buffer *k_or_v);
mha_row mha_kv_row_of(const mha_context *c, const ir_buffer *k_or_v, const mha_kv_row *row);

/* Accesses of `lanes` columns from `column` on. */
const ir_access *mha_kv_access(const mha_context *c, const ir_buffer *k_or_v, const mha_kv_row *row,
                               const ir_expr *column, int lanes);

/* An access for prefetching. Over all keys and columns, it visits all of the buffer's lines. */
const ir_access *mha_kv_line(const mha_context *c, const ir_buffer *k_or_v, const mha_kv_row *row,
                             const ir_expr *column);

/* `lanes` columns as c->elem, converted or dequantised from the buffer's type. */
const ir_expr *mha_load_kv(const mha_context *c, const ir_buffer *k_or_v, const mha_kv_row *row, const ir_expr *column,
                           int lanes);

/* ---- Quantised caches ---- */

/* Scales of heads and of tokens, as a scalar of c->elem; NULL: there is none. (mha_load_kv applies all other scales.) A
 * quantised value x of the key at `row` stands for x * scale. mha_score multiplies the dot product of q and quantised K
 * by K's scale. Probabilities are multiplied by V's scale first, and then by quantised V. `reproducible` promises that
 * order. A hidden key's scale may be NaN or infinite. */
const ir_expr *mha_k_scale(const mha_context *c, const mha_kv_row *row);
const ir_expr *mha_v_scale(const mha_context *c, const mha_kv_row *row);
/* The access of a scale; id is MHA_K_SCALE or MHA_V_SCALE. */
const ir_access *mha_scale_access(const mha_context *c, mha_tensor_id id, const mha_kv_row *row);
/* The scales of `lanes` contiguous tokens, if tokens have scales. */
const ir_expr *mha_scales_of_keys(const mha_context *c, mha_tensor_id id, const mha_kv_row *first, int lanes);

/* ---- Positions ---- */

/* Position of a sequence's token: position_ids, or `otherwise`. */
const ir_expr *mha_token_position(const mha_context *c, const mha_sequence *e, const ir_expr *token,
                                  const ir_expr *otherwise);

/* ---- Keys along the lanes ---- */

/* columns[i], i < width: column `column` + i of K, with the keys rows[0] … rows[c->lanes - 1] along the lanes. width is
 * mha_quarter(c->lanes) or 1. */
void mha_transposed_keys(const mha_context *c, const mha_kv_row *rows, const ir_expr *column, int width,
                         const ir_expr **columns);

#endif
