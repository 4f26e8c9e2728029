/* A linked list of static counters: one that counts for the first time puts itself in front. */
#include "counters.h"

#include <stdbool.h>
#include <stdio.h>

/* Counters are never removed from the list. It has no lock, so it is consistent in a child of fork() at any time. */
static adapter_counter *counters;

void adapter_count(adapter_counter *counter) {
    __atomic_fetch_add(&counter->count, 1, __ATOMIC_RELAXED);
    if (__atomic_load_n(&counter->is_listed, __ATOMIC_RELAXED)) return;
    if (__atomic_exchange_n(&counter->is_listed, 1, __ATOMIC_RELAXED)) return;
    counter->next = __atomic_load_n(&counters, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&counters, &counter->next, counter, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    }
}

uint64_t adapter_counted(const adapter_counter *counter) { return __atomic_load_n(&counter->count, __ATOMIC_RELAXED); }

size_t adapter_counters(char *text, size_t capacity) {
    size_t length = 0;
    if (capacity) *text = 0;
    for (const adapter_counter *c = __atomic_load_n(&counters, __ATOMIC_ACQUIRE); c; c = c->next) {
        const size_t left = length < capacity ? capacity - length : 0;
        length += (size_t)snprintf(left ? text + length : NULL, left, "%s %llu\n", c->name,
                                   (unsigned long long)adapter_counted(c));
    }
    return length;
}
