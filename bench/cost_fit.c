/* Fits the constants of src/schedule/cost.def to timings of schedules, and says how good the cost is with them.
 *
 * stdin has what cost_sample.c prints. The schedules of a problem that were timed are looked at by strategy, and all
 * together where both were. Of each such case the excess is how much longer the cheapest schedule takes than the best
 * known one: the second fastest, as the fastest of many is also the luckiest. The choice (mha_choose) has an excess
 * where it was timed.
 *
 * With --fit=TARGET each constant in turn is made larger or smaller, as long as that makes things better: the mean of
 * all cases of that target of the excess, of its square, and of how much costs scatter about times. All targets are
 * judged. This program is linked with a src/schedule whose constants may be changed (MHA_COST_FIT). */
#include "problem/mha.h"
#include "schedule/cost_parts.h"
#include "schedule/schedule_fields.h"
#include "target/tuning_class.h"

#include <argp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_CASES = 10000, MOST_PROBLEMS = 4000, MOST_TIMED = 400, FEWEST = 4, LINE_BYTES = 1 << 14 };

typedef struct timed {
    mha_schedule schedule;
    double us, cost;
} timed;

typedef struct problem {
    char *text;
    attune_problem canonical;
    mha_cost_context context;
    char class_name[AT_CLASS_BYTES];
    timed list[MOST_TIMED];
    size_t count;
} problem;

/* Schedules of a problem that are compared. */
typedef struct comparison {
    problem *of;
    unsigned strategies; /* a bit for each */
    timed *list[MOST_TIMED];
    size_t count;
    double best;
} comparison;

typedef struct fitter {
    problem *problems[MOST_PROBLEMS];
    comparison *cases[MOST_CASES];
    size_t num_problems, num_cases;
    const char *target, *only; /* that is fitted to; the beginning of the names of constants that may change */
    const char *choices;       /* target whose choices are printed */
    int passes;
    bool is_verbose, weighs;
} fitter;

static const char *const names[] = {
#define COST(name, value, fit, meaning) #name,
#include "schedule/cost.def"
};
static const double begin[] = {
#define COST(name, value, fit, meaning) value,
#include "schedule/cost.def"
};
enum { CONSTANTS = sizeof names / sizeof *names };

static double *constant(int i) { return (double *)&mha_cost_constants + i; }

static void *allocate(size_t bytes) {
    void *const memory = calloc(1, bytes);
    if (!memory) {
        fputs("cost_fit: out of memory\n", stderr);
        exit(1);
    }
    return memory;
}

/* ---- What was timed ---- */

/* What is timed later is a problem of its own: times of another hour are others. */
static problem *find_problem(fitter *f, const char *target, const char *class_name, const char *text) {
    problem *const last = f->num_problems ? f->problems[f->num_problems - 1] : NULL;
    if (last && !strcmp(last->text, text) && !strcmp(last->class_name, class_name) &&
        !strcmp(last->context.machine.target->name, target))
        return last;
    const at_target *code = at_target_find(target);
    attune_problem raw = ATTUNE_PROBLEM_INIT;
    at_error err = {0};
    problem *const p = allocate(sizeof *p);
    if (!code || f->num_problems == MOST_PROBLEMS || mha_problem_parse(text, &raw, &err) ||
        mha_canonicalize(&raw, &p->canonical, &err)) {
        free(p);
        return NULL;
    }
    const bool is_arm = code->required & AT_CPU_AARCH64;
    const mha_machine machine = {code, at_description_of(class_name, is_arm)};
    p->text = strdup(text);
    snprintf(p->class_name, sizeof p->class_name, "%s", class_name);
    p->context = mha_cost_context_of(&p->canonical, &machine);
    f->problems[f->num_problems++] = p;
    return p;
}

static void add_time(problem *p, const mha_schedule *schedule, double us) {
    if (p->count < MOST_TIMED) p->list[p->count++] = (timed){*schedule, us, 0};
}

/* Whether it asks ahead for what settle.c would have it ask for. Samples do not say what asking is worth: they find
 * data nearer than a call does. */
static bool asks_as_usual(const problem *p, const mha_schedule *schedule) {
    mha_schedule usual = *schedule;
    usual.task_prefetch = MHA_PREFETCH_AUTO;
    usual.kv_prefetch = MHA_SCHEDULE_AUTO;
    mha_schedule_settle(&p->canonical, p->context.machine.target, p->context.machine.description, &usual);
    return mha_schedule_same(&usual, schedule);
}

/* Lines that attune would not take any more are left out. */
static void read_line(fitter *f, char *line) {
    char *columns[5];
    mha_schedule parsed = {0}, settled;
    const mha_schedule *schedule = &parsed;
    at_error err = {0};
    for (int i = 0; i < 5; i++)
        if (!(columns[i] = strtok(i ? NULL : line, "\t\n"))) return;
    problem *const p = find_problem(f, columns[0], columns[1], columns[2]);
    if (!p || mha_schedule_parse(columns[3], &parsed, &err) ||
        mha_schedule_in(&schedule, &settled, &p->canonical, p->context.machine.target, &err))
        fprintf(stderr, "cost_fit: left out: %s, %s\n", columns[2], columns[3]);
    else if (asks_as_usual(p, schedule))
        add_time(p, schedule, strtod(columns[4], NULL));
}

static double second_fastest(const comparison *c) {
    double first = INFINITY, second = INFINITY;
    for (size_t i = 0; i < c->count; i++) {
        const double us = c->list[i]->us;
        if (us < first)
            second = first, first = us;
        else if (us < second)
            second = us;
    }
    return second;
}

static void add_case(fitter *f, problem *p, unsigned strategies) {
    comparison *const c = allocate(sizeof *c);
    unsigned found = 0;
    *c = (comparison){.of = p, .strategies = strategies};
    for (size_t i = 0; i < p->count; i++) {
        const unsigned bit = 1U << p->list[i].schedule.strategy;
        if (!(strategies & bit)) continue;
        c->list[c->count++] = &p->list[i];
        found |= bit;
    }
    if (c->count < FEWEST || found != strategies || f->num_cases == MOST_CASES) {
        free(c);
        return;
    }
    c->best = second_fastest(c);
    f->cases[f->num_cases++] = c;
}

/* ---- How good ---- */

static const timed *price(const comparison *c) {
    const timed *cheapest = c->list[0];
    for (size_t i = 0; i < c->count; i++) {
        const mha_costs costs = mha_costs_of_call(&c->of->context, &c->list[i]->schedule);
        c->list[i]->cost = mha_costs_sum(&costs);
        if (c->list[i]->cost < cheapest->cost) cheapest = c->list[i];
    }
    return cheapest;
}

/* How costs scatter about times; those of good schedules matter more, and a cost that is too low more than one that is
 * too high. */
static double scatter(const comparison *c) {
    double weights = 0, mean = 0, sum = 0;
    for (size_t i = 0; i < c->count; i++) {
        const double weight = exp(-(c->list[i]->us / c->best - 1) / 0.3);
        weights += weight;
        mean += weight * log(c->list[i]->cost / c->list[i]->us);
    }
    mean /= weights;
    for (size_t i = 0; i < c->count; i++) {
        double off = log(c->list[i]->cost / c->list[i]->us) - mean;
        if (off < 0) off *= 1.5;
        sum += exp(-(c->list[i]->us / c->best - 1) / 0.3) * off * off;
    }
    return sqrt(sum / weights);
}

/* The excess of the cheapest, and of those that are next to as cheap: a step of a constant moves it smoothly. */
static double soft_excess(const comparison *c, double least) {
    static const double NEAR = 0.008;
    double sum = 0, weights = 0;
    for (size_t i = 0; i < c->count; i++) {
        const double weight = exp(-(c->list[i]->cost / least - 1) / NEAR);
        sum += weight * log(c->list[i]->us / c->best);
        weights += weight;
    }
    return sum / weights;
}

static bool is_of(const comparison *c, const char *target) {
    return !strcmp(target, "all") || !strcmp(c->of->context.machine.target->name, target);
}

static double badness(const fitter *f) {
    double sum = 0, far = 0;
    size_t count = 0;
    for (size_t i = 0; i < f->num_cases; i++) {
        const comparison *c = f->cases[i];
        if (!is_of(c, f->target)) continue;
        const double excess = soft_excess(c, price(c)->cost);
        sum += 0.25 * scatter(c) + excess + 4 * excess * excess;
        count++;
    }
    for (int i = 0; i < CONSTANTS; i++) far += fabs(log(*constant(i) / begin[i]));
    return count ? sum / (double)count + 0.0002 * far : 0;
}

/* ---- Fitting ---- */

/* Within a factor of ten of where it began. */
static bool is_possible(int i) {
    const double x = *constant(i) / begin[i];
    return x > 0.1 && x < 10;
}

static double move(const fitter *f, int i, double best) {
    static const double steps[] = {0.5, 0.7, 0.85, 0.94, 1.06, 1.18, 1.4, 2};
    const double from = *constant(i);
    double at = from;
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        *constant(i) = from * steps[s];
        const double now = is_possible(i) ? badness(f) : INFINITY;
        if (now >= best - 1e-6) continue;
        best = now;
        at = *constant(i);
    }
    *constant(i) = at;
    return best;
}

static void fit(const fitter *f) {
    double best = badness(f);
    for (int pass = 0; pass < f->passes; pass++) {
        const double before = best;
        for (int i = 0; i < CONSTANTS; i++)
            if (!strncmp(names[i], f->only, strlen(f->only))) best = move(f, i, best);
        fprintf(stderr, "pass %d: %.5f\n", pass + 1, best);
        if (before - best < 1e-5) break;
    }
    for (int i = 0; i < CONSTANTS; i++)
        if (*constant(i) != begin[i]) printf("constant %s %.3g\n", names[i], *constant(i));
}

/* ---- Judging ---- */

typedef struct summary {
    size_t count, chosen;
    double sum, worst, chosen_sum, chosen_worst;
} summary;

static const char *word_of(unsigned strategies) {
    static const char *const words[] = {"", "q", "d", "q+d"};
    return words[strategies >> MHA_Q_LANES];
}

static const timed *choice_of(const comparison *c) {
    mha_schedule choice;
    const mha_machine *machine = &c->of->context.machine;
    mha_choose(mha_read(&c->of->canonical), machine->target, machine->description, &choice);
    for (size_t i = 0; i < c->count; i++)
        if (mha_schedule_same(&c->list[i]->schedule, &choice)) return c->list[i];
    return NULL;
}

static void print_schedule(const char *what, const comparison *c, const timed *t) {
    char text[600];
    const mha_costs k = mha_costs_of_call(&c->of->context, &t->schedule);
    mha_schedule_print(&t->schedule, text, sizeof text);
    printf("    %-9s %8.2f us, cost %9.0f = %.0f + %.0f + %.0f + %.0f + %.0f  %s\n", what, t->us, t->cost, k.scores,
           k.softmax, k.values, k.tasks, k.products, text + strlen("strategy="));
}

static void judge_case(const fitter *f, const comparison *c, summary *s) {
    const timed *cheapest = price(c), *choice = choice_of(c), *best = c->list[0];
    const double excess = cheapest->us / c->best - 1, of_choice = choice ? choice->us / c->best - 1 : 0;
    s->count++;
    s->sum += excess;
    s->worst = fmax(s->worst, excess);
    if (choice) {
        s->chosen++;
        s->chosen_sum += of_choice;
        s->chosen_worst = fmax(s->chosen_worst, of_choice);
    }
    if (!f->is_verbose) return;
    for (size_t i = 0; i < c->count; i++)
        if (c->list[i]->us < best->us) best = c->list[i];
    printf("%-12s %-4s %6.1f %% %6.1f %%  %s\n", c->of->context.machine.target->name, word_of(c->strategies),
           100 * excess, choice ? 100 * of_choice : NAN, c->of->text);
    print_schedule("cheapest", c, cheapest);
    print_schedule("fastest", c, best);
    if (choice && choice != cheapest) print_schedule("choice", c, choice);
}

static void judge(const fitter *f, const char *target, unsigned strategies) {
    summary s = {0};
    for (size_t i = 0; i < f->num_cases; i++)
        if (is_of(f->cases[i], target) && f->cases[i]->strategies == strategies) judge_case(f, f->cases[i], &s);
    if (!s.count) return;
    printf("excess %-12s %-4s cheapest of %3zu problems: mean %5.2f %% worst %5.1f %%; ", target, word_of(strategies),
           s.count, 100 * s.sum / (double)s.count, 100 * s.worst);
    printf("choice of %3zu: mean %5.2f %% worst %5.1f %%\n", s.chosen,
           s.chosen ? 100 * s.chosen_sum / (double)s.chosen : 0, 100 * s.chosen_worst);
}

static double microseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void time_choices(const fitter *f) {
    double sum = 0, longest = 0;
    for (size_t i = 0; i < f->num_problems; i++) {
        mha_schedule s;
        double least = INFINITY;
        const problem *p = f->problems[i];
        for (int k = 0; k < 3; k++) {
            const double from = microseconds();
            mha_choose(mha_read(&p->canonical), p->context.machine.target, p->context.machine.description, &s);
            least = fmin(least, microseconds() - from);
        }
        sum += least;
        longest = fmax(longest, least);
    }
    printf("a choice takes %.0f us in the mean, %.0f at most\n", sum / (double)f->num_problems, longest);
}

/* How far the choices of a target are from the best schedule timed, of any strategy, and the problem of the worst. A
 * choice that was not timed is named: nobody knows what it takes. */
static void weigh_choices(const fitter *f, const char *target) {
    size_t count = 0, unknown = 0;
    double sum = 0, worst = -INFINITY;
    const char *where = "";
    for (size_t i = 0; i < f->num_problems; i++) {
        problem *const p = f->problems[i];
        if (strcmp(p->context.machine.target->name, target)) continue;
        comparison all = {.of = p};
        for (; all.count < p->count; all.count++) all.list[all.count] = &p->list[all.count];
        const timed *const choice = all.count < 2 ? NULL : choice_of(&all); /* one timing has nothing to be held to */
        const double excess = choice ? choice->us / second_fastest(&all) - 1 : 0;
        if (!choice) printf("not timed\t%s\t%s\n", target, p->text);
        count++;
        unknown += !choice;
        sum += excess;
        if (choice && excess > worst) worst = excess, where = p->text;
    }
    if (count > unknown)
        printf("choices\t%s\t%zu\t%.3f\t%.2f\t%s\n", target, count - unknown, 100 * sum / (double)(count - unknown),
               100 * worst, where);
}

/* Lines for cost_sample: each problem of a target, its choice, and the best three that are known. */
static void print_choices(const fitter *f) {
    enum { BEST = 3 };
    for (size_t i = 0; i < f->num_problems; i++) {
        const problem *p = f->problems[i];
        const mha_machine *m = &p->context.machine;
        mha_schedule choice;
        char text[600];
        double last = 0;
        if (strcmp(m->target->name, f->choices)) continue;
        mha_choose(mha_read(&p->canonical), m->target, m->description, &choice);
        mha_schedule_print(&choice, text, sizeof text);
        printf("%s\t%s", p->text, text);
        for (int k = 0; k < BEST; k++) {
            const timed *next = NULL;
            for (size_t n = 0; n < p->count; n++)
                if (p->list[n].us > last && (!next || p->list[n].us < next->us)) next = &p->list[n];
            if (!next) break;
            last = next->us;
            mha_schedule_print(&next->schedule, text, sizeof text);
            printf("\t%s", text);
        }
        putchar('\n');
    }
}

/* ---- Arguments ---- */

static error_t parse(int key, char *argument, struct argp_state *state) {
    fitter *const f = state->input;
    switch (key) {
    case 'c': f->choices = argument; return 0;
    case 'f': f->target = argument; return 0;
    case 'o': f->only = argument; return 0;
    case 'p': f->passes = atoi(argument); return 0;
    case 'v': f->is_verbose = true; return 0;
    case 'w': f->weighs = true; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv) {
    static const struct argp_option options[] = {
        {"choices", 'c', "TARGET", 0, "Print what is to be timed next for this target, in the form of cost_sample", 0},
        {"fit", 'f', "TARGET", 0, "Fit to the cases of this target, or of all; without it constants stay", 0},
        {"only", 'o', "PREFIX", 0, "Constants that may change, by the beginning of their names", 0},
        {"passes", 'p', "N", 0, "Passes over the constants at most (default 20)", 0},
        {"verbose", 'v', NULL, 0, "Each case", 0},
        {"weigh", 'w', NULL, 0, "Of each target only how far its choices are from the best, in columns", 0},
        {0},
    };
    static const struct argp argp = {options, parse, NULL, "Fits the cost of schedules to timings on stdin.",
                                     NULL,    NULL,  NULL};
    enum { Q = 1U << MHA_Q_LANES, D = 1U << MHA_D_LANES };
    static const unsigned kinds[] = {Q, D, Q | D};
    fitter f = {.only = "", .passes = 20};
    char *const line = allocate(LINE_BYTES);
    argp_parse(&argp, argc, argv, 0, NULL, &f);
    while (fgets(line, LINE_BYTES, stdin)) read_line(&f, line);
    for (size_t i = 0; i < f.num_problems; i++)
        for (size_t k = 0; k < 3; k++) add_case(&f, f.problems[i], kinds[k]);
    if (f.target) fit(&f);
    if (f.choices) {
        print_choices(&f);
        return 0;
    }
    for (const at_target *target = at_targets(); target->name; target++) {
        for (size_t k = 0; !f.weighs && k < 3; k++) judge(&f, target->name, kinds[k]);
        if (f.weighs) weigh_choices(&f, target->name);
    }
    if (f.num_problems) time_choices(&f);
    return 0;
}
