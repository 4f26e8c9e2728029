/* Threads take the next problem of the list until none is left; then each kernel is looked up again by a context that
 * must not compile, which shows that programs will find it. */
#include "cache/warming.h"

#include "common/interruption.h"
#include "common/table.h"
#include "common/tensors.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* The result for a kernel of the list. */
typedef struct warm_item {
    warm_outcome outcome;
    char key[33];
    double compile_ms;
} warm_item;

typedef struct warm_run {
    warm_item *items; /* one for each kernel of the list */
    attune_context *context;
    manifest *list;
    double began, budget;
    atomic_size_t next;
    pthread_mutex_t mutex; /* guards messages, the items and the progress line */
    size_t done;
} warm_run;

static double seconds_since(double began) { return (tool_now_us() - began) * 1e-6; }

static bool is_over(const warm_run *run) {
    return interruption_came() || (run->budget > 0 && seconds_since(run->began) > run->budget);
}

static void show_progress(const warm_run *run) {
    const double spent = seconds_since(run->began);
    char left[TABLE_NUMBER_BYTES];
    tool_progress("%zu of %zu kernels, about %s left", run->done, run->list->count,
                  table_duration(spent * (double)(run->list->count - run->done) / (double)run->done, left));
}

static void warm_one(warm_run *run, size_t number) {
    manifest_kernel *const wanted = &run->list->kernels[number];
    attune_kernel *kernel = NULL;
    attune_kernel_info info = {.struct_size = sizeof info};
    const bool good = !manifest_compile(run->context, wanted, &kernel) &&
                      attune_kernel_get_info(kernel, &info) == ATTUNE_OK && info.origin != ATTUNE_FROM_VM;
    pthread_mutex_lock(&run->mutex);
    if (!good)
        tool_error("%s: %s", wanted->text,
                   kernel ? "nothing was compiled: there is no code generator" : attune_last_message());
    warm_item *const item = &run->items[number];
    item->outcome = !good ? WARM_FAILED : info.origin == ATTUNE_FROM_COMPILER ? WARM_COMPILED : WARM_CACHED;
    item->compile_ms = info.compile_ms;
    wanted->has_failed = !good;
    memcpy(item->key, info.key, sizeof item->key);
    run->done++;
    show_progress(run);
    pthread_mutex_unlock(&run->mutex);
    attune_kernel_release(kernel);
}

static void *work(void *argument) {
    warm_run *const run = argument;
    while (!is_over(run)) {
        const size_t number = atomic_fetch_add(&run->next, 1);
        if (number >= run->list->count) break;
        warm_one(run, number);
    }
    return NULL;
}

/* ---- Reading back ---- */

/* A context that sees the cache directory as a program does that must not compile; NULL after a message. */
static attune_context *open_reader(const attune_machine_info *machine) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *reader = NULL;
    options.cache_dir = machine->cache_dir;
    options.cache_base = "";
    options.cache_pack = "";
    options.isa = machine->isa;
    options.machine = machine->machine;
    options.max_workers = 1;
    options.strict = 1;
    options.record = "";
    if (attune_context_create(&options, &reader) != ATTUNE_OK) tool_library_error(NULL);
    return reader;
}

/* The cache file of another tuning class, which may stand in, does not count. */
static bool is_there(attune_context *reader, const manifest_kernel *wanted, const char *machine) {
    attune_kernel *kernel = NULL;
    attune_kernel_info info = {.struct_size = sizeof info};
    const bool found = !manifest_compile(reader, wanted, &kernel) &&
                       attune_kernel_get_info(kernel, &info) == ATTUNE_OK && strcmp(info.machine, machine) == 0;
    attune_kernel_release(kernel);
    return found;
}

/* Where writing failed, the caller says so, once. */
static bool read_back(warm_run *run, bool is_written) {
    attune_machine_info machine = {.struct_size = sizeof machine};
    if (attune_get_machine_info(run->context, &machine) != ATTUNE_OK) return tool_library_error(NULL), false;
    attune_context *const reader = open_reader(&machine);
    if (!reader) return false;
    for (size_t i = 0; i < run->list->count; i++) {
        manifest_kernel *const wanted = &run->list->kernels[i];
        if (run->items[i].outcome != WARM_COMPILED || is_there(reader, wanted, machine.machine)) continue;
        if (is_written) tool_error("%s: compiled, but it cannot be read back from %s", wanted->text, machine.cache_dir);
        run->items[i].outcome = WARM_FAILED;
        wanted->has_failed = true;
    }
    attune_context_destroy(reader);
    return true;
}

/* ---- Counting ---- */

static int by_key(const void *left, const void *right) {
    const warm_item *const a = left, *const b = right;
    const int order = strcmp(a->key, b->key);
    return order ? order : (int)a->outcome - (int)b->outcome; /* the one that was compiled first */
}

/* Problems that differ only in the batch or the number of heads share a kernel, which was compiled once. */
static void count(warming *w, warm_item *items, size_t n) {
    qsort(items, n, sizeof *items, by_key);
    for (size_t i = 0; i < n; i++) {
        const bool has_kernel = items[i].outcome == WARM_COMPILED || items[i].outcome == WARM_CACHED;
        const bool is_shared = has_kernel && i && strcmp(items[i].key, items[i - 1].key) == 0;
        w->count[is_shared ? WARM_SHARED : items[i].outcome]++;
        if (!is_shared) w->compile_ms += items[i].compile_ms;
    }
}

static uint64_t write_failures(const attune_context *context) {
    attune_statistics s = {.struct_size = sizeof s};
    return attune_get_statistics(context, &s) == ATTUNE_OK ? s.disk_write_failures : 0;
}

/* ---- The whole ---- */

static void run_threads(warm_run *run, uint32_t jobs) {
    enum { MOST = 256 };
    pthread_t threads[MOST];
    uint32_t started = 0;
    while (started + 1 < jobs && started < MOST && !pthread_create(&threads[started], NULL, work, run)) started++;
    work(run);
    while (started) pthread_join(threads[--started], NULL);
}

static bool run_all(warming *w, attune_context *context, manifest *list, uint32_t jobs, double budget,
                    bool reads_back) {
    *w = (warming){0};
    warm_run run = {.items = calloc(list->count ? list->count : 1, sizeof *run.items),
                    .context = context,
                    .list = list,
                    .began = tool_now_us(),
                    .budget = budget};
    if (!run.items) {
        tool_error("out of memory");
        return false;
    }
    const uint64_t failures_before = write_failures(context);
    pthread_mutex_init(&run.mutex, NULL);
    run_threads(&run, jobs);
    pthread_mutex_destroy(&run.mutex);
    tool_end_progress();
    w->write_failures = write_failures(context) - failures_before;
    const bool done = !reads_back || read_back(&run, !w->write_failures);
    count(w, run.items, list->count);
    w->seconds = seconds_since(run.began);
    free(run.items);
    return done;
}

bool warming_run(warming *w, attune_context *context, manifest *list, uint32_t jobs, double budget) {
    return run_all(w, context, list, jobs, budget, false);
}

bool warming_run_and_read_back(warming *w, attune_context *context, manifest *list, uint32_t jobs, double budget) {
    return run_all(w, context, list, jobs, budget, true);
}
