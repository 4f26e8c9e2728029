/* O += P V for one tile, lanes along the columns of V, sums in registers: value_rows query rows by value_column_vectors
 * vectors of columns. The loops, from the outside in:
 *
 *     for each block of keys                           a few kilobytes of V
 *       for each value_rows rows, each strip of columns
 *         load the sums of O
 *         for each key of the block, one of each stream
 *           sum[row][vector] += p[row][key] * V[key][vector]
 *         store them
 *
 * So O is loaded and stored once for each block (value_streams.c: once for each value_keys keys), and one conversion of
 * a vector of V serves all rows. Keys are added in the same order as there.
 *
 * V is read by strips of columns, an order that hardware prefetchers do not predict. The L1 cache keeps a block from
 * one strip to the next. With one stream, each iteration prefetches its lines of the next block. */
#include "attend/decode/layout.h"
#include "base/integers.h"
#include "schedule/variant.h"

typedef struct held_tile {
    const dl_streams *streams;
    const ir_expr *from, *to; /* keys of the block */
    int64_t block;
    mha_kv_row next; /* the first key of the next page, if keys are in pages and a page is a block */
    const ir_expr *first_row;
    int64_t rows;
} held_tile;

/* About 8 KB of V; a page, if its size is near that. */
static int64_t keys_of_block(const d_lanes *d) {
    enum { BYTES = 8192, LEAST = 8, MOST = 64 };
    const int64_t row = mha_row_elements(d->c, d->c->v, d->c->p->head_dim_v) * mha_dtype_bytes(d->c->p->v_dtype);
    const int64_t keys = max_of(min_of(BYTES / row, MOST), LEAST), page_size = d->page_size;
    return page_size && page_size <= 2 * keys ? page_size : keys;
}

/* Columns of a strip; whole words if V is converted by words. */
static int64_t strip_columns(const d_lanes *d) {
    return dl_round_up((int64_t)d->c->s->value_column_vectors * d->lanes, dl_columns_at_once(d, d->v_by));
}

/* Rows of a register tile: value_rows, or a divisor of it if a strip of whole words makes more sums than a schedule may
 * have. Row counts are rounded up to multiples of value_rows, so a divisor fits. */
static int64_t strip_rows(const d_lanes *d) {
    const int64_t vectors = strip_columns(d) / d->lanes, all = d->c->s->value_rows;
    int64_t rows = all;
    while (rows > 1 && (all % rows || rows * vectors > MHA_MAX_D_SUMS)) rows--;
    return rows;
}

static const ir_access *sum_at(const d_lanes *d, const held_tile *t, int64_t r, const ir_expr *column) {
    const ir_buffer *o = d->is_serial ? d->tile_o : d->o;
    return ir_at(d->b, o, d->lanes, 2, ir_plus(d->b, t->first_row, r), column);
}

/* Key number i of a stream. */
typedef struct held_key {
    int64_t stream;
    const ir_expr *i;
} held_key;

/* Prefetches each line of V that begins in the strip, a block ahead. Hardware prefetchers follow one stream if strips
 * are whole rows, and with several streams software prefetching was no faster. */
static void prefetch_next(const d_lanes *d, const held_tile *t, const held_key *key, const ir_expr *column,
                          int64_t count) {
    enum { LINE = 64 };
    const int64_t page_size = d->page_size, line = LINE / mha_dtype_bytes(d->c->p->v_dtype);
    mha_kv_row ahead = t->next;
    if (mha_most_scored(d->c->p) <= t->block || count == d->c->p->head_dim_v || t->streams->count > 1) return;
    if (page_size == t->block)
        ahead.index[2] = ir_add(d->b, ahead.index[2], key->i);
    else
        ahead = dl_key_at(d, t->streams, 0, ir_plus(d->b, key->i, t->block));
    for (int64_t done = 0; done < count; done += line)
        ir_prefetch(d->b, mha_kv_line(d->c, d->c->v, &ahead, ir_plus(d->b, column, done)));
}

/* Sums of a register tile. A product keeps the factors of one side in registers and loads those of the other side one
 * by one. It keeps the side with fewer factors: vectors of V, or rows of P. */
typedef struct held_sums {
    mha_product product;
    bool keeps_rows;
} held_sums;

static held_sums sums_of(const d_lanes *d, int64_t rows, int64_t vectors) {
    const bool keeps_rows = d->v_by == DL_SINGLE && rows < vectors;
    held_sums s = {.keeps_rows = keeps_rows};
    s.product = mha_product_of(d->c, dl_kind(d), keeps_rows ? vectors : rows, keeps_rows ? rows : vectors);
    s.product.vectors_first = !keeps_rows;
    mha_product_begin(&s.product);
    return s;
}

static const ir_access *held_at(const held_sums *s, int64_t row, int64_t vector) {
    return mha_product_at(&s->product, s->keeps_rows ? vector : row, s->keeps_rows ? row : vector);
}

static const ir_access *probability(const d_lanes *d, const held_tile *t, int64_t row, const held_key *key) {
    const ir_expr *j = ir_add(d->b, t->streams->first[key->stream], key->i);
    return ir_at(d->b, d->scores, 1, 2, ir_plus(d->b, t->first_row, row), j);
}

/* Adds one key; its probabilities stay in registers, and its vectors of V are loaded one by one. */
static void add_key_by_vectors(d_lanes *d, const held_tile *t, mha_product *p, const held_key *at,
                               const ir_expr *column, int64_t count) {
    const mha_kv_row key = dl_key_at(d, t->streams, at->stream, at->i);
    for (int64_t r = 0; r < p->vectors; r++) {
        const ir_expr *repeated = mha_load_repeated(d->c, dl_kind(d), probability(d, t, r, at), d->lanes);
        mha_product_vector(p, "p", r, repeated);
    }
    prefetch_next(d, t, at, column, count);
    for (int64_t v = 0; v < p->rows; v++) {
        const int64_t done = v * d->lanes;
        mha_product_row(p, "v", v, dl_load_key(d, d->c->v, &key, ir_plus(d->b, column, done), count - done));
    }
}

/* Adds one key; its vectors of V stay in registers, and its probabilities are loaded one by one. */
static void add_key_by_rows(d_lanes *d, const held_tile *t, mha_product *p, const held_key *at, const ir_expr *column,
                            int64_t count) {
    ir_builder *b = d->b;
    const mha_kv_row key = dl_key_at(d, t->streams, at->stream, at->i);
    for (int64_t v = 0; v < p->vectors; v += d->v_by == DL_WORDS ? 2 : 1) {
        const int64_t done = v * d->lanes;
        const ir_expr *from = ir_plus(b, column, done), *words[2];
        if (d->v_by != DL_WORDS) {
            mha_product_vector(p, "v", v, dl_load_key(d, d->c->v, &key, from, count - done));
            continue;
        }
        dl_convert_v(d, &key, NULL, from, words);
        for (int w = 0; w < 2; w++) mha_product_vector(p, "v", v + w, words[w]);
    }
    prefetch_next(d, t, at, column, count);
    for (int64_t r = 0; r < p->rows; r++) mha_product_repeat(p, "p", r, probability(d, t, r, at));
}

/* Adds the keys of the block to `count` columns from `column` on. */
static void add_strip(d_lanes *d, const held_tile *t, const ir_expr *column, int64_t count) {
    ir_builder *b = d->b;
    const int64_t vectors = ceil_div(count, d->lanes);
    held_sums s = sums_of(d, t->rows, vectors);
    for (int64_t r = 0; r < t->rows; r++)
        for (int64_t v = 0; v < vectors; v++)
            ir_store(b, held_at(&s, r, v), ir_load(b, sum_at(d, t, r, ir_plus(b, column, v * d->lanes))));
    IR_FOR(b, i, t->from, t->to, 1) {
        for (int64_t stream = 0; stream < t->streams->count; stream++) {
            const held_key key = {stream, i};
            (s.keeps_rows ? add_key_by_vectors : add_key_by_rows)(d, t, &s.product, &key, column, count);
        }
    }
    for (int64_t r = 0; r < t->rows; r++)
        for (int64_t v = 0; v < vectors; v++)
            ir_store(b, sum_at(d, t, r, ir_plus(b, column, v * d->lanes)), ir_load(b, held_at(&s, r, v)));
}

static void add_keys(d_lanes *d, const dl_streams *streams, const void *user) {
    ir_builder *b = d->b;
    held_tile t = {.streams = streams, .block = max_of(keys_of_block(d) / streams->count, 1)};
    if (streams->count == 1 && d->page_size == t.block) {
        /* The first key after this page; if there is none in the tile, the tile's last key, as any valid key will do.
         */
        const dl_tile *tile = user;
        const ir_expr *end = ir_add(b, streams->first[0], streams->keys);
        const ir_expr *next = ir_add(b, tile->first, ir_min(b, end, ir_plus(b, tile->keys, -1)));
        next = dl_first(d, "next", next, ir_idx(b, 1), d->sequence.seq_kv);
        t.next = mha_kv_row_at(d->c, &d->sequence, d->kv_head, next);
    }
    IR_FOR(b, key, ir_idx(b, 0), streams->keys, t.block) {
        t.from = key;
        t.to = ir_min(b, ir_plus(b, key, t.block), streams->keys);
        DL_ROWS(d, rows, strip_rows(d)) {
            t.first_row = rows.first;
            t.rows = rows.count;
            DL_COLUMNS(d, c, "column", d->c->p->head_dim_v, strip_columns(d), 1) add_strip(d, &t, c.at, c.count);
        }
    }
}

static void add_tile(d_lanes *d, const dl_tile *tile) {
    dl_each_streams(d, tile, d->c->s->value_streams, 1, add_keys, tile);
}

void dl_held_values(d_lanes *d, const dl_tile *tile) { dl_add_values(d, tile, add_tile, dl_add_carefully); }
