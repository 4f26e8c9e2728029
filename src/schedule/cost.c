#include "schedule/cost.h"
#include "schedule/decide.h"

#include "base/integers.h"
#include "problem/problem_sight.h"

/* ---- The size that is assumed where it is open ---- */

enum { USUAL = 512 };

static double size_of(int64_t size, int64_t bound) {
    return (double)(size != ATTUNE_DYNAMIC ? size : bound ? min_of(bound, USUAL) : USUAL);
}

static double rows_of(const attune_problem *p) {
    return size_of(p->seq_q, p->max_seq_q) * (double)(p->num_heads / p->num_kv_heads);
}

static double keys_of(const attune_problem *p) {
    return p->low_rank ? (double)p->low_rank : size_of(p->seq_kv, p->max_seq_kv);
}

static double round_up(double x, double step) {
    const int64_t whole = (int64_t)x, s = (int64_t)step;
    return (double)(ceil_div(whole, s) * s);
}

static double larger(double x, double y) { return x > y ? x : y; }
static double smaller(double x, double y) { return x < y ? x : y; }

/* ---- One register tile ---- */

/* Cycles of a loop's own instructions. */
static const double TURN = 1.5;

/* Cycles of the operations on one of the schedule's vectors. */
typedef struct vector_cycles {
    double multiply, dot, load, store, shuffle; /* dot: of bf16 */
} vector_cycles;

static vector_cycles cycles_of_vector(const at_description *d, double bytes) {
    const double slots = at_description_slots(d, bytes);
    return (vector_cycles){slots / d->fma, slots / d->bf16, slots / d->load, slots / d->store, slots / d->shuffle};
}

static double lane_bytes(const attune_problem *p) { return p->softmax_precision == ATTUNE_F64 ? 8 : 4; }

static vector_cycles cycles_of(const attune_problem *p, const mha_machine *m, const attune_schedule *s) {
    return cycles_of_vector(m->description, s->lanes * lane_bytes(p));
}

/* A tile of rows x vectors: a turn of its inner loop has their multiplications, the loads of `elements` that all lanes
 * share and of `operands`, and the loop's own instructions, shared by `unroll` turns. A multiplication takes `multiply`
 * cycles. Accumulators beyond the registers go to memory and come back. */
typedef struct tile_turn {
    double rows, vectors, elements, operands, unroll, multiply;
} tile_turn;

static double turn_cost(const mha_machine *m, const vector_cycles *c, tile_turn t) {
    const at_description *d = m->description;
    const double accumulators = t.rows * t.vectors, registers = (double)m->target->vector_registers;
    const double spilled = larger(0, accumulators + smaller(t.rows, t.vectors) + 1 - registers);
    const double loads = t.elements / d->load + t.operands * c->load;
    const double busy = larger(accumulators * t.multiply, loads);
    return larger(busy, d->latency) + TURN / t.unroll + spilled * 2 * (c->load + c->store);
}

/* The factor by which loops are slower if their `bytes` of operands come from the second cache, or from beyond. */
static double cache_factor(const mha_machine *m, double bytes) {
    const double l1 = m->description->l1, l2 = m->description->l2;
    if (bytes <= l1) return 1;
    if (bytes <= l2) return 1 + 0.12 * smaller(1, (bytes - l1) / l1);
    return 1.12 + 0.3 * smaller(1, (bytes - l2) / l2);
}

/* ---- The strategies ---- */

/* Dot products of bf16 take two columns, or two keys, in a turn. */
static double share_of_turns(bool by_pairs) { return by_pairs ? 0.5 : 1; }

static mha_costs q_lanes_costs(const attune_problem *p, const mha_machine *m, const attune_schedule *s) {
    enum { SOFTMAX = 22, TILE_START = 14, TASK_START = 400, ELEMENT = 4, ASKED = 2, MISSED = 8 };
    const vector_cycles c = cycles_of(p, m, s);
    const double lanes = s->lanes, rows = rows_of(p), keys = keys_of(p), dim = (double)p->head_dim;
    const double dim_v = (double)p->head_dim_v, tile_rows = s->score_row_vectors * lanes,
                 tile = smaller(s->kv_tile, keys);
    const double stripes = round_up(rows, tile_rows) / tile_rows,
                 per_task = (double)s->task_row_vectors / s->score_row_vectors;
    const double tasks = round_up(stripes, per_task) / per_task, tiles = round_up(keys, tile) / tile;
    const bool pairs = mha_attends_by_pairs(p, m->target);
    const double padded = round_up(tile, s->score_keys), turns = share_of_turns(pairs);
    const double multiply = pairs ? c.dot : c.multiply;

    const double score_turn = turn_cost(m, &c,
                                        (tile_turn){s->score_keys, s->score_row_vectors, s->score_keys,
                                                    s->score_row_vectors, s->score_columns, multiply});
    const double score_tile =
        dim * turns * score_turn + TILE_START + s->score_keys * s->score_row_vectors * (c.store + c.multiply);
    const double score_bytes = (dim * tile_rows + tile * tile_rows) * ELEMENT +
                               tile * dim * (double)mha_dtype_bytes(p->k_dtype) / larger(1, per_task);
    const double scores = padded / s->score_keys * score_tile * cache_factor(m, score_bytes);

    const double whole = (double)(p->head_dim_v / s->value_columns), rest = (double)(p->head_dim_v % s->value_columns);
    const double value_turn = turn_cost(m, &c,
                                        (tile_turn){s->value_columns, s->value_row_vectors, s->value_columns,
                                                    s->value_row_vectors, s->value_keys, multiply});
    const double rest_turn =
        rest > 0
            ? turn_cost(m, &c,
                        (tile_turn){rest, s->value_row_vectors, rest, s->value_row_vectors, s->value_keys, multiply})
            : 0;
    const double rescale = (c.load + c.multiply + c.store) * s->value_row_vectors;
    const double value_tile = tile * turns * value_turn + TILE_START + rescale * s->value_columns;
    const double rest_tile = rest > 0 ? tile * turns * rest_turn + TILE_START + rescale * rest : 0;
    const double value_bytes = tile * tile_rows * ELEMENT + tile * dim_v * (double)mha_dtype_bytes(p->v_dtype);
    const double values = (double)s->score_row_vectors / s->value_row_vectors * (whole * value_tile + rest_tile) *
                          cache_factor(m, value_bytes);

    const double softmax = s->score_row_vectors * (tile * SOFTMAX * c.multiply + 40);
    const double visible =
        mha_sees_more_later(p) ? 0.5 + 0.5 * smaller(1, (s->score_keys + tile_rows) / larger(keys, 1)) : 1;
    const double times = stripes * tiles * visible;
    /* Lines of a head that its first user waits for a little, unless they were asked for. */
    const double lines = ((rows + keys) * (dim + dim_v) * ELEMENT) / 64;
    const double arriving = lines * (s->task_prefetch == ATTUNE_PREFETCH_HEAD ? ASKED : MISSED);
    return (mha_costs){.scores = times * scores,
                       .softmax = times * softmax,
                       .values = times * values,
                       .tasks = tasks * TASK_START + stripes * tile_rows * (dim + dim_v) * 0.4 + arriving};
}

static mha_costs d_lanes_costs(const attune_problem *p, const mha_machine *m, const attune_schedule *s) {
    enum { SUM_LANES = 6, SOFTMAX = 28, CHUNK = 900 };
    const vector_cycles c = cycles_of(p, m, s);
    const double lanes = s->lanes, rows = rows_of(p), keys = keys_of(p);
    const double k_vectors = round_up((double)p->head_dim, lanes) / lanes;
    const double v_vectors = round_up((double)p->head_dim_v, lanes) / lanes;
    const bool pairs = mha_attends_by_pairs(p, m->target);
    const double turns = share_of_turns(pairs), multiply = pairs ? c.dot : c.multiply;
    const double streams = smaller(4, larger(s->score_streams, s->value_streams));

    const double row_tiles = round_up(rows, s->score_rows) / s->score_rows;
    const double score_turn = turn_cost(
        m, &c,
        (tile_turn){s->score_keys, s->score_rows, 0, s->score_keys + s->score_rows, s->score_column_vectors, multiply});
    const double sums = s->score_keys * s->score_rows * SUM_LANES * (c.shuffle + c.multiply);
    const double score = row_tiles * keys / s->score_keys * (k_vectors * turns * score_turn + sums);
    const double value_rows = round_up(rows, s->value_rows) / s->value_rows;
    const double value_turn =
        turn_cost(m, &c,
                  (tile_turn){s->value_rows, s->value_column_vectors, s->value_keys * s->value_rows,
                              s->value_keys * s->value_column_vectors, 1, multiply}) *
        s->value_keys;
    const double value = value_rows * keys * turns / s->value_keys * v_vectors / s->value_column_vectors *
                         (value_turn + 2 * c.multiply * s->value_rows * s->value_column_vectors);
    const double chunks = round_up(keys, s->kv_chunk) / s->kv_chunk, tiles = keys / s->kv_tile + 1;
    const double bytes =
        keys * (double)(p->head_dim * mha_dtype_bytes(p->k_dtype) + p->head_dim_v * mha_dtype_bytes(p->v_dtype));
    /* Between multiplications that take several slots, loads come as much more slowly: so measured on Zen 4. */
    const double slots = c.load * m->description->load;
    const double reading = bytes * slots / m->description->memory_rate * (1 + 0.25 * (4 - streams));
    const double waiting = larger(1, reading / (score + value));
    return (mha_costs){.scores = waiting * score,
                       .softmax = rows * keys / lanes * SOFTMAX * c.multiply,
                       .values = waiting * value,
                       .tasks = chunks * CHUNK + tiles * rows * 20};
}

/* A turn of a register tile of a product. By hardware tiles one of 16 x 16 takes a cycle. */
static double gemm_turn(const mha_machine *m, const vector_cycles *c, bool pairs, const attune_schedule *s) {
    enum { TILE_ROWS = 16 };
    if (s->gemm_by == ATTUNE_GEMM_BY_TILES) return (double)(s->gemm_rows / TILE_ROWS * s->gemm_column_vectors);
    return turn_cost(m, c,
                     (tile_turn){s->gemm_rows, s->gemm_column_vectors, s->gemm_rows, s->gemm_column_vectors, 1,
                                 pairs ? c->dot : c->multiply});
}

static double gemm_cost(const attune_problem *p, const mha_machine *m, const attune_schedule *s) {
    const double rows = size_of(p->seq_q, p->max_seq_q) * (double)min_of(p->batch, 1 << 16);
    const double depth = (double)p->embed_dim, columns = (double)(2 * (p->num_heads + p->num_kv_heads) * p->head_dim);
    const double passes = s->gemm_depth ? round_up(depth, s->gemm_depth) / s->gemm_depth : 1;
    const bool pairs = mha_projects_by_pairs(p, m->target);
    const vector_cycles c = cycles_of(p, m, s);
    const double turns = share_of_turns(pairs), rescale = c.load + c.multiply + c.store;
    const double tile =
        depth * turns * gemm_turn(m, &c, pairs, s) + passes * (20 + rescale * s->gemm_rows * s->gemm_column_vectors);
    const double tasks = round_up(rows, s->gemm_task_rows) / s->gemm_task_rows;
    return round_up(rows, s->gemm_rows) / s->gemm_rows * columns / (s->gemm_column_vectors * s->lanes) * tile +
           tasks * columns * depth * turns / 64;
}

mha_costs mha_costs_of(const attune_problem *p, const mha_machine *m, const attune_schedule *s) {
    const double heads = (double)p->num_kv_heads * (double)min_of(p->batch, 1 << 16);
    mha_costs costs = s->strategy == ATTUNE_D_LANES ? d_lanes_costs(p, m, s) : q_lanes_costs(p, m, s);
    costs.scores *= heads;
    costs.softmax *= heads;
    costs.values *= heads;
    costs.tasks *= heads;
    if (mha_is_block(p)) costs.products = gemm_cost(p, m, s);
    return costs;
}

double mha_cost(const attune_problem *p, const mha_machine *m, const attune_schedule *s) {
    const mha_costs costs = mha_costs_of(p, m, s);
    return costs.scores + costs.softmax + costs.values + costs.tasks + costs.products;
}

double mha_peak_flops(const attune_problem *p, const mha_machine *m) {
    const vector_cycles c = cycles_of_vector(m->description, m->target->vector_bytes);
    const bool pairs = mha_attends_by_pairs(p, m->target) || mha_projects_by_pairs(p, m->target);
    return 2.0 * m->target->vector_bytes / lane_bytes(p) / (pairs ? c.dot / 2 : c.multiply);
}
