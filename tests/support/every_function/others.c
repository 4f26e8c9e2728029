/* Loop IR, operators of one's own, tuning, bundles, caches, machines. */
#include "support/every_function/every_function.h"
#include "support/every_function/record.h"
#include "support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Loop IR, and operators of one's own ---- */

static const char axpy[] = "kernel @axpy (n: i64, x: f32[n] in, y: f32[n] out) {\n"
                           " assume n >= 0:i64\n"
                           " parallel for i in 0..n as idx { y[i] = x[i] * 0.1:f32 + (0.7:f32 * 1e-42:f32) }\n}\n";

static void observe(void *user, const char *pass, const char *text) {
    (void)user;
    note_bytes(pass, text, strlen(text));
}

static int build_scaling(void *user, const attune_build_request *request, attune_ir_writer *w) {
    int tenths;
    (void)user;
    if (sscanf(request->problem, "tenths=%d", &tenths) != 1) return 1;
    const double factor = tenths / 10.0;
    environment_enter(now->where);
    attune_ir_print(w, "kernel @scaling (x: f32[8] in, y: f32[8] out) {\nparallel for i in 0..8 { y[i] = x[i] * ");
    attune_ir_print(w, "%.17g } }\n", factor);
    environment_leave(now->where, "attune_ir_print");
    remember("attune_ir_print");
    return 0;
}

static void run_ir(attune_context *context, const attune_kernel *kernel, float *x, float *y) {
    void *const buffers[] = {x, y};
    attune_call *call = NULL;
    int64_t tasks;
    OK(attune_ir_run(context, kernel, ATTUNE_ENGINE_JIT, buffers, NULL));
    note_bytes("y", y, 8 * sizeof *y);
    OK(attune_ir_run(context, kernel, ATTUNE_ENGINE_INTERPRETER, buffers, NULL));
    note_bytes("y", y, 8 * sizeof *y);
    OK(attune_ir_call_begin(context, kernel, buffers, NULL, 1, &call));
    CALL(tasks = attune_call_num_tasks(call, 0));
    OK(attune_call_execute(call, 0, 0, tasks, 0));
    OK(attune_call_end(call));
}

static const char constants[] =
    "kernel @constants (x: f32[8] in, y: f32[8] out) {\nparallel for i in 0..8 { y[i] = x[i] "
    "* 0.1 + (0.7 * 1e-42) + sqrt(0.3) } }\n";

void go_through_ir(attune_context *context) {
    const attune_ir_parameter *parameters;
    attune_kernel *kernel = NULL;
    float x[8], y[8];
    void *data = NULL;
    size_t bytes, count, rank;
    int64_t dims[8];
    for (int i = 0; i < 8; i++) x[i] = i < 4 ? (float)i * 0.3f : (float)i * 1e-42f;
    OK(attune_ir_emit(context, constants, ATTUNE_STAGE_LOWERED, &data, &bytes));
    note("%s\n", (const char *)data);
    CALL(attune_free(context, data));
    STATUS(attune_ir_emit(context, axpy, ATTUNE_STAGE_LOWERED, &data, &bytes));
    STATUS(attune_ir_emit(context, "kernel @k (x: f32[1] out) { x[0] = 1e99 }", ATTUNE_STAGE_IR, &data, &bytes));
    OK(attune_ir_dump_passes(context, constants, observe, NULL));
    OK(attune_ir_cache_why(context, constants, every_answer, NULL));
    OK(attune_ir_compile(context, constants, &kernel));
    note_kernel(kernel);
    OK(attune_ir_parameters(kernel, &parameters, &count));
    OK(attune_ir_shape(kernel, 1, NULL, dims, &rank));
    run_ir(context, kernel, x, y);
    CALL(attune_kernel_release(kernel));
}

static int stop_search(void *user, const attune_tune_progress *progress) {
    (void)user, (void)progress;
    return 1;
}

void go_through_operators(attune_context *context) {
    static const int32_t values[] = {1, 2};
    static const attune_choice choices[] = {{"rounds", values, 2, 1, 0}};
    attune_operator_options options = ATTUNE_OPERATOR_OPTIONS_INIT;
    attune_tune_options how = ATTUNE_TUNE_OPTIONS_INIT;
    attune_tune_result result = {.struct_size = sizeof result};
    attune_operator *op = NULL;
    attune_kernel *kernel = NULL;
    const int32_t *numbers;
    int32_t tuned[1];
    size_t count;
    float x[8], y[8];
    options.name = "scaling", options.version = 1, options.build = build_scaling;
    options.choices = choices, options.num_choices = 1;
    how.progress = stop_search, how.budget_seconds = 0.05;
    for (int i = 0; i < 8; i++) x[i] = (float)i * 0.3f;
    OK(attune_operator_add(context, &options, &op));
    OK(attune_operator_cache_why(op, "tenths=1", NULL, every_answer, NULL));
    OK(attune_operator_compile(op, "tenths=1", NULL, &kernel));
    note_kernel(kernel);
    OK(attune_operator_numbers(kernel, &numbers, &count));
    run_ir(context, kernel, x, y);
    OK(attune_operator_tune(op, "tenths=1", (void *[]){x, y}, NULL, &how, tuned, &result));
    CALL(attune_kernel_release(kernel));
}

void go_through_descriptions(attune_context *context) {
    static const char text[] = "op=linear,num_heads=1,head_dim=4,rule=gated,decay=head,qk_norm_eps=1e-05";
    char kernel[ATTUNE_DESCRIPTION_BYTES];
    attune_kernel *compiled = NULL;
    void *ir = NULL;
    size_t count, bytes = 0;
    OK(attune_description_kernel(text, 1, kernel, sizeof kernel, &count));
    note("%zu %s\n", count, kernel);
    OK(attune_description_compile(context, kernel, &compiled));
    note_kernel(compiled);
    CALL(attune_kernel_release(compiled));
    OK(attune_description_emit(context, kernel, ATTUNE_STAGE_IR, &ir, &bytes));
    note_bytes("ir", ir, bytes);
    CALL(attune_free(context, ir));
    STATUS(attune_description_compile(context, text, &compiled));
}

/* ---- Tuning, bundles, caches, machines ---- */

void go_through_tuning(attune_context *context) {
    attune_tune_options how = ATTUNE_TUNE_OPTIONS_INIT;
    attune_tune_result result = {.struct_size = sizeof result};
    char path[TEMP_DIR_CHARS + 16];
    uint64_t taken, of_here;
    sample_call c;
    sample_call_open(&c, &samples[PLAIN], ON_THE_HEAP);
    how.budget_seconds = 0.3;
    OK(attune_tune(context, &c.problem, &c.arguments, &how, &result));
    how.budget_seconds = 0.01;
    STATUS(attune_tune(context, &c.problem, &c.arguments, &how, &result));
    sample_call_close(&c);
    snprintf(path, sizeof path, "%s/results.db", now->dir);
    OK(attune_tuning_export(context, path));
    OK(attune_tuning_import(context, path, &taken, &of_here));
}

void go_through_bundles(attune_context *context) {
    attune_bundle_options options = ATTUNE_BUNDLE_OPTIONS_INIT;
    attune_bundle_files files = {0};
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    attune_machine_info machine = {.struct_size = sizeof machine};
    const attune_bundle_kernel kernel = {.name = "attn", .problem = &problem};
    OK(attune_get_machine_info(context, &machine));
    OK(attune_problem_parse(&problem, every_text[1]));
    options.name = "model", options.targets = machine.isa;
    STATUS(attune_bundle_make(context, &options, &kernel, 1, &files));
    if (files.library) note_bytes("library", files.library, files.library_bytes);
    if (files.header) note("%s\n", (const char *)files.header);
    CALL(attune_free(context, files.library));
    CALL(attune_free(context, files.header));
    STATUS(attune_context_add_bundle(context, NULL));
}

static int note_entry(void *user, const attune_cache_file *entry) {
    ++*(int *)user;
    (void)entry;
    return 0;
}

void go_through_caches(attune_context *context) {
    char copy[TEMP_DIR_CHARS + 16], pack[TEMP_DIR_CHARS + 16];
    attune_cache_copied copied = {.struct_size = sizeof copied};
    attune_cache_collected collected = {.struct_size = sizeof collected};
    int entries = 0;
    void *part = NULL;
    char *signature = NULL;
    uint64_t removed;
    size_t bytes;
    snprintf(copy, sizeof copy, "%s/copy", now->dir);
    snprintf(pack, sizeof pack, "%s/pack", now->dir);
    OK(attune_cache_visit(context, note_entry, &entries));
    assert_true(entries > 0); /* how many depends on what the tuner found */
    OK(attune_cache_export(context, copy, &copied));
    OK(attune_cache_import(context, copy, &copied));
    OK(attune_cache_pack(context, pack, NULL, 0, &copied));
    CALL((void)!attune_cache_seal(context, pack, copy));
    CALL((void)!attune_cache_add(context, pack, &copied));
    CALL((void)!attune_cache_pack_parts(context, pack, &part, &bytes, &signature));
    CALL(attune_free(context, part));
    CALL(attune_free(context, signature));
    OK(attune_cache_gc(context, 1 << 30, &collected));
    OK(attune_cache_clear(context, &removed));
}

void go_through_machines(attune_context *context) {
    attune_machine_probe probe = {.struct_size = sizeof probe};
    attune_statistics statistics = {.struct_size = sizeof statistics};
    CALL((void)!attune_probe_machine(context, &probe));
    OK(attune_get_statistics(context, &statistics));
    CALL((void)!attune_last_message());
    CALL((void)!attune_status_name(ATTUNE_OK));
    CALL((void)!attune_version());
}

void go_through_structs(void) {
    attune_bundle_options bundle;
    attune_run_options run;
    attune_runner runner;
    attune_context_options context;
    attune_operator_options op;
    attune_plan_options plan;
    attune_problem problem;
    attune_tune_options tune;
    OK(attune_bundle_options_init(&bundle, sizeof bundle));
    OK(attune_run_options_init(&run, sizeof run));
    OK(attune_runner_init(&runner, sizeof runner));
    OK(attune_context_options_init(&context, sizeof context));
    OK(attune_operator_options_init(&op, sizeof op));
    OK(attune_plan_options_init(&plan, sizeof plan));
    OK(attune_problem_init(&problem, sizeof problem));
    OK(attune_tune_options_init(&tune, sizeof tune));
}
