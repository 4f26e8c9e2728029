/* The command attune run for a step: runs it, measures it, checks it, and shows what came out. */
#include "run/step.h"

#include "common/json_output.h"
#include "common/table.h"
#include "measure/peak.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const step_operator *step_operator_of(const char *problem) {
    static const step_operator *const all[] = {&step_linear, &step_conv, &step_index, &step_blocks, &step_mla};
    const at_desc_table *const of = problem ? at_desc_table_of(problem) : NULL;
    for (size_t i = 0; of && i < sizeof all / sizeof *all; i++)
        if (all[i]->table == of) return all[i];
    return NULL;
}

/* ---- Running ---- */

/* One run on the states as they were at first; the time is that of the step alone. */
static bool run_once(step_call *c, double *us) {
    step_reset_states(c);
    const double start = tool_now_us();
    const attune_status status = c->of->run(c, c->o->engine == ATTUNE_ENGINE_INTERPRETER);
    *us = tool_now_us() - start;
    if (!status) return true;
    tool_library_error(NULL);
    return false;
}

/* At least three calls after the first, then until a quarter of a second is spent; the interpreter is timed once. */
static bool measure(step_call *c) {
    enum { MOST_SAMPLES = 25 };
    const bool is_interpreted = c->o->engine == ATTUNE_ENGINE_INTERPRETER;
    double samples[MOST_SAMPLES];
    size_t count = 0;
    const double begin = tool_now_us();
    if (!run_once(c, &c->first_us)) return false;
    while (!is_interpreted && count < MOST_SAMPLES && (count < 3 || tool_now_us() - begin < 250e3))
        if (!run_once(c, &samples[count++])) return false;
    c->median_us = count ? tool_median(samples, count) : c->first_us;
    return true;
}

/* The step's speed, and the peak right after it. */
static void find_speed(step_call *c, const attune_context *context) {
    attune_machine_info machine = {.struct_size = sizeof machine};
    const npy_type type = c->arrays[0].header.type;
    c->gflops = c->of->flops(c) / c->median_us * 1e-3;
    if (c->o->engine == ATTUNE_ENGINE_INTERPRETER || attune_get_machine_info(context, &machine)) return;
    c->peak_dtype = c->of->has_pairs && type == NPY_V2 ? ATTUNE_BF16 : ATTUNE_F32;
    c->peak_gflops = peak_best(machine.isa, machine.max_workers, c->peak_dtype);
    if (c->peak_gflops > 0 || c->peak_dtype == ATTUNE_F32) return;
    c->peak_dtype = ATTUNE_F32;
    c->peak_gflops = peak_best(machine.isa, machine.max_workers, ATTUNE_F32);
}

/* The interpreter does some 20 million operations in a second, and the reference some more. */
static bool can_check(const step_call *c) {
    const double flops = c->of->reference_flops ? c->of->reference_flops(c) : c->of->flops(c);
    const double speed = 20e6, most = 600, seconds = flops / speed;
    char text[TABLE_NUMBER_BYTES];
    if (!c->o->check || seconds <= most) return true;
    tool_error(
        "--check would take about %s: this step has %.3g operations, which the interpreter and the f64 reference "
        "compute one by one; take smaller sizes, of up to %.2g operations",
        table_duration(seconds, text), flops, speed * most);
    return false;
}

/* ---- Showing ---- */

/* As --sizes takes them: without seq where cu_seqlens has the lengths. */
static const char *print_sizes(const step_call *c, char text[256]) {
    size_t length = 0;
    *text = 0;
    for (int i = 0; c->of->sizes[i]; i++) {
        const char *const name = c->of->sizes[i];
        if (c->sizes[i] < 0 || (!strcmp(name, "seq") && step_file(c, "cu_seqlens"))) continue;
        length += (size_t)snprintf(text + length, 256 - length, length ? ",%s=%lld" : "%s=%lld", name,
                                   (long long)c->sizes[i]);
    }
    return text;
}

static void print_text(const step_call *c, FILE *stream) {
    char a[TABLE_NUMBER_BYTES], b[TABLE_NUMBER_BYTES], sizes[256];
    table *const t = table_create("ll", NULL);
    table_cell(t, "problem");
    table_cell(t, "%s", c->text);
    table_cell(t, "sizes");
    table_cell(t, "%s; inputs %s", print_sizes(c, sizes), c->has_files ? "from files" : "are random numbers");
    table_cell(t, "time");
    table_cell(t, "%s (first call, which may compile: %s)", table_time(c->median_us, a), table_time(c->first_us, b));
    table_cell(t, "speed");
    if (c->peak_gflops > 0)
        table_cell(t, "%.3g GFLOP/s, %.0f %% of the %.0f GFLOP/s this CPU can do in %s", c->gflops,
                   100 * c->gflops / c->peak_gflops, c->peak_gflops, tool_dtype_name(c->peak_dtype));
    else
        table_cell(t, "%.3g GFLOP/s", c->gflops);
    if (c->o->check) {
        table_cell(t, "interpreter");
        table_cell(t, "%s",
                   !step_compares_bits(c) ? "not compared: it computed the result"
                   : c->same_bits         ? "the same bits"
                                          : "DIFFERENT BITS");
        table_cell(t, "f64 reference");
        table_cell(t, "max error %.2e, RMS %.2e, at most %.2g %% of what rounding explains", c->errors.max,
                   sqrt(c->errors.squares / (double)(c->errors.count ? c->errors.count : 1)), 100 * c->errors.share);
    }
    if (c->o->expect) {
        table_cell(t, "expected");
        table_cell(t, "max error %.2e against %s", c->expect_max, c->o->expect);
    }
    table_finish(t, stream);
}

static int print_json(const step_call *c, const attune_context *context) {
    char sizes[256];
    json_t *const j = json_pack("{s:s, s:s, s:s, s:f, s:f, s:f}", "problem", c->text, "sizes", print_sizes(c, sizes),
                                "engine", tool_engine_option(c->o->engine), "first_us", c->first_us, "median_us",
                                c->median_us, "gflops", c->gflops);
    if (j && c->peak_gflops > 0) {
        json_object_set_new(j, "peak_gflops", json_real(c->peak_gflops));
        json_object_set_new(j, "peak_dtype", json_string(tool_dtype_name(c->peak_dtype)));
        json_object_set_new(j, "fraction_of_peak", json_real(c->gflops / c->peak_gflops));
    }
    if (j && c->o->check) {
        if (step_compares_bits(c)) json_object_set_new(j, "same_bits", json_boolean(c->same_bits));
        json_object_set_new(j, "max_error", json_number(c->errors.max));
        json_object_set_new(j, "rms_error",
                            json_number(sqrt(c->errors.squares / (double)(c->errors.count ? c->errors.count : 1))));
        json_object_set_new(j, "limit_share", json_number(c->errors.share));
        json_object_set_new(j, "is_right", json_boolean(c->errors.share <= 1));
    }
    if (j && c->o->expect) json_object_set_new(j, "expect_max_error", json_number(c->expect_max));
    return json_print_for(context, 0, j);
}

static bool write_outputs(const step_call *c, bool *takes_stdout) {
    char message[ATTUNE_MESSAGE_BYTES];
    const run_files *const f = &c->o->files;
    for (size_t i = 0; i < f->num_outputs; i++) {
        const npy_array *const a = step_array(c, f->outputs[i].name);
        *takes_stdout |= strcmp(f->outputs[i].path, "-") == 0;
        if (npy_write(f->outputs[i].path, a->header.type, a->header.rank, a->header.shape, a->data, message)) continue;
        tool_error("%s", message);
        return false;
    }
    return true;
}

/* ---- The command ---- */

/* One sentence for each of the two comparisons. */
static bool passes(const step_call *c) {
    const bool has_bits = !step_compares_bits(c) || c->same_bits;
    if (!has_bits) tool_error("machine code and interpreter differ in what op=%s writes", c->of->table->op);
    if (!(c->errors.share <= 1)) tool_error("wrong, compared with the f64 reference: %s", c->errors.worst);
    return has_bits && c->errors.share <= 1;
}

static int run_on(step_call *c) {
    const run_options *const o = c->o;
    int code = TOOL_FAILED;
    bool takes_stdout = false;
    attune_context *const context = tool_open_context(&o->common, o->threads, NULL);
    if (!context) return TOOL_FAILED;
    if (c->of->create(c, context)) {
        tool_library_error(NULL);
    } else if (measure(c) && (!o->check || step_check(c)) && (!o->expect || step_compare_expected(c)) &&
               write_outputs(c, &takes_stdout)) {
        code = TOOL_OK;
        find_speed(c, context);
        if (o->json)
            code = print_json(c, context);
        else
            print_text(c, takes_stdout ? stderr : stdout);
        if (o->check && !passes(c)) code = TOOL_FAILED;
    }
    c->of->destroy(c);
    attune_context_destroy(context);
    return code;
}

int step_command(run_options *o, const step_operator *of) {
    step_call *const c = calloc(1, sizeof *c);
    int code = TOOL_FAILED;
    if (!c) return tool_error("out of memory"), TOOL_FAILED;
    c->of = of, c->o = o;
    if (o->schedule || o->engine == ATTUNE_ENGINE_VM)
        tool_error("op=%s takes no --schedule and no --engine=vm", of->table->op);
    else if (step_describe(c) && can_check(c) && step_fill_arrays(c))
        code = run_on(c);
    step_free_arrays(c);
    files_free(&o->files);
    free(c);
    return code;
}
