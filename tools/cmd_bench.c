/* attune bench: time, GFLOP/s, shares of the peak and of the roofline, and the time to acquire a kernel. */
#include "measure/bench.h"
#include "measure/bench_compare.h"
#include "measure/bench_json.h"
#include "measure/bench_text.h"
#include "measure/report.h"
#include "common/interruption.h"
#include "common/json_output.h"
#include "error.h"
#include "schedule_fields.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench_options {
    tool_common common;
    const char *problems[64];
    size_t num_problems;
    const char *schedules[16];
    size_t num_schedules; /* 0: each problem has the one that attune chooses */
    uint32_t threads;
    size_t samples;
    attune_engine engine;
    call_sizes sizes;
    const char *output; /* NULL: no file */
    bool is_report;     /* the file says more about the machine */
    bool json;
} bench_options;

/* Measured when no problem is named: even shapes small and large, one of odd sizes, one causal, decoding with a short
 * cache and a long one, and whole blocks of an encoder. */
static const char *const default_problems[] = {
    "num_heads=12,seq_q=512,head_dim=64",
    "num_heads=32,seq_q=512,head_dim=128",
    "num_heads=32,seq_q=2048,head_dim=128",
    "num_heads=20,seq_q=500,seq_kv=487,head_dim=80",
    "num_heads=16,seq_q=1024,head_dim=64,is_causal=1",
    "num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=512,head_dim=128",
    "num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128",
    "embed_dim=768,num_heads=12,seq_q=128",
    "embed_dim=768,num_heads=12,seq_q=512",
    "embed_dim=1024,num_heads=16,seq_q=512",
    /* Of reports only. */
    "num_heads=32,seq_q=512,head_dim=128,dtype=bf16",
    "num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128,dtype=bf16",
    "embed_dim=768,num_heads=12,seq_q=512,dtype=bf16",
};
enum { REPORT_PROBLEMS = sizeof default_problems / sizeof *default_problems, DEFAULT_PROBLEMS = REPORT_PROBLEMS - 3 };

static const struct argp_option options[] = {
    {"threads", TOOL_KEY_THREADS, "N", 0, "Threads, each on a CPU of its own (default 1)", 0},
    {"samples", TOOL_KEY_SAMPLES, "N", 0, "Samples of each problem (default 30)", 0},
    {"sizes", TOOL_KEY_SIZES, "KEY=N,...", 0, "Values for sizes that are dynamic in the problems", 0},
    {"schedule", TOOL_KEY_SCHEDULE, "KEY=N,...", TOOL_REPEATS,
     "Change the chosen schedule of each problem; may be given several times, to compare schedules", 0},
    {"engine", TOOL_KEY_ENGINE, "jit|vm|interp", 0, "Machine code (default), virtual machine or interpreter", 0},
    {"output", 'o', "FILE", 0, "Write JSON here, too; the table is still printed", 0},
    {"report", TOOL_KEY_REPORT, "FILE", 0,
     "Measure the set and three problems in bf16, and write JSON that also describes the machine, to be sent to others",
     0},
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

static void add_schedule(bench_options *o, const char *text, struct argp_state *state) {
    enum { MAX_SCHEDULES = sizeof o->schedules / sizeof *o->schedules };
    if (o->num_schedules == MAX_SCHEDULES) argp_error(state, "at most %d schedules fit in one run", MAX_SCHEDULES);
    mha_schedule fields = {0};
    at_error error = {0};
    if (mha_schedule_parse(text, &fields, &error) != ATTUNE_OK) argp_error(state, "%s", error.message);
    o->schedules[o->num_schedules++] = text;
}

static error_t parse(int key, char *argument, struct argp_state *state) {
    bench_options *const o = state->input;
    enum { MAX_PROBLEMS = sizeof o->problems / sizeof *o->problems };
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case TOOL_KEY_THREADS: o->threads = (uint32_t)tool_parse_integer(state, "threads", argument, 1, 1024); return 0;
    case TOOL_KEY_SAMPLES: o->samples = (size_t)tool_parse_integer(state, "samples", argument, 1, 100000); return 0;
    case TOOL_KEY_ENGINE: o->engine = tool_parse_engine(state, argument); return 0;
    case TOOL_KEY_SIZES:
        if (!sizes_parse(argument, &o->sizes)) exit(TOOL_USAGE);
        return 0;
    case TOOL_KEY_SCHEDULE: add_schedule(o, argument, state); return 0;
    case 'o':
    case TOOL_KEY_REPORT:
        if (o->output) argp_error(state, "-o and --report exclude each other");
        o->output = argument;
        o->is_report = key == TOOL_KEY_REPORT;
        return 0;
    case TOOL_KEY_JSON: o->json = true; return 0;
    case ARGP_KEY_END:
        if (o->num_schedules && o->engine == ATTUNE_ENGINE_INTERPRETER)
            argp_error(state, "--schedule needs machine code: the interpreter's speed tells nothing about a schedule");
        if (o->output && strcmp(o->output, "-") == 0)
            argp_error(state, "%s needs a file; --json prints", o->is_report ? "--report" : "-o");
        if (o->is_report && (o->num_problems || o->num_schedules || o->engine != ATTUNE_ENGINE_JIT))
            argp_error(state, "--report measures a fixed set of problems: it takes no PROBLEM, --schedule or --engine");
        return 0;
    case ARGP_KEY_ARG:
        if (strcmp(argument, "compare") == 0)
            argp_error(state, "compare must be the first argument: attune bench compare [OPTION...] FILE...");
        if (o->num_problems == MAX_PROBLEMS) argp_error(state, "at most %d problems fit in one run", MAX_PROBLEMS);
        o->problems[o->num_problems++] = argument;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* ---- Showing ---- */

static json_t *document_of(const bench_options *o, const bench_case *cases, size_t count,
                           const attune_machine_info *machine) {
    json_t *const results = json_array();
    for (size_t i = 0; i < count; i++) {
        const bench_case *const c = &cases[i];
        json_array_append_new(results, bench_busy_json(c, bench_result_json(c, &o->sizes, o->threads)));
    }
    json_t *const body = json_pack("{s:i, s:o}", "samples", (int)o->samples, "results", results);
    if (body && o->is_report) json_object_set_new(body, "report", report_json(machine, cases, count));
    return json_document(machine, o->threads, body);
}

static void print_text(const bench_options *o, const bench_case *cases, size_t count,
                       const attune_machine_info *machine) {
    char sizes[SIZES_TEXT];
    printf("%s, %s, %s, %u thread%s, LLVM %s, attune %s\n", machine->cpu_description, machine->machine, machine->isa,
           o->threads, o->threads == 1 ? "" : "s", machine->llvm, attune_version());
    if (*sizes_print(&o->sizes, sizes)) printf("run-time sizes: %s\n", sizes);
    printf("\n");
    bench_print(cases, count, o->schedules, o->num_schedules);
    for (size_t i = 0; i < o->num_schedules; i++) printf("%sschedule %zu: %s\n", i ? "" : "\n", i + 1, o->schedules[i]);
}

static bool write_file(const char *path, const json_t *document) {
    char message[ATTUNE_MESSAGE_BYTES];
    char *const text = json_file_text(document);
    const bool good = text && tool_write_file(path, text, strlen(text), "\n", 1, message);
    if (!good) tool_error("%s", text ? message : "out of memory");
    free(text);
    return good;
}

static int show(const bench_options *o, const bench_case *cases, size_t count, const attune_machine_info *machine) {
    json_t *const document = o->json || o->output ? document_of(o, cases, count, machine) : NULL;
    int code = TOOL_OK;
    if (o->json)
        code = tool_print_json(json_incref(document));
    else
        print_text(o, cases, count, machine);
    if (o->output && !write_file(o->output, document)) code = TOOL_FAILED;
    json_decref(document);
    return code;
}

/* ---- The command ---- */

/* A case that cannot be measured, after a message: the others go on. */
static void drop(bench_case *cases, size_t *count, size_t i) {
    bench_close(&cases[i]);
    --*count;
    memmove(&cases[i], &cases[i + 1], (*count - i) * sizeof *cases);
    cases[*count] = (bench_case){.text = NULL};
}

static bool open_case(const bench_options *o, bench_case *c, attune_context *context) {
    if (c->wish && attune_schedule_choose(context, &c->problem, c->wish, NULL, 0) != ATTUNE_OK) {
        char *const text = problem_text(&c->problem);
        tool_library_error(text);
        free(text);
        return false;
    }
    return bench_open(c, context, o->engine, &o->sizes, o->samples);
}

/* Leaves those that could be measured in `cases`. */
static bool measure(const bench_options *o, bench_case *cases, size_t *count, attune_context *context,
                    const attune_machine_info *machine) {
    for (size_t i = 0; i < *count;)
        if (open_case(o, &cases[i], context))
            i++;
        else if (interruption_came())
            return false;
        else
            drop(cases, count, i);
    if (!*count) return false;
    bench_probes probes = {0};
    const bool measured = bench_open_probes(&probes, cases, *count, machine->isa, o->threads) &&
                          bench_rounds(cases, *count, context, &probes, o->threads, o->samples);
    bench_close_probes(&probes);
    const size_t taken = o->samples * *count;
    size_t above_peak = 0;
    if (!measured || !bench_unpin()) return false;
    for (size_t i = 0; i < *count;)
        if (bench_summarise(&cases[i]) && (!cases[i].is_compiled || bench_acquire(&cases[i], &o->common)))
            above_peak += bench_is_above_peak(cases[i++].fraction);
        else
            drop(cases, count, i);
    bench_warn_of_disturbances(probes.disturbances, taken, above_peak);
    return *count > 0;
}

/* A size that no problem leaves open is a slip of the pen. */
static bool sizes_are_used(const bench_options *o, const bench_case *cases, size_t count) {
    call_sizes sizes = o->sizes;
    for (int size = 0; size < NUM_CALL_SIZES; size++) {
        bool is_used = *sizes_at(&sizes, size) == ATTUNE_NOT_SET;
        for (size_t i = 0; i < count && !is_used; i++) {
            attune_problem p = cases[i].problem;
            problem_fill_defaults(&p);
            is_used = sizes_are_open(&p, size);
        }
        if (is_used) continue;
        tool_error("--sizes: no problem leaves %s open", sizes_name(size));
        return false;
    }
    return true;
}

/* Each problem as often as there are schedules. */
static bool parse_problems(const bench_options *o, const char *const *problems, bench_case *cases, size_t count) {
    const size_t each = o->num_schedules ? o->num_schedules : 1;
    for (size_t i = 0; i < count; i++) {
        if (o->num_schedules) cases[i].wish = o->schedules[i % each];
        cases[i].given = problems[i / each];
        if (problem_from_text(cases[i].given, &cases[i].problem)) continue;
        if (tool_looks_cut(cases[i].given, o->num_problems))
            tool_error("arguments are separate problems; join keys with commas");
        return false;
    }
    return true;
}

int cmd_bench(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "compare") == 0) {
        static char title[] = "attune bench compare";
        argv[1] = title;
        return bench_compare(argc - 1, argv + 1);
    }
    static const struct argp argp = {
        options,
        parse,
        "[PROBLEM…]\ncompare FILE...",
        "Measures problems, by default a set of ten, in interleaved rounds. Between two samples it measures the CPU's "
        "peak, and its bandwidth in reading a buffer as large as all memory that a call touches. The peak of bf16 "
        "problems is that of bf16 dot products if the instruction set in use has them; other peaks are those of "
        "multiply-adds in f32 or f64. The roofline is the longer of the two times that peak and bandwidth allow. Only "
        "visible pairs of query and key count: those that causality, windows, lengths and mask_mod leave. The spread "
        "is the range of the middle half of the samples. On a busy machine, where samples or probes differ too much, "
        "only the fastest sample is printed. Cold compile excludes the time to load LLVM. `attune bench compare` shows "
        "the results of several machines in one table.",
        tool_common_children,
        NULL,
        NULL};
    bench_options o = {.threads = 1, .samples = 30, .sizes = CALL_SIZES_NONE};
    tool_parse(&argp, argc, argv, &o);
    const char *const *const problems = o.num_problems ? o.problems : default_problems;
    const size_t set = o.is_report ? REPORT_PROBLEMS : DEFAULT_PROBLEMS;
    const size_t count = (o.num_schedules ? o.num_schedules : 1) * (o.num_problems ? o.num_problems : set);
    bench_case *const cases = calloc(count, sizeof *cases);
    size_t measured = count;
    attune_context *context = NULL;
    attune_machine_info machine = {.struct_size = sizeof machine};
    int code = TOOL_FAILED;
    bool good = cases != NULL;
    if (!good) tool_error("out of memory");
    good = good && (!o.output || tool_can_write(o.output));
    good = good && parse_problems(&o, problems, cases, count) && sizes_are_used(&o, cases, count) &&
           bench_pin(o.threads) && (context = tool_open_context(&o.common, o.threads, NULL));
    if (good && attune_get_machine_info(context, &machine) != ATTUNE_OK) {
        tool_library_error(NULL);
        good = false;
    }
    if (good && measure(&o, cases, &measured, context, &machine)) {
        code = show(&o, cases, measured, &machine);
        if (measured < count) code = TOOL_FAILED;
    }
    for (size_t i = 0; cases && i < count; i++) bench_close(&cases[i]);
    free(cases);
    attune_context_destroy(context);
    return code;
}
