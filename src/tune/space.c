#include "tune/space.h"

#include "base/integers.h"
#include "schedule/choose.h"
#include "schedule/variant.h"
#include "schedule/schedule_fields.h"

#include <stdlib.h>
#include <string.h>

#define ID(member) MHA_SCHEDULE_ID(member)

/* ---- Making a schedule legal ---- */

static void to_multiple(int32_t *x, int32_t step, int32_t most) {
    *x = (int32_t)(ceil_div(*x, step) * step);
    while (*x > most && *x > step) *x -= step;
}

/* Numbers that must divide one another are rounded so that they do; values that make no difference become one. */
static void normalise(const attune_problem *p, attune_schedule *s) {
    if (s->strategy == ATTUNE_D_LANES) {
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
    if (is_plain && s->kv_copy == ATTUNE_COPY_NONE) s->kv_copy = ATTUNE_COPY_CONVERTED;
    if (!mha_is_block(p)) return;
    to_multiple(&s->gemm_task_rows, s->gemm_rows, 4096);
    if (s->gemm_depth >= p->embed_dim) s->gemm_depth = 0;
}

/* Register tiles that only spill, or that leave the multipliers waiting although more rows and keys are there. */
static bool is_hopeless(const mha_machine *m, const attune_schedule *s, int64_t rows_at_most) {
    const int registers = m->target->vector_registers;
    const bool q = s->strategy == ATTUNE_Q_LANES;
    const int score = s->score_keys * (q ? s->score_row_vectors : s->score_rows);
    const int value = q ? s->value_columns * s->value_row_vectors : s->value_rows * s->value_column_vectors;
    if (score + 2 > registers || value + 2 > registers) return true;
    return q && rows_at_most >= 4 * s->lanes && (score < 4 || value < 4);
}

static int64_t query_rows(const attune_problem *p) {
    return p->seq_q == ATTUNE_DYNAMIC ? INT32_MAX : p->seq_q * (p->num_heads / p->num_kv_heads);
}

static bool is_candidate(const attune_problem *p, const mha_machine *m, const attune_schedule *s) {
    return !is_hopeless(m, s, query_rows(p)) && mha_schedule_check(p, s, m->target, NULL) == ATTUNE_OK;
}

/* ---- The list ---- */

typedef struct collector {
    const attune_problem *p;
    const mha_machine *m;
    tune_candidate *list; /* a heap whose largest cost is on top, while more come than fit */
    size_t count, capacity;
    bool takes_minor; /* numbers that matter little are part of the product, too */
} collector;

static int compare_schedules(const attune_schedule *a, const attune_schedule *b) {
    return memcmp(&a->strategy, &b->strategy, MHA_SCHEDULE_WORDS * sizeof(int32_t));
}

static int by_cost(const void *x, const void *y) {
    const tune_candidate *a = x, *b = y;
    if (a->cost != b->cost) return a->cost < b->cost ? -1 : 1;
    return compare_schedules(&a->schedule, &b->schedule);
}

static void sift_down(tune_candidate *heap, size_t count, size_t at) {
    for (;;) {
        size_t largest = at;
        for (size_t child = 2 * at + 1; child <= 2 * at + 2 && child < count; child++)
            if (by_cost(&heap[child], &heap[largest]) > 0) largest = child;
        if (largest == at) return;
        const tune_candidate swap = heap[at];
        heap[at] = heap[largest];
        heap[largest] = swap;
        at = largest;
    }
}

static void sift_up(tune_candidate *heap, size_t at) {
    while (at && by_cost(&heap[at], &heap[(at - 1) / 2]) > 0) {
        const tune_candidate swap = heap[at];
        heap[at] = heap[(at - 1) / 2];
        heap[(at - 1) / 2] = swap;
        at = (at - 1) / 2;
    }
}

static void collect(collector *c, attune_schedule s) {
    normalise(c->p, &s);
    if (!is_candidate(c->p, c->m, &s)) return;
    mha_schedule_settle(c->p, c->m->target, c->m->description, &s);
    const tune_candidate candidate = {s, mha_cost(c->p, c->m, &s)};
    if (c->count < c->capacity) {
        c->list[c->count] = candidate;
        sift_up(c->list, c->count++);
    } else if (c->count && by_cost(&candidate, &c->list[0]) < 0) {
        c->list[0] = candidate;
        sift_down(c->list, c->count, 0);
    }
}

/* In order, each once. */
static size_t finish(collector *c) {
    size_t unique = 0;
    qsort(c->list, c->count, sizeof *c->list, by_cost);
    for (size_t i = 0; i < c->count; i++)
        if (!unique || compare_schedules(&c->list[i].schedule, &c->list[unique - 1].schedule))
            c->list[unique++] = c->list[i];
    return unique;
}

/* From which value on all larger ones come to the same. */
static int64_t largest_value(const attune_problem *p, const mha_schedule_field *field, const attune_schedule *s) {
    const int64_t keys = p->low_rank ? p->low_rank : p->seq_kv;
    switch (field->word) {
    case ID(task_row_vectors): return p->seq_q > 0 ? ceil_div(query_rows(p), s->lanes) : INT32_MAX;
    case ID(kv_tile): return p->reproducible ? 1 : keys > 0 ? keys : INT32_MAX;
    case ID(kv_chunk): return keys > 0 ? keys : INT32_MAX;
    default: return INT32_MAX;
    }
}

/* The value of the number after normalising, which depends on earlier numbers only. */
static int32_t normalised(const attune_problem *p, const mha_schedule_field *field, attune_schedule s) {
    normalise(p, &s);
    return mha_schedule_value(&s, field->word);
}

/* Schedules that cannot become legal: most of the product of all values. */
typedef enum hope { SOME_HOPE, NOT_THIS, NONE_OF_THE_REST } hope;

static hope hope_of(const collector *c, const mha_schedule_field *field, const attune_schedule *s) {
    const int registers = c->m->target->vector_registers;
    const bool q = s->strategy == ATTUNE_Q_LANES;
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

/* Whether the values of a field are combined with those of others: not those of choices, which attune makes for the
 * numbers. */
static bool is_combined(const collector *c, unsigned part, const mha_schedule_field *field) {
    if (field->part != part || mha_schedule_is_choice(field)) return false;
    return !field->is_minor || c->takes_minor;
}

/* All combinations of the values of the fields of `part` from number `i` of the list on, each once: of values that come
 * to the same the first. */
static void combine(collector *c, int i, unsigned part, attune_schedule s) {
    while (i < MHA_NUM_SCHEDULE_FIELDS && !is_combined(c, part, &mha_schedule_fields[i])) i++;
    if (i == MHA_NUM_SCHEDULE_FIELDS) {
        collect(c, s);
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

/* A schedule of another strategy, with the same products. */
static attune_schedule with_products_of(attune_schedule s, const attune_schedule *base) {
    for (int i = 0; i < MHA_NUM_SCHEDULE_FIELDS; i++) {
        const mha_schedule_field *field = &mha_schedule_fields[i];
        if (field->part == MHA_PART_PRODUCTS) *mha_schedule_at(&s, field->word) = mha_schedule_value(base, field->word);
    }
    return s;
}

/* Vectors of half the width and of a quarter leave fewer lanes empty where rows are few. Products share the lanes of
 * attention: a block keeps whole vectors. */
static int32_t narrowest_lanes(const attune_problem *p, int32_t widest) {
    enum { FEW_ROWS = 64, LEAST = 4 };
    const bool is_small = p->op == ATTUNE_ATTENTION && p->seq_q > 0 && query_rows(p) <= FEW_ROWS;
    return is_small && widest > LEAST ? (int32_t)max_of(widest / 4, LEAST) : widest;
}

static void combine_all(collector *c) {
    const attune_problem *p = c->p;
    const int32_t widest = c->m->target->vector_bytes / (p->softmax_precision == ATTUNE_F64 ? 8 : 4);
    attune_schedule base, q;
    mha_choose(p, c->m->target, c->m->description, &base);
    collect(c, base);
    mha_schedule_leave_choices(&base);
    if (mha_has_keys(p)) {
        mha_choose_q_lanes(p, c->m->target, c->m->description, &q); /* with the numbers that matter little */
        q = with_products_of(q, &base);
        for (q.lanes = widest; q.lanes >= narrowest_lanes(p, widest); q.lanes /= 2) combine(c, 0, MHA_PART_Q_LANES, q);
    }
    if (mha_attends(p)) {
        /* kv_chunk is made a multiple of kv_tile even before that has its value. */
        const attune_schedule d = {
            .struct_size = sizeof d, .strategy = ATTUNE_D_LANES, .lanes = widest, .kv_tile = widest};
        combine(c, 0, MHA_PART_D_LANES, with_products_of(d, &base));
    }
    if (mha_is_block(p)) combine(c, 0, MHA_PART_PRODUCTS, base);
}

size_t tune_space(const attune_problem *p, const mha_machine *m, tune_candidate *candidates, size_t capacity) {
    enum { FEW = 1000 };
    collector c = {.p = p, .m = m, .list = candidates, .capacity = capacity};
    combine_all(&c);
    size_t count = finish(&c);
    if (count >= FEW || count >= capacity / 2) return count;
    c.count = 0; /* a problem so small that most numbers come to the same */
    c.takes_minor = true;
    combine_all(&c);
    return finish(&c);
}

/* Whether `value` is a step from x: the next one of a number, any other one of a choice. */
static bool is_step(const mha_schedule_field *field, int32_t x, int32_t value) {
    if (mha_schedule_is_choice(field)) return value != x;
    int32_t below = 0, above = 0;
    for (const int32_t *v = field->values; *v; v++) {
        if (*v < x) below = *v;
        if (*v > x && !above) above = *v;
    }
    return value == below || value == above;
}

/* A step of one of two numbers, of which one divides the other, takes the other along. */
static void take_along(int word, attune_schedule *s) {
    if (word == ID(score_row_vectors) && s->score_row_vectors % s->value_row_vectors)
        s->value_row_vectors = s->score_row_vectors;
    if (word == ID(value_keys) && s->value_streams > 0 && s->value_keys % s->value_streams)
        s->value_streams = MHA_SCHEDULE_AUTO;
}

static void collect_steps(collector *c, unsigned part, const attune_schedule *s) {
    attune_schedule from = *s;
    mha_schedule_leave_usual(c->p, c->m->target, c->m->description, &from);
    for (int i = 0; i < MHA_NUM_SCHEDULE_FIELDS; i++) {
        const mha_schedule_field *const field = &mha_schedule_fields[i];
        if (field->part != part) continue;
        for (const int32_t *value = field->values; *value; value++) {
            attune_schedule other = from;
            if (!is_step(field, mha_schedule_value(s, field->word), *value)) continue;
            *mha_schedule_at(&other, field->word) = *value;
            take_along(field->word, &other);
            collect(c, other);
        }
    }
}

size_t tune_neighbours(const attune_problem *p, const mha_machine *m, const attune_schedule *s,
                       tune_candidate *candidates, size_t capacity) {
    collector c = {.p = p, .m = m, .list = candidates, .capacity = capacity};
    const unsigned strategy = s->strategy == ATTUNE_D_LANES ? MHA_PART_D_LANES : MHA_PART_Q_LANES;
    if (mha_has_keys(p)) collect_steps(&c, strategy, s);
    if (mha_is_block(p)) collect_steps(&c, MHA_PART_PRODUCTS, s);
    size_t count = finish(&c), kept = 0;
    for (size_t i = 0; i < count; i++)
        if (compare_schedules(&candidates[i].schedule, s)) candidates[kept++] = candidates[i];
    return kept;
}
