/* The cost of integer products of d-lanes: src/attend/decode/quantised_*.c in numbers.
 *
 * An iteration takes the slowest of its dots, instructions and latency. Without an instruction for a dot of bytes, one
 * is two products of halves of words and two additions, and the halves of each factor take instructions as well. K is
 * loaded and four rows of V are interleaved once for several rows, so more rows in a register tile pay even where their
 * sums are stored and loaded in each iteration. */
#include "schedule/cost_parts.h"

#include "base/integers.h"

/* An iteration of an innermost loop: some rows by some vectors of quantised values. */
typedef struct code_iteration {
    double rows, vectors;    /* of the register tile; a plane is a row */
    double factors;          /* instructions that turn a loaded vector into a factor, without the widening of halves */
    double shuffles, others; /* instructions that are not products */
} code_iteration;

static bool has_dot(const mha_cost_context *c) { return c->machine.target->flags & AT_TARGET_BYTE_DOT; }

static double iteration_cost(const mha_cost_context *c, const cost_vector *v, const code_iteration *t) {
    enum { WIDEN_UNSIGNED = 2, WIDEN_SIGNED = 3, HALVES = 2 };
    const at_description *d = c->machine.description;
    const bool has = has_dot(c);
    const double dots = t->rows * t->vectors, widened = has ? 0 : WIDEN_SIGNED * t->rows + WIDEN_UNSIGNED * t->vectors;
    const double held = dots + (has ? 1 : HALVES) * (1 + (t->rows > 1 ? t->vectors : 1));
    const double spilled = cost_larger(0, held - (double)c->machine.target->vector_registers);
    const double stacked = spilled * COST_OF(code_spill);
    const double all =
        dots * (has ? 1 : 2 * HALVES) + widened + t->rows + t->vectors * t->factors + t->shuffles + t->others + stacked;
    const double multiply = v->multiply * (c->machine.target->flags & AT_TARGET_FMA ? 1 : 0.5); /* nothing is added */
    const double products = dots * (has ? v->byte_dot : HALVES * multiply);
    const double busy = cost_limit(cost_limit(products, t->shuffles * v->shuffle), all / COST_OF(code_issue));
    const double waits = d->latency + (spilled > 0 ? COST_OF(forward) : 0);
    return cost_limit(busy, waits) + COST_OF(iteration);
}

/* ---- Scores ---- */

/* Adding up the lanes of some sums, as many at once as a row of a vector has lanes. */
static double code_lane_sums(const cost_vector *v, double sums, int64_t lanes) {
    double steps = 0;
    for (; sums > 0; sums -= (double)lanes) {
        int64_t together = 1;
        while ((double)together < sums && together < lanes) together *= 2;
        for (int64_t width = lanes / 2; width; width /= 2) {
            together = width < together ? together / 2 : together;
            steps += (double)together;
        }
    }
    return steps * COST_OF(code_sum) * v->shuffle + COST_OF(code_start);
}

static double rows_iteration(const mha_cost_context *c, const mha_schedule *s, const cost_vector *v, int pack,
                             double rows) {
    const attune_problem *p = c->p;
    const int64_t halves = p->k_dtype == ATTUNE_I4 ? 2 : 1;
    const int64_t groups = mha_is_by_group(p->k_scales) ? p->head_dim / p->k_group : 1;
    const double planes = (double)mha_query_planes(p), vectors = cost_steps(rows, (double)pack);
    const double width = COST_DOT_CODES * (double)(s->lanes / pack), keys = s->score_keys;
    const code_iteration iteration = {planes * vectors, keys, halves > 1 ? 1.5 : 2, 0, 1};
    const double iterations =
        (double)groups * cost_steps((double)(p->head_dim / halves / groups), width) * (double)halves;
    const double sums = code_lane_sums(v, vectors * keys, s->lanes / pack) + (planes - 1) * vectors * keys;
    return iterations * iteration_cost(c, v, &iteration) + (double)groups * sums;
}

/* Lanes run along keys: nothing is added up. */
static double panels_iteration(const mha_cost_context *c, const mha_schedule *s, const cost_vector *v, double rows) {
    const attune_problem *p = c->p;
    const double halves = p->k_dtype == ATTUNE_I4 ? 2 : 1, planes = (double)mha_query_planes(p);
    const double keys = s->score_keys, units = (double)p->head_dim / COST_DOT_CODES;
    const double asked = s->kv_prefetch > 0 ? keys : 0;
    const code_iteration iteration = {planes * rows, keys, halves > 1 ? 1.5 : 2, 0, 1 + asked};
    return units * iteration_cost(c, v, &iteration) + rows * planes * keys * (v->load + v->store);
}

double mha_cost_quantised_scores(const mha_cost_context *c, const mha_schedule *s, const cost_vector *v,
                                 int rows_in_vector, double rows) {
    if (c->p->k_layout == ATTUNE_LAYOUT_PANELS) return panels_iteration(c, s, v, rows);
    return rows_iteration(c, s, v, rows_in_vector, rows);
}

double mha_cost_quantised_keys(const mha_cost_context *c, const mha_schedule *s) {
    return c->p->k_layout == ATTUNE_LAYOUT_PANELS ? (double)s->score_keys * s->lanes : s->score_keys;
}

/* ---- Values ---- */

/* The cost of four keys of V for all columns, with their share of bringing the sums to O. */
double mha_cost_quantised_values(const mha_cost_context *c, const mha_schedule *s, const cost_vector *v, double rows) {
    enum { UNPACKED = 8, ORDERED = 3, JOINED = 5 };
    const attune_problem *p = c->p;
    const bool has_panels = p->v_layout == ATTUNE_LAYOUT_PANELS;
    const double halves = p->v_dtype == ATTUNE_I4 ? 2 : 1, planes = (double)mha_query_planes(p);
    const double vectors = has_panels ? s->value_column_vectors * halves : COST_DOT_CODES;
    const double columns = (double)p->head_dim_v / (vectors * s->lanes);
    const double factors = (has_panels ? 1 / halves : 1) + (halves > 1 ? 2 : 0);
    const double asked = s->kv_prefetch > 0 ? (has_panels ? vectors / halves : COST_DOT_CODES) : 0;
    const code_iteration iteration = {planes * rows, vectors, factors, has_panels ? 0 : UNPACKED, 1 + asked};
    const double moved = has_panels ? 1 : ORDERED + 1;
    const double sums = rows * vectors * (planes * moved + JOINED) * COST_OF(code_end) / COST_OF(code_issue);
    const double tile_iterations = cost_steps(cost_smaller(c->seen, s->kv_tile), COST_DOT_CODES);
    return columns * (iteration_cost(c, v, &iteration) + (sums + COST_OF(code_start)) / tile_iterations);
}
