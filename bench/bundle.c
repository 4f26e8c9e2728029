/* Kernels of a bundle beside the same kernels compiled now, on one thread: a plain call of the bundle's function, the
 * bundle's kernel as the library finds it, and the compiled one take turns.
 *
 *     bundle [ROUNDS]     301 rounds for each kernel of bench/bundle.txt: `make bench-bundle` */
#include "speed.h"

#include <attune.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TENSOR_BYTES = 16 << 20, BY_FUNCTION = 0, REGISTERED, COMPILED, NUM_WAYS };

static void die(const char *what) {
    fprintf(stderr, "bundle: %s: %s\n", what, attune_last_message());
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* ---- Functions of the bundle ---- */

#define FUNCTION(name, initial)                                                                                        \
    static int name(const attune_arguments *a) {                                                                       \
        speed_##name##_args args = initial;                                                                            \
        args.q = a->q.data, args.k = a->k.data, args.v = a->v.data, args.out = a->out.data;                            \
        args.workspace = a->workspace, args.workspace_bytes = a->workspace_bytes;                                      \
        return speed_##name(&args);                                                                                    \
    }
FUNCTION(f32, SPEED_F32_ARGS)
FUNCTION(bf16, SPEED_BF16_ARGS)
FUNCTION(decode, SPEED_DECODE_ARGS)
FUNCTION(short_decode, SPEED_SHORT_DECODE_ARGS)

static const struct {
    const char *problem;
    int (*run)(const attune_arguments *);
} kernels[] = {
    {"num_heads=12,seq_q=512,seq_kv=512,head_dim=64", f32},
    {"num_heads=32,seq_q=512,seq_kv=512,head_dim=128,dtype=bf16", bf16},
    {"num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=2048,head_dim=128", decode},
    {"num_heads=12,seq_q=1,seq_kv=128,head_dim=64", short_decode},
};

/* ---- Contexts ---- */

static attune_context *open_context(void) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context;
    options.cache_dir = "";
    options.max_workers = 1;
    if (attune_context_create(&options, &context)) die("no context");
    return context;
}

static attune_kernel *find(attune_context *context, const attune_problem *problem, const mha_schedule *schedule,
                           attune_origin origin, attune_kernel_info *info) {
    attune_kernel *kernel;
    if (attune_compile(context, problem, schedule, &kernel)) die("no kernel");
    *info = (attune_kernel_info){.struct_size = sizeof *info};
    if (attune_kernel_get_info(kernel, info) || info->origin != origin) die("the kernel is from elsewhere");
    return kernel;
}

/* ---- Calls ---- */

/* Numbers of less than 1 whose halves are such numbers of bf16, too. */
static void *tensor(void) {
    unsigned *const words = aligned_alloc(64, TENSOR_BYTES);
    if (!words) die("no memory");
    for (size_t i = 0; i < TENSOR_BYTES / sizeof *words; i++) {
        const unsigned half = 0x3c00u | ((unsigned)rand() & 0x82ffu);
        words[i] = half << 16 | half;
    }
    return words;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct contest {
    attune_context *contexts[NUM_WAYS];
    attune_kernel *kernels[NUM_WAYS];
    int (*run)(const attune_arguments *);
} contest;

static double time_of(const contest *c, int way, const attune_arguments *arguments) {
    const double begin = now();
    if (way == BY_FUNCTION ? c->run(arguments) : (int)attune_run(c->contexts[way], c->kernels[way], arguments))
        die("a call failed");
    return now() - begin;
}

/* Each way is first, second and third equally often. Prints medians. */
static void hold(const contest *c, const char *what, int rounds, const attune_arguments *arguments) {
    double *times[NUM_WAYS];
    for (int w = 0; w < NUM_WAYS; w++)
        if (!(times[w] = calloc((size_t)rounds, sizeof *times[w]))) die("no memory");
    for (int r = -3; r < rounds; r++)
        for (int i = 0; i < NUM_WAYS; i++) {
            const int way = (i + r + 3) % NUM_WAYS;
            const double time = time_of(c, way, arguments);
            if (r >= 0) times[way][r] = time;
        }
    for (int w = 0; w < NUM_WAYS; w++) qsort(times[w], (size_t)rounds, sizeof *times[w], by_value);
    const double compiled = times[COMPILED][rounds / 2], function = times[BY_FUNCTION][rounds / 2],
                 registered = times[REGISTERED][rounds / 2];
    printf("%-62s %10.2f µs compiled, %10.2f by the bundle's function (%.3f), %10.2f registered (%.3f)\n", what,
           compiled, function, function / compiled, registered, registered / compiled);
    for (int w = 0; w < NUM_WAYS; w++) free(times[w]);
}

int main(int argc, char **argv) {
    const int rounds = argc > 1 && atoi(argv[1]) > 0 ? atoi(argv[1]) : 301;
    contest c = {.contexts = {NULL, open_context(), open_context()}};
    if (attune_context_add_bundle(c.contexts[REGISTERED], &speed_bundle)) die("no bundle");
    void *const tensors[] = {tensor(), tensor(), tensor(), tensor()};
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        attune_problem problem = ATTUNE_PROBLEM_INIT;
        attune_arguments a;
        attune_kernel_info info, compiled;
        if (attune_problem_parse(&problem, kernels[k].problem) || attune_arguments_init(&a, &problem))
            die("no problem");
        c.run = kernels[k].run;
        c.kernels[REGISTERED] = find(c.contexts[REGISTERED], &problem, NULL, ATTUNE_FROM_BUNDLE, &info);
        c.kernels[COMPILED] = find(c.contexts[COMPILED], &problem, &info.schedule, ATTUNE_FROM_COMPILER, &compiled);
        a.q.data = tensors[0], a.k.data = tensors[1], a.v.data = tensors[2], a.out.data = tensors[3];
        a.workspace = aligned_alloc(64, TENSOR_BYTES);
        a.workspace_bytes = TENSOR_BYTES;
        hold(&c, kernels[k].problem, rounds, &a);
        free(a.workspace);
        for (int w = REGISTERED; w <= COMPILED; w++) attune_kernel_release(c.kernels[w]);
    }
    for (size_t t = 0; t < sizeof tensors / sizeof *tensors; t++) free(tensors[t]);
    for (int w = REGISTERED; w <= COMPILED; w++) attune_context_destroy(c.contexts[w]);
    return 0;
}
