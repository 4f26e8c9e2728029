/* The memory cache: kernels by their full key, and by the raw problem as the caller wrote it.
 *
 * Two levels. The first maps raw keys (aliases of a kernel, a few for each) in shards with a lock of a few
 * instructions: this is the whole path of a hit. The second maps full keys under one mutex and makes sure that threads
 * which miss on the same key wait for the one that compiles ("single flight").
 *
 * References: the table holds one reference to each node. A new reference is only taken under the lock that removal
 * takes too, or from an existing one, so a count never rises from zero. A node that was evicted lives on until its last
 * user releases it. */
#ifndef ATTUNE_CACHE_MEMORY_CACHE_H
#define ATTUNE_CACHE_MEMORY_CACHE_H

#include "base/memory.h"
#include "cache/key.h"

#include <pthread.h>
#include <stdatomic.h>

enum { AT_CACHE_SHARDS = 32, AT_CACHE_MAX_ALIASES = 8 };

typedef struct at_cache_alias at_cache_alias;
typedef struct at_flight at_flight;

/* The head of a cached object. The creator sets key and bytes, and refs to 1 for the cache's caller. */
typedef struct at_cache_node {
    atomic_uint refs;
    atomic_bool used; /* since the clock's hand last passed */
    at_key key;
    uint64_t bytes;              /* that count towards the capacity */
    int64_t made_again_at;       /* a fallback until this at_nanoseconds(), when it is made again; 0: no fallback */
    struct at_cache_node *chain; /* of its hash bucket */
    struct at_cache_node *next, *previous; /* of the clock; NULL when in no table */
    at_cache_alias *aliases;
    uint32_t num_aliases;
} at_cache_node;

typedef struct at_cache_shard {
    atomic_flag lock;
    uint32_t num_buckets, count;
    at_cache_alias **buckets;
    uint64_t hits;
} __attribute__((aligned(64))) at_cache_shard;

typedef struct at_memory_cache {
    const attune_allocator *allocator;
    void (*destroy)(at_cache_node *node);       /* called without any lock, as is: */
    void (*evicted)(const at_cache_node *node); /* it left to make room */
    uint64_t capacity;

    at_cache_shard shards[AT_CACHE_SHARDS];

    pthread_mutex_t mutex; /* guards all below */
    at_cache_node **buckets;
    uint32_t num_buckets;
    at_cache_node *hand;
    at_flight *flights;
    uint64_t count, bytes, evictions, hits;
} at_memory_cache;

attune_status at_memory_cache_init(at_memory_cache *cache, const attune_allocator *allocator, uint64_t capacity,
                                   void (*destroy)(at_cache_node *node), void (*evicted)(const at_cache_node *node),
                                   at_error *err);
/* Drops everything; no call may be under way. */
void at_memory_cache_free(at_memory_cache *cache);

/* First level: a node with a reference for the caller, or NULL. One whose time is over does not count. */
at_cache_node *at_memory_cache_find(at_memory_cache *cache, const attune_problem *raw, uint64_t hash);

/* Remembers that `raw` means this node. Does nothing when memory is short or the node is no longer in the table. */
void at_memory_cache_alias(at_memory_cache *cache, at_cache_node *node, const attune_problem *raw, uint64_t hash);

/* Makes the object of a key: fills *node with one reference, or fails. */
typedef attune_status at_cache_make_fn(void *user, const at_key *key, at_cache_node **node, at_error *err);

/* Second level: the node of a key with a reference for the caller; made by `make` if need be, by one thread only. A
 * failure goes to all threads that waited for it and is not remembered. A node whose time is over is made again. */
attune_status at_memory_cache_get(at_memory_cache *cache, const at_key *key, at_cache_make_fn *make, void *user,
                                  at_cache_node **node, at_error *err);

/* The node of a key with a reference for the caller, or NULL. Makes nothing, waits for nothing, and does not count as a
 * use. */
at_cache_node *at_memory_cache_peek(at_memory_cache *cache, const at_key *key);

void at_cache_node_release(at_memory_cache *cache, at_cache_node *node);

/* Takes the node of a key out of the table, if there is one. */
void at_memory_cache_remove(at_memory_cache *cache, const at_key *key);

/* Takes every node out of the table. */
void at_memory_cache_drop(at_memory_cache *cache);

/* Around fork(): takes all locks; gives them back. In the child only the thread that forked can be making a kernel, and
 * no thread waits for it. */
void at_memory_cache_before_fork(at_memory_cache *cache);
void at_memory_cache_after_fork(at_memory_cache *cache, bool is_child);

typedef struct at_memory_cache_counts {
    uint64_t hits, evictions, nodes, bytes;
} at_memory_cache_counts;
at_memory_cache_counts at_memory_cache_count(at_memory_cache *cache);

#endif
