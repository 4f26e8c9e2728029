/* Memory whose reading is measured. From 4 MiB on it lies in huge pages where the system has them, as that of NumPy's
 * arrays does and, on many systems, all: across small ones a prefetcher does not go, and peers would be measured on
 * other pages than attune. */
#ifndef ATTUNE_TOOLS_PAGES_H
#define ATTUNE_TOOLS_PAGES_H

#include <stdlib.h>
#include <sys/mman.h>

/* `bytes` of them, not one more, uninitialised; NULL: there is no memory. free() ends it. */
static inline void *pages_alloc(size_t bytes) {
    enum { LINE = 64, HUGE = 2 << 20 };
    void *memory = NULL;
    if (posix_memalign(&memory, bytes < 2 * HUGE ? LINE : HUGE, bytes)) return NULL;
    if (bytes >= 2 * HUGE) madvise(memory, bytes / HUGE * HUGE, MADV_HUGEPAGE); /* refused, it is as good as it was */
    return memory;
}

#endif
