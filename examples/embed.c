/* attune inside another program: its threads, its allocator, its workspace.
 *     cc embed.c $(pkg-config --cflags --libs attune) -pthread -o embed */
#include <attune.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { WORKERS = 4 };

static void *my_alloc(void *user, size_t bytes, size_t align) {
    (void)user;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}
static void my_free(void *user, void *pointer) { (void)user, free(pointer); }

typedef struct share {
    attune_range_fn *fn;
    void *argument;
    int64_t begin, end;
    uint32_t worker;
} share;
static void *run_share(void *s_) {
    share *s = s_;
    s->fn(s->argument, s->begin, s->end, s->worker);
    return NULL;
}

static void my_parallel_for(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    (void)user;
    pthread_t threads[WORKERS];
    share shares[WORKERS];
    for (uint32_t w = 0; w < WORKERS; w++) {
        shares[w] = (share){fn, argument, n * w / WORKERS, n * (w + 1) / WORKERS, w};
        if (pthread_create(&threads[w], NULL, run_share, &shares[w])) abort();
    }
    for (uint32_t w = 0; w < WORKERS; w++) pthread_join(threads[w], NULL);
}

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if ((call) != ATTUNE_OK) {                                                                                     \
            fprintf(stderr, "%s\n", attune_last_message());                                                            \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

int main(void) {
    attune_allocator allocator = {.alloc = my_alloc, .free = my_free};
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.allocator = &allocator;
    attune_runner runner = ATTUNE_RUNNER_INIT;
    runner.parallel_for = my_parallel_for;
    runner.max_workers = WORKERS;
    options.runner = &runner;
    attune_context *context = NULL;
    TRY(attune_context_create(&options, &context));

    attune_problem problem = ATTUNE_PROBLEM_INIT;
    TRY(attune_problem_parse(&problem, "num_heads=12,seq_q=200,head_dim=64,is_causal=1"));
    attune_kernel *kernel = NULL;
    TRY(attune_compile(context, &problem, NULL, &kernel));

    size_t count = 12 * 200 * 64, bytes = 0;
    float *memory = malloc(4 * count * sizeof(float)), *out = memory + 3 * count;
    if (!memory) return 1;
    for (size_t i = 0; i < 3 * count; i++) memory[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    attune_arguments arguments = {0};
    TRY(attune_arguments_init(&arguments, &problem));
    arguments.q.data = memory, arguments.k.data = memory + count, arguments.v.data = memory + 2 * count,
    arguments.out.data = out;
    TRY(attune_workspace_size(context, kernel, &arguments, &bytes));
    arguments.workspace = my_alloc(NULL, bytes ? bytes : 64, 64), arguments.workspace_bytes = bytes;
    TRY(attune_run(context, kernel, &arguments));

    /* The first query sees only the first key: the result is that key's value, so this is a check, too. */
    printf("%zu bytes of workspace; out[0] = %g, v[0] = %g\n", bytes, (double)out[0], (double)memory[2 * count]);
    int wrong = out[0] != memory[2 * count];
    my_free(NULL, arguments.workspace);
    free(memory);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
    return wrong;
}
