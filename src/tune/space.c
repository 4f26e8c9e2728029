#include "tune/space.h"

#include "base/integers.h"
#include "schedule/schedule.h"

#include <stdlib.h>
#include <string.h>

/* ---- The values that each number of a schedule may take ---- */

typedef struct choices {
    const char *name;
    size_t offset;
    bool steps_only;    /* matters little: left out of the product of all values */
    int32_t values[16]; /* ascending, 0 ends them */
} choices;

#define FIELD(name, ...)                                                                                               \
    {                                                                                                                  \
        #name, offsetof(attune_schedule, name), false, { __VA_ARGS__ }                                                 \
    }
#define MINOR(name, ...)                                                                                               \
    {                                                                                                                  \
        #name, offsetof(attune_schedule, name), true, { __VA_ARGS__ }                                                  \
    }

static const choices q_lanes[] = {
    FIELD(score_vectors, 1, 2, 3, 4, 6, 8),
    FIELD(score_rows, 1, 2, 3, 4, 6, 8, 12),
    MINOR(score_unroll, 1, 2, 4, 8),
    FIELD(value_vectors, 1, 2, 3, 4, 6),
    FIELD(value_rows, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16),
    MINOR(value_unroll, 1, 2, 4),
    FIELD(q_vectors, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48),
    FIELD(kv_tile, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024),
    {0},
};

static const choices d_lanes[] = {
    FIELD(score_vectors, 1, 2, 3, 4, 6, 8),
    FIELD(score_rows, 1, 2, 4, 8),
    FIELD(score_unroll, 1, 2, 4, 8),
    FIELD(value_rows, 1, 2, 3, 4, 6, 8),
    FIELD(value_vectors, 1, 2, 4, 8),
    FIELD(value_unroll, 1, 2, 4, 8),
    FIELD(kv_tile, 32, 64, 128, 256, 512, 1024),
    FIELD(kv_chunk, 64, 128, 256, 512, 1024, 2048, 4096),
    {0},
};

static const choices gemm[] = {
    FIELD(gemm_vectors, 1, 2, 4, 8),
    FIELD(gemm_rows, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24),
    FIELD(gemm_block, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512),
    FIELD(gemm_depth, 128, 256, 384, 512, 768, 1024), /* and 0, which a schedule that attune chose has */
    {0},
};

static int32_t *number(attune_schedule *s, const choices *c) { return (int32_t *)(void *)((char *)s + c->offset); }

static const choices *attention_choices(const attune_schedule *s) {
    return s->strategy == ATTUNE_D_LANES ? d_lanes : q_lanes;
}

/* ---- Making a schedule legal ---- */

static void to_multiple(int32_t *x, int32_t step, int32_t most) {
    *x = (int32_t)(ceil_div(*x, step) * step);
    while (*x > most && *x > step) *x -= step;
}

/* Numbers that must divide one another are rounded so that they do; values that make no difference become one. */
static void normalise(const attune_problem *p, attune_schedule *s) {
    if (s->strategy == ATTUNE_D_LANES) {
        to_multiple(&s->kv_tile, s->score_rows > s->lanes ? s->score_rows : s->lanes, 4096);
        to_multiple(&s->kv_chunk, s->kv_tile, INT32_MAX);
    } else {
        to_multiple(&s->q_vectors, s->score_vectors, 64);
        s->value_rows = (int32_t)min_of(s->value_rows, p->head_dim_v);
        if (p->reproducible) {
            s->kv_tile = mha_reproducible_kv_tile(p);
        } else {
            const int64_t keys = p->low_rank ? p->low_rank : p->seq_kv;
            if (keys > 0) s->kv_tile = (int32_t)min_of(s->kv_tile, ceil_div(keys, s->score_rows) * s->score_rows);
            to_multiple(&s->kv_tile, s->score_rows, 4096);
        }
    }
    if (!mha_is_block(p)) return;
    to_multiple(&s->gemm_block, s->gemm_rows, 4096);
    if (s->gemm_depth >= p->embed_dim) s->gemm_depth = 0;
}

/* Register tiles that only spill, or that leave the multipliers waiting although more rows and keys are there. */
static bool is_hopeless(const tune_machine *m, const attune_schedule *s, int64_t rows_at_most) {
    const int registers = m->target->vector_registers;
    const bool q = s->strategy == ATTUNE_Q_LANES;
    const int score = s->score_rows * s->score_vectors, value = s->value_rows * s->value_vectors;
    if (score + 2 > registers || value + 2 > registers) return true;
    return q && rows_at_most >= 4 * s->lanes && (score < 4 || value < 4);
}

static int64_t query_rows(const attune_problem *p) {
    return p->seq_q == ATTUNE_DYNAMIC ? INT32_MAX : p->seq_q * (p->num_heads / p->num_kv_heads);
}

static bool is_candidate(const attune_problem *p, const tune_machine *m, const attune_schedule *s) {
    return !is_hopeless(m, s, query_rows(p)) && mha_schedule_check(p, s, m->target, NULL) == ATTUNE_OK;
}

/* ---- The list ---- */

typedef struct collector {
    const attune_problem *p;
    const tune_machine *m;
    tune_candidate *list; /* a heap whose largest cost is on top, while more come than fit */
    size_t count, capacity;
    bool takes_minor; /* numbers that matter little are part of the product, too */
} collector;

static int compare_schedules(const attune_schedule *a, const attune_schedule *b) {
    return memcmp(&a->strategy, &b->strategy,
                  offsetof(attune_schedule, gemm_depth) + sizeof(int32_t) - offsetof(attune_schedule, strategy));
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
    const tune_candidate candidate = {s, tune_model_cost(c->p, c->m, &s)};
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
static int64_t largest_value(const attune_problem *p, const choices *fields, const attune_schedule *s) {
    const int64_t keys = p->low_rank ? p->low_rank : p->seq_kv;
    if (fields->offset == offsetof(attune_schedule, q_vectors) && p->seq_q > 0)
        return ceil_div(query_rows(p), s->lanes);
    if (fields->offset == offsetof(attune_schedule, kv_tile) && p->reproducible) return 1;
    if (fields->offset == offsetof(attune_schedule, kv_tile) && keys > 0) return keys;
    if (fields->offset == offsetof(attune_schedule, kv_chunk) && keys > 0) return keys;
    return INT32_MAX;
}

/* The value of the number after normalising, which depends on earlier numbers only. */
static int32_t normalised(const attune_problem *p, const choices *field, attune_schedule s) {
    normalise(p, &s);
    return *number(&s, field);
}

/* All combinations of the values of `fields`, each once: of values that come to the same the first. */
static void combine(collector *c, const choices *fields, attune_schedule s) {
    if (!fields->name) {
        collect(c, s);
        return;
    }
    if (fields->steps_only && !c->takes_minor) {
        combine(c, fields + 1, s);
        return;
    }
    int32_t *const x = number(&s, fields);
    int32_t last = -1;
    for (const int32_t *value = fields->values; *value; value++) {
        *x = *value;
        /* Schedules that cannot become legal are left out here: most of the product of all values. */
        if (fields->offset == offsetof(attune_schedule, score_rows) &&
            s.score_rows * s.score_vectors + 2 > c->m->target->vector_registers)
            return;
        if (fields->offset == offsetof(attune_schedule, value_vectors) && s.strategy == ATTUNE_Q_LANES &&
            s.score_vectors % s.value_vectors)
            continue;
        if (fields->offset == offsetof(attune_schedule, value_rows) && s.strategy == ATTUNE_Q_LANES &&
            (s.value_rows * s.value_vectors + 2 > c->m->target->vector_registers || s.value_rows > c->p->head_dim_v))
            return;
        const int32_t comes_to = normalised(c->p, fields, s);
        if (comes_to != last) combine(c, fields + 1, s);
        last = comes_to;
        if (*value >= largest_value(c->p, fields, &s)) return;
    }
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
    attune_schedule base;
    mha_choose(p, c->m->target, &base);
    collect(c, base);
    if (mha_has_keys(p)) {
        attune_schedule s = base;
        s.strategy = ATTUNE_Q_LANES;
        s.kv_chunk = 0;
        for (s.lanes = widest; s.lanes >= narrowest_lanes(p, widest); s.lanes /= 2) combine(c, q_lanes, s);
    }
    if (mha_attends(p)) {
        attune_schedule s = base;
        s.strategy = ATTUNE_D_LANES;
        s.lanes = widest;
        s.q_vectors = 1;
        combine(c, d_lanes, s);
    }
    if (mha_is_block(p)) combine(c, gemm, base);
}

size_t tune_space(const attune_problem *p, const tune_machine *m, tune_candidate *candidates, size_t capacity) {
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

/* The value after or before x in the list; 0: there is none. */
static int32_t next_value(const choices *c, int32_t x, bool up) {
    int32_t below = 0;
    for (const int32_t *value = c->values; *value; value++) {
        if (*value > x && up) return *value;
        if (*value < x) below = *value;
    }
    return up ? 0 : below;
}

static void collect_steps(collector *c, const choices *fields, const attune_schedule *s) {
    for (; fields->name; fields++)
        for (int up = 0; up < 2; up++) {
            attune_schedule other = *s;
            int32_t *const x = number(&other, fields);
            const int32_t value = next_value(fields, *x, up);
            if (!value) continue;
            *x = value;
            /* A step of one of two numbers, of which one divides the other, takes the other along. */
            if (fields->offset == offsetof(attune_schedule, score_vectors) && other.score_vectors % other.value_vectors)
                other.value_vectors = other.score_vectors;
            collect(c, other);
        }
}

size_t tune_neighbours(const attune_problem *p, const tune_machine *m, const attune_schedule *s,
                       tune_candidate *candidates, size_t capacity) {
    collector c = {.p = p, .m = m, .list = candidates, .capacity = capacity};
    if (mha_has_keys(p)) collect_steps(&c, attention_choices(s), s);
    if (mha_is_block(p)) collect_steps(&c, gemm, s);
    size_t count = finish(&c), kept = 0;
    for (size_t i = 0; i < count; i++)
        if (compare_schedules(&candidates[i].schedule, s)) candidates[kept++] = candidates[i];
    return kept;
}
