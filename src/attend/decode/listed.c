/* Keys that a list names (kv_ids). The addresses of a tile's keys are looked up once for each tile, in the list and, if
 * K and V are paged, in the block table:
 *
 *     list            [ 7, 2, 40, … ]        keys of the sequence; all other files number keys by their place here
 *     slots, pages    [ … ]                  scratch: the token of each in K and V, or page and slot
 *
 * Listed rows are scattered, so hardware prefetchers cannot predict them. Therefore the lookup goes some keys beyond
 * the tile, and dl_prefetch_key prefetches these while the tile's last keys are read. */
#include "attend/decode/layout.h"
#include "base/integers.h"
#include "problem/problem.h"

enum { LINE = 64 };

/* Whether keys of the next tile are prefetched, too (dl_ahead). Fewer rows wait for memory in any case, and then it is
 * best to prefetch a few keys ahead; more rows, or quantised rows, multiply for so long that reading hardly matters. */
static bool prefetches_next_tile(const d_lanes *d) {
    enum { LEAST_ROWS = 8, MOST_ROWS = 16 };
    const mha_context *c = d->c;
    if (!d->is_listed || d->is_serial || c->v != c->k || c->s->kv_prefetch <= 0) return false;
    return d->max_rows >= LEAST_ROWS && d->max_rows <= MOST_ROWS && !mha_is_quantised(c->p->k_dtype) &&
           mha_most_scored(c->p) > c->s->kv_tile;
}

/* How many keys beyond a tile are looked up: those that are prefetched while a register tile reads the tile's last
 * keys, or the next tile. */
static int64_t keys_beyond(const d_lanes *d) {
    const int64_t ahead = DL_MOST_KEYS_AHEAD + DL_MAX_STREAMS;
    return prefetches_next_tile(d) ? max_of(ahead, d->c->s->kv_tile) : ahead;
}

void dl_alloc_places(d_lanes *d) {
    const int64_t keys = d->c->s->kv_tile + keys_beyond(d);
    if (!d->is_listed) return;
    d->slots = ir_scratch(d->b, "slots", IR_I32, 1, &keys);
    if (d->is_serial) d->sum_chunks = ir_scratch(d->b, "sum_chunks", IR_I32, 1, &keys);
    if (d->c->p->page_size) d->pages = ir_scratch(d->b, "pages", IR_I32, 1, &keys);
}

void dl_open_list(d_lanes *d) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    const ir_buffer *const lens = c->params.tensor[MHA_KV_ID_LENS];
    if (!d->is_listed) return;
    d->cache = d->sequence;
    d->list[0] = d->sequence.number, d->list[1] = ir_idx(b, 0);
    if (d->by_query) {
        const ir_expr *query = ir_div(b, d->first_row, c->params.size[MHA_GROUP]);
        query = dl_first(d, "listing", query, ir_idx(b, 1), d->sequence.seq_q);
        d->list[0] = d->sequence.batch, d->list[1] = ir_let(b, "list", ir_add(b, d->sequence.first_q, query));
    }
    const ir_expr *length = c->params.size[MHA_NUM_IDS];
    if (lens) {
        const ir_expr *own = ir_cast(b, IR_IDX, ir_load(b, ir_at(b, lens, 1, 2, d->list[0], d->list[1])));
        length = ir_let(b, "listed", ir_min(b, length, ir_max(b, ir_idx(b, 0), own)));
    }
    d->sequence.seq_kv = length;
}

/* The key at place j of the list, 0 <= j < seq_kv. */
static const ir_expr *key_at(const d_lanes *d, const ir_expr *j) {
    ir_builder *b = d->b;
    const ir_buffer *const ids = d->c->params.tensor[MHA_KV_IDS];
    const ir_expr *id = ir_cast(b, IR_IDX, ir_load(b, ir_at(b, ids, 1, 3, d->list[0], d->list[1], j)));
    return ir_let_index(b, "id", d->cache.seq_kv, id);
}

static const ir_expr *place_in(const d_lanes *d, const ir_buffer *places, const char *name, const ir_expr *size,
                               const ir_expr *j) {
    return ir_let_index(d->b, name, size, ir_cast(d->b, IR_IDX, ir_load(d->b, ir_at(d->b, places, 1, 1, j))));
}

mha_kv_row dl_listed_key(const d_lanes *d, const ir_expr *j) {
    const mha_context *c = d->c;
    const ir_expr *first = d->cache.kv_batch;
    if (d->pages) first = place_in(d, d->pages, "page", c->params.size[MHA_NUM_PAGES], j);
    return (mha_kv_row){.index = {first, d->kv_head, place_in(d, d->slots, "token", mha_kv_tokens(c, c->k), j)}};
}

static void prefetch_row(const d_lanes *d, const ir_buffer *k_or_v, const mha_kv_row *key, int64_t columns) {
    const int64_t step = LINE / ir_elem_get((ir_elem)k_or_v->type.elem)->bytes;
    for (int64_t column = 0; column < mha_row_elements(d->c, k_or_v, columns); column += step)
        ir_prefetch(d->b, mha_kv_line(d->c, k_or_v, key, ir_idx(d->b, column)));
}

dl_ahead dl_keys_of_next_tile(const d_lanes *d, const dl_tile *tile, const ir_expr *first, int64_t keys, int parity,
                              const dl_rows *rows, int64_t step) {
    enum { USUAL_TILES = 4 };
    ir_builder *b = d->b;
    const int64_t tiles = d->fixed_rows ? max_of(d->fixed_rows / step, 1) : USUAL_TILES;
    if (!prefetches_next_tile(d) || keys % 2 || (tiles > 1 && rows->count < step)) return (dl_ahead){0};
    dl_ahead ahead = {.keys = ceil_div(keys / 2, tiles)};
    const ir_expr *number = ir_times(b, ir_div(b, rows->first, ir_idx(b, step)), ahead.keys);
    for (int64_t key = 0; key < ahead.keys; key++) {
        const ir_expr *i = ir_times(b, ir_min(b, ir_plus(b, number, key), ir_idx(b, keys / 2 - 1)), 2);
        const ir_expr *j = ir_min(b, ir_add(b, first, ir_plus(b, i, parity)), ir_plus(b, tile->keys, -1));
        j = dl_first(d, "ahead", j, ir_idx(b, 1), tile->keys);
        ahead.key[key] = dl_listed_key(d, ir_plus(b, j, d->c->s->kv_tile));
    }
    return ahead;
}

void dl_prefetch_ahead(const d_lanes *d, const dl_ahead *ahead, const ir_expr *column, int64_t count) {
    const ir_buffer *const k = d->c->k;
    const int64_t step = LINE / ir_elem_get((ir_elem)k->type.elem)->bytes;
    for (int64_t key = 0; key < ahead->keys; key++)
        for (int64_t done = 0; done < count; done += step)
            ir_prefetch_far(d->b, mha_kv_line(d->c, k, &ahead->key[key], ir_plus(d->b, column, done)));
}

/* Prefetches the first keys of a tile and their values, which no earlier loop has prefetched. */
static void prefetch_first(const d_lanes *d, const dl_tile *tile) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    const int64_t ahead = dl_keys_ahead(d, c->k);
    if (!ahead) return;
    IR_FOR(b, i, ir_idx(b, 0), ir_min(b, tile->keys, ir_idx(b, ahead)), 1) {
        const mha_kv_row key = dl_listed_key(d, i);
        prefetch_row(d, c->k, &key, c->p->head_dim);
        if (c->v != c->k) prefetch_row(d, c->v, &key, c->p->head_dim_v);
    }
}

/* The first and the last line of a row: its other lines are prefetched one by one, and the first of a page would each
 * time wait for the page's address. Here many wait side by side. */
static void prefetch_ends(const d_lanes *d, const mha_kv_row *row) {
    const int64_t columns = mha_row_elements(d->c, d->c->k, d->c->p->head_dim);
    ir_prefetch_far(d->b, mha_kv_line(d->c, d->c->k, row, ir_idx(d->b, 0)));
    ir_prefetch_far(d->b, mha_kv_line(d->c, d->c->k, row, ir_idx(d->b, columns - 1)));
}

void dl_locate_keys(d_lanes *d, const dl_tile *tile) {
    ir_builder *b = d->b;
    if (!d->is_listed) return;
    const ir_expr *last = ir_plus(b, d->sequence.seq_kv, -1);
    const ir_expr *count = ir_plus(b, tile->keys, keys_beyond(d));
    IR_FOR(b, i, ir_idx(b, 0), count, 1) {
        const ir_expr *j = ir_let_index(b, "place", d->sequence.seq_kv, ir_min(b, ir_add(b, tile->first, i), last));
        const ir_expr *key = key_at(d, j);
        const mha_kv_row at = mha_kv_row_at(d->c, &d->cache, d->kv_head, key);
        if (d->sum_chunks) {
            const ir_expr *chunk = ir_div(b, key, ir_idx(b, MHA_CHUNK));
            ir_store(b, ir_at(b, d->sum_chunks, 1, 1, i), ir_cast(b, IR_I32, chunk));
        }
        ir_store(b, ir_at(b, d->slots, 1, 1, i), ir_cast(b, IR_I32, at.index[2]));
        if (d->pages) ir_store(b, ir_at(b, d->pages, 1, 1, i), ir_cast(b, IR_I32, at.index[0]));
        if (prefetches_next_tile(d)) prefetch_ends(d, &at);
    }
    prefetch_first(d, tile);
}

const ir_expr *dl_listed_run(const d_lanes *d, const ir_expr *key, const ir_expr *end) {
    ir_builder *b = d->b;
    const ir_expr *size = ir_idx(b, d->c->s->kv_tile), *none = ir_int(b, IR_I32, 0);
    const ir_expr *own = ir_let(b, "own_tile", ir_div(b, key_at(d, key), size));
    const ir_expr *before = ir_let_index(b, "before", end, ir_max(b, ir_idx(b, 0), ir_plus(b, key, -1)));
    const ir_expr *begins = ir_or(b, ir_eq(b, key, ir_idx(b, 0)), ir_ne(b, ir_div(b, key_at(d, before), size), own));
    const ir_access *run = ir_mutable(b, "run", none);
    IR_IF(b, begins) {
        IR_FOR(b, next, key, ir_min(b, end, ir_add(b, key, size)), 1) {
            const ir_expr *is_own = ir_eq(b, ir_div(b, key_at(d, next), size), own);
            const ir_expr *more = ir_select(b, is_own, ir_int(b, IR_I32, 1), none);
            ir_store(b, run, ir_add(b, ir_load(b, run), more));
        }
    }
    return ir_let(b, "run_keys", ir_cast(b, IR_IDX, ir_load(b, run)));
}

/* A chunk (MHA_CHUNKS) without a listed key adds 0 in dense attention, which changes no bit, so it is skipped here. */
const ir_expr *dl_listed_sum(d_lanes *d, const dl_tile *tile, const ir_expr *r) {
    ir_builder *b = d->b;
    const ir_access *sum = mha_new_sum(d->c, "sum", 1), *part = mha_new_sum(d->c, "part", 1);
    const ir_access *chunk = ir_mutable(b, "sum_chunk", ir_int(b, IR_I32, -1));
    IR_FOR(b, j, ir_idx(b, 0), tile->keys, 1) {
        const ir_expr *own = ir_let(b, "own_chunk", ir_load(b, ir_at(b, d->sum_chunks, 1, 1, j)));
        IR_IF(b, ir_ne(b, own, ir_load(b, chunk))) {
            mha_add_term(d->c, sum, ir_load(b, part));
            ir_store(b, part, mha_number(d->c, 0, 1));
            ir_store(b, chunk, own);
        }
        mha_add_term(d->c, part, ir_load(b, ir_at(b, d->scores, 1, 2, r, j)));
    }
    mha_add_term(d->c, sum, ir_load(b, part));
    return ir_load(b, sum);
}
