#include "runner.h"

#include "torch_abi.h"

#include <stdatomic.h>

typedef struct loop {
    attune_range_fn *fn;
    void *argument;
    int64_t n, grain;
    atomic_int_fast64_t next;
} loop;

/* The index of torch_parallel_for is the worker number. PyTorch runs each index once, so no two threads have the same
 * number at a time, even if it runs all indices on one thread: within a parallel region of the host's, or after
 * set_num_threads. Ranges are claimed one by one, because causal tasks differ in length. */
static void work(int64_t begin, int64_t end, void *context) {
    loop *const l = context;
    for (int64_t worker = begin; worker < end; worker++)
        for (;;) {
            const int64_t first = atomic_fetch_add_explicit(&l->next, l->grain, memory_order_relaxed);
            if (first >= l->n) break;
            const int64_t last = first + l->grain < l->n ? first + l->grain : l->n;
            l->fn(l->argument, first, last, (uint32_t)worker);
        }
}

static void parallel_for(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    const int64_t threads = (int64_t)(uintptr_t)user, workers = n < threads ? n : threads;
    enum { RANGES_PER_WORKER = 8 };
    loop l = {.fn = fn, .argument = argument, .n = n, .grain = n / (workers * RANGES_PER_WORKER) + 1};
    /* After a failure of PyTorch's own the tasks are missing, which attune notices and reports. */
    if (workers <= 1)
        fn(argument, 0, n, 0);
    else
        (void)torch.torch_parallel_for(0, workers, 1, work, &l);
}

attune_runner torch_runner(void) {
    uint32_t threads = 1;
    if (torch.torch_get_num_threads(&threads) || !threads) threads = 1;
    return (attune_runner){.struct_size = sizeof(attune_runner),
                           .parallel_for = parallel_for,
                           .user = (void *)(uintptr_t)threads,
                           .max_workers = threads < 65536 ? threads : 65536};
}
