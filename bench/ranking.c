/* How good tuning is, and how good the rules are without it: every schedule that the tuner's model proposes is timed.
 * make ranking runs it, and ranking.py makes a table of what it prints.
 *
 * Three stages, each with fewer schedules and more turns, interleaved with what attune chooses untuned: all of them on
 * samples as the tuner takes them, and as many as --others says of those that the model leaves out; the best 64 of
 * these; and at last, on whole calls, the best eight beside the choice without tuning and what --runs searches of
 * --budget seconds found, each in a context that knows nothing. It is the whole calls that count. One JSON object a
 * problem on stdout, progress on stderr. With --most=0 --others=0 --longer=30 a long search stands for all schedules.
 */
#include "common/tensors.h"

#include "schedule/schedule.h"
#include "tune/candidates.h"
#include "tune/space.h"

#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 16, FINE = 64, FINAL = 8, MOST_RUNS = 16, MOST_SCHEDULES = 1 << 18, MOST_ROUNDS = 201 };

typedef struct ranked {
    mha_schedule schedule;
    double cost;   /* as the model has it */
    bool is_other; /* left out by the model */
    double ratio;  /* to the time without tuning, by the last stage that it took part in; infinite: failed */
    attune_kernel *kernel;
} ranked;

typedef struct ranking {
    attune_context *context;
    attune_problem canonical;
    tensors tensors;
    tune_runner runner;
    mha_machine machine;
    mha_schedule untuned;
    attune_kernel *reference; /* of that */
    ranked *all;              /* in the order of the last stage */
    size_t count, legal;      /* `legal`: how many schedules there are in all, without the hopeless ones */
    size_t untuned_rank;      /* among the samples of what the model proposes, from 1 */
} ranking;

typedef struct ranking_options {
    double budget, longer, seconds;
    size_t runs, most, others;
    uint32_t threads;
    char **problems;
    int num_problems;
} ranking_options;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const char *doing) {
    fprintf(stderr, "ranking: %s: %s\n", doing, attune_last_message());
    exit(1);
}

static void check(attune_status status, const at_error *err, const char *doing) {
    if (!status) return;
    fprintf(stderr, "ranking: %s: %s\n", doing, err->message);
    exit(1);
}

static int by_ratio(const void *x, const void *y) {
    const ranked *a = x, *b = y;
    return (a->ratio > b->ratio) - (a->ratio < b->ratio);
}

static int by_value(const void *x, const void *y) {
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, by_value);
    return values[count / 2];
}

/* ---- Kernels ---- */

typedef struct job {
    const ranking *r;
    ranked *entries;
    size_t count;
    atomic_size_t next;
} job;

static void *compile_entries(void *argument) {
    job *j = argument;
    for (size_t i = j->next++; i < j->count; i = j->next++) {
        at_error err = {0};
        at_kernel_make_uncached(j->r->context, at_attention_of(&j->r->canonical), &j->entries[i].schedule,
                                &j->entries[i].kernel, &err);
    }
    return NULL;
}

static void compile(const ranking *r, ranked *entries, size_t count) {
    job j = {.r = r, .entries = entries, .count = count};
    pthread_t other;
    const bool has_other = !pthread_create(&other, NULL, compile_entries, &j);
    compile_entries(&j);
    if (has_other) pthread_join(other, NULL);
}

static void drop(ranked *entries, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (entries[i].kernel) at_kernel_destroy(&entries[i].kernel->node);
        entries[i].kernel = NULL;
    }
}

/* ---- Stages ---- */

static void sample(ranking *r, const attune_kernel *kernel, tune_times *times) {
    at_error err = {0};
    check(tune_runner_time(&r->runner, kernel, times, &err), &err, "timing");
}

/* The shortest of three samples beside the shortest of three of the reference. */
static double coarse_ratio(ranking *r, const attune_kernel *kernel) {
    tune_times mine = {0}, usual = {0};
    sample(r, kernel, &(tune_times){0});
    for (int i = 0; i < 3; i++) {
        sample(r, r->reference, &usual);
        sample(r, kernel, &mine);
    }
    return tune_times_sum(&mine) / tune_times_sum(&usual);
}

static void rank_all(ranking *r) {
    const double began = now();
    for (size_t i = 0; i < r->count; i += BATCH) {
        const size_t some = r->count - i < BATCH ? r->count - i : BATCH;
        compile(r, r->all + i, some);
        for (size_t k = i; k < i + some; k++)
            r->all[k].ratio = r->all[k].kernel ? coarse_ratio(r, r->all[k].kernel) : INFINITY;
        drop(r->all + i, some);
        if (isatty(STDERR_FILENO))
            fprintf(stderr, "\r%zu of %zu schedules, %.0f s left ", i + some, r->count,
                    (now() - began) / (double)(i + some) * (double)(r->count - i - some));
    }
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r%60s\r", "");
    qsort(r->all, r->count, sizeof *r->all, by_ratio);
    r->untuned_rank = 1;
    for (size_t i = 0; i < r->count; i++) r->untuned_rank += !r->all[i].is_other && r->all[i].ratio < 1;
}

static void rank_best(ranking *r) {
    enum { ROUNDS = 15 };
    const size_t count = r->count < FINE ? r->count : FINE;
    double ratios[FINE][ROUNDS];
    compile(r, r->all, count);
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < count; i++)
            if (r->all[i].kernel) ratios[i][round] = coarse_ratio(r, r->all[i].kernel);
    for (size_t i = 0; i < count; i++) r->all[i].ratio = r->all[i].kernel ? median(ratios[i], ROUNDS) : INFINITY;
    drop(r->all, count);
    qsort(r->all, count, sizeof *r->all, by_ratio);
}

/* Seconds of one whole call, of `times` in a row. */
static double call(ranking *r, const attune_kernel *kernel, int64_t times) {
    tune_times taken = {0};
    r->runner.share = 1;
    r->runner.repeats = times;
    sample(r, kernel, &taken);
    return tune_times_sum(&taken) / (double)times;
}

/* The first of the entries with this one's schedule. */
static size_t first_alike(const ranked *entries, size_t i) {
    size_t k = 0;
    while (!mha_schedule_same(&entries[k].schedule, &entries[i].schedule)) k++;
    return k;
}

/* Whole calls in turns, for about `seconds` in all. Returns seconds of a call without tuning, which is entries[0]. Who
 * has the schedule of one before has its time: two kernels of equal bytes differ by where they lie in memory alone. */
static double rank_calls(ranking *r, ranked *entries, size_t count, double seconds) {
    enum { FEWEST = 5 };
    const double least = 1e-3, once = (call(r, r->reference, 1), call(r, r->reference, 1));
    const int64_t times = once < least ? (int64_t)(least / once) + 1 : 1;
    size_t rounds = (size_t)(seconds / ((double)count * once * (double)times));
    rounds = rounds < FEWEST ? FEWEST : rounds > MOST_ROUNDS ? MOST_ROUNDS : rounds;
    double *const ratios = calloc(count * rounds, sizeof *ratios), usual[MOST_ROUNDS];
    if (!ratios) exit(1);
    compile(r, entries, count);
    for (size_t round = 0; round < rounds; round++)
        for (size_t i = 0; i < count; i++) {
            const size_t at = (i + round) % count; /* another one begins */
            if (first_alike(entries, at) < at) continue;
            const attune_kernel *kernel = entries[at].kernel;
            ratios[at * rounds + round] = kernel ? call(r, kernel, times) : INFINITY;
        }
    for (size_t round = 0; round < rounds; round++) usual[round] = ratios[round];
    for (size_t i = 0; i < count; i++) {
        const size_t alike = first_alike(entries, i);
        for (size_t round = 0; round < rounds; round++) ratios[i * rounds + round] /= usual[round];
        entries[i].ratio = alike < i ? entries[alike].ratio : median(ratios + i * rounds, rounds);
    }
    drop(entries, count);
    free(ratios);
    return median(usual, rounds);
}

/* ---- One problem ---- */

static void open_ranking(ranking *r, const char *text, const ranking_options *o) {
    attune_context_options options = {
        .struct_size = sizeof options, .cache_dir = "", .cache_base = "", .max_workers = o->threads};
    attune_problem problem;
    at_error err = {0};
    *r = (ranking){.untuned = {0}};
    if (!problem_from_text(text, &problem)) exit(2);
    if (attune_context_create(&options, &r->context)) die("creating a context");
    check(mha_canonicalize(&problem, &r->canonical, &err), &err, text);
    if (!tensors_create(&r->tensors, &problem)) exit(1);
    r->tensors.fills_up = true;
    if (!tensors_fill(&r->tensors, INPUT_ORDINARY, 1)) exit(1);
    attune_arguments arguments;
    tensors_arguments(&r->tensors, &arguments);
    r->machine = tune_machine_of(r->context);
    mha_choose(mha_read(&r->canonical), r->machine.target, r->machine.description, &r->untuned);
    check(tune_runner_init(&r->runner, r->context,
                           &(tune_task){at_attention_of(&r->canonical), .arguments = &arguments}, &err),
          &err, "preparing");
    check(at_kernel_make_uncached(r->context, at_attention_of(&r->canonical), &r->untuned, &r->reference, &err), &err,
          "compiling");
    check(tune_runner_calibrate(&r->runner, r->reference, &err), &err, "calibrating");
}

static uint64_t next_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* The `most` that the model likes best, and `others` of the rest, evenly drawn. */
static void list_schedules(ranking *r, size_t most, size_t others) {
    tune_candidate *const list = calloc(MOST_SCHEDULES, sizeof *list);
    uint64_t state = 1;
    if (!list) exit(1);
    r->legal = tune_space(&r->canonical, &r->machine, list, MOST_SCHEDULES);
    if (most > r->legal) most = r->legal;
    if (others > r->legal - most) others = r->legal - most;
    r->count = most + others;
    for (size_t i = most; i < r->count; i++) {
        const size_t from = i + (size_t)(next_random(&state) % (r->legal - i));
        const tune_candidate drawn = list[from];
        list[from] = list[i];
        list[i] = drawn;
    }
    r->all = calloc(r->count + 1, sizeof *r->all);
    if (!r->all) exit(1);
    for (size_t i = 0; i < r->count; i++) {
        r->all[i].schedule = list[i].schedule;
        r->all[i].cost = list[i].cost;
        r->all[i].is_other = i >= most;
    }
    free(list);
}

/* What a search finds that knows nothing before. */
static mha_schedule tuned_schedule(const ranking *r, uint32_t threads, double budget, uint64_t *measured) {
    attune_context_options options = {
        .struct_size = sizeof options, .cache_dir = "", .cache_base = "", .max_workers = threads};
    attune_context *context;
    attune_tune_options how = ATTUNE_TUNE_OPTIONS_INIT;
    attune_tune_result result = {.struct_size = sizeof result};
    attune_arguments arguments;
    how.budget_seconds = budget;
    tensors_arguments(&r->tensors, &arguments);
    if (attune_context_create(&options, &context)) die("creating a context");
    if (attune_tune(context, &r->tensors.problem, &arguments, &how, &result)) die("tuning");
    attune_context_destroy(context);
    *measured = result.measured;
    mha_schedule winner = {0};
    if (mha_schedule_parse(result.schedule, &winner, NULL)) die("reading the winner");
    return winner;
}

static json_t *describe(const ranked *e) {
    json_t *const object = json_pack("{s:f, s:s, s:f, s:b}", "ratio", e->ratio, "schedule",
                                     mha_schedule_text(&e->schedule).text, "cost", e->cost, "is_other", e->is_other);
    return object;
}

/* Those that compiled. */
static json_t *describe_list(const ranked *entries, size_t count) {
    json_t *const list = json_array();
    for (size_t i = 0; i < count; i++)
        if (isfinite(entries[i].ratio)) json_array_append_new(list, describe(&entries[i]));
    return list;
}

static void rank_problem(const char *text, const ranking_options *o) {
    ranking r;
    ranked final[1 + MOST_RUNS + FINAL + 1] = {0};
    size_t count = 1;
    json_t *const measured = json_array();
    open_ranking(&r, text, o);
    list_schedules(&r, o->most, o->others);
    const double began = now();
    rank_all(&r);
    json_t *const all = describe_list(r.all, r.count);
    rank_best(&r);
    const double searched = now() - began;
    final[0].schedule = r.untuned;
    for (; count <= o->runs; count++) {
        uint64_t schedules;
        final[count].schedule = tuned_schedule(&r, o->threads, o->budget, &schedules);
        json_array_append_new(measured, json_integer((json_int_t)schedules));
    }
    for (size_t i = 0; i < r.count && i < FINAL; i++) final[count++] = r.all[i];
    if (o->longer > 0) final[count++].schedule = tuned_schedule(&r, o->threads, o->longer, &(uint64_t){0});
    const double call_seconds = rank_calls(&r, final, count, o->seconds);
    ranked *const best = final + 1 + o->runs;
    qsort(best, count - 1 - o->runs, sizeof *best, by_ratio);
    char *const name = problem_text(&r.tensors.problem);
    json_t *const object =
        json_pack("{s:s, s:I, s:I, s:I, s:f, s:f, s:I, s:f, s:o, s:o, s:o, s:o, s:o}", "problem", name, "threads",
                  (json_int_t)o->threads, "legal", (json_int_t)r.legal, "timed", (json_int_t)r.count, "seconds",
                  searched, "budget", o->budget, "untuned_rank", (json_int_t)r.untuned_rank, "untuned_us",
                  call_seconds * 1e6, "untuned", describe(&final[0]), "tuned", describe_list(final + 1, o->runs),
                  "measured", measured, "best", describe_list(best, count - 1 - o->runs), "all", all);
    json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    putchar('\n');
    fflush(stdout);
    json_decref(object);
    free(name);
    free(r.all);
    at_kernel_destroy(&r.reference->node);
    tune_runner_free(&r.runner);
    tensors_free(&r.tensors);
    attune_context_destroy(r.context);
}

/* ---- Arguments ---- */

static const struct argp_option arguments_of[] = {
    {"budget", 'b', "SECONDS", 0, "Of each search by the tuner (default 5)", 0},
    {"runs", 'r', "N", 0, "Searches by the tuner (default 3, at most 16)", 0},
    {"threads", 't', "N", 0, "Threads that run a kernel (default 1)", 0},
    {"most", 'm', "N", 0, "The N schedules that the model likes best (default 3000, as the tuner)", 0},
    {"others", 'o', "N", 0, "And N of the others, to see what the model is worth (default 1000)", 0},
    {"longer", 'l', "SECONDS", 0, "One search more, so long; what it finds counts as one of the best (default none)",
     0},
    {"seconds", 's', "SECONDS", 0, "Of the last stage (default 10)", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    ranking_options *const o = state->input;
    switch (key) {
    case 'b': o->budget = tool_parse_seconds(state, "budget", argument, 0.05, 1e6); return 0;
    case 'l': o->longer = tool_parse_seconds(state, "longer", argument, 0.05, 1e6); return 0;
    case 'r': o->runs = (size_t)tool_parse_integer(state, "runs", argument, 0, MOST_RUNS); return 0;
    case 't': o->threads = (uint32_t)tool_parse_integer(state, "threads", argument, 1, 1024); return 0;
    case 'm': o->most = (size_t)tool_parse_integer(state, "most", argument, 0, MOST_SCHEDULES); return 0;
    case 'o': o->others = (size_t)tool_parse_integer(state, "others", argument, 0, MOST_SCHEDULES); return 0;
    case 's': o->seconds = tool_parse_seconds(state, "seconds", argument, 0.05, 1e6); return 0;
    case ARGP_KEY_ARGS:
        o->problems = state->argv + state->next;
        o->num_problems = state->argc - state->next;
        return 0;
    case ARGP_KEY_NO_ARGS: argp_error(state, "a PROBLEM is needed"); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv) {
    static const struct argp argp = {
        arguments_of, parse, "PROBLEM...", "Times every schedule that the tuner's model proposes.", NULL, NULL, NULL};
    ranking_options o = {.budget = 5, .seconds = 10, .runs = 3, .most = 3000, .others = 1000, .threads = 1};
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    for (int i = 0; i < o.num_problems; i++) rank_problem(o.problems[i], &o);
    return 0;
}
