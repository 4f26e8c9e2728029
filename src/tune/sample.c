/* Cuts the tasks of a phase into units, and picks whole units, or tasks spread over them whose mean is that of all. */
#include "tune/sample.h"

#include "base/integers.h"

#include <math.h>

/* A unit that is longer than LONG times the wanted part of the phase is not taken whole; its ends are not taken if even
 * a task is longer than LONG_TASK times that, and nothing is run before them if it is longer than LONG_WARMING times.
 */
static const double LONG = 2, LONG_TASK = 8, LONG_WARMING = 3;

/* Of units that are not alike so many tasks are taken in all that the mean of all is met. */
enum { SPREAD = 8 };

/* Tasks of a unit. */
typedef struct stretch {
    int64_t first, step, run;
} stretch;

/* Neighbours: each reads data next to the data of the task before. */
static stretch take_middle(int64_t begin, int64_t end, int64_t wanted) {
    return (stretch){begin + (end - begin - wanted) / 2, 1, wanted};
}

/* An even number of about `wanted` tasks, as far from one end as from the other: if each is cheaper than the one before
 * by the same amount, their mean is that of all. */
static stretch take_spread(int64_t begin, int64_t end, int64_t wanted) {
    const int64_t tasks = end - begin;
    int64_t step = tasks / wanted;
    if (step % 2 == tasks % 2) step++; /* then the tasks left over at both ends are as many */
    int64_t run = tasks / step / 2 * 2;
    if (run < 2) {
        if (step > 2) step -= 2;
        run = 2;
    }
    if ((run - 1) * step >= tasks) return (stretch){begin, 1, tasks};
    return (stretch){begin + (tasks - 1 - (run - 1) * step) / 2, step, run};
}

static stretch take_some(const tune_phase *p, double wanted, int64_t threads, int64_t ends) {
    enum { FEWEST = 4 };
    const int64_t fewest = p->are_level ? threads : max_of(threads, FEWEST);
    const int64_t some = max_of((int64_t)wanted, fewest), begin = ends, end = p->tasks - ends;
    if (some >= end - begin) return (stretch){0, 1, p->tasks};
    return p->are_level ? take_middle(begin, end, some) : take_spread(begin, end, some);
}

typedef struct units {
    int64_t first, apart, count;
} units;

static units take_units(const tune_phase *p, double share, int64_t turn, int64_t threads, int64_t run) {
    int64_t count = (int64_t)ceil(share * (double)p->units);
    count = max_of(count, ceil_div(p->are_alike ? threads : max_of(threads, SPREAD), run));
    /* Among few tasks their distribution counts: as in the whole call, each thread has as many units as the others. */
    while (count < p->units && count * run < 4 * threads && count % threads) count++;
    count = min_of(count, p->units);
    const int64_t places = p->units / count;
    if (p->are_alike) return (units){turn % places * count, 1, count};
    return (units){(p->units - 1 - (count - 1) * places) / 2, places, count};
}

/* Adds these tasks of each unit; together they represent `weight` tasks of every unit. Threads without tasks wait, as
 * they do in a full run. */
static void add(tune_sample *s, const tune_phase *p, const units *u, const stretch *t, int64_t weight,
                int64_t threads) {
    const int64_t count = u->count * t->run;
    const double all = (double)(p->units * p->tasks), whole = (double)ceil_div(p->units * p->tasks, threads);
    s->factors[s->count] = whole * (double)(p->units * weight) / all / (double)ceil_div(count, threads);
    s->parts[s->count++] = (at_run_part){.first = u->first * p->tasks + t->first,
                                         .step = t->step,
                                         .run = t->run,
                                         .leap = u->apart * p->tasks,
                                         .count = count};
}

/* The tasks before the first unit, `wanted` of them. */
static void warm_up(tune_sample *s, const tune_phase *p, const units *u, int64_t wanted) {
    const int64_t all = p->units * p->tasks, count = min_of(wanted, all);
    const int64_t end = u->first ? u->first * p->tasks : all;
    s->parts[s->count++] =
        (at_run_part){.first = max_of(end - count, 0), .step = 1, .run = count, .leap = count, .count = count};
}

tune_sample tune_sample_of(const tune_phase *p, double share, int64_t turn, int64_t threads) {
    tune_sample s = {0};
    const double of_unit = share * (double)p->units, in_tasks = of_unit * (double)p->tasks;
    const bool takes_ends = in_tasks * LONG_TASK >= 1;
    const stretch first = {0, 1, 1}, last = {p->tasks - 1, 1, 1};
    stretch middle = {0, 1, p->tasks};
    if (of_unit * LONG < 1 && p->tasks > (takes_ends ? 4 : 2)) middle = take_some(p, in_tasks, threads, takes_ends);
    const bool is_whole = middle.run == p->tasks, has_ends = takes_ends && !is_whole;
    /* The first task brings data in, and must not count as often as the others. */
    const units u = take_units(p, share, is_whole || has_ends ? turn : 0, threads, middle.run);
    if (in_tasks * LONG_WARMING >= 1) warm_up(&s, p, &u, max_of((int64_t)in_tasks, threads));
    if (has_ends) add(&s, p, &u, &first, 1, threads);
    add(&s, p, &u, &middle, has_ends ? p->tasks - 2 : p->tasks, threads);
    if (has_ends) add(&s, p, &u, &last, 1, threads);
    return s;
}
