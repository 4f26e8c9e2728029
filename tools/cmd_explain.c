/* attune explain: why a problem has its schedule, what its kernel is made of, and how its time compares with what was
 * to be expected. */
#include "asm_loops.h"
#include "bench.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LOOPS = 6 };

typedef struct explain_options {
    tool_common common;
    const char *problem, *schedule;
    uint32_t threads;
    call_sizes sizes;
    bool json, is_dry;
} explain_options;

/* Everything that is shown. */
typedef struct explanation {
    attune_problem problem;
    attune_schedule schedule;
    attune_prediction prediction;
    bool has_schedule;
    attune_machine_info machine;
    asm_loop loops[MAX_LOOPS];
    size_t num_loops;
    bench_entry bench;
    double predicted_us;
} explanation;

static const struct argp_option options[] = {
    {"schedule", TOOL_KEY_SCHEDULE, "KEY=N,...", 0, "Explain this one instead of the chosen one", 0},
    {"threads", TOOL_KEY_THREADS, "N", 0, "Threads of the measurement (default 1)", 0},
    {"sizes", TOOL_KEY_SIZES, "KEY=N,...", 0, "Run-time sizes, where the problem leaves them open", 0},
    {"dry-run", TOOL_KEY_DRY_RUN, NULL, 0, "Measure nothing", 0},
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    explain_options *const o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case TOOL_KEY_SCHEDULE: o->schedule = argument; return 0;
    case TOOL_KEY_THREADS: o->threads = (uint32_t)tool_parse_integer(state, "threads", argument, 1, 1024); return 0;
    case TOOL_KEY_SIZES:
        if (!sizes_parse(argument, &o->sizes)) exit(TOOL_USAGE);
        return 0;
    case TOOL_KEY_DRY_RUN: o->is_dry = true; return 0;
    case TOOL_KEY_JSON: o->json = true; return 0;
    case ARGP_KEY_ARG:
        if (o->problem) argp_error(state, "one PROBLEM only, but '%s' follows '%s'", argument, o->problem);
        o->problem = argument;
        return 0;
    case ARGP_KEY_END:
        if (!o->problem) argp_error(state, "a PROBLEM is needed");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* ---- Finding out ---- */

static bool choose(const explain_options *o, attune_context *context, explanation *e) {
    e->schedule = (attune_schedule)ATTUNE_SCHEDULE_INIT;
    e->prediction.struct_size = sizeof e->prediction;
    e->has_schedule = o->schedule != NULL;
    /* What is not named is as it would be chosen. */
    if (attune_schedule_predict(context, &e->problem, NULL, &e->schedule, &e->prediction) != ATTUNE_OK ||
        (o->schedule &&
         (attune_schedule_parse(o->schedule, &e->schedule) != ATTUNE_OK ||
          attune_schedule_predict(context, &e->problem, &e->schedule, NULL, &e->prediction) != ATTUNE_OK))) {
        tool_library_error(NULL);
        return false;
    }
    return true;
}

static bool look_at_code(attune_context *context, explanation *e) {
    void *text = NULL;
    size_t bytes;
    if (attune_emit(context, &e->problem, &e->schedule, ATTUNE_STAGE_ASM, &text, &bytes) != ATTUNE_OK) {
        tool_library_error("compiling");
        return false;
    }
    e->num_loops = asm_find_loops(text, e->loops, MAX_LOOPS);
    attune_free(context, text);
    return true;
}

static bool measure(const explain_options *o, attune_context *context, explanation *e) {
    enum { SAMPLES = 12 };
    bench_probes probes = {0};
    e->bench.problem = e->problem;
    e->bench.wish = &e->schedule;
    const bool good = bench_open(&e->bench, context, ATTUNE_ENGINE_JIT, &o->sizes, SAMPLES) &&
                      bench_open_probes(&probes, &e->bench, 1, e->machine.isa, o->threads) &&
                      bench_rounds(&e->bench, 1, context, &probes, o->threads, SAMPLES) && bench_summarise(&e->bench);
    bench_close_probes(&probes);
    bench_warn_of_disturbances(probes.disturbances, SAMPLES);
    return good;
}

static double cycles(const attune_prediction *p) { return p->scores + p->softmax + p->values + p->tasks + p->products; }

/* The model's cycles at the speed that the peak shows. */
static double predicted_us(const explanation *e, uint32_t threads) {
    const double ghz = e->bench.peak_gflops / (e->prediction.flops_per_cycle * (double)threads);
    return ghz > 0 ? cycles(&e->prediction) / (ghz * 1e3 * (double)threads) : 0;
}

/* ---- Text ---- */

static int64_t rows_of(const attune_problem *p) {
    return p->seq_q > 0 ? p->seq_q * (p->num_heads / p->num_kv_heads) : -1;
}

static int64_t round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

static void print_share(const char *name, double part, double whole) {
    if (part > 0) printf("              %-10s %4.1f %%\n", name, 100 * part / whole);
}

static void print_waste(const char *what, int64_t needed, int64_t computed) {
    if (needed > 0)
        printf("              %lld %s are computed as %lld: %.1f %% for nothing\n", (long long)needed, what,
               (long long)computed, 100 * (1 - (double)needed / (double)computed));
}

/* The tiles of one task, each block of rows a line, each tile of keys a cell. */
static void print_picture(const attune_schedule *s, int64_t rows, int64_t keys) {
    enum { MOST = 12 };
    const bool q = s->strategy == ATTUNE_Q_LANES;
    const int64_t block = q ? (int64_t)s->score_vectors * s->lanes : s->score_vectors;
    int64_t blocks = q ? s->q_vectors / s->score_vectors : rows > 0 ? round_up(rows, block) / block : 1;
    if (q && rows > 0 && blocks > round_up(rows, block) / block) blocks = round_up(rows, block) / block;
    const int64_t span = q ? keys : s->kv_chunk, tile = keys > 0 && s->kv_tile > keys ? keys : s->kv_tile;
    int64_t tiles = span > 0 ? round_up(keys > 0 && span > keys ? keys : span, tile) / tile : MOST;
    const bool many = tiles > MOST;
    if (many) tiles = MOST;
    printf("\none task      %lld block%s of %lld rows (%s), %s%lld tile%s of %lld keys\n", (long long)blocks,
           blocks == 1 ? "" : "s", (long long)block, q ? "lanes run along them" : "lanes run along head_dim",
           many ? "more than " : "", (long long)tiles, tiles == 1 ? "" : "s", (long long)tile);
    for (int64_t line = 0; line < blocks && line < MOST; line++) {
        printf("              ");
        for (int64_t cell = 0; cell < tiles; cell++) printf("[%2d x %-2d]", s->score_rows, s->score_vectors);
        printf("%s%s\n", many ? " ..." : "",
               line == 0 ? q ? "  keys x vectors of rows in a register tile of scores"
                             : "  keys x rows in a register tile of scores"
                         : "");
    }
}

static void print_why(const explanation *e) {
    const attune_schedule *const s = &e->schedule;
    const bool q = s->strategy == ATTUNE_Q_LANES;
    const int registers = strncmp(e->machine.isa, "avx512", 6) == 0 || strcmp(e->machine.isa, "aarch64") == 0 ? 32 : 16;
    const int64_t rows = rows_of(&e->problem);
    printf("\nwhy           %s\n", e->has_schedule ? "it was asked for"
                                   : e->prediction.is_tuned
                                       ? "it won when this problem, or one of nearly the same lengths, was tuned"
                                       : "attune's rules for this shape; nothing was tuned that is near");
    if (rows > 0)
        printf("              %lld rows for each KV head: %s\n", (long long)rows,
               q ? "enough to fill vectors with rows" : "few, so that reading K and V once is what takes the time");
    printf("              scores: %d x %d = %d accumulators and %d operands of %d registers\n", s->score_rows,
           s->score_vectors, s->score_rows * s->score_vectors, q ? s->score_vectors + 1 : s->score_rows + 1, registers);
    printf("              values: %d x %d = %d accumulators\n", s->value_rows, s->value_vectors,
           s->value_rows * s->value_vectors);
    if (s->gemm_rows)
        printf("              products: %d x %d = %d accumulators, %d rows in a task\n", s->gemm_rows, s->gemm_vectors,
               s->gemm_rows * s->gemm_vectors, s->gemm_block);
    if (q) print_waste("rows", rows, rows > 0 ? round_up(rows, (int64_t)s->score_vectors * s->lanes) : 0);
    if (q && e->problem.seq_kv > 0) print_waste("keys", e->problem.seq_kv, round_up(e->problem.seq_kv, s->score_rows));
}

static void print_loops(const explanation *e) {
    printf("\nloops         the innermost ones with most multiplications\n");
    printf("              %-10s %5s", "", "all");
    for (int c = 0; c < ASM_CLASSES; c++) printf(" %9s", asm_class_name((asm_class)c));
    printf("\n");
    for (size_t i = 0; i < e->num_loops && e->loops[i].count[ASM_MULTIPLY]; i++) {
        printf("              %-10s %5zu", e->loops[i].function, e->loops[i].instructions);
        for (int c = 0; c < ASM_CLASSES; c++) printf(" %9zu", e->loops[i].count[c]);
        printf("\n");
    }
}

static void print_text(const explain_options *o, const explanation *e, const char *problem, const char *schedule) {
    const attune_prediction *const p = &e->prediction;
    const bench_entry *const b = &e->bench;
    const double all = cycles(p);
    printf("problem       %s\nschedule      %s\n", problem, schedule);
    print_why(e);
    print_picture(&e->schedule, rows_of(&e->problem), e->problem.low_rank ? e->problem.low_rank : e->problem.seq_kv);
    printf("\nmodel         %.3g cycles of one thread\n", all);
    print_share("scores", p->scores, all);
    print_share("softmax", p->softmax, all);
    print_share("values", p->values, all);
    print_share("tasks", p->tasks, all);
    print_share("products", p->products, all);
    if (!o->is_dry) {
        printf("\nwork          %.4g GFLOP, %.4g MB of tensors\n", b->work.flops * 1e-9, b->work.bytes * 1e-6);
        printf("peak          %.1f GFLOP/s in %s, %.1f GB/s read\n", b->peak_gflops, tool_dtype_name(b->peak_dtype),
               b->bandwidth_gbs);
        printf("roofline      %.2f us, bound by %s\n", b->work.flops / b->roofline_gflops * 1e-3,
               b->is_memory_bound ? "memory" : "arithmetic");
        printf("predicted     %.2f us\n", e->predicted_us);
        printf("measured      %.2f us: %.1f %% of the peak, %.1f %% of the roofline\n", b->median_us, 100 * b->fraction,
               100 * b->fraction_of_roofline);
    }
    print_loops(e);
}

/* ---- JSON ---- */

static json_t *loops_json(const explanation *e) {
    json_t *const list = json_array();
    for (size_t i = 0; i < e->num_loops && e->loops[i].count[ASM_MULTIPLY]; i++) {
        json_t *const loop = json_pack("{s:s, s:I}", "function", e->loops[i].function, "instructions",
                                       (json_int_t)e->loops[i].instructions);
        for (int c = 0; loop && c < ASM_CLASSES; c++)
            json_object_set_new(loop, asm_class_name((asm_class)c), json_integer((json_int_t)e->loops[i].count[c]));
        json_array_append_new(list, loop);
    }
    return list;
}

static int print_json(const explain_options *o, const explanation *e, const char *problem, const char *schedule) {
    const attune_prediction *const p = &e->prediction;
    const bench_entry *const b = &e->bench;
    json_t *const root =
        json_pack("{s:i, s:s, s:s, s:s, s:s, s:b, s:{s:f, s:f, s:f, s:f, s:f, s:f}, s:o}", "schema", 1, "problem",
                  problem, "schedule", schedule, "isa", e->machine.isa, "chosen_by",
                  e->has_schedule ? "caller"
                  : p->is_tuned   ? "tuning"
                                  : "rules",
                  "is_measured", (int)!o->is_dry, "model_cycles", "all", cycles(p), "scores", p->scores, "softmax",
                  p->softmax, "values", p->values, "tasks", p->tasks, "products", p->products, "loops", loops_json(e));
    if (root && !o->is_dry)
        json_object_set_new(root, "measured",
                            json_pack("{s:i, s:f, s:f, s:f, s:s, s:f, s:s, s:f, s:f, s:f, s:f, s:f}", "threads",
                                      (int)o->threads, "flops", b->work.flops, "bytes", b->work.bytes, "peak_gflops",
                                      b->peak_gflops, "peak_dtype", tool_dtype_name(b->peak_dtype), "bandwidth_gbs",
                                      b->bandwidth_gbs, "bound", b->is_memory_bound ? "memory" : "compute",
                                      "roofline_us", b->work.flops / b->roofline_gflops * 1e-3, "predicted_us",
                                      e->predicted_us, "median_us", b->median_us, "fraction_of_peak", b->fraction,
                                      "fraction_of_roofline", b->fraction_of_roofline));
    return tool_print_json(root);
}

/* ---- The command ---- */

static int explain(const explain_options *o, attune_context *context, explanation *e) {
    e->machine.struct_size = sizeof e->machine;
    if (attune_get_machine_info(context, &e->machine) != ATTUNE_OK) return tool_library_error(NULL);
    if (!choose(o, context, e) || !look_at_code(context, e)) return TOOL_FAILED;
    if (!o->is_dry && (!bench_pin(o->threads) || !measure(o, context, e))) return TOOL_FAILED;
    e->predicted_us = o->is_dry ? 0 : predicted_us(e, o->threads);
    problem_fill_defaults(&e->problem);
    char *const problem = problem_text(&e->problem), *const schedule = schedule_text(&e->schedule);
    int code = TOOL_FAILED;
    if (!problem || !schedule)
        tool_error("out of memory");
    else if (o->json)
        code = print_json(o, e, problem, schedule);
    else {
        print_text(o, e, problem, schedule);
        code = TOOL_OK;
    }
    free(problem);
    free(schedule);
    return code;
}

int cmd_explain(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "PROBLEM",
        "Says why a problem has its schedule, shows the tiles of a task, where a model expects the cycles to go, what "
        "the innermost loops are made of (spills are vectors on the stack), and the measured time beside the model's "
        "and the roofline's.",
        tool_common_children,
        NULL,
        NULL};
    explain_options o = {.threads = 1};
    explanation e = {0};
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    attune_context *context = NULL;
    if (problem_from_text(o.problem, &e.problem) && tool_threads_fit(o.threads))
        context = tool_open_context(&o.common, o.threads, NULL);
    const int code = context ? explain(&o, context, &e) : TOOL_FAILED;
    bench_close(&e.bench);
    if (context) attune_context_destroy(context);
    return code;
}
