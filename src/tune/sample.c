#include "tune/sample.h"

#include "mha/integers.h"

#include <math.h>

/* A unit that is longer than LONG times what is wanted of the phase is not taken whole; its ends are not taken if even
 * a task is longer than LONG_TASK times that, and nothing is run before them if it is longer than LONG_WARMING times.
 */
static const double LONG = 2, LONG_TASK = 8, LONG_WARMING = 3;

/* Of units that are not alike so many tasks are taken in all that the mean of all is met. */
enum { SPREAD = 8 };

/* Tasks of a unit, one after the other. */
typedef struct stretch {
    int64_t first, run;
} stretch;

/* `wanted` of the tasks from `begin` to before `end`, or one more if they could not be in the middle. */
static stretch take_middle(int64_t begin, int64_t end, int64_t wanted, bool are_level) {
    const int64_t tasks = end - begin, more = are_level ? 0 : (tasks - wanted) % 2, run = wanted + more;
    return (stretch){begin + (tasks - run) / 2, run};
}

typedef struct units {
    int64_t first, apart, count;
} units;

static units take_units(const tune_phase *p, double share, int64_t turn, int64_t threads, int64_t run) {
    int64_t count = (int64_t)ceil(share * (double)p->units);
    count = max_of(count, ceil_div(p->are_alike ? threads : max_of(threads, SPREAD), run));
    /* Among few tasks it counts who gets which: as in the whole, each thread has as many units as the others. */
    while (count < p->units && count * run < 4 * threads && count % threads) count++;
    count = min_of(count, p->units);
    const int64_t places = p->units / count;
    if (p->are_alike) return (units){turn % places * count, 1, count};
    return (units){(p->units - 1 - (count - 1) * places) / 2, places, count};
}

/* Adds these tasks of each of the units; together they stand for `weight` tasks of every unit. Threads that have none
 * left wait, here as well as in the whole. */
static void add(tune_sample *s, const tune_phase *p, const units *u, const stretch *t, int64_t weight,
                int64_t threads) {
    const int64_t count = u->count * t->run;
    const double all = (double)(p->units * p->tasks), whole = (double)ceil_div(p->units * p->tasks, threads);
    s->factors[s->count] = whole * (double)(p->units * weight) / all / (double)ceil_div(count, threads);
    s->parts[s->count++] = (at_run_part){
        .first = u->first * p->tasks + t->first, .step = 1, .run = t->run, .leap = u->apart * p->tasks, .count = count};
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
    const stretch all = {0, p->tasks}, first = {0, 1}, last = {p->tasks - 1, 1};
    stretch middle = all;
    if (of_unit * LONG < 1 && p->tasks > (takes_ends ? 4 : 2)) {
        const int64_t wanted = max_of((int64_t)in_tasks, threads), ends = takes_ends;
        if (wanted < p->tasks - 2 * ends) middle = take_middle(ends, p->tasks - ends, wanted, p->are_level);
    }
    const bool is_whole = middle.run == p->tasks, has_ends = takes_ends && !is_whole;
    /* What the first task brings in must not count as often as the others do. */
    const units u = take_units(p, share, is_whole || has_ends ? turn : 0, threads, middle.run);
    if (in_tasks * LONG_WARMING >= 1) warm_up(&s, p, &u, max_of((int64_t)in_tasks, threads));
    if (has_ends) add(&s, p, &u, &first, 1, threads);
    add(&s, p, &u, &middle, has_ends ? p->tasks - 2 : p->tasks, threads);
    if (has_ends) add(&s, p, &u, &last, 1, threads);
    return s;
}
