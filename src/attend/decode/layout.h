/* Decoding: attention with few query rows. Nearly all time goes into reading K and V, so each is read once, as it lies,
 * for all rows of a task. Vector lanes run along the columns of K and V.
 *
 *     scores    K[j]  [ d d d d d d d d ]  *  Q[r] [ d d d d d d d d ]        a vector of sums for each row and key,
 *                                                                             whose lanes are added up
 *     values    O[r]  [ d d d d d d d d ] += p[r][j] in all lanes * V[j] [ d d d d d d d d ]
 *
 *   row     one query row of one KV head; row r is query r / group of head r % group of the group, as in prefill
 *   task    up to max_rows rows of one KV head and one chunk of keys: each load of K and V serves all its rows
 *   chunk   kv_chunk keys, counted from key 0 whatever the threads. Each leaves maximum, sum and output of its rows in
 *           shared memory, which a second phase merges in order (around/merge.h). A single chunk writes the output
 *   tile    kv_tile keys of a chunk, between two rescalings
 *   stream  a part of a tile, whose keys are read one after the other; several streams are read side by side
 *
 * Each step has a few nests, of which task.c picks one (dl_wing):
 *
 *   scores   score.c               as above
 *            score_serial.c        reproducible: lanes run along keys, sums along head_dim as in prefill
 *            score_panels.c        K in panels: the same, and K lies so already
 *            quantised_score.c, quantised_panels.c    in integers (d->planes; integer=scores or all)
 *   softmax  softmax.c; quantised_softmax.c with integer=all
 *   values   value_streams.c       as above, sums in memory
 *            value_held.c          sums in registers
 *            quantised_value.c, quantised_panels.c    in integers (integer=all)
 *
 * Where the number of rows is not known when compiling, it is rounded up: rows beyond the last are the last row again.
 *
 * variant.by_pairs: products are of pairs of bf16 (dot2). A pair of a score is two neighbouring columns of K, which lie
 * side by side in memory. A pair of O is the same column of two neighbouring keys, and their probabilities rounded to
 * bf16 (pack2); rows of V are interleaved in registers for it. The sum of the probabilities is that of the unrounded
 * ones. Denormals in Q, K, V and P count as 0 then.
 *
 * integer=all: bits depend on neither schedule nor target; the chunk is a tile, or the whole.
 *
 * reproducible: the chunk is the whole and tiles lie where those of prefill do; P V is summed for each tile by itself,
 * and joins O as a tile of prefill does (mha_sum). The bits of a row are then those of prefill. */
#ifndef ATTUNE_ATTEND_DECODE_LAYOUT_H
#define ATTUNE_ATTEND_DECODE_LAYOUT_H

#include "attend/shared/functions.h"
#include "attend/shared/score.h"
#include "attend/shared/sight.h"
#include "attend/shared/softmax.h"
#include "nest/f8.h"
#include "nest/product.h"
#include "problem/problem.h"

/* How columns of K or V that lie side by side become several vectors of numbers at once. */
typedef enum dl_conversion {
    DL_SINGLE,    /* not at all: each vector by itself, as mha_load_columns does */
    DL_F8_TABLES, /* fp8 values by tables of bytes (nest/f8.h), in the order of mha_f8_place */
    DL_I4_TABLE,  /* int4 values by a table of 16 numbers (nest/cached.h) */
    DL_WORDS      /* words of two bf16: even columns, then odd ones */
} dl_conversion;

typedef struct d_lanes {
    mha_context *c;
    ir_builder *b;
    int lanes;
    int width;                     /* columns of K and V in a vector: lanes, and of bf16 pairs twice as many */
    int planes;                    /* of quantised Q; 0: Q is not quantised */
    int pack;                      /* rows in a vector of quantised Q */
    int k_width;                   /* columns of K in a vector; in integers 4 * lanes / pack */
    int k_halves, v_halves;        /* values in a byte of K, V that are multiplied as integers: 1, or 2 of int4 */
    int64_t k_groups;              /* sums of a score that are apart, as K has scales by group; else 1 */
    dl_conversion k_by, v_by;      /* how K, V become numbers */
    bool k_by_panels, v_by_panels; /* K, V lie in panels */
    int64_t fixed_rows;            /* of each task, where known when compiling; else 0 */
    int64_t row_step;              /* numbers of rows are rounded up to multiples of this */
    int64_t max_rows;              /* of a task, rounded up */
    int64_t k_columns, v_columns;  /* rounded up to vectors of k_width and width */
    bool one_chunk;
    bool is_serial;        /* scores are summed as prefill does */
    bool tiles_are_fixed;  /* they begin at multiples of kv_tile */
    bool masks_keys;       /* there is a mask, bias or mask_mod: every tile reads it */
    bool is_listed;        /* keys are those of a list (listed.c) */
    bool by_query;         /* each query has a list of its own: the rows of a task are of one query */
    bool begins_with_page; /* the first tile does, though the first key in sight need not: it is masked */
    int64_t page_size;     /* keys that lie side by side in a page; 0: those of a sequence do, or keys are listed */
    bool masks_positions;  /* keys that one row of a task sees may be hidden from another */
    /* scratch of a task, of c->elem unless it says otherwise */
    const ir_buffer *q; /* [max_rows, k_columns]: times mha_query_sign; bf16 if c->variant.by_pairs. Quantised values:
                         * i8 [vectors of rows * planes, k_columns / k_width, 4 * lanes], see dl_quantised_query */
    /* if q is quantised, else NULL */
    const ir_buffer *q_scales; /* [max_rows]: of the quantised values, times mha_query_sign */
    const ir_buffer *starts;   /* i32 [vectors of rows * k_groups, lanes]: with which their sums begin */
    const ir_buffer *dots;     /* i32 [max_rows * k_groups, columns of scores]: products of quantised values */
    /* [dl_group_numbers, columns of scores]: of the tile's keys, minima after scales; NULL: there are none. And
     * [rows of the vectors * k_groups]: sums of the rows of quantised Q, by which minima are multiplied; NULL: K has
     * none */
    const ir_buffer *k_group_scales, *q_sums;
    const ir_buffer *scores;  /* [max_rows, kv_tile + width or more]: S, then P, times V's scales */
    const ir_buffer *rounded; /* bf16, dims of scores: P, if c->variant.by_pairs; else NULL */
    const ir_buffer *o; /* [max_rows, v_columns]: not yet divided; by pairs in the order of mha_interleave, by tables
                         * in that of mha_f8_place */
    const ir_buffer *row_max; /* [max_rows] */
    const ir_buffer *row_sum; /* [max_rows] */
    /* is_serial, else NULL: the tile's P V, dims of o; mha_sum.lost of o and of row_sum. */
    const ir_buffer *tile_o, *o_lost, *row_sum_lost;
    /* If values are sums of integers, else NULL. Quantised P: i8 [max_rows * planes, kv_tile + lanes + 4]; what a value
     * of 1 stands for, and by which the tile's values join o: [max_rows] */
    const ir_buffer *p_quantised, *p_units, *p_shares;
    const ir_buffer *factor;    /* [max_rows]: by which o is rescaled */
    const ir_buffer *f8_tables; /* NULL: neither K nor V is f8 that goes by tables */
    mha_f8_table f8;            /* of the nest that is open; and of i4 */
    const ir_expr *i4;
    /* [kv_tile + width]: of the tile's keys, 1 beyond them; NULL unless tokens have scales of their own */
    const ir_buffer *k_scales, *v_scales;
    /* i32 [kv_tile and more]: of the tile's listed keys, page and place in it; NULL: there are none. */
    const ir_buffer *pages, *slots;
    const ir_buffer *sum_chunks; /* the same, if is_serial: the chunk of the sequence (MHA_CHUNKS) that the key is in */
    /* variables of the task */
    mha_sequence sequence;     /* its keys are the listed ones */
    mha_sequence cache;        /* if keys are listed: the sequence with all its keys */
    const ir_expr *list[2];    /* if keys are listed: the first indices of the list */
    mha_values values_of_task; /* of the user's functions */
    const ir_expr *kv_head, *first_row, *chunk;
    const ir_expr *rows;        /* > 0 */
    const ir_expr *padded_rows; /* rounded up */
} d_lanes;

/* Keys of one tile. */
typedef struct dl_tile {
    const ir_expr *first, *keys; /* keys > 0, and at most kv_tile */
    const ir_expr *is_partial;   /* whether some key may be hidden from some row; a constant where that is known */
} dl_tile;

/* The three steps of a tile: S = Q K^T, P = exp(S - max), O = O * factor + P V. task.c picks them once. */
typedef void dl_step(d_lanes *d, const dl_tile *tile);
typedef struct dl_wing {
    dl_step *scores, *softmax, *values;
} dl_wing;

/* How many exponentials are quantised side by side: each waits for its own operations most of the time. For one or two
 * vectors of keys, computing four costs more. */
static inline int dl_side_by_side(const d_lanes *d) {
    const bool is_short = mha_most_scored(d->c->p) <= 2 * d->lanes;
    return d->c->p->integer == ATTUNE_INTEGER_ALL && !is_short ? 4 * d->lanes : d->lanes;
}

static inline int64_t dl_round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

/* layout.c: sizes, before a phase is opened; scratch, within a task. */
void dl_derive_sizes(d_lanes *d, mha_context *c);
void dl_alloc_scratch(d_lanes *d);

/* `first`. The prover learns only that it is the first of `count` neighbours out of `size`. */
const ir_expr *dl_first(const d_lanes *d, const char *name, const ir_expr *first, const ir_expr *count,
                        const ir_expr *size);

/* `part`. The prover learns only that it is at least 0, and that `parts` times it is at most `whole`. */
const ir_expr *dl_part(const d_lanes *d, const char *name, const ir_expr *part, int64_t parts, const ir_expr *whole);

/* Head and query (within its sequence) of a row of the task; rows beyond the last are the last. */
typedef struct dl_row {
    const ir_expr *head, *query, *token;
} dl_row;
dl_row dl_row_at(const d_lanes *d, const ir_expr *row);

/* rows.c: a row before its first key; all rows of a task after the last one, where `seen` says whether there was a
 * visible key; and the merge of a row's parts, which the chunks have stored. */
void dl_init_row(d_lanes *d, const ir_expr *r);
void dl_finish_rows(d_lanes *d, bool seen);
void dl_merge_row(d_lanes *d, const ir_expr *r);

/* The rows of a task, `step` at a time: builds the block of C in a loop, and once more for the rest, if their number is
 * fixed and leaves one. */
typedef struct dl_rows {
    const ir_expr *first;
    int64_t count; /* 0 ends the loop of C */
    bool is_open;  /* a loop of the IR is */
} dl_rows;
dl_rows dl_rows_begin(const d_lanes *d, int64_t step);
dl_rows dl_rows_next(const d_lanes *d, dl_rows rows, int64_t step);
#define DL_ROWS(d, rows, step)                                                                                         \
    for (dl_rows rows = dl_rows_begin(d, step); rows.count; rows = dl_rows_next(d, rows, step))

/* Columns by vectors of `width`: builds the block of C for `unroll` of them in an iteration of a loop of that name, and
 * then for each of the rest. */
typedef struct dl_columns {
    const ir_expr *at;
    int64_t count; /* of the vector's columns, those that exist; 0 ends the loop of C */
    int64_t columns, width, left, done;
    const ir_expr *first; /* of the iteration, in which `left` vectors are left */
    bool is_open;
} dl_columns;
dl_columns dl_columns_begin(const d_lanes *d, const char *name, int64_t columns, int64_t width, int64_t unroll);
void dl_columns_next(const d_lanes *d, dl_columns *c, int64_t unroll);
#define DL_COLUMNS(d, c, name, columns, width, unroll)                                                                 \
    for (dl_columns c = dl_columns_begin(d, name, columns, width, unroll); c.count; dl_columns_next(d, &c, unroll))

static inline mha_kind dl_kind(const d_lanes *d) { return mha_kind_of(d->c->variant.by_pairs); }

/* Keys that are read side by side: `count` streams of `keys` keys each, which lie one after the other in memory. Key i
 * of stream s is key first[s] + i of the tile. */
enum { DL_MAX_STREAMS = 16 };
typedef struct dl_streams {
    int count;
    const ir_expr *keys;
    const ir_expr *first[DL_MAX_STREAMS];
    mha_kv_row at[DL_MAX_STREAMS];
    bool have_next;                  /* each stream is a page, and goes on with another one */
    mha_kv_row next[DL_MAX_STREAMS]; /* a key of that */
} dl_streams;

/* streams.c: calls build for all keys of a tile, in loops if the keys lie in pages. The keys come as `count`
 * streams whose length `step` divides; if count is not 1, the rest comes as one stream. */
typedef void dl_streams_fn(d_lanes *d, const dl_streams *streams, const void *user);
void dl_each_streams(d_lanes *d, const dl_tile *tile, int count, int64_t step, dl_streams_fn *build, const void *user);
/* Calls build for each unit of `keys` neighbouring keys of the streams, one after the other, as a stream of its own: in
 * the order of iterations of `units` units, of which number u is of stream u % count. */
void dl_each_unit(d_lanes *d, const dl_tile *tile, const dl_streams *streams, int64_t units, int64_t keys,
                  dl_streams_fn *build, const void *user);
/* Where key i of a stream lies. */
mha_kv_row dl_key_at(const d_lanes *d, const dl_streams *streams, int64_t stream, const ir_expr *i);
/* How many rows kv_prefetch is ahead; for listed keys it is limited, also to the rows of a block of value_held.c. */
enum { DL_MOST_KEYS_AHEAD = 64 };
int64_t dl_keys_ahead(const d_lanes *d, const ir_buffer *k_or_v);
/* Prefetches the row that follows key i of a stream of k or v after kv_prefetch bytes, if the schedule has that. */
void dl_prefetch_key(const d_lanes *d, const ir_buffer *k_or_v, const dl_streams *streams, int64_t stream,
                     const ir_expr *i);
/* The same for quantised V, of a line that begins with this column. */
void dl_prefetch_columns(const d_lanes *d, const dl_streams *streams, const ir_expr *i, const ir_expr *column);
/* d->width columns of k or v from `column` on, as bf16 if c->variant.by_pairs, else as c->elem. The first `count` are
 * loaded, the others are 0. */
const ir_expr *dl_load_key(const d_lanes *d, const ir_buffer *k_or_v, const mha_kv_row *key, const ir_expr *column,
                           int64_t count);

/* listed.c: scratch of a task; the task's list, after which d->sequence has its keys; where the keys of a tile lie;
 * that of key j of the tile. And with `reproducible` how many keys from place `key` of the list on are in the same tile
 * of a sequence, if the list's key before is in another one; else 0. */
void dl_alloc_places(d_lanes *d);
void dl_open_list(d_lanes *d);
void dl_locate_keys(d_lanes *d, const dl_tile *tile);
mha_kv_row dl_listed_key(const d_lanes *d, const ir_expr *j);
const ir_expr *dl_listed_run(const d_lanes *d, const ir_expr *key, const ir_expr *end);
/* The sum of row r's exponentials in the order in which it is if the other keys are hidden. */
const ir_expr *dl_listed_sum(d_lanes *d, const dl_tile *tile, const ir_expr *r);

/* conversion_words.c: whether K or V, which lies in rows, is bf16 that becomes f32 by words of two columns; such words;
 * and rows of Q and O in the order of even and odd columns, and back. */
bool dl_goes_by_words(const d_lanes *d, const ir_buffer *k_or_v, attune_dtype dtype, int64_t columns);
void dl_load_words(const d_lanes *d, const ir_buffer *k_or_v, const mha_kv_row *key, const ir_expr *column,
                   const ir_expr **out);
void dl_part_columns(const d_lanes *d, const ir_buffer *rows, const ir_expr *row, int64_t columns);
void dl_join_columns(const d_lanes *d, const ir_buffer *rows, const ir_expr *row, int64_t columns);

/* conversion_tables.c: how K or V becomes numbers, if it is not multiplied in integers; how many columns a conversion
 * makes at once, those of a vector if it is DL_SINGLE; and opens the tables for a nest that reads K or V. */
dl_conversion dl_conversion_of(const d_lanes *d, const ir_buffer *k_or_v, attune_dtype dtype, attune_scales scales,
                               int64_t columns);
int dl_columns_at_once(const d_lanes *d, dl_conversion by);
void dl_open_tables(d_lanes *d);
/* The columns of K that d->k_by makes at once as factors, two vectors of pairs, or of f32 two (DL_I4_TABLE, DL_WORDS)
 * or four (DL_F8_TABLES); and those of V, two keys as pairs (`next` NULL: the second is 0), or one. */
void dl_convert_k(const d_lanes *d, const mha_kv_row *key, const ir_expr *column, const ir_expr **out);
void dl_convert_v(const d_lanes *d, const mha_kv_row *key, const mha_kv_row *next, const ir_expr *column,
                  const ir_expr **out);
/* Columns of Q in the order of f8's of K, and those of O from the order of V's into their own. */
void dl_order_query(const d_lanes *d, const ir_expr *row);
void dl_order_output(const d_lanes *d, const ir_expr *row);

/* scales.c: loads the tile's k_scales and v_scales, where tokens have them; the factors of the scores of keys j, j + 1,
 * … of the tile, and of their probabilities. NULL: 1. */
void dl_load_scales(d_lanes *d, const dl_tile *tile);
const ir_expr *dl_k_scales(const d_lanes *d, const ir_expr *j, int lanes);
const ir_expr *dl_v_scales(const d_lanes *d, const ir_expr *j, int lanes);

/* quantised_queries.c: quantises the rows of Q. */
void dl_quantise_queries(d_lanes *d);
/* `lanes` quantised values of a plane of a vector of rows: of a block of k_width columns for one row after the other,
 * from place `from` on. */
const ir_access *dl_quantised_query(const d_lanes *d, const ir_expr *vector, int64_t plane, const ir_expr *block,
                                    int64_t from, int lanes);
/* A quantised value of two planes. */
const ir_expr *dl_of_planes(const d_lanes *d, const ir_expr *high, const ir_expr *low);
/* Quantised K plus 128; of i4 those in one half of the bytes, plus 8. */
const ir_expr *dl_unsigned_keys(const d_lanes *d, const ir_expr *quantised, int half);
/* The column of the value in that half of a byte of a row. */
const ir_expr *dl_column_of_byte(const d_lanes *d, const ir_expr *byte, int halves, int half);

/* Rows of k_group_scales. */
static inline int64_t dl_group_numbers(const d_lanes *d) {
    return mha_has_least(d->c->p->k_scales) ? 2 * d->k_groups : d->k_groups;
}
/* quantised_score.c: loads the tile's k_group_scales, where there are those; writes products of quantised values for
 * all its keys. */
void dl_load_group_scales(d_lanes *d, const dl_tile *tile);
void dl_quantised_scores(d_lanes *d, const dl_tile *tile);
/* Scores of keys j, j + 1, … before k_scale. */
const ir_expr *dl_score_of_dots(const d_lanes *d, const ir_expr *r, const ir_expr *j);

/* quantised_softmax.c: scores become quantised probabilities. */
void dl_quantised_softmax(d_lanes *d, const dl_tile *tile);
double dl_largest_quantised(const d_lanes *d);
const ir_access *dl_quantised_probabilities(const d_lanes *d, const ir_expr *r, int64_t plane, const ir_expr *j,
                                            int lanes);

/* score.c and, for is_serial, score_serial.c: writes scores of all keys of the tile. */
void dl_scores(d_lanes *d, const dl_tile *tile);
void dl_serial_scores(d_lanes *d, const dl_tile *tile);

/* score_panels.c: the same of K in panels. And vector number `number` of the tile's keys from `first` on, which lies
 * in one panel; beyond the last key it is the last one. */
void dl_panel_scores(d_lanes *d, const dl_tile *tile);
mha_row dl_vector_of_keys(const d_lanes *d, const dl_tile *tile, const ir_expr *first, int64_t number);

/* softmax.c: products become scores, and these probabilities; writes row_max, row_sum and factor. The products of row r
 * become scores, -inf where hidden and beyond the last key; the largest of them. */
void dl_softmax(d_lanes *d, const dl_tile *tile);
void dl_finish_scores(d_lanes *d, const dl_tile *tile, const ir_expr *r);
const ir_expr *dl_largest_score(d_lanes *d, const dl_tile *tile, const ir_expr *r);

/* mask.c: which keys of a tile a row sees; `by_position` as i32 counted from tile->first. */
typedef struct dl_sight {
    const dl_tile *tile;
    const dl_row *row;
    mha_sight by_position;
    mha_values values; /* what mask_mod needs of the row */
} dl_sight;
dl_sight dl_sight_of(const d_lanes *d, const dl_tile *tile, const dl_row *row);
/* The bias of keys j, j + 1, … of the tile, as c->elem; NULL if there is none. */
const ir_expr *dl_bias(const d_lanes *d, const dl_sight *sight, const ir_expr *j, int lanes);
/* Whether the row sees these keys, whose bias is `bias`: `lanes` of bool. */
const ir_expr *dl_sees(const d_lanes *d, const dl_sight *sight, const ir_expr *j, int lanes, const ir_expr *bias);

/* Whether mask_mod leaves a key of the tile visible to some row. Otherwise the tile is skipped, because p of all its
 * keys is 0. */
const ir_expr *dl_shows_some(d_lanes *d, const dl_tile *tile);

/* The user's functions at a row of the task, and at the keys from j on. */
mha_place dl_place_of_row(const d_lanes *d, const dl_row *row);
mha_place dl_place_of_keys(const d_lanes *d, const dl_row *row, const dl_tile *tile, const ir_expr *j, int lanes);

/* quantised_value.c: O = O * factor + P V * share, P V in integers. */
void dl_quantised_values(d_lanes *d, const dl_tile *tile);
/* Quantised V as factors: of i4 those in one half of the bytes, times 16, as bytes with their sign; a sum of products
 * of such; and the column of O, from which a vector of these quantised values is. */
const ir_expr *dl_value_factors(const d_lanes *d, const ir_expr *bytes, int half);
const ir_expr *dl_value_sum(const d_lanes *d, const ir_expr *sum);
const ir_expr *dl_output_column(const d_lanes *d, const ir_expr *byte, int half);
/* How the values of a tile are added to those before it: row r, and factors in all lanes. */
typedef struct dl_joined_row {
    const ir_expr *r, *unit, *kept, *share;
} dl_joined_row;
dl_joined_row dl_joined_row_of(const d_lanes *d, const ir_expr *r);
/* The sums of the planes before, NULL if there are none, and those of one more, as numbers; the sums of all planes, of
 * the columns from `column` on, join O. */
const ir_expr *dl_sum_with_plane(const d_lanes *d, const ir_expr *sum, const ir_expr *quantised);
void dl_join_values(const d_lanes *d, const dl_joined_row *row, const ir_expr *column, const ir_expr *sum);

/* quantised_panels.c: scores and values in integers of K and V in panels. */
void dl_quantised_panel_scores(d_lanes *d, const dl_tile *tile);
void dl_quantised_panel_values(d_lanes *d, const dl_tile *tile);

/* value.c: the frame of both nests below. O *= factor; then `add` adds P V of the tile, or where hidden values are NaN
 * or infinite `add_carefully`. */
void dl_add_values(d_lanes *d, const dl_tile *tile, dl_step *add, dl_step *add_carefully);

/* value_streams.c */
void dl_values(d_lanes *d, const dl_tile *tile);
void dl_add_carefully(d_lanes *d, const dl_tile *tile);
/* Puts the columns of O in order, which dl_values has left interleaved. */
void dl_restore_order(d_lanes *d, const ir_expr *row);
/* value_held.c: the same, with sums in registers. */
void dl_held_values(d_lanes *d, const dl_tile *tile);

#endif
