/* Calls of random lengths by a plan that never waits, beside the same walk with all kernels there.
 *
 *     call_sites [CALLS] [MOST]       5,000 calls of lengths from 1 to 2,048
 *     call_sites --shapes [CALLS]     100,000 random shapes: memory, and kernels for lengths
 *     call_sites --promoted [ROUNDS]  eight shapes after promotion, beside the exact kernel of each; 301 rounds
 *
 * No cache, f32, one head of 64. `make bench-call-sites` runs all three. */
#include <attune.h>

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HEADS = 1, DIM = 64, MOST_KEYS = 4096 };
static const char PROBLEM[] = "num_heads=1,head_dim=64,seq_q=dynamic,seq_kv=dynamic,reproducible=1";

static void die(const char *what) {
    fprintf(stderr, "call_sites: %s: %s\n", what, attune_last_message());
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* ---- Events ---- */

static pthread_t caller;
static atomic_int compiles_of_caller, compiles, swaps;

static void count(void *user, const attune_event *event) {
    (void)user;
    if (event->kind == ATTUNE_EVENT_COMPILE_BEGIN) {
        atomic_fetch_add(&compiles, 1);
        if (pthread_equal(pthread_self(), caller)) atomic_fetch_add(&compiles_of_caller, 1);
    }
    if (event->kind == ATTUNE_EVENT_SWAPPED) atomic_fetch_add(&swaps, 1);
}

/* ---- Plans ---- */

typedef struct site {
    attune_context *context;
    attune_plan *plan;
} site;

static site open_site(bool never_waits) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_plan_options how = ATTUNE_PLAN_OPTIONS_INIT;
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    site s;
    options.cache_dir = "";
    options.max_workers = 1;
    if (never_waits) options.event = count;
    if (never_waits) how.deadline_us = 0;
    if (!never_waits) how.max_specialised = 0;
    if (attune_context_create(&options, &s.context)) die("no context");
    if (attune_problem_parse(&problem, PROBLEM)) die("no problem");
    if (attune_plan_create(s.context, &problem, &how, &s.plan)) die("no plan");
    if (!never_waits && attune_plan_prepare(s.plan)) die("no kernels");
    return s;
}

static void close_site(site s) {
    attune_plan_destroy(s.plan);
    attune_context_destroy(s.context);
}

static void point(attune_arguments *a, float *memory) {
    a->q.data = memory, a->k.data = memory, a->v.data = memory, a->out.data = memory + (size_t)HEADS * DIM * MOST_KEYS;
}

static double run(site s, int64_t queries, int64_t keys, float *memory) {
    attune_arguments a;
    if (attune_plan_arguments_init(s.plan, &a)) die("no arguments");
    a.seq_q = queries, a.seq_kv = keys;
    point(&a, memory);
    const double begin = now();
    if (attune_plan_run(s.plan, &a, NULL)) die("a call failed");
    return now() - begin;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- The walk ---- */

/* Calls of both take turns, so that both see the same neighbours. */
static void walk(int calls, int64_t most, float *memory) {
    double *const cold = calloc((size_t)calls, sizeof *cold), *const warm = calloc((size_t)calls, sizeof *warm);
    if (!cold || !warm) die("no memory");
    const site ready = open_site(false), never = open_site(true);
    double sum_cold = 0, sum_warm = 0;
    for (int i = 0; i < calls; i++) {
        const int64_t queries = 1 + rand() % most, keys = 1 + rand() % most;
        warm[i] = run(ready, queries, keys, memory);
        cold[i] = run(never, queries, keys, memory);
        if (i < calls / 2) continue;
        sum_warm += warm[i];
        sum_cold += cold[i];
    }
    const size_t at = (size_t)(0.999 * (calls - 1));
    attune_plan_info info = {.struct_size = sizeof info};
    attune_plan_get_info(never.plan, &info);
    qsort(cold, (size_t)calls, sizeof *cold, by_value);
    qsort(warm, (size_t)calls, sizeof *warm, by_value);
    printf("%d calls of 1 to %lld: %d waited for a compile; %d compiles behind, %d swaps, %llu calls by tier 0\n",
           calls, (long long)most, atomic_load(&compiles_of_caller), atomic_load(&compiles), atomic_load(&swaps),
           (unsigned long long)info.stopgap_calls);
    printf("p99.9 %.1f µs, with all kernels there %.1f µs: %.3f times; second half: %.1f %% of that speed\n", cold[at],
           warm[at], cold[at] / warm[at], 100 * sum_warm / sum_cold);
    close_site(ready);
    close_site(never);
    free(cold);
    free(warm);
}

/* ---- After promotion ---- */

static double run_exact(attune_context *context, const attune_kernel *kernel, const attune_arguments *arguments) {
    const double begin = now();
    if (attune_run(context, kernel, arguments)) die("a call failed");
    return now() - begin;
}

static attune_kernel *exact_kernel(attune_context *context, int64_t queries, int64_t keys, attune_arguments *a) {
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    attune_kernel *kernel;
    if (attune_problem_parse(&problem, PROBLEM)) die("no problem");
    problem.seq_q = queries;
    problem.seq_kv = keys;
    if (attune_compile(context, &problem, NULL, &kernel)) die("no exact kernel");
    if (attune_arguments_init(a, &problem)) die("no arguments");
    return kernel;
}

/* Calls of one shape until nothing is compiled for it any more. The exact kernel comes after them from another context,
 * so that the plan must find its own. */
static void settle(site s, int64_t queries, int64_t keys, float *memory) {
    enum { CALLS = 40 };
    const struct timespec moment = {.tv_nsec = 30000000};
    for (int i = 0; i < CALLS; i++) {
        run(s, queries, keys, memory);
        nanosleep(&moment, NULL);
    }
}

/* Returns the part of the exact kernel's speed that the plan has. */
static double compare(site s, site other, int64_t queries, int64_t keys, int rounds, float *memory) {
    double *const plan = calloc((size_t)rounds, sizeof *plan), *const exact = calloc((size_t)rounds, sizeof *exact);
    if (!plan || !exact) die("no memory");
    settle(s, queries, keys, memory);
    attune_arguments arguments;
    attune_kernel *const kernel = exact_kernel(other.context, queries, keys, &arguments);
    point(&arguments, memory);
    for (int i = 0; i < rounds; i++) {
        plan[i] = run(s, queries, keys, memory);
        exact[i] = run_exact(other.context, kernel, &arguments);
    }
    qsort(plan, (size_t)rounds, sizeof *plan, by_value);
    qsort(exact, (size_t)rounds, sizeof *exact, by_value);
    const double part = exact[rounds / 2] / plan[rounds / 2];
    printf("%5lld x %-5lld %10.2f µs, exact %10.2f µs: %.1f %% (of the fastest: %.1f %%)\n", (long long)queries,
           (long long)keys, plan[rounds / 2], exact[rounds / 2], 100 * part, 100 * exact[0] / plan[0]);
    attune_kernel_release(kernel);
    free(plan);
    free(exact);
    return part;
}

static void promoted(int rounds, float *memory) {
    static const int64_t sizes[][2] = {{16, 16},   {32, 32},   {64, 64},  {128, 128},
                                       {100, 300}, {512, 512}, {1, 1024}, {1024, 1024}};
    enum { NUM_SIZES = sizeof sizes / sizeof *sizes };
    const site s = open_site(true), other = open_site(false);
    double product = 1;
    for (int i = 0; i < NUM_SIZES; i++) product *= compare(s, other, sizes[i][0], sizes[i][1], rounds, memory);
    attune_plan_info info = {.struct_size = sizeof info};
    attune_plan_get_info(s.plan, &info);
    printf(
        "%d shapes after promotion: %.1f %% of the speed of exact kernels (geometric mean); %u kernels for lengths\n",
        (int)NUM_SIZES, 100 * pow(product, 1.0 / NUM_SIZES), info.specialised_kernels);
    close_site(s);
    close_site(other);
}

/* ---- Memory ---- */

static long resident_kb(void) {
    char line[256];
    long kb = 0;
    FILE *const file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "VmRSS:", 6)) kb = strtol(line + 6, NULL, 10);
    if (file) fclose(file);
    return kb;
}

static void shapes(int calls, float *memory) {
    const site s = open_site(true);
    long early = 0;
    for (int i = 0; i < calls; i++) {
        const int64_t queries = 1 + rand() % 24, keys = 1 + rand() % 64;
        for (int repeat = 0; repeat < 1 + 3 * (i % 100 == 0); repeat++) run(s, queries, keys, memory);
        if (i == calls / 2) early = resident_kb();
    }
    attune_plan_info info = {.struct_size = sizeof info};
    attune_plan_get_info(s.plan, &info);
    printf("%d random shapes: %u kernels for lengths; resident %ld KB after half, %ld KB at the end; %d calls waited\n",
           calls, info.specialised_kernels, early, resident_kb(), atomic_load(&compiles_of_caller));
    close_site(s);
}

int main(int argc, char **argv) {
    float *const memory = calloc((size_t)HEADS * DIM * 2 * MOST_KEYS, sizeof *memory);
    if (!memory) die("no memory");
    caller = pthread_self();
    srand(1);
    if (argc > 1 && !strcmp(argv[1], "--shapes"))
        shapes(argc > 2 ? atoi(argv[2]) : 100000, memory);
    else if (argc > 1 && !strcmp(argv[1], "--promoted"))
        promoted(argc > 2 ? atoi(argv[2]) : 301, memory);
    else
        walk(argc > 1 ? atoi(argv[1]) : 5000, argc > 2 ? atoi(argv[2]) : 2048, memory);
    free(memory);
    return 0;
}
