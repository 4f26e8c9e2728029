/* attune run: attention on .npy files. */
#include "ref_attention.h"
#include "npy.h"
#include "peak.h"
#include "table.h"
#include "tensors.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct run_options {
    tool_common common;
    const char *problem, *q, *k, *v, *out, *lse, *expect, *schedule;
    attune_engine engine;
    uint32_t threads;
    bool check, json;
} run_options;

/* What was measured, for both ways of showing it. */
typedef struct run_report {
    attune_kernel_info info;
    double compile_us, first_us, median_us, gflops, peak_gflops;
    size_t rows;
    bool same_bits;              /* as the interpreter; with check */
    double max_error, rms_error; /* against the f64 reference; with check */
    double expect_max, expect_rms;
} run_report;

static const struct argp_option options[] = {
    {"q", TOOL_KEY_Q, "F.npy", 0, "Queries [batch,] num_heads, seq_q, head_dim", 0},
    {"k", TOOL_KEY_K, "F.npy", 0, "Keys [batch,] num_kv_heads, seq_kv, head_dim", 0},
    {"v", TOOL_KEY_V, "F.npy", 0, "Values [batch,] num_kv_heads, seq_kv, head_dim_v", 0},
    {"output", 'o', "F.npy", 0, "Write the result here; - is standard output", 0},
    {"lse", TOOL_KEY_LSE, "F.npy", 0, "Write the logarithms of the sums of exponentials here; - is standard output", 0},
    {"engine", TOOL_KEY_ENGINE, "jit|interp", 0, "Machine code (default) or the interpreter", 0},
    {"schedule", TOOL_KEY_SCHEDULE, "K=V,...", 0, "Change the chosen schedule", 0},
    {"check", TOOL_KEY_CHECK, NULL, 0, "Compare with the interpreter's bits and with an f64 reference", 0},
    {"expect", TOOL_KEY_EXPECT, "F.npy", 0, "Show the error against this result", 0},
    {"threads", TOOL_KEY_THREADS, "N", 0, "Threads (default: all)", 0},
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

static bool takes_stdout(const run_options *o) {
    return (o->out && strcmp(o->out, "-") == 0) || (o->lse && strcmp(o->lse, "-") == 0);
}

static error_t parse(int key, char *argument, struct argp_state *state) {
    run_options *const o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case TOOL_KEY_Q: o->q = argument; return 0;
    case TOOL_KEY_K: o->k = argument; return 0;
    case TOOL_KEY_V: o->v = argument; return 0;
    case 'o': o->out = argument; return 0;
    case TOOL_KEY_LSE: o->lse = argument; return 0;
    case TOOL_KEY_EXPECT: o->expect = argument; return 0;
    case TOOL_KEY_SCHEDULE: o->schedule = argument; return 0;
    case TOOL_KEY_ENGINE: o->engine = tool_parse_engine(state, argument); return 0;
    case TOOL_KEY_CHECK: o->check = true; return 0;
    case TOOL_KEY_THREADS: o->threads = (uint32_t)tool_parse_integer(state, "threads", argument, 1, 1024); return 0;
    case TOOL_KEY_JSON: o->json = true; return 0;
    case ARGP_KEY_ARG:
        if (o->problem) argp_error(state, "one problem only, but '%s' follows '%s'", argument, o->problem);
        o->problem = argument;
        return 0;
    case ARGP_KEY_END:
        if (!o->q || !o->k || !o->v) argp_error(state, "--q, --k and --v are all needed");
        if (o->out && o->lse && strcmp(o->out, o->lse) == 0) argp_error(state, "-o and --lse both want '%s'", o->out);
        if (o->json && takes_stdout(o)) argp_error(state, "--json and an array both want standard output");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* ---- Sizes: from the files, then from the text, which must agree ---- */

/* The dims of a tensor in the order batch, heads, rows, columns, wherever its file has them. */
typedef struct file_tensor {
    const char *path;
    npy_array array;
    int64_t dims[4];
} file_tensor;

static bool has_bshd_layout(const char *text) { return text && strstr(text, "layout=bshd"); }

static bool read_tensor(file_tensor *t, const char *path, bool is_bshd) {
    char message[ATTUNE_MESSAGE_BYTES];
    t->path = path;
    if (!npy_read(path, &t->array, message)) {
        tool_error("%s", message);
        return false;
    }
    const npy_header *const h = &t->array.header;
    char shape[NPY_SHAPE_TEXT];
    npy_print_shape(h->rank, h->shape, shape);
    if (h->type != NPY_F4) {
        tool_error("%s: dtype '%s' does not fit dtype=f32, which needs '<f4'", path, npy_type_name(h->type));
        return false;
    }
    if (h->rank != 3 && h->rank != 4) {
        tool_error("%s: shape %s has %zu dimensions instead of 4, or 3 for a batch of one", path, shape, h->rank);
        return false;
    }
    const int64_t *const inner = h->shape + (h->rank - 3);
    t->dims[0] = h->rank == 4 ? h->shape[0] : 1;
    t->dims[1] = is_bshd ? inner[1] : inner[0];
    t->dims[2] = is_bshd ? inner[0] : inner[1];
    t->dims[3] = inner[2];
    for (int i = 0; i < 4; i++)
        if (t->dims[i] < 1) {
            tool_error("%s: shape %s holds no element", path, shape);
            return false;
        }
    return true;
}

static bool agree(const char *what, int64_t expected, const char *source, int64_t found, const char *path) {
    if (expected == found) return true;
    tool_error("%s is %lld by %s but %lld in %s", what, (long long)expected, source, (long long)found, path);
    return false;
}

static bool complete_problem(const run_options *o, const file_tensor *q, const file_tensor *k, const file_tensor *v,
                             attune_problem *problem) {
    attune_problem p = ATTUNE_PROBLEM_INIT;
    p.batch = q->dims[0];
    p.num_heads = q->dims[1];
    p.num_kv_heads = k->dims[1];
    p.seq_q = q->dims[2];
    p.seq_kv = k->dims[2];
    p.head_dim = q->dims[3];
    p.head_dim_v = v->dims[3];
    /* What the text names overrides what the files gave, and is compared with it right below. */
    if (o->problem && *o->problem && attune_problem_parse(o->problem, &p) != ATTUNE_OK) {
        tool_library_error(NULL);
        return false;
    }
    if (o->lse) p.has_lse = 1;
    if (!p.num_kv_heads) p.num_kv_heads = p.num_heads;
    if (!p.seq_kv) p.seq_kv = p.seq_q;
    if (!p.head_dim_v) p.head_dim_v = p.head_dim;
    const char *const text = "the problem";
    if (!agree("batch", p.batch, text, q->dims[0], q->path) ||
        !agree("num_heads", p.num_heads, text, q->dims[1], q->path) ||
        !agree("seq_q", p.seq_q, text, q->dims[2], q->path) ||
        !agree("head_dim", p.head_dim, text, q->dims[3], q->path) ||
        !agree("num_kv_heads", p.num_kv_heads, text, k->dims[1], k->path) ||
        !agree("seq_kv", p.seq_kv, text, k->dims[2], k->path) ||
        !agree("head_dim_v", p.head_dim_v, text, v->dims[3], v->path) ||
        !agree("batch", p.batch, q->path, k->dims[0], k->path) ||
        !agree("batch", p.batch, q->path, v->dims[0], v->path) ||
        !agree("head_dim", p.head_dim, q->path, k->dims[3], k->path) ||
        !agree("num_kv_heads", p.num_kv_heads, k->path, v->dims[1], v->path) ||
        !agree("seq_kv", p.seq_kv, k->path, v->dims[2], v->path))
        return false;
    if (attune_problem_check(&p) != ATTUNE_OK) {
        tool_library_error(NULL);
        return false;
    }
    return problem_resolve(&p, problem);
}

/* ---- Copies between files and tensors ---- */

/* Dims in the order that the file has them, and the strides of the storage in the same order. */
static void file_order(bool is_bshd, const int64_t from[4], int64_t to[4]) {
    memcpy(to, from, 4 * sizeof *to);
    if (!is_bshd) return;
    to[1] = from[2];
    to[2] = from[1];
}

static bool load_input(float *storage, const char *name, const int64_t strides[4], const file_tensor *t, bool is_bshd) {
    int64_t file_strides[4], file_dims[4];
    file_order(is_bshd, strides, file_strides);
    file_order(is_bshd, t->dims, file_dims);
    tensors_scatter(storage, file_strides, file_dims, t->array.data);
    /* Inputs may overlap themselves (a stride of 0 repeats a row), but then the file has to fit that. */
    float *const again = malloc(t->array.header.count * sizeof *again);
    if (!again) {
        tool_error("out of memory for a copy of %s", t->path);
        return false;
    }
    tensors_gather(again, file_strides, file_dims, storage);
    const bool kept = memcmp(again, t->array.data, t->array.header.count * sizeof *again) == 0;
    if (!kept)
        tool_error("%s_strides is %lld:%lld:%lld:%lld, which gives one place to different elements of %s", name,
                   (long long)strides[0], (long long)strides[1], (long long)strides[2], (long long)strides[3], t->path);
    free(again);
    return kept;
}

/* The output as a dense array in file order; free it. */
static float *gather_output(const tensors *t, bool is_bshd, int64_t dims[4]) {
    const attune_problem *const p = &t->problem;
    const int64_t own[4] = {p->batch, p->num_heads, p->seq_q, p->head_dim_v};
    int64_t strides[4];
    file_order(is_bshd, own, dims);
    file_order(is_bshd, p->out_strides, strides);
    float *const dense = malloc((size_t)(own[0] * own[1] * own[2] * own[3]) * sizeof *dense);
    if (dense)
        tensors_gather(dense, strides, dims, t->out);
    else
        tool_error("out of memory for a copy of the output");
    return dense;
}

static bool write_outputs(const run_options *o, const tensors *t, size_t rank, const float *dense,
                          const int64_t dims[4]) {
    char message[ATTUNE_MESSAGE_BYTES];
    const attune_problem *const p = &t->problem;
    if (o->out && !npy_write(o->out, NPY_F4, rank, dims + (4 - rank), dense, message)) {
        tool_error("%s", message);
        return false;
    }
    if (!o->lse) return true;
    /* lse has no columns: a fourth dimension of one makes it a case of the same copy. */
    const int64_t lse_dims[4] = {p->batch, p->num_heads, p->seq_q, 1};
    const int64_t strides[4] = {p->lse_strides[0], p->lse_strides[1], p->lse_strides[2], 0};
    float *const lse = malloc((size_t)(p->batch * p->num_heads * p->seq_q) * sizeof *lse);
    if (!lse) {
        tool_error("out of memory for a copy of the lse");
        return false;
    }
    tensors_gather(lse, strides, lse_dims, t->lse);
    const bool written = npy_write(o->lse, NPY_F4, rank - 1, lse_dims + (4 - rank), lse, message);
    if (!written) tool_error("%s", message);
    free(lse);
    return written;
}

/* ---- Measuring and checking ---- */

static bool measure(const run_options *o, const tensors *t, attune_context *context, const attune_kernel *kernel,
                    const attune_schedule *schedule, run_report *r) {
    enum { MAX_SAMPLES = 25 };
    double samples[MAX_SAMPLES];
    size_t count = 0;
    const double begin = tool_now_us();
    if (tensors_run(t, context, kernel, schedule, o->engine) != ATTUNE_OK) return false;
    r->first_us = tool_now_us() - begin;
    /* At least three more, then until a quarter of a second is spent; the interpreter is timed once. */
    while (o->engine == ATTUNE_ENGINE_JIT && count < MAX_SAMPLES && (count < 3 || tool_now_us() - begin < 250e3)) {
        const double start = tool_now_us();
        if (tensors_run(t, context, kernel, schedule, o->engine) != ATTUNE_OK) return false;
        samples[count++] = tool_now_us() - start;
    }
    r->median_us = count ? tool_median(samples, count) : r->first_us;
    r->gflops = attune_problem_flops(&t->problem) / r->median_us * 1e-3;
    return true;
}

/* The best of a few: the caller wants to know what the CPU can do, and a single probe may be disturbed. */
static double probe_peak(const char *isa, uint32_t threads) {
    peak_probe *const probe = peak_create(isa, threads);
    double best = 0;
    if (!probe) return 0;
    for (int i = 0; i < 15; i++) {
        const double value = peak_measure(probe);
        if (value > best) best = value;
    }
    peak_destroy(probe);
    return best;
}

typedef struct error_sum {
    double max, squares;
    size_t count;
} error_sum;

static void add_error(error_sum *sum, double value, double wanted) {
    /* A NaN that is wanted is right; one that is not is as wrong as can be. */
    const double error = isnan(wanted) && isnan(value) ? 0 : value == wanted ? 0 : fabs(value - wanted);
    sum->max = error > sum->max || isnan(error) ? (isnan(error) ? INFINITY : error) : sum->max;
    sum->squares += isnan(error) ? INFINITY : error * error;
    sum->count++;
}

static bool check(const tensors *t, attune_context *context, const attune_schedule *schedule, run_report *r) {
    const attune_problem *const p = &t->problem;
    const int64_t dims[4] = {p->batch, p->num_heads, p->seq_q, p->head_dim_v};
    const size_t count = (size_t)(dims[0] * dims[1] * dims[2] * dims[3]);
    tensors other = *t;
    size_t where = 0;
    bool done = false;
    float *const dense = malloc(count * sizeof *dense);
    double *const wanted = malloc(count * sizeof *wanted);
    other.out = malloc(t->out_count * sizeof *other.out);
    other.lse = t->lse ? malloc(t->lse_count * sizeof *other.lse) : NULL;
    if (!dense || !wanted || !other.out || (t->lse && !other.lse) ||
        !ref_attention(p, t->q, t->k, t->v, wanted, NULL)) {
        tool_error("out of memory for the check");
        goto out;
    }
    memcpy(other.out, t->out, t->out_count * sizeof *other.out); /* what lies in the gaps must be the same too */
    if (t->lse) memcpy(other.lse, t->lse, t->lse_count * sizeof *other.lse);
    if (tensors_run(&other, context, NULL, schedule, ATTUNE_ENGINE_INTERPRETER) != ATTUNE_OK) {
        tool_library_error("the interpreter failed");
        goto out;
    }
    r->same_bits = tensors_same_bits(t->out, other.out, t->out_count, &where) &&
                   (!t->lse || tensors_same_bits(t->lse, other.lse, t->lse_count, &where));
    tensors_gather(dense, p->out_strides, dims, t->out);
    error_sum sum = {0};
    for (size_t i = 0; i < count; i++) add_error(&sum, dense[i], wanted[i]);
    r->max_error = sum.max;
    r->rms_error = sqrt(sum.squares / (double)sum.count);
    done = true;
out:
    free(dense);
    free(wanted);
    free(other.out);
    free(other.lse);
    return done;
}

static bool compare_expected(const char *path, size_t rank, const int64_t *dims, const float *dense, run_report *r) {
    char message[ATTUNE_MESSAGE_BYTES], have[NPY_SHAPE_TEXT], want[NPY_SHAPE_TEXT];
    npy_array expected;
    if (!npy_read(path, &expected, message)) {
        tool_error("%s", message);
        return false;
    }
    const npy_header *const h = &expected.header;
    const bool fits = h->type == NPY_F4 && h->rank == rank && memcmp(h->shape, dims, rank * sizeof *dims) == 0;
    if (!fits)
        tool_error("%s: %s of shape %s cannot be compared with the output, <f4 of shape %s", path,
                   npy_type_name(h->type), npy_print_shape(h->rank, h->shape, have), npy_print_shape(rank, dims, want));
    error_sum sum = {0};
    for (size_t i = 0; fits && i < h->count; i++) add_error(&sum, dense[i], ((const float *)expected.data)[i]);
    npy_free(&expected);
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
    if (o->engine == ATTUNE_ENGINE_JIT)
        table_cell(t, "%s, from the %s in %s (%s of code)", r->info.isa, tool_origin_name(r->info.origin),
                   table_time(r->compile_us, a), table_bytes(r->info.code_bytes, b));
    else
        table_cell(t, "interpreted");
    table_cell(t, "schedule");
    table_cell(t, "%s", schedule);
    table_cell(t, "time");
    table_cell(t, "%s (first call %s), %u thread%s", table_time(r->median_us, a), table_time(r->first_us, b), threads,
               threads == 1 ? "" : "s");
    table_cell(t, "speed");
    if (r->peak_gflops > 0)
        table_cell(t, "%.1f GFLOP/s, %.0f %% of the %.0f GFLOP/s this CPU can do", r->gflops,
                   100 * r->gflops / r->peak_gflops, r->peak_gflops);
    else
        table_cell(t, "%.3g GFLOP/s", r->gflops);
    if (o->check) {
        table_cell(t, "interpreter");
        table_cell(t, "%s", r->same_bits ? "the same bits" : "DIFFERENT BITS");
        table_cell(t, "f64 reference");
        table_cell(t, "max error %.2e, RMS %.2e", r->max_error, r->rms_error);
    }
    if (o->expect) {
        table_cell(t, "expected");
        table_cell(t, "max error %.2e, RMS %.2e against %s", r->expect_max, r->expect_rms, o->expect);
    }
    table_finish(t, stream);
}

static int print_json(const run_options *o, const char *problem, const char *schedule, const run_report *r,
                      uint32_t threads) {
    json_t *const j =
        json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:i, s:f, s:f, s:f, s:f}", "schema", 1, "problem", problem,
                  "schedule", schedule, "engine", o->engine == ATTUNE_ENGINE_JIT ? "jit" : "interp", "isa", r->info.isa,
                  "origin", tool_origin_name(r->info.origin), "threads", (int)threads, "acquire_us", r->compile_us,
                  "first_us", r->first_us, "median_us", r->median_us, "gflops", r->gflops);
    if (j && r->peak_gflops > 0) {
        json_object_set_new(j, "peak_gflops", json_real(r->peak_gflops));
        json_object_set_new(j, "fraction_of_peak", json_real(r->gflops / r->peak_gflops));
    }
    /* JSON has no infinity: an error that is not finite is null. */
    if (j && o->check) {
        json_object_set_new(j, "same_bits", json_boolean(r->same_bits));
        json_object_set_new(j, "max_error", isfinite(r->max_error) ? json_real(r->max_error) : json_null());
        json_object_set_new(j, "rms_error", isfinite(r->rms_error) ? json_real(r->rms_error) : json_null());
    }
    if (j && o->expect) {
        json_object_set_new(j, "expect_max_error", isfinite(r->expect_max) ? json_real(r->expect_max) : json_null());
        json_object_set_new(j, "expect_rms_error", isfinite(r->expect_rms) ? json_real(r->expect_rms) : json_null());
    }
    return tool_print_json(j);
}

/* ---- The command ---- */

static bool pick_schedule(const run_options *o, const attune_context *context, const attune_problem *problem,
                          attune_schedule *schedule) {
    if (attune_schedule_choose(context, problem, schedule) == ATTUNE_OK &&
        (!o->schedule || attune_schedule_parse(o->schedule, schedule) == ATTUNE_OK) &&
        (!o->schedule || attune_schedule_check(context, problem, schedule) == ATTUNE_OK))
        return true;
    tool_library_error(NULL);
    return false;
}

static int run_on(const run_options *o, tensors *t, size_t rank) {
    attune_machine_info machine = {.struct_size = sizeof machine};
    attune_schedule schedule = ATTUNE_SCHEDULE_INIT;
    attune_kernel *kernel = NULL;
    float *dense = NULL;
    char *problem = NULL, *schedule_name = NULL;
    int code = TOOL_FAILED;
    int64_t dims[4];
    run_report r = {.info.struct_size = sizeof r.info, .info.isa = ""};
    attune_context *const context = tool_open_context(&o->common, o->threads, NULL);
    if (!context) return TOOL_FAILED;
    attune_get_machine_info(context, &machine);
    if (!pick_schedule(o, context, &t->problem, &schedule)) goto out;
    /* An explicit schedule has its own cache entry: only hand one over that was asked for. */
    const attune_schedule *const asked = o->schedule ? &schedule : NULL;
    if (o->engine == ATTUNE_ENGINE_JIT) {
        const double start = tool_now_us();
        if (attune_compile(context, &t->problem, asked, &kernel) != ATTUNE_OK) {
            tool_library_error(NULL);
            goto out;
        }
        r.compile_us = tool_now_us() - start;
        attune_kernel_get_info(kernel, &r.info);
        schedule = r.info.schedule;
    } else
        r.info.isa = machine.isa;
    if (!measure(o, t, context, kernel, &schedule, &r)) {
        tool_library_error(NULL);
        goto out;
    }
    if (o->engine == ATTUNE_ENGINE_JIT) r.peak_gflops = probe_peak(r.info.isa, machine.max_workers);
    if (o->check && !check(t, context, &schedule, &r)) goto out;
    dense = gather_output(t, has_bshd_layout(o->problem), dims);
    if (!dense || (o->expect && !compare_expected(o->expect, rank, dims + (4 - rank), dense, &r))) goto out;
    if (!write_outputs(o, t, rank, dense, dims)) goto out;
    problem = problem_text(&t->problem);
    schedule_name = schedule_text(&schedule);
    if (!problem || !schedule_name) goto out;
    code = TOOL_OK;
    if (o->json)
        code = print_json(o, problem, schedule_name, &r, machine.max_workers);
    else
        print_text(o, takes_stdout(o) ? stderr : stdout, problem, schedule_name, &r, machine.max_workers);
    if (o->check && !r.same_bits) code = TOOL_FAILED;
out:
    free(problem);
    free(schedule_name);
    free(dense);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
    return code;
}

int cmd_run(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "[PROBLEM]",
        "Computes attention on arrays in .npy files (f32, little-endian, C order). Sizes that PROBLEM does not name "
        "come from the files; with layout=bshd in PROBLEM the files hold [batch,] seq, heads, dim.",
        tool_common_children,
        NULL,
        NULL};
    run_options o = {0};
    file_tensor q = {0}, k = {0}, v = {0};
    tensors t = {0};
    int code = TOOL_FAILED;
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    if (!tool_threads_fit(o.threads)) return TOOL_FAILED;
    const bool is_bshd = has_bshd_layout(o.problem);
    attune_problem problem;
    if (read_tensor(&q, o.q, is_bshd) && read_tensor(&k, o.k, is_bshd) && read_tensor(&v, o.v, is_bshd) &&
        complete_problem(&o, &q, &k, &v, &problem) && tensors_create(&t, &problem) &&
        load_input(t.q, "q", t.problem.q_strides, &q, is_bshd) &&
        load_input(t.k, "k", t.problem.k_strides, &k, is_bshd) &&
        load_input(t.v, "v", t.problem.v_strides, &v, is_bshd))
        code = run_on(&o, &t, q.array.header.rank);
    tensors_free(&t);
    npy_free(&q.array);
    npy_free(&k.array);
    npy_free(&v.array);
    return code;
}
