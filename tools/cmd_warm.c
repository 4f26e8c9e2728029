/* attune warm: compiles what a manifest names, so that programs find it in the cache. */
#include "manifest.h"

#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct warm_options {
    tool_common common;
    manifest list;
    uint32_t jobs; /* 0: as many as there are CPUs */
    double budget; /* seconds; 0: no end */
    bool json;
} warm_options;

/* What happened to an entry. */
typedef enum warm_outcome { WARM_LEFT = 0, WARM_COMPILED, WARM_CACHED, WARM_FAILED } warm_outcome;

typedef struct warm_run {
    const warm_options *options;
    attune_context *context;
    unsigned char *outcomes; /* of each entry */
    double began;
    atomic_size_t next, done;
    pthread_mutex_t mutex; /* guards messages and the progress line */
    bool shows_progress;
} warm_run;

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

/* ---- The work ---- */

static volatile sig_atomic_t is_interrupted;

static void interrupt(int signal_number) {
    (void)signal_number;
    is_interrupted = 1;
}

static double seconds_since(double began) { return (tool_now_us() - began) * 1e-6; }

static bool is_over(const warm_run *run) {
    return is_interrupted || (run->options->budget > 0 && seconds_since(run->began) > run->options->budget);
}

static void show_progress(warm_run *run) {
    const size_t done = atomic_load(&run->done), count = run->options->list.count;
    const double spent = seconds_since(run->began);
    if (run->shows_progress)
        fprintf(stderr, "\r%zu of %zu kernels, %.0f s, about %.0f s left  ", done, count, spent,
                done ? spent * (double)(count - done) / (double)done : 0);
}

static warm_outcome warm_one(warm_run *run, const manifest_entry *entry) {
    attune_kernel *kernel;
    attune_kernel_info info = {.struct_size = sizeof info};
    if (attune_compile(run->context, &entry->problem, entry->has_schedule ? &entry->schedule : NULL, &kernel)) {
        pthread_mutex_lock(&run->mutex);
        tool_error("%s: %s", entry->text, attune_last_message());
        pthread_mutex_unlock(&run->mutex);
        return WARM_FAILED;
    }
    attune_kernel_get_info(kernel, &info);
    attune_kernel_release(kernel);
    return info.origin == ATTUNE_FROM_COMPILER ? WARM_COMPILED : WARM_CACHED;
}

static void *work(void *argument) {
    warm_run *const run = argument;
    const manifest *const list = &run->options->list;
    for (size_t i = atomic_fetch_add(&run->next, 1); i < list->count && !is_over(run);
         i = atomic_fetch_add(&run->next, 1)) {
        run->outcomes[i] = (unsigned char)warm_one(run, &list->entries[i]);
        atomic_fetch_add(&run->done, 1);
        pthread_mutex_lock(&run->mutex);
        show_progress(run);
        pthread_mutex_unlock(&run->mutex);
    }
    return NULL;
}

static void work_on_all_cpus(warm_run *run, uint32_t jobs) {
    enum { MOST = 256 };
    pthread_t threads[MOST];
    uint32_t started = 0;
    while (started + 1 < jobs && started < MOST && !pthread_create(&threads[started], NULL, work, run)) started++;
    work(run);
    while (started) pthread_join(threads[--started], NULL);
    if (run->shows_progress) fprintf(stderr, "\r%79s\r", "");
}

/* ---- The result ---- */

static int report(const warm_run *run, uint32_t jobs) {
    size_t count[WARM_FAILED + 1] = {0};
    const size_t all = run->options->list.count;
    for (size_t i = 0; i < all; i++) count[run->outcomes[i]]++;
    const double seconds = seconds_since(run->began);
    int code = TOOL_OK;
    if (run->options->json)
        code = tool_print_json(json_pack(
            "{s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:f}", "schema", 1, "jobs", (int)jobs, "kernels", (json_int_t)all,
            "compiled", (json_int_t)count[WARM_COMPILED], "cached", (json_int_t)count[WARM_CACHED], "failed",
            (json_int_t)count[WARM_FAILED], "left", (json_int_t)count[WARM_LEFT], "seconds", seconds));
    else
        printf("%zu kernels: %zu compiled, %zu cached already, %zu failed, %zu left; %.1f s\n", all,
               count[WARM_COMPILED], count[WARM_CACHED], count[WARM_FAILED], count[WARM_LEFT], seconds);
    return count[WARM_FAILED] || count[WARM_LEFT] ? TOOL_FAILED : code;
}

static int warm(const warm_options *o, attune_context *context) {
    attune_machine_info machine = {.struct_size = sizeof machine};
    if (attune_get_machine_info(context, &machine) != ATTUNE_OK) return tool_library_error(NULL);
    if (!*machine.cache_dir) {
        tool_error("the disk cache is off: there is nothing to warm");
        return TOOL_FAILED;
    }
    warm_run run = {.options = o,
                    .context = context,
                    .outcomes = calloc(o->list.count, 1),
                    .began = tool_now_us(),
                    .shows_progress = isatty(STDERR_FILENO)};
    if (!run.outcomes) {
        tool_error("out of memory");
        return TOOL_FAILED;
    }
    const uint32_t jobs = o->jobs ? o->jobs : machine.max_workers;
    pthread_mutex_init(&run.mutex, NULL);
    signal(SIGINT, interrupt);
    work_on_all_cpus(&run, jobs);
    signal(SIGINT, SIG_DFL);
    const int code = report(&run, jobs);
    pthread_mutex_destroy(&run.mutex);
    free(run.outcomes);
    return code;
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
