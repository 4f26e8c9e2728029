/* attune sweep: measures a grid of problems with kernels that are in the cache before the first measurement. */
#include "bench_json.h"
#include "grid.h"
#include "sweep_file.h"
#include "sweep_plot.h"
#include "table.h"
#include "warming.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { USUAL_LIMIT = 1000 };

typedef struct sweep_options {
    tool_common common;
    manifest list;
    sweep_settings settings;
    uint32_t jobs; /* 0: as many as there are CPUs */
    size_t limit;
    const char *output, *plot;
    bool json, is_cold;
    const char *grids[64];
    size_t num_grids;
} sweep_options;

static const struct argp_option options[] = {
    {"warm", TOOL_KEY_WARM, NULL, 0, "Kernels come from the disk cache, which is filled first (default)", 0},
    {"cold", TOOL_KEY_COLD, NULL, 0, "Compile every kernel anew, without the disk cache", 0},
    {"cold-data", TOOL_KEY_COLD_DATA, NULL, 0, "Tensors are out of the caches before each call", 0},
    {"threads", TOOL_KEY_THREADS, "N", 0, "Threads, each on a CPU of its own (default 1)", 0},
    {"samples", TOOL_KEY_SAMPLES, "N", 0, "Samples of each problem (default 10)", 0},
    {"sizes", TOOL_KEY_SIZES, "KEY=N,...", 0, "Run-time sizes, where problems leave them open", 0},
    {"jobs", TOOL_KEY_JOBS, "N", 0, "Kernels compiled at a time (default: one for each CPU)", 0},
    {"limit", TOOL_KEY_LIMIT, "N", 0, "Refuse grids of more problems (default 1000)", 0},
    {"output", 'o', "FILE", 0, "Write JSON here, after each problem; a file that has results is continued", 0},
    {"plot", TOOL_KEY_PLOT, "FILE", 0, "Draw the shares of the peak, PNG or SVG by its name; of one GRID", 0},
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    sweep_options *const o = state->input;
    enum { MAX_GRIDS = sizeof o->grids / sizeof *o->grids };
    sweep_settings *const s = &o->settings;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case TOOL_KEY_WARM: o->is_cold = false; return 0;
    case TOOL_KEY_COLD: o->is_cold = true; return 0;
    case TOOL_KEY_COLD_DATA: s->cold_data = true; return 0;
    case TOOL_KEY_THREADS: s->threads = (uint32_t)tool_parse_integer(state, "threads", argument, 1, 1024); return 0;
    case TOOL_KEY_SAMPLES: s->samples = (size_t)tool_parse_integer(state, "samples", argument, 1, 100000); return 0;
    case TOOL_KEY_JOBS: o->jobs = (uint32_t)tool_parse_integer(state, "jobs", argument, 1, 256); return 0;
    case TOOL_KEY_LIMIT: o->limit = (size_t)tool_parse_integer(state, "limit", argument, 1, 10000000); return 0;
    case TOOL_KEY_SIZES:
        if (!sizes_parse(argument, &s->sizes)) exit(TOOL_USAGE);
        return 0;
    case 'o': o->output = argument; return 0;
    case TOOL_KEY_PLOT: o->plot = argument; return 0;
    case TOOL_KEY_JSON: o->json = true; return 0;
    case ARGP_KEY_ARG:
        if (o->num_grids == MAX_GRIDS) argp_error(state, "at most %d grids fit in one run", MAX_GRIDS);
        o->grids[o->num_grids++] = argument;
        return 0;
    case ARGP_KEY_END:
        if (!o->num_grids) argp_error(state, "a GRID is needed, or a FILE of grids");
        if (o->plot && (o->num_grids != 1 || !strchr(o->grids[0], '='))) argp_error(state, "--plot draws one GRID");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* ---- Which problems ---- */

static bool add_grid(sweep_options *o, const char *text, const char *file, int line) {
    grid g;
    char message[GRID_MESSAGE];
    bool good = grid_parse(text, &g, message);
    const size_t count = good ? grid_count(&g) : 0,
                 all = count > SIZE_MAX - o->list.count ? SIZE_MAX : o->list.count + count;
    if (!good && line) tool_error("%s, line %d: %s", file, line, message);
    if (!good && !line) tool_error("%s: %s", text, message);
    if (good && all > o->limit) {
        tool_error("that is a sweep of %zu problems%s; --limit=%zu would allow it, but the limit is %zu", all,
                   all == SIZE_MAX ? " and more" : "", all, o->limit);
        good = false;
    }
    for (size_t i = 0; good && i < count; i++) {
        char *const problem = grid_problem(&g, i);
        if (!problem) tool_error("out of memory");
        good = problem && manifest_add(&o->list, problem, file, line);
        free(problem);
    }
    grid_free(&g);
    return good;
}

static bool add_grid_line(void *user, const char *text, const char *file, int line) {
    return add_grid(user, text, file, line);
}

static bool add_all(sweep_options *o) {
    for (size_t i = 0; i < o->num_grids; i++) {
        const bool is_grid = strchr(o->grids[i], '=') != NULL;
        if (is_grid ? !add_grid(o, o->grids[i], NULL, 0) : !manifest_each_line(o->grids[i], add_grid_line, o))
            return false;
    }
    return true;
}

/* ---- Measuring ---- */

static volatile sig_atomic_t is_interrupted;

static void interrupt(int signal_number) {
    (void)signal_number;
    is_interrupted = 1;
}

/* One problem from tensors to result. NULL after a message. */
static json_t *measure(const sweep_options *o, attune_context *context, const char *isa, const manifest_entry *what) {
    const sweep_settings *const s = &o->settings;
    bench_entry entry = {.problem = what->problem, .cold_data = s->cold_data};
    bench_probes probes = {0};
    json_t *result = NULL;
    if (bench_open(&entry, context, ATTUNE_ENGINE_JIT, &s->sizes, s->samples) &&
        bench_open_probes(&probes, &entry, 1, isa, s->threads) &&
        bench_rounds(&entry, 1, context, &probes, s->threads, s->samples) && bench_summarise(&entry)) {
        result = bench_result_json(&entry, &s->sizes, s->threads);
        if (!result) tool_error("out of memory");
    }
    bench_close_probes(&probes);
    bench_close(&entry);
    return result;
}

static void show_progress(size_t done, size_t count, size_t measured, double began) {
    const double spent = (tool_now_us() - began) * 1e-6;
    if (isatty(STDERR_FILENO) && measured)
        fprintf(stderr, "\r%zu of %zu measured, about %.0f s left  ", done, count,
                spent / (double)measured * (double)(count - done));
}

/* What the file does not have yet, each result written as soon as it is there. */
static bool measure_all(const sweep_options *o, attune_context *context, const char *isa, sweep_file *file) {
    const double began = tool_now_us();
    size_t measured = 0;
    bool good = true;
    for (size_t i = 0; good && i < o->list.count && !is_interrupted; i++) {
        char *const name = problem_text(&o->list.entries[i].problem);
        if (name && !sweep_file_has(file, name)) {
            json_t *const result = measure(o, context, isa, &o->list.entries[i]);
            good = result && sweep_file_add(file, result);
            measured++;
            show_progress(i + 1, o->list.count, measured, began);
        }
        good = good && name;
        free(name);
    }
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r%79s\r", "");
    return good;
}

/* ---- Showing ---- */

static void print_table(const sweep_file *file) {
    static const char *const headers[] = {"problem", "median", "GFLOP/s", "of peak", "bound", "of roof"};
    char number[TABLE_NUMBER_BYTES];
    table *const t = table_create("lrrrlr", headers);
    const json_t *const results = sweep_file_results(file);
    for (size_t i = 0; i < json_array_size(results); i++) {
        const json_t *const r = json_array_get(results, i);
        const double gflops = json_number_value(json_object_get(r, "gflops"));
        table_cell(t, "%s", json_string_value(json_object_get(r, "problem")));
        table_cell(t, "%s", table_time(json_number_value(json_object_get(r, "median_us")), number));
        table_cell(t, gflops < 10 ? "%.3f" : "%.1f", gflops);
        table_cell(t, "%.1f %%", 100 * json_number_value(json_object_get(r, "fraction_of_peak")));
        table_cell(t, "%s", json_string_value(json_object_get(r, "bound")));
        table_cell(t, "%.1f %%", 100 * json_number_value(json_object_get(r, "fraction_of_roofline")));
    }
    table_finish(t, stdout);
}

static bool plot(const sweep_options *o, const sweep_file *file) {
    grid g;
    char message[GRID_MESSAGE];
    const bool good = grid_parse(o->grids[0], &g, message) && sweep_plot(o->plot, &g, &o->list, file);
    grid_free(&g);
    return good;
}

static int show(const sweep_options *o, const sweep_file *file, const warming *w) {
    const size_t done = sweep_file_count(file, &o->list), hits = w->count[WARM_CACHED];
    int code = TOOL_OK;
    if (o->json) {
        code = tool_print_json(sweep_file_json(file));
    } else {
        print_table(file);
        if (w->count[WARM_COMPILED])
            printf("\n%zu kernels compiled in %.0f ms added up, %zu were cached\n", w->count[WARM_COMPILED],
                   w->compile_ms, hits);
        else
            printf("\nnothing was compiled: all %zu kernels were cached\n", hits);
    }
    if (o->plot && !plot(o, file)) code = TOOL_FAILED;
    if (done >= o->list.count) return code;
    tool_error("interrupted after %zu of %zu problems%s%s", done, o->list.count,
               o->output ? "; the same command goes on from " : "; with -o FILE a sweep could be continued",
               o->output ? o->output : "");
    return TOOL_FAILED;
}

/* ---- The command ---- */

static int sweep(const sweep_options *o, attune_context *context, sweep_file *file) {
    attune_machine_info machine = {.struct_size = sizeof machine};
    if (attune_get_machine_info(context, &machine) != ATTUNE_OK) return tool_library_error(NULL);
    if (!sweep_file_open(file, o->output, &o->settings, &machine)) return TOOL_FAILED;
    warming w;
    int code = TOOL_FAILED;
    signal(SIGINT, interrupt);
    signal(SIGTERM, interrupt);
    const uint32_t jobs = o->jobs ? o->jobs : (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    warming_run(&w, context, &o->list, jobs, 0, &is_interrupted);
    bool good =
        !w.count[WARM_FAILED] && sweep_file_set_cache(file, w.count[WARM_CACHED], w.count[WARM_COMPILED], w.compile_ms);
    /* After compiling: the threads of that may run everywhere. */
    good = good && bench_pin(o->settings.threads) && measure_all(o, context, machine.isa, file);
    if (good) code = show(o, file, &w);
    return code;
}

int cmd_sweep(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "GRID|FILE...",
        "Measures a grid of problems: problem text in which a value may be a list (64,128) or a range (128:4096:*2, "
        "1:9:+2, 1:4). All kernels are compiled first, on all CPUs, into the cache; a second run compiles nothing. "
        "With -o an interrupted sweep goes on where it ended. A FILE has a grid in each line.",
        tool_common_children,
        NULL,
        NULL};
    sweep_options o = {.settings = {.threads = 1, .samples = 10}, .limit = USUAL_LIMIT};
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    sweep_file file = {0};
    attune_context *context = NULL;
    int code = TOOL_FAILED;
    if (add_all(&o) && tool_threads_fit(o.settings.threads))
        context = tool_open_context(&o.common, o.settings.threads, o.is_cold ? "" : NULL);
    if (context) code = sweep(&o, context, &file);
    sweep_file_close(&file);
    if (context) attune_context_destroy(context);
    manifest_free(&o.list);
    return code;
}
