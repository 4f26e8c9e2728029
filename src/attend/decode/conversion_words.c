/* K and V of bf16 if arithmetic is f32 without pairs. A word of 32 bits holds two neighbouring columns, and one
 * instruction converts each of them to f32. (Widening half a vector takes two: a shuffle and a shift.)
 *
 *     word     [ column 1 | column 0 ]
 *     odd      [ column 1 |    0     ]       lower bits cleared
 *     even     [ column 0 |    0     ]       shifted
 *
 * So a vector of words becomes a vector of even columns and one of odd columns. The columns of Q are permuted into that
 * order before the scores, and those of O are permuted back at the end. */
#include "attend/decode/layout.h"
#include "nest/columns.h"

bool dl_goes_by_words(const d_lanes *d, const ir_buffer *k_or_v, attune_dtype dtype, int64_t columns) {
    if (!k_or_v || d->planes || d->c->variant.by_pairs) return false;
    const bool is_bf16 = dtype == ATTUNE_BF16 && k_or_v->type.elem == IR_BF16;
    return d->c->elem == IR_F32 && is_bf16 && columns % (2 * d->lanes) == 0;
}

void dl_load_words(const d_lanes *d, const ir_buffer *k_or_v, const mha_kv_row *key, const ir_expr *column,
                   const ir_expr **out) {
    enum { UPPER = -65536, BITS = 16 };
    ir_builder *b = d->b;
    const int columns = 2 * d->lanes;
    const ir_expr *const *index = mha_kv_index(d->c, k_or_v, key);
    const ir_expr *words = ir_bitcast(b, IR_I32, mha_load_raw_columns(d->c, k_or_v, index, column, columns, columns));
    words = ir_let(b, "words", words);
    const ir_expr *even = ir_apply(b, IR_SHL, words, ir_splat(b, ir_int(b, IR_I32, BITS), d->lanes), NULL);
    const ir_expr *odd = ir_and(b, words, ir_splat(b, ir_int(b, IR_I32, UPPER), d->lanes));
    out[0] = ir_bitcast(b, IR_F32, even);
    out[1] = ir_bitcast(b, IR_F32, odd);
}

/* Which lane of two vectors, one after the other, moves to lane l of vector i. */
typedef int order_fn(const d_lanes *d, int i, int l);

static int of_words(const d_lanes *d, int i, int l) {
    (void)d;
    return 2 * l + i;
}

static int of_columns(const d_lanes *d, int i, int l) {
    const int column = i * d->lanes + l;
    return column % 2 * d->lanes + column / 2;
}

static void reorder(const d_lanes *d, const ir_buffer *rows, const ir_expr *row, int64_t columns, order_fn *from) {
    ir_builder *b = d->b;
    IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, columns), 2 * d->lanes) {
        const ir_access *place[2];
        const ir_expr *x[2];
        for (int i = 0; i < 2; i++) {
            place[i] = ir_at(b, rows, d->lanes, 2, row, ir_plus(b, at, (int64_t)i * d->lanes));
            x[i] = ir_let(b, "x", ir_load(b, place[i]));
        }
        for (int i = 0; i < 2; i++) {
            uint8_t pick[IR_MAX_LANES];
            for (int l = 0; l < d->lanes; l++) pick[l] = (uint8_t)from(d, i, l);
            ir_store(b, place[i], ir_shuffle(b, x[0], x[1], d->lanes, pick));
        }
    }
}

void dl_part_columns(const d_lanes *d, const ir_buffer *rows, const ir_expr *row, int64_t columns) {
    reorder(d, rows, row, columns, of_words);
}

void dl_join_columns(const d_lanes *d, const ir_buffer *rows, const ir_expr *row, int64_t columns) {
    reorder(d, rows, row, columns, of_columns);
}
