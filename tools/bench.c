#define _GNU_SOURCE
#include "bench.h"

#include <dirent.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

bool bench_pin(uint32_t threads) {
    cpu_set_t allowed, chosen;
    uint32_t left = threads;
    CPU_ZERO(&chosen);
    if (!tool_threads_fit(threads)) return false;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        tool_error("cannot read the CPU affinity");
        return false;
    }
    /* From the last down: the first CPU is where most interrupts go. */
    for (int cpu = CPU_SETSIZE - 1; cpu >= 0 && left; cpu--)
        if (CPU_ISSET(cpu, &allowed)) {
            CPU_SET(cpu, &chosen);
            left--;
        }
    if (sched_setaffinity(0, sizeof chosen, &chosen) == 0) return true;
    tool_error("cannot set the CPU affinity");
    return false;
}

/* ---- Speed ---- */

static bool run_calls(const bench_entry *e, attune_context *context, int64_t calls, double *us) {
    const double start = tool_now_us();
    for (int64_t i = 0; i < calls; i++) {
        const attune_status status =
            e->engine == ATTUNE_ENGINE_JIT
                ? attune_run(context, e->kernel, &e->arguments)
                : attune_run_interpreted(context, &e->tensors.problem, &e->schedule, &e->arguments);
        if (status == ATTUNE_OK) continue;
        tool_library_error(NULL);
        return false;
    }
    *us = tool_now_us() - start;
    return true;
}

static bool calibrate(bench_entry *e, attune_context *context) {
    enum { SAMPLE_US = 2000 };
    double us = 0;
    if (!run_calls(e, context, 1, &us)) return false;
    for (e->calls = 1;; e->calls *= 2) {
        if (!run_calls(e, context, e->calls, &us)) return false;
        if (us >= SAMPLE_US) return true;
        if (us >= SAMPLE_US / 16.0) break;
    }
    e->calls = (int64_t)((double)e->calls * SAMPLE_US / us * 1.1) + 1;
    return true;
}

static bool open_kernel(bench_entry *e, attune_context *context) {
    attune_kernel_info info = {.struct_size = sizeof info};
    size_t bytes = 0;
    if (e->engine == ATTUNE_ENGINE_INTERPRETER) {
        e->schedule = (attune_schedule)ATTUNE_SCHEDULE_INIT;
        return attune_schedule_choose(context, &e->problem, &e->schedule) == ATTUNE_OK;
    }
    if (attune_compile(context, &e->problem, NULL, &e->kernel) != ATTUNE_OK ||
        attune_kernel_get_info(e->kernel, &info) != ATTUNE_OK ||
        attune_workspace_size(context, e->kernel, &e->arguments, &bytes) != ATTUNE_OK)
        return false;
    e->schedule = info.schedule;
    e->workspace = aligned_alloc(64, (bytes + 127) & ~(size_t)63);
    e->arguments.workspace = e->workspace;
    e->arguments.workspace_bytes = e->workspace ? bytes : 0;
    return true;
}

bool bench_open(bench_entry *e, attune_context *context, attune_engine engine, size_t samples) {
    e->engine = engine;
    e->text = problem_text(&e->problem);
    e->flops = attune_problem_flops(&e->problem);
    e->samples_us = calloc(samples, sizeof *e->samples_us);
    e->fractions = calloc(samples, sizeof *e->fractions);
    if (!e->text || !e->samples_us || !e->fractions) {
        tool_error("out of memory");
        return false;
    }
    if (!tensors_create(&e->tensors, &e->problem)) return false;
    tensors_fill(&e->tensors, INPUT_ORDINARY, 1);
    tensors_arguments(&e->tensors, &e->arguments);
    if (!open_kernel(e, context)) {
        tool_library_error(e->text);
        return false;
    }
    return calibrate(e, context);
}

void bench_close(bench_entry *e) {
    attune_kernel_release(e->kernel);
    tensors_free(&e->tensors);
    free(e->workspace);
    free(e->text);
    free(e->samples_us);
    free(e->fractions);
}

/* A thread pool's workers spin for a while after a call, on the CPUs where the probe is to run: waits until this
 * process leaves them alone. */
static void settle(uint32_t threads) {
    for (int tries = 0; threads > 1 && tries < 200; tries++) {
        struct timespec before, after;
        const struct timespec pause = {.tv_nsec = 500000};
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
        nanosleep(&pause, NULL);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
        const double used = (double)(after.tv_sec - before.tv_sec) * 1e9 + (double)(after.tv_nsec - before.tv_nsec);
        if (used < 0.2 * (double)pause.tv_nsec) return;
    }
}

/* The peak over a twentieth of the time that a sample took, so that what disturbs long samples shows in it too. */
static double probe_peak(peak_probe *probe, double sample_us) {
    const int64_t times = sample_us < 20e3 ? 1 : sample_us > 2e6 ? 100 : (int64_t)(sample_us / 20e3);
    double slowness = 0;
    for (int64_t i = 0; i < times; i++) slowness += 1 / peak_measure(probe);
    return (double)times / slowness;
}

bool bench_rounds(bench_entry *entries, size_t count, attune_context *context, peak_probe *probe, uint32_t threads,
                  size_t samples) {
    struct rusage start, end;
    settle(threads);
    getrusage(RUSAGE_THREAD, &start);
    peak_measure(probe);
    double before = peak_measure(probe);
    for (size_t round = 0; round < samples; round++)
        for (size_t i = 0; i < count; i++) {
            bench_entry *const e = &entries[i];
            double us = 0;
            if (!run_calls(e, context, e->calls, &us)) return false;
            settle(threads);
            const double after = probe_peak(probe, us), peak = 0.5 * (before + after);
            before = after;
            e->samples_us[e->count] = us / (double)e->calls;
            e->fractions[e->count] = e->flops / e->samples_us[e->count] * 1e-3 / peak;
            e->count++;
        }
    getrusage(RUSAGE_THREAD, &end);
    const long taken = end.ru_nivcsw - start.ru_nivcsw;
    if (taken > (long)(samples * count))
        tool_error("warning: other programs took this CPU away %ld times; on a quiet machine the figures are better",
                   taken);
    return true;
}

void bench_summarise(bench_entry *e) {
    double *const sorted = malloc(e->count * sizeof *sorted);
    if (!sorted) return;
    memcpy(sorted, e->samples_us, e->count * sizeof *sorted);
    e->median_us = tool_median(sorted, e->count);
    e->min_us = sorted[0];
    /* From the first to the third quartile: what half of the samples stay within. */
    e->spread = (sorted[e->count * 3 / 4] - sorted[e->count / 4]) / e->median_us;
    memcpy(sorted, e->fractions, e->count * sizeof *sorted);
    e->fraction = tool_median(sorted, e->count);
    e->gflops = e->flops / e->median_us * 1e-3;
    e->peak_gflops = e->gflops / e->fraction;
    free(sorted);
}

/* ---- Acquiring ---- */

/* Time of one attune_compile, in µs; negative after a message. */
static double time_acquire(attune_context *context, const attune_problem *problem) {
    attune_kernel *kernel = NULL;
    const double start = tool_now_us();
    const attune_status status = attune_compile(context, problem, NULL, &kernel);
    const double us = tool_now_us() - start;
    attune_kernel_release(kernel);
    if (status == ATTUNE_OK) return us;
    tool_library_error(NULL);
    return -1;
}

/* Medians of what acquiring costs after `prepare`. */
static double median_acquire(attune_context *context, const attune_problem *problem, size_t count, bool is_cold) {
    double samples[64];
    for (size_t i = 0; i < count; i++) {
        attune_drop_memory_cache(context);
        if (is_cold && attune_cache_clear(context, NULL) != ATTUNE_OK) {
            tool_library_error(NULL);
            return -1;
        }
        samples[i] = time_acquire(context, problem);
        if (samples[i] < 0) return -1;
    }
    return tool_median(samples, count);
}

static double memory_hit_ns(attune_context *context, const attune_problem *problem) {
    enum { BATCHES = 15, HITS = 20000 };
    double samples[BATCHES];
    attune_kernel *kept = NULL, *kernel = NULL;
    if (attune_compile(context, problem, NULL, &kept) != ATTUNE_OK) {
        tool_library_error(NULL);
        return -1;
    }
    for (size_t i = 0; i < BATCHES; i++) {
        const double start = tool_now_us();
        for (int hit = 0; hit < HITS; hit++) {
            attune_compile(context, problem, NULL, &kernel); /* succeeded right above */
            attune_kernel_release(kernel);
        }
        samples[i] = (tool_now_us() - start) * 1e3 / HITS;
    }
    attune_kernel_release(kept);
    return tool_median(samples, BATCHES);
}

static bool measure_acquire(bench_entry *e, attune_context *context) {
    attune_statistics before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
    /* The first compilation of a process loads LLVM, which is no part of what one kernel costs. */
    attune_problem other = ATTUNE_PROBLEM_INIT;
    other.seq_q = other.head_dim = 8;
    if (time_acquire(context, &other) < 0) return false;
    enum { COLD = 5, DISK = 51 };
    const double cold = median_acquire(context, &e->problem, COLD, true);
    if (cold < 0) return false;
    e->cold_compile_ms = cold * 1e-3;
    attune_get_statistics(context, &before);
    e->warm_disk_us = median_acquire(context, &e->problem, DISK, false);
    attune_get_statistics(context, &after);
    if (e->warm_disk_us < 0) return false;
    if (after.disk_hits - before.disk_hits != DISK) {
        tool_error("%s: only %llu of %d kernels came from the disk cache", e->text,
                   (unsigned long long)(after.disk_hits - before.disk_hits), (int)DISK);
        return false;
    }
    e->memory_hit_ns = memory_hit_ns(context, &e->problem);
    return e->memory_hit_ns >= 0;
}

/* Removes the cache directory, whose shards the cache leaves behind empty. */
static void remove_tree(const char *path) {
    DIR *const directory = opendir(path);
    char child[4096];
    if (directory) {
        for (const struct dirent *item; (item = readdir(directory));) {
            if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0) continue;
            if ((size_t)snprintf(child, sizeof child, "%s/%s", path, item->d_name) >= sizeof child) continue;
            if (unlink(child) != 0) remove_tree(child);
        }
        closedir(directory);
    }
    rmdir(path);
}

bool bench_acquire(bench_entry *e, const tool_common *common) {
    const char *const base = getenv("TMPDIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/attune-bench-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(path)) {
        tool_error("cannot create a directory for the cache as %s", path);
        return false;
    }
    attune_context *const context = tool_open_context(common, 1, path);
    const bool measured = context && measure_acquire(e, context);
    attune_context_destroy(context);
    remove_tree(path);
    return measured;
}
