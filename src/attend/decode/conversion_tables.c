/* fp8 and int4 values of K and V are converted to bf16 or f32 by tables in registers, which byte permutations look up:
 *
 *     fp8     64 values at a time, by tables of bytes (nest/f8.h)         columns come out in another order
 *     int4    a block at a time, by one table of 16 elements (nest/cached.h)
 *
 * For fp8, the columns of Q are permuted into that order before the scores, and those of O are permuted back at the
 * end. */
#include "attend/decode/layout.h"
#include "nest/columns.h"

enum { TOGETHER = MHA_F8_CODES, MOST_VECTORS = 4 };

static mha_f8_form k_form(const d_lanes *d) { return d->c->variant.by_pairs ? MHA_F8_BF16 : MHA_F8_F32; }
static mha_f8_form v_form(const d_lanes *d) { return d->c->variant.by_pairs ? MHA_F8_PAIRS : MHA_F8_F32; }

static bool has_table(const d_lanes *d, const ir_buffer *k_or_v, attune_dtype dtype, attune_scales scales,
                      int64_t columns) {
    if (dtype == ATTUNE_I4) return mha_needs_row_reader(d->c, k_or_v) && mha_has_nibble_table(d->c);
    const bool is_f8 = !d->planes && dtype == ATTUNE_F8 && !mha_scales_elements(scales) && columns % TOGETHER == 0;
    return is_f8 && mha_has_f8_tables(d->c);
}

dl_conversion dl_conversion_of(const d_lanes *d, const ir_buffer *k_or_v, attune_dtype dtype, attune_scales scales,
                               int64_t columns) {
    if (d->is_serial || mha_is_paneled(d->c, k_or_v)) return DL_SINGLE;
    if (dl_goes_by_words(d, k_or_v, dtype, columns)) return DL_WORDS;
    if (!has_table(d, k_or_v, dtype, scales, columns)) return DL_SINGLE;
    return dtype == ATTUNE_I4 ? DL_I4_TABLE : DL_F8_TABLES;
}

int dl_columns_at_once(const d_lanes *d, dl_conversion by) {
    switch (by) {
    case DL_F8_TABLES: return TOGETHER;
    case DL_I4_TABLE: return MHA_BLOCK_COLUMNS;
    case DL_WORDS: return 2 * d->lanes;
    default: return d->width;
    }
}

void dl_open_tables(d_lanes *d) {
    if (d->f8_tables) d->f8 = mha_f8_table_of(d->c, d->f8_tables);
    if (d->k_by == DL_I4_TABLE || d->v_by == DL_I4_TABLE) d->i4 = mha_nibble_table(d->c);
}

static const ir_expr *raw_columns(const d_lanes *d, const ir_buffer *k_or_v, const mha_kv_row *key,
                                  const ir_expr *column) {
    const ir_expr *const *index = mha_kv_index(d->c, k_or_v, key);
    return ir_let(d->b, "quantised", mha_load_raw_columns(d->c, k_or_v, index, column, TOGETHER, TOGETHER));
}

/* Converts columns of one key; vectors hold no pairs of keys. */
static void convert(const d_lanes *d, const ir_buffer *k_or_v, dl_conversion by, const mha_kv_row *key,
                    const ir_expr *column, const ir_expr **out) {
    const mha_row row = mha_kv_row_of(d->c, k_or_v, key);
    if (by == DL_WORDS)
        dl_load_words(d, k_or_v, key, column, out);
    else if (by == DL_I4_TABLE)
        mha_load_nibbles(d->c, &row, column, d->i4, out);
    else
        mha_f8_as_f32(d->c, &d->f8, raw_columns(d, k_or_v, key, column), out);
}

void dl_convert_k(const d_lanes *d, const mha_kv_row *key, const ir_expr *column, const ir_expr **out) {
    if (d->k_by == DL_F8_TABLES && d->c->variant.by_pairs)
        mha_f8_as_bf16(d->c, &d->f8, raw_columns(d, d->c->k, key, column), out);
    else
        convert(d, d->c->k, d->k_by, key, column, out);
}

void dl_convert_v(const d_lanes *d, const mha_kv_row *key, const mha_kv_row *next, const ir_expr *column,
                  const ir_expr **out) {
    ir_builder *b = d->b;
    if (d->v_by != DL_F8_TABLES || !d->c->variant.by_pairs) {
        convert(d, d->c->v, d->v_by, key, column, out);
        return;
    }
    const ir_expr *quantised = raw_columns(d, d->c->v, key, column);
    const ir_expr *none = ir_bitcast(b, IR_F8, ir_splat(b, ir_int(b, IR_I32, 0), d->lanes));
    mha_f8_as_pairs(d->c, &d->f8, quantised, next ? raw_columns(d, d->c->v, next, column) : none, out);
}

/* ---- The order of columns ---- */

/* Lane l is lane from[l] - first of x and y, one after the other; any lane if from[l] is in neither. */
static const ir_expr *lanes_of_two(const d_lanes *d, const ir_expr *x, const ir_expr *y, const int *from, int first,
                                   int lanes) {
    uint8_t pick[IR_MAX_LANES];
    for (int l = 0; l < lanes; l++) {
        const int place = from[l] - first;
        pick[l] = (uint8_t)(place >= 0 && place < 2 * lanes ? place : 0);
    }
    return ir_shuffle(d->b, x, y, lanes, pick);
}

/* Lane l is lane from[l] of all vectors, two or four, one after the other. */
static const ir_expr *gathered(const d_lanes *d, const ir_expr *const *vectors, const int *from, int lanes) {
    const ir_expr *x = lanes_of_two(d, vectors[0], vectors[1], from, 0, lanes);
    if (2 * lanes == TOGETHER) return x;
    uint8_t pick[IR_MAX_LANES];
    const ir_expr *y = lanes_of_two(d, vectors[2], vectors[3], from, 2 * lanes, lanes);
    for (int l = 0; l < lanes; l++) pick[l] = (uint8_t)(from[l] < 2 * lanes ? l : lanes + l);
    return ir_shuffle(d->b, ir_let(d->b, "x", x), ir_let(d->b, "y", y), lanes, pick);
}

/* Permutes the columns of a row of scratch, 64 at a time: column from[i] of them moves to i. */
static void reorder(const d_lanes *d, const ir_buffer *rows, const ir_expr *row, int64_t columns, int lanes,
                    const int *from) {
    ir_builder *b = d->b;
    IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, columns), TOGETHER) {
        const ir_access *place[MOST_VECTORS];
        const ir_expr *x[MOST_VECTORS];
        for (int i = 0; i < TOGETHER / lanes; i++) {
            place[i] = ir_at(b, rows, lanes, 2, row, ir_plus(b, at, (int64_t)i * lanes));
            x[i] = ir_let(b, "x", ir_load(b, place[i]));
        }
        for (int i = 0; i < TOGETHER / lanes; i++) ir_store(b, place[i], gathered(d, x, from + i * lanes, lanes));
    }
}

void dl_order_query(const d_lanes *d, const ir_expr *row) {
    int from[TOGETHER];
    for (int i = 0; i < TOGETHER; i++) from[mha_f8_place(k_form(d), i)] = i;
    reorder(d, d->q, row, d->c->p->head_dim, d->width, from);
}

void dl_order_output(const d_lanes *d, const ir_expr *row) {
    int from[TOGETHER];
    for (int i = 0; i < TOGETHER; i++) from[i] = mha_f8_place(v_form(d), i);
    reorder(d, d->o, row, d->v_columns, d->lanes, from);
}
