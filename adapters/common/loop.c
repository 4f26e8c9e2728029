/* Workers take short ranges from one atomic counter, eight for each of them on average, so that one that begins late
 * takes fewer. */
#include "loop.h"

void common_loop_init(common_loop *l, attune_range_fn *fn, void *argument, int64_t n, int64_t workers) {
    enum { RANGES_PER_WORKER = 8 };
    *l = (common_loop){.fn = fn, .argument = argument, .n = n, .grain = n / (workers * RANGES_PER_WORKER) + 1};
}

void common_loop_work(common_loop *l, uint32_t worker) {
    for (;;) {
        const int64_t first = atomic_fetch_add_explicit(&l->next, l->grain, memory_order_relaxed);
        if (first >= l->n) return;
        const int64_t last = first + l->grain < l->n ? first + l->grain : l->n;
        l->fn(l->argument, first, last, worker);
    }
}
