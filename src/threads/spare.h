/* Workspaces of finished calls, kept for the next call of the same thread. A call of a few microseconds should not pay
 * for an allocation, and its scratch should be in the cache. */
#ifndef ATTUNE_THREADS_SPARE_H
#define ATTUNE_THREADS_SPARE_H

#include "base/memory.h"

#include <stdatomic.h>

/* At most AT_SPARE_SLOTS blocks of up to AT_SPARE_BYTES are kept. Larger workspaces belong to long calls. Under
 * AddressSanitizer each call gets a fresh one, so that writes beyond it are found. */
#ifdef __SANITIZE_ADDRESS__
enum { AT_SPARE_BYTES = 0 };
#else
enum { AT_SPARE_BYTES = 512 * 1024 };
#endif
enum { AT_SPARE_SLOTS = 16, AT_SPARE_ALIGN = 64 };

typedef struct at_spare_slot {
    _Alignas(64) _Atomic(void *) block; /* usually one thread uses it */
} at_spare_slot;

typedef struct at_spares {
    const attune_allocator *allocator;
    at_spare_slot slots[AT_SPARE_SLOTS];
} at_spares;

void at_spares_init(at_spares *spares, const attune_allocator *allocator);
void at_spares_free(at_spares *spares);

/* At least `bytes` of memory, aligned to AT_SPARE_ALIGN and not zeroed; NULL if the allocator refuses. Any thread may
 * give it back. */
void *at_spares_take(at_spares *spares, size_t bytes);
void at_spares_give(at_spares *spares, void *memory);

#endif
