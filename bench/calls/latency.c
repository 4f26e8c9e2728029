/* How a call behaves as a guest: beside other busy processes, called now and then, and for the first time.
 *
 *     latency [--workers N] [--seconds S] [--microseconds U]
 *
 * It makes its own load: one process for each CPU that does nothing but count. Runs with all workers and with one take
 * turns of a tenth of a second, so that both see the same neighbours. `make bench-latency` runs it. */
#define _GNU_SOURCE
#include <argp.h>
#include <attune.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HEAD_DIM = 64, ROWS = 64, MOST_HEADS = 512, MOST_SAMPLES = 1 << 20, FIRST_CALLS = 40 };

static void die(const char *what) {
    fprintf(stderr, "latency: %s: %s\n", what, attune_last_message());
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- Samples ---- */

typedef struct samples {
    double *seconds;
    size_t count;
} samples;

static void add(samples *s, double seconds) {
    if (!s->seconds && !(s->seconds = malloc(MOST_SAMPLES * sizeof *s->seconds))) die("no memory");
    if (s->count < MOST_SAMPLES) s->seconds[s->count++] = seconds;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The p-th percentile, in microseconds. */
static double percentile(samples *s, double p) {
    if (!s->count) return 0;
    qsort(s->seconds, s->count, sizeof *s->seconds, by_value);
    return s->seconds[(size_t)(p / 100 * (double)(s->count - 1))] * 1e6;
}

static void print_row(const char *name, samples *s) {
    printf("  %-12s p50 %9.1f   p90 %9.1f   p99 %9.1f   max %9.1f µs   (%zu calls)\n", name, percentile(s, 50),
           percentile(s, 90), percentile(s, 99), percentile(s, 100), s->count);
}

/* ---- Calls ---- */

typedef struct call {
    attune_context *context;
    attune_kernel *kernel;
    attune_arguments arguments;
} call;

static attune_context *open_context(uint32_t workers) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context;
    options.max_workers = workers;
    if (attune_context_create(&options, &context)) die("no context");
    return context;
}

static call open_call(attune_context *context, int64_t heads, int64_t rows, int64_t dim, float *memory) {
    call c = {.context = context};
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    const size_t count = (size_t)(heads * rows * dim);
    problem.num_heads = heads;
    problem.seq_q = rows;
    problem.head_dim = dim;
    if (attune_compile(context, &problem, NULL, &c.kernel)) die("no kernel");
    if (attune_arguments_init(&c.arguments, &problem)) die("no arguments");
    c.arguments.q.data = memory;
    c.arguments.k.data = memory + count;
    c.arguments.v.data = memory + 2 * count;
    c.arguments.out.data = memory + 3 * count;
    return c;
}

static double run(const call *c) {
    const double start = now();
    if (attune_run(c->context, c->kernel, &c->arguments)) die("no run");
    return now() - start;
}

static void close_call(call *c) {
    attune_kernel_release(c->kernel);
    attune_context_destroy(c->context);
}

/* As many heads as take about so long on all workers of an idle machine. */
static int64_t choose_heads(uint32_t workers, double microseconds, float *memory) {
    attune_context *context = open_context(workers);
    int64_t heads = workers;
    for (;; heads += workers) {
        call c = open_call(context, heads, ROWS, HEAD_DIM, memory);
        samples s = {0};
        for (int i = 0; i < 400; i++) add(&s, run(&c));
        const double took = percentile(&s, 20);
        free(s.seconds);
        attune_kernel_release(c.kernel);
        if (took >= microseconds || heads + workers > MOST_HEADS) break;
    }
    attune_context_destroy(context);
    return heads;
}

/* ---- Load ---- */

typedef struct load {
    pid_t processes[64];
    int count;
} load;

static load start_load(int count) {
    load l = {.count = count < 64 ? count : 64};
    fflush(stdout);
    for (int i = 0; i < l.count; i++) {
        l.processes[i] = fork();
        if (l.processes[i] < 0) die("no process");
        if (l.processes[i]) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (volatile unsigned long n = 0;; n++) {
        }
    }
    return l;
}

static void end_load(load *l) {
    for (int i = 0; i < l->count; i++) {
        kill(l->processes[i], SIGKILL);
        waitpid(l->processes[i], NULL, 0);
    }
}

/* ---- Measurements ---- */

static void run_for(const call *c, double seconds, samples *s) {
    const double end = now() + seconds;
    while (now() < end) add(s, run(c));
}

static void compare(const char *title, const call *all, const call *one, double seconds) {
    samples a = {0}, b = {0};
    for (double end = now() + seconds; now() < end;) {
        run_for(all, 0.1, &a);
        run_for(one, 0.1, &b);
    }
    printf("%s\n", title);
    print_row("all workers", &a);
    print_row("one worker", &b);
    printf("  %-12s p50 %9.2f   p90 %9.2f   p99 %9.2f\n\n", "ratio", percentile(&a, 50) / percentile(&b, 50),
           percentile(&a, 90) / percentile(&b, 90), percentile(&a, 99) / percentile(&b, 99));
    free(a.seconds);
    free(b.seconds);
}

static double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static void call_now_and_then(const call *c, double seconds) {
    samples s = {0};
    run(c);
    const double start = now(), cpu = cpu_seconds();
    while (now() < start + seconds) {
        usleep(20000);
        add(&s, run(c));
    }
    const double share = (cpu_seconds() - cpu) / (now() - start);
    printf("A call each 20 ms, all workers: %.2f %% of one CPU used\n", share * 100);
    print_row("all workers", &s);
    printf("\n");
    free(s.seconds);
}

/* The kernel comes from the warm disk cache, as in a server that starts. */
static void call_first(uint32_t workers, int64_t heads, float *memory) {
    samples create = {0}, first = {0}, second = {0};
    for (int i = 0; i < FIRST_CALLS; i++) {
        const double start = now();
        attune_context *context = open_context(workers);
        add(&create, now() - start);
        call c = open_call(context, heads, ROWS, HEAD_DIM, memory);
        add(&first, run(&c));
        add(&second, run(&c));
        close_call(&c);
    }
    printf("A new context, %u workers\n", workers);
    print_row("create", &create);
    print_row("first run", &first);
    print_row("second run", &second);
    printf("\n");
    free(create.seconds);
    free(first.seconds);
    free(second.seconds);
}

/* A runner that is never asked: the call is too short. */
static void serial(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    (void)user;
    fn(argument, 0, n, 0);
}

static void ignore(void *user, const attune_event *event) { (void)user, (void)event; }

static void time_calls(const char *name, const call *c, const attune_run_options *options) {
    enum { CALLS = 20000, TURNS = 50 };
    samples s = {0};
    for (int turn = 0; turn < TURNS; turn++) {
        const double start = now();
        for (int i = 0; i < CALLS; i++)
            if (attune_run_with(c->context, c->kernel, &c->arguments, options)) die("no run");
        add(&s, (now() - start) / CALLS);
    }
    printf("  %-34s median %6.1f ns, least %6.1f ns\n", name, percentile(&s, 50) * 1e3, percentile(&s, 0) * 1e3);
    free(s.seconds);
}

/* One query, one key: next to nothing is computed, and what is timed is what a call costs. */
static void smallest_call(float *memory) {
    attune_context_options events = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context;
    events.event = ignore;
    if (attune_context_create(&events, &context)) die("no context");
    call c = open_call(context, 1, 1, 4, memory);
    const int cancel = 0;
    attune_runner runner = ATTUNE_RUNNER_INIT;
    runner.parallel_for = serial;
    runner.max_workers = 2;
    attune_run_options options = ATTUNE_RUN_OPTIONS_INIT;
    options.runner = &runner;
    options.cancel = &cancel;
    printf("The smallest call (one query, one key, head_dim 4)\n");
    time_calls("attune_run", &c, NULL);
    time_calls("with runner, cancel flag and event", &c, &options);
    close_call(&c);
}

/* ---- Command line ---- */

typedef struct settings {
    uint32_t workers; /* 0: as the context has */
    double seconds, microseconds;
} settings;

static const struct argp_option options[] = {
    {"workers", 'w', "N", 0, "threads of a call (as many as there are CPUs)", 0},
    {"seconds", 's', "S", 0, "how long each comparison takes (8)", 0},
    {"microseconds", 'u', "U", 0, "how long a call should take on all workers of an idle machine (44)", 0},
    {0},
};

static double parse_number(const char *text, double least, double most, struct argp_state *state) {
    char *end;
    errno = 0;
    const double value = strtod(text, &end);
    if (*end || end == text || errno || !(value >= least && value <= most))
        argp_error(state, "\"%s\" is no number from %g to %g", text, least, most);
    return value;
}

static error_t parse(int key, char *argument, struct argp_state *state) {
    settings *s = state->input;
    switch (key) {
    case 'w': s->workers = (uint32_t)parse_number(argument, 1, 64, state); return 0;
    case 's': s->seconds = parse_number(argument, 0.2, 3600, state); return 0;
    case 'u': s->microseconds = parse_number(argument, 1, 10000, state); return 0;
    case ARGP_KEY_ARG: argp_usage(state); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static void measure(settings s) {
    attune_context *context = open_context(s.workers);
    attune_machine_info info = {.struct_size = sizeof info};
    if (attune_get_machine_info(context, &info)) die("no machine");
    s.workers = info.max_workers;
    printf("%s, %s, %u workers, attune %s\n", info.cpu, info.isa, s.workers, attune_version());
    attune_context_destroy(context);
    const size_t bytes = 4 * sizeof(float) * MOST_HEADS * ROWS * HEAD_DIM;
    float *memory = aligned_alloc(64, bytes);
    if (!memory) die("no memory");
    memset(memory, 0, bytes);
    const int64_t heads = choose_heads(s.workers, s.microseconds, memory);
    printf("a call: num_heads=%lld,seq_q=%d,head_dim=%d\n\n", (long long)heads, ROWS, HEAD_DIM);
    call all = open_call(open_context(s.workers), heads, ROWS, HEAD_DIM, memory);
    call one = open_call(open_context(1), heads, ROWS, HEAD_DIM, memory);
    compare("No load of ours", &all, &one, s.seconds / 2);
    load l = start_load((int)s.workers);
    compare("Beside a busy process for each worker", &all, &one, s.seconds);
    end_load(&l);
    call_now_and_then(&all, s.seconds / 2);
    call_first(s.workers, heads, memory);
    smallest_call(memory);
    close_call(&all);
    close_call(&one);
    free(memory);
}

int main(int argc, char **argv) {
    static const struct argp argp = {
        options, parse, NULL, "How calls behave beside other processes, now and then, and for the first time.",
        NULL,    NULL,  NULL};
    settings s = {.seconds = 8, .microseconds = 44};
    argp_parse(&argp, argc, argv, 0, NULL, &s);
    measure(s);
    return 0;
}
