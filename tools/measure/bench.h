/* Measuring one problem for `attune bench`: speed next to the roofline (the CPU's peak, and how fast it reads as much
 * memory), and what acquiring its kernel costs. */
#ifndef ATTUNE_TOOLS_BENCH_H
#define ATTUNE_TOOLS_BENCH_H

#include "measure/bandwidth.h"
#include "measure/peak.h"
#include "measure/work.h"

typedef struct bench_case {
    attune_problem problem;
    char *text;                           /* canonical */
    const char *given;                    /* as the user wrote it; NULL: unknown */
    const char *wish;                     /* a schedule; NULL: the chosen one */
    char schedule[ATTUNE_SCHEDULE_BYTES]; /* that the kernel has */
    tensors tensors;
    call_work work;
    size_t probed_bytes; /* by the bandwidth probe: as many, or with cold data more than the caches hold */
    int streams;         /* in which it reads them fastest */
    attune_kernel *kernel;
    attune_arguments arguments;
    void *workspace;
    size_t workspace_bytes; /* that a call needs */
    attune_engine engine;
    bool is_compiled;   /* its kernel is for this problem: it was compiled, or lay in a cache, a pack or a bundle */
    bool draws_lengths; /* lengths in tables are drawn; else they are as large as they may be */
    bool cold_data;     /* a sample is one call, before which the bandwidth probe fills the caches */
    int64_t calls;      /* of one sample */
    double call_us;     /* about what one of them takes */
    size_t count;       /* of the samples below, in the order they were taken */
    double *samples_us; /* of one call */
    double *peaks, *bandwidths; /* GFLOP/s and GB/s, probed before and after each sample */
    attune_dtype peak_dtype;    /* that the peaks are of */
    /* Results of bench_summarise and bench_acquire. */
    double median_us, min_us, spread, gflops;
    double peak_gflops, fraction; /* of the peak */
    double bandwidth_gbs, roofline_gflops, fraction_of_roofline;
    bool is_memory_bound;
    bool is_busy; /* other programs disturbed the samples or the probes: median and shares are no figures */
    double cold_compile_ms, warm_disk_us, memory_hit_ns;
} bench_case;

/* Tensors with ordinary data and full lengths, kernel, workspace, and how many calls last two milliseconds. false after
 * a message, or an interruption that the command has caught. */
bool bench_open(bench_case *c, attune_context *context, attune_engine engine, const call_sizes *sizes, size_t samples);
void bench_close(bench_case *c);

/* What is probed between the samples. */
typedef struct bench_probes {
    peak_probe *peak;
    bandwidth_probe *bandwidth;
    long disturbances; /* how often another program took this CPU away during the rounds */
} bench_probes;

/* Probes for these cases, the streams of each, and the peak by which each is measured. false after a message
 * or an interruption; close them in any case. */
bool bench_open_probes(bench_probes *probes, bench_case *cases, size_t count, const char *isa, uint32_t threads);
void bench_close_probes(bench_probes *probes);

/* Takes `samples` of every case: in each round every case has its turn, with its peak and the bandwidth probed
 * before and after, so that whatever slows the machine down for a while slows everything. false after a message or
 * an interruption. */
bool bench_rounds(bench_case *cases, size_t count, attune_context *context, bench_probes *probes, uint32_t threads,
                  size_t samples);

/* No kernel is faster than the peak: it was measured too low, because other programs ran. */
bool bench_is_above_peak(double fraction);

/* On stderr, if it was more than once a sample, or if so many shares of the peak are impossible. */
void bench_warn_of_disturbances(long disturbances, size_t samples, size_t above_peak);

/* The machine counts as busy if the middle half of the times, of the probed peaks or of the shares that are made of
 * both is further apart than BENCH_MOST_SPREAD of the median, or if the median time or peak is
 * BENCH_MOST_SLOWNESS times as slow as the best one. */
#define BENCH_MOST_SPREAD   0.5
#define BENCH_MOST_SLOWNESS 2.0
#define BENCH_BUSY          "busy, no figure" /* in place of one */

/* Medians and shares from the samples. false after a message. */
bool bench_summarise(bench_case *c);

/* Cold compile, disk hit and memory hit, in a context and cache directory of their own. false after a message. */
bool bench_acquire(bench_case *c, const tool_common *common);

/* Restricts the process to `threads` of the CPUs it may use, the last ones. false after a message. */
bool bench_pin(uint32_t threads);
/* Gives it back what it had then: compiling uses all of them. */
bool bench_unpin(void);

#endif
