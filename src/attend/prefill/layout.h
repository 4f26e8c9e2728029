/* Prefill: attention with many query rows. Vector lanes run along query rows. So the softmax of a row needs no
 * reduction over lanes. K and V are read in place, one element at a time, which is broadcast to all lanes.
 *
 *     S^T = K Q^T                  a register tile: score_keys by score_row_vectors accumulators
 *
 *               rows 0 … L-1     rows L … 2L-1
 *     key 0   [ a a a a a a a ] [ a a a a a a a ]        a += K[key][d] * Q^T[d][row], for d = 0, 1, …
 *     key 1   [ a a a a a a a ] [ a a a a a a a ]            one number   one vector
 *     key 2   [ a a a a a a a ] [ a a a a a a a ]            in all lanes of rows
 *
 *     P^T = exp(S^T - max)         in place, lane by lane: maximum, sum and factor of a row are lanes as well
 *     O^T = O^T * factor + V^T P^T the same picture with columns of V instead of keys
 *     O   = O^T / sum              transposed at the end
 *
 *   row     one query row of one KV head; a sequence has seq_q * group of them, the heads of a group interleaved (row r
 *           is query r / group of head r % group), so that neighbours attend to nearly
 *           the same keys
 *   stripe  score_row_vectors * lanes rows: what a register tile spans
 *   task    up to task_row_vectors / score_row_vectors stripes of one KV head of one sequence; spread evenly where
 *           their number is known when compiling. Otherwise there are tasks for the longest sequence, and a task
 *           without a stripe does nothing
 *   tile    the keys from t * kv_tile on, kv_tile of them or as many as there are
 *
 * Each step has a few loop nests. task.c picks one of them (ql_steps):
 *
 *   scores   score.c              as above
 *            score_columns.c      lanes run along the columns of Q and K, and Q is not transposed: for the rows after
 *                                 the last whole vector, or for all rows (mha_variant.rest_rows, .scores_by_columns)
 *            score_quantised.c    in integers (integer=scores)
 *   softmax  softmax.c, softmax_pairs.c
 *   values   value.c              as above
 *            value_rows.c         O = P V, lanes along the columns of V: the same order of arithmetic, the same bits
 *
 * Row numbers beyond the last row are clamped to it: such a lane computes and writes the last row's bits again. The
 * last register tile of scores begins some keys earlier if it can then end at the last key
 * (mha_variant.score_tiles_overlap). Otherwise its keys beyond the last one are clamped, and the steps after the scores
 * skip them. mask.c has the hidden keys.
 *
 * The order of all arithmetic, for tiles t = 0, 1, …, keys j of a tile and columns d. `reproducible` promises this
 * order, so that all kernels give the same bits for a row:
 *
 * - score: acc = 0; acc = madd(k[j][d], q[d], acc) for d = 0, 1, …, with q times mha_query_sign and madd as in
 *   mha_madd. s[j] = mha_score of acc; -inf where hidden.
 * - maximum: max = max(max, the tile's maximum), beginning with -inf, or the sink.
 * - exponentials: base = max, or 0 while max is -inf; factor = mha_exp(old max, base); p[j] = mha_exp(s[j], base).
 * - sum: in chunks of 16 keys, counted from the tile's first one: part = 0; part = part + p[j]. Tile sum = 0; tile
 *   sum = tile sum + part. The sum begins with 0, or mha_first_sum.
 * - output: tile o[d] = 0; tile o[d] = madd(v[j][d], w, tile o[d]) for each j in order, w being p[j], times mha_v_scale
 *   if there is one. o[d] begins with 0.
 * - from tile to tile, for the sum and for o[d] alike: mha_sum_add(sum, factor, tile sum), and mha_sum_total at the
 *   end. Tiles have a fixed length, so these are partial sums of a fixed length, counted from the sequence's first key.
 * - with prob_mod, base and sum are those of all keys, and w is prob_mod of p[j] * inverse, 0 where hidden, times
 *   mha_v_scale; at the end 1 takes the place of inverse (prob_mod.c).
 * - end: inverse = 1 / sum, or 0 if sum is 0; out[d] = madd(o[d], inverse, 0); lse = mha_log_sum(max, sum).
 *
 * A hidden key, or a tile of hidden keys, may be skipped, as its p is 0. Adding 0 changes only the sign of an o[d] that
 * is 0, and the final addition of 0 makes that sign the same again.
 *
 * With pairs of bf16 (mha_variant.by_pairs) each product is a dot2: of columns 2d and 2d + 1 in the scores, of keys 2i
 * and 2i + 1 of the tile in the values. A key beyond the last one counts as 0. Q^T, P^T and V are stored interleaved in
 * pairs for it. */
#ifndef ATTUNE_ATTEND_PREFILL_LAYOUT_H
#define ATTUNE_ATTEND_PREFILL_LAYOUT_H

#include "attend/shared/functions.h"
#include "attend/shared/score.h"
#include "attend/shared/sight.h"
#include "attend/shared/softmax.h"
#include "nest/product.h"
#include "nest/transpose.h"

typedef struct q_lanes q_lanes;
typedef struct q_lanes_tile q_lanes_tile;

/* The three steps of a tile and stripe: S^T = K Q^T, P = exp(S - max), O = O * factor + P V. */
typedef void ql_step(q_lanes *c, const q_lanes_tile *tile);
typedef struct ql_steps {
    ql_step *scores, *softmax, *values;
} ql_steps;

struct q_lanes {
    const mha_context *m;
    const mha_variant *v; /* of m */
    ir_builder *b;
    ql_steps steps;
    int64_t stripe_rows, max_stripes; /* rows of a stripe, stripes of a task at most */
    int64_t num_stripes, num_tasks;   /* of a KV head; 0: known at run time only */
    bool rows_fill_tasks;             /* no row number exceeds the last row's */
    bool keys_fill_tiles;             /* no register tile of scores extends beyond the last key */
    /* Scratch of a task. elem is the type of the arithmetic. A lane of a product's operands holds one elem (width 1) or
     * a pair of bf16 (width 2). */
    const ir_buffer *qt; /* operand [stripe, head_dim / width, stripe_rows * width]: Q^T times mha_query_sign */
    /* elem [score_row_vectors, kv_tile, lanes]: S^T; with pairs it has one key more. Each vector of rows is contiguous:
     * the softmax reads it key by key, and with a larger stride its accesses would compete for the same sets of the
     * cache. With MHA_VALUES_WHOLE: elem [kv_tile, stripe_rows], and so are the probabilities. */
    const ir_buffer *scores;
    /* operand [score_row_vectors, kv_tile / width, lanes * width]: P^T; width 1: the scores */
    const ir_buffer *probabilities;
    const ir_buffer *row_scale, *row_mean;        /* integer=scores: elem [stripe, stripe_rows]: scale, q · mean key */
    const ir_buffer *row_quantised, *row_numbers; /* integer=scores: i8 and elem [padded columns], of the current row */
    const ir_buffer *keys;                        /* elem [kv_tile, head_dim]: K of the tile; NULL: read in place */
    const ir_buffer *values;  /* operand [kv_tile / width, head_dim_v * width]: V of the tile; NULL: read in place, or
                                 from the context's v_pairs */
    const ir_buffer *ot;      /* elem [stripe, head_dim_v, stripe_rows]: O^T, before the division */
    const ir_buffer *o;       /* elem [stripe, stripe_rows, head_dim_v]: O, if MHA_VALUES_KEPT */
    const ir_buffer *row_max; /* elem [stripe, stripe_rows]: running maximum of the scores; at the end the LSE */
    const ir_buffer *row_sum; /* elem [stripe, stripe_rows]: sum of the exponentials that multiply V */
    const ir_buffer *lse_sum; /* the same before rounding, for the LSE; row_sum if nothing is rounded, or no LSE */
    /* Lost parts of the sums in ot, o and row_sum (shared/softmax.h). NULL unless the problem is reproducible. */
    const ir_buffer *ot_lost, *o_lost, *row_sum_lost;
    const ir_buffer *row_base;    /* elem [stripe, stripe_rows]: base of the exponentials of all keys; prob_mod, not
                                     mha_values_at_once */
    const ir_buffer *tile_max;    /* elem [stripe_rows]: maximum over the tile, for the current stripe */
    const ir_buffer *factor;      /* elem [stripe_rows]: by which O is rescaled, for the current stripe */
    const ir_buffer *first_key;   /* i32 [stripe, stripe_rows], if the problem needs it: each row's visible range */
    const ir_buffer *last_key;    /* the same */
    const ir_buffer *last_global; /* the same */
    const ir_buffer *position;    /* elem [stripe, stripe_rows], for ALiBi */
    const ir_buffer *slope;       /* the same */
    const ir_buffer *sink;        /* the same, for sinks; else NULL */
    const ir_buffer *corrections; /* i32 [32], where ql_has_pair_exp */
    const ir_buffer *keep;        /* i8 [kv_tile, stripe_rows]: attn_mask of the tile and stripe, if there is no bias */
    const ir_buffer *bias;        /* elem [kv_tile, stripe_rows]: attn_bias, -inf where attn_mask is false */
    /* variables of the task */
    mha_sequence e;     /* ends where a mask with fewer keys does */
    mha_sequence whole; /* the sequence that users' functions are passed */
    const ir_expr *kv_head, *rows, *first_stripe, *stripes;
    const ir_expr *next_head, *next_batch, *next_kv_batch; /* task_prefetch=head; else NULL */
    /* Users' functions: values that all rows share; values of each row, for each node: [stripe, stripe_rows]. */
    mha_values values_of_task;
    const ir_buffer *kept[EX_MAX_NODES];
    const ir_buffer *by_distance[EX_MAX_NODES]; /* mods_distance.c, for the current tile and stripe */
};

/* Row of a tensor that is indexed [batch, head, token, column]. */
typedef struct q_lanes_row {
    const ir_expr *head, *query;
} q_lanes_row;

/* A tile, and which of its keys a stripe attends to: computed once, used by scores and values. Keys are numbered within
 * the tile. */
struct q_lanes_tile {
    const ir_expr *number;
    const ir_expr *stripe;     /* within the task */
    const ir_expr *first_key;  /* of the tile */
    const ir_expr *first_pair; /* the same in pairs of keys; 0 if there is one tile */
    const ir_expr *room;       /* keys in the tile */
    const ir_expr *from, *to;  /* keys that some row of the stripe attends to; score_keys and width divide `from` */
    /* Keys that all rows attend to, by window, causality and ql_has_table(c). NULL without any of these. */
    const ir_expr *full_from, *full_to;
    const ir_expr *is_visited; /* whether a stripe attends to a key, by ql_has_table(c); NULL without that */
    const ir_expr *is_mixed;   /* likewise: whether rows of a visited stripe attend to different keys */
    /* Whether a hidden key's value may be multiplied by its probability, 0. NULL if no key is hidden. */
    const ir_expr *is_finite;
};

/* layout.c: sizes, before the phase is opened; scratch, within a task. */
void ql_derive_sizes(q_lanes *c);
void ql_alloc_scratch(q_lanes *c);

/* Elements in a lane of a product's operands: 1, or 2 for a pair of bf16. */
static inline int ql_width(const q_lanes *c) { return c->v->by_pairs ? 2 : 1; }
static inline mha_kind ql_kind(const q_lanes *c) { return mha_kind_of(c->v->by_pairs); }

/* Whether rows have their own first or last key; there is an attn_mask or attn_bias; these or mask_mod may hide any
 * key; a table says what mask_mod hides (shared/mask_table.h). */
static inline bool ql_has_edges(const q_lanes *c) { return c->m->has_first || c->m->has_last; }
static inline bool ql_has_elements(const q_lanes *c) {
    return c->m->params.tensor[MHA_ATTN_MASK] || c->m->params.tensor[MHA_ATTN_BIAS];
}
static inline bool ql_may_hide_any(const q_lanes *c) {
    return ql_has_elements(c) || mha_has_function(c->m, MHA_MASK_FUNCTION);
}
static inline bool ql_has_table(const q_lanes *c) { return c->m->mask_table != NULL; }

/* Scores are integer products: qt holds quantised rows (score_quantised.c). */
static inline bool ql_is_quantised(const q_lanes *c) { return c->m->quantised_k.values != NULL; }

/* `value` in all lanes. */
static inline const ir_expr *ql_splat(const q_lanes *c, double value) { return mha_number(c->m, value, c->m->lanes); }

/* Scores of vector `v` of the stripe's rows and key j of the tile; probabilities likewise, where j counts pairs of keys
 * if products are of pairs. */
const ir_access *ql_score_at(const q_lanes *c, const ir_expr *v, const ir_expr *j);
const ir_access *ql_probability_at(const q_lanes *c, const ir_expr *v, const ir_expr *j);

/* Vectors of rows of a stripe whose scores have lanes along the rows. Scores of the remaining rows go by columns. */
static inline int64_t ql_whole_vectors(const q_lanes *c, bool is_last) {
    if (c->v->scores_by_columns) return 0;
    if (!c->v->rest_rows || !is_last) return c->m->s->score_row_vectors;
    return c->num_stripes > 1 ? 0 : c->m->p->seq_q * c->m->group / c->m->lanes;
}
/* Fours of columns of a quantised row. */
int64_t ql_quantised_units(const q_lanes *c);
/* prob_mod, see prob_mod.c. */
static inline bool ql_has_prob(const q_lanes *c) { return mha_has_function(c->m, MHA_PROB_FUNCTION); }
/* Whether a stripe of the task is the last one of the head. */
const ir_expr *ql_is_last(q_lanes *c, const ir_expr *stripe);

/* Row number of the first row of the task's stripe `stripe`. */
const ir_expr *ql_first_row(const q_lanes *c, const ir_expr *stripe);
const ir_expr *ql_clamp_row(const q_lanes *c, const ir_expr *row); /* at most the last row's number */
q_lanes_row ql_row(q_lanes *c, const ir_expr *stripe, const ir_expr *in_stripe);
const ir_expr *ql_clamp_key(const q_lanes *c, const ir_expr *key); /* at most the sequence's last key */

/* rows.c */
void ql_init_rows(q_lanes *c, const ir_expr *stripe);
void ql_load_queries(q_lanes *c, const ir_expr *stripe);
void ql_close_rows(q_lanes *c, const ir_expr *stripe); /* row_sum becomes its inverse; LSE */
void ql_store_rows(q_lanes *c, const ir_expr *stripe);

/* transposed_rows.c */
/* A tensor whose rows are read or written, indexed [batch, head, token, column]. */
typedef struct q_lanes_tensor {
    const ir_buffer *buffer;
    const ir_expr *batch, *first_token;
    bool is_pairs;       /* columns are pairs of bf16, as i32 */
    const ir_expr *sign; /* factor of all elements that are read; NULL: 1 */
} q_lanes_tensor;
/* Rows x columns to columns x rows: the mha_quarter columns from `column` on of `lanes` rows of a tensor, as c->elem
 * or i32. */
void ql_load_transposed(q_lanes *c, const q_lanes_tensor *tensor, const q_lanes_row *rows, const ir_expr *column,
                        const ir_expr *columns[4]);
void ql_store_transposed(q_lanes *c, const q_lanes_tensor *tensor, const q_lanes_row *rows, const ir_expr *column,
                         const ir_expr *columns[4]);
/* The same for a tensor of i8, which stays i8. */
void ql_load_bytes_transposed(q_lanes *c, const ir_buffer *tensor, const ir_expr *batch, const q_lanes_row *rows,
                              const ir_expr *column, const ir_expr *columns[4]);

/* tile_copy.c: fills c->keys and, if `values`, c->values, unless they are NULL. */
void ql_load_tile(q_lanes *c, const q_lanes_tile *tile, bool values);
/* width 2: the number of the tile's pair j in the buffer that has V, and `lanes` columns of its values. */
const ir_expr *ql_pair_of(q_lanes *c, const q_lanes_tile *tile, const ir_expr *j);
const ir_access *ql_pair_at(const q_lanes *c, const ir_expr *pair, const ir_expr *column, int lanes);

/* mask.c */
/* Opens the loop over the tiles of the task, and returns the tile's number. Close it with ir_for_end. */
const ir_expr *ql_begin_tiles(q_lanes *c);
/* ql_open_tile fills in the members of a tile that hold for the task, except is_finite; ql_open_stripe those that hold
 * for tile->stripe. */
void ql_open_tile(q_lanes *c, q_lanes_tile *tile);
/* A range of keys of the tile, numbered within it, that has all keys which the task's stripes compute. If products are
 * of pairs, `from` is even. */
typedef struct q_lanes_keys {
    const ir_expr *from, *to;
} q_lanes_keys;
q_lanes_keys ql_keys_of_task(q_lanes *c, const q_lanes_tile *tile);
void ql_open_stripe(q_lanes *c, q_lanes_tile *tile);
/* Writes each row's visible range, by window and causality. */
void ql_init_sight(q_lanes *c, const ir_expr *stripe);
/* The visible ranges of all rows of the task. */
mha_sights ql_sights_of_task(q_lanes *c);
/* finite.c: sets tile->is_finite. */
void ql_find_finite(q_lanes *c, q_lanes_tile *tile);
/* mask_elements.c: transposes masks into c->keep or c->bias, for the register tiles up to key number `to`. */
void ql_load_elements(q_lanes *c, const q_lanes_tile *tile, const ir_expr *to);
/* The visible range of a vector of rows by window and causality, and what mask_mod needs of the rows. */
typedef struct q_lanes_sight {
    mha_sight by_position;
    mha_values values;
} q_lanes_sight;
/* The visible ranges of the rows from `at` on. */
q_lanes_sight ql_sight(q_lanes *c, const q_lanes_tile *tile, const ir_expr *at);
/* Whether each row of `sight` attends to `key`, which is key `j` of the tile. */
const ir_expr *ql_is_visible(q_lanes *c, const q_lanes_sight *sight, const ir_expr *at, const ir_expr *key,
                             const ir_expr *j);

/* mods.c: users' functions: values of the task, of its rows, of `lanes` rows, of a key. */
enum { QL_KEY_VALUES = 12 };
typedef struct q_lanes_key_values {
    int count, node[QL_KEY_VALUES];
    const ir_expr *value[QL_KEY_VALUES];
} q_lanes_key_values;
void ql_open_functions(q_lanes *c);
void ql_alloc_functions(q_lanes *c);
void ql_init_functions(q_lanes *c, const ir_expr *stripe);
mha_values ql_values_of_rows(q_lanes *c, mha_function f, const ir_expr *stripe, const ir_expr *at, int lanes);
/* Elements of users' tensors for a vector of rows and a quarter of a vector of keys, where neighbouring keys are
 * contiguous. count is 0 if there are none, or if the keys of a register tile are no whole quarters. ql_fill_pairs
 * loads the quarter from `key` on. */
enum { QL_PAIR_VALUES = 2 };
typedef struct q_lanes_pair_values {
    int count, node[QL_PAIR_VALUES];
    const ir_expr *of_key[QL_PAIR_VALUES][4];
    q_lanes_row rows[IR_MAX_LANES];
} q_lanes_pair_values;
void ql_open_pairs(q_lanes *c, mha_function f, const ir_expr *stripe, const ir_expr *at, q_lanes_pair_values *pairs);
void ql_fill_pairs(q_lanes *c, const ir_expr *key, q_lanes_pair_values *pairs);
/* Puts the values of key `key` of the quarter into those of the rows. */
void ql_put_pairs(const q_lanes_pair_values *pairs, int key, mha_values *of_rows);
void ql_fill_key(q_lanes *c, mha_function f, const ir_expr *key, q_lanes_key_values *of_key);
/* The score or probability z after the function (z itself if there is no function), and whether mask_mod shows the key
 * to the rows (NULL if there is no mask_mod). */
const ir_expr *ql_modified(q_lanes *c, mha_function f, const mha_values *of_rows, const q_lanes_key_values *of_key,
                           const ir_expr *key, const ir_expr *z);
const ir_expr *ql_function_sees(q_lanes *c, const mha_values *of_rows, const ir_expr *key, int lanes);

/* mods_distance.c: ql_fill_distances computes the values that depend on kv - q for a tile and stripe at once;
 * ql_put_distances adds those of key j of the tile to the values of the `lanes` rows from `at` on. */
void ql_alloc_distances(q_lanes *c);
void ql_fill_distances(q_lanes *c, const q_lanes_tile *tile);
void ql_put_distances(q_lanes *c, mha_function f, const ir_expr *at, const ir_expr *j, mha_values *of_rows);

/* prefetch.c: a share of what the next head needs, prefetched with the scores of the keys from `first` on. */
void ql_open_prefetch(q_lanes *c);
void ql_prefetch(q_lanes *c, const q_lanes_tile *tile, const ir_expr *first);

/* score.c, score_columns.c and score_quantised.c: write scores and tile_max. */
void ql_scores(q_lanes *c, const q_lanes_tile *tile);
void ql_column_scores(q_lanes *c, const q_lanes_tile *tile);
void ql_quantised_scores(q_lanes *c, const q_lanes_tile *tile);

/* score_quantised.c: quantised Q. */
void ql_quantise_queries(q_lanes *c, const ir_expr *stripe);

/* exp_pairs.c: exponentials of pairs, directly as bf16, with exponents rounded to multiples of 2^-9. Open it before the
 * loop. Closing it gives the sum, or NaN if a score was NaN. */
typedef struct ql_pair_exp {
    const ir_expr *base, *scale, *table[2];
    const ir_expr *before; /* a factor of scores, so that the scale stays finite; NULL: 1 */
    const ir_access *bits; /* bitwise OR of all fixed-point numbers so far */
} ql_pair_exp;
bool ql_has_pair_exp(const q_lanes *c);
void ql_fill_corrections(q_lanes *c);
ql_pair_exp ql_open_pair_exp(q_lanes *c, const ir_expr *base);
const ir_expr *ql_pair_exp_of(q_lanes *c, const ql_pair_exp *e, const ir_expr *first, const ir_expr *second);
const ir_expr *ql_close_pair_exp(q_lanes *c, const ql_pair_exp *e, const ir_expr *sum);

/* softmax.c and softmax_pairs.c: scores become probabilities. They write row_max, row_sum and factor, which rescales
 * the sums of earlier tiles. */
void ql_softmax(q_lanes *c, const q_lanes_tile *tile);
void ql_pair_softmax(q_lanes *c, const q_lanes_tile *tile);
void ql_pair_softmax_by_turns(q_lanes *c, const q_lanes_tile *tile);

/* The softmax's state in memory of vector `v` of a stripe's rows. */
typedef struct ql_row_vector {
    const ir_access *max, *tile_max, *sum, *lse_sum, *factor;
} ql_row_vector;
ql_row_vector ql_row_vector_at(q_lanes *c, const q_lanes_tile *tile, const ir_expr *v);
/* Joins the tile's maximum to that of the tiles before. */
mha_shrink ql_take_maximum(q_lanes *c, const ql_row_vector *at);
/* A probability of key j times the scale of its value, if V has scales. */
const ir_expr *ql_times_v_scale(q_lanes *c, const q_lanes_tile *tile, const ir_expr *j, const ir_expr *probability);

/* store_probabilities.c: writes the probabilities that are an output (mha_variant.writes_probabilities). */
void ql_store_probabilities(q_lanes *c, const ir_expr *stripe);

/* prob_mod.c: prob_mod is evaluated on normalised probabilities. If the keys are one tile, its softmax gives them;
 * otherwise the tiles are visited twice, first for the sums alone. */
/* Called when the sums of a stripe are complete, and before ql_close_rows: saves the base of its exponentials. */
void ql_keep_base(q_lanes *c, const ir_expr *stripe);
/* Turns the scores of a tile, or its exponentials, into the factors of V. */
void ql_modify_probabilities(q_lanes *c, const q_lanes_tile *tile);
/* Sets row_sum to 1: the factors of V were normalised, so O is not divided. */
void ql_end_division(q_lanes *c, const ir_expr *stripe);

/* value.c: ot = ot * factor + V^T P^T */
void ql_values(q_lanes *c, const q_lanes_tile *tile);

/* value_rows.c: O = O * factor + P V, and O / sum to memory, unless MHA_VALUES_TRANSPOSED. A register tile has at most
 * value_columns * value_row_vectors accumulators, in the strips that mha_next_strips gives. */
void ql_clear_kept(q_lanes *c, const ir_expr *stripe);
void ql_store_kept(q_lanes *c, const ir_expr *stripe);
void ql_values_by_rows(q_lanes *c, const q_lanes_tile *tile);

#endif
