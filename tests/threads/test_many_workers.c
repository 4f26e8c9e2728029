/* Many more workers than there are CPUs, in one group and in several: the bits are those of one thread. */
#include "problem/mha.h"
#include "support/engine/contexts.h"
#include "support/problems.h"
#include "support/statuses.h"
#include "support/tensor_calls.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WORKERS = 64 };

/* Enough work for all workers (threads/team.h), with few tasks and many, one phase and several. */
static const char *const problems[] = {
    "num_heads=12,seq_q=197,head_dim=64,has_lse=1",
    "batch=9,num_heads=7,seq_q=49,head_dim=32",
    "num_heads=16,seq_q=300,head_dim=64,is_causal=1",
    "num_heads=16,num_kv_heads=4,seq_q=1,seq_kv=9000,head_dim=128",
    "batch=5,num_heads=8,num_kv_heads=2,seq_q=3,seq_kv=2000,head_dim=64,has_kv_lens=1,is_causal=1",
    "num_heads=3,seq_q=500,seq_kv=333,head_dim=72,attn_bias_dims=qk",
    "num_heads=8,seq_q=256,head_dim=64,dtype=bf16",
    "embed_dim=256,num_heads=4,seq_q=200,is_causal=1",
};

/* ---- A host's pool: each worker is a thread of its own, and takes tasks that are far apart ---- */

typedef struct loop {
    attune_range_fn *fn;
    void *argument;
    int64_t n;
    _Atomic int64_t next;
    _Atomic uint32_t workers;
} loop;

static void *take_some(void *argument) {
    loop *l = argument;
    const uint32_t worker = atomic_fetch_add(&l->workers, 1);
    for (int64_t i = atomic_fetch_add(&l->next, 1); i < l->n; i = atomic_fetch_add(&l->next, 1)) {
        const int64_t task = l->n - 1 - i;
        l->fn(l->argument, task, task + 1, worker);
    }
    return NULL;
}

static void parallel_for(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    loop l = {.fn = fn, .argument = argument, .n = n};
    pthread_t threads[WORKERS];
    int started = 0;
    (void)user;
    while (started < WORKERS && !pthread_create(&threads[started], NULL, take_some, &l)) started++;
    if (!started) take_some(&l);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
}

/* ---- The same bits ---- */

static void run(const tensors *t, const attune_context_options *options) {
    attune_context *context;
    attune_arguments arguments;
    context = test_context(options, NULL);
    attune_kernel *kernel = kernel_of(context, &t->problem);
    tensors_arguments(t, &arguments);
    for (int times = 0; times < 3; times++)
        if (attune_run(context, kernel, &arguments)) fail_msg("%s", attune_last_message());
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}

static void assert_same_bits(const tensors *t, const attune_context_options *options, const char *text) {
    char difference[DIFFERENCE_TEXT];
    tensors shared;
    assert_true(tensors_share(&shared, t));
    tensors_clear_outputs(&shared);
    run(&shared, options);
    if (!tensors_same_outputs(&shared, t, difference)) fail_msg("%s: %s", text, difference);
    tensors_free(&shared);
}

static void as_one_thread(void **state) {
    attune_runner runner = ATTUNE_RUNNER_INIT;
    attune_context_options one = ATTUNE_CONTEXT_OPTIONS_INIT;
    (void)state;
    runner.parallel_for = parallel_for;
    runner.max_workers = WORKERS;
    one.machine = "generic,l3_cores=0"; /* one kernel for all: l3_cores is no part of a choice, but of the class */
    one.max_workers = 1;
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        tensors t;
        const attune_problem problem = problem_parsed(problems[i]);
        assert_true(tensors_create(&t, &problem) && tensors_fill(&t, INPUT_ORDINARY, i));
        run(&t, &one);
        attune_context_options many = one;
        many.max_workers = WORKERS;
        assert_same_bits(&t, &many, problems[i]);
        many.machine = "generic,l3_cores=4";
        assert_same_bits(&t, &many, problems[i]);
        many.machine = "generic,l3_cores=1";
        assert_same_bits(&t, &many, problems[i]);
        many = one;
        many.max_workers = 0;
        many.runner = &runner;
        assert_same_bits(&t, &many, problems[i]);
        tensors_free(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_one_thread)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
