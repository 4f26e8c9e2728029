/* attune-lab check: kernels against the interpreter, bit for bit, and against an f64 reference. */
#include "lab.h"
#include "check/check_case.h"
#include "common/json_output.h"
#include "common/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct check_options {
    tool_common common;
    const char *problem, *sizes, *schedule;
    int64_t random, first; /* number of random cases, or 0; number of the first one */
    uint64_t seed;
    double max_flops; /* 0: the default, which differs by mode */
    uint32_t threads; /* 0: all */
    int inputs;       /* an input_kind, or -1: all */
    bool ftz, accuracy, functions, json;
} check_options;

typedef struct check_totals {
    bool is_random;
    uint64_t passed, failed;
    check_errors errors[INPUT_KIND_COUNT], f16, bf16, f64; /* those of f32 by kind of input */
    json_t *failures;                                      /* objects; NULL: failures are printed as they come */
} check_totals;

static const struct argp_option options[] = {
    {"random", TOOL_KEY_RANDOM, "N", 0, "N random problems with random schedules", 0},
    {"functions", TOOL_KEY_FUNCTIONS, NULL, 0,
     "Only random problems with functions on scores, masks or probabilities; small ones", 0},
    {"seed", TOOL_KEY_SEED, "S", 0, "Seed of the random problems, or of the data of PROBLEM (default 1)", 0},
    {"first", TOOL_KEY_FIRST, "I", 0, "Begin with random problem number I of this seed (default 0)", 0},
    {"sizes", TOOL_KEY_SIZES, "K=N,...", 0,
     "Run-time sizes of PROBLEM: seq_q, seq_kv, seq_new, num_rows, total_q, total_kv, num_pages, max_pages, "
     "mask_seq_kv, bias_seq_kv, rotary_positions, rotary_batch_stride, num_ids",
     0},
    {"max-flops", TOOL_KEY_MAX_FLOPS, "X", 0,
     "Upper bound on operations: of random problems (default 4e6, --functions 1e5), PROBLEM (2e10) or --accuracy", 0},
    {"schedule", TOOL_KEY_SCHEDULE, "K=V,...", 0, "Change the chosen schedule of PROBLEM", 0},
    {"threads", TOOL_KEY_THREADS, "N", 0, "Run PROBLEM with 1, 2 or 3 threads only", 0},
    {"inputs", TOOL_KEY_INPUTS, "KIND", 0,
     "Data for PROBLEM: ordinary, large, overflow, denormal, constant, nonfinite or hidden instead of each", 0},
    {"engine", TOOL_KEY_ENGINE, "jit|vm", 0, "Compare machine code (default) or the virtual machine", 0},
    {"ftz", TOOL_KEY_FTZ, NULL, 0, "Call with denormals flushed to zero", 0},
    {"accuracy", TOOL_KEY_ACCURACY, NULL, 0, "A table of errors of all combinations of types, on fixed problems", 0},
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

static int parse_inputs(struct argp_state *state, const char *text) {
    for (int kind = 0; kind < INPUT_KIND_COUNT; kind++)
        if (strcmp(text, input_kind_name((input_kind)kind)) == 0) return kind;
    argp_error(state,
               "--inputs is one of ordinary, large, overflow, denormal, constant, nonfinite and hidden, not '%s'",
               text);
    return -1;
}

static double parse_flops(struct argp_state *state, const char *text) {
    char *end = NULL;
    const double value = strtod(text, &end);
    if (end == text || *end || !(value >= 1 && value <= 1e12))
        argp_error(state, "--max-flops must be a number from 1 to 1e12, not '%s'", text);
    return value;
}

static error_t parse(int key, char *argument, struct argp_state *state) {
    check_options *const o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case TOOL_KEY_RANDOM: o->random = tool_parse_integer(state, "random", argument, 1, 100000000); return 0;
    case TOOL_KEY_SEED: o->seed = (uint64_t)tool_parse_integer(state, "seed", argument, 0, INT64_MAX); return 0;
    case TOOL_KEY_FIRST: o->first = tool_parse_integer(state, "first", argument, 0, INT64_MAX / 2); return 0;
    case TOOL_KEY_MAX_FLOPS: o->max_flops = parse_flops(state, argument); return 0;
    case TOOL_KEY_SIZES: o->sizes = argument; return 0;
    case TOOL_KEY_SCHEDULE: o->schedule = argument; return 0;
    case TOOL_KEY_THREADS:
        o->threads = (uint32_t)tool_parse_integer(state, "threads", argument, 1, CHECK_MAX_THREADS);
        return 0;
    case TOOL_KEY_INPUTS: o->inputs = parse_inputs(state, argument); return 0;
    case TOOL_KEY_ENGINE:
        if (tool_parse_engine(state, argument) == ATTUNE_ENGINE_INTERPRETER)
            argp_error(state, "--engine is 'jit' or 'vm': the interpreter is what they are compared with");
        return 0;
    case TOOL_KEY_FTZ: o->ftz = true; return 0;
    case TOOL_KEY_ACCURACY: o->accuracy = true; return 0;
    case TOOL_KEY_FUNCTIONS: o->functions = true; return 0;
    case TOOL_KEY_JSON: o->json = true; return 0;
    case ARGP_KEY_ARG: tool_take_one(state, "problem", argument, &o->problem); return 0;
    case ARGP_KEY_END:
        if (!!o->problem + !!o->random + o->accuracy != 1)
            argp_error(state, "either a problem or --random N or --accuracy is needed");
        if (o->first && !o->random) argp_error(state, "--first is for --random");
        if (o->functions && !o->random) argp_error(state, "--functions is for --random");
        if (o->accuracy && (o->schedule || o->sizes || o->threads || o->inputs >= 0 || o->ftz))
            argp_error(state, "--accuracy takes --isa, --seed and --max-flops only");
        if (o->random && (o->schedule || o->sizes || o->threads || o->inputs >= 0 || o->ftz))
            argp_error(state, "--schedule, --sizes, --threads, --inputs and --ftz are drawn by --random");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* Splits the list of ISAs in place. false after a message. */
static bool split_isas(char *list, check_machine *machine) {
    char *save = NULL;
    for (char *name = strtok_r(list, ", ", &save); name; name = strtok_r(NULL, ", ", &save)) {
        if (machine->num_isas == CHECK_MAX_ISAS) {
            tool_error("--isa takes at most %d instruction sets", CHECK_MAX_ISAS);
            return false;
        }
        machine->isas[machine->num_isas++] = name;
    }
    if (!machine->num_isas) tool_error("--isa names no instruction set");
    return machine->num_isas > 0;
}

/* The ISAs asked for, else all that this CPU runs. The text that `machine` points into; free it. */
static char *find_isas(const check_options *o, check_machine *machine) {
    char *list = NULL;
    if (o->common.isa && strcmp(o->common.isa, "all") != 0) {
        list = strdup(o->common.isa);
    } else {
        attune_machine_info info = {.struct_size = sizeof info};
        attune_context *const context = tool_open_context(&(tool_common){0}, 1, "");
        if (!context) return NULL;
        if (attune_get_machine_info(context, &info) == ATTUNE_OK)
            list = strdup(info.isas);
        else
            tool_library_error(NULL);
        attune_context_destroy(context);
    }
    if (!list || !split_isas(list, machine)) {
        free(list);
        return NULL;
    }
    /* An unknown name gives one message here, not one for each problem. */
    for (uint32_t i = 0; i < machine->num_isas; i++)
        if (!check_context(machine, i, 1)) {
            free(list);
            return NULL;
        }
    return list;
}

/* Whether numbers that a kernel computes become codes. One that lies between two of them may be a whole code off, in
 * this kernel or in the plain implementation: a few such numbers make all of a sum of errors. */
static bool rounds_to_codes(const attune_problem *p) { return p->x_planes || p->integer; }

/* Rounding errors of one type say nothing about those of another. NULL: they count for none. */
static check_errors *errors_of(check_totals *totals, const check_case *c) {
    attune_problem p = c->problem;
    problem_fill_defaults(&p);
    if (totals->is_random && (rounds_to_codes(&p) || p.matmul_precision)) return NULL;
    if (p.dtype == ATTUNE_F16) return &totals->f16;
    if (p.dtype == ATTUNE_BF16) return &totals->bf16;
    if (p.dtype == ATTUNE_F64) return &totals->f64;
    /* f32 that is computed in f64 is rounded once, by every implementation. */
    return p.softmax_precision == ATTUNE_F64 ? NULL : &totals->errors[c->inputs];
}

/* command: NULL when out of memory. */
static void tell_failure(const check_totals *totals, const char *reason, const char *command) {
    if (!command) command = "(out of memory)";
    if (!totals->failures) {
        printf("FAILED: %s\n    %s\n", reason, command);
        fflush(stdout);
        return;
    }
    json_array_append_new(totals->failures, json_pack("{s:s, s:s}", "reason", reason, "command", command));
    tool_error("%s: %s", reason, command);
}

static void run_one(check_machine *machine, check_case *c, int64_t number, check_totals *totals) {
    char reason[ATTUNE_MESSAGE_BYTES] = "";
    check_errors own = {0}, *const errors = errors_of(totals, c);
    const check_outcome outcome = check_run(machine, c, &own, reason);
    own.worst = number;
    if (errors) check_add_errors(errors, &own);
    if (outcome == CHECK_PASSED) {
        totals->passed++;
        return;
    }
    totals->failed++;
    check_shrink(machine, c, outcome, reason);
    char *const command = check_command(machine, c);
    tell_failure(totals, reason, command);
    free(command);
}

/* The command that runs random problems again. Free it; NULL when out of memory. */
static char *random_command(const check_options *o, const check_machine *machine, int64_t first, int64_t count) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *const f = open_memstream(&text, &bytes);
    if (!f) return NULL;
    fprintf(f, "attune-lab check --random=%lld --first=%lld --seed=%llu", (long long)count, (long long)first,
            (unsigned long long)o->seed);
    if (o->functions) fputs(" --functions", f);
    fputs(tool_vm_option(), f);
    if (o->max_flops > 0) fprintf(f, " --max-flops=%.17g", o->max_flops);
    for (uint32_t i = 0; i < machine->num_isas; i++) fprintf(f, "%s%s", i ? "," : " --isa=", machine->isas[i]);
    return fclose(f) ? NULL : text;
}

/* Counts a failure that random problems `first` and after it show. */
static void fail_random(const check_options *o, const check_machine *machine, int64_t first, int64_t count,
                        const char *reason, check_totals *totals) {
    char *const command = random_command(o, machine, first, count);
    totals->failed++;
    tell_failure(totals, reason, command);
    free(command);
}

static void print_heading(const check_options *o, const check_machine *machine) {
    printf("%lld random problems%s, seed %llu, first %lld, isa", (long long)o->random,
           o->functions ? " with functions" : "", (unsigned long long)o->seed, (long long)o->first);
    for (uint32_t i = 0; i < machine->num_isas; i++) printf(" %s", machine->isas[i]);
    printf("\n");
    fflush(stdout);
}

static double random_flops(const check_options *o) {
    if (o->max_flops > 0) return o->max_flops;
    return o->functions ? 1e5 : 4e6;
}

static void run_random(const check_options *o, check_machine *machine, check_totals *totals) {
    const check_kind kind = o->functions ? CHECK_FUNCTIONS : CHECK_ALL_KINDS;
    if (!o->json) print_heading(o, machine);
    for (int64_t i = 0; i < o->random; i++) {
        /* Each case has its own stream, so that one can be added or dropped without moving the others. */
        const int64_t number = o->first + i;
        tool_random random = {o->seed * 0x9e3779b97f4a7c15u + (uint64_t)number * 0xd1b54a32d192ed03u};
        check_case c;
        if (check_draw(machine, &random, kind, random_flops(o), &c)) {
            run_one(machine, &c, number, totals);
        } else {
            char reason[ATTUNE_MESSAGE_BYTES];
            snprintf(reason, sizeof reason, "problem %lld of the seed could not be made", (long long)number);
            fail_random(o, machine, number, 1, reason, totals);
        }
        if (i % 16 == 15) tool_progress("%lld of %lld", (long long)(i + 1), (long long)o->random);
    }
    tool_end_progress();
}

/* Floating-point operations of the two matrix products, masked or not, and of a block's projections. The interpreter
 * and two references do them one by one. */
static double work_of(const tensors *t) {
    const tensor *const q = tensors_find(t, "q"), *const k = tensors_find(t, "k"), *const x = tensors_find(t, "x");
    const attune_problem *const p = &t->problem;
    const tensor *const from = tensors_find(t, "x_kv") ? tensors_find(t, "x_kv") : x;
    const tensor *const packed = tensors_find(t, "packed_weights"), *const rows = q ? q : x;
    if (!rows || (!k && !x)) return 0;
    const int64_t keys = p->page_size ? t->arguments.max_pages * p->page_size
                         : k          ? k->info.dims[2]
                                      : from->info.dims[1];
    const double tokens = (double)rows->info.dims[0] * (double)rows->info.dims[q ? 2 : 1];
    const double pairs = tokens * (double)t->arguments.num_heads * (double)(p->low_rank ? p->low_rank : keys);
    const double products = packed ? (tokens + (double)from->info.dims[0] * (double)from->info.dims[1]) : 0;
    return 2 * pairs * (double)(p->head_dim + p->head_dim_v) + 2 * products * (double)(packed ? packed->count : 0);
}

/* Before any case: a problem that is too large for memory or time is not a failure of its kernel. */
static bool check_fits(const check_options *o, const check_case *c) {
    const double limit = o->max_flops > 0 ? o->max_flops : 2e10;
    tensors t;
    if (!tensors_create_sized(&t, &c->problem, &c->sizes)) return false;
    const double work = work_of(&t);
    tensors_free(&t);
    if (work > limit)
        tool_error("the problem takes %.3g floating-point operations, more than --max-flops=%.3g", work, limit);
    return work <= limit;
}

static bool run_problem(const check_options *o, check_machine *machine, check_totals *totals) {
    check_case c = {.seed = o->seed, .ftz = o->ftz, .sizes = CALL_SIZES_NONE};
    if (!problem_from_text(o->problem, &c.problem) ||
        (o->sizes && !(sizes_parse(o->sizes, &c.sizes) && sizes_check(&c.sizes, &c.problem))))
        return false;
    problem_fill_defaults(&c.problem);
    if (!check_fits(o, &c)) return false;
    for (c.isa = 0; c.isa < machine->num_isas; c.isa++)
        for (uint32_t threads = 1; threads <= CHECK_MAX_THREADS; threads++)
            for (int kind = 0; kind < INPUT_KIND_COUNT; kind++) {
                if ((o->threads && threads != o->threads) || (o->inputs >= 0 && kind != o->inputs)) continue;
                check_case one = c;
                one.threads = threads;
                one.inputs = (input_kind)kind;
                attune_context *const context = check_context(machine, c.isa, threads);
                if (!context) return false;
                if (!check_take_schedule(context, &one, o->schedule)) {
                    tool_library_error(NULL);
                    return false;
                }
                run_one(machine, &one, 0, totals);
            }
    return true;
}

static double ratio_of(double attune, double plain) { return attune == plain ? 1 : attune / plain; }

static void add_row(table *t, const char *name, const check_errors *e) {
    const double rms = sqrt(e->squares / (double)e->count), plain = sqrt(e->plain_squares / (double)e->count);
    table_cell(t, "%s", name);
    table_cell(t, "%.2e", rms);
    table_cell(t, "%.2e", plain);
    table_cell(t, "%.2f", ratio_of(rms, plain));
    table_cell(t, "%.2e", e->max);
    table_cell(t, "%.2e", e->plain_max);
    table_cell(t, "%.2f", ratio_of(e->max, e->plain_max));
    table_cell(t, "%.1f", e->max_ulp);
    table_cell(t, "%.1f", e->plain_max_ulp);
}

/* The promise: in RMS no worse than a plain implementation, in the maximum at most 1.5 times as much. Few problems
 * prove nothing, so it decides the exit status only from a thousand on. The RMS error of f16 and bf16 is that of
 * rounding to them; f32 arithmetic adds some 1e-8 of it, more or less by chance. Of f64 there are a tenth as many
 * problems as of f32, and the few with the largest values decide. `chance` allows for that. Small problems with
 * functions have too few numbers. */
static bool is_kept(const char *type, const check_errors *e, double chance, char *reason) {
    const double rms = sqrt(e->squares), plain = sqrt(e->plain_squares);
    if (rms <= (1 + chance) * plain && e->max <= 1.5 * e->plain_max) return true;
    snprintf(reason, ATTUNE_MESSAGE_BYTES,
             "errors of %s are %.3f times those of a plain implementation in RMS and %.3f times in the maximum, "
             "which is that of problem %lld",
             type, ratio_of(rms, plain), ratio_of(e->max, e->plain_max), (long long)e->worst);
    return false;
}

/* All inputs of f32. */
static check_errors sum_of_f32(const check_totals *totals) {
    check_errors all = {0};
    for (int kind = 0; kind < INPUT_KIND_COUNT; kind++)
        if (totals->errors[kind].count) check_add_errors(&all, &totals->errors[kind]);
    return all;
}

static void print_errors(const check_totals *totals) {
    static const char *const headers[] = {
        "error on inputs", "RMS", "plain", "ratio", "max", "plain", "ratio", "max ULP", "plain",
    };
    const check_errors all = sum_of_f32(totals);
    table *const t = table_create("lrrrrrrrr", headers);
    for (int kind = 0; kind < INPUT_KIND_COUNT; kind++) {
        const check_errors *const e = &totals->errors[kind];
        if (e->count) add_row(t, input_kind_name((input_kind)kind), e);
    }
    if (all.count) add_row(t, "all of f32", &all);
    if (totals->f16.count) add_row(t, "all of f16", &totals->f16);
    if (totals->bf16.count) add_row(t, "all of bf16", &totals->bf16);
    if (totals->f64.count) add_row(t, "all of f64", &totals->f64);
    if (all.count || totals->f16.count || totals->bf16.count || totals->f64.count)
        table_finish(t, stdout);
    else
        table_discard(t);
}

/* Counts each type whose errors break the promise as one failure. */
static void check_promise(const check_options *o, const check_machine *machine, check_totals *totals) {
    enum { ENOUGH = 1000 };
    if (!o->random || o->functions || totals->passed + totals->failed < ENOUGH) return;
    const check_errors all = sum_of_f32(totals);
    const struct {
        const char *type;
        const check_errors *errors;
        double chance;
    } promises[] = {
        {"f32", &all, 0}, {"f16", &totals->f16, 1e-6}, {"bf16", &totals->bf16, 1e-6}, {"f64", &totals->f64, 0.1}};
    for (size_t i = 0; i < sizeof promises / sizeof *promises; i++) {
        char reason[ATTUNE_MESSAGE_BYTES];
        if (!is_kept(promises[i].type, promises[i].errors, promises[i].chance, reason))
            fail_random(o, machine, o->first, o->random, reason, totals);
    }
}

/* ---- JSON ---- */

static void append_errors(json_t *list, const char *dtype, const char *inputs, const check_errors *e) {
    const double count = (double)e->count;
    if (!e->count) return;
    json_array_append_new(list,
                          json_pack("{s:s, s:s?, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "dtype", dtype, "inputs", inputs,
                                    "values", (json_int_t)e->count, "rms", json_number(sqrt(e->squares / count)),
                                    "plain_rms", json_number(sqrt(e->plain_squares / count)), "max",
                                    json_number(e->max), "plain_max", json_number(e->plain_max), "max_ulp",
                                    json_number(e->max_ulp), "plain_max_ulp", json_number(e->plain_max_ulp)));
}

static json_t *errors_json(const check_totals *totals) {
    json_t *const list = json_array();
    for (int kind = 0; kind < INPUT_KIND_COUNT; kind++)
        append_errors(list, "f32", input_kind_name((input_kind)kind), &totals->errors[kind]);
    append_errors(list, "f16", NULL, &totals->f16);
    append_errors(list, "bf16", NULL, &totals->bf16);
    append_errors(list, "f64", NULL, &totals->f64);
    return list;
}

static json_t *isas_json(const check_machine *machine) {
    json_t *const list = json_array();
    for (uint32_t i = 0; i < machine->num_isas; i++) json_array_append_new(list, json_string(machine->isas[i]));
    return list;
}

/* Takes the reference. The header's isa is the first of those that are checked. */
static int print_json(check_machine *machine, uint32_t threads, json_t *body) {
    attune_context *const context = check_context(machine, 0, 1);
    if (context) return json_print_for(context, threads, body);
    json_decref(body);
    return TOOL_FAILED;
}

/* ---- The command ---- */

static int report(const check_options *o, check_machine *machine, check_totals *totals) {
    check_promise(o, machine, totals);
    int code = TOOL_OK;
    if (!o->json) {
        print_errors(totals);
        printf("%llu passed, %llu failed\n", (unsigned long long)totals->passed, (unsigned long long)totals->failed);
    } else {
        code = print_json(machine, o->threads ? o->threads : CHECK_MAX_THREADS,
                          json_pack("{s:I, s:I, s:b, s:o, s:I, s:I, s:o, s:O}", "seed", (json_int_t)o->seed, "first",
                                    (json_int_t)o->first, "functions", (int)o->functions, "isas", isas_json(machine),
                                    "passed", (json_int_t)totals->passed, "failed", (json_int_t)totals->failed,
                                    "errors", errors_json(totals), "failures", totals->failures));
    }
    return totals->failed ? TOOL_FAILED : code;
}

static int check_types(const check_options *o, check_machine *machine) {
    json_t *const rows = o->json ? json_array() : NULL;
    const bool kept = check_accuracy(machine, o->seed, o->max_flops > 0 ? o->max_flops : INFINITY, rows);
    const int code = rows ? print_json(machine, 1,
                                       json_pack("{s:I, s:o, s:b, s:o}", "seed", (json_int_t)o->seed, "isas",
                                                 isas_json(machine), "accurate", (int)kept, "accuracy", rows))
                          : TOOL_OK;
    return kept ? code : TOOL_FAILED;
}

int cmd_check(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "PROBLEM\n--random N\n--accuracy",
        "Compiles kernels and compares what they compute with the interpreter of the same loop IR, bit for bit, and "
        "with an f64 reference. A failing random problem is made as small as possible and printed as a command. "
        "--isa takes a list here; by default (or with \"all\") every instruction set that this CPU runs is tried.",
        tool_common_children,
        NULL,
        NULL};
    check_options o = {.seed = 1, .inputs = -1};
    check_machine machine = {.num_isas = 0};
    check_totals totals = {0};
    tool_parse(&argp, argc, argv, &o);
    totals.is_random = o.random > 0;
    char *const isas = find_isas(&o, &machine);
    if (o.json) totals.failures = json_array();
    int code = TOOL_FAILED;
    if (isas && o.accuracy)
        code = check_types(&o, &machine);
    else if (isas && (o.random || run_problem(&o, &machine, &totals))) {
        if (o.random) run_random(&o, &machine, &totals);
        code = report(&o, &machine, &totals);
    }
    check_close(&machine);
    json_decref(totals.failures);
    free(isas);
    return code;
}
