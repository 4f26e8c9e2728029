/* Streams of keys, which are read at the same time. Hardware prefetchers follow a few streams well if each has its own
 * memory pages, and neighbouring rows badly. So a tile is cut into a few equal parts, each read from its first key to
 * its last:
 *
 *     tile      | stream 0      | stream 1      | stream 2      | stream 3      | rest |
 *     order      0 4 8 …         1 5 9 …         2 6 10 …        3 7 11 …         then this, as one stream
 *
 * If keys are in pages, a stream lies within one page. */
#include "nest/columns.h"
#include "nest/pairs.h"
#include "attend/decode/layout.h"
#include "base/integers.h"

/* Tokens for which all of K, V and their scales have memory. Panels may have memory for more. */
static const ir_expr *tokens_of_caches(const d_lanes *d) {
    const mha_context *c = d->c;
    const ir_buffer *const rows = d->v_by_panels && !c->k_is_linear ? c->k : c->v;
    const ir_buffer *const k_scale = c->params.tensor[MHA_K_SCALE], *const v_scale = c->params.tensor[MHA_V_SCALE];
    if (!mha_is_paneled(c, rows)) return mha_kv_tokens(c, rows);
    if (k_scale && k_scale->num_dims > 2) return k_scale->dims[2];
    return v_scale && v_scale->num_dims > 2 ? v_scale->dims[2] : mha_kv_tokens(c, rows);
}

/* The place of `keys` contiguous keys from key `first` of the tile on. */
static mha_kv_row place(const d_lanes *d, const dl_tile *tile, const ir_expr *first, const ir_expr *keys) {
    const mha_context *c = d->c;
    if (d->is_listed) return (mha_kv_row){0}; /* each key has its own place */
    mha_kv_row at = mha_kv_row_at(c, &d->sequence, d->kv_head, ir_add(d->b, tile->first, first));
    at.index[2] = dl_first(d, "token", at.index[2], keys, tokens_of_caches(d));
    if (c->k_is_linear) at.linear[2] = dl_first(d, "token", at.linear[2], keys, mha_kv_tokens(c, c->k));
    return at;
}

/* The place i keys further. */
static mha_kv_row further(const d_lanes *d, mha_kv_row at, const ir_expr *i) {
    if (d->is_listed) return at;
    at.index[2] = ir_let(d->b, "token", ir_add(d->b, at.index[2], i));
    if (d->c->k_is_linear) at.linear[2] = ir_let(d->b, "token", ir_add(d->b, at.linear[2], i));
    return at;
}

mha_kv_row dl_key_at(const d_lanes *d, const dl_streams *streams, int64_t stream, const ir_expr *i) {
    if (d->is_listed) return dl_listed_key(d, ir_add(d->b, streams->first[stream], i));
    return further(d, streams->at[stream], i);
}

const ir_expr *dl_load_key(const d_lanes *d, const ir_buffer *k_or_v, const mha_kv_row *key, const ir_expr *column,
                           int64_t count) {
    const mha_context *c = d->c;
    const ir_expr *const *index = mha_kv_index(c, k_or_v, key);
    if (mha_needs_row_reader(c, k_or_v)) {
        const mha_row row = mha_kv_row_of(c, k_or_v, key);
        return mha_load_row(c, &row, column, d->width);
    }
    if (mha_is_paneled(c, k_or_v)) {
        const mha_row row = mha_kv_row_of(c, k_or_v, key);
        return mha_load_panel_row(c, &row, column, d->width, count);
    }
    if (k_or_v && c->variant.by_pairs && k_or_v->type.elem == IR_BF16)
        return mha_load_raw_columns(c, k_or_v, index, column, d->width, count);
    const ir_expr *first = mha_load_columns(c, k_or_v, index, column, count);
    if (!c->variant.by_pairs) return first;
    const ir_expr *next = mha_load_columns(c, k_or_v, index, ir_plus(d->b, column, d->lanes), count - d->lanes);
    return mha_both_rounded(c, ir_let(d->b, "first", first), ir_let(d->b, "next", next));
}

/* Elements of a row of k or v. */
static int64_t columns_of(const d_lanes *d, const ir_buffer *k_or_v) {
    return mha_row_elements(d->c, k_or_v, k_or_v == d->c->k ? d->c->p->head_dim : d->c->p->head_dim_v);
}

int64_t dl_keys_ahead(const d_lanes *d, const ir_buffer *k_or_v) {
    const int64_t bytes = columns_of(d, k_or_v) * ir_elem_get((ir_elem)k_or_v->type.elem)->bytes;
    if (d->c->s->kv_prefetch <= 0) return 0;
    const int64_t keys = ceil_div(d->c->s->kv_prefetch, bytes);
    return d->is_listed ? min_of(keys, DL_MOST_KEYS_AHEAD) : keys;
}

/* Whether the key `keys` keys ahead is always in another page. */
static bool is_in_other_page(const d_lanes *d, int64_t keys) { return d->page_size && keys >= d->page_size; }

/* Whether a stream that is a page prefetches the next page instead. In a short page, the key so far ahead is often
 * beyond the end, where other sequences are. */
static bool prefetches_next_page(const d_lanes *d, int64_t keys) {
    enum { DISTANCES = 4 };
    return d->page_size && DISTANCES * keys >= d->page_size;
}

/* Key i of the page with which the stream continues. */
static mha_kv_row key_of_next_page(const d_lanes *d, const dl_streams *streams, int64_t stream, const ir_expr *i) {
    mha_kv_row key = streams->next[stream];
    key.index[2] = d->c->p->is_general ? ir_add(d->b, key.index[2], i) : i;
    if (d->c->k_is_linear) key.linear[2] = ir_add(d->b, key.linear[2], i);
    return key;
}

/* Prefetches some keys ahead into the L2 cache; prefetching into L1 costs more than it gains. Integer products consume
 * values faster than these arrive, so there, and for listed keys, it is L1. After a page come other heads and
 * sequences. So if the key ahead may be beyond the page, the next page is prefetched, or nothing if that page is not
 * known. */
void dl_prefetch_key(const d_lanes *d, const ir_buffer *k_or_v, const dl_streams *streams, int64_t stream,
                     const ir_expr *i) {
    enum { LINE = 64 };
    const bool needs_streams = !d->planes && !d->is_listed;
    if (d->c->s->kv_prefetch <= 0 || (needs_streams && streams->count == 1) || !k_or_v) return;
    const int64_t columns = columns_of(d, k_or_v), keys = dl_keys_ahead(d, k_or_v);
    const int64_t step = LINE / ir_elem_get((ir_elem)k_or_v->type.elem)->bytes;
    if (is_in_other_page(d, keys) && !streams->have_next) return;
    const bool leaves = streams->have_next && prefetches_next_page(d, keys);
    const mha_kv_row key =
        leaves ? key_of_next_page(d, streams, stream, i) : dl_key_at(d, streams, stream, ir_plus(d->b, i, keys));
    for (int64_t column = 0; column < columns; column += step) {
        const ir_access *at = mha_kv_line(d->c, k_or_v, &key, ir_idx(d->b, column));
        if (d->planes || d->is_listed)
            ir_prefetch(d->b, at);
        else
            ir_prefetch_far(d->b, at);
    }
}

void dl_prefetch_columns(const d_lanes *d, const dl_streams *streams, const ir_expr *i, const ir_expr *column) {
    const int64_t ahead = d->c->s->kv_prefetch, columns = mha_row_elements(d->c, d->c->v, d->c->p->head_dim_v);
    if (ahead <= 0 || is_in_other_page(d, ceil_div(ahead, columns))) return;
    const mha_kv_row key = dl_key_at(d, streams, 0, ir_plus(d->b, i, ceil_div(ahead, columns)));
    ir_prefetch(d->b, mha_kv_access(d->c, d->c->v, &key, column, 1));
}

typedef struct visit {
    const dl_tile *tile;
    int count;
    int64_t step;
    dl_streams_fn *build;
    const void *user;
} visit;

/* Builds `keys` keys from `first` of the tile on, contiguous from `at` on, as one stream. */
static void one_stream(d_lanes *d, const visit *v, const ir_expr *first, const ir_expr *keys, const mha_kv_row *at) {
    v->build(d, &(dl_streams){.count = 1, .keys = keys, .first = {first}, .at = {*at}}, v->user);
}

/* The same, cut into streams. */
static void cut(d_lanes *d, const visit *v, const ir_expr *first, const ir_expr *keys, const mha_kv_row *at) {
    ir_builder *b = d->b;
    const int64_t turn = v->count * v->step;
    const ir_expr *rest = ir_mod(b, keys, ir_idx(b, turn));
    dl_streams streams = {.count = v->count};
    const ir_expr *each = ir_times(b, ir_div(b, keys, ir_idx(b, turn)), v->step);
    streams.keys = dl_part(d, "distance", each, v->count, keys);
    for (int s = 0; s < v->count; s++) {
        const ir_expr *from = ir_times(b, streams.keys, s);
        streams.first[s] = ir_add(b, first, from);
        streams.at[s] = further(d, *at, from);
    }
    v->build(d, &streams, v->user);
    if (!rest || ir_is(rest, 0)) return;
    const ir_expr *done = dl_first(d, "done", ir_sub(b, keys, rest), rest, keys);
    const mha_kv_row rest_at = further(d, *at, done);
    one_stream(d, v, dl_first(d, "in_tile", ir_add(b, first, done), rest, v->tile->keys), rest, &rest_at);
}

/* The tile's keys page by page, from page `first_page` of the sequence on. */
static void each_page(d_lanes *d, const visit *v, const ir_expr *first_page) {
    ir_builder *b = d->b;
    const dl_tile *tile = v->tile;
    const int64_t page_size = d->page_size;
    const ir_expr *end = ir_add(b, tile->first, tile->keys);
    IR_LOOP(b, page, ir_for_begin(b, "page_number", first_page, ir_ceil_div(b, end, page_size), 1, false)) {
        const ir_expr *begin = ir_times(b, page, page_size);
        const ir_expr *from = ir_let(b, "from", ir_max(b, tile->first, begin));
        const ir_expr *keys = ir_sub(b, ir_min(b, end, ir_plus(b, begin, page_size)), from);
        keys = ir_let_in(b, "run", ir_idx(b, 1), ir_plus(b, tile->keys, 1), keys);
        const ir_expr *first = dl_first(d, "in_tile", ir_sub(b, from, tile->first), keys, tile->keys);
        const mha_kv_row at = place(d, tile, first, keys);
        if (v->count > 1 && page_size >= v->count * v->step)
            cut(d, v, first, keys, &at);
        else
            one_stream(d, v, first, keys, &at);
    }
}

/* Whether tiles begin with pages, so that a stream can be a page. */
static bool streams_are_pages(const d_lanes *d, const visit *v) {
    const int64_t page_size = d->page_size, kv_tile = d->c->s->kv_tile;
    const bool begins_in_page = d->c->has_first && !d->begins_with_page;
    return v->count > 1 && !begins_in_page && kv_tile % page_size == 0 && page_size % v->step == 0 &&
           v->count * page_size <= kv_tile;
}

/* In general kernels a page may be a multiple of page_size keys; each page_size of them count as a page here. */
static const ir_expr *first_of_part(const d_lanes *d, const ir_expr *slot) {
    if (!d->c->p->is_general) return slot;
    return ir_let(d->b, "part_slot", ir_sub(d->b, slot, ir_mod(d->b, slot, ir_idx(d->b, d->page_size))));
}

/* Whole pages, one for each stream at a time; then the remaining keys, page by page. */
static void pages_side_by_side(d_lanes *d, const visit *v) {
    ir_builder *b = d->b;
    const dl_tile *tile = v->tile;
    const int64_t page_size = d->page_size, turn = v->count * page_size;
    const ir_expr *turns = dl_part(d, "turns", ir_div(b, tile->keys, ir_idx(b, turn)), 1, tile->keys);
    const mha_context *c = d->c;
    const bool have_next = (c->k && prefetches_next_page(d, dl_keys_ahead(d, c->k))) ||
                           (c->v && prefetches_next_page(d, dl_keys_ahead(d, c->v)));
    dl_streams streams = {.count = v->count, .keys = ir_idx(b, page_size), .have_next = have_next};
    IR_LOOP(b, at, ir_for_begin(b, "pages", ir_idx(b, 0), turns, 1, false)) {
        const ir_expr *from = ir_times(b, at, turn);
        for (int s = 0; s < v->count; s++) {
            const ir_expr *first = ir_plus(b, from, s * page_size);
            streams.first[s] = dl_first(d, "in_tile", first, streams.keys, tile->keys);
            streams.at[s] = place(d, tile, streams.first[s], streams.keys);
            if (!have_next) continue;
            /* The key at this place of the next iteration, or the sequence's last key. */
            const ir_expr *key = ir_plus(b, ir_add(b, tile->first, first), turn);
            key = ir_min(b, key, ir_plus(b, d->sequence.seq_kv, -1));
            key = dl_first(d, "next", key, ir_idx(b, 1), d->sequence.seq_kv);
            streams.next[s] = mha_kv_row_at(c, &d->sequence, d->kv_head, key);
            streams.next[s].index[2] = first_of_part(d, streams.next[s].index[2]);
        }
        v->build(d, &streams, v->user);
    }
    const ir_expr *done = ir_times(b, turns, v->count);
    each_page(d, v, ir_add(b, ir_div(b, tile->first, ir_idx(b, page_size)), done));
}

/* Streams are contiguous in the tile, and equally long. */
void dl_each_unit(d_lanes *d, const dl_tile *tile, const dl_streams *streams, int64_t units, int64_t keys,
                  dl_streams_fn *build, const void *user) {
    ir_builder *b = d->b;
    const visit v = {.tile = tile, .build = build, .user = user};
    const ir_expr *count = ir_idx(b, streams->count), *length = ir_idx(b, keys);
    IR_FOR(b, i, ir_idx(b, 0), streams->keys, units / streams->count * keys) {
        IR_FOR(b, u, ir_idx(b, 0), ir_idx(b, units), 1) {
            const ir_expr *in_stream = ir_add(b, i, ir_mul(b, ir_div(b, u, count), length));
            const ir_expr *first = ir_add(b, ir_mul(b, ir_mod(b, u, count), streams->keys), in_stream);
            first = dl_first(d, "in_tile", ir_add(b, streams->first[0], first), length, tile->keys);
            const mha_kv_row at = place(d, tile, first, length);
            one_stream(d, &v, first, length, &at);
        }
    }
}

void dl_each_streams(d_lanes *d, const dl_tile *tile, int count, int64_t step, dl_streams_fn *build, const void *user) {
    const visit v = {tile, count, step, build, user};
    const int64_t page_size = d->page_size;
    if (page_size && streams_are_pages(d, &v)) {
        pages_side_by_side(d, &v);
    } else if (page_size) {
        each_page(d, &v, ir_div(d->b, tile->first, ir_idx(d->b, page_size)));
    } else {
        const ir_expr *first = ir_idx(d->b, 0);
        const mha_kv_row at = place(d, tile, first, tile->keys);
        if (count > 1)
            cut(d, &v, first, tile->keys, &at);
        else
            one_stream(d, &v, first, tile->keys, &at);
    }
}
