#include "list.h"

#include <stddef.h>

static common_link *look(common_link *e, common_is_fn *is, const void *key) {
    while (e && !is(e, key)) e = e->next;
    return e;
}

common_link *common_find(common_list *list, common_is_fn *is, const void *key) {
    return look(atomic_load_explicit(list, memory_order_acquire), is, key);
}

common_link *common_add(common_list *list, common_link *entry, common_is_fn *is, const void *key) {
    common_link *first = atomic_load_explicit(list, memory_order_acquire);
    do {
        common_link *const other = look(first, is, key);
        if (other) return other;
        entry->next = first;
    } while (!atomic_compare_exchange_weak_explicit(list, &first, entry, memory_order_acq_rel, memory_order_acquire));
    return entry;
}
