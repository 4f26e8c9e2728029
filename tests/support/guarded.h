/* Memory that ends at a page which faults. */
#ifndef ATTUNE_TESTS_GUARDED_H
#define ATTUNE_TESTS_GUARDED_H

#include <stddef.h>

typedef struct guarded {
    char *map, *data;
    size_t map_bytes;
} guarded;

/* `bytes` of zeros from `data` on. */
guarded guard(size_t bytes);
void unguard(guarded *g);

#endif
