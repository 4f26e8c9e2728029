/* Counters of events, by name. */
#ifndef ATTUNE_COMMON_COUNTERS_H
#define ATTUNE_COMMON_COUNTERS_H

#include <stddef.h>
#include <stdint.h>

/* In static storage; incremented atomically. */
typedef struct adapter_counter {
    const char *name;
    uint64_t count;
    struct adapter_counter *next;
    int is_listed;
} adapter_counter;

void adapter_count(adapter_counter *counter);
#define ADAPTER_COUNT(text)                                                                                            \
    do {                                                                                                               \
        static adapter_counter counter_ = {.name = (text)};                                                            \
        adapter_count(&counter_);                                                                                      \
    } while (0)

uint64_t adapter_counted(const adapter_counter *counter);

/* All counters that are not 0, as lines "name count". Returns the length without the NUL, as snprintf does. */
size_t adapter_counters(char *text, size_t capacity);

#endif
