/* The register tiles of a block's products that cost least (cost_products.c), and their tasks. The figures behind them:
 * notes/2026-11-28-products.md. */
#include "base/integers.h"
#include "problem/problem.h"
#include "problem/weights_layout.h"
#include "schedule/choose.h"
#include "schedule/cost_parts.h"
#include "schedule/variant.h"

/* Rows of a task: those of one register tile, if that is some 10 us of work. Longer tasks read the same weights for
 * each of their tiles, as neighbouring ones do, so many threads have work and one pays nothing. */
static int32_t choose_block(const attune_problem *p, int64_t rows, int64_t tile_rows) {
    enum { MOST = 32, GROUP_COLUMNS = 256, LEAST_WORK = 500 * 1000 };
    const int64_t columns = min_of(p->num_heads * p->head_dim, GROUP_COLUMNS), row = p->embed_dim * columns;
    const int64_t most = max_of(min_of(MOST, rows) / tile_rows, 1);
    return (int32_t)(min_of(ceil_div(LEAST_WORK, row * tile_rows), most) * tile_rows);
}

/* Whether all products are of whole tiles of hardware, for many rows. They sum in another order than vectors, so the
 * number of rows decides, and not the cost. */
static bool choose_tiles(const attune_problem *p, const at_target *target, int64_t rows, attune_schedule *s) {
    enum { FEW = 14, HIGH = 32, WIDE = 2 };
    const int64_t depths[] = {p->embed_dim, p->kv_projected ? 0 : p->kv_embed_dim, p->v_embed_dim,
                              p->num_heads * p->head_dim_v};
    bool fits =
        mha_variant_of(p, s, target).may_use_tiles && s->lanes * WIDE <= MHA_PANEL_TILE && !p->low_rank && rows > FEW;
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) fits = fits && mha_gemm_tiles(HIGH, WIDE, depths[i]);
    if (!fits) return false;
    s->gemm_rows = rows <= HIGH / 2 ? HIGH / 2 : HIGH;
    s->gemm_column_vectors = WIDE;
    s->gemm_task_rows = choose_block(p, rows, s->gemm_rows);
    return true;
}

/* What is tried. Tiles read whole lines of weights, if registers have room for them, as narrower ones would read each
 * line twice. Tiles of one vector have a load for each multiply-add, and were slower than the cost says. */
typedef struct search {
    const attune_problem *p;
    const mha_machine *on;
    mha_cost_context context;
    mha_products products;
    int64_t rows;              /* of a call */
    int64_t narrowest, widest; /* vectors */
    int64_t usual_rows;
    double least;
    attune_schedule best;
} search;

static search search_of(const attune_problem *p, const mha_machine *on, int64_t rows, const attune_schedule *s) {
    enum { LINE = 64, MOST_ROWS = 8 };
    search t = {.p = p, .on = on, .rows = rows, .best = *s, .widest = MHA_PANEL_TILE / s->lanes};
    const int64_t registers = on->target->vector_registers;
    const int64_t sums = on->target->flags & AT_TARGET_FMA ? registers * 3 / 4 : registers / 2;
    t.context = mha_cost_context_of(p, on);
    t.products = mha_products_of(p);
    t.narrowest = max_of(min_of(LINE / (int64_t)t.context.lane_bytes / s->lanes, registers / 8), 2);
    t.usual_rows = min_of(sums / t.narrowest, MOST_ROWS);
    return t;
}

/* With 32 registers tiles of 16 to 28 sums are as fast as each other within 2 %, and the cost no better than that. So
 * others must promise more than the usual one, which takes less time to compile than larger ones. */
static void try(search *t, attune_schedule s, int64_t rows, int64_t vectors) {
    static const double PROMISE = 0.04;
    s.gemm_rows = (int32_t)rows;
    s.gemm_column_vectors = (int32_t)vectors;
    s.gemm_task_rows = choose_block(t->p, t->rows, rows);
    const attune_schedule left = s;
    mha_schedule_settle(t->p, t->on->target, t->on->description, &s);
    const bool is_usual = rows == t->usual_rows && vectors == t->narrowest;
    const double cost = mha_cost_products(&t->context, &t->products, &s) * (is_usual ? 1 - PROMISE : 1);
    if (t->least > 0 && cost >= t->least) return;
    t->least = cost;
    t->best = left;
}

static void choose_cheapest(const attune_problem *p, const mha_machine *on, int64_t rows, attune_schedule *s) {
    enum { MOST_ROWS = 14 };
    search t = search_of(p, on, rows, s);
    for (int64_t r = 1; r <= min_of(rows, MOST_ROWS); r++)
        for (int64_t v = t.narrowest; v <= t.widest && r * v <= on->target->vector_registers; v *= 2) try(&t, *s, r, v);
    *s = t.best;
}

void mha_choose_gemm(const attune_problem *p, const mha_machine *on, attune_schedule *s) {
    s->gemm_rows = s->gemm_column_vectors = s->gemm_task_rows = s->gemm_depth = 0;
    if (!p->embed_dim) return;
    const int64_t rows = mha_product_rows(p, MHA_USUAL_LENGTH);
    if (!choose_tiles(p, on->target, rows, s)) choose_cheapest(p, on, rows, s);
}
