/* A good schedule without measuring: the one that costs least.
 *
 *     mha_choose ─┬─ calls_of: what costs ask of the problem, once (cost.h)
 *                 ├─ choose_strategy ──┬─ decoding (choose_d_lanes.c): its best, and what that costs
 *                 │                    └─ prefill (choose_q_lanes.c): its best, if it costs less
 *                 ├─ mha_choose_products: the tiles of a block's products
 *                 └─ mha_schedule_settle: the choices that are left (settle.c)
 *
 * All of them search the same way: begin with a usual schedule, price others by the cost (cost.h) times what timings
 * know better (corrections.def), keep the cheapest. The figures behind it: notes/2026-11-28-schedules.md. */
#include "base/integers.h"
#include "problem/problem.h"
#include "problem/weights_layout.h"
#include "schedule/choose.h"
#include "schedule/corrections.h"
#include "schedule/cost_parts.h"
#include "schedule/variant.h"

#include <limits.h>
#include <math.h>

/* ---- A call, and a usual one like it ---- */

static attune_problem usual_call(const attune_problem *p) {
    enum { USUAL_HEADS = 16 };
    attune_problem usual = *p;
    usual.batch = 1;
    usual.num_heads = p->num_heads / p->num_kv_heads * USUAL_HEADS;
    usual.num_kv_heads = USUAL_HEADS;
    return usual;
}

static void calls_of(const attune_problem *p, bool has_gaps, const mha_machine *on, int without, mha_calls *c) {
    c->p = p;
    c->has_gaps = has_gaps;
    c->usual_problem = usual_call(p);
    c->call = mha_cost_context_of(p, on);
    c->usual = mha_cost_context_of(&c->usual_problem, on);
    c->call.without = c->usual.without = without;
}

/* ---- d-lanes or q-lanes ---- */

/* What decoding's strategy costs for a usual call. */
static double cost_of_decoding(const mha_cost_context *usual) {
    mha_schedule s = {0};
    mha_choose_d_lanes(usual, usual, &s);
    return mha_cost_of_choice(usual, &s) * mha_correction(MHA_DECODING, usual, &s, NULL);
}

static void choose_decoding(const mha_calls *c, mha_schedule *s) {
    *s = (mha_schedule){0};
    mha_choose_d_lanes(&c->call, &c->usual, s);
    mha_hold_narrow_heads(&c->call, s);
}

/* Strategies add in different orders, so they are compared for a usual call, and without panels, which the cost does
 * not model. A number of keys that only the call gives counts as its usual value, not as the largest: otherwise d-lanes
 * would pay for reading memory, and q-lanes would not. With more keys d-lanes would be chosen for more rows, with fewer
 * keys for fewer. False: the numbers stay as they are. */
static bool is_compared_otherwise(const attune_problem *p, attune_problem *like) {
    const bool is_open = p->seq_kv == ATTUNE_DYNAMIC && !p->max_seq_kv;
    if (!is_open && !mha_has_panels(p)) return false;
    *like = *p;
    like->k_layout = like->v_layout = ATTUNE_LAYOUT_ROWS;
    if (is_open) like->max_seq_kv = MHA_USUAL_LENGTH;
    return true;
}

/* Integer products are by d-lanes only. */
static void choose_strategy(const mha_calls *c, const mha_calls *compared, mha_schedule *s) {
    const bool may = mha_may_go_by_d_lanes(c->p), must = may && c->p->integer;
    const bool either = may && !must && !isinf(mha_correction(MHA_DECODING, &c->call, NULL, NULL));
    const double most = either ? cost_of_decoding(&compared->usual) : INFINITY;
    const bool decodes = must || (either && !mha_choose_q_lanes(compared, most, compared == c ? s : NULL));
    if (decodes)
        choose_decoding(c, s);
    else if (!either || compared != c)
        mha_choose_q_lanes(c, INFINITY, s);
}

/* ---- The products of a block ---- */

/* Rows of a task: those of one register tile, if that is some 10 us of work. Many threads then have work, and one
 * thread loses nothing: neighbouring tasks read the same weights, as the tiles of a longer task would. */
static int32_t choose_block(const attune_problem *p, int64_t rows, int64_t tile_rows) {
    enum { MOST = 32, GROUP_COLUMNS = 256, LEAST_WORK = 500 * 1000 };
    const int64_t columns = min_of(p->num_heads * p->head_dim, GROUP_COLUMNS), row = p->embed_dim * columns;
    const int64_t most = max_of(min_of(MOST, rows) / tile_rows, 1);
    return (int32_t)(min_of(ceil_div(LEAST_WORK, row * tile_rows), most) * tile_rows);
}

/* Whether all products are of whole tiles of hardware. */
static bool choose_hardware_tiles(const mha_cost_context *c, int64_t rows, mha_schedule *s) {
    enum { HIGH = 32, WIDE = 2 };
    const attune_problem *const p = c->p;
    const mha_variant v = mha_variant_of(p, s, c->machine.target);
    const int64_t depths[] = {p->embed_dim, p->kv_projected ? 0 : p->kv_embed_dim, p->v_embed_dim,
                              p->num_heads * p->head_dim_v};
    bool fits = v.may_use_tiles && s->lanes * WIDE <= MHA_PANEL_TILE && !p->low_rank;
    fits = fits && mha_is_chosen(MHA_TILES, c, s, &v);
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) fits = fits && mha_gemm_tiles(HIGH, WIDE, depths[i]);
    if (!fits) return false;
    s->gemm_rows = rows <= HIGH / 2 ? HIGH / 2 : HIGH;
    s->gemm_column_vectors = WIDE;
    s->gemm_task_rows = choose_block(p, rows, s->gemm_rows);
    return true;
}

/* What a search for their register tiles knows. */
typedef struct products_search {
    mha_products products;
    int64_t rows; /* of a call */
} products_search;

static double price_products(mha_search *t) {
    const products_search *const more = t->more;
    mha_schedule s = t->tried.s;
    mha_settle(&t->c->usual, t->c->p, t->c->machine.target, &s);
    return mha_cost_products(t->c, &more->products, &s);
}

static void set_tile(const attune_problem *p, int64_t call, int64_t rows, int64_t vectors, mha_schedule *s) {
    s->gemm_rows = (int32_t)rows;
    s->gemm_column_vectors = (int32_t)vectors;
    s->gemm_task_rows = choose_block(p, call, rows);
}

static bool has_rows(mha_search *t) { return t->tried.s.gemm_rows <= ((const products_search *)t->more)->rows; }

static void vary_product_tiles(mha_search *t) {
    enum { MOST_ROWS = 14 };
    const int64_t call = ((const products_search *)t->more)->rows, registers = t->c->machine.target->vector_registers;
    mha_schedule s = t->best.s;
    for (int64_t r = 1; r <= MOST_ROWS; r++)
        for (int64_t v = 1; v <= MHA_PANEL_TILE / s.lanes && r * v <= registers; v *= 2) {
            set_tile(t->c->p, call, r, v, &s);
            mha_search_try(t, &s);
        }
}

/* The usual tile uses three quarters of the registers, and compiles faster than larger ones. */
static void choose_product_tiles(const mha_cost_context *c, int64_t rows, mha_schedule *s) {
    enum { USUAL_ROWS = 8 };
    static const mha_step STEPS[] = {{MHA_PRODUCT, has_rows, vary_product_tiles}, {0}};
    products_search more = {mha_products_of(c->p), rows};
    const int64_t registers = c->machine.target->vector_registers;
    const int64_t sums = c->machine.target->flags & AT_TARGET_FMA ? registers * 3 / 4 : registers / 2;
    const int64_t narrowest = mha_vectors_of_line(c, s), usual = min_of(sums / narrowest, USUAL_ROWS);
    mha_search t = {.c = c, .fits = has_rows, .price = price_products, .more = &more};
    set_tile(c->p, rows, usual, narrowest, s);
    mha_search_begin(&t, MHA_USUAL_PRODUCT, s);
    *s = mha_search_steps(&t, STEPS);
}

/* Fills in the gemm fields of a schedule whose lanes are chosen. All 0 without a block. */
void mha_choose_products(const mha_cost_context *c, mha_schedule *s) {
    const attune_problem *const p = c->p;
    s->gemm_rows = s->gemm_column_vectors = s->gemm_task_rows = s->gemm_depth = 0;
    if (!p->embed_dim) return;
    const int64_t rows = mha_product_rows(p, MHA_USUAL_LENGTH);
    if (!choose_hardware_tiles(c, rows, s)) choose_product_tiles(c, rows, s);
}

/* ---- Listed keys ---- */

/* A problem without lists, whose queries score as many keys as a list has. These keys are contiguous. Of a general
 * kernel the group is not known. */
static attune_problem as_unlisted(const attune_problem *p) {
    enum { LIKELY_ROWS = 16 };
    attune_problem like = *p;
    like.kv_ids = ATTUNE_KV_IDS_NONE;
    like.has_kv_id_lens = 0, like.num_ids = 0;
    like.page_size = 0;
    like.seq_kv = p->num_ids, like.max_seq_kv = p->num_ids < 0 ? MHA_USUAL_IDS : 0;
    like.has_kv_lens = p->has_kv_id_lens;
    like.seq_new = 0;
    if (p->kv_ids == ATTUNE_KV_IDS_QUERY) like.seq_q = 1, like.max_seq_q = 0, like.is_ragged = 0;
    if (p->is_general) like.is_general = 0, like.num_heads = LIKELY_ROWS * p->num_kv_heads;
    return like;
}

/* A listed problem gets the schedule for as many contiguous keys. If each query has a list of its own, the queries are
 * tasks enough, and chunks of keys would take too much memory. */
static void choose_listed(const attune_problem *p, const mha_machine *on, int without, mha_schedule *s) {
    enum { FEW_QUERIES = 64 };
    const attune_problem like = as_unlisted(p);
    mha_calls c;
    calls_of(&like, false, on, without, &c);
    mha_choose_d_lanes(&c.call, &c.usual, s);
    if (p->kv_ids == ATTUNE_KV_IDS_QUERY && mha_likely_queries(p) > FEW_QUERIES)
        s->kv_chunk = (int32_t)(ceil_div(mha_most_scored(p), s->kv_tile) * s->kv_tile);
}

/* ---- All of it ---- */

void mha_choose_without(int row, mha_problem problem, const mha_machine *on, mha_schedule *s) {
    const attune_problem *const p = problem.p;
    *s = (mha_schedule){0};
    if (p->kv_ids) {
        choose_listed(p, on, row, s);
    } else {
        mha_calls c, others;
        attune_problem like;
        const bool is_other = is_compared_otherwise(p, &like);
        calls_of(p, problem.has_gaps, on, row, &c);
        if (is_other) calls_of(&like, problem.has_gaps, on, row, &others);
        choose_strategy(&c, is_other ? &others : &c, s);
        mha_choose_products(&c.call, s);
    }
    mha_schedule_settle(p, on->target, on->description, s);
}

void mha_choose(mha_problem problem, const at_target *target, const at_description *machine, mha_schedule *s) {
    mha_choose_without(0, problem, &(mha_machine){target, machine}, s);
}

int mha_next_reason(int after, mha_problem problem, const mha_machine *on, mha_schedule *instead) {
    mha_schedule chosen;
    mha_choose_without(0, problem, on, &chosen);
    for (int row = after; row < INT_MAX && mha_correction_row_of(row + 1); row++) {
        mha_choose_without(row + 1, problem, on, instead);
        if (!mha_schedule_same(instead, &chosen)) return row + 1;
    }
    return 0;
}

void mha_choose_by(mha_strategy strategy, mha_problem problem, const at_target *target, const at_description *machine,
                   mha_schedule *s) {
    mha_calls c;
    calls_of(problem.p, problem.has_gaps, &(mha_machine){target, machine}, 0, &c);
    *s = (mha_schedule){0};
    if (strategy == MHA_D_LANES)
        choose_decoding(&c, s);
    else
        mha_choose_q_lanes(&c, INFINITY, s);
    mha_choose_products(&c.call, s);
    mha_schedule_settle(problem.p, target, machine, s);
}
