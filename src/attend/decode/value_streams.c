/* O += P V for one tile, lanes along the columns of V, sums in memory. The loops, from the outside in:
 *
 *     for each value_keys keys, one of each stream     (or pairs of keys)
 *       for each value_rows query rows                 their probabilities are in registers, in all lanes
 *         for each vector of columns
 *           O[row][columns] += p[row][key] * V[key][columns], for these keys
 *
 * So V is read along its rows, which hardware prefetchers follow. The rows of an iteration belong to different streams;
 * with one stream they are neighbouring keys. O stays in the L1 cache. */
#include "nest/columns.h"
#include "attend/decode/layout.h"
#include "base/integers.h"

/* The keys of one iteration, in units. A unit is a key, or a pair of neighbouring keys if products are of pairs; a last
 * key may be left alone. */
typedef struct value_tile {
    const dl_tile *tile;
    const dl_streams *streams;
    const ir_expr *first; /* key of each stream */
    int64_t units;        /* unit u is number u / count of stream u % count */
    bool alone;           /* the unit is one key */
    bool careful;         /* hidden values may be NaN or infinite */
} value_tile;

/* A register tile, which moves along the columns. */
typedef struct row_tile {
    const value_tile *t;
    const ir_expr *first_row;
    int64_t rows;
    mha_kv_row key[IR_MAX_LANES][2];
    mha_panel_unit unit[IR_MAX_LANES]; /* the same for pairs in panels */
    const ir_expr *p[IR_MAX_LANES];    /* [rows, units], in all lanes */
    const ir_expr *sees[IR_MAX_LANES]; /* the same, if t->careful: bool, or i32 masks of pairs */
} row_tile;

static int64_t keys_of_unit(const d_lanes *d) { return d->width / d->lanes; }

static const ir_expr *row_at(const d_lanes *d, const row_tile *r, int64_t row) {
    return ir_plus(d->b, r->first_row, row);
}

/* ---- the sight of rows ---- */

/* Whether a row attends to key j of the tile. */
static const ir_expr *is_visible(const d_lanes *d, const row_tile *tile, int64_t r, const ir_expr *j) {
    const dl_row row = dl_row_at(d, row_at(d, tile, r));
    const dl_sight sight = dl_sight_of(d, tile->t->tile, &row);
    return dl_sees(d, &sight, j, 1, dl_bias(d, &sight, j, 1));
}

static const ir_expr *sees(const d_lanes *d, const row_tile *tile, int64_t r, const ir_expr *j) {
    ir_builder *b = d->b;
    const ir_expr *seen = is_visible(d, tile, r, j), *next = NULL;
    if (d->c->variant.by_pairs && !tile->t->alone) next = is_visible(d, tile, r, ir_plus(b, j, 1));
    return ir_let(b, "sees", ir_splat(b, d->c->variant.by_pairs ? mha_seen_bits(d->c, seen, next) : seen, d->lanes));
}

/* ---- pairs ---- */

/* Columns of a row of V in a segment of 128 bits, within which unpack instructions work. Each of the two vectors gets
 * half of them. */
static int segment_columns(const d_lanes *d) { return d->width < 8 ? d->width : 8; }

void dl_restore_order(d_lanes *d, const ir_expr *row) {
    ir_builder *b = d->b;
    const int segment = segment_columns(d);
    IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, d->v_columns), d->width) {
        const ir_access *to[2];
        const ir_expr *from[2];
        for (int i = 0; i < 2; i++) {
            to[i] = ir_at(b, d->o, d->lanes, 2, row, ir_plus(b, at, i * d->lanes));
            from[i] = ir_let(b, "o", ir_load(b, to[i]));
        }
        for (int i = 0; i < 2; i++) {
            uint8_t pick[IR_MAX_LANES];
            for (int l = 0; l < d->lanes; l++) {
                const int column = i * d->lanes + l, in_segment = column % segment, upper = in_segment >= segment / 2;
                pick[l] = (uint8_t)(upper * d->lanes + column / segment * (segment / 2) + in_segment % (segment / 2));
            }
            ir_store(b, to[i], ir_shuffle(b, from[0], from[1], d->lanes, pick));
        }
    }
}

/* ---- a register tile ---- */

/* O[row, column…] += P V, with a vector value[u] for each unit. */
static void add_products(d_lanes *d, const row_tile *tile, int64_t r, const ir_expr *column,
                         const ir_expr *const *value) {
    ir_builder *b = d->b;
    const int64_t units = tile->t->units;
    const ir_access *o = ir_at(b, d->is_serial ? d->tile_o : d->o, d->lanes, 2, row_at(d, tile, r), column);
    const ir_expr *sum = ir_load(b, o);
    for (int64_t u = 0; u < units; u++) {
        const ir_expr *v = value[u], *seen = tile->sees[r * units + u], *p = tile->p[r * units + u];
        if (seen) v = mha_where_seen(d->c, dl_kind(d), seen, v);
        sum = mha_accumulate(d->c, dl_kind(d), v, p, sum);
    }
    ir_store(b, o, sum);
}

/* The same for all rows and two vectors of pairs from panels, of which `count` columns exist. */
static void add_pairs(d_lanes *d, const row_tile *tile, const ir_expr *column, int64_t count) {
    ir_builder *b = d->b;
    const ir_expr *first = ir_splat(b, mha_seen_bits(d->c, ir_int(b, IR_BOOL, 1), NULL), d->lanes);
    for (int64_t i = 0; i * d->lanes < count && i < keys_of_unit(d); i++) {
        const ir_expr *at = ir_plus(b, column, i * d->lanes), *value[IR_MAX_LANES];
        for (int64_t u = 0; u < tile->t->units; u++) {
            const ir_expr *v = mha_load_panel_values(d->c, &tile->unit[u], at, d->lanes, count - i * d->lanes);
            if (tile->t->alone) v = mha_where_seen(d->c, MHA_DOT2, first, v);
            value[u] = ir_let(b, "v", v);
        }
        for (int64_t r = 0; r < tile->rows; r++) add_products(d, tile, r, at, value);
    }
}

/* The same for all rows and a vector of columns of V, of which `count` exist. With pairs, interleaving gives two
 * vectors: of the lower and the upper halves of segments. */
static void add_vector(d_lanes *d, const row_tile *tile, const ir_expr *column, int64_t count) {
    ir_builder *b = d->b;
    const ir_expr *value[2][IR_MAX_LANES];
    if (d->c->variant.by_pairs && d->v_by_panels) {
        add_pairs(d, tile, column, count);
        return;
    }
    for (int64_t u = 0; u < tile->t->units; u++) {
        const ir_expr *v = ir_let(b, "v", dl_load_key(d, d->c->v, &tile->key[u][0], column, count));
        value[0][u] = v;
        if (!d->c->variant.by_pairs) continue;
        const ir_expr *next =
            tile->t->alone ? mha_zero_pairs(d->c, d->lanes) : dl_load_key(d, d->c->v, &tile->key[u][1], column, count);
        next = ir_let(b, "v", next);
        for (int i = 0; i < 2; i++)
            value[i][u] = ir_let(b, "v", mha_interleave(d->c, v, next, d->lanes, segment_columns(d), i));
    }
    for (int64_t r = 0; r < tile->rows; r++)
        for (int64_t i = 0; i < keys_of_unit(d); i++)
            add_products(d, tile, r, ir_plus(b, column, i * d->lanes), value[i]);
}

/* The same for columns that are converted to several vectors at once. */
static void add_converted(d_lanes *d, const row_tile *tile, const ir_expr *column, int64_t count) {
    const ir_expr *value[4][IR_MAX_LANES];
    for (int64_t u = 0; u < tile->t->units; u++) {
        const ir_expr *v[4];
        dl_convert_v(d, &tile->key[u][0], tile->t->alone ? NULL : &tile->key[u][1], column, v);
        for (int i = 0; i < count / d->lanes; i++) value[i][u] = ir_let(d->b, "v", v[i]);
    }
    for (int64_t i = 0; i * d->lanes < count; i++)
        for (int64_t r = 0; r < tile->rows; r++)
            add_products(d, tile, r, ir_plus(d->b, column, i * d->lanes), value[i]);
}

/* P of a unit whose first key is j, in all lanes. */
static const ir_expr *probabilities(const d_lanes *d, const ir_expr *row, const ir_expr *j, bool alone) {
    ir_builder *b = d->b;
    const ir_expr *p = d->c->variant.by_pairs ? mha_load_raw_columns(d->c, d->rounded, &row, j, 2, alone ? 1 : 2)
                                              : ir_load(b, ir_at(b, d->scores, 1, 2, row, j));
    return mha_repeat(d->c, dl_kind(d), p, d->lanes);
}

/* The places of pairs in panels. With one stream, an iteration's pairs are in one panel if iterations divide a panel.
 */
static void open_units(d_lanes *d, row_tile *tile) {
    enum { PAIRS = ATTUNE_PANEL_TOKENS / 2 };
    const bool is_one_panel = tile->t->streams->count == 1 && PAIRS % tile->t->units == 0;
    if (!d->c->variant.by_pairs || !d->v_by_panels) return;
    for (int64_t u = 0; u < tile->t->units; u++) {
        const mha_row row = mha_kv_row_of(d->c, d->c->v, &tile->key[u][0]);
        if (u && is_one_panel)
            tile->unit[u] = mha_panel_unit_after(d->c, &tile->unit[0], u);
        else
            tile->unit[u] = mha_panel_unit_of(d->c, &row);
    }
}

static dl_ahead ahead_of(const d_lanes *d, const row_tile *tile, int64_t rows) {
    const value_tile *t = tile->t;
    if (t->careful || t->alone) return (dl_ahead){0};
    const ir_expr *first = ir_add(d->b, t->streams->first[0], t->first);
    return dl_keys_of_next_tile(d, t->tile, first, t->units * keys_of_unit(d), 1,
                                &(dl_rows){tile->first_row, rows, false}, d->c->s->value_rows);
}

static void add_rows(d_lanes *d, const value_tile *t, const dl_rows *some) {
    ir_builder *b = d->b;
    const int64_t rows = some->count;
    row_tile tile = {.t = t, .first_row = some->first, .rows = rows};
    for (int64_t u = 0; u < t->units; u++) {
        const int64_t stream = u % t->streams->count, skipped = u / t->streams->count * keys_of_unit(d);
        const ir_expr *i = ir_plus(b, t->first, skipped), *j = ir_add(b, t->streams->first[stream], i);
        tile.key[u][0] = dl_key_at(d, t->streams, stream, i);
        if (d->c->variant.by_pairs && !t->alone) tile.key[u][1] = dl_key_at(d, t->streams, stream, ir_plus(b, i, 1));
        for (int64_t r = 0; r < rows; r++) {
            const ir_expr *p = probabilities(d, row_at(d, &tile, r), j, t->alone);
            const ir_expr *seen = t->careful ? sees(d, &tile, r, j) : NULL;
            if (seen && d->c->params.tensor[MHA_V_SCALE]) p = mha_where_seen(d->c, dl_kind(d), seen, p);
            tile.p[r * t->units + u] = ir_let(b, "p", p);
            tile.sees[r * t->units + u] = seen;
        }
    }
    open_units(d, &tile);
    const dl_ahead ahead = ahead_of(d, &tile, rows);
    const int64_t width = dl_columns_at_once(d, d->v_by);
    DL_COLUMNS(d, c, "column", d->c->p->head_dim_v, width, d->c->s->value_column_vectors) {
        dl_prefetch_ahead(d, &ahead, c.at, c.count);
        (d->v_by ? add_converted : add_vector)(d, &tile, c.at, c.count);
    }
}

/* ---- streams ---- */

/* Adds keys from `from` on, in iterations of `units` units. Returns how many keys of the stream remain, or NULL if
 * there can be none. */
static const ir_expr *add_iterations(d_lanes *d, value_tile *t, const ir_expr *from, int64_t units) {
    ir_builder *b = d->b;
    const ir_expr *keys = t->streams->keys;
    const int64_t step = units / t->streams->count * keys_of_unit(d);
    t->units = units;
    IR_FOR(b, i, from, ir_sub(b, keys, ir_idx(b, step - 1)), step) {
        t->first = i;
        const bool is_read = d->is_listed && d->c->v == d->c->k; /* the scores have just read it */
        for (int s = 0; s < t->streams->count && !is_read; s++)
            for (int64_t key = 0; key < step; key++) dl_prefetch_key(d, d->c->v, t->streams, s, ir_plus(b, i, key));
        DL_ROWS(d, rows, d->c->s->value_rows) add_rows(d, t, &rows);
    }
    const ir_expr *rest = ir_mod(b, keys, ir_idx(b, step));
    return ir_is(rest, 0) ? NULL : rest;
}

/* The first of the last `rest` keys, which are at least `least`. */
static const ir_expr *end_of(const d_lanes *d, const value_tile *t, const ir_expr *rest, int64_t least) {
    const ir_expr *keys = t->streams->keys;
    return dl_first(d, "done", ir_sub(d->b, keys, rest), ir_idx(d->b, least), keys);
}

/* Units of an iteration. */
static int64_t units_of(const d_lanes *d) { return max_of(d->c->s->value_keys, d->c->s->value_streams); }

static void add_unit(d_lanes *d, const dl_streams *unit, const void *user) {
    value_tile t = *(const value_tile *)user;
    t.streams = unit;
    t.first = ir_idx(d->b, 0);
    t.units = 1;
    DL_ROWS(d, rows, d->c->s->value_rows) add_rows(d, &t, &rows);
}

static void add_streams(d_lanes *d, const dl_streams *streams, const void *user) {
    value_tile t = *(const value_tile *)user;
    const int64_t units = t.careful ? 1 : units_of(d);
    t.streams = streams;
    dl_open_tables(d);
    if (t.careful && streams->count > 1) {
        dl_each_unit(d, t.tile, streams, units_of(d), keys_of_unit(d), add_unit, &t);
        return;
    }
    const bool side_by_side = streams->count > 1 || (d->c->s->value_streams == 1 && !t.careful);
    const ir_expr *from = ir_idx(d->b, 0), *rest = NULL;
    if (side_by_side && units > 1) {
        rest = add_iterations(d, &t, from, units);
        if (streams->count > 1 || !rest) return;
        from = end_of(d, &t, rest, 0);
    }
    rest = add_iterations(d, &t, from, 1);
    if (!rest) return;
    t.alone = true;
    t.units = 1;
    IR_IF(d->b, ir_gt(d->b, rest, ir_idx(d->b, 0))) {
        t.first = end_of(d, &t, rest, 1);
        DL_ROWS(d, rows, d->c->s->value_rows) add_rows(d, &t, &rows);
    }
}

/* Adds P V of a tile to O. */
static void add_tile(d_lanes *d, const dl_tile *tile, bool careful) {
    const value_tile t = {.tile = tile, .careful = careful};
    const int count = d->c->s->value_streams;
    dl_each_streams(d, tile, count, units_of(d) / count * keys_of_unit(d), add_streams, &t);
}

void dl_add_carefully(d_lanes *d, const dl_tile *tile) { add_tile(d, tile, true); }

static void add_plainly(d_lanes *d, const dl_tile *tile) { add_tile(d, tile, false); }

void dl_values(d_lanes *d, const dl_tile *tile) { dl_add_values(d, tile, add_plainly, dl_add_carefully); }
