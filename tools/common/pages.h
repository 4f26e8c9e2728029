/* Memory for measurements. From 4 MiB on it uses huge pages where the system has them, as NumPy's arrays do and, on
 * many systems, all memory. Prefetchers do not cross small pages, and attune and its peers must be measured on the same
 * kind. */
#ifndef ATTUNE_TOOLS_PAGES_H
#define ATTUNE_TOOLS_PAGES_H

#include <stdlib.h>
#include <sys/mman.h>

/* Exactly `bytes` bytes, uninitialised; NULL when out of memory. Free them by free(). */
static inline void *pages_alloc(size_t bytes) {
    enum { LINE = 64, HUGE = 2 << 20 };
    void *memory = NULL;
    if (posix_memalign(&memory, bytes < 2 * HUGE ? LINE : HUGE, bytes)) return NULL;
    if (bytes >= 2 * HUGE) madvise(memory, bytes / HUGE * HUGE, MADV_HUGEPAGE); /* may be refused */
    return memory;
}

#endif
