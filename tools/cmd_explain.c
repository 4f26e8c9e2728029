/* attune explain: why a problem has its schedule, what its kernel is made of, and how its time compares with what was
 * to be expected. */
#define _GNU_SOURCE
#include "explain/explain.h"
#include "common/json_output.h"
#include "measure/bench_json.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

typedef struct explain_options {
    tool_common common;
    const char *problem, *schedule;
    uint32_t threads;
    call_sizes sizes;
    bool json, is_dry, has_options; /* has_options: some that need a problem of attention */
} explain_options;

static const struct argp_option options[] = {
    {"schedule", TOOL_KEY_SCHEDULE, "KEY=N,...", 0, "Explain the chosen schedule with these changes", 0},
    {"threads", TOOL_KEY_THREADS, "N", 0,
     "Show how N threads share the tasks (default 1); the call is measured with at most as many as there are CPUs", 0},
    {"sizes", TOOL_KEY_SIZES, "KEY=N,...", 0, "Values for sizes that are dynamic in the problem", 0},
    {"dry-run", TOOL_KEY_DRY_RUN, NULL, 0, "Measure nothing", 0},
    {"target", TOOL_KEY_TARGET, "NAME", 0,
     "With --dry-run: explain the choice for this instruction set, which this CPU need not have", 0},
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    explain_options *const o = state->input;
    o->has_options |= key == TOOL_KEY_SCHEDULE || key == TOOL_KEY_THREADS || key == TOOL_KEY_SIZES ||
                      key == TOOL_KEY_DRY_RUN || key == TOOL_KEY_TARGET;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case TOOL_KEY_SCHEDULE: o->schedule = argument; return 0;
    case TOOL_KEY_THREADS: o->threads = (uint32_t)tool_parse_integer(state, "threads", argument, 1, 1024); return 0;
    case TOOL_KEY_SIZES:
        if (!sizes_parse(argument, &o->sizes)) exit(TOOL_USAGE);
        return 0;
    case TOOL_KEY_DRY_RUN: o->is_dry = true; return 0;
    case TOOL_KEY_TARGET: o->common.target = argument; return 0;
    case TOOL_KEY_JSON: o->json = true; return 0;
    case ARGP_KEY_ARG: tool_take_one(state, "problem", argument, &o->problem); return 0;
    case ARGP_KEY_END:
        if (!o->problem) argp_error(state, "a PROBLEM is needed");
        if (o->has_options && problem_text_is_described(o->problem))
            argp_error(state, "a description has no --schedule, --threads, --sizes, --dry-run or --target here: attune "
                              "run measures a step, attune compile --emit shows the code for a target");
        tool_check_target(state, &o->common, o->is_dry && o->threads == 1, "--dry-run, and one thread");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* ---- Finding out ---- */

static bool lacks_compiler(attune_status status) {
    return status == ATTUNE_NOT_CACHED || status == ATTUNE_CODEGEN_MISSING;
}

/* Sets the lengths that the problem leaves open to those of the call; model and tiles need them. */
static void settle(attune_problem *p, const call_sizes *sizes) {
    if (p->seq_q == ATTUNE_DYNAMIC && sizes->seq_q > 0) p->seq_q = sizes->seq_q;
    if (p->seq_kv == ATTUNE_DYNAMIC && sizes->seq_kv > 0) p->seq_kv = sizes->seq_kv;
}

/* The schedule of the kernel that a program gets. One that is cached has kept its own, whatever would be chosen today.
 * Nothing is cached for a target that this CPU may lack. */
static bool find_schedule(const explain_options *o, attune_context *context, const attune_problem *problem,
                          explanation *e) {
    if (o->common.target) return true;
    attune_kernel *kernel = NULL;
    attune_kernel_info info = {.struct_size = sizeof info};
    const attune_status status = attune_compile(context, problem, NULL, &kernel);
    const bool good = status == ATTUNE_OK && attune_kernel_get_info(kernel, &info) == ATTUNE_OK;
    attune_kernel_release(kernel);
    e->lacks_code = lacks_compiler(status) || (good && info.origin == ATTUNE_FROM_TIER0);
    if (e->lacks_code) return true;
    if (!good) return false;
    e->is_kept = strcmp(e->prediction.schedule, info.schedule) != 0;
    return !e->is_kept || attune_schedule_predict(context, problem, info.schedule, &e->prediction) == ATTUNE_OK;
}

static bool choose(const explain_options *o, attune_context *context, const attune_problem *problem, explanation *e) {
    e->prediction.struct_size = sizeof e->prediction;
    e->has_schedule = o->schedule != NULL;
    if (attune_schedule_predict(context, problem, o->schedule, &e->prediction) != ATTUNE_OK ||
        !(o->schedule || find_schedule(o, context, problem, e)) ||
        mha_schedule_parse(e->prediction.schedule, &e->schedule, NULL)) {
        tool_library_error(NULL);
        return false;
    }
    strcpy(e->schedule_text, e->prediction.schedule);
    e->problem = *problem;
    problem_fill_defaults(&e->problem);
    const bool varies = e->problem.is_ragged || e->problem.has_kv_lens || e->problem.page_size;
    const bool is_open = varies && (e->problem.seq_q < 0 || e->problem.is_ragged) && e->problem.seq_kv < 0;
    settle(&e->problem, &o->sizes);
    e->has_model = e->problem.op == ATTUNE_ATTENTION || e->problem.op == ATTUNE_MHA;
    e->has_tiles = e->has_model && tile_cut_of(&e->problem, &e->schedule, is_open, &e->tiles);
    /* With open lengths the model has made up some; where it takes the real ones, those are better. */
    attune_prediction settled = {.struct_size = sizeof settled};
    if (attune_schedule_predict(context, &e->problem, e->schedule_text, &settled) == ATTUNE_OK) {
        settled.is_tuned = e->prediction.is_tuned;
        e->prediction = settled;
    }
    return true;
}

/* The rules that decided, if attune chose by rules. */
static bool find_reasons(attune_context *context, const attune_problem *problem, explanation *e) {
    attune_reason reason = ATTUNE_REASON_INIT;
    if (!e->has_model || e->has_schedule || e->is_kept || e->prediction.is_tuned) return true;
    do {
        attune_reason *const more = realloc(e->reasons, (e->num_reasons + 1) * sizeof *more);
        if (!more) {
            tool_error("out of memory");
            return false;
        }
        e->reasons = more;
        if (attune_schedule_reason(context, problem, reason.row, &reason) != ATTUNE_OK)
            return tool_library_error(NULL) == TOOL_OK;
        e->reasons[e->num_reasons] = reason;
        e->num_reasons += reason.row > 0;
    } while (reason.row);
    return true;
}

static bool look_at_code(attune_context *context, const attune_problem *problem, explanation *e) {
    void *text = NULL;
    size_t bytes;
    const attune_status status = attune_emit(context, problem, e->schedule_text, ATTUNE_STAGE_ASM, &text, &bytes);
    if (lacks_compiler(status)) snprintf(e->why_no_code, sizeof e->why_no_code, "%s", attune_last_message());
    e->lacks_code = e->lacks_code || lacks_compiler(status);
    if (e->lacks_code) return true;
    if (status != ATTUNE_OK) {
        tool_library_error("compiling");
        return false;
    }
    e->num_loops = asm_find_loops(text, e->loops, EXPLAIN_LOOPS);
    while (e->num_loops && !e->loops[e->num_loops - 1].count[ASM_MULTIPLY]) e->num_loops--;
    attune_free(context, text);
    return true;
}

static bool measure(const explain_options *o, attune_context *context, const attune_problem *problem, explanation *e) {
    enum { SAMPLES = 12 };
    bench_probes probes = {0};
    e->bench.problem = *problem;
    e->bench.wish = e->has_schedule ? e->schedule_text : NULL;
    const bool good = bench_open(&e->bench, context, ATTUNE_ENGINE_JIT, &o->sizes, SAMPLES) &&
                      bench_open_probes(&probes, &e->bench, 1, e->machine.isa, e->measured_threads) &&
                      bench_rounds(&e->bench, 1, context, &probes, e->measured_threads, SAMPLES) &&
                      bench_summarise(&e->bench);
    bench_close_probes(&probes);
    bench_warn_of_disturbances(probes.disturbances, SAMPLES, bench_is_above_peak(e->bench.fraction));
    return good;
}

double explain_cycles(const attune_prediction *p) {
    return p->scores + p->softmax + p->values + p->tasks + p->products;
}

/* The model's cycles at the speed that the peak shows. */
static double predicted_us(const explanation *e, uint32_t threads) {
    const double ghz = e->bench.peak_gflops / (e->prediction.flops_per_cycle * (double)threads);
    return ghz > 0 ? explain_cycles(&e->prediction) / (ghz * 1e3 * (double)threads) : 0;
}

/* ---- JSON ---- */

static json_t *loops_json(const explanation *e) {
    json_t *const list = json_array();
    for (size_t i = 0; i < e->num_loops; i++) {
        const asm_loop *const l = &e->loops[i];
        json_t *const loop = json_pack("{s:s, s:s, s:I, s:o}", "name", l->name, "function", l->function, "instructions",
                                       (json_int_t)l->instructions, "accumulators",
                                       l->accumulators ? json_integer((json_int_t)l->accumulators) : json_null());
        for (int c = 0; loop && c < ASM_CLASSES; c++)
            json_object_set_new(loop, asm_class_name((asm_class)c), json_integer((json_int_t)l->count[c]));
        json_array_append_new(list, loop);
    }
    return list;
}

static json_t *reasons_json(const explanation *e) {
    json_t *const list = json_array();
    for (size_t i = 0; i < e->num_reasons; i++) {
        const attune_reason *const r = &e->reasons[i];
        json_array_append_new(list, json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:f}", "line", r->line, "subject",
                                              r->subject, "condition", r->condition, "factor", r->factor, "evidence",
                                              r->evidence, "instead", r->schedule, "instead_cost", r->cost));
    }
    return list;
}

static json_t *model_json(const explanation *e) {
    const attune_prediction *const p = &e->prediction;
    if (!e->has_model) return json_null();
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "all", explain_cycles(p), "scores", p->scores, "softmax",
                     p->softmax, "values", p->values, "tasks", p->tasks, "products", p->products);
}

static json_t *measured_json(const explanation *e) {
    const bench_case *const b = &e->bench;
    const double all = b->work.all_pairs;
    json_t *const measured = json_pack(
        "{s:i, s:f, s:o, s:f, s:f, s:s, s:f, s:s, s:f, s:o, s:f, s:f, s:f}", "threads", (int)e->measured_threads,
        "flops", b->work.flops, "share_seen", all > 0 ? json_real(b->work.pairs / all) : json_null(), "bytes",
        b->work.bytes, "peak_gflops", b->peak_gflops, "peak_dtype", tool_dtype_name(b->peak_dtype), "bandwidth_gbs",
        b->bandwidth_gbs, "bound", b->is_memory_bound ? "memory" : "compute", "roofline_us",
        b->work.flops / b->roofline_gflops * 1e-3, "predicted_us",
        e->has_model ? json_real(e->predicted_us) : json_null(), "median_us", b->median_us, "fraction_of_peak",
        b->fraction, "fraction_of_roofline", b->fraction_of_roofline);
    return bench_busy_json(b, measured);
}

static json_t *tasks_json(const task_report *r) {
    json_t *const list = json_array();
    for (size_t p = 0; p < r->num_phases; p++)
        json_array_append_new(list, json_pack("{s:I, s:I, s:o, s:f}", "tasks", (json_int_t)r->phases[p].tasks, "waves",
                                              (json_int_t)r->phases[p].most, "us",
                                              r->is_measured ? json_real(r->phases[p].seconds * 1e6) : json_null(),
                                              "idle", r->phases[p].idle));
    return json_pack("{s:i, s:b, s:o, s:o}", "threads", (int)r->threads, "is_measured", (int)r->is_measured, "idle",
                     r->has_idle ? json_real(r->idle) : json_null(), "phases", list);
}

static int print_json(const explanation *e) {
    json_t *const root = json_pack("{s:s, s:s, s:s, s:o, s:b, s:b, s:s, s:o, s:o, s:o}", "problem", e->text, "schedule",
                                   e->schedule_text, "chosen_by",
                                   e->has_schedule          ? "caller"
                                   : e->is_kept             ? "cache"
                                   : e->prediction.is_tuned ? "tuning"
                                                            : "rules",
                                   "reasons", reasons_json(e), "is_measured", (int)e->is_measured, "lacks_code",
                                   (int)e->lacks_code, "why_no_code", e->why_no_code, "tiles",
                                   e->has_tiles ? tile_json(&e->problem, &e->tiles) : json_null(), "model_cycles",
                                   model_json(e), "loops", loops_json(e));
    if (root && e->is_measured && json_object_set_new(root, "measured", measured_json(e)) != 0) {
        json_decref(root);
        return tool_print_json(NULL);
    }
    if (root && e->threads > 1 && !e->lacks_code && json_object_set_new(root, "tasks", tasks_json(&e->tasks)) != 0) {
        json_decref(root);
        return tool_print_json(NULL);
    }
    return json_print(&e->machine, e->threads, root);
}

/* ---- The command ---- */

/* More threads than CPUs would measure how they wait for each other. */
static uint32_t measured_threads(uint32_t threads) {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
    const uint32_t cpus = (uint32_t)CPU_COUNT(&allowed);
    return threads < cpus ? threads : cpus;
}

static int explain(const explain_options *o, attune_context *context, const attune_problem *given, explanation *e) {
    e->machine.struct_size = sizeof e->machine;
    e->threads = o->threads;
    e->measured_threads = measured_threads(o->threads);
    if (attune_get_machine_info(context, &e->machine) != ATTUNE_OK) return tool_library_error(NULL);
    if (!choose(o, context, given, e) || !find_reasons(context, given, e) || !look_at_code(context, given, e))
        return TOOL_FAILED;
    const bool measures = !o->is_dry && !e->lacks_code;
    if (measures && (!bench_pin(e->measured_threads) || !measure(o, context, given, e))) return TOOL_FAILED;
    if (o->threads > 1 && !e->lacks_code &&
        !tasks_find(context, given, e->has_schedule ? e->schedule_text : NULL, &o->sizes, o->threads, measures,
                    &e->tasks))
        return TOOL_FAILED;
    e->is_measured = measures;
    e->predicted_us = measures ? predicted_us(e, e->measured_threads) : 0;
    e->text = problem_text(given);
    if (!e->text) {
        tool_error("out of memory");
        return TOOL_FAILED;
    }
    if (o->json) return print_json(e);
    explain_print(e);
    return TOOL_OK;
}

int cmd_explain(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "PROBLEM",
        "Says why a problem has its schedule, and shows which tiles are computed, the cycles that the cost model "
        "expects, the instructions of the innermost loops (spills are vectors on the stack), and the measured time "
        "compared with that of the model and of the roofline. For the description of another operator (op=linear,...) "
        "it shows the kernels, and which steps use them.",
        tool_common_children,
        NULL,
        NULL};
    explain_options o = {.threads = 1, .sizes = CALL_SIZES_NONE};
    explanation e = {0};
    attune_problem problem;
    tool_parse(&argp, argc, argv, &o);
    attune_context *context = NULL;
    if (problem_text_is_described(o.problem)) {
        context = tool_open_context(&o.common, 0, NULL);
        const int code = context ? explain_described(context, o.problem, o.json) : TOOL_FAILED;
        attune_context_destroy(context);
        return code;
    }
    if (problem_from_text(o.problem, &problem) && sizes_check(&o.sizes, &problem))
        context = tool_open_context(&o.common, measured_threads(o.threads), NULL);
    const int code = context ? explain(&o, context, &problem, &e) : TOOL_FAILED;
    bench_close(&e.bench);
    free(e.text);
    free(e.reasons);
    if (context) attune_context_destroy(context);
    return code;
}
