/* One search for all parts of a schedule: begin with the usual one, try others, keep what costs least.
 *
 *     usual ──► price × correction ──► best ◄── price × correction ◄── next of the space
 *
 * The price is the cost (cost.h). The correction is the product of the rows of corrections.def that hold, so what
 * timings know better stands in one table and not in choosers. */
#include "schedule/corrections.h"

#include "problem/problem.h"
#include "schedule/schedule_fields.h"

#include <math.h>

#define NEVER  ((double)INFINITY)
#define ALWAYS 0.0

/* Whether a multiply-add of the widest vectors takes the core a cycle or more. */
static bool multiplies_slowly(const mha_cost_context *c) {
    const at_description *const d = c->machine.description;
    return d->fma <= at_description_slots(d, (double)c->machine.target->vector_bytes);
}

/* Decoding of a few keys in f32, with few registers. */
static bool has_few_keys(const mha_cost_context *c) {
    enum { FEW_KEYS = 48 };
    const bool converts = c->decodes_by_pairs || c->v_bytes != 4 || c->lane_bytes != 4;
    return c->few_registers && !converts && !c->p->page_size && mha_most_keys(c->p) <= FEW_KEYS;
}

double mha_correction(mha_priced of, const mha_cost_context *c, const mha_schedule *s, const mha_variant *v) {
    double factor = 1;
#define CORRECTION(what, when, times, evidence)                                                                        \
    if (of == MHA_##what && (when)) factor *= (times);
#include "schedule/corrections.def"
    return factor;
}

void mha_search_try(mha_search *t, const mha_schedule *s) {
    const double factor = mha_correction(t->of, t->c, s, NULL);
    if (isinf(factor) || (t->fits && !t->fits(t, s))) return;
    const double cost = t->price(t, s) * factor;
    if (cost >= t->cost) return;
    t->cost = cost;
    t->at = *s;
}

void mha_search_begin(mha_search *t, mha_priced usual, const mha_schedule *s) {
    t->at = *s;
    t->cost = mha_correction(usual, t->c, s, NULL) * t->price(t, s);
}

void mha_search_pairs(mha_search *t, mha_priced of, int a, int b) {
    mha_schedule s = t->at;
    t->of = of;
    for (const int32_t *x = mha_schedule_values(MHA_PART_D_LANES, a); *x; x++)
        for (const int32_t *y = mha_schedule_values(MHA_PART_D_LANES, b); *y; y++) {
            *mha_schedule_at(&s, a) = *x;
            *mha_schedule_at(&s, b) = *y;
            mha_search_try(t, &s);
        }
}
