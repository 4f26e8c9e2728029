/* Batches are filled, compiled in parallel and then timed, one kernel after the other, against the best so far. A
 * chain of lucky winners is kept out by comparing each with the first schedule too, and the last one once more. */
#include "tune/search.h"
#include "schedule/schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH = 12, SPACE = 3000, MAX_TRIALS = 4096, MAX_COMPILERS = 16 };

/* Every candidate is checked before it is timed if a check takes less than this, which is less than compiling.
 * Otherwise only winners are checked. */
static const double CHEAP = 3e-3;

/* The part of the measurements that were interrupted, beyond which the machine is busy. */
static const double BUSY = 0.05;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double seconds_left(const tune_search *s) { return s->began + s->options->budget_seconds - now(); }

static double interrupted_part(const tune_search *s) {
    return s->runner.timed ? (double)s->runner.interrupted / (double)s->runner.timed : 0;
}

/* Whether a tenth of the budget is enough to confirm the best by whole calls: samples of two schedules that cut a call
 * in different ways are not always alike. Where other programs interrupt many samples, they interrupt nearly all calls,
 * which are longer: then samples tell more. */
static bool confirms_by_calls(const tune_search *s) {
    const double pairs = 2 * TUNE_ENOUGH_TO_WIN * s->runner.whole;
    if (interrupted_part(s) > BUSY) return false;
    return s->runner.share < 1 && pairs < s->options->budget_seconds / 10;
}

/* The time that the end needs: pairs that confirm the best, all of them or at least those that a tenth of the budget
 * is enough for; and its check. Where nothing has won, a few pairs of the first schedule with itself. */
static double reserve(const tune_search *s) {
    const double tenth = s->options->budget_seconds / 10;
    if (s->best == s->first) return fmin(TUNE_ENOUGH_TO_WIN * s->pair_seconds, tenth);
    return (confirms_by_calls(s) ? tenth : fmin(TUNE_MAX_PAIRS * s->pair_seconds, tenth)) + s->late_check;
}

static bool is_over(const tune_search *s) { return s->is_stopped || seconds_left(s) <= reserve(s); }

static void report(tune_search *s) {
    if (!s->options->progress) return;
    const attune_tune_progress progress = {.struct_size = sizeof progress,
                                           .space = s->space_count,
                                           .measured = s->num_trials,
                                           .best_ratio = s->best_ratio,
                                           .seconds = now() - s->began,
                                           .budget_seconds = s->options->budget_seconds};
    if (s->options->progress(s->options->progress_user, &progress)) s->is_stopped = true;
}

/* ---- Schedules that have been tried ---- */

static bool was_seen(const tune_search *s, const mha_schedule *schedule) {
    for (size_t i = 0; i < s->num_seen; i++)
        if (mha_schedule_same(&s->seen[i], schedule)) return true;
    return false;
}

/* false: tried already, or there is no more room. */
static bool mark(tune_search *s, const mha_schedule *schedule) {
    if (s->num_seen == MAX_TRIALS || was_seen(s, schedule)) return false;
    s->seen[s->num_seen++] = *schedule;
    return true;
}

/* ---- A batch ---- */

typedef struct batch_item {
    mha_schedule schedule;
    attune_kernel *kernel;
    at_error error;
} batch_item;

typedef struct batch {
    const tune_search *search;
    batch_item items[BATCH];
    int count;
    atomic_int next;
} batch;

static size_t neighbours(at_operation o, const mha_machine *machine, const mha_schedule *schedule,
                         tune_candidate *around, size_t capacity) {
    const at_own *const own = at_own_of(o.op);
    return own ? tune_own_neighbours(own, schedule, around, capacity)
               : tune_neighbours(o.problem, machine, schedule, around, capacity);
}

static size_t space(at_operation o, const mha_machine *machine, tune_candidate *candidates, size_t capacity) {
    const at_own *const own = at_own_of(o.op);
    return own ? tune_own_space(own, candidates, capacity) : tune_space(o.problem, machine, candidates, capacity);
}

static void choose(const tune_search *s, mha_schedule *usual) {
    s->runner.operation.op->schedule_choose(s->runner.operation, s->machine.target, s->machine.description, usual);
}

static void add_neighbours(tune_search *s, batch *b, int most) {
    tune_candidate around[64];
    const size_t count =
        neighbours(s->runner.operation, &s->machine, &s->best_schedule, around, sizeof around / sizeof *around);
    for (size_t i = 0; i < count && b->count < most; i++)
        if (mark(s, &around[i].schedule)) b->items[b->count++].schedule = around[i].schedule;
}

/* Up to two thirds neighbours, the rest as the model proposes. Empty: all has been tried. The first batch is short, so
 * that a short time is enough for some. */
static void fill_batch(tune_search *s, batch *b) {
    enum { FIRST = 4 };
    const int most = s->num_seen > 1 ? BATCH : FIRST;
    mha_schedule usual;
    memset(b, 0, sizeof *b);
    b->search = s;
    /* A search that began with an earlier winner, of here or nearby, compares it with the usual choice first. */
    choose(s, &usual);
    if (mark(s, &usual)) b->items[b->count++].schedule = usual;
    for (int wanted = most / 3; wanted > 0 && s->space_next < s->space_count; s->space_next++) {
        const mha_schedule *schedule = &s->space[s->space_next].schedule;
        if (!mark(s, schedule)) continue;
        b->items[b->count++].schedule = *schedule;
        wanted--;
    }
    add_neighbours(s, b, most);
    for (; b->count < most && s->space_next < s->space_count; s->space_next++)
        if (mark(s, &s->space[s->space_next].schedule))
            b->items[b->count++].schedule = s->space[s->space_next].schedule;
}

static void *compile_entries(void *argument) {
    batch *b = argument;
    const tune_runner *r = &b->search->runner;
    for (int i; !is_over(b->search) && (i = atomic_fetch_add(&b->next, 1)) < b->count;) {
        batch_item *e = &b->items[i];
        at_kernel_make_uncached(r->context, r->operation, &e->schedule, &e->kernel, &e->error);
    }
    return NULL;
}

/* On as many CPUs as the process may use; the calling thread is one of them. */
static void compile_batch(batch *b) {
    pthread_t threads[MAX_COMPILERS];
    uint32_t wanted = at_cpus_allowed() - 1, started = 0;
    if (wanted > MAX_COMPILERS) wanted = MAX_COMPILERS;
    while (started < wanted && !pthread_create(&threads[started], NULL, compile_entries, b)) started++;
    compile_entries(b);
    while (started) pthread_join(threads[--started], NULL);
}

static void free_kernel(attune_kernel **kernel) {
    if (*kernel) at_kernel_destroy(&(*kernel)->node);
    *kernel = NULL;
}

/* ---- Timing ---- */

static int by_value(const void *x, const void *y) {
    const double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

/* Two kernels that are compared, and the time of each in each pair. */
typedef struct comparison {
    const attune_kernel *candidate, *incumbent;
    tune_pairs pairs;
    double candidate_seconds[TUNE_MAX_PAIRS], incumbent_seconds[TUNE_MAX_PAIRS];
} comparison;

/* Times one more pair of samples. Which side goes first alternates. */
static attune_status time_pair(tune_search *s, comparison *c, at_error *err) {
    tune_pairs *const pairs = &c->pairs;
    const bool swap = pairs->count % 2;
    const double start = now();
    tune_times times[2] = {0};
    for (int i = 0; i < 2 * s->runner.samples; i++) {
        const int side = (i % 2) ^ swap;
        const attune_kernel *const kernel = side ? c->incumbent : c->candidate;
        const attune_status status = tune_runner_time(&s->runner, kernel, &times[side], err);
        if (status) return status;
    }
    s->pair_seconds = fmax(s->pair_seconds, now() - start);
    const double candidate = tune_times_sum(&times[0]), incumbent = tune_times_sum(&times[1]);
    c->candidate_seconds[pairs->count] = candidate;
    c->incumbent_seconds[pairs->count] = incumbent;
    pairs->logs[pairs->count++] = log(candidate / incumbent);
    tune_noise_add(&s->noise, pairs);
    return ATTUNE_OK;
}

/* The values are put in order. */
static double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, by_value);
    return values[count / 2];
}

static void keep_trial(tune_search *s, const mha_schedule *schedule, comparison *c, double incumbent_ratio) {
    s->trials[s->num_trials++] = (tune_trial){.schedule = *schedule,
                                              .seconds = median(c->candidate_seconds, c->pairs.count),
                                              .ratio = tune_pairs_ratio(&c->pairs).ratio * incumbent_ratio,
                                              .pairs = (uint32_t)c->pairs.count};
}

/* Times the candidate against the best so far until the matter is decided or the time is over. */
static attune_status judge(tune_search *s, const batch_item *e, tune_verdict *verdict, at_error *err) {
    comparison c = {.candidate = e->kernel, .incumbent = s->best};
    tune_times warm = {0};
    attune_status status = tune_runner_time(&s->runner, e->kernel, &warm, err);
    *verdict = TUNE_GO_ON;
    while (!status && *verdict == TUNE_GO_ON && (!c.pairs.count || !is_over(s))) {
        status = time_pair(s, &c, err);
        if (!status) *verdict = tune_pairs_judge(&c.pairs, tune_noise_of(&s->noise));
    }
    if (!status) keep_trial(s, &e->schedule, &c, s->best_ratio);
    return status;
}

/* Schedules of an operator of the user take the same call and give the same bits; attention's may differ in bits. */
static attune_status is_like_first(tune_search *s, const attune_kernel *kernel, bool *alike, at_error *err) {
    *alike = true;
    if (kernel == s->first || !at_own_of(s->runner.operation.op)) return ATTUNE_OK;
    return tune_runner_compare(&s->runner, kernel, s->first, alike, err);
}

/* Names the first one. */
static void count_wrong(tune_search *s, const attune_kernel *kernel) {
    attune_tune_result *const result = s->result;
    if (!result->wrong++)
        s->runner.operation.op->schedule_print(s->runner.operation, &kernel->schedule, result->wrong_schedule,
                                               sizeof result->wrong_schedule);
}

/* A kernel whose bits are not the interpreter's, or which the interpreter refuses, is a bug that the result names: one
 * of attune's, or where only the usual schedule is right, one of the operator's. */
static attune_status is_right(tune_search *s, const attune_kernel *kernel, bool *right, at_error *err) {
    attune_status status = tune_runner_check(&s->runner, kernel, kernel->ir->kernel, right, err);
    if (status == ATTUNE_CHECK_FAILED) {
        *right = false;
        *err = (at_error){0};
        status = ATTUNE_OK;
    } else if (!status && *right) {
        status = is_like_first(s, kernel, right, err);
    }
    if (!status && !*right) count_wrong(s, kernel);
    return status;
}

/* Checks at once if that takes no more than a twentieth of the budget. *late: seconds of a check that is left to the
 * end. */
static attune_status is_right_so_far(tune_search *s, const attune_kernel *kernel, bool *right, double *late,
                                     at_error *err) {
    double cost;
    const attune_status status = tune_runner_check_cost(&s->runner, kernel, &cost, err);
    if (status) return status;
    *right = true;
    *late = cost > s->options->budget_seconds / 20 ? cost : 0;
    if (kernel == s->first) s->checks_all = cost < CHEAP;
    return *late ? ATTUNE_OK : is_right(s, kernel, right, err);
}

static void take_the_place(tune_search *s, batch_item *e, double ratio, double late) {
    if (s->best != s->first) free_kernel(&s->best);
    s->best = e->kernel;
    s->best_schedule = e->schedule;
    s->best_ratio = ratio;
    s->late_check = late;
    e->kernel = NULL;
}

/* A winner was also lucky, and a chain of winners would be lucky many times over. So each has to be faster than the one
 * before by a second measurement, against the schedule that the search began with. */
static attune_status compare_with_first(tune_search *s, const batch_item *e, double *ratio, at_error *err) {
    enum { PAIRS = 9 };
    comparison c = {.candidate = e->kernel, .incumbent = s->first};
    attune_status status = ATTUNE_OK;
    while (!status && c.pairs.count < PAIRS && (!c.pairs.count || !is_over(s))) status = time_pair(s, &c, err);
    *ratio = tune_pairs_ratio(&c.pairs).ratio;
    return status;
}

static attune_status try_item(tune_search *s, batch_item *e, at_error *err) {
    tune_verdict verdict;
    double ratio, late;
    bool right = false;
    if (!e->kernel) {
        if (e->error.status == ATTUNE_CODEGEN_MISSING) /* as it will be for all others */
            return at_fail(err, e->error.status, "%s", e->error.message);
        s->result->failed++;
        return ATTUNE_OK;
    }
    if (at_own_of(s->runner.operation.op) && !tune_runner_can_run(&s->runner, e->kernel)) {
        count_wrong(s, e->kernel);
        return ATTUNE_OK;
    }
    attune_status status = s->checks_all ? is_right(s, e->kernel, &right, err) : ATTUNE_OK;
    if (status || (s->checks_all && !right)) return status;
    status = judge(s, e, &verdict, err);
    if (status || verdict != TUNE_FASTER) return status;
    status = compare_with_first(s, e, &ratio, err);
    if (status || ratio >= s->best_ratio) return status;
    status = is_right_so_far(s, e->kernel, &right, &late, err);
    if (!status && right) take_the_place(s, e, ratio, late);
    return status;
}

static attune_status try_batch(tune_search *s, batch *b, at_error *err) {
    attune_status status = ATTUNE_OK;
    for (int i = 0; i < b->count; i++) {
        if (!status && !is_over(s)) {
            status = try_item(s, &b->items[i], err);
            report(s);
        }
        free_kernel(&b->items[i].kernel);
    }
    return status;
}

/* ---- From beginning to end ---- */

/* The median of so many measurements, by the call, and the part of it within which half of them lie. */
static void tell_times(const tune_search *s, double *seconds, size_t count, double *middle, double *spread) {
    if (!count) return;
    const double m = median(seconds, count);
    for (size_t i = 0; i < count; i++) seconds[i] = fabs(seconds[i] - m);
    *middle = m / (double)(s->runner.share < 1 ? 1 : s->runner.repeats);
    *spread = median(seconds, count) / m;
}

/* How sure the result is, and how it was measured. The search cannot find a gain that its last comparison cannot
 * confirm. That one has as many pairs as fit in a tenth of the budget, and a noise of its own. */
static void tell_noise(const tune_search *s, const comparison *last) {
    attune_tune_result *const result = s->result;
    const double most = s->options->budget_seconds / 10 / fmax(s->pair_seconds, 1e-9);
    const double pairs = fmax(TUNE_ENOUGH_TO_WIN, fmin(most, TUNE_MAX_PAIRS));
    const bool is_short = last->pairs.count < TUNE_ENOUGH_TO_WIN;
    result->noise = fmax(tune_noise_of(&s->noise), is_short ? 0 : tune_pairs_deviation(&last->pairs));
    result->detectable = is_short || result->noise <= 0 ? 1 : tune_detectable(result->noise, (size_t)pairs);
    result->interrupted = interrupted_part(s);
    result->threads = s->runner.context->team.max_workers;
}

/* Pairs of the best with the first, or of that with itself. More than usual are for ratios that noise hides. */
static bool wants_more(const tune_search *s, const comparison *c) {
    const size_t n = c->pairs.count;
    if (s->best == s->first) return n < TUNE_ENOUGH_TO_WIN;
    return n < TUNE_USUAL_PAIRS || (n < TUNE_MAX_PAIRS && tune_pairs_ratio(&c->pairs).high >= 1);
}

/* The winner of many comparisons is also the luckiest. It must win once more, against the schedule that the search
 * began with, in as many pairs as there is time for. */
static attune_status confirm(tune_search *s, at_error *err) {
    comparison c = {.candidate = s->best, .incumbent = s->first};
    attune_tune_result *const result = s->result;
    attune_status status = ATTUNE_OK;
    bool right = true;
    const double overrun = s->options->budget_seconds / 20;
    if (confirms_by_calls(s)) s->runner.share = s->runner.samples = 1;
    while (!status && wants_more(s, &c) && seconds_left(s) + overrun > s->late_check) status = time_pair(s, &c, err);
    if (status) return status;
    const tune_ratio r = s->best == s->first ? (tune_ratio){1, 1, 1} : tune_pairs_ratio(&c.pairs);
    const bool has_won = r.high < 1 && c.pairs.count >= TUNE_ENOUGH_TO_WIN;
    if (has_won && s->late_check) status = is_right(s, s->best, &right, err);
    if (status) return status;
    result->is_faster = has_won && right;
    result->ratio = r.ratio;
    result->ratio_low = r.low;
    result->ratio_high = r.high;
    s->winner = result->is_faster ? s->best_schedule : s->first_schedule;
    tell_noise(s, &c);
    tell_times(s, c.incumbent_seconds, c.pairs.count, &result->seconds_before, &result->spread_before);
    result->seconds_after = result->seconds_before;
    result->spread_after = result->spread_before;
    if (result->is_faster)
        tell_times(s, c.candidate_seconds, c.pairs.count, &result->seconds_after, &result->spread_after);
    return ATTUNE_OK;
}

static attune_status allocate(tune_search *s, at_error *err) {
    const attune_allocator *allocator = &s->runner.context->allocator;
    s->space = at_alloc(allocator, SPACE * sizeof *s->space);
    s->trials = at_alloc(allocator, MAX_TRIALS * sizeof *s->trials);
    s->seen = at_alloc(allocator, MAX_TRIALS * sizeof *s->seen);
    if (s->space && s->trials && s->seen) return ATTUNE_OK;
    return at_fail_memory(err, SPACE * sizeof *s->space);
}

/* Makes the kernel that the others are compared with, and looks at it. */
static attune_status begin_with(tune_search *s, const mha_schedule *begin, bool *right, at_error *err) {
    double late;
    s->best = NULL;
    free_kernel(&s->first);
    attune_status status = at_kernel_make_uncached(s->runner.context, s->runner.operation, begin, &s->first, err);
    if (status) return status;
    s->best = s->first;
    s->best_schedule = s->first_schedule = *begin;
    s->best_ratio = 1;
    mark(s, begin);
    status = tune_runner_calibrate(&s->runner, s->first, err);
    return status ? status : is_right_so_far(s, s->first, right, &late, err);
}

static attune_status fail_usual(const tune_search *s, at_error *err) {
    const char *const with = s->result->wrong_schedule;
    if (at_own_of(s->runner.operation.op))
        return at_fail(err, ATTUNE_CHECK_FAILED,
                       "with the usual numbers of %s machine code and interpreter differ, or the interpreter refuses "
                       "the kernel%s%s",
                       s->runner.operation.op->name, *with ? ": " : "", with);
    return at_fail(
        err, ATTUNE_CHECK_FAILED,
        "this is a bug in attune: with the schedule that attune chose machine code and interpreter differ: %s", with);
}

/* The kernel of a known winner may be wrong, like any other; that of the usual schedule must not be. */
static attune_status begin_search(tune_search *s, const mha_schedule *begin, at_error *err) {
    mha_schedule usual;
    bool right = false;
    attune_status status = allocate(s, err);
    if (!status) status = begin_with(s, begin, &right, err);
    choose(s, &usual);
    const bool has_other = !mha_schedule_same(begin, &usual);
    if (status == ATTUNE_INVALID_PROBLEM && has_other) { /* build refuses it by now */
        *err = (at_error){0};
        status = ATTUNE_OK;
    }
    if (!status && !right && has_other) status = begin_with(s, &usual, &right, err);
    if (status) return status;
    if (!right) return fail_usual(s, err);
    s->space_count = space(s->runner.operation, &s->machine, s->space, SPACE);
    return ATTUNE_OK;
}

attune_status tune_search_run(tune_search *s, attune_context *context, const tune_task *task, const mha_schedule *begin,
                              const attune_tune_options *options, attune_tune_result *result, at_error *err) {
    *s = (tune_search){.options = options, .result = result, .began = now()};
    s->machine = tune_machine_of(context);
    attune_status status = tune_runner_init(&s->runner, context, task, err);
    if (!status) status = begin_search(s, begin, err);
    batch b;
    while (!status && !is_over(s)) {
        fill_batch(s, &b);
        if (!b.count) break;
        compile_batch(&b);
        status = try_batch(s, &b, err);
    }
    if (!status) status = confirm(s, err);
    result->space = s->space_count;
    result->measured = s->num_trials;
    result->seconds = now() - s->began;
    return status;
}

double tune_search_ratio_to_usual(const tune_search *s) {
    mha_schedule usual;
    choose(s, &usual);
    for (size_t i = 0; i < s->num_trials; i++)
        if (mha_schedule_same(&s->trials[i].schedule, &usual)) return s->result->ratio / s->trials[i].ratio;
    return s->result->ratio; /* the search began with it, or came to no end with it */
}

void tune_search_free(tune_search *s) {
    const attune_allocator *allocator = &s->runner.context->allocator;
    if (s->best != s->first) free_kernel(&s->best);
    free_kernel(&s->first);
    at_free(allocator, s->space);
    at_free(allocator, s->trials);
    at_free(allocator, s->seen);
    tune_runner_free(&s->runner);
}
