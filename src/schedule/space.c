/* The space of schedules: which values each number may have, and which combinations of them are worth a thought.
 *
 * schedule.def lists a few usual values of each field. A schedule is made by going through the fields in their order:
 * the lanes, the register tile of scores, that of values, the tile of keys, the task. So the combinations are a tree, a
 * level for each field, and a branch ends where no later field can mend it: where registers run out, or where values
 * come to the same.
 *
 *     lanes      8 ──────────── 4 …
 *     vectors    1 ─── 2 ── 3 …
 *     keys       1 2 4 8 12
 *                        └─ 12 x 1 sums, 16 registers: the last that fits
 *
 * Numbers that must divide one another are rounded until they do (normalise). Whoever wants one schedule of the space
 * begins anywhere in it and takes steps: one field, to its next value. */
#include "schedule/space.h"

#include "base/integers.h"
#include "problem/problem.h"
#include "schedule/schedule_fields.h"
#include "schedule/variant.h"

#define ID(member) MHA_SCHEDULE_ID(member)

/* ---- Lanes ---- */

int32_t mha_widest_lanes(const attune_problem *p, const at_target *target) {
    return (int32_t)(target->vector_bytes / (p->softmax_precision == ATTUNE_F64 ? 8 : 4));
}

static int64_t query_rows(const attune_problem *p) {
    return p->seq_q == ATTUNE_DYNAMIC ? INT32_MAX : p->seq_q * (p->num_heads / p->num_kv_heads);
}

int32_t mha_narrowest_lanes(const attune_problem *p, const at_target *target) {
    enum { FEW_ROWS = 64, LEAST = 4 };
    const int32_t widest = mha_widest_lanes(p, target);
    const bool is_small = p->op == ATTUNE_ATTENTION && p->seq_q > 0 && query_rows(p) <= FEW_ROWS;
    return is_small && !p->reproducible && widest > LEAST ? (int32_t)max_of(widest / 4, LEAST) : widest;
}

/* ---- Making a schedule legal ---- */

/* Every number of keys that a vector or a register tile may have divides 48. */
int32_t mha_reproducible_kv_tile(const attune_problem *p) {
    enum { TILE_ELEMENTS = 6144, STEP = 48, MOST = 192 };
    if (p->integer == ATTUNE_INTEGER_ALL) return MHA_INTEGER_KEYS;
    const int64_t keys = TILE_ELEMENTS / max_of(p->head_dim, p->head_dim_v);
    return (int32_t)(max_of(STEP, min_of(keys, MOST)) / STEP * STEP);
}

static void to_multiple(int32_t *x, int32_t step, int32_t most) {
    *x = (int32_t)(ceil_div(*x, step) * step);
    while (*x > most && *x > step) *x -= step;
}

/* Numbers that must divide one another are rounded so that they do; values that make no difference become one. */
static void normalise(const attune_problem *p, mha_schedule *s) {
    if (s->strategy == MHA_D_LANES) {
        to_multiple(&s->kv_tile, s->score_keys > s->lanes ? s->score_keys : s->lanes, 4096);
        if (p->integer == ATTUNE_INTEGER_ALL) s->kv_tile = s->kv_chunk = MHA_INTEGER_KEYS;
        to_multiple(&s->kv_chunk, s->kv_tile, INT32_MAX);
    } else {
        to_multiple(&s->task_row_vectors, s->score_row_vectors, 64);
        s->value_columns = (int32_t)min_of(s->value_columns, p->head_dim_v);
        if (p->reproducible) {
            s->kv_tile = mha_reproducible_kv_tile(p);
        } else {
            const int64_t keys = p->low_rank ? p->low_rank : p->seq_kv;
            const int32_t step = mha_tile_step(p, s);
            if (keys > 0) s->kv_tile = (int32_t)min_of(s->kv_tile, ceil_div(keys, step) * step);
            to_multiple(&s->kv_tile, step, 4096);
        }
    }
    /* Nothing is to be converted. */
    const bool is_plain = p->k_dtype == p->softmax_precision && p->v_dtype == p->softmax_precision;
    if (is_plain && s->kv_copy == MHA_COPY_NONE) s->kv_copy = MHA_COPY_CONVERTED;
    if (!mha_is_block(p)) return;
    to_multiple(&s->gemm_task_rows, s->gemm_rows, 4096);
    if (s->gemm_depth >= p->embed_dim) s->gemm_depth = 0;
}

/* Excludes register tiles that would only spill, and those that leave the multipliers idle although there are more rows
 * and keys. */
static bool is_hopeless(const mha_machine *m, const mha_schedule *s, int64_t rows_at_most) {
    const int registers = m->target->vector_registers;
    const bool q = s->strategy == MHA_Q_LANES;
    const int score = s->score_keys * (q ? s->score_row_vectors : s->score_rows);
    const int value = q ? s->value_columns * s->value_row_vectors : s->value_rows * s->value_column_vectors;
    if (score + 2 > registers || value + 2 > registers) return true;
    return q && rows_at_most >= 4 * s->lanes && (score < 4 || value < 4);
}

static bool is_candidate(const attune_problem *p, const mha_machine *m, const mha_schedule *s) {
    return !is_hopeless(m, s, query_rows(p)) && mha_schedule_check(p, s, m->target, NULL) == ATTUNE_OK;
}

static void offer(const mha_space *c, mha_schedule s) {
    normalise(c->p, &s);
    if (!is_candidate(c->p, c->machine, &s)) return;
    mha_schedule_settle(c->p, c->machine->target, c->machine->description, &s);
    c->found(c->to, &s);
}

/* ---- All combinations ---- */

/* From which value on all larger ones come to the same. */
static int64_t largest_value(const attune_problem *p, const mha_schedule_field *field, const mha_schedule *s) {
    const int64_t keys = p->low_rank ? p->low_rank : p->seq_kv;
    switch (field->word) {
    case ID(task_row_vectors): return p->seq_q > 0 ? ceil_div(query_rows(p), s->lanes) : INT32_MAX;
    case ID(kv_tile): return p->reproducible ? 1 : keys > 0 ? keys : INT32_MAX;
    case ID(kv_chunk): return keys > 0 ? keys : INT32_MAX;
    default: return INT32_MAX;
    }
}

/* The value of the number after normalising, which depends on earlier numbers only. */
static int32_t normalised(const attune_problem *p, const mha_schedule_field *field, mha_schedule s) {
    normalise(p, &s);
    return mha_schedule_value(&s, field->word);
}

/* Excludes schedules that cannot become legal: most of the product of all values. */
typedef enum hope { SOME_HOPE, NOT_THIS, NONE_OF_THE_REST } hope;

static hope hope_of(const mha_space *c, const mha_schedule_field *field, const mha_schedule *s) {
    const int registers = c->machine->target->vector_registers;
    const bool q = s->strategy == MHA_Q_LANES;
    switch (field->word) {
    case ID(score_keys):
        return s->score_keys * (q ? s->score_row_vectors : s->score_rows) + 2 > registers ? NONE_OF_THE_REST
                                                                                          : SOME_HOPE;
    case ID(value_row_vectors): return s->score_row_vectors % s->value_row_vectors ? NOT_THIS : SOME_HOPE;
    case ID(value_columns):
        return s->value_columns * s->value_row_vectors + 2 > registers || s->value_columns > c->p->head_dim_v
                   ? NONE_OF_THE_REST
                   : SOME_HOPE;
    default: return SOME_HOPE;
    }
}

/* Whether the values of a field are combined with those of other fields. Choices are not: attune makes them for the
 * numbers. */
static bool is_combined(const mha_space *c, unsigned part, const mha_schedule_field *field) {
    if (field->part != part || mha_schedule_is_choice(field)) return false;
    return !field->is_minor || c->has_minor;
}

/* Visits all combinations of the values of the fields of `part`, from number `i` of the list on. Of equal combinations
 * only the first counts. */
static void combine(const mha_space *c, int i, unsigned part, mha_schedule s) {
    while (i < MHA_NUM_SCHEDULE_FIELDS && !is_combined(c, part, &mha_schedule_fields[i])) i++;
    if (i == MHA_NUM_SCHEDULE_FIELDS) {
        offer(c, s);
        return;
    }
    const mha_schedule_field *const field = &mha_schedule_fields[i];
    int32_t last = INT32_MIN;
    for (const int32_t *value = field->values; *value; value++) {
        *mha_schedule_at(&s, field->word) = *value;
        const hope is = hope_of(c, field, &s);
        if (is == NONE_OF_THE_REST) return;
        if (is == NOT_THIS) continue;
        const int32_t comes_to = normalised(c->p, field, s);
        if (comes_to != last) combine(c, i + 1, part, s);
        last = comes_to;
        if (*value >= largest_value(c->p, field, &s)) return;
    }
}

void mha_space_all(const mha_space *c, unsigned part, const mha_schedule *from) {
    mha_schedule s = *from;
    const int32_t widest = mha_widest_lanes(c->p, c->machine->target);
    /* kv_chunk is made a multiple of kv_tile before it is set. */
    if (part == MHA_PART_D_LANES) s.lanes = s.kv_tile = widest;
    if (part != MHA_PART_Q_LANES) {
        combine(c, 0, part, s);
        return;
    }
    for (s.lanes = widest; s.lanes >= mha_narrowest_lanes(c->p, c->machine->target); s.lanes /= 2)
        combine(c, 0, part, s);
}

/* ---- Steps ---- */

/* Whether `value` is a step from x: the next value of a number, or any other value of a choice. */
static bool is_step(const mha_schedule_field *field, int32_t x, int32_t value) {
    if (mha_schedule_is_choice(field)) return value != x;
    int32_t below = 0, above = 0;
    for (const int32_t *v = field->values; *v; v++) {
        if (*v < x) below = *v;
        if (*v > x && !above) above = *v;
    }
    return value == below || value == above;
}

/* If one number must divide another, a step of either changes the other with it. */
static void take_along(int word, mha_schedule *s) {
    if (word == ID(score_row_vectors) && s->score_row_vectors % s->value_row_vectors)
        s->value_row_vectors = s->score_row_vectors;
    if (word == ID(value_keys) && s->value_streams > 0 && s->value_keys % s->value_streams)
        s->value_streams = MHA_SCHEDULE_AUTO;
}

static void try_steps(const mha_space *c, unsigned part, const mha_schedule *s) {
    mha_schedule from = *s;
    mha_schedule_leave_usual(c->p, c->machine->target, c->machine->description, &from);
    for (int i = 0; i < MHA_NUM_SCHEDULE_FIELDS; i++) {
        const mha_schedule_field *const field = &mha_schedule_fields[i];
        if (field->part != part) continue;
        for (const int32_t *value = field->values; *value; value++) {
            mha_schedule other = from;
            if (!is_step(field, mha_schedule_value(s, field->word), *value)) continue;
            *mha_schedule_at(&other, field->word) = *value;
            take_along(field->word, &other);
            offer(c, other);
        }
    }
}

void mha_space_steps(const mha_space *c, const mha_schedule *s) {
    if (mha_has_keys(c->p)) try_steps(c, s->strategy == MHA_D_LANES ? MHA_PART_D_LANES : MHA_PART_Q_LANES, s);
    if (mha_is_block(c->p)) try_steps(c, MHA_PART_PRODUCTS, s);
}

void mha_space_offer(const mha_space *c, const mha_schedule *s) { offer(c, *s); }
