/* The visible range of a query follows from its position p:
 *
 *     first = max(0, p - window)                      0 for a global query
 *     last  = min(seq_kv - 1, p + window_right, p)    the last term if causal; a global query has no window
 */
#include "attend/shared/sight.h"

#include <math.h>

/* ---- One query ---- */

/* `bound`, or `otherwise` for a global query, which the window does not limit. */
static const ir_expr *unless_global(const mha_context *c, const ir_expr *position, const ir_expr *bound,
                                    const ir_expr *otherwise) {
    if (!c->has_global) return bound;
    const ir_expr *is_global = ir_lt(c->b, position, ir_idx(c->b, c->p->global_tokens));
    return ir_select(c->b, is_global, otherwise, bound);
}

static const ir_expr *first_key(const mha_context *c, const ir_expr *position) {
    if (!c->has_first) return ir_idx(c->b, 0);
    const ir_expr *first = ir_sub(c->b, position, c->params.size[MHA_WINDOW]);
    return ir_max(c->b, ir_idx(c->b, 0), unless_global(c, position, first, ir_idx(c->b, 0)));
}

static const ir_expr *up_to_position(const mha_context *c, const ir_expr *last, const ir_expr *position) {
    return c->p->is_causal ? ir_min(c->b, last, position) : last;
}

static const ir_expr *last_key(const mha_context *c, const mha_sequence *e, const ir_expr *position) {
    ir_builder *b = c->b;
    if (e->positions_are_keys) return position;
    const ir_expr *end = ir_plus(b, e->seq_kv, -1), *last = end;
    if (c->p->window_right >= 0) {
        const ir_expr *right = ir_plus(b, position, c->p->window_right);
        last = ir_min(b, last, unless_global(c, position, right, end));
    }
    return up_to_position(c, last, position);
}

static const ir_expr *last_global(const mha_context *c, const mha_sequence *e, const ir_expr *position) {
    const ir_expr *end = ir_plus(c->b, e->seq_kv, -1);
    return up_to_position(c, ir_min(c->b, ir_idx(c->b, c->p->global_tokens - 1), end), position);
}

mha_sight mha_sight_at(const mha_context *c, const mha_sequence *e, const ir_expr *position) {
    return (mha_sight){.first = c->has_first ? first_key(c, position) : NULL,
                       .last = c->has_last ? last_key(c, e, position) : NULL,
                       .last_global = c->has_global ? last_global(c, e, position) : NULL};
}

bool mha_positions_are_keys(const mha_context *c, const mha_sequence *e) {
    return c->p->is_causal && ir_is_const(e->base) && ir_is_const(e->seq_q) && ir_is_const(e->seq_kv) &&
           e->base->value.i + e->seq_q->value.i <= e->seq_kv->value.i;
}

/* ---- Several ---- */

/* Both ends of the visible range grow with the position. Exceptions are global queries: they come first, and their
 * range may be the longest. */
mha_sights mha_sights_of(const mha_context *c, const mha_sequence *e, const ir_expr *first, const ir_expr *last) {
    ir_builder *b = c->b;
    const ir_expr *one = ir_idx(b, 1), *of_first = last_key(c, e, first), *furthest = last_key(c, e, last);
    mha_sights s = {.some_first = first_key(c, first), .all_first = first_key(c, last)};
    s.all_end = ir_add(b, of_first, one);
    if (c->has_global) {
        furthest = ir_max(b, furthest, of_first);
        s.globals_end = ir_add(b, last_global(c, e, last), one);
    }
    s.some_end = ir_add(b, furthest, one);
    return s;
}

/* ---- Keys ---- */

static const ir_expr *both(const mha_context *c, const ir_expr *x, const ir_expr *y) {
    return x && y ? ir_and(c->b, x, y) : x ? x : y;
}

static const ir_expr *in_range(const mha_context *c, const mha_hiding *h, int lanes) {
    const mha_sight s = {mha_in_lanes(c, h->sight.first, lanes), mha_in_lanes(c, h->sight.last, lanes),
                         mha_in_lanes(c, h->sight.last_global, lanes)};
    const ir_expr *key = mha_in_lanes(c, h->key, lanes), *sees = NULL;
    if (s.first) sees = ir_ge(c->b, key, s.first);
    if (s.last) sees = both(c, sees, ir_le(c->b, key, s.last));
    return sees && s.last_global ? ir_or(c->b, sees, ir_le(c->b, key, s.last_global)) : sees;
}

const ir_expr *mha_sees(const mha_context *c, const mha_hiding *h, int lanes) {
    const ir_expr *sees = in_range(c, h, lanes);
    if (h->bias) sees = both(c, sees, ir_ne(c->b, mha_in_lanes(c, h->bias, lanes), mha_number(c, -INFINITY, lanes)));
    sees = both(c, sees, h->there);
    sees = both(c, sees, mha_in_lanes(c, h->by_function, lanes));
    if (!h->mask) return sees;
    const ir_expr *zero = ir_splat(c->b, ir_int(c->b, IR_I32, 0), lanes);
    return both(c, sees, ir_ne(c->b, mha_in_lanes(c, h->mask, lanes), zero));
}
