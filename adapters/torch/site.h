/* Plans by the kind of call: everything that is compiled in. Sizes and outer strides vary from call to call. */
#ifndef ATTUNE_TORCH_SITE_H
#define ATTUNE_TORCH_SITE_H

#include "adapter.h"
#include "common/list.h"

typedef struct site site;

/* A kind of call is its key, which is compared as bytes: begin with all zeros. */
enum { SITE_BUCKETS = 256, SITE_KEY_WORDS = 8 };

/* The sites of all keys of one type, in static storage. */
typedef struct site_table {
    size_t key_bytes;                                           /* whole words */
    void (*describe)(const void *key, attune_problem *problem); /* sets what differs from ATTUNE_PROBLEM_INIT */
    common_list buckets[SITE_BUCKETS];
    atomic_uint num_sites;
} site_table;

/* The site of a kind of call, made on the first call; NULL if there are too many or memory is short. Thread-safe, and
 * without a lock. */
site *site_find(site_table *table, const void *key);

const attune_problem *site_problem(const site *s);

/* Arguments with everything that does not vary set. */
void site_arguments(const site *s, attune_arguments *arguments);

/* Runs the call on PyTorch's threads. After a failure *message is the reason, valid as attune_last_message() is. */
attune_status site_run(site *s, const attune_arguments *arguments, const char **message);

#endif
