/* A sample is as many calls as take two milliseconds, and between samples come probes of the peak and of reading, so
 * that all three saw the same clock and the same neighbours. */
#define _GNU_SOURCE
#include "measure/bench.h"

#include "common/interruption.h"
#include "common/pages.h"
#include "measure/seen.h"

#include <dirent.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* The CPUs that the process might use before it was pinned. */
static cpu_set_t allowed;

bool bench_pin(uint32_t threads) {
    cpu_set_t chosen;
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

bool bench_unpin(void) {
    if (sched_setaffinity(0, sizeof allowed, &allowed) == 0) return true;
    tool_error("cannot set the CPU affinity");
    return false;
}

/* ---- Speed ---- */

static bool run_calls(const bench_case *c, attune_context *context, int64_t calls, double *us) {
    const double start = tool_now_us();
    for (int64_t i = 0; i < calls; i++) {
        const attune_status status =
            c->engine != ATTUNE_ENGINE_INTERPRETER
                ? attune_run(context, c->kernel, &c->arguments)
                : attune_run_interpreted(context, &c->tensors.problem, c->schedule, &c->arguments);
        if (status == ATTUNE_OK) continue;
        tool_library_error(c->text);
        return false;
    }
    *us = tool_now_us() - start;
    return true;
}

static bool calibrate(bench_case *c, attune_context *context) {
    enum { SAMPLE_US = 2000 };
    double us = 0;
    if (!run_calls(c, context, 1, &us)) return false;
    for (c->calls = 1;; c->calls *= 2) {
        if (interruption_came() || !run_calls(c, context, c->calls, &us)) return false;
        c->call_us = us / (double)c->calls;
        if (us >= SAMPLE_US) return true;
        if (us >= SAMPLE_US / 16.0) break;
    }
    c->calls = (int64_t)(SAMPLE_US / c->call_us * 1.1) + 1;
    return true;
}

static bool open_kernel(bench_case *c, attune_context *context) {
    attune_kernel_info info = {.struct_size = sizeof info};
    size_t bytes = 0;
    if (c->engine == ATTUNE_ENGINE_INTERPRETER) {
        return attune_schedule_choose(context, &c->problem, c->wish, c->schedule, sizeof c->schedule) == ATTUNE_OK;
    }
    if (attune_compile(context, &c->problem, c->wish, &c->kernel) != ATTUNE_OK ||
        attune_kernel_get_info(c->kernel, &info) != ATTUNE_OK ||
        attune_workspace_size(context, c->kernel, &c->arguments, &bytes) != ATTUNE_OK)
        return false;
    strcpy(c->schedule, info.schedule);
    c->is_compiled = info.origin != ATTUNE_FROM_VM && info.origin != ATTUNE_FROM_TIER0;
    c->workspace_bytes = bytes;
    c->workspace = pages_alloc(bytes ? bytes : 1);
    c->arguments.workspace = c->workspace;
    c->arguments.workspace_bytes = c->workspace ? bytes : 0;
    return true;
}

bool bench_open(bench_case *c, attune_context *context, attune_engine engine, const call_sizes *sizes, size_t samples) {
    c->engine = engine;
    c->text = problem_text(&c->problem);
    c->samples_us = calloc(samples, sizeof *c->samples_us);
    c->peaks = calloc(samples, sizeof *c->peaks);
    c->bandwidths = calloc(samples, sizeof *c->bandwidths);
    if (!c->text || !c->samples_us || !c->peaks || !c->bandwidths) {
        tool_error("out of memory");
        return false;
    }
    const call_sizes settled = sizes_settled(sizes, &c->problem);
    if (!tensors_create_sized(&c->tensors, &c->problem, &settled)) return false;
    /* A user who names the sizes means tensors that are full. */
    c->tensors.fills_up = !c->draws_lengths;
    if (!tensors_fill(&c->tensors, INPUT_ORDINARY, 1)) return false;
    tensors_arguments(&c->tensors, &c->arguments);
    if (interruption_came()) return false;
    if (!open_kernel(c, context)) {
        tool_library_error(c->text);
        return false;
    }
    c->work = work_of_call(&c->tensors);
    seen_count(context, &c->tensors, &c->work);
    if (!work_can_be_measured(c->text, &c->tensors, &c->work) || !calibrate(c, context)) return false;
    if (c->cold_data) c->calls = 1;
    return true;
}

void bench_close(bench_case *c) {
    attune_kernel_release(c->kernel);
    tensors_free(&c->tensors);
    free(c->workspace);
    free(c->text);
    free(c->samples_us);
    free(c->peaks);
    free(c->bandwidths);
}

/* ---- Probes ---- */

/* The largest cache that a CPU has or shares, as Linux shows it: what the C library asks the CPU is that of all cores
 * together on some machines. */
typedef struct last_cache {
    size_t bytes;
    int first_cpu; /* of those that share it */
} last_cache;

/* A number, and the character after it, from a file of this cache. */
static bool read_cache(int cpu, int index, const char *name, size_t *number, char *unit) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/%s", cpu, index, name);
    FILE *const file = fopen(path, "re");
    *unit = '\0';
    const bool good = file && fscanf(file, "%zu%c", number, unit) >= 1;
    if (file) fclose(file);
    return good;
}

static last_cache last_cache_of(int cpu) {
    enum { USUAL = 32 << 20, MOST_CACHES = 8 };
    last_cache last = {0, cpu};
    for (int i = 0; i < MOST_CACHES; i++) {
        size_t size, first;
        char unit;
        if (!read_cache(cpu, i, "size", &size, &unit)) break;
        size *= unit == 'K' ? 1024 : unit == 'M' ? 1024 * 1024 : 1;
        if (size <= last.bytes) continue;
        last.bytes = size;
        last.first_cpu = read_cache(cpu, i, "shared_cpu_list", &first, &unit) ? (int)first : cpu;
    }
    if (!last.bytes) last.bytes = USUAL;
    return last;
}

/* So many that, of equal parts for all CPUs in use, each last cache gets four times what it holds: also the one that
 * the fewest of them share. */
static size_t bytes_beyond_caches(void) {
    int sharing[CPU_SETSIZE] = {0}, fewest = CPU_SETSIZE, all = 0;
    size_t largest = 0;
    cpu_set_t used;
    if (sched_getaffinity(0, sizeof used, &used) != 0) CPU_ZERO(&used);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &used)) continue;
        const last_cache last = last_cache_of(cpu);
        if (last.bytes > largest) largest = last.bytes;
        if (last.first_cpu < CPU_SETSIZE) sharing[last.first_cpu]++;
        all++;
    }
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (sharing[cpu] && sharing[cpu] < fewest) fewest = sharing[cpu];
    return all ? 4 * largest * (size_t)all / (size_t)(fewest < all ? fewest : all) : 4 * last_cache_of(0).bytes;
}

/* The bytes that the bandwidth probe reads: as many as a call, so that they lie in the caches as the call's would. With
 * cold data, so many that all come from memory. */
static size_t probed_bytes(const bench_case *c) {
    const size_t own = (size_t)c->work.bytes, cold = c->cold_data ? bytes_beyond_caches() : 0;
    return own > cold ? own : cold;
}

bool bench_open_probes(bench_probes *probes, bench_case *cases, size_t count, const char *isa, uint32_t threads) {
    size_t most = 0;
    for (size_t i = 0; i < count; i++) {
        cases[i].probed_bytes = probed_bytes(&cases[i]);
        if (cases[i].probed_bytes > most) most = cases[i].probed_bytes;
    }
    if (!(probes->peak = peak_create(isa, threads))) return false;
    if (!(probes->bandwidth = bandwidth_create(isa, threads, most))) return false;
    for (size_t i = 0; i < count; i++) {
        cases[i].peak_dtype = peak_that_counts(&cases[i].problem, isa);
        cases[i].streams = bandwidth_choose_streams(probes->bandwidth, cases[i].probed_bytes);
    }
    return !interruption_came();
}

void bench_close_probes(bench_probes *probes) {
    peak_destroy(probes->peak);
    bandwidth_destroy(probes->bandwidth);
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
static double probe_peak(peak_probe *probe, attune_dtype dtype, double sample_us) {
    const int64_t times = sample_us < 20e3 ? 1 : sample_us > 2e6 ? 100 : (int64_t)(sample_us / 20e3);
    double slowness = 0;
    for (int64_t i = 0; i < times; i++) slowness += 1 / peak_measure(probe, dtype);
    return (double)times / slowness;
}

static double probe_bandwidth(const bench_probes *probes, const bench_case *c) {
    return bandwidth_measure(probes->bandwidth, c->probed_bytes, c->streams);
}

/* One sample, between two measurements of each probe; peaks has those before, where they are known, and after it those
 * after. */
static bool take_sample(bench_case *c, attune_context *context, const bench_probes *probes, uint32_t threads,
                        double peaks[ATTUNE_DTYPE_COUNT]) {
    enum { LONG_US = 50000, AWAKE_US = 300 };
    double us = 0;
    const double before = peaks[c->peak_dtype] > 0 ? peaks[c->peak_dtype] : probe_peak(probes->peak, c->peak_dtype, 0);
    const double bandwidth = probe_bandwidth(probes, c);
    /* The probe's buffer has taken the place of the tensors in the caches. A call that does not count brings them back,
     * as a pass that does not count brings the probe's; in longer calls it would not matter. Short calls are several,
     * so that a pool's threads are awake, as they are where calls follow each other. With cold data that is what the
     * probe is large enough for, on the CPU of every thread. */
    const int64_t first = 1 + (int64_t)(AWAKE_US / c->call_us);
    if (!c->cold_data && c->call_us < LONG_US && !run_calls(c, context, first, &us)) return false;
    if (interruption_came() || !run_calls(c, context, c->calls, &us) || interruption_came()) return false;
    settle(threads);
    const double after = probe_peak(probes->peak, c->peak_dtype, us);
    c->samples_us[c->count] = us / (double)c->calls;
    c->peaks[c->count] = 0.5 * (before + after);
    c->bandwidths[c->count] = 0.5 * (bandwidth + probe_bandwidth(probes, c));
    c->count++;
    /* Another case's peak may be of another dtype: what was probed of that is too long ago. */
    memset(peaks, 0, ATTUNE_DTYPE_COUNT * sizeof *peaks);
    peaks[c->peak_dtype] = after;
    return true;
}

bool bench_rounds(bench_case *cases, size_t count, attune_context *context, bench_probes *probes, uint32_t threads,
                  size_t samples) {
    struct rusage start, end;
    settle(threads);
    getrusage(RUSAGE_THREAD, &start);
    double peaks[ATTUNE_DTYPE_COUNT] = {0};
    for (size_t i = 0; i < count; i++) peak_measure(probes->peak, cases[i].peak_dtype); /* finds out how many steps */
    for (size_t round = 0; round < samples; round++)
        for (size_t i = 0; i < count; i++)
            if (interruption_came() || !take_sample(&cases[i], context, probes, threads, peaks)) return false;
    getrusage(RUSAGE_THREAD, &end);
    probes->disturbances += end.ru_nivcsw - start.ru_nivcsw;
    return true;
}

bool bench_is_above_peak(double fraction) { return fraction > 1; }

void bench_warn_of_disturbances(long disturbances, size_t samples, size_t above_peak) {
    if (above_peak)
        tool_error(
            "warning: %zu share%s above 100 %% of the peak: the machine was busy while the peak was measured; do "
            "not trust the shares",
            above_peak, above_peak == 1 ? " is" : "s are");
    else if (disturbances > (long)samples)
        tool_error("warning: other programs took this CPU away %ld times; on a quiet machine the figures are better",
                   disturbances);
}

/* ---- Acquiring ---- */

/* Time of one attune_compile, in µs; negative after a message. */
static double time_acquire(attune_context *context, const attune_problem *problem, const char *wish) {
    attune_kernel *kernel = NULL;
    const double start = tool_now_us();
    const attune_status status = attune_compile(context, problem, wish, &kernel);
    const double us = tool_now_us() - start;
    attune_kernel_release(kernel);
    if (status == ATTUNE_OK) return us;
    tool_library_error(NULL);
    return -1;
}

/* Medians of what acquiring costs after `prepare`. */
static double median_acquire(attune_context *context, const bench_case *c, size_t count, bool is_cold) {
    double samples[64];
    for (size_t i = 0; i < count; i++) {
        attune_drop_memory_cache(context);
        if (is_cold && attune_cache_clear(context, NULL) != ATTUNE_OK) {
            tool_library_error(NULL);
            return -1;
        }
        samples[i] = time_acquire(context, &c->problem, c->wish);
        if (samples[i] < 0) return -1;
    }
    return tool_median(samples, count);
}

static double memory_hit_ns(attune_context *context, const bench_case *c) {
    enum { BATCHES = 15 };
    const int hits = c->wish ? 200 : 20000; /* a schedule is read each time */
    double samples[BATCHES];
    attune_kernel *kept = NULL, *kernel = NULL;
    if (attune_compile(context, &c->problem, c->wish, &kept) != ATTUNE_OK) {
        tool_library_error(NULL);
        return -1;
    }
    for (size_t i = 0; i < BATCHES; i++) {
        const double start = tool_now_us();
        for (int hit = 0; hit < hits; hit++) {
            if (attune_compile(context, &c->problem, c->wish, &kernel))
                tool_library_error(NULL); /* succeeded right above */
            attune_kernel_release(kernel);
        }
        samples[i] = (tool_now_us() - start) * 1e3 / hits;
    }
    attune_kernel_release(kept);
    return tool_median(samples, BATCHES);
}

static bool measure_acquire(bench_case *c, attune_context *context) {
    attune_statistics before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
    /* The first compilation of a process loads LLVM, which is no part of what one kernel costs. */
    attune_problem other = ATTUNE_PROBLEM_INIT;
    other.seq_q = other.head_dim = 8;
    if (time_acquire(context, &other, NULL) < 0) return false;
    enum { COLD = 5, DISK = 51 };
    const double cold = median_acquire(context, c, COLD, true);
    if (cold < 0) return false;
    c->cold_compile_ms = cold * 1e-3;
    if (attune_get_statistics(context, &before)) tool_library_error(NULL);
    c->warm_disk_us = median_acquire(context, c, DISK, false);
    if (attune_get_statistics(context, &after)) tool_library_error(NULL);
    if (c->warm_disk_us < 0) return false;
    if (after.disk_hits - before.disk_hits != DISK) {
        tool_error("%s: only %llu of %d kernels came from the disk cache", c->text,
                   (unsigned long long)(after.disk_hits - before.disk_hits), (int)DISK);
        return false;
    }
    c->memory_hit_ns = memory_hit_ns(context, c);
    return c->memory_hit_ns >= 0;
}

/* Removes the cache directory, whose shards the cache leaves empty. */
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

bool bench_acquire(bench_case *c, const tool_common *common) {
    const char *const base = getenv("TMPDIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/attune-bench-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(path)) {
        tool_error("cannot create a directory for the cache as %s", path);
        return false;
    }
    attune_context *const context = tool_open_context(common, 1, path);
    const bool measured = context && measure_acquire(c, context);
    attune_context_destroy(context);
    remove_tree(path);
    return measured;
}
