/* Decoding: attention with few query rows. Nearly all time goes into reading K and V, so each is read once, in the
 * layout that it has in memory, for all rows of a task. Vector lanes run along the columns of K and V.
 *
 *     scores    K[j]  [ d d d d d d d d ]  *  Q[r] [ d d d d d d d d ]        a vector of sums for each row and key,
 *                                                                             which is reduced over its lanes
 *     values    O[r]  [ d d d d d d d d ] += p[r][j] in all lanes * V[j] [ d d d d d d d d ]
 *
 *   row     one query row of one KV head; row r is query r / group of head r % group of the group, as in prefill
 *   task    up to max_rows rows of one KV head and one chunk of keys: each load of K and V serves all its rows
 *   chunk   kv_chunk keys, or a multiple of that where a sequence would have more chunks than mha_most_chunks, counted
 *           from key 0, and with a window from a multiple of kv_chunk, independent of the number of threads. Each chunk
 *           stores maximum, sum and output of its rows in shared memory. A second phase merges them in order
 *           (around/merge.h). A single chunk writes the output itself
 *   tile    kv_tile keys of a chunk, between two rescalings
 *   stream  a part of a tile, whose keys are read in order; several streams are read at the same time
 *
 * Each step has a few loop nests. task.c picks one of them (dl_steps):
 *
 *   scores   score.c               as above
 *            score_serial.c        reproducible: lanes run along keys, sums along head_dim as in prefill
 *            score_panels.c        K in panels: the same, without a transpose
 *            quantised_score.c, quantised_panels.c    in integers (d->planes; integer=scores or all)
 *   softmax  softmax.c; quantised_softmax.c with integer=all
 *   values   value_streams.c       as above, sums in memory
 *            value_held.c          sums in registers
 *            quantised_value.c, quantised_panels.c    in integers (integer=all)
 *
 * If the number of rows is not known when compiling, it is rounded up: rows beyond the last one repeat it.
 *
 * variant.by_pairs: products are of pairs of bf16 (dot2). In scores, a pair is two neighbouring columns of K, which are
 * contiguous in memory. In values, a pair is one column of two neighbouring keys; rows of V are interleaved in
 * registers for it, and probabilities are rounded to bf16 (pack2). Their sum is of the unrounded probabilities.
 * Denormals in Q, K, V and P count as 0.
 *
 * integer=all: results depend on neither schedule nor target, bit for bit; a chunk is one tile, or all keys.
 *
 * reproducible: a chunk is all keys, and tiles begin where those of prefill do; P V of each tile is summed from 0 on,
 * and joins O as a tile of prefill does (mha_join_sum). So a row's bits are those of prefill. */
#ifndef ATTUNE_ATTEND_DECODE_LAYOUT_H
#define ATTUNE_ATTEND_DECODE_LAYOUT_H

#include "attend/shared/functions.h"
#include "attend/shared/score.h"
#include "attend/shared/sight.h"
#include "attend/shared/softmax.h"
#include "nest/f8.h"
#include "nest/product.h"
#include "problem/problem.h"

/* How neighbouring columns of K or V are converted to several vectors at once. */
typedef enum dl_conversion {
    DL_SINGLE,    /* they are not: each vector is loaded by itself, as mha_load_columns does */
    DL_F8_TABLES, /* fp8 values by tables of bytes (nest/f8.h), in the order of mha_f8_place */
    DL_I4_TABLE,  /* int4 values by a table of 16 elements (nest/cached.h) */
    DL_WORDS      /* 32-bit words of two bf16: a vector of even columns, then one of odd columns */
} dl_conversion;

typedef struct d_lanes {
    mha_context *c;
    ir_builder *b;
    int lanes;
    int width;                     /* columns of K and V in a vector: lanes, or 2 * lanes with pairs of bf16 */
    int planes;                    /* bytes in a quantised value of Q; 0: Q is not quantised */
    int pack;                      /* rows in a vector of quantised Q */
    int k_width;                   /* columns of K in a vector; 4 * lanes / pack if Q is quantised */
    int k_halves, v_halves;        /* quantised values in a byte of K, V in integer products: 1, or 2 for int4 */
    int64_t k_groups;              /* sums of a score, one for each group of columns with its own scale; else 1 */
    dl_conversion k_by, v_by;      /* how K, V are converted */
    bool k_by_panels, v_by_panels; /* K, V are stored in panels */
    int64_t fixed_rows;            /* of each task, if known when compiling; else 0 */
    int64_t row_step;              /* numbers of rows are rounded up to multiples of this */
    int64_t max_rows;              /* of a task, rounded up */
    int64_t k_columns, v_columns;  /* rounded up to vectors of k_width and width */
    bool one_chunk;
    bool is_serial;        /* scores are summed in the order of prefill */
    bool tiles_are_fixed;  /* they begin at multiples of kv_tile */
    bool masks_keys;       /* there is a mask, bias or mask_mod: every tile reads it */
    bool is_listed;        /* only listed keys are visible (listed.c) */
    bool by_query;         /* each query has its own list: the rows of a task belong to one query */
    bool begins_with_page; /* the first tile begins with a page; keys before the first visible one are masked */
    int64_t page_size;     /* contiguous keys of a page; 0: all keys of a sequence are contiguous, or keys are listed */
    bool masks_positions;  /* rows of a task may have different visible ranges */
    /* Scratch of a task, of c->elem unless it says otherwise. */
    const ir_buffer *q; /* [max_rows, k_columns]: Q times mha_query_sign; bf16 if c->variant.by_pairs. If quantised: i8
                           [vectors of rows * planes, k_columns / k_width, 4 * lanes], see dl_quantised_query */
    /* If Q is quantised, else NULL: */
    const ir_buffer *q_scales; /* [max_rows]: of the quantised values, times mha_query_sign */
    const ir_buffer *starts;   /* i32 [vectors of rows * k_groups, lanes]: the start of their sums */
    const ir_buffer *dots;     /* i32 [max_rows * k_groups, columns of scores]: integer dot products */
    /* k_group_scales: [dl_group_numbers, columns of scores]: scales of the tile's keys, and after them minima; NULL
     * without scales by group. q_sums: [rows of the vectors * k_groups]: sums of the quantised rows of Q, which minima
     * are multiplied by; NULL without minima. */
    const ir_buffer *k_group_scales, *q_sums;
    const ir_buffer *scores;  /* [max_rows, kv_tile + width or more]: S, then P, times V's scales */
    const ir_buffer *rounded; /* bf16, dims of scores: P, if c->variant.by_pairs; else NULL */
    const ir_buffer *o; /* [max_rows, v_columns]: O before the division. Columns are in the order of mha_interleave with
                           pairs, and of mha_f8_place with DL_F8_TABLES */
    const ir_buffer *row_max; /* [max_rows] */
    const ir_buffer *row_sum; /* [max_rows] */
    /* If is_serial, else NULL: P V of the tile, with the dims of o; lost parts of o and row_sum (shared/softmax.h). */
    const ir_buffer *tile_o, *o_lost, *row_sum_lost;
    /* If values are integer products, else NULL. Quantised P: i8 [max_rows * planes, kv_tile + lanes + 4]. Its scale,
     * and the factor with which the tile's values join o: [max_rows]. */
    const ir_buffer *p_quantised, *p_units, *p_shares;
    const ir_buffer *factor;    /* [max_rows]: by which o is rescaled */
    const ir_buffer *f8_tables; /* NULL unless k_by or v_by is DL_F8_TABLES */
    mha_f8_table f8;            /* of the loop nest that is open; and the table of int4 */
    const ir_expr *i4;
    /* [kv_tile + width]: scales of the tile's keys, 1 beyond them; NULL unless each token has a scale */
    const ir_buffer *k_scales, *v_scales;
    /* i32 [kv_tile and more]: page of each of the tile's listed keys, and slot within it; NULL if keys are not listed.
     */
    const ir_buffer *pages, *slots;
    const ir_buffer *sum_chunks; /* likewise, if is_serial: the chunk of the sequence (MHA_CHUNKS) that has the key */
    /* Variables of the task. */
    mha_sequence sequence;     /* if keys are listed, its keys are the listed ones */
    mha_sequence cache;        /* if keys are listed: the sequence with all its keys */
    const ir_expr *list[2];    /* if keys are listed: the first indices of the list */
    mha_values values_of_task; /* of users' functions */
    const ir_expr *kv_head, *first_row, *chunk;
    const ir_expr *rows;        /* > 0 */
    const ir_expr *padded_rows; /* rounded up */
} d_lanes;

/* A tile: keys first … first + keys - 1 of the task's sequence. */
typedef struct dl_tile {
    const ir_expr *first, *keys; /* keys > 0, and at most kv_tile */
    const ir_expr *is_partial;   /* whether a key may be hidden from a row; a constant if that is known */
} dl_tile;

/* The three steps of a tile: S = Q K^T, P = exp(S - max), O = O * factor + P V. */
typedef void dl_step(d_lanes *d, const dl_tile *tile);
typedef struct dl_steps {
    dl_step *scores, *softmax, *values;
} dl_steps;

/* How many exponentials are quantised together: several vectors hide each other's latency. With only one or two vectors
 * of keys, four would cost more. */
static inline int dl_side_by_side(const d_lanes *d) {
    const bool is_short = mha_most_scored(d->c->p) <= 2 * d->lanes;
    return d->c->p->integer == ATTUNE_INTEGER_ALL && !is_short ? 4 * d->lanes : d->lanes;
}

static inline int64_t dl_round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

/* layout.c: sizes, before a phase is opened; scratch, within a task. */
void dl_derive_sizes(d_lanes *d, mha_context *c);
void dl_alloc_scratch(d_lanes *d);

/* `first`. All that the prover learns of it: it is the first of `count` neighbours out of `size`. */
const ir_expr *dl_first(const d_lanes *d, const char *name, const ir_expr *first, const ir_expr *count,
                        const ir_expr *size);

/* `part`. All that the prover learns of it: it is at least 0, and `parts` * `part` is at most `whole`. */
const ir_expr *dl_part(const d_lanes *d, const char *name, const ir_expr *part, int64_t parts, const ir_expr *whole);

/* Head and query (within its sequence) of a row of the task. Rows beyond the last one repeat it. */
typedef struct dl_row {
    const ir_expr *head, *query, *token;
} dl_row;
dl_row dl_row_at(const d_lanes *d, const ir_expr *row);

/* rows.c: initialises a row before its first key; finishes all rows of a task after its last key (`seen`: the task has
 * visited keys); merges the parts of a row that its chunks have stored. */
void dl_init_row(d_lanes *d, const ir_expr *r);
void dl_finish_rows(d_lanes *d, bool seen);
void dl_merge_row(d_lanes *d, const ir_expr *r, const ir_expr *chunks);

/* The rows of a task, `step` at a time. The C block is built once inside an IR loop, and once more for the remaining
 * rows if there may be any. If their number is known at run time only, it is built for tiles of two rows, and with an
 * odd group for a tile of one. */
typedef struct dl_rows {
    const ir_expr *first;
    int64_t count; /* 0 ends the C loop */
    bool is_open;  /* an IR loop is open */
} dl_rows;
dl_rows dl_rows_begin(const d_lanes *d, int64_t step);
dl_rows dl_rows_next(const d_lanes *d, dl_rows rows, int64_t step);
#define DL_ROWS(d, rows, step)                                                                                         \
    for (dl_rows rows = dl_rows_begin(d, step); rows.count; rows = dl_rows_next(d, rows, step))

/* Columns by vectors of `width`. The C block is built `unroll` times inside an IR loop called `name`, and then once for
 * each remaining vector. */
typedef struct dl_columns {
    const ir_expr *at;
    int64_t count; /* columns of the vector that exist; 0 ends the C loop */
    int64_t columns, width, left, done;
    const ir_expr *first; /* of the iteration, in which `left` vectors remain */
    bool is_open;
} dl_columns;
dl_columns dl_columns_begin(const d_lanes *d, const char *name, int64_t columns, int64_t width, int64_t unroll);
void dl_columns_next(const d_lanes *d, dl_columns *c, int64_t unroll);
#define DL_COLUMNS(d, c, name, columns, width, unroll)                                                                 \
    for (dl_columns c = dl_columns_begin(d, name, columns, width, unroll); c.count; dl_columns_next(d, &c, unroll))

static inline mha_kind dl_kind(const d_lanes *d) { return mha_kind_of(d->c->variant.by_pairs); }

/* Keys that are read at the same time: `count` streams of `keys` keys each, contiguous in memory. Key i of stream s is
 * key first[s] + i of the tile. */
enum { DL_MAX_STREAMS = 16 };
typedef struct dl_streams {
    int count;
    const ir_expr *keys;
    const ir_expr *first[DL_MAX_STREAMS];
    mha_kv_row at[DL_MAX_STREAMS];
    bool have_next;                  /* each stream is a page, and continues with another page */
    mha_kv_row next[DL_MAX_STREAMS]; /* a key of the latter */
} dl_streams;

/* streams.c: calls build for all keys of a tile, inside IR loops if keys are in pages. It passes `count` streams whose
 * length `step` divides; if count is not 1, the remaining keys come as one stream. */
typedef void dl_streams_fn(d_lanes *d, const dl_streams *streams, const void *user);
void dl_each_streams(d_lanes *d, const dl_tile *tile, int count, int64_t step, dl_streams_fn *build, const void *user);
/* Calls build for each unit of `keys` neighbouring keys of the streams as one stream, in the order in which a loop
 * visits them that takes `units` units in an iteration, unit u from stream u % count. */
void dl_each_unit(d_lanes *d, const dl_tile *tile, const dl_streams *streams, int64_t units, int64_t keys,
                  dl_streams_fn *build, const void *user);
/* The place of key i of a stream. */
mha_kv_row dl_key_at(const d_lanes *d, const dl_streams *streams, int64_t stream, const ir_expr *i);
/* How many keys ahead kv_prefetch is. For listed keys the number is limited, as the lookup must go as far beyond a
 * tile. */
enum { DL_MOST_KEYS_AHEAD = 64 };
int64_t dl_keys_ahead(const d_lanes *d, const ir_buffer *k_or_v);
/* Prefetches the row of k or v that is kv_prefetch bytes after key i of a stream, if the schedule prefetches. */
void dl_prefetch_key(const d_lanes *d, const ir_buffer *k_or_v, const dl_streams *streams, int64_t stream,
                     const ir_expr *i);
/* The same for one cache line of quantised V, which begins with this column. */
void dl_prefetch_columns(const d_lanes *d, const dl_streams *streams, const ir_expr *i, const ir_expr *column);
/* d->width columns of k or v from `column` on, as bf16 if c->variant.by_pairs, else as c->elem. The first `count` are
 * loaded, the others are 0. */
const ir_expr *dl_load_key(const d_lanes *d, const ir_buffer *k_or_v, const mha_kv_row *key, const ir_expr *column,
                           int64_t count);

/* listed.c: allocates its scratch; opens the task's list, after which the keys of d->sequence are the listed ones;
 * looks up where the keys of a tile are in memory; the place of key j of the tile. dl_listed_run, for `reproducible`:
 * how many listed keys from place `key` of the list on are in the same tile of the sequence; 0 unless `key` is the
 * first of them. */
void dl_alloc_places(d_lanes *d);
void dl_open_list(d_lanes *d);
void dl_locate_keys(d_lanes *d, const dl_tile *tile);
mha_kv_row dl_listed_key(const d_lanes *d, const ir_expr *j);
/* Keys of the next tile that a register tile prefetches, and their lines that correspond to these columns. With v_in_k
 * values read nothing from memory, so that scores would wait for it: both prefetch half of the keys, a few lines at a
 * time. Scores have even keys (parity 0), values have odd ones. The register tile has the keys from `first` on, `keys`
 * of them, and some rows of the task, which are `step` at a time. */
typedef struct dl_ahead {
    mha_kv_row key[IR_MAX_LANES];
    int64_t keys;
} dl_ahead;
dl_ahead dl_keys_of_next_tile(const d_lanes *d, const dl_tile *tile, const ir_expr *first, int64_t keys, int parity,
                              const dl_rows *rows, int64_t step);
void dl_prefetch_ahead(const d_lanes *d, const dl_ahead *ahead, const ir_expr *column, int64_t count);
const ir_expr *dl_listed_run(const d_lanes *d, const ir_expr *key, const ir_expr *end);
/* The sum of row r's exponentials, in the order of dense attention whose other keys are hidden. */
const ir_expr *dl_listed_sum(d_lanes *d, const dl_tile *tile, const ir_expr *r);

/* conversion_words.c: whether K or V is bf16 that is converted to f32 by words of two columns; the columns of such
 * words; and the columns of rows of Q and O, split into even and odd ones, and joined again. */
bool dl_goes_by_words(const d_lanes *d, const ir_buffer *k_or_v, attune_dtype dtype, int64_t columns);
void dl_load_words(const d_lanes *d, const ir_buffer *k_or_v, const mha_kv_row *key, const ir_expr *column,
                   const ir_expr **out);
void dl_part_columns(const d_lanes *d, const ir_buffer *rows, const ir_expr *row, int64_t columns);
void dl_join_columns(const d_lanes *d, const ir_buffer *rows, const ir_expr *row, int64_t columns);

/* conversion_tables.c: how K or V is converted, if products are not of integers; how many columns a conversion gives at
 * once (DL_SINGLE: a vector of them); and opens the tables for a loop nest that reads K or V. */
dl_conversion dl_conversion_of(const d_lanes *d, const ir_buffer *k_or_v, attune_dtype dtype, attune_scales scales,
                               int64_t columns);
int dl_columns_at_once(const d_lanes *d, dl_conversion by);
void dl_open_tables(d_lanes *d);
/* The columns of K that d->k_by converts at once, as factors: two vectors of pairs, or of f32 two (DL_I4_TABLE,
 * DL_WORDS) or four (DL_F8_TABLES). And those of V: of one key, or of two keys as pairs (`next` NULL: the second is 0).
 */
void dl_convert_k(const d_lanes *d, const mha_kv_row *key, const ir_expr *column, const ir_expr **out);
void dl_convert_v(const d_lanes *d, const mha_kv_row *key, const mha_kv_row *next, const ir_expr *column,
                  const ir_expr **out);
/* DL_F8_TABLES: permutes the columns of a row of Q into the order of converted K, and those of O from the order of
 * converted V back. */
void dl_order_query(const d_lanes *d, const ir_expr *row);
void dl_order_output(const d_lanes *d, const ir_expr *row);

/* scales.c: loads the tile's k_scales and v_scales, if tokens have them; the scales of K for the scores of keys j, j +
 * 1, … of the tile, and those of V for their probabilities. NULL: 1. */
void dl_load_scales(d_lanes *d, const dl_tile *tile);
const ir_expr *dl_k_scales(const d_lanes *d, const ir_expr *j, int lanes);
const ir_expr *dl_v_scales(const d_lanes *d, const ir_expr *j, int lanes);

/* quantised_queries.c: quantises the rows of Q. */
void dl_quantise_queries(d_lanes *d);
/* `lanes` bytes of a plane of a vector of rows: of a block of k_width columns, row after row, from place `from` on. */
const ir_access *dl_quantised_query(const d_lanes *d, const ir_expr *vector, int64_t plane, const ir_expr *block,
                                    int64_t from, int lanes);
/* The quantised value, or sum, that two planes stand for. */
const ir_expr *dl_of_planes(const d_lanes *d, const ir_expr *high, const ir_expr *low);
/* Quantised K + 128, which is unsigned; for int4 the values in one half of the bytes, + 8. */
const ir_expr *dl_unsigned_keys(const d_lanes *d, const ir_expr *quantised, int half);
/* The column of the value in a half of a byte of a row. */
const ir_expr *dl_column_of_byte(const d_lanes *d, const ir_expr *byte, int halves, int half);

/* Rows of k_group_scales. */
static inline int64_t dl_group_numbers(const d_lanes *d) {
    return mha_has_least(d->c->p->k_scales) ? 2 * d->k_groups : d->k_groups;
}
/* quantised_score.c: loads the tile's k_group_scales, if there are any; writes the integer dot products of all its
 * keys. */
void dl_load_group_scales(d_lanes *d, const dl_tile *tile);
void dl_quantised_scores(d_lanes *d, const dl_tile *tile);
/* Scores of keys j, j + 1, … from the integer dot products, before k_scale. */
const ir_expr *dl_score_of_dots(const d_lanes *d, const ir_expr *r, const ir_expr *j);

/* quantised_softmax.c: scores become quantised probabilities. */
void dl_quantised_softmax(d_lanes *d, const dl_tile *tile);
double dl_largest_quantised(const d_lanes *d);
const ir_access *dl_quantised_probabilities(const d_lanes *d, const ir_expr *r, int64_t plane, const ir_expr *j,
                                            int lanes);

/* score.c and, for is_serial, score_serial.c: writes scores of all keys of the tile. */
void dl_scores(d_lanes *d, const dl_tile *tile);
void dl_serial_scores(d_lanes *d, const dl_tile *tile);

/* score_panels.c: the same for K in panels. And the place of vector `number` of the tile's keys from `first` on, which
 * is in one panel; vectors beyond the last key repeat the last one. */
void dl_panel_scores(d_lanes *d, const dl_tile *tile);
mha_row dl_vector_of_keys(const d_lanes *d, const dl_tile *tile, const ir_expr *first, int64_t number);

/* softmax.c: products become scores, and scores become probabilities; writes row_max, row_sum and factor.
 * dl_finish_scores turns row r's products into scores, -inf for hidden keys and beyond the last key. dl_largest_score
 * is their maximum. */
void dl_softmax(d_lanes *d, const dl_tile *tile);
void dl_finish_scores(d_lanes *d, const dl_tile *tile, const ir_expr *r);
const ir_expr *dl_largest_score(d_lanes *d, const dl_tile *tile, const ir_expr *r);

/* mask.c: which keys of a tile are visible to a row. by_position is i32, counted from tile->first. */
typedef struct dl_sight {
    const dl_tile *tile;
    const dl_row *row;
    mha_sight by_position;
    mha_values values; /* values of mask_mod that depend on the row alone */
} dl_sight;
dl_sight dl_sight_of(const d_lanes *d, const dl_tile *tile, const dl_row *row);
/* The bias of keys j, j + 1, … of the tile, as c->elem; NULL if there is none. */
const ir_expr *dl_bias(const d_lanes *d, const dl_sight *sight, const ir_expr *j, int lanes);
/* Whether the row attends to keys j, j + 1, …, whose bias is `bias`: `lanes` of bool. */
const ir_expr *dl_sees(const d_lanes *d, const dl_sight *sight, const ir_expr *j, int lanes, const ir_expr *bias);

/* Whether mask_mod shows some key of the tile to some row. Otherwise the tile is skipped, because p is 0 for all its
 * keys. */
const ir_expr *dl_shows_some(d_lanes *d, const dl_tile *tile);

/* The arguments of users' functions at a row of the task, and at the keys from j on. */
mha_place dl_place_of_row(const d_lanes *d, const dl_row *row);
mha_place dl_place_of_keys(const d_lanes *d, const dl_row *row, const dl_tile *tile, const ir_expr *j, int lanes);

/* quantised_value.c: O = O * factor + P V * share, P V in integers. */
void dl_quantised_values(d_lanes *d, const dl_tile *tile);
/* Quantised V as signed bytes, the factors of dot4; for int4 the values in one half of the bytes, times 16. A sum of
 * products of such factors. The first column of O that a vector of them has. */
const ir_expr *dl_value_factors(const d_lanes *d, const ir_expr *bytes, int half);
const ir_expr *dl_value_sum(const d_lanes *d, const ir_expr *sum);
const ir_expr *dl_output_column(const d_lanes *d, const ir_expr *byte, int half);
/* How P V of a tile joins O in row r: the factors, in all lanes. */
typedef struct dl_joined_row {
    const ir_expr *r, *unit, *kept, *share;
} dl_joined_row;
dl_joined_row dl_joined_row_of(const d_lanes *d, const ir_expr *r);
/* dl_sum_with_plane adds the integer sums of one more plane to those of the planes before (NULL: none), as elem.
 * dl_join_values adds the sums of all planes to O, from `column` on. */
const ir_expr *dl_sum_with_plane(const d_lanes *d, const ir_expr *sum, const ir_expr *quantised);
void dl_join_values(const d_lanes *d, const dl_joined_row *row, const ir_expr *column, const ir_expr *sum);

/* quantised_panels.c: integer products of K and V in panels. */
void dl_quantised_panel_scores(d_lanes *d, const dl_tile *tile);
void dl_quantised_panel_values(d_lanes *d, const dl_tile *tile);

/* value.c: what both loop nests below have in common. O *= factor; then `add` adds P V of the tile, or `add_carefully`
 * does if hidden values are NaN or infinite. */
void dl_add_values(d_lanes *d, const dl_tile *tile, dl_step *add, dl_step *add_carefully);

/* value_streams.c */
void dl_values(d_lanes *d, const dl_tile *tile);
void dl_add_carefully(d_lanes *d, const dl_tile *tile);
/* Puts the columns of O in order, which dl_values leaves interleaved. */
void dl_restore_order(d_lanes *d, const ir_expr *row);
/* value_held.c: the same, with sums in registers. */
void dl_held_values(d_lanes *d, const dl_tile *tile);

#endif
