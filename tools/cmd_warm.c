/* attune warm: compiles the problems of a manifest, so that programs find their kernels in the cache. */
#include "cache/warming.h"
#include "common/interruption.h"
#include "common/json_output.h"

#include <stdlib.h>
#include <string.h>

typedef struct warm_options {
    tool_common common;
    manifest list;
    size_t damaged; /* lines of manifests that are no problems */
    uint32_t jobs;  /* 0: as many as there are CPUs */
    double budget;  /* seconds; 0: no end */
    bool json;
} warm_options;

static const struct argp_option options[] = {
    {"jobs", TOOL_KEY_JOBS, "N", 0, "Kernels compiled at a time (default: one for each CPU)", 0},
    {"budget", TOOL_KEY_BUDGET, "SECONDS", 0, "After this time compile no further kernel, and count those left", 0},
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

/* A line that cannot be read, because it is damaged or of another version, does not keep the others from being warmed.
 */
static bool add_line(void *user, const char *text, const char *file, int line) {
    enum { MOST_NAMED = 20 };
    warm_options *const o = user;
    if (manifest_add(&o->list, text, file, line)) return true;
    if (++o->damaged < MOST_NAMED || o->list.count) return true;
    tool_error("%s: the first %d lines are not problems, so this is not a manifest", file, MOST_NAMED);
    return false;
}

static bool add(warm_options *o, const char *argument) {
    return strchr(argument, '=') ? manifest_add(&o->list, argument, NULL, 0)
                                 : manifest_each_line(argument, add_line, o);
}

static error_t parse(int key, char *argument, struct argp_state *state) {
    warm_options *const o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case TOOL_KEY_JOBS: o->jobs = (uint32_t)tool_parse_integer(state, "jobs", argument, 1, 256); return 0;
    case TOOL_KEY_BUDGET: o->budget = tool_parse_seconds(state, "budget", argument, 0.001, 1e6); return 0;
    case TOOL_KEY_JSON: o->json = true; return 0;
    case ARGP_KEY_ARG:
        if (!add(o, argument)) exit(TOOL_FAILED);
        return 0;
    case ARGP_KEY_END:
        if (!o->list.count && o->damaged) exit(TOOL_FAILED);
        if (!o->list.count) argp_error(state, "a MANIFEST is needed: a file of problems, or problems");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* ---- The report ---- */

static int print_json(const warm_options *o, const warming *w, uint32_t jobs, const attune_machine_info *machine) {
    const size_t *const count = w->count;
    return json_print(machine, jobs,
                      json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f}", "jobs", (int)jobs, "kernels",
                                (json_int_t)(o->list.count - count[WARM_SHARED]), "shared",
                                (json_int_t)count[WARM_SHARED], "compiled", (json_int_t)count[WARM_COMPILED], "cached",
                                (json_int_t)count[WARM_CACHED], "failed", (json_int_t)count[WARM_FAILED], "left",
                                (json_int_t)count[WARM_LEFT], "damaged_lines", (json_int_t)o->damaged, "write_failures",
                                (json_int_t)w->write_failures, "compile_ms", w->compile_ms, "seconds", w->seconds));
}

static void print_text(const warm_options *o, const warming *w) {
    const size_t *const count = w->count, kernels = o->list.count - count[WARM_SHARED];
    printf("%zu kernel%s: %zu compiled, %zu cached already, %zu failed, %zu left", kernels, kernels == 1 ? "" : "s",
           count[WARM_COMPILED], count[WARM_CACHED], count[WARM_FAILED], count[WARM_LEFT]);
    if (count[WARM_SHARED])
        printf("; %zu more problem%s share%s them", count[WARM_SHARED], count[WARM_SHARED] == 1 ? "" : "s",
               count[WARM_SHARED] == 1 ? "s" : "");
    printf("; %.1f s\n", w->seconds);
}

static int report(const warm_options *o, const warming *w, uint32_t jobs, const attune_machine_info *machine) {
    const size_t *const count = w->count;
    int code = TOOL_OK;
    if (o->json)
        code = print_json(o, w, jobs, machine);
    else
        print_text(o, w);
    tool_flush();
    if (o->damaged) tool_error("lines skipped because they are not problems: %zu", o->damaged);
    if (w->write_failures)
        tool_error("%s could not be written, so some compiled kernels are not in it; run the same command again",
                   machine->cache_dir);
    if (count[WARM_LEFT])
        tool_error("%s with %zu kernels left; the same command continues",
                   interruption_came() ? "interrupted" : "out of time", count[WARM_LEFT]);
    return count[WARM_FAILED] || count[WARM_LEFT] || o->damaged || w->write_failures ? TOOL_FAILED : code;
}

static int warm(warm_options *o, attune_context *context) {
    attune_machine_info machine = {.struct_size = sizeof machine};
    if (attune_get_machine_info(context, &machine) != ATTUNE_OK) return tool_library_error(NULL);
    if (!*machine.cache_dir) {
        tool_error("the disk cache is off, so kernels cannot be stored");
        return TOOL_FAILED;
    }
    const uint32_t jobs = o->jobs ? o->jobs : machine.max_workers;
    warming w;
    interruption_catch();
    if (!warming_run_and_read_back(&w, context, &o->list, jobs, o->budget)) return TOOL_FAILED;
    return report(o, &w, jobs, &machine);
}

int cmd_warm(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "MANIFEST|PROBLEM...",
        "Compiles kernels into the disk cache, so that programs find them there. A MANIFEST has a line `PROBLEM` or "
        "`PROBLEM | SCHEDULE` for each. A PROBLEM may also be the description of another operator (op=linear,...), "
        "which stands for all of its kernels. With ATTUNE_RECORD=FILE any program that uses attune writes a MANIFEST "
        "of the kernels that it had to compile. Exit status 1: a kernel failed, time ran out, a line of a MANIFEST is "
        "wrong, or the cache could not be written.",
        tool_common_children,
        NULL,
        NULL};
    warm_options o = {0};
    tool_parse(&argp, argc, argv, &o);
    attune_context *const context = tool_open_context(&o.common, 0, NULL);
    const int code = context ? warm(&o, context) : TOOL_FAILED;
    if (context) attune_context_destroy(context);
    manifest_free(&o.list);
    return code;
}
