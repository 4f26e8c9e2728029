/* One search for all parts of a schedule: begin with the usual one, try others, keep what costs least.
 *
 *     usual ──► price × correction ──► best ◄── price × correction ◄── next of the space
 *
 * The price is the cost (cost.h). The correction is the product of the rows of corrections.def that hold, so what
 * timings know better stands in one table and not in choosers. */
#include "schedule/corrections.h"

#include "base/integers.h"
#include "problem/problem.h"
#include "problem/problem_sight.h"
#include "schedule/schedule_fields.h"

#include <math.h>

#define NEVER  ((double)INFINITY)
#define ALWAYS 0.0

/* Whether a multiply-add of the widest vectors occupies the core for a cycle or more. */
static bool multiplies_slowly(const mha_cost_context *c) {
    const at_description *const d = c->machine.description;
    return d->fma <= at_description_slots(d, (double)c->machine.target->vector_bytes);
}

/* ---- Prefill ---- */

/* With many keys a partial last tile is negligible. What matters then is that tiles have a usual number of keys, with
 * enough sums to hide latency and loads. With few keys any number may divide them; tiles of more than 8 keys pay if
 * they are all that a stripe has. */
static bool has_usual_keys(const mha_cost_context *c, const mha_schedule *s) {
    enum { MANY = 64, MOST_KEYS = 8, FEW_SUMS = 12, SUMS = 16 };
    const int32_t keys = s->score_keys, *usual = mha_schedule_values(MHA_PART_Q_LANES, MHA_SCHEDULE_ID(score_keys));
    const bool is_short = s->value_by == MHA_VALUE_BY_ROWS && !c->few_registers;
    if (c->keys <= MANY && (keys <= MOST_KEYS || is_short)) return true;
    if (keys > MOST_KEYS || keys * s->score_row_vectors > (c->few_registers ? FEW_SUMS : SUMS)) return false;
    while (*usual && *usual != keys) usual++;
    return *usual;
}

/* Whether a task has no work that all its stripes share: K and V are read in place, or V in pairs that exist already,
 * and V is not searched for NaN. */
static bool has_equal_stripes(const attune_problem *p, const mha_schedule *s) {
    const bool is_plain = p->softmax_precision == ATTUNE_F32 && p->k_dtype == ATTUNE_F32 && p->v_dtype == ATTUNE_F32;
    return (is_plain || s->kv_copy == MHA_COPY_ONCE) && s->value_by == MHA_VALUE_BY_ROWS && !p->global_tokens &&
           !mha_has_dims(p->attn_mask_dims) && !mha_has_dims(p->attn_bias_dims);
}

/* ---- Decoding ---- */

static int64_t decoded_rows(const mha_cost_context *c) {
    return mha_likely_queries(c->p) * (c->p->num_heads / c->p->num_kv_heads);
}

/* A number of rows that only the call gives is rounded up to a multiple of the register tiles' rows. */
static bool has_open_rows(const attune_problem *p) { return p->seq_q < 1 || p->is_ragged; }

static bool is_all_f32(const attune_problem *p) {
    return p->k_dtype == ATTUNE_F32 && p->v_dtype == ATTUNE_F32 && p->softmax_precision == ATTUNE_F32;
}

/* Heads of up to ten vectors of f32 that are in a near cache, with few registers. */
static bool has_narrow_heads(const mha_cost_context *c, const mha_schedule *s) {
    enum { VECTORS = 10 };
    const attune_problem *const p = c->p;
    const int64_t most = (int64_t)VECTORS * s->lanes;
    const bool is_near = !c->is_from_memory && !c->is_from_afar, is_plain = !p->reproducible && !mha_has_panels(p);
    return c->few_registers && is_near && is_plain && is_all_f32(p) && p->head_dim <= most && p->head_dim_v <= most;
}

/* V of bf16 or narrower numbers whose vectors are converted for each register tile, in f32. */
static bool converts_for_each_tile(const attune_problem *p) {
    if (p->integer || mha_scales_elements(p->v_scales)) return false;
    return (p->v_dtype == ATTUNE_BF16 || p->v_dtype == ATTUNE_I8 || p->v_dtype == ATTUNE_F8) &&
           p->softmax_precision == ATTUNE_F32 && !p->reproducible && !mha_has_panels(p);
}

/* Decoding of a few keys in f32, with few registers. */
static bool has_few_keys(const mha_cost_context *c) {
    enum { FEW_KEYS = 48 };
    const bool converts = c->decodes_by_pairs || c->v_bytes != 4 || c->lane_bytes != 4;
    return c->few_registers && !converts && !c->p->page_size && mha_most_keys(c->p) <= FEW_KEYS;
}

/* ---- Products of a block ---- */

int64_t mha_vectors_of_line(const mha_cost_context *c, const mha_schedule *s) {
    enum { LINE = 64 };
    return max_of(min_of(LINE / (int64_t)c->lane_bytes / s->lanes, c->machine.target->vector_registers / 8), 2);
}

/* ---- The table, and the search ---- */

static double times(double factor, double other) { return isinf(factor) || isinf(other) ? NEVER : factor * other; }

double mha_correction(mha_priced of, const mha_cost_context *c, const mha_schedule *s, const mha_variant *v) {
    double factor = 1;
    int row = 0;
#define CORRECTION(what, when, by, evidence)                                                                           \
    row++;                                                                                                             \
    if (of == MHA_##what && (when) && row != c->without) factor = times(factor, by);
#define RULE(what, when, evidence) CORRECTION(what, true, (when) ? ALWAYS : NEVER, evidence)
#include "schedule/corrections.def"
    return factor;
}

const mha_correction_row *mha_correction_row_of(int row) {
    static const mha_correction_row rows[] = {
#define CORRECTION(what, when, by, evidence) {#what, #when, #by, evidence, __LINE__},
#define RULE(what, when, evidence)           {#what, #when, "ALWAYS where it holds, else NEVER", evidence, __LINE__},
#include "schedule/corrections.def"
    };
    return row >= 1 && row <= (int)(sizeof rows / sizeof *rows) ? &rows[row - 1] : NULL;
}

bool mha_is_chosen(mha_priced of, const mha_cost_context *c, const mha_schedule *s, const mha_variant *v) {
    return mha_correction(of, c, s, v) <= 0;
}

void mha_search_try(mha_search *t, const mha_schedule *s) {
    t->tried.s = *s;
    if (t->fits && !t->fits(t)) return;
    const double factor = mha_correction(t->of, t->c, s, &t->tried.v);
    if (isinf(factor)) return;
    t->tried.cost = factor > 0 ? t->price(t) * factor : 0;
    if (t->tried.cost < t->best.cost) t->best = t->tried;
}

void mha_search_begin(mha_search *t, mha_priced usual, const mha_schedule *s) {
    t->tried.s = *s;
    const bool fits = !t->fits || t->fits(t);
    t->tried.cost = fits ? times(mha_correction(usual, t->c, s, &t->tried.v), t->price(t)) : NEVER;
    t->best = t->tried;
}

mha_schedule mha_search_steps(mha_search *t, const mha_step *steps) {
    for (; steps->vary; steps++) {
        t->of = steps->of;
        t->fits = steps->fits;
        steps->vary(t);
    }
    return t->best.s;
}

void mha_search_pairs(mha_search *t, int a, int b) {
    mha_schedule s = t->best.s;
    for (const int32_t *x = mha_schedule_values(MHA_PART_D_LANES, a); *x; x++)
        for (const int32_t *y = mha_schedule_values(MHA_PART_D_LANES, b); *y; y++) {
            *mha_schedule_at(&s, a) = *x;
            *mha_schedule_at(&s, b) = *y;
            mha_search_try(t, &s);
        }
}
