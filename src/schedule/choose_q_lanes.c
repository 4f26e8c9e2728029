/* Prefill: the schedule that costs least (cost.h), of a few hundred.
 *
 * The space is a tree: the lanes of a vector, the vectors of rows in a stripe, and what lanes of the values run along.
 * At each leaf the other numbers are improved one after the other, each by the values that it may have; the best two
 * leaves are gone over once more. A leaf is given up when its scores alone cost more than the best two.
 *
 *     lanes ─ vectors ─ values by columns │ kv_tile ► score_keys ► value_columns ► task_row_vectors
 *                     └ values by rows    │ the same
 *
 * What decides in which order a row is summed is chosen for a usual call, so that bits do not depend on the batch. What
 * timings know better than the cost stands in corrections.def. */
#include "base/integers.h"
#include "problem/problem.h"
#include "problem/problem_sight.h"
#include "schedule/choose.h"
#include "schedule/corrections.h"
#include "schedule/cost_parts.h"
#include "schedule/schedule_fields.h"
#include "schedule/variant.h"

#include <math.h>

enum { ALL_ROWS = -1, ANY_ROWS = -2, ALL_KEYS = -1, ANY_KEYS = -2 };

/* What decides in which order the sums of a row are. */
typedef struct sum_order {
    int64_t by_columns; /* rows whose scores go by columns, ALL_ROWS or ANY_ROWS */
    int64_t kv_tile;    /* keys between two rescalings, ALL_KEYS or ANY_KEYS */
} sum_order;

/* What its search knows of a call. */
typedef struct prefill {
    int64_t rows, keys;
    int64_t room;           /* sums of a register tile, without its operands */
    int64_t most_task_rows; /* of a task that has several stripes */
    double heads, threads;  /* KV heads of a call, and threads that could share it */
    bool has_gaps;          /* a query may see keys on both sides of some that mask_mod hides from it */
    bool pairs_fit;         /* V in pairs, of all heads, fits the last cache */
    double wider;           /* what a wider stripe has to cost, as a share of a narrower one */
    sum_order order;        /* that it has to keep */
    mha_q_costs costs;      /* of the last schedule */
} prefill;

static const prefill *known(const mha_search *t) { return t->more; }

/* Threads of a large machine, if each of them has some 10 us of work. Pairs of bf16 do twice as much in that time. */
static double threads_for(double operations, bool by_pairs) {
    enum { MOST = 64 };
    static const double WORTH = 1e6;
    const double threads = operations / WORTH / (by_pairs ? 2 : 1);
    return threads > MOST ? MOST : threads < 1 ? 1 : (double)(int64_t)threads;
}

/* Lengths that only the call gives count as the cost takes them. */
static prefill prefill_of(const mha_cost_context *c, bool has_gaps) {
    enum { LARGE_HEAD = 96 * 1024, MANY_ROWS = 512, TASK_VECTORS = 16 };
    /* The most operations of a task, unless it is one stripe: 1.5 to 2 ms of a core. A cancelled call ends after that
     * time. Pairs of bf16 do twice as many operations in it. */
    static const double LONGEST = 200e6;
    const attune_problem *p = c->p;
    const double row = 2 * c->keys * (c->columns + c->columns_v);
    const bool is_large = c->keys * (c->columns + c->columns_v) >= LARGE_HEAD || c->by_pairs;
    const int64_t lanes = c->machine.target->vector_bytes / (int64_t)c->lane_bytes;
    const int64_t usual = (is_large && c->rows >= MANY_ROWS ? 2 : 1) * TASK_VECTORS * lanes;
    const int64_t fit = (int64_t)((c->by_pairs ? 2 : 1) * LONGEST / row);
    const double heads = (double)(p->num_kv_heads * max_of(p->batch, 1));
    const double last = at_description_last_cache(c->machine.description);
    return (prefill){.rows = (int64_t)c->rows,
                     .keys = max_of((int64_t)c->keys, 1),
                     .room = c->machine.target->vector_registers * 3 / 4,
                     .most_task_rows = min_of(usual, fit),
                     .heads = heads,
                     .threads = threads_for(heads * c->rows * row, c->by_pairs),
                     .has_gaps = has_gaps,
                     .wider = mha_correction(MHA_WIDER_STRIPE, c, NULL, NULL),
                     .pairs_fit = heads * c->keys * c->columns_v * c->v_bytes <= last};
}

/* The share of time in which that many threads are idle. Tasks are equally long. If later rows attend to more keys, the
 * longest task takes twice the mean, and begins when others end. */
static double idle_of(const mha_search *t, const mha_schedule *s) {
    const prefill *const x = known(t);
    const int64_t stripes = ceil_div(x->rows, (int64_t)s->score_row_vectors * s->lanes);
    const double tasks = x->heads * (double)ceil_div(stripes, s->task_row_vectors / s->score_row_vectors);
    const double share = tasks / x->threads, even = (double)ceil_div((int64_t)tasks, (int64_t)x->threads);
    const double end = !mha_sees_more_later(t->c->p) ? even : share > 1 ? share + 1 : 2;
    return x->threads > 1 ? 1 - share / end : 0;
}

static mha_variant variant_of(const mha_search *t, const mha_schedule *s) {
    return mha_variant_of(t->c->p, s, t->c->machine.target);
}

static int64_t rows_by_columns(const mha_variant *v) { return v->scores_by_columns ? ALL_ROWS : v->rest_rows; }

static bool keeps_order(const mha_search *t, const mha_schedule *s, const mha_variant *v) {
    const sum_order *o = &known(t)->order;
    if (o->kv_tile > 0 && o->kv_tile % mha_tile_step(t->c->p, s)) return false;
    return o->by_columns == ANY_ROWS || o->by_columns == rows_by_columns(v);
}

static bool fits(mha_search *t) {
    const mha_schedule *const s = &t->tried.s;
    t->tried.v = variant_of(t, s);
    return (s->value_by != MHA_VALUE_BY_ROWS || t->tried.v.may_go_by_rows) && keeps_order(t, s, &t->tried.v);
}

/* The cost for one thread counts most. */
static double price(mha_search *t) {
    mha_q_costs *const costs = &((prefill *)t->more)->costs;
    mha_cost_q_lanes_next(t->c, &t->tried.s, &t->tried.v, costs);
    t->tried.scores = costs->costs.scores + costs->costs.softmax;
    return mha_costs_sum(&costs->costs) * (1 + COST_OF(idle) * idle_of(t, &t->tried.s));
}

/* ---- One number after the other ---- */

static void set_kv_tile(const mha_search *t, mha_schedule *s, int64_t keys) {
    enum { MOST = 4096 };
    const int32_t step = mha_tile_step(t->c->p, s);
    const int64_t whole = min_of(ceil_div(min_of(keys, known(t)->keys), step), MOST / step) * step;
    s->kv_tile = (int32_t)(known(t)->order.kv_tile > 0 ? known(t)->order.kv_tile : whole);
}

static void vary_score_keys(mha_search *t) {
    enum { MOST = 16 };
    const mha_schedule base = t->best.s;
    for (int64_t keys = min_of(MOST, known(t)->keys); keys >= 1; keys--) {
        mha_schedule s = base;
        s.score_keys = (int32_t)keys;
        if (isinf(mha_correction(MHA_SCORE_KEYS, t->c, &s, NULL))) continue;
        if (keys > 1 && keys * s.score_row_vectors > known(t)->room) continue;
        set_kv_tile(t, &s, base.kv_tile);
        mha_search_try(t, &s);
    }
}

/* By columns: the numbers that cover all columns in as few tiles, as evenly as possible, and the largest that fits the
 * registers. By rows the number of sums counts. */
static void vary_value_columns(mha_search *t) {
    enum { STEP = 4 };
    const mha_schedule base = t->best.s;
    const bool by_rows = base.value_by == MHA_VALUE_BY_ROWS;
    const int64_t dim = t->c->p->head_dim_v;
    for (int32_t vectors = by_rows ? 1 : base.score_row_vectors; vectors >= 1; vectors--) {
        const int64_t most = min_of(known(t)->room / vectors, dim);
        mha_schedule s = base;
        if (base.score_row_vectors % vectors) continue;
        s.value_row_vectors = vectors;
        for (int64_t columns = most; columns >= 1; columns -= by_rows ? STEP : 1) {
            if (columns < most && columns * vectors < known(t)->room / (by_rows ? 2 : 3)) break;
            if (!by_rows && columns < most && columns != ceil_div(dim, ceil_div(dim, columns)) && dim % columns > 1)
                continue;
            s.value_columns = (int32_t)columns;
            mha_search_try(t, &s);
        }
    }
}

/* Of a tile, each stripe computes all keys between the first and the last that mask_mod leaves visible to it. If there
 * may be gaps between them, only whole tiles can be skipped. */
static int64_t long_tile(const mha_search *t, const mha_variant *v) {
    enum { ONE_TILE = 1024, LONG_TILE = 512, MASKED_TILE = 64, MASKED_PAIRS = 128 };
    if (known(t)->has_gaps && v->has_mask_table)
        return min_of(known(t)->keys, t->c->by_pairs ? MASKED_PAIRS : MASKED_TILE);
    return known(t)->keys <= ONE_TILE ? known(t)->keys : LONG_TILE;
}

/* Equal parts of the keys, and usual numbers of them. */
static void vary_kv_tile(mha_search *t) {
    enum { LEAST = 32, MOST = 1024, MOST_PARTS = 4, LEAST_USUAL = 48, MOST_USUAL = 512 };
    const mha_schedule base = t->best.s;
    if (known(t)->order.kv_tile != ANY_KEYS) return;
    if (mha_is_chosen(MHA_LONG_TILE, t->c, &base, &t->best.v)) return;
    mha_schedule s = base;
    for (int64_t parts = 1; parts <= MOST_PARTS; parts++) {
        const int64_t keys = ceil_div(known(t)->keys, parts);
        if (keys > MOST || (parts > 1 && keys < LEAST)) continue;
        set_kv_tile(t, &s, keys);
        mha_search_try(t, &s);
    }
    const int32_t *keys = mha_schedule_values(MHA_PART_Q_LANES, MHA_SCHEDULE_ID(kv_tile));
    for (; *keys && *keys <= MOST_USUAL && *keys < known(t)->keys; keys++) {
        if (*keys < LEAST_USUAL) continue;
        set_kv_tile(t, &s, *keys);
        mha_search_try(t, &s);
    }
}

/* With a window or with many tiles, per-tile set-up dominates; under mask_mod V is searched for NaN, too. The cost
 * overestimates short tasks there: they were faster in measurements. So this is a rule. If there are few rows and not
 * few heads, a task is a whole head. An open number of keys may be many tiles, all of which each task reads. */
static void set_short_task(const mha_search *t, mha_schedule *s) {
    enum { ONE_TILE = 1024, FEW = 4, FEW_ROWS = 64 };
    const int64_t vectors = s->score_row_vectors, fit = known(t)->most_task_rows / (s->lanes * vectors);
    const bool is_open = t->c->p->seq_kv == ATTUNE_DYNAMIC && !t->c->p->max_seq_kv && !t->c->p->low_rank;
    const bool is_one =
        known(t)->keys <= ONE_TILE && !is_open && !mha_has_first_key(t->c->p) && !t->best.v.has_mask_table;
    const bool is_little = known(t)->rows <= FEW_ROWS && known(t)->heads >= known(t)->threads;
    const int64_t all = ceil_div(known(t)->rows, s->lanes * vectors);
    const int64_t stripes = is_one && is_little ? all : is_one ? 1 : max_of(min_of(FEW / vectors, fit), 1);
    s->task_row_vectors = (int32_t)(stripes * vectors);
}

/* Short tasks, which share the pairs of V. */
static void try_pairs_once(mha_search *t, mha_schedule s) {
    s.kv_copy = MHA_COPY_ONCE;
    if (!known(t)->pairs_fit || !t->c->usual.shares_pairs || !t->best.v.may_pair_once) return;
    if (isinf(mha_correction(MHA_SHORT_TASK, t->c, &s, &t->best.v))) return;
    set_short_task(t, &s);
    if (known(t)->rows > (int64_t)s.task_row_vectors * s.lanes) mha_search_try(t, &s);
}

/* Stripes of a task: all of them, a half, a third and so on, up to the longest task that is allowed. */
static void vary_task_rows(mha_search *t) {
    mha_schedule base = t->best.s;
    if (mha_is_chosen(MHA_SHORT_TASK, t->c, &base, &t->best.v)) {
        set_short_task(t, &t->best.s);
        return;
    }
    if (t->c->by_pairs) base.kv_copy = MHA_COPY_CONVERTED;
    const int64_t stripe = (int64_t)base.lanes * base.score_row_vectors, all = ceil_div(known(t)->rows, stripe);
    const int64_t most = min_of(max_of(known(t)->most_task_rows / stripe, 1), 64 / base.score_row_vectors);
    for (int64_t stripes = min_of(all, most); stripes >= 1; stripes /= 2) {
        mha_schedule s = base;
        s.task_row_vectors = (int32_t)(stripes * base.score_row_vectors);
        mha_search_try(t, &s);
    }
    if (t->c->by_pairs) try_pairs_once(t, base);
}

typedef struct best_two {
    mha_candidate of[2];
} best_two;

/* The last steps do not change the scores, whose cost alone may exceed that of the best two leaves. */
static void improve(mha_search *t, const best_two *best) {
    static const mha_step SCORES[] = {{MHA_PREFILL, fits, vary_kv_tile}, {MHA_PREFILL, fits, vary_score_keys}, {0}};
    static const mha_step REST[] = {{MHA_PREFILL, fits, vary_value_columns}, {MHA_PREFILL, fits, vary_task_rows}, {0}};
    mha_search_steps(t, SCORES);
    if (t->best.scores < cost_larger(best->of[0].cost, best->of[1].cost)) mha_search_steps(t, REST);
}

/* ---- Where to begin ---- */

/* AArch64 multiplies by an element of a register. Elements of several columns at once would leave too few registers for
 * the tile. */
static int32_t score_columns(const mha_search *t) {
    const bool by_element = t->c->machine.target->required & AT_CPU_AARCH64;
    return by_element || t->c->p->head_dim % 2 ? 1 : t->c->p->head_dim % 4 ? 2 : 4;
}

/* By rows, a register tile is some rows by a strip of V of up to four vectors. 16 registers hold the eight sums of two
 * rows by four vectors. If rows attend to different keys, strips may have three vectors: then the twelve sums of four
 * rows fit. */
static int64_t first_sums(const mha_search *t, mha_value_by by) {
    enum { MOST_SUMS = 8, THREE = 3 };
    const at_target *target = t->c->machine.target;
    const mha_schedule widest = {.value_columns = (int32_t)known(t)->room, .value_row_vectors = 1};
    const int64_t vectors = t->c->p->head_dim_v * (int64_t)t->c->lane_bytes / target->vector_bytes;
    if (by != MHA_VALUE_BY_ROWS || !t->c->few_registers) return known(t)->room;
    if (t->c->hides && vectors > 0 && mha_next_strips(t->c->p, &widest, target, vectors).vectors == THREE)
        return known(t)->room;
    return min_of(known(t)->room, MOST_SUMS);
}

/* By rows, register tiles for 16 registers are small: counting and addresses are a fifth of the instructions for a key.
 * Several keys in an iteration share these. If rows attend to few keys, the remainder of such an iteration takes longer
 * than it saves. */
static int32_t value_keys(const mha_search *t, mha_value_by by) {
    enum { MANY_SEEN = 48 };
    const bool is_narrow = t->c->few_registers;
    return by != MHA_VALUE_BY_ROWS || !is_narrow ? 1 : t->c->seen >= MANY_SEEN ? 4 : 2;
}

static bool begin(mha_search *t, int32_t lanes, int32_t vectors, mha_value_by by) {
    enum { ONE_TILE = 1024, SUMS = 8 };
    mha_schedule s = {0};
    s.strategy = MHA_Q_LANES;
    s.lanes = lanes;
    s.score_row_vectors = s.task_row_vectors = vectors;
    s.score_keys = (int32_t)min_of(max_of(SUMS / vectors, 1), known(t)->keys);
    mha_variant v = variant_of(t, &s);
    for (; !keeps_order(t, &s, &v); v = variant_of(t, &s))
        if (--s.score_keys < 1) return false;
    s.score_columns = score_columns(t);
    s.value_row_vectors = by == MHA_VALUE_BY_ROWS ? 1 : vectors;
    s.value_columns = (int32_t)min_of(first_sums(t, by) / s.value_row_vectors, t->c->p->head_dim_v);
    s.value_keys = value_keys(t, by);
    const bool is_long = mha_is_chosen(MHA_LONG_TILE, t->c, &s, &v);
    set_kv_tile(t, &s, is_long ? long_tile(t, &v) : min_of(known(t)->keys, ONE_TILE));
    mha_schedule settled = s;
    mha_settle(&t->c->usual, t->c->p, t->c->machine.target, &settled);
    s.kv_copy = t->c->by_pairs ? MHA_COPY_CONVERTED : settled.kv_copy;
    s.task_prefetch = settled.task_prefetch;
    s.value_by = by;
    mha_search_begin(t, MHA_PREFILL, &s);
    return !isinf(t->best.cost);
}

static void keep(best_two *best, const mha_search *t) {
    mha_candidate *const first = &best->of[0], *const second = &best->of[1];
    const bool is_wider = !isinf(first->cost) && t->best.s.score_row_vectors > first->s.score_row_vectors;
    const double factor = is_wider ? known(t)->wider : 1;
    if (t->best.cost < first->cost * factor) {
        if (first->cost < second->cost) *second = *first;
        *first = t->best;
    } else if (t->best.cost < second->cost) {
        *second = t->best;
    }
}

/* Whether one or two rows beyond whole vectors are computed by columns, in a stripe of that many vectors which has all
 * rows. The last vector then needs none of the 16 registers. */
static bool leaves_few_rows(const mha_search *t, int32_t lanes, int64_t vectors) {
    enum { MOST_ROWS = 2 };
    const mha_schedule s = {.lanes = lanes, .score_row_vectors = (int32_t)vectors};
    if (!t->c->few_registers || t->c->hides) return false;
    const int64_t rest = variant_of(t, &s).rest_rows;
    return rest > 0 && rest <= MOST_ROWS;
}

static int64_t most_vectors(const mha_search *t, int32_t lanes) {
    enum { MOST_VECTORS = 4, MOST_BESIDE_REST = 6, MOST_NARROW = 7 };
    const bool is_narrow = lanes * t->c->lane_bytes < t->c->machine.target->vector_bytes;
    const int64_t all = max_of(ceil_div(known(t)->rows, lanes), 1);
    if (!is_narrow && all <= MOST_BESIDE_REST && leaves_few_rows(t, lanes, all)) return all;
    return min_of(is_narrow ? MOST_NARROW : MOST_VECTORS, all);
}

static void try_lanes(mha_search *t, int32_t lanes, best_two *best) {
    const int64_t most = most_vectors(t, lanes);
    for (int32_t vectors = 1; vectors <= most; vectors++)
        for (int by = MHA_VALUE_BY_COLUMNS; by <= MHA_VALUE_BY_ROWS; by++) {
            if (!begin(t, lanes, vectors, (mha_value_by)by)) continue;
            improve(t, best);
            keep(best, t);
        }
}

/* The cheapest schedule that keeps the order of sums. False: there is none. `order` NULL: any order, for one thread. */
static bool cheapest(const mha_cost_context *c, bool has_gaps, const sum_order *order, mha_candidate *s) {
    prefill x = prefill_of(c, has_gaps);
    mha_search t = {.c = c, .of = MHA_PREFILL, .fits = fits, .price = price, .more = &x};
    x.order = order ? *order : (sum_order){ANY_ROWS, c->fixed_tile ? c->fixed_tile : ANY_KEYS};
    if (!order) x.threads = 1;
    best_two best = {{{.cost = INFINITY}, {.cost = INFINITY}}};
    for (int32_t lanes = c->widest; lanes >= c->narrowest; lanes /= 2) try_lanes(&t, lanes, &best);
    const best_two first = best;
    for (int i = 0; i < 2 && !isinf(first.of[i].cost); i++) {
        t.best = first.of[i];
        improve(&t, &best);
        keep(&best, &t);
    }
    if (isinf(best.of[0].cost)) return false;
    *s = best.of[0];
    return true;
}

static sum_order order_of(const mha_cost_context *c, const mha_candidate *chosen) {
    const attune_problem *const p = c->p;
    const bool is_known = p->seq_kv != ATTUNE_DYNAMIC || p->max_seq_kv || p->low_rank;
    const bool is_all = is_known && !c->fixed_tile && chosen->s.kv_tile >= c->keys;
    return (sum_order){rows_by_columns(&chosen->v), is_all ? ALL_KEYS : chosen->s.kv_tile};
}

/* A row has the same bits in every batch. So the order of its sums is chosen for a usual call, and then the schedule
 * for the given call, which else is the usual one. */
bool mha_choose_q_lanes(const mha_calls *calls, double most, mha_schedule *s) {
    mha_candidate chosen = {0};
    cheapest(&calls->usual, calls->has_gaps, NULL, &chosen);
    if (mha_cost_of_choice(&calls->usual, &chosen.s) >= most) return false;
    if (!s) return true;
    const sum_order order = order_of(&calls->usual, &chosen);
    cheapest(&calls->call, calls->has_gaps, &order, &chosen);
    *s = chosen.s;
    return true;
}
