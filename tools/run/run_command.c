/* Reads files, makes one call, and then as wanted measures it, checks it against the reference, and writes what came
 * out. */
#include "run/run_command.h"

#include "common/json_output.h"
#include "measure/peak.h"
#include "run/check_reference.h"
#include "run/run_types.h"
#include "common/table.h"
#include "measure/seen.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The results, as text and as JSON show them. */
typedef struct run_report {
    attune_kernel_info info;
    double compile_us, first_us, median_us, gflops, peak_gflops;
    attune_dtype peak_dtype;     /* that peak_gflops is of */
    bool same_bits;              /* as the interpreter; with check */
    bool has_reference;          /* whose weights are known; with check */
    double max_error, rms_error; /* against the f64 reference; with that */
    const char *no_limits;       /* why nobody can say whether they are too large; NULL: they were judged */
    bool is_wrong;
    char reason[ATTUNE_MESSAGE_BYTES]; /* which number is wrong */
    char difference[DIFFERENCE_TEXT];  /* where the bits are not the same */
    double expect_max, expect_rms;
} run_report;

static const struct argp_option options[] = {
    {"tensor", TOOL_KEY_TENSOR, "NAME=F.npy", TOOL_REPEATS,
     "Any other input: attn_mask, kv_lens, block_table, cos ..., or k and v as caches of a block", 0},
    {"sizes", TOOL_KEY_SIZES, "K=N,...", 0, "Values for dynamic sizes that the files do not give, such as seq_kv=512",
     0},
    {"output", 'o', "F.npy", 0, "Write the result here; - is standard output", 0},
    {"lse", TOOL_KEY_LSE, "F.npy", 0, "Write the logarithms of the sums of exponentials here; - is standard output", 0},
    {"write", TOOL_KEY_WRITE, "NAME=F.npy", TOOL_REPEATS,
     "Write another output: weights, or k and v to which keys were appended", 0},
    {"engine", TOOL_KEY_ENGINE, "jit|vm|interp", 0, "Machine code (default), virtual machine or interpreter", 0},
    {"schedule", TOOL_KEY_SCHEDULE, "K=V,...", 0, "Change the chosen schedule", 0},
    {"check", TOOL_KEY_CHECK, NULL, 0,
     "Compare with the interpreter's bits and with an f64 reference; exit status 1 if the result is wrong", 0},
    {"expect", TOOL_KEY_EXPECT, "F.npy", 0, "Show the error against this result", 0},
    {"threads", TOOL_KEY_THREADS, "N", 0, "Threads (default: all)", 0},
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

static bool takes_stdout(const run_options *o) {
    for (size_t i = 0; i < o->files.num_outputs; i++)
        if (strcmp(o->files.outputs[i].path, "-") == 0) return true;
    return o->save_packed && strcmp(o->save_packed, "-") == 0;
}

static size_t stdin_inputs(const run_options *o) {
    size_t count = o->expect && strcmp(o->expect, "-") == 0;
    for (size_t i = 0; i < o->files.num_inputs; i++) count += strcmp(o->files.inputs[i].path, "-") == 0;
    return count;
}

static void add_file(struct argp_state *state, run_file *list, size_t *count, const char *name, const char *path) {
    if (files_find(list, *count, name)) argp_error(state, "%s is given twice", name);
    if (!files_add(list, count, name, path)) argp_error(state, "%s is one file too many", path);
}

void run_add_input(run_options *o, struct argp_state *state, const char *name, const char *path) {
    add_file(state, o->files.inputs, &o->files.num_inputs, name, path);
}

static void check_free(const run_options *o, struct argp_state *state, const char *name, const char *path) {
    for (size_t i = 0; i < o->files.num_outputs; i++)
        if (strcmp(o->files.outputs[i].path, path) == 0)
            argp_error(state, "%s and %s both want '%s'", o->files.outputs[i].name, name, path);
}

static void add_output(run_options *o, struct argp_state *state, const char *name, const char *path) {
    check_free(o, state, name, path);
    add_file(state, o->files.outputs, &o->files.num_outputs, name, path);
}

const char *run_cut_name(struct argp_state *state, const char *form, char *argument) {
    char *const equals = strchr(argument, '=');
    if (!equals || equals == argument) argp_error(state, "'%s' is not %s", argument, form);
    *equals = '\0';
    return equals + 1;
}

static error_t parse(int key, char *argument, struct argp_state *state) {
    run_options *const o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case TOOL_KEY_TENSOR: {
        const char *const path = run_cut_name(state, "NAME=F.npy", argument);
        run_add_input(o, state, argument, path);
        return 0;
    }
    case 'o': add_output(o, state, "out", argument); return 0;
    case TOOL_KEY_LSE: add_output(o, state, "lse", argument); return 0;
    case TOOL_KEY_WRITE: {
        const char *const path = run_cut_name(state, "NAME=F.npy", argument);
        add_output(o, state, argument, path);
        return 0;
    }
    case TOOL_KEY_SIZES: o->sizes = argument; return 0;
    case TOOL_KEY_EXPECT: o->expect = argument; return 0;
    case TOOL_KEY_SCHEDULE: o->schedule = argument; return 0;
    case TOOL_KEY_ENGINE: o->engine = tool_parse_engine(state, argument); return 0;
    case TOOL_KEY_CHECK: o->check = true; return 0;
    case TOOL_KEY_THREADS: o->threads = (uint32_t)tool_parse_integer(state, "threads", argument, 1, 1024); return 0;
    case TOOL_KEY_JSON: o->json = true; return 0;
    case ARGP_KEY_ARG: tool_take_one(state, "problem", argument, &o->problem); return 0;
    case ARGP_KEY_END:
        if (o->save_packed) check_free(o, state, "the packed weights", o->save_packed);
        if (stdin_inputs(o) > 1) argp_error(state, "only one input can come from standard input");
        if (o->json && takes_stdout(o)) argp_error(state, "--json and an array both want standard output");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp run_argp = {.options = options, .parser = parse, .children = tool_common_children};
const struct argp_child run_command_children[] = {{&run_argp, 0, NULL, 0}, {0}};

/* ---- Measuring and checking ---- */

static bool measure(const run_options *o, const tensors *t, attune_context *context, const attune_kernel *kernel,
                    const char *schedule, double flops, run_report *r) {
    enum { MAX_SAMPLES = 25 };
    double samples[MAX_SAMPLES];
    size_t count = 0;
    const double begin = tool_now_us();
    if (tensors_run(t, context, kernel, schedule, o->engine) != ATTUNE_OK) return false;
    r->first_us = tool_now_us() - begin;
    /* At least three more, then until a quarter of a second is spent; the interpreter is timed once. */
    while (o->engine != ATTUNE_ENGINE_INTERPRETER && count < MAX_SAMPLES &&
           (count < 3 || tool_now_us() - begin < 250e3)) {
        const double start = tool_now_us();
        if (tensors_run(t, context, kernel, schedule, o->engine) != ATTUNE_OK) return false;
        samples[count++] = tool_now_us() - start;
    }
    r->median_us = count ? tool_median(samples, count) : r->first_us;
    r->gflops = flops / r->median_us * 1e-3;
    return true;
}

typedef struct error_sum {
    double max, squares;
    size_t count;
} error_sum;

static void add_error(error_sum *sum, double value, double wanted) {
    /* An expected NaN is right; any other NaN is an infinite error. */
    const double error = isnan(wanted) && isnan(value) ? 0 : value == wanted ? 0 : fabs(value - wanted);
    sum->max = error > sum->max || isnan(error) ? (isnan(error) ? INFINITY : error) : sum->max;
    sum->squares += isnan(error) ? INFINITY : error * error;
    sum->count++;
}

/* Errors are shown for this result. */
static const char *main_output(const attune_problem *p) { return p->op == ATTUNE_WEIGHTS ? "weights" : "out"; }

/* Whether the errors are those of rounding. */
static bool judge(const tensors *t, const ref_call *call, const ref_result *wanted, run_report *r) {
    ref_result plain;
    r->no_limits = check_has_no_limits(t, wanted);
    if (r->no_limits) return true;
    if (!ref_compute_plain(call, &plain)) return false;
    r->is_wrong = !check_reference(t, wanted, &plain, check_kind_of(t), NULL, r->reason);
    ref_result_free(&plain);
    return true;
}

static bool compare_reference(const tensors *t, run_report *r) {
    attune_tensor list[REF_MAX_TENSORS];
    ref_call call = tensors_call(t, list);
    const tensor *const one = tensors_find(t, main_output(&t->problem));
    ref_result wanted;
    check_take_caches(&call, t);
    const bool has_result = ref_compute(&call, &wanted);
    if (!has_result || !judge(t, &call, &wanted, r)) {
        if (has_result) ref_result_free(&wanted);
        tool_error("out of memory for the check");
        return false;
    }
    const long double *const values = t->problem.op == ATTUNE_WEIGHTS ? wanted.weights : wanted.out;
    int64_t count = 1;
    for (int d = 0; d < one->info.rank; d++) count *= one->info.dims[d];
    error_sum sum = {0};
    for (int64_t i = 0; i < count; i++) add_error(&sum, (double)check_element(one, i), (double)values[i]);
    r->max_error = sum.max;
    r->rms_error = sqrt(sum.squares / (double)(sum.count ? sum.count : 1));
    ref_result_free(&wanted);
    return true;
}

/* The reference cannot read packed weights: only kernels know their order. */
static bool has_reference(const tensors *t) {
    return !tensors_find(t, "packed_weights") || t->weights.tensor[ATTUNE_Q_WEIGHT].data ||
           t->weights.tensor[ATTUNE_QKV_WEIGHT].data;
}

static bool check(const tensors *t, attune_context *context, const char *schedule, run_report *r) {
    tensors other;
    /* The copies include the gaps between rows, which must not change either. Appending twice equals appending once. */
    if (!tensors_share(&other, t)) return false;
    const bool ran = tensors_run(&other, context, NULL, schedule, ATTUNE_ENGINE_INTERPRETER) == ATTUNE_OK;
    if (!ran) tool_library_error("the interpreter failed");
    r->same_bits = ran && tensors_same_outputs(t, &other, r->difference);
    tensors_free(&other);
    r->has_reference = ran && has_reference(t);
    return ran && (!r->has_reference || compare_reference(t, r));
}

static bool compare_expected(const run_options *o, const tensors *t, run_report *r) {
    char message[ATTUNE_MESSAGE_BYTES], have[NPY_SHAPE_TEXT], want[NPY_SHAPE_TEXT];
    const tensor *const one = tensors_find(t, main_output(&t->problem));
    const attune_dtype dtype = one->info.dtype;
    npy_array expected;
    size_t rank;
    int64_t dims[4];
    if (!npy_read(o->expect, &expected, message)) {
        tool_error("%s", message);
        return false;
    }
    void *const dense = files_gather(&o->files, one, &rank, dims);
    const npy_header *const h = &expected.header;
    /* A reference may be more exact than the output. */
    const attune_dtype type = run_types_dtype(h->type);
    const bool is_float = type >= ATTUNE_F32 && type <= ATTUNE_F64;
    const bool fits = dense && (is_float || h->type == files_type(dtype)) && h->rank == rank &&
                      memcmp(h->shape, dims, rank * sizeof *dims) == 0;
    if (dense && !fits)
        tool_error("%s: %s of shape %s cannot be compared with the output, %s of shape %s", o->expect,
                   npy_type_name(h->type), npy_print_shape(h->rank, h->shape, have), npy_type_name(files_type(dtype)),
                   npy_print_shape(rank, dims, want));
    error_sum sum = {0};
    for (size_t i = 0; fits && i < h->count; i++)
        add_error(&sum, (double)ref_load(dtype, dense, (int64_t)i), npy_element(&expected, i));
    npy_free(&expected);
    free(dense);
    r->expect_max = sum.max;
    r->expect_rms = sqrt(sum.squares / (double)(sum.count ? sum.count : 1));
    return fits;
}

/* ---- Showing ---- */

static void print_text(const run_options *o, FILE *stream, const char *problem, const char *schedule,
                       const run_report *r, uint32_t threads) {
    char a[TABLE_NUMBER_BYTES], b[TABLE_NUMBER_BYTES];
    table *const t = table_create("ll", NULL);
    table_cell(t, "problem");
    table_cell(t, "%s", problem);
    table_cell(t, "kernel");
    if (o->engine != ATTUNE_ENGINE_INTERPRETER)
        table_cell(t, "%s, from %s in %s (%s of code)", r->info.isa, tool_origin_place(r->info.origin),
                   table_time(r->compile_us, a), table_bytes(r->info.code_bytes, b));
    else
        table_cell(t, "interpreted");
    if (o->weights) {
        table_cell(t, "weights");
        table_cell(t, "%s", o->weights);
    }
    table_cell(t, "schedule");
    table_cell(t, "%s", schedule);
    table_cell(t, "time");
    table_cell(t, "%s (first call %s), %u thread%s", table_time(r->median_us, a), table_time(r->first_us, b), threads,
               threads == 1 ? "" : "s");
    table_cell(t, "speed");
    if (r->peak_gflops > 0)
        table_cell(t, "%.1f GFLOP/s, %.0f %% of the %.0f GFLOP/s this CPU can do in %s", r->gflops,
                   100 * r->gflops / r->peak_gflops, r->peak_gflops, tool_dtype_name(r->peak_dtype));
    else
        table_cell(t, "%.3g GFLOP/s", r->gflops);
    if (o->check) {
        table_cell(t, "interpreter");
        table_cell(t, "%s", r->same_bits ? "the same bits" : "DIFFERENT BITS");
        table_cell(t, "f64 reference");
        if (r->has_reference)
            table_cell(t, "max error %.2e, RMS %.2e%s%s", r->max_error, r->rms_error,
                       r->no_limits ? "; not checked: " : "", r->no_limits ? r->no_limits : "");
        else
            table_cell(t, "none: it needs the weights before they were packed");
    }
    if (o->expect) {
        table_cell(t, "expected");
        table_cell(t, "max error %.2e, RMS %.2e against %s", r->expect_max, r->expect_rms, o->expect);
    }
    table_finish(t, stream);
}

static int print_json(const run_options *o, const char *problem, const char *schedule, const run_report *r,
                      const attune_machine_info *machine) {
    json_t *const j =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:f}", "problem", problem, "schedule", schedule, "engine",
                  tool_engine_option(o->engine), "isa", r->info.isa, "origin", tool_origin_name(r->info.origin),
                  "acquire_us", r->compile_us, "first_us", r->first_us, "median_us", r->median_us, "gflops", r->gflops);
    if (j && r->peak_gflops > 0) {
        json_object_set_new(j, "peak_gflops", json_real(r->peak_gflops));
        json_object_set_new(j, "peak_dtype", json_string(tool_dtype_name(r->peak_dtype)));
        json_object_set_new(j, "fraction_of_peak", json_real(r->gflops / r->peak_gflops));
    }
    if (j && o->weights) json_object_set_new(j, "weights", json_string(o->weights));
    /* JSON has no infinity: an error that is not finite is null. */
    if (j && o->check) json_object_set_new(j, "same_bits", json_boolean(r->same_bits));
    if (j && r->has_reference) {
        json_object_set_new(j, "max_error", isfinite(r->max_error) ? json_real(r->max_error) : json_null());
        json_object_set_new(j, "rms_error", isfinite(r->rms_error) ? json_real(r->rms_error) : json_null());
        json_object_set_new(j, "is_right", r->no_limits ? json_null() : json_boolean(!r->is_wrong));
    }
    if (j && o->expect) {
        json_object_set_new(j, "expect_max_error", isfinite(r->expect_max) ? json_real(r->expect_max) : json_null());
        json_object_set_new(j, "expect_rms_error", isfinite(r->expect_rms) ? json_real(r->expect_rms) : json_null());
    }
    return json_print(machine, 0, j);
}

/* ---- The command ---- */

/* Prints the result of a check: one sentence for each of the two comparisons. */
static bool passes(const run_report *r) {
    if (!r->same_bits) tool_error("machine code and interpreter differ: %s", r->difference);
    if (r->is_wrong) tool_error("wrong, compared with the f64 reference: %s", r->reason);
    return r->same_bits && !r->is_wrong;
}

static int run_on(const run_options *o, tensors *t) {
    attune_machine_info machine = {.struct_size = sizeof machine};
    char schedule[ATTUNE_SCHEDULE_BYTES];
    attune_kernel *kernel = NULL;
    char *problem = NULL;
    int code = TOOL_FAILED;
    run_report r = {.info.struct_size = sizeof r.info, .info.isa = ""};
    attune_context *const context = tool_open_context(&o->common, o->threads, NULL);
    if (!context) return TOOL_FAILED;
    if (attune_get_machine_info(context, &machine)) tool_library_error(NULL);
    if (attune_schedule_choose(context, &t->problem, o->schedule, schedule, sizeof schedule) != ATTUNE_OK) {
        tool_library_error(NULL);
        goto out;
    }
    if (o->engine != ATTUNE_ENGINE_INTERPRETER) {
        const double start = tool_now_us();
        if (attune_compile(context, &t->problem, o->schedule, &kernel) != ATTUNE_OK) {
            tool_library_error(NULL);
            goto out;
        }
        r.compile_us = tool_now_us() - start;
        if (attune_kernel_get_info(kernel, &r.info)) tool_library_error(NULL);
        strcpy(schedule, r.info.schedule);
    } else
        r.info.isa = machine.isa;
    call_work work = work_of_call(t);
    seen_count(context, t, &work);
    if (!measure(o, t, context, kernel, schedule, work.flops, &r)) {
        tool_library_error(NULL);
        goto out;
    }
    r.peak_dtype = peak_that_counts(&t->problem, r.info.isa);
    if (o->engine != ATTUNE_ENGINE_INTERPRETER)
        r.peak_gflops = peak_best(r.info.isa, machine.max_workers, r.peak_dtype);
    /* Other programs took the CPU away from a probe whose peak is below the speed of the call. */
    if (r.peak_gflops * 1.1 < r.gflops) r.peak_gflops = 0;
    /* The schedule of tier 0 is of another problem: the library knows which IR it is. */
    const bool is_own = o->schedule || r.info.origin != ATTUNE_FROM_TIER0;
    if (o->check && !check(t, context, is_own ? schedule : NULL, &r)) goto out;
    if (o->expect && !compare_expected(o, t, &r)) goto out;
    if (!files_write(&o->files, t)) goto out;
    problem = problem_text(&t->problem);
    if (!problem) goto out;
    code = TOOL_OK;
    if (o->json)
        code = print_json(o, problem, schedule, &r, &machine);
    else
        print_text(o, takes_stdout(o) ? stderr : stdout, problem, schedule, &r, machine.max_workers);
    if (o->check && !passes(&r)) code = TOOL_FAILED;
out:
    free(problem);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
    return code;
}

int run_command(run_options *o) {
    call_sizes sizes = CALL_SIZES_NONE;
    attune_problem problem;
    tensors t = {.count = 0};
    int code = TOOL_FAILED;
    if (!tool_threads_fit(o->threads)) return TOOL_FAILED;
    o->files.is_bshd = problem_text_has(o->problem, "layout=bshd");
    if (files_read(&o->files) && files_complete(&o->files, o->problem, o->sizes, &problem, &sizes) &&
        tensors_create_sized(&t, &problem, &sizes) && files_check_outputs(&o->files, &t) && files_load(&o->files, &t))
        code = run_on(o, &t);
    tensors_free(&t);
    files_free(&o->files);
    return code;
}
