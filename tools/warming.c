#include "warming.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct warm_run {
    warming *result;
    attune_context *context;
    const manifest *list;
    double began, budget;
    const volatile sig_atomic_t *is_interrupted;
    atomic_size_t next;
    pthread_mutex_t mutex; /* guards messages, the result and the progress line */
    size_t done;
    bool shows_progress;
} warm_run;

static double seconds_since(double began) { return (tool_now_us() - began) * 1e-6; }

static bool is_over(const warm_run *run) {
    return *run->is_interrupted || (run->budget > 0 && seconds_since(run->began) > run->budget);
}

static void show_progress(const warm_run *run) {
    const double spent = seconds_since(run->began);
    if (run->shows_progress)
        fprintf(stderr, "\r%zu of %zu kernels, %.0f s, about %.0f s left  ", run->done, run->list->count, spent,
                spent * (double)(run->list->count - run->done) / (double)run->done);
}

/* Under the mutex. */
static void count(warm_run *run, warm_outcome outcome, double compile_ms) {
    run->result->count[outcome]++;
    run->result->compile_ms += compile_ms;
    run->done++;
    show_progress(run);
}

static void warm_one(warm_run *run, size_t number) {
    const manifest_entry *const entry = &run->list->entries[number];
    attune_kernel *kernel = NULL;
    attune_kernel_info info = {.struct_size = sizeof info};
    const attune_schedule *const schedule = entry->has_schedule ? &entry->schedule : NULL;
    const bool good = attune_compile(run->context, &entry->problem, schedule, &kernel) == ATTUNE_OK &&
                      attune_kernel_get_info(kernel, &info) == ATTUNE_OK;
    pthread_mutex_lock(&run->mutex);
    if (!good) tool_error("%s: %s", entry->text, attune_last_message());
    count(run,
          !good                                 ? WARM_FAILED
          : info.origin == ATTUNE_FROM_COMPILER ? WARM_COMPILED
                                                : WARM_CACHED,
          good ? info.compile_ms : 0);
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

void warming_run(warming *w, attune_context *context, const manifest *list, uint32_t jobs, double budget,
                 const volatile sig_atomic_t *is_interrupted) {
    enum { MOST = 256 };
    pthread_t threads[MOST];
    uint32_t started = 0;
    *w = (warming){0};
    warm_run run = {.result = w,
                    .context = context,
                    .list = list,
                    .began = tool_now_us(),
                    .budget = budget,
                    .is_interrupted = is_interrupted,
                    .shows_progress = isatty(STDERR_FILENO)};
    pthread_mutex_init(&run.mutex, NULL);
    while (started + 1 < jobs && started < MOST && !pthread_create(&threads[started], NULL, work, &run)) started++;
    work(&run);
    while (started) pthread_join(threads[--started], NULL);
    pthread_mutex_destroy(&run.mutex);
    if (run.shows_progress) fprintf(stderr, "\r%79s\r", "");
    w->count[WARM_LEFT] = list->count - run.done;
    w->seconds = seconds_since(run.began);
}
