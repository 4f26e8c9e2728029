/* The cost of d-lanes: src/attend/decode in numbers. */
#include "schedule/cost_parts.h"

typedef struct d_head {
    const mha_cost_context *c;
    const mha_schedule *s;
    const mha_variant *variant;
    cost_vector v;
    double multiply, width; /* width: columns of a vector */
    double rows, row_tasks; /* rows of a task, and tasks of the same keys */
    double keys, chunks, tiles;
    double k_vectors, v_vectors;
} d_head;

static d_head head_of(const mha_cost_context *c, const mha_schedule *s, const mha_variant *variant) {
    enum { MOST_ROWS = 64 };
    d_head h = {.c = c, .s = s, .variant = variant, .v = mha_cost_vector(&c->machine, s->lanes * c->lane_bytes)};
    h.multiply = c->decodes_by_pairs ? h.v.dot : h.v.multiply;
    h.width = c->decodes_by_pairs ? 2 * s->lanes : s->lanes;
    h.row_tasks = cost_steps(c->rows, MOST_ROWS);
    h.rows = c->rows / h.row_tasks;
    h.keys = cost_smaller(c->keys, c->seen + c->ends / 2 * cost_larger(0, h.rows / c->group - 1));
    h.chunks = cost_steps(h.keys, s->kv_chunk);
    h.tiles = cost_larger(h.chunks, cost_steps(h.keys, s->kv_tile));
    h.k_vectors = cost_steps(c->columns, h.width);
    h.v_vectors = cost_steps(c->columns_v, h.width);
    return h;
}

/* Rows are computed in whole register tiles, and then in one tile for the remaining rows. */
typedef double rows_fn(const d_head *h, double rows);

static double by_tiles(const d_head *h, int step, rows_fn *cost) {
    const int64_t rows = (int64_t)h->rows, whole = rows / step, rest = rows % step;
    return (double)whole * cost(h, step) + (rest ? cost(h, (double)rest) : 0);
}

/* Extra cycles per vector of K or V for converting its elements as they are loaded. */
static double converting(const d_head *h, attune_dtype dtype) {
    const bool is_lane = !mha_is_quantised(dtype) && (double)mha_dtype_bytes(dtype) == h->c->lane_bytes;
    if (h->c->decodes_by_pairs || is_lane) return 0;
    const double shuffles = dtype == ATTUNE_F8     ? COST_OF(d_widen_f8)
                            : dtype == ATTUNE_I4   ? 2 * COST_OF(d_widen_i8)
                            : dtype == ATTUNE_I8   ? COST_OF(d_widen_i8)
                            : dtype == ATTUNE_BF16 ? COST_OF(d_widen_bf16)
                                                   : COST_OF(d_widen);
    return shuffles * h->v.shuffle;
}

/* ---- Register tiles ---- */

/* Adding up the lanes of eight sums at once: after a step, two sums are the halves of one vector. */
static double lane_sums(const d_head *h, double sums) {
    enum { AT_ONCE = 8 };
    double shuffles = 0;
    for (; sums >= 1; sums -= AT_ONCE) {
        double together = 1;
        while (together < sums && together < AT_ONCE) together *= 2;
        for (int lanes = h->s->lanes; lanes > 1; lanes /= 2) {
            shuffles += 2 * together;
            together = cost_larger(1, together / 2);
        }
    }
    return shuffles * COST_OF(d_sum) * h->v.shuffle;
}

/* Unrolled loops keep more of their loads in registers if there are several rows. */
static double unrolled(double rows, double times) { return rows > 1 ? 1 + COST_OF(d_unroll) * (times - 1) : 1; }

/* The keys of an iteration, for some rows. */
static double score_iteration(const d_head *h, double rows) {
    const double keys = h->s->score_keys, times = h->s->score_column_vectors;
    const cost_iteration iteration = {rows, keys, 0, rows + keys, times};
    const double multiplied = mha_cost_iteration(h->c, &h->v, &iteration, h->c->decodes_by_pairs);
    const double columns = multiplied + keys * converting(h, h->c->p->k_dtype);
    return h->k_vectors * columns * unrolled(rows, times) + COST_OF(d_start) + lane_sums(h, rows * keys);
}

/* The same for V, one vector of columns after the other: O is loaded and stored, and pairs are interleaved.
 * Probabilities stay in the registers that V does not need. */
static double value_iteration(const d_head *h, double rows) {
    const double keys = h->s->value_keys, vectors = h->s->value_column_vectors, halves = h->c->decodes_by_pairs ? 2 : 1;
    const at_description *d = h->c->machine.description;
    const double held = rows * keys + keys * cost_smaller(vectors, 2) + 1;
    const double spilled = cost_larger(0, held - (double)h->c->machine.target->vector_registers);
    const double sums = rows * halves, operands = keys * halves;
    const double loads = (sums + operands + spilled * COST_OF(d_spill)) * h->v.load;
    const double begun = (sums * (keys + 2) + 2 * operands) / COST_OF(issue);
    const double shuffled = h->c->decodes_by_pairs ? operands * COST_OF(d_pairs) * h->v.shuffle : 0;
    const double busy = cost_limit(cost_limit(sums * keys * h->multiply + shuffled, loads),
                                   cost_larger(sums * h->v.store * COST_OF(d_store), begun));
    const double column = busy + keys * converting(h, h->c->p->v_dtype) + COST_OF(d_iteration) / vectors;
    return h->v_vectors * column * unrolled(rows, vectors) + rows * keys * COST_OF(d_probability) / d->load +
           COST_OF(d_value_start) + keys * d->latency * COST_OF(d_chain);
}

/* The cost of a key of values whose sums stay in registers, for some rows, stripe by stripe. O is loaded and stored
 * once for a block. Rows or vectors, whichever are fewer, stay in registers as well. */
static double held_iteration(const d_head *h, double rows) {
    enum { BLOCK = 32 };
    const double vectors = h->s->value_column_vectors, stripes = cost_steps(h->v_vectors, vectors);
    const double more = cost_larger(rows, vectors), fewer = cost_smaller(rows, vectors);
    const cost_iteration iteration = {more, fewer, 0, rows + vectors, 1};
    const double key = mha_cost_iteration(h->c, &h->v, &iteration, false) + vectors * converting(h, h->c->p->v_dtype);
    return stripes * (key + rows * vectors * (h->v.load + h->v.store) / BLOCK);
}

/* Scores of four streams are put in their order, a round of as many keys of each as there are lanes. */
static double ordering(const d_head *h) {
    enum { STREAMS = 4 };
    if (h->s->score_streams != STREAMS) return 0;
    const double vectors = h->rows * h->keys / h->s->lanes;
    return vectors * (h->v.load + h->v.store + 2 * h->v.shuffle) * COST_OF(d_order);
}

/* ---- Memory ---- */

/* How far the keys that are read at once differ from what hardware prefetchers follow best: four streams, each of one
 * key. */
static double disorder(double streams, double keys) {
    enum { BEST = 4 };
    const double lacking = cost_larger(0, BEST - streams), crowded = cost_larger(0, keys / BEST - 1);
    return lacking * COST_OF(d_streams) + crowded * COST_OF(d_crowded);
}

/* The time of reading K and V once that arithmetic does not hide. Caches and prefetchers deliver most lines during
 * arithmetic. The call waits for reads that take longer than arithmetic, and for lines that are not prefetched. */
static double reading(const d_head *h, double arithmetic) {
    const mha_cost_context *c = h->c;
    const at_description *d = c->machine.description;
    const mha_schedule *s = h->s;
    const double k = c->columns * c->k_bytes, v = c->columns_v * c->v_bytes, keys = h->row_tasks * h->keys;
    if (c->level == MHA_COST_L2) return keys * (k + v) / d->l2_rate * COST_OF(d_from);
    const double rate = c->level == MHA_COST_L3 ? d->l3_rate : d->memory_rate, time = keys * (k + v) / rate;
    const double of_k = c->p->integer ? 0 : disorder(s->score_streams, s->score_keys); /* quantised K is one stream */
    const double of_v = c->p->integer == ATTUNE_INTEGER_ALL ? 0 : disorder(s->value_streams, s->value_keys);
    const double waiting = keys * (k * of_k + v * of_v) / rate;
    /* Each tile begins its streams anew. */
    const double begun = h->row_tasks * h->tiles * (s->score_streams + s->value_streams) * COST_OF(d_begin) / rate;
    return cost_larger(COST_OF(d_from) * time, COST_OF(d_memory) * time - arithmetic * 0.5) + waiting + begun;
}

/* ---- All of it ---- */

static double code_scores(const d_head *h, double rows) {
    return mha_cost_quantised_scores(h->c, h->s, &h->v, h->variant->rows_in_vector, rows);
}
static double code_values(const d_head *h, double rows) { return mha_cost_quantised_values(h->c, h->s, &h->v, rows); }

static double scores_of(const d_head *h) {
    const mha_schedule *s = h->s;
    const bool in_codes = h->c->p->integer;
    const double keys = in_codes ? mha_cost_quantised_keys(h->c, s) : s->score_keys;
    return h->row_tasks * cost_steps(h->keys, keys) *
           by_tiles(h, s->score_rows, in_codes ? code_scores : score_iteration);
}

static double values_of(const d_head *h) {
    const mha_schedule *s = h->s;
    const bool in_codes = h->c->p->integer == ATTUNE_INTEGER_ALL;
    const bool is_held = !in_codes && h->variant->holds_values;
    const double keys = in_codes ? COST_DOT_CODES : h->c->decodes_by_pairs ? 2 * s->value_keys : s->value_keys;
    rows_fn *const iteration = in_codes ? code_values : is_held ? held_iteration : value_iteration;
    return h->row_tasks * h->keys / keys * by_tiles(h, s->value_rows, iteration);
}

mha_costs mha_cost_d_lanes(const mha_cost_context *c, const mha_schedule *s, const mha_variant *variant) {
    const d_head h = head_of(c, s, variant);
    const double scores = scores_of(&h), values = values_of(&h);
    const double vectors = h.keys / s->lanes + h.tiles;
    const double o = h.tiles * h.rows * h.v_vectors * (h.v.load + h.v.multiply + h.v.store);
    const double merge = h.chunks > 1 ? h.chunks * c->rows * (COST_OF(d_merge) + h.v_vectors * h.v.load * 2) : 0;
    return (mha_costs){
        .scores = scores + h.row_tasks * ordering(&h) + reading(&h, scores + values) / 2,
        .softmax = h.row_tasks * h.rows * (vectors * COST_OF(d_exp) * h.v.multiply + h.tiles * COST_OF(d_row)),
        .values = values + h.row_tasks * o + reading(&h, scores + values) / 2,
        .tasks = h.row_tasks * h.chunks * (COST_OF(d_task) + h.rows * COST_OF(d_task_row)) + merge,
    };
}
