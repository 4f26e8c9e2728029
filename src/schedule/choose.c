/* A good schedule without measuring. The figures behind the choices: notes/2026-11-28-schedules.md. */
#include "base/integers.h"
#include "problem/problem.h"
#include "schedule/choose.h"

/* Every number of keys that a vector or a register tile may have divides 48. */
int32_t mha_reproducible_kv_tile(const attune_problem *p) {
    enum { TILE_ELEMENTS = 6144, STEP = 48, MOST = 192 };
    if (p->integer == ATTUNE_INTEGER_ALL) return MHA_INTEGER_KEYS;
    const int64_t keys = TILE_ELEMENTS / max_of(p->head_dim, p->head_dim_v);
    return (int32_t)(max_of(STEP, min_of(keys, MOST)) / STEP * STEP);
}

double mha_cost_of_choice(const mha_cost_context *c, const attune_schedule *schedule) {
    attune_schedule s = *schedule;
    mha_schedule_settle(c->p, c->machine.target, c->machine.description, &s);
    const mha_costs costs = mha_costs_of_head(c, &s);
    return mha_costs_sum(&costs);
}

attune_problem mha_usual_call(const attune_problem *p) {
    enum { USUAL_HEADS = 16 };
    attune_problem usual = *p;
    usual.batch = 1;
    usual.num_heads = p->num_heads / p->num_kv_heads * USUAL_HEADS;
    usual.num_kv_heads = USUAL_HEADS;
    return usual;
}

/* ---- d-lanes or q-lanes ---- */

/* What d-lanes costs for a usual call. */
static double cost_of_d_lanes(const attune_problem *p, const mha_machine *on) {
    const attune_problem usual = mha_usual_call(p);
    const mha_cost_context c = mha_cost_context_of(&usual, on);
    attune_schedule s = ATTUNE_SCHEDULE_INIT;
    mha_choose_d_lanes(&usual, on->target, on->description, &s);
    return mha_cost_of_choice(&c, &s);
}

/* The share of it that q-lanes may cost. The constants that decide were fitted where vectors have 32 bytes. What was
 * measured with vectors of 64, of up to 16 rows, says that d-lanes is better there than the cost does. */
static double most_share(const attune_problem *p, const at_target *target) {
    enum { WIDE = 64, MOST_ROWS = 16 };
    const bool is_short = mha_most_queries(p) <= MOST_ROWS / (p->num_heads / p->num_kv_heads);
    return target->vector_bytes >= WIDE && is_short ? 0.88 : 1;
}

/* Strategies sum in different orders, so they are compared for a usual call; and without panels, of which the cost does
 * not know. Keys that only the run counts are as many as usual, not as many as there may be: d-lanes would pay for
 * reading memory, which q-lanes does not. With more keys d-lanes would be as good for more rows, with fewer it would be
 * worse. */
static attune_problem compared(const attune_problem *p) {
    attune_problem like = *p;
    like.k_layout = like.v_layout = ATTUNE_LAYOUT_ROWS;
    if (p->seq_kv == ATTUNE_DYNAMIC && !p->max_seq_kv) like.max_seq_kv = MHA_USUAL_LENGTH;
    return like;
}

/* Integer products are by d-lanes only. A task of d-lanes has up to 64 rows: of more of them q-lanes fills whole
 * vectors, and costs less. */
static void choose_strategy(const attune_problem *p, const mha_machine *on, attune_schedule *s) {
    enum { MOST_ROWS = 64 };
    const attune_problem like = compared(p);
    const bool is_short = mha_most_queries(p) <= MOST_ROWS / (p->num_heads / p->num_kv_heads);
    const bool may = mha_may_go_by_d_lanes(p), must = may && p->integer, either = may && is_short && !must;
    const double most = either ? cost_of_d_lanes(&like, on) * most_share(p, on->target) : 0;
    if (must || (either && !mha_choose_q_lanes_below(&like, on->target, on->description, most, s))) {
        *s = (attune_schedule)ATTUNE_SCHEDULE_INIT;
        mha_choose_d_lanes(p, on->target, on->description, s);
        mha_hold_narrow_heads(p, on, s);
    } else if (!either || mha_has_panels(p) || like.max_seq_kv != p->max_seq_kv) {
        mha_choose_q_lanes(p, on->target, on->description, s);
    }
}

void mha_choose(const attune_problem *p, const at_target *target, const at_description *machine, attune_schedule *s) {
    *s = (attune_schedule)ATTUNE_SCHEDULE_INIT;
    choose_strategy(p, &(mha_machine){target, machine}, s);
    mha_choose_gemm(p, &(mha_machine){target, machine}, s);
    mha_schedule_settle(p, target, machine, s);
}
