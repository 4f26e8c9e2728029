/* One sequence of the batch: how long it is, at which positions its queries stand, and where its keys lie. */
#ifndef ATTUNE_ATTEND_SHARED_SEQUENCE_H
#define ATTUNE_ATTEND_SHARED_SEQUENCE_H

#include "nest/cached.h"
#include "nest/panel_rows.h"

typedef struct mha_sequence {
    const ir_expr *number;             /* of the sequence: indexes masks and tables */
    const ir_expr *batch, *kv_batch;   /* first index of q, out, lse / of unpaged k, v: the number, or 0 if ragged */
    const ir_expr *first_q, *first_kv; /* token of its query 0, of its key 0; 0 unless ragged */
    const ir_expr *seq_q, *seq_kv;     /* its queries, its keys that count; constants where static */
    const ir_expr *base;               /* position of its query 0; NULL unless c->has_position */
    bool positions_are_keys;           /* sights end at the position (mha_positions_are_keys); set by the strategy */
} mha_sequence;

/* Reads the tables, within the bounds that the runtime has checked. Inside a task. */
mha_sequence mha_sequence_open(const mha_context *c, const ir_expr *number);

/* The first three indices of key j in k and v; the column follows. 0 <= j < seq_kv, and the prover must find that.
 * Paged: reads the block table. */
typedef struct mha_kv_row {
    const ir_expr *index[3];
    const ir_expr *linear[3]; /* the same in c->k where c->k_is_linear */
} mha_kv_row;
mha_kv_row mha_kv_row_at(const mha_context *c, const mha_sequence *e, const ir_expr *kv_head, const ir_expr *j);

/* In which of the sequence's pages key j lies. */
const ir_expr *mha_page_of(const mha_context *c, const ir_expr *j);

/* Those of the indices that apply to this buffer, and the row of the buffer that they lead to. */
static inline const ir_expr *const *mha_kv_index(const mha_context *c, const ir_buffer *k_or_v, const mha_kv_row *row) {
    return c->k_is_linear && k_or_v == c->k ? row->linear : row->index;
}
/* Room for tokens of a page or a sequence. */
const ir_expr *mha_kv_tokens(const mha_context *c, const ir_buffer *k_or_v);
mha_row mha_kv_row_of(const mha_context *c, const ir_buffer *k_or_v, const mha_kv_row *row);

/* Accesses of `lanes` columns from `column` on. */
const ir_access *mha_kv_access(const mha_context *c, const ir_buffer *k_or_v, const mha_kv_row *row,
                               const ir_expr *column, int lanes);

/* The same of one, for prefetching: keys and their columns visit all of the memory. */
const ir_access *mha_kv_line(const mha_context *c, const ir_buffer *k_or_v, const mha_kv_row *row,
                             const ir_expr *column);

/* Those as numbers, whatever the buffer holds. */
const ir_expr *mha_load_kv(const mha_context *c, const ir_buffer *k_or_v, const mha_kv_row *row, const ir_expr *column,
                           int lanes);

/* ---- Quantised caches ---- */

/* Scales of heads and of tokens; other ones mha_load_kv knows. A quantised value x of the key at `row` stands for x *
 * scale; the scale is a scalar of c->elem. mha_score multiplies the product of q and quantised K by the scale of K. A
 * probability is multiplied by the scale of V first, and then by V's quantised values. `reproducible` promises that
 * order. NULL: there is none. A hidden key's scale may be NaN or infinite. */
const ir_expr *mha_k_scale(const mha_context *c, const mha_kv_row *row);
const ir_expr *mha_v_scale(const mha_context *c, const mha_kv_row *row);
/* Its place: id is MHA_K_SCALE or MHA_V_SCALE. */
const ir_access *mha_scale_access(const mha_context *c, mha_tensor_id id, const mha_kv_row *row);
/* Those of `lanes` tokens that lie side by side, where tokens have scales. */
const ir_expr *mha_scales_of_keys(const mha_context *c, mha_tensor_id id, const mha_kv_row *first, int lanes);

/* ---- Positions ---- */

/* Position of a sequence's token: position_ids, or `otherwise`. */
const ir_expr *mha_token_position(const mha_context *c, const mha_sequence *e, const ir_expr *token,
                                  const ir_expr *otherwise);

/* ---- Keys along the lanes ---- */

/* Columns `column` + i of K, i < width, with the keys at rows[c->lanes] along the lanes. width: mha_quarter(c->lanes),
 * or 1. */
void mha_transposed_keys(const mha_context *c, const mha_kv_row *rows, const ir_expr *column, int width,
                         const ir_expr **columns);

#endif
