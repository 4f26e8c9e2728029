/* The cost of d-lanes: src/attend/d_lanes*.c in numbers. */
#include "schedule/cost_parts.h"
#include "schedule/decide.h"

typedef struct d_head {
    const mha_cost_context *c;
    const attune_schedule *s;
    cost_vector v;
    double multiply, width; /* width: columns of a vector */
    double rows, row_tasks; /* rows of a task, and tasks of the same keys */
    double keys, chunks, tiles;
    double k_vectors, v_vectors;
} d_head;

static d_head head_of(const mha_cost_context *c, const attune_schedule *s) {
    enum { MOST_ROWS = 64 };
    d_head h = {.c = c, .s = s, .v = mha_cost_vector(&c->machine, s->lanes * c->lane_bytes)};
    h.multiply = c->by_pairs ? h.v.dot : h.v.multiply;
    h.width = c->by_pairs ? 2 * s->lanes : s->lanes;
    h.row_tasks = cost_steps(c->rows, MOST_ROWS);
    h.rows = c->rows / h.row_tasks;
    h.keys = cost_smaller(c->keys, c->seen + c->ends / 2 * cost_larger(0, h.rows / c->group - 1));
    h.chunks = cost_steps(h.keys, s->kv_chunk);
    h.tiles = cost_larger(h.chunks, cost_steps(h.keys, s->kv_tile));
    h.k_vectors = cost_steps(c->columns, h.width);
    h.v_vectors = cost_steps(c->columns_v, h.width);
    return h;
}

/* Rows go by whole register tiles, and then one of those that are left. */
typedef double rows_fn(const d_head *h, double rows);

static double by_tiles(const d_head *h, int step, rows_fn *cost) {
    const int64_t rows = (int64_t)h->rows, whole = rows / step, rest = rows % step;
    return (double)whole * cost(h, step) + (rest ? cost(h, (double)rest) : 0);
}

/* Whether elements of K and V are converted when they are loaded. */
static double converting(const d_head *h, double bytes) {
    return h->c->by_pairs || bytes == h->c->lane_bytes ? 0 : COST_OF(widen) * h->v.shuffle;
}

/* ---- Register tiles ---- */

/* The keys of a turn, for some rows. */
static double score_turn(const d_head *h, double rows) {
    const double keys = h->s->score_keys, sums = rows * keys;
    const cost_turn turn = {rows, keys, 0, rows + keys, h->s->score_column_vectors};
    const double columns = mha_cost_turn(h->c, &h->v, &turn, h->c->by_pairs) + keys * converting(h, h->c->k_bytes);
    return h->k_vectors * columns + COST_OF(d_start) + sums * COST_OF(d_sum) * h->v.shuffle * 2;
}

/* The same of V: O is read and written for each vector of columns. */
static double value_turn(const d_head *h, double rows) {
    const double keys = h->s->value_keys, vectors = h->s->value_column_vectors;
    const at_description *d = h->c->machine.description;
    const double sums = rows * vectors, multiply = sums * keys * h->multiply;
    const double loads = (sums + keys * vectors) * h->v.load, stores = sums * h->v.store;
    const double busy =
        cost_larger(cost_larger(multiply, loads), stores) + vectors * keys * converting(h, h->c->v_bytes);
    /* A sum waits for itself from key to key; neighbouring vectors are computed meanwhile. */
    const double turns = h->v_vectors / vectors;
    return turns * (busy + COST_OF(turn)) + rows * keys / d->load + COST_OF(d_value_start) + keys * d->latency;
}

/* ---- Memory ---- */

/* What reading K and V once takes, beside arithmetic: the larger share of the longer one. */
static double reading(const d_head *h, double arithmetic) {
    const mha_cost_context *c = h->c;
    const at_description *d = c->machine.description;
    const double bytes = h->row_tasks * h->keys * (c->columns * c->k_bytes + c->columns_v * c->v_bytes);
    const double streams = cost_smaller(4, cost_larger(h->s->score_streams, h->s->value_streams));
    if (!mha_is_from_memory(c->p)) {
        const double far = d->l3 > 0 ? d->l3_rate : d->memory_rate;
        return bytes / far * COST_OF(d_from);
    }
    const double time = bytes / d->memory_rate * (1 + COST_OF(d_streams) * (4 - streams));
    return cost_larger(COST_OF(d_from) * time, COST_OF(d_memory) * time - arithmetic * 0.5);
}

mha_costs mha_cost_d_lanes(const mha_cost_context *c, const attune_schedule *s) {
    const d_head h = head_of(c, s);
    const double unit_keys = c->by_pairs ? 2 * s->value_keys : s->value_keys;
    const double scores = h.row_tasks * cost_steps(h.keys, s->score_keys) * by_tiles(&h, s->score_rows, score_turn);
    const double values = h.row_tasks * h.keys / unit_keys * by_tiles(&h, s->value_rows, value_turn);
    const double vectors = h.keys / s->lanes + h.tiles;
    const double o = h.tiles * h.rows * h.v_vectors * (h.v.load + h.v.multiply + h.v.store);
    const double merge = h.chunks > 1 ? h.chunks * c->rows * (COST_OF(d_merge) + h.v_vectors * h.v.load * 2) : 0;
    return (mha_costs){
        .scores = scores + reading(&h, scores + values) / 2,
        .softmax = h.row_tasks * h.rows * (vectors * COST_OF(d_exp) * h.v.multiply + h.tiles * COST_OF(d_row)),
        .values = values + h.row_tasks * o + reading(&h, scores + values) / 2,
        .tasks = h.row_tasks * h.chunks * (COST_OF(d_task) + h.rows * COST_OF(d_task_row)) + merge,
    };
}
