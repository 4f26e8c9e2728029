/* attune tune: finds faster schedules by measuring, and carries results from machine to machine. */
#include "common/interruption.h"
#include "loop_ir/ir_tune.h"
#include "common/json_output.h"
#include "common/manifest.h"
#include "common/tensors.h"
#include "measure/tune_report.h"
#include "measure/seen.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SEED = 1 };

typedef struct tune_options {
    tool_common common;
    manifest problems;
    uint32_t threads;
    double budget;
    call_sizes sizes;
    const char *ir, *export_to, *import_from;
    binding_list arguments;
    bool json, has_sizes;
} tune_options;

static const struct argp_option options[] = {
    {"budget", TOOL_KEY_BUDGET, "SECONDS", 0, "Time for each problem (default 5s)", 0},
    {"threads", TOOL_KEY_THREADS, "N", 0,
     "The number of threads to tune for (default 1). A problem has one cached kernel for all numbers of threads: that "
     "of the last tuning",
     0},
    {"sizes", TOOL_KEY_SIZES, "KEY=N,...", 0, "Values for sizes that are dynamic in the problems", 0},
    {"ir", TOOL_KEY_IR, "FILE", 0, "Tune the `param` lines of this kernel in loop IR", 0},
    {"arg", TOOL_KEY_ARG, "NAME=VALUE", TOOL_REPEATS,
     "With --ir: a number for a scalar, F.npy for a buffer. Without it, buffers of f32 and f64 are random", 0},
    {"export", TOOL_KEY_EXPORT, "FILE", 0, "Write all results to a new file", 0},
    {"import", TOOL_KEY_IMPORT, "FILE", 0, "First read the results of such a file", 0},
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

/* ---- Arguments ---- */

static error_t parse(int key, char *argument, struct argp_state *state) {
    tune_options *const o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case TOOL_KEY_BUDGET: o->budget = tool_parse_seconds(state, "budget", argument, 0.05, 1e6); return 0;
    case TOOL_KEY_THREADS: o->threads = (uint32_t)tool_parse_integer(state, "threads", argument, 1, 1024); return 0;
    case TOOL_KEY_SIZES:
        if (!sizes_parse(argument, &o->sizes)) exit(TOOL_USAGE);
        o->has_sizes = true;
        return 0;
    case TOOL_KEY_IR: o->ir = argument; return 0;
    case TOOL_KEY_ARG: bindings_add(state, &o->arguments, argument); return 0;
    case TOOL_KEY_EXPORT: o->export_to = argument; return 0;
    case TOOL_KEY_IMPORT: o->import_from = argument; return 0;
    case TOOL_KEY_JSON: o->json = true; return 0;
    case ARGP_KEY_ARG:
        if (!manifest_add_argument(&o->problems, argument)) exit(TOOL_FAILED);
        return 0;
    case ARGP_KEY_END:
        if (!o->problems.count && !o->ir && !o->export_to && !o->import_from)
            argp_error(state, "a PROBLEM, a FILE of problems, --ir, --export or --import is needed");
        if (o->arguments.count && !o->ir) argp_error(state, "--arg needs --ir");
        if (o->has_sizes && !o->problems.count)
            argp_error(state, "--sizes is for problems%s", o->ir ? "; the scalars of --ir are given by --arg" : "");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* ---- Progress and interruption ---- */

static int show_progress(void *user, const attune_tune_progress *p) {
    if (*(const bool *)user)
        fprintf(stderr, "\r%llu of %llu schedules, best takes %.1f %% of the first one's time, %.0f s left  ",
                (unsigned long long)p->measured, (unsigned long long)p->space, 100 * p->best_ratio,
                p->budget_seconds > p->seconds ? p->budget_seconds - p->seconds : 0);
    return interruption_came();
}

static void end_progress(bool is_shown) {
    if (is_shown) fprintf(stderr, "\r%79s\r", "");
}

/* ---- One problem ---- */

/* The command that shows the wrong kernel again: same instruction set, same sizes and numbers. */
static void report_wrong(const tune_options *o, const attune_context *context, const char *problem,
                         const char *schedule) {
    attune_machine_info info = {.struct_size = sizeof info};
    char sizes[SIZES_TEXT];
    sizes_print(&o->sizes, sizes);
    if (attune_get_machine_info(context, &info)) tool_library_error(NULL);
    tool_error("this is a bug in attune: the bits of a kernel differ from the interpreter's; please report: attune-lab "
               "check %s%s%s --schedule=%s --isa=%s --inputs=%s --seed=%d",
               problem, *sizes ? " --sizes=" : "", sizes, schedule, info.isa, input_kind_name(INPUT_ORDINARY), SEED);
}

/* The result is there even where it could not be kept. */
static bool search(const tune_options *o, attune_context *context, tensors *t, bool shows_progress, peak_probe *probe,
                   tune_report *report) {
    attune_tune_options how = ATTUNE_TUNE_OPTIONS_INIT;
    attune_arguments arguments;
    how.budget_seconds = o->budget;
    how.progress = show_progress;
    how.progress_user = &shows_progress;
    if (!tensors_fill(t, INPUT_ORDINARY, SEED)) return false;
    tensors_arguments(t, &arguments);
    tune_report_probe(report, probe);
    const bool is_good = attune_tune(context, &t->problem, &arguments, &how, &report->result) == ATTUNE_OK;
    end_progress(shows_progress);
    if (!is_good) tool_library_error("tuning");
    tune_report_probe(report, probe);
    call_work work = work_of_call(t);
    seen_count(context, t, &work);
    report->flops = work.flops;
    return is_good;
}

/* Prints a report as text, or appends it to the list. */
static bool tell(const tune_options *o, const attune_context *context, const tune_report *report, json_t *list) {
    const attune_tune_result *const r = &report->result;
    bool is_good = !r->wrong;
    if (list && json_array_append_new(list, tune_report_json(report))) {
        tool_error("%s: the result cannot be printed: out of memory", report->problem);
        is_good = false;
    }
    if (!list) tune_report_print(report);
    tune_report_warn(report);
    if (r->wrong) report_wrong(o, context, report->problem, r->wrong_schedule);
    return is_good;
}

static bool tune_one(const tune_options *o, attune_context *context, const attune_problem *problem, bool shows_progress,
                     peak_probe *probe, json_t *list) {
    tensors t;
    attune_machine_info machine = {.struct_size = sizeof machine};
    const call_sizes sizes = sizes_settled(&o->sizes, problem);
    if (!tensors_create_sized(&t, problem, &sizes)) return false;
    t.fills_up = true;
    if (attune_get_machine_info(context, &machine)) tool_library_error(NULL);
    tune_report report = {.result = {.struct_size = sizeof report.result},
                          .peak_dtype = peak_that_counts(problem, machine.isa)};
    bool is_good = search(o, context, &t, shows_progress, probe, &report);
    const bool searched = is_good || report.result.space;
    char *const name = searched ? problem_text(problem) : NULL;
    report.problem = name;
    report.schedule = report.result.schedule;
    is_good = name && tell(o, context, &report, list) && is_good;
    free(name);
    tensors_free(&t);
    return is_good;
}

/* Lists of problems that ATTUNE_RECORD writes have the schedules that programs named, and go on to name, and kernels of
 * other operators. */
static void warn_of_rest(const manifest *problems) {
    size_t count = 0;
    if (problems->left_out)
        tool_error("%zu lines describe operators other than attention, which cannot be tuned; they are skipped",
                   problems->left_out);
    for (size_t i = 0; i < problems->count; i++) count += problems->kernels[i].schedule != NULL;
    if (count)
        tool_error("%zu of %zu problems come with a schedule, which is ignored: results are for callers that name none",
                   count, problems->count);
}

/* Recorded lists have a problem once for each of its schedules. */
static bool is_first_of_its_kind(const manifest *problems, size_t number) {
    char *const text = problem_text(&problems->kernels[number].problem);
    bool is_first = true;
    for (size_t i = 0; text && is_first && i < number; i++) {
        char *const other = problem_text(&problems->kernels[i].problem);
        is_first = !other || strcmp(text, other) != 0;
        free(other);
    }
    free(text);
    return is_first;
}

/* Equal problems are tuned once. */
static void drop_repeated(manifest *problems) {
    size_t kept = 0;
    for (size_t i = 0; i < problems->count; i++) {
        problems->kernels[kept] = problems->kernels[i];
        if (is_first_of_its_kind(problems, kept))
            kept++;
        else
            manifest_free_kernel(&problems->kernels[kept]);
    }
    problems->count = kept;
}

/* ---- The command ---- */

static bool tune_all(tune_options *o, attune_context *context, json_t *list) {
    const bool shows_progress = isatty(STDERR_FILENO);
    bool is_good = true;
    size_t done = 0;
    attune_machine_info machine = {.struct_size = sizeof machine};
    if (attune_get_machine_info(context, &machine)) tool_library_error(NULL);
    warn_of_rest(&o->problems);
    drop_repeated(&o->problems);
    const size_t count = o->problems.count;
    peak_probe *const probe = count ? peak_create(machine.isa, o->threads) : NULL;
    if (count && !probe) return false;
    interruption_catch();
    for (; done < count && !interruption_came(); done++)
        is_good = tune_one(o, context, &o->problems.kernels[done].problem, shows_progress, probe, list) && is_good;
    peak_destroy(probe);
    if (done < count)
        tool_error("interrupted: %zu of %zu problems %s not tuned", count - done, count,
                   count - done == 1 ? "was" : "were");
    return is_good && done == count;
}

static bool tune_ir(tune_options *o, attune_context *context, json_t *list) {
    bool shows_progress = isatty(STDERR_FILENO);
    attune_tune_options how = ATTUNE_TUNE_OPTIONS_INIT;
    how.budget_seconds = o->budget;
    how.progress = show_progress;
    how.progress_user = &shows_progress;
    interruption_catch();
    return ir_tune(context, o->ir, &o->arguments, &how, list);
}

static bool import_results(const tune_options *o, attune_context *context, json_t **counts) {
    uint64_t taken = 0, of_here = 0;
    if (attune_tuning_import(context, o->import_from, &taken, &of_here) != ATTUNE_OK) {
        tool_library_error("importing");
        return false;
    }
    if (o->json)
        *counts = json_pack("{s:I, s:I}", "searches", (json_int_t)taken, "of_here", (json_int_t)of_here);
    else
        printf("%llu new searches from %s, %llu of them for this tuning class and instruction set\n",
               (unsigned long long)taken, o->import_from, (unsigned long long)of_here);
    return true;
}

/* Known before anything is tuned for it. */
static bool can_export_to(const char *path) {
    struct stat there;
    if (lstat(path, &there)) return true;
    tool_error("exporting: %s exists already; name another file, or remove it", path);
    return false;
}

static bool work(tune_options *o, attune_context *context) {
    json_t *imported = NULL;
    if (o->export_to && !can_export_to(o->export_to)) return false;
    if (o->import_from && !import_results(o, context, &imported)) return false;
    json_t *const list = o->json ? json_array() : NULL;
    bool is_good = tune_all(o, context, list);
    if (o->ir) is_good = tune_ir(o, context, list) && is_good;
    if (o->export_to && attune_tuning_export(context, o->export_to) != ATTUNE_OK) {
        tool_library_error("exporting");
        is_good = false;
    }
    if (list)
        is_good = json_print_for(context, o->threads,
                                 json_pack("{s:o*, s:o}", "imported", imported, "results", list)) == TOOL_OK &&
                  is_good;
    return is_good;
}

int cmd_tune(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "[PROBLEM|FILE...]",
        "Finds the fastest schedule for each problem by measuring on this machine. Every winner is compared with the "
        "interpreter; from then on programs that name no schedule use it. Results are stored beside the disk cache. A "
        "FILE has one problem on each line; schedules after them are ignored. Ctrl-C ends the search and keeps its "
        "results; a second one ends the command at once.",
        tool_common_children,
        NULL,
        NULL};
    tune_options o = {.threads = 1, .budget = 5, .sizes = CALL_SIZES_NONE, .problems = {.only_attention = true}};
    tool_parse(&argp, argc, argv, &o);
    bool is_good = tool_threads_fit(o.threads);
    attune_context *const context = is_good ? tool_open_context(&o.common, o.threads, NULL) : NULL;
    is_good = context && work(&o, context);
    if (context) attune_context_destroy(context);
    manifest_free(&o.problems);
    return is_good ? TOOL_OK : TOOL_FAILED;
}
