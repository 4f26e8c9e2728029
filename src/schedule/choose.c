/* A good schedule without measuring. The figures behind the choices: docs/performance-lessons.md. */
#include "base/integers.h"
#include "problem/problem.h"
#include "problem/problem_sight.h"
#include "schedule/choose.h"
#include "schedule/decide.h"

/* What a size is taken to be: where only the run tells, its bound, or what is neither short nor long. */
static int64_t expected(int64_t size, int64_t bound) {
    enum { USUAL = 512 };
    return size != ATTUNE_DYNAMIC ? size : bound ? bound : USUAL;
}

static int64_t expected_rows(const attune_problem *p) {
    return expected(p->seq_q, p->max_seq_q) * (p->num_heads / p->num_kv_heads);
}

static int64_t expected_keys(const attune_problem *p) { return expected(p->seq_kv, p->max_seq_kv); }

static bool has_wide_vectors(const at_target *target) { return target->vector_bytes >= 64; }

/* Whether more than one multiply-add of whole vectors begins in a cycle. Then loads and latency limit a tile that is
 * one vector wide: it loads for each multiplication, and eight sums are as many as are under way at once. */
static bool has_fast_vectors(const at_target *target, const at_description *machine) {
    return machine->fma > at_description_slots(machine, target->vector_bytes);
}

/* A stripe of a vector of rows leaves fewest rows empty, and fewest hidden keys to compute; an element of K then is an
 * operand in memory, which costs fma nothing. It costs dot2 something: two vectors, or four where that fills up no more
 * rows. Long rows of K are better read for four vectors at a time. */
static int64_t wide_score_vectors(const attune_problem *p, const at_target *target, const at_description *machine,
                                  int64_t vectors) {
    enum { LONG_ROW = 128, MANY = 8 };
    const bool by_pairs = mha_attends_by_pairs(p, target), fills_four = vectors % 4 == 0 && !mha_sees_more_later(p);
    const bool fills_two = vectors % 2 == 0 || vectors >= MANY;
    if (by_pairs) return ceil_div(vectors, 4) * 4 <= ceil_div(vectors, 2) * 2 && !mha_sees_more_later(p) ? 4 : 2;
    if (fills_four && p->head_dim >= LONG_ROW) return 4;
    return has_fast_vectors(target, machine) && fills_two ? 2 : 1;
}

static int64_t whole_lanes(const attune_problem *p, const at_target *target) {
    return target->vector_bytes / (p->softmax_precision == ATTUNE_F64 ? 8 : 4);
}

/* Whether keys are so few that tiles of so many would compute an eighth more, or more than that. Tiles on a diagonal,
 * of which parts are left out, had better stay short. */
static bool wastes_score_keys(const attune_problem *p, int64_t score_keys) {
    const int64_t keys = expected_keys(p), most = mha_sees_more_later(p) ? 16 : 40;
    return !p->reproducible && keys <= most && ceil_div(keys, score_keys) * score_keys - keys >= ceil_div(keys, 8);
}

/* 8 accumulators keep two fma pipes of latency 4 busy where there are 16 registers; more gain nothing here and cost
 * compile time. With 32 registers 24, of 4 or 3 vectors, whichever leaves fewer rows empty. AArch64 multiplies by an
 * element of a register: those of several columns at once would not leave the tile enough registers. */
static void choose_score_tile(const attune_problem *p, const at_target *target, const at_description *machine,
                              attune_schedule *s) {
    const bool wide = target->vector_registers >= 32;
    const int64_t vectors = ceil_div(expected_rows(p), s->lanes);
    int64_t most = !wide ? 2 : ceil_div(vectors, 3) * 3 < ceil_div(vectors, 4) * 4 ? 3 : 4;
    int64_t accumulators = wide ? 24 : 8;
    if (has_wide_vectors(target)) {
        most = wide_score_vectors(p, target, machine, vectors);
        if (mha_attends_by_pairs(p, target) || has_fast_vectors(target, machine)) accumulators = 16;
    }
    s->score_row_vectors = (int32_t)min_of(most, vectors);
    s->score_keys = (int32_t)min_of(min_of(accumulators / s->score_row_vectors, 8), expected_keys(p));
    if (has_wide_vectors(target) && s->score_row_vectors == 1 && wastes_score_keys(p, s->score_keys))
        s->score_keys = mha_few_score_keys(expected_keys(p), s->lanes == whole_lanes(p, target));
    while (p->reproducible && mha_reproducible_kv_tile(p) % s->score_keys) s->score_keys--;
    const bool by_element = target->required & AT_CPU_AARCH64;
    s->score_columns = by_element || p->head_dim % 2 ? 1 : p->head_dim % 4 ? 2 : 4;
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
    const int64_t vectors = s->score_row_vectors, dim = p->head_dim_v;
    const int64_t room = (target->vector_registers >= 32 ? 24 : 12) / vectors;
    const int64_t most = min_of(has_wide_vectors(target) ? room : min_of(room, 8), dim);
    int64_t best = 0;
    for (int64_t rows = most; rows >= 1; rows--) {
        int64_t cost = dim / rows * value_tile_cost(rows, vectors) + value_tile_cost(dim % rows, vectors);
        if (dim % rows) cost += cost / (mha_sees_more_later(p) ? 20 : 100);
        if (rows < most && cost >= best) continue;
        best = cost;
        s->value_columns = (int32_t)rows;
    }
    s->value_row_vectors = s->score_row_vectors;
    s->value_keys = 1;
}

enum { TILE_ELEMENTS = 6144 };

/* Keys between two rescalings: what lets a tile of K, or of V, stay in the first cache beside the rest. */
static int64_t usual_kv_tile(const attune_problem *p, int64_t elements, int64_t least, int64_t most) {
    const int64_t dim = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v;
    const int64_t keys = elements / dim;
    return keys < least ? least : min_of(keys, most);
}

/* Every number of keys that a vector or a register tile may have divides 48. */
int32_t mha_reproducible_kv_tile(const attune_problem *p) {
    return (int32_t)(usual_kv_tile(p, TILE_ELEMENTS, 48, 192) / 48 * 48);
}

/* A last tile of only a few keys costs more than tiles that are a little longer. */
static int32_t choose_kv_tile(const attune_problem *p, const at_target *target, const attune_schedule *s) {
    enum { ONE_TILE = 1024, LONG_TILE = 512 };
    if (p->reproducible) return mha_reproducible_kv_tile(p);
    const int64_t all = expected_keys(p), score_keys = s->score_keys;
    /* Values by rows read P and V in long streams, for which the second cache is near enough: one tile is best, and
     * where O is kept from tile to tile a long one is. */
    if (mha_keeps_rows(p, s, target))
        return (int32_t)(ceil_div(all <= ONE_TILE ? all : LONG_TILE, score_keys) * score_keys);
    /* Wide vectors rescale more at a time, and pairs take half of the room: both gain by longer tiles. */
    const int64_t longer = mha_attends_by_pairs(p, target) ? 4 : target->vector_registers >= 32 ? 2 : 1;
    int64_t keys = min_of(usual_kv_tile(p, longer * TILE_ELEMENTS, 32, 192), all);
    if (all % keys && all % keys <= keys / 8) keys = ceil_div(all, all / keys);
    return (int32_t)(ceil_div(keys, score_keys) * score_keys);
}

/* Whether a task does nothing once for all its stripes: K and V are read as they lie, and V is not searched. Then short
 * tasks are as fast as long ones, and more threads have work. */
static bool has_equal_stripes(const attune_problem *p, const at_target *target, const attune_schedule *s) {
    const bool is_plain = p->softmax_precision == ATTUNE_F32 && p->k_dtype == ATTUNE_F32 && p->v_dtype == ATTUNE_F32;
    return is_plain && mha_keeps_rows(p, s, target) && !p->global_tokens && !mha_has_dims(p->attn_mask_dims) &&
           !mha_has_dims(p->attn_bias_dims);
}

/* Vectors of rows in a task, before the limits. K and V stream past once for each task: where they are too large for
 * the second cache, or are put in pairs each time, and rows are many, tasks are longer. */
static int64_t usual_task(const attune_problem *p, const at_target *target, const attune_schedule *s) {
    enum { LARGE_HEAD = 96 * 1024, MANY_ROWS = 512, ONE_TILE = 1024, FEW = 4 };
    const int64_t head = expected_keys(p) * (p->head_dim + p->head_dim_v);
    if (has_equal_stripes(p, target, s)) {
        /* What a stripe sees of a window, or of many tiles, is little beside their beginnings. */
        const bool is_one = expected_keys(p) <= ONE_TILE && !mha_has_first_key(p);
        return is_one ? s->score_row_vectors : max_of(FEW, s->score_row_vectors);
    }
    const bool is_large = head >= LARGE_HEAD || mha_attends_by_pairs(p, target);
    return (is_large && expected_rows(p) >= MANY_ROWS ? 8 : 4) * (has_wide_vectors(target) ? 4 : s->score_row_vectors);
}

static int32_t choose_task(const attune_problem *p, const at_target *target, const attune_schedule *s) {
    /* Operations of a task at most, unless it is one stripe: 1.5 to 2 ms of a core, after which a call that was
     * cancelled ends. Pairs do twice as many in that time. */
    static const double LONGEST = 200e6;
    const int64_t rows = expected_rows(p), head = expected_keys(p) * (p->head_dim + p->head_dim_v);
    const int64_t stripe_rows = (int64_t)s->lanes * s->score_row_vectors;
    const double stripe = 2.0 * (double)head * (double)stripe_rows;
    const int64_t fit = (int64_t)((mha_attends_by_pairs(p, target) ? 2 : 1) * LONGEST / stripe);
    const int64_t usual = usual_task(p, target, s) / s->score_row_vectors;
    const int64_t stripes = min_of(min_of(usual, ceil_div(rows, stripe_rows)), fit > 1 ? fit : 1);
    return (int32_t)(stripes * s->score_row_vectors);
}

void mha_choose_q_lanes(const attune_problem *p, const at_target *target, const at_description *machine,
                        attune_schedule *s) {
    *s = (attune_schedule)ATTUNE_SCHEDULE_INIT;
    s->strategy = ATTUNE_Q_LANES;
    s->lanes = mha_few_rows_lanes(p, target);
    choose_score_tile(p, target, machine, s);
    choose_value_tile(p, target, s);
    s->task_row_vectors = choose_task(p, target, s);
    s->kv_tile = choose_kv_tile(p, target, s);
}

/* Values by rows would multiply vectors of a few columns. Where rows fill no vector either, that is no worse. */
static bool is_narrow(const attune_problem *p, const at_target *target) {
    enum { COLUMNS = 8 };
    return has_wide_vectors(target) && p->head_dim_v < COLUMNS && expected_rows(p) > whole_lanes(p, target);
}

void mha_choose(const attune_problem *p, const at_target *target, const at_description *machine, attune_schedule *s) {
    *s = (attune_schedule)ATTUNE_SCHEDULE_INIT;
    if (!mha_choose_small(p, target, s) && !mha_choose_d_lanes(p, target, s)) mha_choose_q_lanes(p, target, machine, s);
    if (s->strategy == ATTUNE_Q_LANES && mha_attends(p) && is_narrow(p, target)) s->value_by = ATTUNE_VALUE_BY_COLUMNS;
    mha_choose_gemm(p, target, s);
    mha_schedule_settle(p, target, s);
}
