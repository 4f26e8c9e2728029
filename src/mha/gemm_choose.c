/* Register tiles and tasks of a block's products: which are legal, and good ones without measuring. The figures behind
 * the choices: docs/performance.md. */
#include "mha/gemm.h"
#include "mha/pack.h"

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

enum { USUAL_TOKENS = 512, MOST_ROWS = 1 << 20 };

static int64_t tokens(int64_t size, int64_t bound) {
    return min_of(size != ATTUNE_DYNAMIC ? size : bound ? bound : USUAL_TOKENS, MOST_ROWS);
}

/* Rows that the products of a call are expected to have: tokens of all batch entries, of the longer input. */
static int64_t expected_rows(const attune_problem *p) {
    int64_t most = tokens(p->seq_q, p->max_seq_q);
    if (p->is_cross && !p->kv_projected) {
        const int64_t other = p->seq_new ? tokens(p->seq_new, 0) : tokens(p->seq_kv, p->max_seq_kv);
        if (other > most) most = other;
    }
    return min_of(MOST_ROWS, most * min_of(p->batch, MOST_ROWS));
}

int64_t mha_few_rows(const attune_problem *p) {
    enum { FEW = 32 };
    const int64_t rows = p->embed_dim ? expected_rows(p) : 0;
    return rows <= FEW ? rows : 0;
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
static int64_t vectors_of_few(int64_t rows, int64_t all, bool wide) {
    const int64_t most = rows == 1 ? 8 : rows <= (wide ? 6 : 3) ? 4 : 2;
    return min_of(most, all);
}

static void choose_tile(const attune_problem *p, const at_target *target, attune_schedule *s) {
    const int64_t rows = expected_rows(p), all = MHA_PANEL_TILE / s->lanes;
    const bool wide = target->vector_registers >= 32, fused = target->flags & AT_TARGET_FMA;
    const int64_t least = wide ? 8 : 4, most = wide ? 14 : fused ? 6 : 4;
    const bool few = rows <= most;
    s->gemm_vectors = (int32_t)(few ? vectors_of_few(rows, all, wide) : min_of(2, all));
    s->gemm_rows = (int32_t)(few ? rows : fitting_rows(rows, least, most, wide ? 0 : 1));
}

/* Rows of a task: few, so that many threads have work, which costs nothing as neighbouring tasks find the weights in
 * their cache; and as many tasks as two threads can share. A few rows are one task, or weights would be read twice. */
static int32_t choose_block(int64_t rows, int64_t tile_rows) {
    enum { FEW = 24, USUAL = 32 };
    const int64_t tiles = ceil_div(rows, tile_rows), tasks = rows <= FEW ? 1 : 2 * ceil_div(rows, 2 * USUAL);
    return (int32_t)(ceil_div(tiles, tasks) * tile_rows);
}

void mha_choose_gemm(const attune_problem *p, const at_target *target, attune_schedule *s) {
    s->gemm_rows = s->gemm_vectors = s->gemm_block = s->gemm_depth = 0;
    if (!p->embed_dim) return;
    choose_tile(p, target, s);
    s->gemm_block = choose_block(expected_rows(p), s->gemm_rows);
}

attune_status mha_check_gemm(const attune_problem *p, const attune_schedule *s, const at_target *target,
                             at_error *err) {
    enum { MAX_ACCUMULATORS = 64, MAX_BLOCK = 4096 };
    (void)target;
    const bool some = s->gemm_rows || s->gemm_vectors || s->gemm_block || s->gemm_depth;
    const bool is_block = p->embed_dim > 0;
    const struct {
        bool kept;
        const char *sentence;
    } rules[] = {
        {is_block || !some, "gemm_rows, gemm_vectors, gemm_block and gemm_depth must be 0 without embed_dim"},
        {!is_block || (s->gemm_rows >= 1 && s->gemm_vectors >= 1 && s->gemm_block >= 1),
         "gemm_rows, gemm_vectors and gemm_block must be at least 1 with embed_dim"},
        {!is_block || s->gemm_depth >= 0, "gemm_depth must be at least 0"},
        {!is_block || s->gemm_rows * (int64_t)s->gemm_vectors <= MAX_ACCUMULATORS,
         "gemm_rows * gemm_vectors must be at most 64"},
        {!is_block || (s->gemm_vectors && MHA_PANEL_TILE % (s->gemm_vectors * (int64_t)s->lanes) == 0),
         "gemm_vectors * lanes must divide 64"},
        {!is_block || (s->gemm_rows && s->gemm_block % s->gemm_rows == 0), "gemm_rows must divide gemm_block"},
        {!is_block || s->gemm_block <= MAX_BLOCK, "gemm_block must be at most 4096"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (!rules[i].kept)
            return at_fail(err, ATTUNE_INVALID_SCHEDULE,
                           "%s (embed_dim=%lld, lanes=%d, gemm_rows=%d, gemm_vectors=%d, gemm_block=%d, gemm_depth=%d)",
                           rules[i].sentence, (long long)p->embed_dim, s->lanes, s->gemm_rows, s->gemm_vectors,
                           s->gemm_block, s->gemm_depth);
    return ATTUNE_OK;
}
