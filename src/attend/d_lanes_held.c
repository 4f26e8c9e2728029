/* O = O * factor + P V for one tile, with sums in registers: a register tile is the sums of value_rows query rows by
 * value_column_vectors vectors of columns, and the inner loop goes through the keys. So O is loaded and stored once for
 * a block of keys, where the other nest (d_lanes_value.c) does it for each value_keys keys; and a vector of V that is
 * converted is used for all rows. Keys add up in their order, as they do there in one stream.
 *
 * V is read by stripes of columns, which prefetchers do not follow. So a block is a few kilobytes, which the first
 * cache keeps from one stripe to the next, and each turn asks for the key's line of the next block. */
#include "attend/d_lanes.h"
#include "base/integers.h"
#include "schedule/decide.h"

typedef struct held_tile {
    const dl_streams *streams;
    const ir_expr *from, *to; /* keys of the block */
    int64_t block;
    mha_kv_row next; /* the first key of the page that comes next, if keys lie in pages and a page is a block */
    const ir_expr *first_row;
    int64_t rows;
} held_tile;

/* Pages of usual sizes are blocks. */
static int64_t keys_of_block(const d_lanes *d) {
    enum { BYTES = 8192, LEAST = 8, MOST = 64 };
    const int64_t row = mha_row_elements(d->c, d->c->v, d->c->p->head_dim_v) * mha_dtype_bytes(d->c->p->v_dtype);
    const int64_t keys = max_of(min_of(BYTES / row, MOST), LEAST), page_size = d->c->p->page_size;
    return page_size && page_size <= 2 * keys ? page_size : keys;
}

/* Columns of a stripe: whole words, where V is converted by words. */
static int64_t stripe_columns(const d_lanes *d) {
    return dl_round_up((int64_t)d->c->s->value_column_vectors * d->lanes, dl_columns_at_once(d, d->v_by));
}

/* Rows of a register tile: those of the schedule, or a part of them where whole words make more sums than a schedule
 * may have. They divide value_rows, as numbers of rows are rounded up to multiples of that. */
static int64_t stripe_rows(const d_lanes *d) {
    const int64_t vectors = stripe_columns(d) / d->lanes, all = d->c->s->value_rows;
    int64_t rows = all;
    while (rows > 1 && (all % rows || rows * vectors > MHA_MAX_D_SUMS)) rows--;
    return rows;
}

static const ir_access *sum_at(const d_lanes *d, const held_tile *t, int64_t r, const ir_expr *column) {
    const ir_buffer *o = d->is_serial ? d->tile_o : d->o;
    return ir_at(d->b, o, d->lanes, 2, ir_plus(d->b, t->first_row, r), column);
}

/* The key of the next page may be any key of the tile: the last one, where this page is the last. */
static mha_kv_row next_page(const d_lanes *d, const dl_tile *tile, const dl_streams *streams) {
    ir_builder *b = d->b;
    const ir_expr *end = ir_add(b, streams->first[0], streams->keys);
    const ir_expr *next = ir_add(b, tile->first, ir_min(b, end, ir_plus(b, tile->keys, -1)));
    return mha_kv_row_at(d->c, &d->entry, d->kv_head, dl_first(d, "next", next, ir_idx(b, 1), d->entry.seq_kv));
}

static void ask_ahead(const d_lanes *d, const held_tile *t, const ir_expr *i, const ir_expr *column) {
    const int64_t page_size = d->c->p->page_size;
    mha_kv_row ahead = t->next;
    if (mha_most_keys(d->c->p) <= t->block) return;
    if (page_size == t->block)
        ahead.index[2] = ir_add(d->b, ahead.index[2], i);
    else
        ahead = dl_key_at(d, t->streams, 0, ir_plus(d->b, i, t->block));
    ir_prefetch(d->b, mha_kv_line(d->c, d->c->v, &ahead, column));
}

/* One key: a vector of V after the other, for all rows. */
static void add_key(d_lanes *d, const held_tile *t, mha_product *p, const ir_expr *i, const ir_expr *column,
                    int64_t count) {
    ir_builder *b = d->b;
    const mha_kv_row key = dl_key_at(d, t->streams, 0, i);
    const ir_expr *j = ir_add(b, t->streams->first[0], i);
    for (int64_t v = 0; v < p->vectors; v += d->v_by == DL_WORDS ? 2 : 1) {
        const int64_t done = v * d->lanes;
        const ir_expr *at = ir_plus(b, column, done), *words[2];
        if (d->v_by != DL_WORDS) {
            mha_product_vector(p, "v", v, dl_load_key(d, d->c->v, &key, at, count - done));
            continue;
        }
        dl_convert_v(d, &key, NULL, at, words);
        for (int w = 0; w < 2; w++) mha_product_vector(p, "v", v + w, words[w]);
    }
    ask_ahead(d, t, i, column);
    for (int64_t r = 0; r < p->rows; r++)
        mha_product_repeat(p, "p", r, ir_at(b, d->scores, 1, 2, ir_plus(b, t->first_row, r), j));
}

/* `count` columns from `column` on. */
static void add_stripe(d_lanes *d, void *user, const ir_expr *column, int64_t count) {
    ir_builder *b = d->b;
    const held_tile *t = user;
    mha_product p = mha_product_of(d->c, dl_kind(d), t->rows, ceil_div(count, d->lanes));
    p.vectors_first = true;
    mha_product_begin(&p);
    for (int64_t r = 0; r < p.rows; r++)
        for (int64_t v = 0; v < p.vectors; v++)
            ir_store(b, mha_product_at(&p, r, v), ir_load(b, sum_at(d, t, r, ir_plus(b, column, v * d->lanes))));
    IR_FOR(b, i, t->from, t->to, 1) add_key(d, t, &p, i, column, count);
    for (int64_t r = 0; r < p.rows; r++)
        for (int64_t v = 0; v < p.vectors; v++)
            ir_store(b, sum_at(d, t, r, ir_plus(b, column, v * d->lanes)), mha_product_sum(&p, r, v));
}

static void add_rows(d_lanes *d, const void *user, const ir_expr *first_row, int64_t rows) {
    held_tile t = *(const held_tile *)user;
    t.first_row = first_row;
    t.rows = rows;
    const dl_columns loop = {"column", d->c->p->head_dim_v, stripe_columns(d), 1};
    dl_each_columns(d, &loop, add_stripe, &t);
}

static void add_keys(d_lanes *d, const dl_streams *streams, const void *user) {
    ir_builder *b = d->b;
    held_tile t = {.streams = streams, .block = keys_of_block(d)};
    if (d->c->p->page_size == t.block) t.next = next_page(d, user, streams);
    IR_FOR(b, key, ir_idx(b, 0), streams->keys, t.block) {
        t.from = key;
        t.to = ir_min(b, ir_plus(b, key, t.block), streams->keys);
        dl_each_rows(d, stripe_rows(d), add_rows, &t);
    }
}

void dl_held_values(d_lanes *d, const dl_tile *tile) { dl_each_streams(d, tile, 1, 1, add_keys, tile); }
