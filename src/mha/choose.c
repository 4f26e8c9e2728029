/* A good schedule without measuring. The figures behind the choices: docs/performance.md. */
#include "mha/mha.h"

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

/* 8 accumulators keep two fma pipes of latency 4 busy where there are 16 registers; more gain nothing here and cost
 * compile time. With 32 registers 24, of 4 or 3 vectors, whichever leaves fewer rows empty. */
static void choose_score_tile(const attune_problem *p, const at_target *target, attune_schedule *s) {
    const bool wide = target->vector_registers >= 32;
    const int64_t rows = p->seq_q * (p->num_heads / p->num_kv_heads), vectors = ceil_div(rows, s->lanes);
    const int64_t most = !wide ? 2 : ceil_div(vectors, 3) * 3 < ceil_div(vectors, 4) * 4 ? 3 : 4;
    s->score_vectors = (int32_t)min_of(most, vectors);
    s->score_rows = (int32_t)min_of(min_of((wide ? 24 : 8) / s->score_vectors, 8), p->seq_kv);
    s->score_unroll = p->head_dim % 4 ? p->head_dim % 2 ? 1 : 2 : 4;
}

/* What a value tile of `rows` columns costs for each key, in halves of an fma slot: a tile of fewer than 8 accumulators
 * waits for its own results, and each tile passes over P and V once more. */
static int64_t value_tile_cost(int64_t rows, int64_t vectors) {
    const int64_t accumulators = rows * vectors;
    return rows ? 2 * (accumulators > 8 ? accumulators : 8) + 2 : 0;
}

/* The number of columns that wastes least on the smaller tile for the rest. Such a rest also costs compile time: it
 * must earn a hundredth, and more under a causal mask, where each tile has two loops. */
static void choose_value_tile(const attune_problem *p, const at_target *target, attune_schedule *s) {
    const int64_t vectors = s->score_vectors, dim = p->head_dim_v;
    const int64_t most = min_of(min_of((target->vector_registers >= 32 ? 24 : 12) / vectors, 8), dim);
    int64_t best = 0;
    for (int64_t rows = most; rows >= 1; rows--) {
        int64_t cost = dim / rows * value_tile_cost(rows, vectors) + value_tile_cost(dim % rows, vectors);
        if (dim % rows) cost += cost / (p->is_causal ? 20 : 100);
        if (rows < most && cost >= best) continue;
        best = cost;
        s->value_rows = (int32_t)rows;
    }
    s->value_vectors = s->score_vectors;
    s->value_unroll = 1;
}

/* Keys between two rescalings: what lets a tile of K, or of V, stay in the first cache beside the rest. */
static int32_t choose_kv_tile(const attune_problem *p, int64_t score_rows) {
    enum { TILE_ELEMENTS = 6144, MIN_KEYS = 32, MAX_KEYS = 192 };
    const int64_t dim = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v;
    int64_t keys = TILE_ELEMENTS / dim;
    keys = keys < MIN_KEYS ? MIN_KEYS : min_of(keys, MAX_KEYS);
    return (int32_t)(ceil_div(min_of(p->seq_kv, keys), score_rows) * score_rows);
}

/* Vectors of rows in a task. K and V stream past once for each task: where they are too large for the second cache,
 * and rows are many, tasks are longer. */
static int32_t choose_task(const attune_problem *p, int64_t rows, const attune_schedule *s) {
    enum { LARGE_HEAD = 96 * 1024, MANY_ROWS = 512 };
    const int64_t head = p->seq_kv * (p->head_dim + p->head_dim_v);
    const int64_t most = head >= LARGE_HEAD && rows >= MANY_ROWS ? 8 : 4;
    const int64_t blocks = min_of(most, ceil_div(rows, (int64_t)s->lanes * s->score_vectors));
    return (int32_t)(blocks * s->score_vectors);
}

void mha_choose(const attune_problem *p, const at_target *target, attune_schedule *s) {
    const int64_t rows = p->seq_q * (p->num_heads / p->num_kv_heads);
    *s = (attune_schedule)ATTUNE_SCHEDULE_INIT;
    s->strategy = ATTUNE_Q_LANES;
    s->lanes = target->vector_bytes / 4;
    choose_score_tile(p, target, s);
    choose_value_tile(p, target, s);
    s->q_vectors = choose_task(p, rows, s);
    s->kv_tile = choose_kv_tile(p, s->score_rows);
}
