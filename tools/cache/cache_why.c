/* attune cache why: what made a miss of a problem. */
#include "cache/cache.h"
#include "common/json_output.h"
#include "common/table.h"
#include "common/tensors.h"
#include "loop_ir/ir_params.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct why_output {
    const cache_options *options;
    const attune_machine_info *machine;
    char tier0[64]; /* the kernel of tier 0 for the problem; "": none */
    int code;
} why_output;

/* ---- Tier 0 ---- */

/* "f32_64_many_all computes it: …" */
static void note_kernel(void *user, const attune_event *event) {
    why_output *const out = user;
    if (event->kind == ATTUNE_EVENT_TIER0_HIT)
        snprintf(out->tier0, sizeof out->tier0, "%.*s", (int)strcspn(event->message, " "), event->message);
}

/* Tells what computes the problem if nothing can be compiled and no cache has the kernel. */
static void look_into_tier0(const attune_problem *problem, why_output *out) {
    const attune_context_options options = {.struct_size = sizeof options,
                                            .cache_dir = "",
                                            .cache_base = "",
                                            .cache_pack = "",
                                            .isa = out->machine->isa,
                                            .compile_mode = ATTUNE_COMPILE_NEVER,
                                            .event = note_kernel,
                                            .event_user = out};
    attune_context *context;
    attune_kernel *kernel;
    attune_kernel_info info = {.struct_size = sizeof info};
    if (attune_context_create(&options, &context)) return;
    if (!attune_compile(context, problem, NULL, &kernel)) {
        if (attune_kernel_get_info(kernel, &info)) tool_library_error(NULL);
        attune_kernel_release(kernel);
    }
    if (info.origin != ATTUNE_FROM_TIER0) out->tier0[0] = '\0';
    attune_context_destroy(context);
}

/* ---- The answer ---- */

/* Explains a difference outside the problem. */
static const char *meaning(const char *field) {
    static const char *const meanings[][2] = {
        {"operator", "attention and other operators have no kernels in common"},
        {"schedule", "an explicit schedule is part of the key; one that the caller left open is not"},
        {"isa", "it is for another instruction set (--isa, ATTUNE_ISA)"},
        {"machine", "it is for CPUs of another tuning class (ATTUNE_MACHINE)"},
        {"llvm", "it was made by another version of LLVM"},
        {"generator", "it was made by another version of attune's sources"},
        {"image_version", "its code is laid out for another version of attune"},
        {"cpu_features", "its code needs what this CPU lacks"},
    };
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        if (strcmp(field, meanings[i][0]) == 0) return meanings[i][1];
    return NULL;
}

static int print_json(const attune_cache_answer *a, const char *tier0, const attune_machine_info *machine) {
    json_t *const differences = json_array();
    for (size_t i = 0; i < a->num_differences; i++) {
        const attune_cache_difference *const d = &a->differences[i];
        json_array_append_new(differences, json_pack("{s:s, s:o, s:o}", "field", d->field, "there",
                                                     tool_json_text(d->there), "here", tool_json_text(d->here)));
    }
    json_t *const nearest =
        a->nearest ? json_pack("{s:s, s:o, s:b, s:b, s:o, s:o}", "file", a->nearest->file, "directory",
                               tool_json_text(a->nearest->directory), "base", a->nearest->is_base, "ok",
                               a->nearest->status == ATTUNE_OK, "message", tool_json_text(a->nearest->message),
                               "problem", tool_json_text(a->nearest->problem))
                   : json_null();
    return json_print(machine, 0,
                      json_pack("{s:b, s:s, s:I, s:o, s:o, s:s?, s:s?}", "cached", a->is_cached, "key", a->key,
                                "compared", (json_int_t)a->compared, "nearest", nearest, "differences", differences,
                                "stand_in", a->stand_in, "tier0", tier0));
}

static void print_differences(const attune_cache_answer *a) {
    static const char *const headers[] = {"differs in", "there", "here"};
    char used[CACHE_TIME_BYTES];
    printf("nearest of %llu kernel%s: %s in %s, last used %s\n  %s\n\n", (unsigned long long)a->compared,
           cache_s(a->compared), a->nearest->file, a->nearest->directory, cache_time(a->nearest->used_at, used),
           a->nearest->problem);
    table *const t = table_create("lll", headers);
    for (size_t i = 0; i < a->num_differences; i++) {
        table_cell(t, "%s", a->differences[i].field);
        table_cell(t, "%s", a->differences[i].there);
        table_cell(t, "%s", a->differences[i].here);
    }
    table_finish(t, stdout);
    for (size_t i = 0; i < a->num_differences; i++) {
        const char *const text = meaning(a->differences[i].field);
        if (text) printf("%s: %s\n", a->differences[i].field, text);
    }
}

static void print(void *user, const attune_cache_answer *a) {
    why_output *const out = user;
    const char *const tier0 = *out->tier0 && !a->is_cached && !a->stand_in ? out->tier0 : NULL;
    if (out->options->json) {
        out->code = print_json(a, tier0, out->machine);
        return;
    }
    printf("%s is %scached\n", a->key, a->is_cached ? "" : "not ");
    if (a->is_cached)
        printf("in %s/%s\n", a->nearest->directory, a->nearest->file);
    else if (a->nearest && a->nearest->status != ATTUNE_OK)
        printf("its file in %s is damaged, and will be compiled anew: %s\n", a->nearest->directory,
               a->nearest->message);
    else if (a->nearest)
        print_differences(a);
    else
        printf("there are no kernels\n");
    if (a->stand_in)
        printf("%s's kernel would be used where nothing can be compiled (ATTUNE_STRICT=1, no code generator)\n",
               a->stand_in);
    if (tier0) printf("tier 0 computes it where nothing can be compiled, by its kernel %s\n", tier0);
}

/* A file of loop IR: its text, or with parameters the operator that it is. */
static int explain_file(const cache_options *o, attune_context *context, why_output *out) {
    ir_params params;
    binding_list numbers = o->numbers;
    attune_operator *op;
    if (o->schedule) {
        tool_error("%s: a file of loop IR has no schedule", o->argument);
        return TOOL_FAILED;
    }
    if (!ir_params_read(&params, o->argument, &numbers)) return TOOL_FAILED;
    attune_status status = ATTUNE_OK;
    if (!params.count) {
        status = attune_ir_cache_why(context, params.text, print, out);
    } else {
        status = ir_params_operator(&params, context, &op);
        if (!status)
            status = attune_operator_cache_why(op, params.problem, params.is_set ? params.values : NULL, print, out);
    }
    ir_params_free(&params);
    return status ? tool_library_error(o->argument) : out->code;
}

int cache_why(const cache_options *o, attune_context *context, const attune_machine_info *machine) {
    attune_problem problem;
    why_output out = {.options = o, .machine = machine};
    if (!access(o->argument, F_OK)) return explain_file(o, context, &out);
    if (o->numbers.count) {
        tool_error("--set is for a file of loop IR, and there is no file %s", o->argument);
        return TOOL_FAILED;
    }
    if (!problem_from_text(o->argument, &problem)) return TOOL_FAILED;
    if (!o->schedule) look_into_tier0(&problem, &out);
    if (attune_cache_why(context, &problem, o->schedule, print, &out) != ATTUNE_OK) return tool_library_error(NULL);
    return out.code;
}
