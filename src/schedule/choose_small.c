/* A good schedule for few query rows and keys, without measuring: q-lanes with values by rows, in one tile. And what of
 * that is as good for problems that hide keys, whose values are by columns. The figures behind the choices:
 * docs/performance-lessons.md, "Tiny calls" and "Cliffs". */
#include "base/integers.h"
#include "problem/problem_sight.h"
#include "schedule/choose.h"
#include "schedule/decide.h"

/* With 32 registers; with 16, which have but one width of vectors to choose from, the usual choices are as good. */
enum { MIN_REGISTERS = 32, MAX_ROWS = 64, MAX_ACCUMULATORS = 20, MAX_KEY_ROWS = 16, MAX_COLUMNS = 16 };
/* Vectors of half the width where a mask or bias is read for each; lanes of a vector whose quarters are vectors. */
enum { MAX_HALVES = 5, MIN_QUARTERED = 16 };

/* Keys that d-lanes can read in streams are better left to it if rows are few: up to 6. With a handful of keys, which
 * fill none of its vectors, up to 2, and only where head_dim fills one (or vectors are too short for quarters). */
static bool is_for_d_lanes(const attune_problem *p, int64_t rows, int64_t lanes) {
    if (p->seq_kv > lanes * 3 / 4) return rows <= 6;
    return rows <= 2 && (p->head_dim >= lanes || lanes < MIN_QUARTERED);
}

/* A vector of half the width takes half the time of a whole one where the hardware is as wide as that, and leaves fewer
 * lanes empty. Quarters are not faster than halves: only for so few rows that a half would be empty by half. */
static int64_t choose_lanes(int64_t rows, int64_t lanes) {
    if (rows <= lanes / 4) return lanes / 4;
    const int64_t half = lanes / 2;
    return ceil_div(rows, half) % 2 ? half : lanes;
}

/* Keys in a register tile of the scores. What a tile costs for each column, in fma: those it has, at least as many as
 * hide their own latency, and something for its beginning and end. */
static int32_t choose_score_keys(int64_t keys, int64_t vectors, bool whole_vectors) {
    const int64_t latency = whole_vectors ? 5 : 9;
    const int64_t most = min_of(min_of(MAX_ACCUMULATORS / vectors, whole_vectors ? MAX_KEY_ROWS : 13), keys);
    int64_t best = 0, chosen = 1;
    for (int64_t rows = most; rows >= 1; rows--) {
        const int64_t cost = ceil_div(keys, rows) * (max_of(rows * vectors, latency) + 1);
        if (rows < most && cost >= best) continue;
        best = cost;
        chosen = rows;
    }
    return (int32_t)chosen;
}

/* Keys that a tile of usual length may have, as choose.c sees it: K and V stay in the first cache. */
static bool is_short(const attune_problem *p) {
    enum { TILE_ELEMENTS = 6144 };
    return p->seq_kv >= 1 && p->seq_kv * max_of(p->head_dim, p->head_dim_v) <= TILE_ELEMENTS;
}

static int64_t rows_of(const attune_problem *p) { return p->seq_q * (p->num_heads / p->num_kv_heads); }

static bool is_small(const attune_problem *p, const at_target *target) {
    if (p->op != ATTUNE_ATTENTION || p->softmax_precision == ATTUNE_F64 || p->reproducible) return false;
    return target->vector_registers >= MIN_REGISTERS && p->seq_q >= 1 && rows_of(p) <= MAX_ROWS && is_short(p);
}

int32_t mha_few_rows_lanes(const attune_problem *p, const at_target *target) {
    const int64_t lanes = target->vector_bytes / (p->softmax_precision == ATTUNE_F64 ? 8 : 4);
    if (!is_small(p, target) || lanes < MIN_QUARTERED) return (int32_t)lanes;
    const int64_t halves = ceil_div(rows_of(p), lanes / 2), most = mha_sees_more_later(p) ? MAX_ROWS : MAX_HALVES;
    /* Pairs have two vectors in a register tile, so of three or seven halves one would be empty. */
    const bool is_half = mha_attends_by_pairs(p, target) ? halves % 4 == 1 : halves % 2 == 1;
    return (int32_t)(is_half && halves <= most ? lanes / 2 : lanes);
}

int32_t mha_few_score_keys(int64_t keys, bool whole_vectors) { return choose_score_keys(keys, 1, whole_vectors); }

bool mha_choose_small(const attune_problem *p, const at_target *target, attune_schedule *s) {
    const int64_t rows = rows_of(p), width = target->vector_bytes / 4;
    if (!is_small(p, target) || is_for_d_lanes(p, rows, width)) return false;
    attune_schedule small = ATTUNE_SCHEDULE_INIT;
    small.strategy = ATTUNE_Q_LANES;
    small.lanes = (int32_t)choose_lanes(rows, width);
    small.score_row_vectors = small.task_row_vectors = (int32_t)ceil_div(rows, small.lanes);
    small.score_keys = choose_score_keys(p->seq_kv, small.score_row_vectors, small.lanes == width);
    small.score_columns = p->head_dim % 4 ? p->head_dim % 2 ? 1 : 2 : 4;
    small.value_row_vectors = small.value_keys = 1;
    small.value_columns = (int32_t)min_of(MAX_COLUMNS, p->head_dim_v);
    small.kv_tile = (int32_t)(ceil_div(p->seq_kv, small.score_keys) * small.score_keys);
    if (!mha_takes_rows_at_once(p, &small)) return false;
    *s = small;
    return true;
}
