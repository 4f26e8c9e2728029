/* Keys that a list names (kv_ids). The addresses of a tile's keys are looked up once for each tile, in the list and, if
 * K and V are paged, in the block table:
 *
 *     list            [ 7, 2, 40, … ]        keys of the sequence; all other files number keys by their place here
 *     slots, pages    [ … ]                  scratch: the token of each in K and V, or page and slot
 *
 * Listed rows are scattered, so hardware prefetchers cannot predict them. Therefore the lookup goes some keys beyond
 * the tile, and dl_prefetch_key prefetches these while the tile's last keys are read. */
#include "attend/decode/layout.h"

/* How many keys beyond a tile are looked up: as many as may be prefetched while a register tile reads the tile's last
 * keys. */
enum { KEYS_BEYOND = DL_MOST_KEYS_AHEAD + DL_MAX_STREAMS };

void dl_alloc_places(d_lanes *d) {
    const int64_t keys = d->c->s->kv_tile + KEYS_BEYOND;
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
        const ir_expr *query = ir_div(b, d->first_row, ir_idx(b, c->group));
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
    enum { LINE = 64 };
    const int64_t step = LINE / ir_elem_get((ir_elem)k_or_v->type.elem)->bytes;
    for (int64_t column = 0; column < mha_row_elements(d->c, k_or_v, columns); column += step)
        ir_prefetch(d->b, mha_kv_line(d->c, k_or_v, key, ir_idx(d->b, column)));
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

void dl_locate_keys(d_lanes *d, const dl_tile *tile) {
    ir_builder *b = d->b;
    if (!d->is_listed) return;
    const ir_expr *last = ir_plus(b, d->sequence.seq_kv, -1);
    const ir_expr *count = ir_plus(b, tile->keys, KEYS_BEYOND);
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
