/* ONNX Runtime runs a function once for each index, so a range of attune becomes as many indices as there may be
 * workers. */
#define _GNU_SOURCE
#include "runner.h"

#include "common/loop.h"

#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

/* The index of KernelContext_ParallelFor is the worker number. */
static void work(void *user, size_t worker) { common_loop_work(user, (uint32_t)worker); }

/* ONNX Runtime does not say how many threads a session has. More workers than threads are harmless. */
static uint32_t most_workers(void) {
    static atomic_uint known;
    uint32_t count = atomic_load_explicit(&known, memory_order_relaxed);
    if (count) return count;
    cpu_set_t set; /* for 1024 CPUs; on a larger machine the call fails */
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    const long usable = sched_getaffinity(0, sizeof set, &set) ? online : CPU_COUNT(&set);
    count = usable < 1 ? 1 : usable > 65536 ? 65536 : (uint32_t)usable;
    atomic_store_explicit(&known, count, memory_order_relaxed);
    return count;
}

static void parallel_for(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    const ort_place *const place = user;
    const int64_t most = most_workers(), workers = n < most ? n : most;
    if (workers <= 1) {
        fn(argument, 0, n, 0);
        return;
    }
    common_loop l;
    common_loop_init(&l, fn, argument, n, workers);
    /* After a failure of ONNX Runtime, tasks have not run, which attune notices and reports. */
    ort_status *const status = place->api->KernelContext_ParallelFor(place->context, work, (size_t)workers, 0, &l);
    if (status) place->api->ReleaseStatus(status);
}

attune_runner ort_runner(const ort_place *place) {
    return (attune_runner){.struct_size = sizeof(attune_runner),
                           .parallel_for = parallel_for,
                           .user = (void *)place,
                           .max_workers = most_workers()};
}
