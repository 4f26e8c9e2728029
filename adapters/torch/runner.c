/* PyTorch's parallel loop runs a function for ranges of indices; here each index is a worker. */
#include "runner.h"

#include "common/loop.h"
#include "torch_abi.h"

/* The index of torch_parallel_for is the worker number, even if PyTorch runs all indices on one thread, as it does in a
 * parallel region or after set_num_threads. */
static void work(int64_t begin, int64_t end, void *loop) {
    for (int64_t worker = begin; worker < end; worker++) common_loop_work(loop, (uint32_t)worker);
}

static void parallel_for(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    const int64_t threads = (int64_t)(uintptr_t)user, workers = n < threads ? n : threads;
    common_loop l;
    /* After a failure of PyTorch, tasks have not run, which attune notices and reports. */
    if (workers <= 1) {
        fn(argument, 0, n, 0);
    } else {
        common_loop_init(&l, fn, argument, n, workers);
        (void)torch.torch_parallel_for(0, workers, 1, work, &l);
    }
}

attune_runner torch_runner(void) {
    uint32_t threads = 1;
    if (torch.torch_get_num_threads(&threads) || !threads) threads = 1;
    return (attune_runner){.struct_size = sizeof(attune_runner),
                           .parallel_for = parallel_for,
                           .user = (void *)(uintptr_t)threads,
                           .max_workers = threads < 65536 ? threads : 65536};
}
