/* Register tiles and tasks of a block's products: which are legal, and good ones without measuring. The figures behind
 * the choices: docs/performance.md. */
#include "mha/gemm.h"
#include "mha/pack.h"

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

/* Rows that a call is expected to have: tokens of all batch entries. */
static int64_t expected_rows(const attune_problem *p) {
    enum { USUAL = 512, MOST = 1 << 20 };
    int64_t tokens = p->seq_q != ATTUNE_DYNAMIC ? p->seq_q : p->max_seq_q ? p->max_seq_q : USUAL;
    if (tokens > MOST) tokens = MOST;
    return min_of(MOST, tokens * (p->batch > 0 ? min_of(p->batch, MOST) : 1));
}

/* Rows of a register tile, from `least` to `most`: what leaves the fewest rows of a tile empty, the larger one of two
 * that are alike. */
static int64_t fitting_rows(int64_t rows, int64_t least, int64_t most) {
    int64_t best = most;
    for (int64_t r = most; r >= least; r--)
        if (ceil_div(rows, r) * r < ceil_div(rows, best) * best) best = r;
    return best;
}

static void choose_tile(const attune_problem *p, const at_target *target, attune_schedule *s) {
    const int64_t rows = expected_rows(p);
    const bool wide = target->vector_registers >= 32;
    const int64_t most = wide ? 14 : 6, least = wide ? 8 : 4;
    s->gemm_vectors = 2;
    s->gemm_rows = (int32_t)(rows <= most ? rows : fitting_rows(rows, least, most));
}

void mha_choose_gemm(const attune_problem *p, const at_target *target, attune_schedule *s) {
    enum { BLOCK = 64 };
    s->gemm_rows = s->gemm_vectors = s->gemm_block = s->gemm_depth = 0;
    if (!p->embed_dim) return;
    choose_tile(p, target, s);
    s->gemm_block = (int32_t)(ceil_div(min_of(BLOCK, expected_rows(p)), s->gemm_rows) * s->gemm_rows);
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
