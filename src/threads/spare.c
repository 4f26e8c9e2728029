/* Sixteen slots, chosen by a hash of the thread pointer, hold one workspace each; taking and giving is one atomic
 * exchange. */
#include "threads/spare.h"

/* Lies before the memory, and has the same alignment. */
typedef struct header {
    _Alignas(AT_SPARE_ALIGN) size_t bytes; /* of the memory after it */
} header;

/* The thread pointer differs between threads; its lower bits are the same in all of them. */
static at_spare_slot *slot_of_thread(at_spares *spares) {
    const uint64_t thread = (uint64_t)(uintptr_t)__builtin_thread_pointer();
    return &spares->slots[(thread * UINT64_C(0x9e3779b97f4a7c15)) >> 60];
}
_Static_assert(AT_SPARE_SLOTS == 16, "the upper 4 bits number the slots");

void at_spares_init(at_spares *spares, const attune_allocator *allocator) {
    spares->allocator = allocator;
    for (int i = 0; i < AT_SPARE_SLOTS; i++) atomic_init(&spares->slots[i].block, NULL);
}

void at_spares_free(at_spares *spares) {
    for (int i = 0; i < AT_SPARE_SLOTS; i++) at_free(spares->allocator, atomic_load(&spares->slots[i].block));
}

void *at_spares_take(at_spares *spares, size_t bytes) {
    header *block = atomic_exchange_explicit(&slot_of_thread(spares)->block, NULL, memory_order_acquire);
    if (block && block->bytes >= bytes) return block + 1;
    at_free(spares->allocator, block);
    size_t total;
    if (!at_add_size(bytes, sizeof *block, &total)) return NULL;
    block = at_alloc_aligned(spares->allocator, total, AT_SPARE_ALIGN);
    if (!block) return NULL;
    block->bytes = bytes;
    return block + 1;
}

void at_spares_give(at_spares *spares, void *memory) {
    header *block = (header *)memory - 1;
    if (block->bytes <= AT_SPARE_BYTES)
        block = atomic_exchange_explicit(&slot_of_thread(spares)->block, block, memory_order_acq_rel);
    at_free(spares->allocator, block);
}
