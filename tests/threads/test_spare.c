/* Workspaces that calls leave for the next: each has one user at a time, and a call that finds one allocates nothing.
 */
#include "support/statuses.h"
#include "threads/spare.h"

#include <attune.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static _Atomic int allocations, live;
static _Atomic bool refuses;

static void *counting_alloc(void *user, size_t bytes, size_t align) {
    (void)user;
    if (refuses) return NULL;
    allocations++;
    live++;
    return at_alloc_aligned(NULL, bytes, align);
}

static void counting_free(void *user, void *pointer) {
    (void)user;
    live--;
    at_free(NULL, pointer);
}

static const attune_allocator counting = {counting_alloc, counting_free, NULL};

static void kept_and_replaced(void **state) {
    (void)state;
    at_spares spares;
    at_spares_init(&spares, &counting);
    allocations = 0;
    void *small = at_spares_take(&spares, 100);
    assert_non_null(small);
    assert_int_equal((uintptr_t)small % AT_SPARE_ALIGN, 0);
    memset(small, 1, 100);
    at_spares_give(&spares, small);
    assert_int_equal(live, AT_SPARE_BYTES ? 1 : 0);
    for (int i = 0; i < 3 && AT_SPARE_BYTES; i++) { /* a smaller request fits as well */
        void *again = at_spares_take(&spares, (size_t)(100 - i));
        assert_ptr_equal(again, small);
        at_spares_give(&spares, again);
    }
    void *larger = at_spares_take(&spares, 5000);
    memset(larger, 2, 5000);
    at_spares_give(&spares, larger);
    assert_int_equal(allocations, 2);
    assert_int_equal(live, AT_SPARE_BYTES ? 1 : 0);
    at_spares_free(&spares);
    assert_int_equal(live, 0);
}

static void large_ones_are_not_kept(void **state) {
    (void)state;
    at_spares spares;
    at_spares_init(&spares, &counting);
    void *large = at_spares_take(&spares, (size_t)AT_SPARE_BYTES + 1);
    assert_non_null(large);
    at_spares_give(&spares, large);
    assert_int_equal(live, 0);
    assert_null(at_spares_take(&spares, SIZE_MAX - 8));
    refuses = true;
    assert_null(at_spares_take(&spares, 100));
    refuses = false;
    at_spares_free(&spares);
    assert_int_equal(live, 0);
}

/* Two workspaces of one thread at once, as a parallel_for that runs other calls may need: the second is kept instead of
 * the first, which is freed. */
static void nested(void **state) {
    (void)state;
    at_spares spares;
    at_spares_init(&spares, &counting);
    void *outer = at_spares_take(&spares, 64), *inner = at_spares_take(&spares, 64);
    assert_ptr_not_equal(outer, inner);
    at_spares_give(&spares, inner);
    at_spares_give(&spares, outer);
    assert_int_equal(live, AT_SPARE_BYTES ? 1 : 0);
    at_spares_free(&spares);
    assert_int_equal(live, 0);
}

/* More threads than slots, so that some share one. */
enum { THREADS = 24, TURNS = 2000, WORDS = 32 };

static void *hammer(void *argument) {
    at_spares *spares = argument;
    intptr_t wrong = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        const size_t words = (size_t)(turn % WORDS) + 1;
        volatile uintptr_t *memory = at_spares_take(spares, words * sizeof *memory);
        const uintptr_t mine = (uintptr_t)&wrong + (uintptr_t)turn;
        for (size_t i = 0; i < words; i++) memory[i] = mine;
        for (size_t i = 0; i < words; i++) wrong += memory[i] != mine;
        at_spares_give(spares, (void *)(uintptr_t)memory);
    }
    return (void *)wrong;
}

static void never_shared(void **state) {
    (void)state;
    at_spares spares;
    pthread_t threads[THREADS];
    at_spares_init(&spares, &counting);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, hammer, &spares), 0);
    for (int i = 0; i < THREADS; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    at_spares_free(&spares);
    assert_int_equal(live, 0);
}

static void later_calls_allocate_nothing(void **state) {
    (void)state;
    enum { HEADS = 2, ROWS = 16, WIDTH = 32 };
    static float in[HEADS * ROWS * WIDTH], out[HEADS * ROWS * WIDTH];
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.allocator = &counting;
    options.cache_dir = "";
    options.max_workers = 1;
    attune_context *context;
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    problem.num_heads = HEADS;
    problem.seq_q = ROWS;
    problem.head_dim = WIDTH;
    assert_int_equal(attune_context_create(&options, &context), ATTUNE_OK);
    attune_kernel *kernel = kernel_of(context, &problem);
    attune_arguments arguments;
    attune_arguments_init(&arguments, &problem);
    arguments.q.data = arguments.k.data = arguments.v.data = in;
    arguments.out.data = out;
    assert_int_equal(attune_run(context, kernel, &arguments), ATTUNE_OK);
    const int before = allocations;
    for (int i = 0; i < 10; i++) assert_int_equal(attune_run(context, kernel, &arguments), ATTUNE_OK);
    assert_int_equal(allocations - before, AT_SPARE_BYTES ? 0 : 10);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
    assert_int_equal(live, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_and_replaced), cmocka_unit_test(large_ones_are_not_kept),      cmocka_unit_test(nested),
        cmocka_unit_test(never_shared),      cmocka_unit_test(later_calls_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
