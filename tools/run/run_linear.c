/* Builds a description from shapes and text, runs one step by it, and with --check compares with the reference. */
#include "run/run_linear.h"

#include "common/json_output.h"
#include "common/table.h"
#include "described/desc_table.h"
#include "ref_attention.h"
#include "ref_linear.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The inputs, with their dims in batches: [batch,] tokens, heads, columns. */
enum { Q, K, V, DECAY, BETA, GATE, NORM_WEIGHTS, STATE, CU_SEQLENS, STATE_IDS, NUM_INPUTS };
static const char *const names[NUM_INPUTS] = {
    "q", "k", "v", "decay", "beta", "gate", "norm_weights", "state", "cu_seqlens", "state_ids"};

typedef struct linear_call {
    const run_options *o;
    attune_linear_desc desc;
    char text[AT_DESCRIBED_TEXT]; /* of the settled description */
    attune_linear_step step;
    const npy_array *inputs[NUM_INPUTS]; /* NULL: not given */
    npy_array out, state;                /* state is changed; it begins as `first` */
    npy_array first;
    double first_us, median_us, max_error, rms_error, expect_max;
    double excess;  /* the largest error as a share of its limit */
    char worst[96]; /* which number that is */
    bool same_bits, has_reference;
} linear_call;

/* ---- The files ---- */

static bool refuse_shape(const linear_call *c, int input, const char *wanted) {
    char shape[NPY_SHAPE_TEXT];
    const npy_header *const h = &c->inputs[input]->header;
    tool_error("%s has the shape %s; it must be %s", names[input], npy_print_shape(h->rank, h->shape, shape), wanted);
    return false;
}

static bool find_inputs(linear_call *c) {
    const run_files *const f = &c->o->files;
    for (size_t i = 0; i < f->num_inputs; i++) {
        int input = 0;
        while (input < NUM_INPUTS && strcmp(names[input], f->inputs[i].name)) input++;
        if (input == NUM_INPUTS) {
            tool_error("op=linear has no input %s", f->inputs[i].name);
            return false;
        }
        c->inputs[input] = &f->inputs[i].array;
    }
    for (int input = Q; input <= V; input++)
        if (!c->inputs[input]) {
            tool_error("op=linear needs --%s", names[input]);
            return false;
        }
    for (size_t i = 0; i < f->num_outputs; i++)
        if (strcmp(f->outputs[i].name, "out") && strcmp(f->outputs[i].name, "state")) {
            tool_error("op=linear has no output %s; it has out and state", f->outputs[i].name);
            return false;
        }
    return true;
}

/* An input that must have the dims [lead.., heads, columns]; heads or columns -1: any, 0: there is no such dim. */
static bool check_shape(const linear_call *c, int input, int64_t heads, int64_t columns) {
    const npy_header *const q = &c->inputs[Q]->header;
    const size_t lead = q->rank - 2;
    const int64_t last[2] = {heads, columns};
    bool good = c->inputs[input]->header.rank == lead + 1 + (columns != 0);
    for (size_t i = 0; good && i < lead; i++) good = c->inputs[input]->header.shape[i] == q->shape[i];
    for (size_t i = lead; good && i < c->inputs[input]->header.rank; i++)
        good = last[i - lead] < 0 || c->inputs[input]->header.shape[i] == last[i - lead];
    char wanted[96], of_heads[24], of_columns[24];
    snprintf(of_heads, sizeof of_heads, heads < 0 ? "any" : "%lld", (long long)heads);
    snprintf(of_columns, sizeof of_columns, columns < 0 ? ", any" : columns ? ", %lld" : "", (long long)columns);
    snprintf(wanted, sizeof wanted, "(%sthe tokens of q, %s%s)", lead == 2 ? "the batch and " : "", of_heads,
             of_columns);
    return good || refuse_shape(c, input, wanted);
}

static bool take_dtype(const linear_call *c, int input, attune_dtype *dtype) {
    *dtype = run_types_dtype(c->inputs[input]->header.type);
    if (*dtype != ATTUNE_DTYPE_DEFAULT) return true;
    tool_error("%s is %s, which attune does not compute with", names[input],
               npy_type_name(c->inputs[input]->header.type));
    return false;
}

static bool check_list(const linear_call *c, int input, int64_t count) {
    const npy_header *const h = &c->inputs[input]->header;
    if (h->type == NPY_I4 && h->rank == 1 && (count < 0 ? h->shape[0] >= 1 : h->shape[0] == count)) return true;
    tool_error("%s must be a list of whole numbers of 32 bits%s", names[input],
               input == STATE_IDS ? ", one for each sequence" : ", one more than there are sequences");
    return false;
}

static bool describe_rows(linear_call *c) {
    attune_linear_desc *const d = &c->desc;
    const npy_header *const q = &c->inputs[Q]->header;
    const size_t rank = c->inputs[CU_SEQLENS] ? 3 : 4;
    if (q->rank != rank)
        return refuse_shape(c, Q, rank == 4 ? "(batch, tokens, heads, columns)" : "(tokens, heads, columns)");
    d->num_heads = q->shape[rank - 2], d->head_dim = q->shape[rank - 1];
    if (!check_shape(c, K, -1, d->head_dim) || !check_shape(c, V, -1, -1)) return false;
    d->num_k_heads = c->inputs[K]->header.shape[rank - 2];
    d->num_kv_heads = c->inputs[V]->header.shape[rank - 2], d->head_dim_v = c->inputs[V]->header.shape[rank - 1];
    attune_dtype other;
    if (!take_dtype(c, Q, &d->dtype)) return false;
    for (int input = K; input <= V; input++)
        if (!take_dtype(c, input, &other))
            return false;
        else if (other != d->dtype) {
            tool_error("%s is %s, but q is %s", names[input], tool_dtype_name(other), tool_dtype_name(d->dtype));
            return false;
        }
    return true;
}

/* A tensor that the rule has nothing for, because the text names no rule, or another. */
static bool fits_rule(const linear_call *c, int input, attune_linear_rule one, attune_linear_rule other) {
    static const char *const rules[] = {"linear", "gated", "delta", "gated_delta"};
    const attune_linear_rule rule = c->desc.rule;
    if (!c->inputs[input] || rule == one || rule == other) return true;
    tool_error("%s is given, but the rule %s has none; say rule=%s or rule=%s", names[input], rules[rule], rules[one],
               rules[other]);
    return false;
}

static bool describe_gates(linear_call *c) {
    attune_linear_desc *const d = &c->desc;
    if (!fits_rule(c, DECAY, ATTUNE_GATED, ATTUNE_GATED_DELTA) || !fits_rule(c, BETA, ATTUNE_DELTA, ATTUNE_GATED_DELTA))
        return false;
    const size_t rank = c->inputs[Q]->header.rank;
    const int64_t out_heads = d->num_heads > d->num_kv_heads ? d->num_heads : d->num_kv_heads;
    if (c->inputs[DECAY]) {
        const bool by_key = c->inputs[DECAY]->header.rank == rank;
        d->decay = by_key ? ATTUNE_DECAY_KEY : ATTUNE_DECAY_HEAD;
        if (!take_dtype(c, DECAY, &d->decay_dtype) || !check_shape(c, DECAY, d->num_kv_heads, by_key ? d->head_dim : 0))
            return false;
    }
    if (c->inputs[BETA]) {
        d->has_beta = 1;
        if (!take_dtype(c, BETA, &d->beta_dtype) || !check_shape(c, BETA, d->num_kv_heads, 0)) return false;
    }
    if (!c->inputs[GATE] != !d->gate) {
        tool_error(d->gate ? "a gate needs --tensor gate=F.npy" : "gate is given; say gate=silu or gate=sigmoid");
        return false;
    }
    if (c->inputs[GATE] && !check_shape(c, GATE, out_heads, d->head_dim_v)) return false;
    if (c->inputs[NORM_WEIGHTS] && d->out_norm_eps == 0) d->out_norm_eps = 1e-6;
    if (d->out_norm_eps != 0 && !c->inputs[NORM_WEIGHTS]) {
        tool_error("out_norm_eps needs --tensor norm_weights=F.npy");
        return false;
    }
    const npy_header *const norm = c->inputs[NORM_WEIGHTS] ? &c->inputs[NORM_WEIGHTS]->header : NULL;
    if (norm && (norm->rank != 1 || norm->shape[0] != d->head_dim_v))
        return refuse_shape(c, NORM_WEIGHTS, "the columns of v");
    for (int input = GATE; input <= NORM_WEIGHTS; input++) {
        attune_dtype dtype = d->dtype;
        if (c->inputs[input] && !take_dtype(c, input, &dtype)) return false;
        if (dtype == d->dtype) continue;
        tool_error("%s is %s, but q is %s", names[input], tool_dtype_name(dtype), tool_dtype_name(d->dtype));
        return false;
    }
    return true;
}

/* The states as the files have them, or zeros. */
static bool describe_states(linear_call *c) {
    attune_linear_desc *const d = &c->desc;
    attune_linear_step *const s = &c->step;
    const npy_header *const q = &c->inputs[Q]->header;
    if (c->inputs[CU_SEQLENS] && !check_list(c, CU_SEQLENS, -1)) return false;
    s->batch = c->inputs[CU_SEQLENS] ? c->inputs[CU_SEQLENS]->header.shape[0] - 1 : q->shape[0];
    s->seq = c->inputs[CU_SEQLENS] ? 0 : q->shape[1];
    if (c->inputs[STATE_IDS] && !check_list(c, STATE_IDS, s->batch)) return false;
    if (c->inputs[STATE_IDS] && !c->inputs[STATE]) {
        tool_error("state_ids needs --tensor state=F.npy");
        return false;
    }
    int64_t shape[4] = {s->batch, d->num_kv_heads, d->head_dim, d->head_dim_v};
    char message[ATTUNE_MESSAGE_BYTES], wanted[128];
    if (!c->inputs[STATE]) {
        d->state_dtype = ATTUNE_F32;
    } else {
        const npy_header *const h = &c->inputs[STATE]->header;
        if (!take_dtype(c, STATE, &d->state_dtype)) return false;
        if (c->inputs[STATE_IDS] && h->rank == 4) shape[0] = h->shape[0];
        snprintf(wanted, sizeof wanted, "(%lld, %lld, %lld, %lld)", (long long)shape[0], (long long)shape[1],
                 (long long)shape[2], (long long)shape[3]);
        if (h->rank != 4 || memcmp(h->shape, shape, sizeof shape)) return refuse_shape(c, STATE, wanted);
    }
    s->num_states = shape[0];
    const npy_type type = files_type(d->state_dtype);
    if (!npy_create(type, 4, shape, &c->state, message) || !npy_create(type, 4, shape, &c->first, message)) {
        tool_error("%s", message);
        return false;
    }
    if (c->inputs[STATE]) memcpy(c->first.data, c->inputs[STATE]->data, c->first.header.count * npy_type_bytes(type));
    return true;
}

/* The description of the text and the files together, settled. What the text says, the files must not contradict. */
static bool describe_all(linear_call *c) {
    at_error err = {0};
    int32_t kernel;
    attune_linear_desc said, *const d = &c->desc;
    char pairs[2][AT_PAIR_TEXT];
    if (at_desc_read(&lin_table, c->o->problem, d, &kernel, &err)) {
        tool_error("%s", err.message);
        return false;
    }
    if (kernel != AT_ALL_FORMS) {
        tool_error("the problem names a kernel; steps take the one that fits their tensors: leave it out");
        return false;
    }
    said = *d;
    if (!describe_rows(c) || !describe_gates(c) || !describe_states(c)) return false;
    if (at_desc_differs(&lin_table, &said, d, pairs)) {
        tool_error("the problem has %s, but the files have %s", pairs[0], pairs[1]);
        return false;
    }
    if (lin_table.settle(d, &err)) {
        tool_error("%s", err.message);
        return false;
    }
    at_desc_print(&lin_table, d, c->text);
    return true;
}

static bool describe(linear_call *c) {
    char message[ATTUNE_MESSAGE_BYTES];
    attune_linear_step *const s = &c->step;
    if (!find_inputs(c) || !describe_all(c)) return false;
    const attune_linear_desc *const d = &c->desc;
    int64_t shape[4];
    const npy_header *const q = &c->inputs[Q]->header;
    memcpy(shape, q->shape, q->rank * sizeof *shape);
    shape[q->rank - 2] = d->num_heads > d->num_kv_heads ? d->num_heads : d->num_kv_heads;
    shape[q->rank - 1] = d->head_dim_v;
    if (!npy_create(files_type(d->dtype), q->rank, shape, &c->out, message)) {
        tool_error("%s", message);
        return false;
    }
    attune_view *const views[] = {&s->q, &s->k, &s->v, &s->decay, &s->beta, &s->gate};
    for (int input = Q; input <= GATE; input++) views[input]->data = c->inputs[input] ? c->inputs[input]->data : NULL;
    s->norm_weights = c->inputs[NORM_WEIGHTS] ? c->inputs[NORM_WEIGHTS]->data : NULL;
    s->cu_seqlens = c->inputs[CU_SEQLENS] ? c->inputs[CU_SEQLENS]->data : NULL;
    s->state_ids = c->inputs[STATE_IDS] ? c->inputs[STATE_IDS]->data : NULL;
    if (s->cu_seqlens && s->batch && s->cu_seqlens[s->batch] > q->shape[0]) {
        tool_error("cu_seqlens ends at %d, but q has %lld tokens", s->cu_seqlens[s->batch], (long long)q->shape[0]);
        return false;
    }
    s->out.data = c->out.data, s->state.data = c->state.data, s->max_threads = c->o->threads;
    return true;
}

/* ---- Running and checking ---- */

static size_t bytes_of(const npy_array *a) { return a->header.count * npy_type_bytes(a->header.type); }

static bool run_once(linear_call *c, attune_linear *linear, bool is_interpreted) {
    memcpy(c->state.data, c->first.data, bytes_of(&c->state));
    if (!(is_interpreted ? attune_linear_run_interpreted : attune_linear_run)(linear, &c->step)) return true;
    tool_library_error(NULL);
    return false;
}

static bool measure(linear_call *c, attune_linear *linear) {
    enum { MOST_SAMPLES = 25 };
    const bool is_interpreted = c->o->engine == ATTUNE_ENGINE_INTERPRETER;
    double samples[MOST_SAMPLES];
    size_t count = 0;
    const double begin = tool_now_us();
    if (!run_once(c, linear, is_interpreted)) return false;
    c->first_us = tool_now_us() - begin;
    while (!is_interpreted && count < MOST_SAMPLES && (count < 3 || tool_now_us() - begin < 250e3)) {
        const double start = tool_now_us();
        if (!run_once(c, linear, false)) return false;
        samples[count++] = tool_now_us() - start;
    }
    c->median_us = count ? tool_median(samples, count) : c->first_us;
    return true;
}

/* The largest number of a type of out. */
static double largest_of(attune_dtype dtype) {
    return dtype == ATTUNE_F16 ? 65504 : dtype == ATTUNE_BF16 ? 0x1.fep127 : (double)FLT_MAX;
}

/* The error as a share of its limit. Where NaN or an infinity is expected, any such number is right, and so is an
 * infinity where the expected number may be beyond the type's range within the limit. */
static double share_of_limit(double have, double wanted, double limit, attune_dtype dtype) {
    if (have == wanted || isinf(limit)) return 0;
    if (!isfinite(wanted)) return isfinite(have) ? INFINITY : 0;
    const bool overflows = fabs(wanted) + limit >= largest_of(dtype) && signbit(have) == signbit(wanted);
    if (isinf(have)) return overflows ? 0 : INFINITY;
    const double share = fabs(have - wanted) / limit;
    return isnan(share) ? INFINITY : share;
}

/* The largest and the mean error of numbers, which are counted on, and the largest share of a limit. */
static void add_errors(linear_call *c, int64_t first, const double *wanted, const double *limits, int64_t count,
                       int64_t *all) {
    for (int64_t i = 0; i < count; i++) {
        const double have = npy_element(&c->out, (size_t)(first + i));
        const double share = share_of_limit(have, wanted[i], limits[i], c->desc.dtype), off = fabs(have - wanted[i]);
        const double error = isfinite(off) ? off : share > 0 ? INFINITY : 0;
        c->max_error = fmax(c->max_error, error);
        c->rms_error += error * error;
        if (share <= c->excess) continue;
        c->excess = share;
        snprintf(c->worst, sizeof c->worst, "number %lld is %.9g; the reference has %.9g, and rounding explains %.2g",
                 (long long)(first + i), have, wanted[i], limits[i]);
    }
    *all += count;
}

static const void *rows_at(const linear_call *c, int input, int64_t token, attune_dtype dtype) {
    const npy_array *const a = c->inputs[input];
    if (!a) return NULL;
    int64_t row = 1; /* elements of a token */
    for (size_t i = c->inputs[Q]->header.rank - 2; i < a->header.rank; i++) row *= a->header.shape[i];
    return (const char *)a->data + (size_t)(token * row) * ref_dtype_bytes(dtype);
}

/* out of each sequence against f64. */
static bool compare_reference(linear_call *c) {
    const attune_linear_desc *const d = &c->desc;
    const attune_linear_step *const s = &c->step;
    const int64_t numbers = d->num_kv_heads * d->head_dim * d->head_dim_v;
    const int64_t row = (d->num_heads > d->num_kv_heads ? d->num_heads : d->num_kv_heads) * d->head_dim_v;
    int64_t all = 0;
    bool good = true;
    for (int64_t b = 0; b < s->batch && good; b++) {
        const int64_t first = s->cu_seqlens ? s->cu_seqlens[b] : b * s->seq;
        const int64_t tokens = s->cu_seqlens ? s->cu_seqlens[b + 1] - first : s->seq;
        const int64_t slot = s->state_ids ? s->state_ids[b] : b;
        double *const state = malloc((size_t)(numbers + 1) * sizeof *state);
        double *const out = malloc((size_t)(tokens * row + 1) * sizeof *out);
        double *const limits = malloc((size_t)(tokens * row + 1) * sizeof *limits);
        if ((good = state && out && limits)) {
            for (int64_t i = 0; i < numbers; i++) state[i] = npy_element(&c->first, (size_t)(slot * numbers + i));
            const ref_linear r = {.desc = d,
                                  .tokens = tokens,
                                  .q = rows_at(c, Q, first, d->dtype),
                                  .k = rows_at(c, K, first, d->dtype),
                                  .v = rows_at(c, V, first, d->dtype),
                                  .decay = rows_at(c, DECAY, first, d->decay_dtype),
                                  .beta = rows_at(c, BETA, first, d->beta_dtype),
                                  .gate = rows_at(c, GATE, first, d->dtype),
                                  .norm_weights = s->norm_weights};
            good = ref_linear_compute(&r, state, out, limits);
            if (good) add_errors(c, first * row, out, limits, tokens * row, &all);
        }
        if (!good) tool_error("out of memory for the check");
        free(state);
        free(out);
        free(limits);
    }
    c->rms_error = sqrt(c->rms_error / (double)(all ? all : 1));
    c->has_reference = good;
    return good;
}

static bool check(linear_call *c, attune_linear *linear) {
    if (!compare_reference(c)) return false;
    void *const out = malloc(bytes_of(&c->out) + 1), *const state = malloc(bytes_of(&c->state) + 1);
    bool good = out && state;
    if (good) {
        memcpy(out, c->out.data, bytes_of(&c->out));
        memcpy(state, c->state.data, bytes_of(&c->state));
        good = run_once(c, linear, true);
    } else {
        tool_error("out of memory for the check");
    }
    c->same_bits =
        good && !memcmp(out, c->out.data, bytes_of(&c->out)) && !memcmp(state, c->state.data, bytes_of(&c->state));
    free(out);
    free(state);
    return good;
}

static bool compare_expected(linear_call *c) {
    char message[ATTUNE_MESSAGE_BYTES];
    npy_array expected;
    if (!npy_read(c->o->expect, &expected, message)) {
        tool_error("%s", message);
        return false;
    }
    const npy_header *const have = &c->out.header, *const want = &expected.header;
    const bool fits = have->rank == want->rank && !memcmp(have->shape, want->shape, have->rank * sizeof *have->shape);
    if (!fits) tool_error("%s has another shape than the result", c->o->expect);
    for (size_t i = 0; fits && i < have->count; i++) {
        const double error = fabs(npy_element(&c->out, i) - npy_element(&expected, i));
        if (!(error <= c->expect_max)) c->expect_max = isnan(error) ? INFINITY : error;
    }
    npy_free(&expected);
    return fits;
}

/* ---- Showing ---- */

static void print_text(const linear_call *c, FILE *stream) {
    char a[TABLE_NUMBER_BYTES], b[TABLE_NUMBER_BYTES];
    table *const t = table_create("ll", NULL);
    table_cell(t, "problem");
    table_cell(t, "%s", c->text);
    table_cell(t, "time");
    table_cell(t, "%s (first call, which may compile: %s)", table_time(c->median_us, a), table_time(c->first_us, b));
    if (c->o->check) {
        table_cell(t, "interpreter");
        table_cell(t, "%s", c->same_bits ? "the same bits" : "DIFFERENT BITS");
        table_cell(t, "f64 reference");
        table_cell(t, "max error %.2e, RMS %.2e, at most %.2g %% of what rounding explains", c->max_error, c->rms_error,
                   100 * c->excess);
    }
    if (c->o->expect) {
        table_cell(t, "expected");
        table_cell(t, "max error %.2e against %s", c->expect_max, c->o->expect);
    }
    table_finish(t, stream);
}

static int print_json(const linear_call *c, const attune_context *context) {
    json_t *const j = json_pack("{s:s, s:s, s:f, s:f}", "problem", c->text, "engine", tool_engine_option(c->o->engine),
                                "first_us", c->first_us, "median_us", c->median_us);
    if (j && c->o->check) {
        json_object_set_new(j, "same_bits", json_boolean(c->same_bits));
        json_object_set_new(j, "max_error", json_number(c->max_error));
        json_object_set_new(j, "rms_error", json_number(c->rms_error));
        json_object_set_new(j, "limit_share", json_number(c->excess));
    }
    if (j && c->o->expect) json_object_set_new(j, "expect_max_error", json_number(c->expect_max));
    return json_print_for(context, 0, j);
}

static bool write_outputs(const linear_call *c, bool *takes_stdout) {
    char message[ATTUNE_MESSAGE_BYTES];
    const run_files *const f = &c->o->files;
    for (size_t i = 0; i < f->num_outputs; i++) {
        const npy_array *const a = strcmp(f->outputs[i].name, "out") ? &c->state : &c->out;
        *takes_stdout |= strcmp(f->outputs[i].path, "-") == 0;
        if (npy_write(f->outputs[i].path, a->header.type, a->header.rank, a->header.shape, a->data, message)) continue;
        tool_error("%s", message);
        return false;
    }
    return true;
}

/* ---- The command ---- */

static int run_on(linear_call *c) {
    const run_options *const o = c->o;
    attune_linear *linear = NULL;
    int code = TOOL_FAILED;
    bool takes_stdout = false;
    attune_context *const context = tool_open_context(&o->common, o->threads, NULL);
    if (!context) return TOOL_FAILED;
    if (attune_linear_create(context, &c->desc, &linear)) {
        tool_library_error(NULL);
    } else if (measure(c, linear) && (!o->check || check(c, linear)) && (!o->expect || compare_expected(c)) &&
               write_outputs(c, &takes_stdout)) {
        code = TOOL_OK;
        if (o->json)
            code = print_json(c, context);
        else
            print_text(c, takes_stdout ? stderr : stdout);
        if (o->check && !c->same_bits) {
            tool_error("kernels and interpreter differ in out or state");
            code = TOOL_FAILED;
        }
        if (o->check && !(c->excess <= 1)) {
            tool_error("out is wrong beside the f64 reference: %s", c->worst);
            code = TOOL_FAILED;
        }
    }
    attune_linear_destroy(linear);
    attune_context_destroy(context);
    return code;
}

int run_linear(run_options *o) {
    linear_call c = {.o = o, .desc = ATTUNE_LINEAR_DESC_INIT, .step = ATTUNE_LINEAR_STEP_INIT};
    int code = TOOL_FAILED;
    if (o->schedule || o->sizes || o->engine == ATTUNE_ENGINE_VM)
        tool_error("op=linear takes no --schedule, --sizes or --engine=vm");
    else if (files_read(&o->files) && describe(&c))
        code = run_on(&c);
    npy_free(&c.out);
    npy_free(&c.state);
    npy_free(&c.first);
    files_free(&o->files);
    return code;
}
