/* Measuring one problem for `attune bench`: speed next to the CPU's peak, and what acquiring its kernel costs. */
#ifndef ATTUNE_TOOLS_BENCH_H
#define ATTUNE_TOOLS_BENCH_H

#include "peak.h"
#include "tensors.h"

typedef struct bench_entry {
    attune_problem problem;
    char *text;               /* canonical */
    attune_schedule schedule; /* that the kernel has */
    tensors tensors;
    attune_kernel *kernel;
    attune_arguments arguments;
    void *workspace;
    attune_engine engine;
    double flops;
    int64_t calls;      /* of one sample */
    double *samples_us; /* of one call, in the order they were taken */
    double *fractions;  /* of the peak probed before and after each sample */
    size_t count;
    /* Results of bench_summarise and bench_acquire. */
    double median_us, min_us, spread, gflops, peak_gflops, fraction;
    double cold_compile_ms, warm_disk_us, memory_hit_ns;
} bench_entry;

/* Tensors with ordinary data, kernel, workspace, and how many calls last two milliseconds. false after a message. */
bool bench_open(bench_entry *entry, attune_context *context, attune_engine engine, size_t samples);
void bench_close(bench_entry *entry);

/* Takes `samples` of every entry: in each round every entry has its turn, with the peak probed between any two, so that
 * whatever slows the machine down for a while slows everything. false after a message. */
bool bench_rounds(bench_entry *entries, size_t count, attune_context *context, peak_probe *probe, uint32_t threads,
                  size_t samples);

/* Medians and shares from the samples. */
void bench_summarise(bench_entry *entry);

/* Cold compile, disk hit and memory hit, in a context and cache directory of their own. false after a message. */
bool bench_acquire(bench_entry *entry, const tool_common *common);

/* Restricts the process to `threads` of the CPUs it may use, the last ones. false after a message. */
bool bench_pin(uint32_t threads);

#endif
