/* The model of a register tile, and what a problem looks like to the models of both strategies.
 *
 * An iteration of an innermost loop is limited by several resources at once: the multipliers, the load units, the
 * instructions that begin in a cycle, and the latency of its sums. It takes as long as the tightest of them, and a
 * little longer where two are close; loop overhead, broadcasts and spilled accumulators come on top. */
#include "schedule/cost.h"
#include "problem/problem.h"
#include "problem/problem_sight.h"
#include "schedule/cost_parts.h"
#include "schedule/space.h"
#include "schedule/variant.h"

#include "base/integers.h"

#ifndef MHA_COST_FIT
const
#endif
    cost_constants mha_cost_constants = {
#define COST(name, value, fit, meaning) .name = (value),
#include "schedule/cost.def"
};

/* ---- A problem ---- */

/* Keys that a query attends to by its position: the mean of all queries. */
static double seen_of(const attune_problem *p, double queries, double keys) {
    if (!mha_has_first_key(p) && !mha_has_last_key(p)) return keys;
    if (queries < 1 || keys < 1) return keys;
    const mha_queries all = {.seq_q = (int64_t)queries, .seq_kv = (int64_t)keys, .end = (int64_t)queries};
    return mha_sight_of_queries(p, &all).pairs / queries;
}

bool mha_is_from_memory(const attune_problem *p) {
    enum { LARGE_HEAD = 1024 * 1024 };
    return min_of(mha_most_keys(p), LARGE_HEAD) * (mha_k_row_bytes(p) + mha_v_row_bytes(p)) >= LARGE_HEAD;
}

bool mha_is_from_afar(const attune_problem *p, double last) {
    enum { MOST = 1 << 20 };
    const int64_t k = p->head_dim * mha_dtype_bytes(p->k_dtype), v = p->head_dim_v * mha_dtype_bytes(p->v_dtype);
    const int64_t heads = min_of(max_of(p->batch, 1), MOST) * p->num_kv_heads;
    return (double)heads * (double)min_of(mha_most_keys(p), MOST) * (double)(k + v) >= last / 4;
}

/* Heads follow one another, so data in near caches are evicted before the head's next call. A head in memory is
 * streamed from there, whatever the size of the cache. */
static mha_cost_level level_of(const attune_problem *p, const at_description *d, bool from_memory, double head_bytes) {
    const double all = head_bytes * (double)p->num_kv_heads * (double)min_of(p->batch, 1 << 16);
    if (from_memory) return MHA_COST_MEMORY;
    return all <= (double)d->l2 ? MHA_COST_L2 : all <= (double)d->l3 ? MHA_COST_L3 : MHA_COST_MEMORY;
}

/* Half of the last cache: other data are in it as well. */
static bool is_far(const attune_problem *p, const at_description *d, double head_bytes) {
    const double heads = (double)p->num_kv_heads * (double)min_of(p->batch, 1 << 16);
    return heads * head_bytes >= at_description_last_cache(d) / 2;
}

mha_cost_context mha_cost_context_of(const attune_problem *p, const mha_machine *m) {
    enum { WIDE = 64 };
    const double queries = (double)mha_usual_size(p->seq_q, p->max_seq_q);
    const double group = (double)(p->num_heads / p->num_kv_heads);
    const double keys = p->low_rank ? (double)p->low_rank : (double)mha_usual_size(p->seq_kv, p->max_seq_kv);
    const double k_bytes = (double)mha_k_row_bytes(p) / (double)p->head_dim;
    const double v_bytes = (double)mha_v_row_bytes(p) / (double)p->head_dim_v;
    const double key = (double)p->head_dim * k_bytes + (double)p->head_dim_v * v_bytes;
    const double row = (double)((p->head_dim + p->head_dim_v) * mha_dtype_bytes(p->dtype));
    const double lane = p->softmax_precision == ATTUNE_F64 ? 8 : 4;
    const bool decodes = mha_decodes_by_pairs(p, m->target), from_memory = mha_is_from_memory(p);
    return (mha_cost_context){
        .p = p,
        .machine = *m,
        .rows = queries * group,
        .keys = keys,
        .columns = (double)p->head_dim,
        .columns_v = (double)p->head_dim_v,
        .group = group,
        .seen = cost_larger(1, cost_smaller(keys, seen_of(p, queries, keys))),
        .ends = mha_has_first_key(p) + mha_has_last_key(p),
        .lane_bytes = lane,
        .k_bytes = k_bytes,
        .v_bytes = v_bytes,
        .level = level_of(p, m->description, from_memory, keys * key),
        .is_far = is_far(p, m->description, keys * key + queries * group * row),
        .q_bytes = (double)mha_dtype_bytes(p->dtype),
        .by_pairs = mha_attends_by_pairs(p, m->target),
        .decodes_by_pairs = decodes,
        .has_elements = mha_has_dims(p->attn_mask_dims) || mha_has_dims(p->attn_bias_dims),
        .hides = mha_has_first_key(p) || mha_has_last_key(p),
        .is_from_memory = from_memory,
        .is_from_afar = mha_is_from_afar(p, at_description_last_cache(m->description)),
        .converts_k = !decodes && k_bytes < lane,
        .converts_v = !decodes && v_bytes < lane,
        .fixed_tile = p->reproducible || p->integer == ATTUNE_INTEGER_ALL ? mha_reproducible_kv_tile(p) : 0,
        .few_registers = at_has_few_registers(m->target),
        .is_wide = m->target->vector_bytes >= WIDE,
        .widest = mha_widest_lanes(p, m->target),
        .narrowest = mha_narrowest_lanes(p, m->target),
        .usual = mha_usual_of(p, m->target, m->description),
    };
}

/* ---- One register tile ---- */

/* Without a fused multiply-add it is two instructions. */
cost_vector mha_cost_vector(const mha_machine *m, double bytes) {
    const at_description *d = m->description;
    const double slots = at_description_slots(d, bytes), halves = m->target->flags & AT_TARGET_FMA ? 1 : 2;
    return (cost_vector){halves * slots / d->fma, slots / d->bf16,    slots / d->load,
                         slots / d->store,        slots / d->shuffle, slots / d->i8};
}

/* An element that all lanes share is a memory operand if it is multiplied by one vector, and an instruction of its own
 * for more. Accumulators beyond the registers are stored and loaded again. With 16 registers, sums that just hide the
 * latency are as fast as more of them, in an unrolled loop with few such elements. */
double mha_cost_iteration(const mha_cost_context *c, const cost_vector *v, const cost_iteration *t, bool pairs) {
    const at_description *d = c->machine.description;
    const at_target *target = c->machine.target;
    const bool has_operands = !at_has_few_registers(target) && t->vectors == 1 && !pairs;
    const double sums = t->rows * t->vectors, held = t->vectors + (has_operands ? 0 : 1);
    const double spilled = cost_larger(0, sums + held - (double)target->vector_registers);
    const double loads = t->elements * (pairs ? COST_OF(dot_element) : 1) / d->load + t->operands * v->load;
    const double begun = (sums + t->operands + (has_operands ? 0 : t->elements)) / COST_OF(issue);
    const double busy = cost_limit(cost_limit(sums * (pairs ? v->dot : v->multiply), loads), begun);
    const double latency = d->latency * (pairs ? COST_OF(dot_latency) : 1);
    const bool is_hidden = at_has_few_registers(target) && t->unroll > 1 && t->vectors > t->rows;
    return (is_hidden ? cost_larger(busy, latency) : cost_limit(busy, latency)) + COST_OF(iteration) / t->unroll +
           (has_operands ? 0 : t->elements * COST_OF(broadcast)) + spilled * COST_OF(spill) * (v->load + v->store);
}

/* ---- All of it ---- */

static mha_costs costs_of_head(const mha_cost_context *c, const mha_schedule *s) {
    const mha_variant v = mha_variant_of(c->p, s, c->machine.target);
    return s->strategy == MHA_D_LANES ? mha_cost_d_lanes(c, s, &v) : mha_cost_q_lanes(c, s, &v);
}

double mha_cost_of_choice(const mha_cost_context *c, const mha_schedule *schedule) {
    mha_schedule s = *schedule;
    mha_settle(&c->usual, c->p, c->machine.target, &s);
    const mha_costs costs = costs_of_head(c, &s);
    return mha_costs_sum(&costs);
}

mha_costs mha_costs_of_call(const mha_cost_context *c, const mha_schedule *s) {
    const double heads = (double)c->p->num_kv_heads * (double)min_of(c->p->batch, 1 << 16);
    mha_costs costs = costs_of_head(c, s);
    costs.scores *= heads;
    costs.softmax *= heads;
    costs.values *= heads;
    costs.tasks *= heads;
    if (!mha_is_block(c->p)) return costs;
    const mha_products products = mha_products_of(c->p);
    costs.products = mha_cost_products(c, &products, s);
    return costs;
}

mha_costs mha_costs_of(const attune_problem *p, const mha_machine *m, const mha_schedule *s) {
    const mha_cost_context c = mha_cost_context_of(p, m);
    return mha_costs_of_call(&c, s);
}

double mha_costs_sum(const mha_costs *c) { return c->scores + c->softmax + c->values + c->tasks + c->products; }

double mha_cost(const attune_problem *p, const mha_machine *m, const mha_schedule *s) {
    const mha_costs costs = mha_costs_of(p, m, s);
    return mha_costs_sum(&costs);
}

double mha_peak_flops(const attune_problem *p, const mha_machine *m) {
    const double bytes = p->softmax_precision == ATTUNE_F64 ? 8 : 4;
    const cost_vector v = mha_cost_vector(m, m->target->vector_bytes);
    const bool pairs = mha_attends_by_pairs(p, m->target) || mha_projects_by_pairs(p, m->target);
    return 2.0 * m->target->vector_bytes / bytes / (pairs ? v.dot / 2 : v.multiply);
}
