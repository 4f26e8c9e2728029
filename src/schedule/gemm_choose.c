/* Good register tiles and tasks of a block's products, without measuring. The figures behind the choices:
 * docs/performance-lessons.md. Rules, because the cost is wrong here: it takes tiles of two panels of weights for as
 * good as higher ones of one panel, and knows nothing of streams from memory. */
#include "base/integers.h"
#include "problem/pack_layout.h"
#include "schedule/choose.h"
#include "schedule/decide.h"

/* Rows that the products of a call are expected to have. */
static int64_t expected_rows(const attune_problem *p) {
    enum { USUAL_TOKENS = 512 };
    return mha_product_rows(p, USUAL_TOKENS);
}

/* Rows of a register tile, at most `most` and at least `least`, for which all tiles together take the shortest time:
 * a tile takes as long as its rows and `visit` more. */
static int64_t fitting_rows(int64_t rows, int64_t least, int64_t most, int64_t visit) {
    int64_t best = least;
    for (int64_t r = least; r <= most; r++)
        if (ceil_div(rows, r) * (r + visit) < ceil_div(rows, best) * (best + visit)) best = r;
    return best;
}

/* Vectors of columns where all rows are one register tile. Then reading weights is what takes the time, and each 16
 * columns are a stream of their own to the memory: four of them are read faster than two. */
static int64_t vectors_of_few(int64_t rows, int64_t all, bool wide, bool narrow) {
    if (narrow) return min_of(rows == 1 ? 16 : rows == 2 ? 8 : 4, all);
    const int64_t most = rows == 1 ? 8 : rows <= (wide ? 6 : 3) ? 4 : 2;
    return min_of(most, all);
}

/* Whether all products are of whole tiles, which take many rows. */
static bool choose_tiles(const attune_problem *p, const at_target *target, int64_t rows, attune_schedule *s) {
    enum { HIGH = 32, WIDE = 2 };
    const int64_t depths[] = {p->embed_dim, p->kv_projected ? 0 : p->kv_embed_dim, p->v_embed_dim,
                              p->num_heads * p->head_dim_v};
    bool fits = mha_projects_by_tiles(p, target) && s->lanes * WIDE <= MHA_PANEL_TILE && !p->low_rank;
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) fits = fits && mha_gemm_tiles(HIGH, WIDE, depths[i]);
    if (!fits) return false;
    s->gemm_rows = rows <= HIGH / 2 ? HIGH / 2 : HIGH;
    s->gemm_column_vectors = WIDE;
    return true;
}

static void choose_tile(const attune_problem *p, const at_target *target, attune_schedule *s) {
    const int64_t rows = expected_rows(p), all = MHA_PANEL_TILE / s->lanes;
    const bool wide = target->vector_registers >= 32, fused = target->flags & AT_TARGET_FMA;
    const bool narrow = wide && s->lanes < MHA_PANEL / 2; /* many registers of few lanes: 4 vectors wide, a panel */
    const bool tall = wide && !narrow;
    const int64_t least = tall ? 8 : 4, most = tall ? 14 : fused ? 6 : 4;
    const bool few = rows <= most;
    if (!few && choose_tiles(p, target, rows, s)) return;
    s->gemm_column_vectors = (int32_t)(few ? vectors_of_few(rows, all, wide, narrow) : min_of(narrow ? 4 : 2, all));
    s->gemm_rows = (int32_t)(few ? rows : fitting_rows(rows, least, most, tall ? 0 : 1));
}

/* Rows of a task: those of one register tile, if that is some 10 us of work. Longer tasks read the same weights for
 * each of their tiles, as neighbouring ones do, so many threads have work and one pays nothing. */
static int32_t choose_block(const attune_problem *p, int64_t rows, int64_t tile_rows) {
    enum { MOST = 32, GROUP_COLUMNS = 256, LEAST_WORK = 500 * 1000 };
    const int64_t columns = min_of(p->num_heads * p->head_dim, GROUP_COLUMNS), row = p->embed_dim * columns;
    const int64_t most = max_of(min_of(MOST, rows) / tile_rows, 1);
    return (int32_t)(min_of(ceil_div(LEAST_WORK, row * tile_rows), most) * tile_rows);
}

void mha_choose_gemm(const attune_problem *p, const at_target *target, attune_schedule *s) {
    s->gemm_rows = s->gemm_column_vectors = s->gemm_task_rows = s->gemm_depth = 0;
    if (!p->embed_dim) return;
    choose_tile(p, target, s);
    s->gemm_task_rows = choose_block(p, expected_rows(p), s->gemm_rows);
}
