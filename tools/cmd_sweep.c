/* attune sweep: measures a grid of problems. All kernels are in the cache before the first measurement. */
#include "cache/warming.h"
#include "common/interruption.h"
#include "common/table.h"
#include "measure/bench_json.h"
#include "sweep/grid.h"
#include "sweep/sweep_csv.h"
#include "sweep/sweep_file.h"
#include "sweep/sweep_merge.h"
#include "sweep/sweep_noise.h"
#include "sweep/sweep_table.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { USUAL_LIMIT = 1000, MOST_LIMIT = 10000000, MOST_NAMED = 20 };
#define USUAL_SPREAD 0.1

typedef struct sweep_options {
    tool_common common;
    manifest list; /* of different problems */
    json_t *texts; /* an object with their canonical texts as keys */
    sweep_settings settings;
    uint32_t jobs; /* 0: as many as there are CPUs */
    size_t limit;
    const char *output, *plot;
    double max_spread;        /* a share; noisier problems are measured again. INFINITY: never */
    size_t shard, num_shards; /* the problems shard - 1, shard - 1 + num_shards, …; 0: all */
    bool json, csv, is_cold, is_warm, is_dry;
    const char *grids[64];
    size_t num_grids, refused; /* combinations that are no problems */
} sweep_options;

static const struct argp_option options[] = {
    {"warm", TOOL_KEY_WARM, NULL, 0, "Take kernels from the disk cache, which is filled first (default)", 0},
    {"cold", TOOL_KEY_COLD, NULL, 0, "Compile every kernel anew, without the disk cache", 0},
    {"cold-data", TOOL_KEY_COLD_DATA, NULL, 0, "Tensors come from memory, not from the CPU's caches", 0},
    {"threads", TOOL_KEY_THREADS, "N", 0, "Threads, each on a CPU of its own (default 1)", 0},
    {"samples", TOOL_KEY_SAMPLES, "N", 0, "Samples of each problem (default 10)", 0},
    {"sizes", TOOL_KEY_SIZES, "KEY=N,...", 0, "Values for sizes that are dynamic in the problems", 0},
    {"jobs", TOOL_KEY_JOBS, "N", 0, "Kernels compiled at a time (default: one for each CPU)", 0},
    {"limit", TOOL_KEY_LIMIT, "N", 0, "Refuse grids of more problems (default 1000)", 0},
    {"shard", TOOL_KEY_SHARD, "I/N", 0, "Measure the I-th of N parts of the grid: every N-th problem, from the I-th on",
     0},
    {"dry-run", TOOL_KEY_DRY_RUN, NULL, 0, "Print the problems, and measure nothing", 0},
    {"output", 'o', "FILE", 0, "Write JSON here, after each problem; a file that has results is continued", 0},
    {"max-spread", TOOL_KEY_MAX_SPREAD, "PERCENT", 0,
     "Measure a problem again, up to twice, while its spread is larger (default 10); none: never", 0},
    {"csv", TOOL_KEY_CSV, NULL, 0, "Print CSV: a row for each problem, a column for each of its fields", 0},
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

static double parse_spread(struct argp_state *state, const char *text) {
    char *end = NULL;
    if (strcmp(text, "none") == 0) return INFINITY;
    const double percent = strtod(text, &end);
    if (end == text || (*end && strcmp(end, "%") != 0) || !(percent >= 0 && percent <= 1000))
        argp_error(state, "--max-spread must be a percentage from 0 to 1000, or none, not '%s'", text);
    return percent / 100;
}

static void parse_shard(struct argp_state *state, const char *text, sweep_options *o) {
    const char *const slash = strchr(text, '/');
    const bool is_numbers = !text[strspn(text, "0123456789/")] && slash && !strchr(slash + 1, '/');
    const unsigned long shard = is_numbers ? strtoul(text, NULL, 10) : 0;
    const unsigned long all = shard ? strtoul(slash + 1, NULL, 10) : 0;
    if (!all || shard > all || all > MOST_LIMIT)
        argp_error(state, "--shard must be I/N with I from 1 to N, such as 2/8, not '%s'", text);
    o->shard = shard;
    o->num_shards = all;
}

static error_t parse(int key, char *argument, struct argp_state *state) {
    sweep_options *const o = state->input;
    enum { MAX_GRIDS = sizeof o->grids / sizeof *o->grids };
    sweep_settings *const s = &o->settings;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case TOOL_KEY_WARM: o->is_warm = true; return 0;
    case TOOL_KEY_COLD: o->is_cold = true; return 0;
    case TOOL_KEY_COLD_DATA: s->cold_data = true; return 0;
    case TOOL_KEY_THREADS: s->threads = (uint32_t)tool_parse_integer(state, "threads", argument, 1, 1024); return 0;
    case TOOL_KEY_SAMPLES: s->samples = (size_t)tool_parse_integer(state, "samples", argument, 1, 100000); return 0;
    case TOOL_KEY_JOBS: o->jobs = (uint32_t)tool_parse_integer(state, "jobs", argument, 1, 256); return 0;
    case TOOL_KEY_LIMIT: o->limit = (size_t)tool_parse_integer(state, "limit", argument, 1, MOST_LIMIT); return 0;
    case TOOL_KEY_SIZES:
        if (!sizes_parse(argument, &s->sizes)) exit(TOOL_USAGE);
        return 0;
    case 'o': o->output = argument; return 0;
    case TOOL_KEY_JSON: o->json = true; return 0;
    case TOOL_KEY_CSV: o->csv = true; return 0;
    case TOOL_KEY_SHARD: parse_shard(state, argument, o); return 0;
    case TOOL_KEY_DRY_RUN: o->is_dry = true; return 0;
    case TOOL_KEY_MAX_SPREAD: o->max_spread = parse_spread(state, argument); return 0;
    case ARGP_KEY_ARG:
        if (strcmp(argument, "merge") == 0)
            argp_error(state, "merge must be the first argument: attune sweep merge [OPTION...] FILE...; for a file of "
                              "grids with this name write ./merge");
        if (o->num_grids == MAX_GRIDS) argp_error(state, "at most %d grids fit in one run", MAX_GRIDS);
        o->grids[o->num_grids++] = argument;
        return 0;
    case ARGP_KEY_END:
        if (!o->num_grids) argp_error(state, "a GRID is needed, or a FILE of grids");
        if (o->is_cold && o->is_warm) argp_error(state, "--cold and --warm contradict each other");
        if (o->json && o->csv) argp_error(state, "--json and --csv both want standard output");
        if (o->output && strcmp(o->output, "-") == 0)
            argp_error(state, "-o needs a file; --json prints to standard output");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* ---- Which problems ---- */

/* Whether `count` more problems are allowed; false after a message. */
static bool is_within_limit(const sweep_options *o, size_t count) {
    const size_t all = count > SIZE_MAX - o->list.count ? SIZE_MAX : o->list.count + count;
    if (all <= o->limit) return true;
    if (all == SIZE_MAX)
        tool_error("the grid has more problems than can be counted; the limit is %zu", o->limit);
    else if (all > MOST_LIMIT)
        tool_error("the grid has %zu problems; the limit is %zu, and --limit allows at most %d", all, o->limit,
                   MOST_LIMIT);
    else
        tool_error("the grid has %zu problems, more than the limit of %zu; --limit=%zu allows it", all, o->limit, all);
    return false;
}

/* Removes the problem that was added last if the list had it already, perhaps in other words. */
static bool drop_if_known(sweep_options *o) {
    manifest_kernel *const last = &o->list.kernels[o->list.count - 1];
    char *const text = problem_text(&last->problem);
    const bool is_known = text && json_object_get(o->texts, text);
    const bool good = text && (is_known || json_object_set_new(o->texts, text, json_true()) == 0);
    free(text);
    if (!good) tool_error("out of memory");
    if (is_known) {
        manifest_free_kernel(last);
        o->list.count--;
    }
    return good;
}

/* Whether a combination of values can be a problem. Text that cannot be read is a mistake in all of the grid. */
static bool is_possible(const char *text) {
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    return attune_problem_parse(&problem, text) != ATTUNE_OK || attune_problem_check(&problem) == ATTUNE_OK;
}

static bool add_grid(sweep_options *o, const char *text, const char *file, int line) {
    grid g;
    char message[GRID_MESSAGE];
    bool good = grid_parse(text, &g, message);
    if (!good && line) tool_error("%s, line %d: %s", file, line, message);
    if (!good && !line) tool_error("%.200s: %s", text, message);
    const size_t count = good ? grid_count(&g) : 0;
    good = good && is_within_limit(o, count);
    for (size_t i = 0; good && i < count; i++) {
        char *const problem = grid_problem(&g, i);
        if (!problem) tool_error("out of memory");
        if (problem && count > 1 && !is_possible(problem)) {
            if (o->refused++ < MOST_NAMED) tool_error("%.200s is left out: %s", problem, attune_last_message());
        } else {
            good = problem && manifest_add(&o->list, problem, file, line) && drop_if_known(o);
        }
        free(problem);
    }
    grid_free(&g);
    return good;
}

static bool add_grid_line(void *user, const char *text, const char *file, int line) {
    return add_grid(user, text, file, line);
}

/* Leaves the problems of the shard. */
static bool take_shard(sweep_options *o) {
    const size_t all = o->list.count;
    size_t count = 0;
    if (!o->shard) return true;
    for (size_t i = 0; i < all; i++) {
        manifest_kernel *const wanted = &o->list.kernels[i];
        if (i % o->num_shards == o->shard - 1)
            o->list.kernels[count++] = *wanted;
        else
            manifest_free_kernel(wanted);
    }
    o->list.count = count;
    if (!count) tool_error("shard %zu of %zu has no problem: there are %zu", o->shard, o->num_shards, all);
    return count > 0;
}

static bool add_all(sweep_options *o) {
    o->texts = json_object();
    for (size_t i = 0; i < o->num_grids; i++) {
        const bool is_grid = strchr(o->grids[i], '=') != NULL;
        if (is_grid ? add_grid(o, o->grids[i], NULL, 0) : manifest_each_line(o->grids[i], add_grid_line, o)) continue;
        if (is_grid && tool_looks_cut(o->grids[i], o->num_grids))
            tool_error("arguments are separate grids; join keys with commas");
        return false;
    }
    if (!o->list.count) tool_error("attune refuses every combination of the grid");
    return o->list.count > 0 && take_shard(o);
}

/* ---- Measuring ---- */

/* One run of the command. */
typedef struct sweep_run {
    sweep_options *options;
    attune_context *context;
    const char *isa;
    sweep_keys keys;
    sweep_file file;
    warming warming;
    bool continues;                  /* the file had results */
    size_t before, measured, failed; /* problems: those that the file had and that stay, and the others */
    const manifest_kernel *at;       /* the problem that is being measured */
    size_t measurements;             /* of all problems, with those that were repeated */
    long disturbances;
    double began, weight_left, weight_done;
} sweep_run;

/* The problem at hand from tensors to result. NULL after a message or an interruption. */
static json_t *measure(void *user) {
    sweep_run *const run = user;
    const sweep_settings *const s = &run->options->settings;
    bench_case one = {.problem = run->at->problem, .given = run->at->text, .cold_data = s->cold_data};
    bench_probes probes = {0};
    json_t *result = NULL;
    if (bench_open(&one, run->context, ATTUNE_ENGINE_JIT, &s->sizes, s->samples) &&
        bench_open_probes(&probes, &one, 1, run->isa, s->threads) &&
        bench_rounds(&one, 1, run->context, &probes, s->threads, s->samples) && bench_summarise(&one)) {
        result = bench_result_json(&one, &s->sizes, s->threads);
        if (!result) tool_error("out of memory");
    }
    run->disturbances += probes.disturbances;
    run->measurements += result != NULL;
    bench_close_probes(&probes);
    bench_close(&one);
    return result;
}

/* About how long a problem takes, in some unit: the probes around each sample, and its calls. */
static double weight_of(const sweep_settings *s, const attune_problem *problem) {
    const double flops = attune_problem_flops(problem) / s->threads;
    return 0.01 * (double)s->samples + (flops > 0 ? 1e-11 * flops * (double)(s->samples + 2) : 0);
}

static void show_progress(const sweep_run *run, size_t done) {
    const double spent = (tool_now_us() - run->began) * 1e-6;
    char left[TABLE_NUMBER_BYTES];
    const bool is_known = run->weight_done > 0; /* the time that problems take */
    if (is_known) table_duration(spent / run->weight_done * run->weight_left, left);
    tool_progress("%zu of %zu problems measured%s%s%s", done, run->options->list.count, is_known ? ", about " : "",
                  is_known ? left : "", is_known ? " left" : "");
}

/* Whether a problem has no result yet, or one that is noisy and may be measured once more. */
static bool is_due(const sweep_run *run, const manifest_kernel *wanted) {
    const json_t *const result = sweep_file_find(&run->file, &wanted->problem);
    return !result || sweep_is_noisy(result, run->options->max_spread);
}

static size_t count_due(const sweep_run *run) {
    size_t count = 0;
    for (size_t i = 0; i < run->options->list.count; i++) count += is_due(run, &run->options->list.kernels[i]);
    return count;
}

/* Measures the problems that the file does not have yet, or only noisy, and writes each result at once. A problem that
 * cannot be measured is left out; a file that cannot be written ends the sweep. */
static bool measure_all(sweep_run *run) {
    const sweep_options *const o = run->options;
    bool good = true;
    run->began = tool_now_us();
    for (size_t i = 0; i < o->list.count; i++)
        if (is_due(run, &o->list.kernels[i])) run->weight_left += weight_of(&o->settings, &o->list.kernels[i].problem);
    for (size_t i = 0; good && i < o->list.count && !interruption_came(); i++) {
        const manifest_kernel *const wanted = &o->list.kernels[i];
        if (!is_due(run, wanted)) continue;
        show_progress(run, i);
        run->at = wanted;
        const json_t *const before = sweep_file_find(&run->file, &wanted->problem);
        json_t *const result = wanted->has_failed ? NULL : sweep_measure_quietly(measure, run, before, o->max_spread);
        if (result)
            good = sweep_file_add(&run->file, result);
        else if (interruption_came())
            break;
        else if (!wanted->has_failed)
            tool_error("%s could not be measured", wanted->text);
        ++*(result ? &run->measured : &run->failed);
        run->weight_left -= weight_of(&o->settings, &wanted->problem);
        run->weight_done += weight_of(&o->settings, &wanted->problem);
    }
    tool_end_progress();
    size_t above_peak = 0;
    for (size_t i = 0; i < o->list.count; i++) {
        const json_t *const result = sweep_file_find(&run->file, &o->list.kernels[i].problem);
        above_peak += bench_is_above_peak(json_number_value(json_object_get(result, "fraction_of_peak")));
    }
    bench_warn_of_disturbances(run->disturbances, run->measurements * o->settings.samples, above_peak);
    return good;
}

/* ---- Showing ---- */

/* How many of the problems in the table were measured more than once, and how many are noisy all the same. */
static void print_noise(const sweep_run *run) {
    const sweep_options *const o = run->options;
    size_t repeated = 0, noisy = 0;
    for (size_t i = 0; i < o->list.count; i++) {
        const json_t *const result = sweep_file_find(&run->file, &o->list.kernels[i].problem);
        repeated += json_integer_value(json_object_get(result, "measurements")) > 1;
        noisy += json_number_value(json_object_get(result, "spread")) > o->max_spread;
    }
    if (repeated)
        printf("%zu problem%s measured more than once, and the quietest kept", repeated,
               repeated == 1 ? " was" : "s were");
    if (noisy) printf("%s%zu with a spread above %g %%", repeated ? "; " : "", noisy, 100 * o->max_spread);
    if (repeated || noisy) printf("\n");
}

static void print_summary(const sweep_run *run) {
    const warming *const w = &run->warming;
    char wall[TABLE_NUMBER_BYTES], added[TABLE_NUMBER_BYTES];
    printf("\n");
    if (run->continues)
        printf("%zu measured now; %zu had results in %s, which stay as they were\n", run->measured, run->before,
               run->options->output);
    const size_t compiled = w->count[WARM_COMPILED], cached = w->count[WARM_CACHED], shared = w->count[WARM_SHARED];
    if (compiled)
        printf("%zu kernel%s compiled in %s (%s of all jobs together), %zu cached already", compiled,
               compiled == 1 ? "" : "s", table_time(w->seconds * 1e6, wall), table_time(w->compile_ms * 1e3, added),
               cached);
    else
        printf("nothing was compiled: %s%zu kernel%s cached", cached == 1 ? "" : "all ", cached,
               cached == 1 ? " was" : "s were");
    if (shared) printf("; %zu more problem%s them", shared, shared == 1 ? " shares" : "s share");
    printf("\n");
    print_noise(run);
}

/* Says why results are missing. */
static void explain_rest(const sweep_run *run) {
    const sweep_options *const o = run->options;
    const size_t done = sweep_file_count(&run->file, &o->list);
    if (o->refused)
        tool_error("%zu combination%s of the grid %s refused; the others were measured", o->refused,
                   o->refused == 1 ? "" : "s", o->refused == 1 ? "was" : "were");
    if (run->failed) tool_error("%zu of %zu problems could not be measured", run->failed, o->list.count);
    if (interruption_came() && done < o->list.count)
        tool_error("interrupted after %zu of %zu problems%s%s", done, o->list.count,
                   o->output ? "; the same command continues " : "; with -o FILE the sweep could be continued",
                   o->output ? o->output : "");
}

static int show(const sweep_run *run) {
    const sweep_options *const o = run->options;
    const size_t done = sweep_file_count(&run->file, &o->list);
    int code = TOOL_OK;
    if (o->json) {
        code = tool_print_json(sweep_file_json(&run->file));
    } else if (o->csv) {
        if (!sweep_print_csv(&o->list, &run->file)) code = TOOL_FAILED;
    } else if (done) {
        sweep_print_table(&run->keys, &o->list, &run->file);
        print_summary(run);
    }
    tool_flush();
    explain_rest(run);
    return done < o->list.count || o->refused ? TOOL_FAILED : code;
}

/* ---- The command ---- */

/* Finds out before hours of measuring whether the end would fail. */
static bool prepare(sweep_run *run) {
    const sweep_options *const o = run->options;
    attune_machine_info machine = {.struct_size = sizeof machine};
    if (attune_get_machine_info(run->context, &machine) != ATTUNE_OK) {
        tool_library_error(NULL);
        return false;
    }
    run->isa = machine.isa;
    return sweep_keys_open(&run->keys, &o->list) && sweep_file_open(&run->file, o->output, &o->settings, &machine);
}

static int sweep(sweep_run *run) {
    sweep_options *const o = run->options;
    const warming *const w = &run->warming;
    interruption_catch();
    if (!prepare(run)) return TOOL_FAILED;
    const uint32_t jobs = o->jobs ? o->jobs : (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    if (!warming_run(&run->warming, run->context, &o->list, jobs, 0)) return TOOL_FAILED;
    run->continues = sweep_file_count(&run->file, &o->list) > 0;
    run->before = o->list.count - count_due(run);
    /* Pinned only now: the threads that compile may run on all CPUs. */
    const bool good = sweep_file_set_cache(&run->file, w->count[WARM_CACHED], w->count[WARM_COMPILED], w->compile_ms) &&
                      bench_pin(o->settings.threads) && measure_all(run);
    const int code = show(run);
    return good ? code : TOOL_FAILED;
}

static int print_problems(const sweep_options *o) {
    for (size_t i = 0; i < o->list.count; i++) puts(o->list.kernels[i].text);
    return tool_finish(o->refused ? TOOL_FAILED : TOOL_OK);
}

int cmd_sweep(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "merge") == 0) {
        static char title[] = "attune sweep merge";
        argv[1] = title;
        return sweep_merge(argc - 1, argv + 1);
    }
    static const struct argp argp = {
        options,
        parse,
        "GRID|FILE...\nmerge FILE...",
        "Measures a grid of problems: problem text in which a value may be a list (64,128) or a range (128:4096:*2, "
        "1:9:+2, 1:4). All kernels are compiled first, on all CPUs, into the cache; a second run compiles nothing. "
        "With -o an interrupted sweep continues where it ended. A FILE has a grid in each line. Exit status 1 unless "
        "all were measured. `attune sweep merge` makes one file of those of several shards or machines.",
        tool_common_children,
        NULL,
        NULL};
    sweep_options o = {.settings = {.threads = 1, .samples = 10, .sizes = CALL_SIZES_NONE},
                       .list = {.only_attention = true},
                       .limit = USUAL_LIMIT,
                       .max_spread = USUAL_SPREAD};
    tool_parse(&argp, argc, argv, &o);
    sweep_run run = {.options = &o, .file.lock = -1};
    int code = TOOL_FAILED;
    const bool is_ready = add_all(&o);
    if (is_ready && o.is_dry)
        code = print_problems(&o);
    else if (is_ready && tool_threads_fit(o.settings.threads))
        run.context = tool_open_context(&o.common, o.settings.threads, o.is_cold ? "" : NULL);
    if (run.context) code = sweep(&run);
    sweep_file_close(&run.file);
    sweep_keys_close(&run.keys);
    if (run.context) attune_context_destroy(run.context);
    json_decref(o.texts);
    manifest_free(&o.list);
    return code;
}
