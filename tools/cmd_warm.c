/* attune warm: compiles what a manifest names, so that programs find it in the cache. */
#include "warming.h"

#include <jansson.h>
#include <stdlib.h>

typedef struct warm_options {
    tool_common common;
    manifest list;
    uint32_t jobs; /* 0: as many as there are CPUs */
    double budget; /* seconds; 0: no end */
    bool json;
} warm_options;

static const struct argp_option options[] = {
    {"jobs", TOOL_KEY_JOBS, "N", 0, "Kernels compiled at a time (default: one for each CPU)", 0},
    {"budget", TOOL_KEY_BUDGET, "SECONDS", 0, "Begin no kernel after this time; those left are counted", 0},
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    warm_options *const o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case TOOL_KEY_JOBS: o->jobs = (uint32_t)tool_parse_integer(state, "jobs", argument, 1, 256); return 0;
    case TOOL_KEY_BUDGET: o->budget = tool_parse_seconds(state, "budget", argument, 0.001, 1e6); return 0;
    case TOOL_KEY_JSON: o->json = true; return 0;
    case ARGP_KEY_ARG:
        if (!manifest_add_argument(&o->list, argument)) exit(TOOL_FAILED);
        return 0;
    case ARGP_KEY_END:
        if (!o->list.count) argp_error(state, "a MANIFEST is needed: a file of problems, or problems");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static volatile sig_atomic_t is_interrupted;

static void interrupt(int signal_number) {
    (void)signal_number;
    is_interrupted = 1;
}

static int report(const warm_options *o, const warming *w, uint32_t jobs) {
    const size_t *const count = w->count;
    int code = TOOL_OK;
    if (o->json)
        code = tool_print_json(json_pack("{s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:f, s:f}", "schema", 1, "jobs",
                                         (int)jobs, "kernels", (json_int_t)o->list.count, "compiled",
                                         (json_int_t)count[WARM_COMPILED], "cached", (json_int_t)count[WARM_CACHED],
                                         "failed", (json_int_t)count[WARM_FAILED], "left", (json_int_t)count[WARM_LEFT],
                                         "compile_ms", w->compile_ms, "seconds", w->seconds));
    else
        printf("%zu kernels: %zu compiled, %zu cached already, %zu failed, %zu left; %.1f s\n", o->list.count,
               count[WARM_COMPILED], count[WARM_CACHED], count[WARM_FAILED], count[WARM_LEFT], w->seconds);
    return count[WARM_FAILED] || count[WARM_LEFT] ? TOOL_FAILED : code;
}

static int warm(const warm_options *o, attune_context *context) {
    attune_machine_info machine = {.struct_size = sizeof machine};
    if (attune_get_machine_info(context, &machine) != ATTUNE_OK) return tool_library_error(NULL);
    if (!*machine.cache_dir) {
        tool_error("the disk cache is off: there is nothing to warm");
        return TOOL_FAILED;
    }
    const uint32_t jobs = o->jobs ? o->jobs : machine.max_workers;
    warming w;
    signal(SIGINT, interrupt);
    warming_run(&w, context, &o->list, jobs, o->budget, &is_interrupted);
    signal(SIGINT, SIG_DFL);
    return report(o, &w, jobs);
}

int cmd_warm(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "MANIFEST|PROBLEM...",
        "Compiles kernels into the disk cache, so that programs find them there. A MANIFEST has a line `PROBLEM` or "
        "`PROBLEM | SCHEDULE` for each; ATTUNE_RECORD=FILE makes any program that uses attune write one of what it had "
        "to compile. Exit status 1 if a kernel failed or was left.",
        tool_common_children,
        NULL,
        NULL};
    warm_options o = {0};
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    attune_context *const context = tool_open_context(&o.common, 0, NULL);
    const int code = context ? warm(&o, context) : TOOL_FAILED;
    if (context) attune_context_destroy(context);
    manifest_free(&o.list);
    return code;
}
