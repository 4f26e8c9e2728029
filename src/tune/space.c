/* The tuner's list: of the space (schedule/space.h) the schedules that cost least, each once. */
#include "tune/space.h"

#include "schedule/choose.h"
#include "schedule/schedule_fields.h"
#include "schedule/space.h"

#include <stdlib.h>
#include <string.h>

/* ---- The list ---- */

typedef struct collector {
    const attune_problem *p;
    const mha_machine *m;
    tune_candidate *list; /* a heap whose largest cost is on top, while more come than fit */
    size_t count, capacity;
} collector;

static int compare_schedules(const mha_schedule *a, const mha_schedule *b) { return memcmp(a, b, sizeof *a); }

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

static void collect(void *to, const mha_schedule *s) {
    collector *const c = to;
    const tune_candidate candidate = {*s, mha_cost(c->p, c->m, s)};
    if (c->count < c->capacity) {
        c->list[c->count] = candidate;
        sift_up(c->list, c->count++);
    } else if (c->count && by_cost(&candidate, &c->list[0]) < 0) {
        c->list[0] = candidate;
        sift_down(c->list, c->count, 0);
    }
}

static mha_space space_for(collector *c, bool has_minor) {
    return (mha_space){.p = c->p, .machine = c->m, .has_minor = has_minor, .found = collect, .to = c};
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

/* A schedule of another strategy, with the same products. */
static mha_schedule with_products_of(mha_schedule s, const mha_schedule *base) {
    for (int i = 0; i < MHA_NUM_SCHEDULE_FIELDS; i++) {
        const mha_schedule_field *field = &mha_schedule_fields[i];
        if (field->part == MHA_PART_PRODUCTS) *mha_schedule_at(&s, field->word) = mha_schedule_value(base, field->word);
    }
    return s;
}

static void combine_all(collector *c, bool has_minor) {
    const attune_problem *p = c->p;
    const mha_space space = space_for(c, has_minor);
    mha_schedule base, q, d = {.strategy = MHA_D_LANES};
    mha_choose(mha_read(p), c->m->target, c->m->description, &base);
    mha_space_offer(&space, &base);
    mha_schedule_leave_choices(&base);
    if (mha_has_keys(p)) {
        mha_choose_by(MHA_Q_LANES, mha_read(p), c->m->target, c->m->description,
                      &q); /* with the numbers that matter little */
        q = with_products_of(q, &base);
        mha_space_all(&space, MHA_PART_Q_LANES, &q);
    }
    d = with_products_of(d, &base);
    if (mha_attends(p)) mha_space_all(&space, MHA_PART_D_LANES, &d);
    if (mha_is_block(p)) mha_space_all(&space, MHA_PART_PRODUCTS, &base);
}

size_t tune_space(const attune_problem *p, const mha_machine *m, tune_candidate *candidates, size_t capacity) {
    enum { FEW = 1000 };
    collector c = {.p = p, .m = m, .list = candidates, .capacity = capacity};
    combine_all(&c, false);
    size_t count = finish(&c);
    if (count >= FEW || count >= capacity / 2) return count;
    c.count = 0; /* a problem so small that most numbers come to the same */
    combine_all(&c, true);
    return finish(&c);
}

size_t tune_neighbours(const attune_problem *p, const mha_machine *m, const mha_schedule *s, tune_candidate *candidates,
                       size_t capacity) {
    collector c = {.p = p, .m = m, .list = candidates, .capacity = capacity};
    const mha_space space = space_for(&c, false);
    mha_space_steps(&space, s);
    size_t count = finish(&c), kept = 0;
    for (size_t i = 0; i < count; i++)
        if (compare_schedules(&candidates[i].schedule, s)) candidates[kept++] = candidates[i];
    return kept;
}
