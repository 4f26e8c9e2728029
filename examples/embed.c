/* attune inside another program: its threads, its allocator, its workspace, and what ran.
 *     cc embed.c $(pkg-config --cflags --libs attune) -pthread -o embed */
#include <attune/attention.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { WORKERS = 4, TOKENS = 200, HEADS = 12, DIM = 64 };

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
    attune_runner runner = ATTUNE_RUNNER_INIT;
    runner.parallel_for = my_parallel_for, runner.max_workers = WORKERS;
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.allocator = &allocator, options.runner = &runner;
    attune_context *context;
    TRY(attune_context_create(&options, &context));

    attune_attention_desc desc = ATTUNE_ATTENTION_DESC_INIT;
    desc.num_heads = HEADS, desc.head_dim = DIM, desc.layout = ATTUNE_BSHD, desc.is_causal = 1;
    attune_attention *attention;
    TRY(attune_attention_create(context, &desc, &attention));

    size_t count = TOKENS * HEADS * DIM, bytes = 0;
    float *memory = malloc(4 * count * sizeof(float)), *v = memory + 2 * count, *out = memory + 3 * count;
    if (!memory) return 1;
    for (size_t i = 0; i < 3 * count; i++) memory[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    attune_step step = ATTUNE_STEP_INIT;
    step.batch = 1, step.seq_q = step.seq_kv = TOKENS;
    step.q.data = memory, step.k.data = memory + count, step.v.data = v, step.out.data = out;
    TRY(attune_attention_workspace_size(attention, &step, &bytes));
    step.workspace = my_alloc(NULL, bytes ? bytes : 64, 64), step.workspace_bytes = bytes;
    TRY(attune_attention_run(attention, &step));

    attune_attention_info info = ATTUNE_ATTENTION_INFO_INIT;
    TRY(attune_attention_get_info(attention, &info));
    printf("%zu bytes of workspace; %d by a compiled kernel\n", bytes, (int)info.compiled_calls);

    /* The first query attends to the first key alone: the result is that key's value, so this is a check, too. */
    printf("out[0] = %g, v[0] = %g\n", (double)out[0], (double)v[0]);
    const int wrong = out[0] != v[0];
    my_free(NULL, step.workspace);
    free(memory);
    attune_attention_destroy(attention);
    attune_context_destroy(context);
    return wrong;
}
