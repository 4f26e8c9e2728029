/* A hit by the raw problem takes only the lock of a shard. All else is under the mutex, except for making a kernel:
 * that is a flight, which threads with the same key wait for. Nodes that were taken out are chained and released
 * after the mutex. */
#include "cache/memory_cache.h"

#include "host/clock.h"
#include "threads/background.h"
#include "threads/job.h"

#include <sched.h>
#include <string.h>

enum { FIRST_BUCKETS = 16 };

struct at_cache_alias {
    at_cache_alias *chain; /* of its bucket; guarded by the shard's lock */
    at_cache_alias *next;  /* of the same node; guarded by the cache's mutex */
    at_cache_node *node;
    uint64_t hash;
    attune_problem raw;
};

/* A key that one thread is making while others wait. Lives until the last of them has looked. */
struct at_flight {
    at_flight *next;
    const at_key *key; /* the maker's, who outlives the flight's time in the list */
    pthread_t maker;
    pthread_cond_t landed;
    uint32_t users;
    bool done;
    attune_status status;
    at_cache_node *node; /* borrowed under the mutex: each waiter takes its own reference from it */
    at_error err;
};

/* ---- First level ---- */

static void shard_lock(at_cache_shard *shard) {
    for (int spins = 0; atomic_flag_test_and_set_explicit(&shard->lock, memory_order_acquire); spins++)
        if (spins >= 64) sched_yield();
}

static void shard_unlock(at_cache_shard *shard) { atomic_flag_clear_explicit(&shard->lock, memory_order_release); }

static at_cache_shard *shard_of(at_memory_cache *cache, uint64_t hash) {
    return &cache->shards[hash % AT_CACHE_SHARDS];
}

static at_cache_alias **bucket_of(const at_cache_shard *shard, uint64_t hash) {
    return &shard->buckets[hash / AT_CACHE_SHARDS & (shard->num_buckets - 1)];
}

static void mark_used(at_cache_node *node) {
    /* Reading first keeps the line shared between cores that hit the same kernel. */
    if (!atomic_load_explicit(&node->used, memory_order_relaxed))
        atomic_store_explicit(&node->used, true, memory_order_relaxed);
}

/* Few nodes have a time, so hardly any look at the clock. */
static bool is_over(const at_cache_node *node) {
    return __builtin_expect(node->made_again_at != 0, 0) && at_nanoseconds() >= node->made_again_at;
}

static void add_reference(at_cache_node *node) { atomic_fetch_add_explicit(&node->refs, 1, memory_order_relaxed); }

static at_cache_alias *shard_search(const at_cache_shard *shard, const attune_problem *raw, uint64_t hash) {
    if (!shard->num_buckets) return NULL;
    for (at_cache_alias *alias = *bucket_of(shard, hash); alias; alias = alias->chain)
        if (alias->hash == hash && at_raw_key_equal(&alias->raw, raw)) return alias;
    return NULL;
}

at_cache_node *at_memory_cache_find(at_memory_cache *cache, const attune_problem *raw, uint64_t hash) {
    at_cache_shard *shard = shard_of(cache, hash);
    at_cache_node *node = NULL;
    shard_lock(shard);
    const at_cache_alias *alias = shard_search(shard, raw, hash);
    if (alias && !is_over(alias->node)) {
        node = alias->node;
        add_reference(node);
        mark_used(node);
        shard->hits++;
    }
    shard_unlock(shard);
    return node;
}

/* Doubles the buckets of a shard once chains grow; under the cache's mutex, so only one thread does it. The new array
 * is allocated and the old one freed outside the shard's lock. */
static void shard_grow(at_memory_cache *cache, at_cache_shard *shard) {
    if (shard->num_buckets && shard->count < 2 * shard->num_buckets) return;
    const uint32_t num = shard->num_buckets ? shard->num_buckets * 2 : FIRST_BUCKETS;
    at_cache_alias **buckets = at_alloc(cache->allocator, num * sizeof *buckets);
    if (!buckets) return;
    shard_lock(shard);
    at_cache_alias **old = shard->buckets;
    const uint32_t num_old = shard->num_buckets;
    shard->buckets = buckets;
    shard->num_buckets = num;
    for (uint32_t i = 0; i < num_old; i++) {
        for (at_cache_alias *alias = old[i], *next; alias; alias = next) {
            next = alias->chain;
            at_cache_alias **bucket = bucket_of(shard, alias->hash);
            alias->chain = *bucket;
            *bucket = alias;
        }
    }
    shard_unlock(shard);
    at_free(cache->allocator, old);
}

/* Takes the alias out of its shard. From here on no thread can reach the node through it. */
static void alias_remove(at_memory_cache *cache, at_cache_alias *alias) {
    at_cache_shard *shard = shard_of(cache, alias->hash);
    shard_lock(shard);
    at_cache_alias **link = bucket_of(shard, alias->hash);
    while (*link != alias) link = &(*link)->chain;
    *link = alias->chain;
    shard->count--;
    shard_unlock(shard);
    at_free(cache->allocator, alias);
}

/* The oldest alias gives way: an engine whose batch size or strides keep changing must not grow a list for ever. */
static void drop_oldest_alias(at_memory_cache *cache, at_cache_node *node) {
    at_cache_alias **link = &node->aliases;
    while ((*link)->next) link = &(*link)->next;
    at_cache_alias *oldest = *link;
    *link = NULL;
    node->num_aliases--;
    alias_remove(cache, oldest);
}

void at_memory_cache_alias(at_memory_cache *cache, at_cache_node *node, const attune_problem *raw, uint64_t hash) {
    at_cache_alias *alias = at_alloc(cache->allocator, sizeof *alias);
    if (!alias) return;
    *alias = (at_cache_alias){.node = node, .hash = hash, .raw = *raw};
    at_cache_shard *shard = shard_of(cache, hash);
    pthread_mutex_lock(&cache->mutex);
    shard_grow(cache, shard);
    bool added = false;
    if (node->next && shard->num_buckets) {
        shard_lock(shard);
        if (!shard_search(shard, raw, hash)) {
            at_cache_alias **bucket = bucket_of(shard, hash);
            alias->chain = *bucket;
            *bucket = alias;
            shard->count++;
            added = true;
        }
        shard_unlock(shard);
    }
    if (added) {
        alias->next = node->aliases;
        node->aliases = alias;
        if (++node->num_aliases > AT_CACHE_MAX_ALIASES) drop_oldest_alias(cache, node);
    }
    pthread_mutex_unlock(&cache->mutex);
    if (!added) at_free(cache->allocator, alias);
}

/* ---- Second level; all under the mutex ---- */

static at_cache_node **node_bucket(const at_memory_cache *cache, const at_key *key) {
    return &cache->buckets[key->low & (cache->num_buckets - 1)];
}

static at_cache_node *node_search(const at_memory_cache *cache, const at_key *key) {
    for (at_cache_node *node = *node_bucket(cache, key); node; node = node->chain)
        if (at_key_equal(&node->key, key)) return node;
    return NULL;
}

static void nodes_grow(at_memory_cache *cache) {
    if (cache->count < cache->num_buckets) return;
    const uint32_t num_old = cache->num_buckets;
    at_cache_node **old = cache->buckets;
    at_cache_node **buckets = at_alloc(cache->allocator, 2 * num_old * sizeof *buckets);
    if (!buckets) return;
    cache->buckets = buckets;
    cache->num_buckets = 2 * num_old;
    for (uint32_t i = 0; i < num_old; i++) {
        for (at_cache_node *node = old[i], *next; node; node = next) {
            next = node->chain;
            at_cache_node **bucket = node_bucket(cache, &node->key);
            node->chain = *bucket;
            *bucket = node;
        }
    }
    at_free(cache->allocator, old);
}

static void node_insert(at_memory_cache *cache, at_cache_node *node) {
    nodes_grow(cache);
    at_cache_node **bucket = node_bucket(cache, &node->key);
    node->chain = *bucket;
    *bucket = node;
    if (cache->hand) { /* just after the hand has passed: the last one it comes to */
        node->next = cache->hand;
        node->previous = cache->hand->previous;
        node->previous->next = node->next->previous = node;
    } else {
        cache->hand = node->next = node->previous = node;
    }
    mark_used(node);
    cache->count++;
    cache->bytes += node->bytes;
    add_reference(node);
}

/* Takes a node out of both levels. The table's reference goes to the caller, who drops it without the lock. */
static void node_remove(at_memory_cache *cache, at_cache_node *node) {
    at_cache_node **link = node_bucket(cache, &node->key);
    while (*link != node) link = &(*link)->chain;
    *link = node->chain;
    if (cache->hand == node) cache->hand = node->next == node ? NULL : node->next;
    node->next->previous = node->previous;
    node->previous->next = node->next;
    node->next = node->previous = NULL;
    for (at_cache_alias *alias = node->aliases, *next; alias; alias = next) {
        next = alias->next;
        alias_remove(cache, alias);
    }
    node->aliases = NULL;
    node->num_aliases = 0;
    cache->count--;
    cache->bytes -= node->bytes;
}

/* Evicts until the code fits; the victims come back chained. A kernel in use frees no memory by leaving, so those go
 * only when two turns of the hand found nothing better. `keep` is the one just inserted. */
static at_cache_node *evict(at_memory_cache *cache, const at_cache_node *keep) {
    at_cache_node *victims = NULL;
    uint64_t steps = 0;
    while (cache->bytes > cache->capacity && cache->count > 1) {
        at_cache_node *node = cache->hand;
        cache->hand = node->next;
        const bool spare = atomic_exchange_explicit(&node->used, false, memory_order_relaxed) ||
                           atomic_load_explicit(&node->refs, memory_order_relaxed) > 1;
        if (node == keep || (spare && steps++ < 2 * cache->count)) continue;
        node_remove(cache, node);
        cache->evictions++;
        node->chain = victims;
        victims = node;
    }
    return victims;
}

static void release_chain(at_memory_cache *cache, at_cache_node *nodes) {
    for (at_cache_node *next; nodes; nodes = next) {
        next = nodes->chain;
        at_cache_node_release(cache, nodes);
    }
}

/* ---- Single flight ---- */

static at_flight *flight_search(at_memory_cache *cache, const at_key *key) {
    for (at_flight *flight = cache->flights; flight; flight = flight->next)
        if (at_key_equal(flight->key, key)) return flight;
    return NULL;
}

/* The last user frees the flight, and gets the flight's own reference to release without the lock. */
static at_cache_node *flight_leave(at_memory_cache *cache, at_flight *flight) {
    if (--flight->users) return NULL;
    at_cache_node *node = flight->node;
    pthread_cond_destroy(&flight->landed);
    at_free(cache->allocator, flight);
    return node;
}

/* Called with the mutex held, and returns with it; gives it up while waiting. */
static at_cache_node *flight_wait(at_memory_cache *cache, at_flight *flight, at_cache_node **node,
                                  attune_status *status, at_error *err) {
    flight->users++;
    while (!flight->done && !at_background_is_abandoned()) at_background_pause(&flight->landed, &cache->mutex);
    *status = flight->status;
    if (!flight->done) {
        *status = at_background_fail(err);
    } else if (flight->status == ATTUNE_OK) {
        *node = flight->node;
        add_reference(*node);
    } else {
        at_fail(err, flight->status, "%s", flight->err.message);
    }
    return flight_leave(cache, flight);
}

static void flight_land(at_memory_cache *cache, at_flight *flight) {
    at_flight **link = &cache->flights;
    while (*link != flight) link = &(*link)->next;
    *link = flight->next;
    flight->done = true;
    pthread_cond_broadcast(&flight->landed);
}

/* Makes the node without the lock, so others may begin to wait. The flight holds a reference until the last waiter has
 * its own, so that an eviction meanwhile cannot free the node. */
static attune_status flight_make(at_memory_cache *cache, at_flight *flight, at_cache_make_fn *make, void *user,
                                 at_cache_node **node, at_error *err) {
    at_cache_node *made = NULL, *victims = NULL;
    const attune_status status = make(user, flight->key, &made, &flight->err);
    pthread_mutex_lock(&cache->mutex);
    if (status == ATTUNE_OK) {
        node_insert(cache, made);
        victims = evict(cache, made);
        add_reference(made);
    } else {
        at_fail(err, status, "%s", flight->err.message);
    }
    flight->status = status;
    flight->node = made;
    flight_land(cache, flight);
    at_cache_node *spare = flight_leave(cache, flight);
    pthread_mutex_unlock(&cache->mutex);
    if (spare) at_cache_node_release(cache, spare);
    for (const at_cache_node *victim = victims; victim; victim = victim->chain) cache->evicted(victim);
    release_chain(cache, victims);
    *node = made;
    return status;
}

/* Removes a node whose time is over from both levels, and gives it to the caller, as node_remove does. No other thread
 * can be making it: that thread's flight would have removed it. */
static at_cache_node *take_stale(at_memory_cache *cache, const at_key *key) {
    at_cache_node *const node = node_search(cache, key);
    if (!node || !is_over(node)) return NULL;
    node_remove(cache, node);
    return node;
}

/* *is_other: the failure is that of another thread. */
static attune_status get(at_memory_cache *cache, const at_key *key, at_cache_make_fn *make, void *user,
                         at_cache_node **node, bool *is_other, at_error *err) {
    *node = NULL;
    *is_other = false;
    at_flight *fresh = at_alloc(cache->allocator, sizeof *fresh);
    if (!fresh) return at_fail_memory(err, sizeof *fresh);
    pthread_mutex_lock(&cache->mutex);
    at_cache_node *const stale = take_stale(cache, key), *const found = node_search(cache, key);
    at_flight *flight = found ? NULL : flight_search(cache, key);
    attune_status status = ATTUNE_OK;
    at_cache_node *spare = NULL;
    if (found) {
        add_reference(found);
        mark_used(found);
        cache->hits++;
        *node = found;
    } else if (flight && pthread_equal(flight->maker, pthread_self())) {
        status = at_fail(err, ATTUNE_INVALID_ARGUMENT, "a callback needs the kernel that is being made");
    } else if (flight) {
        spare = flight_wait(cache, flight, node, &status, err);
        *is_other = true;
    } else {
        at_condition_init(&fresh->landed);
        fresh->key = key;
        fresh->maker = pthread_self();
        fresh->users = 1;
        fresh->next = cache->flights;
        cache->flights = fresh;
        pthread_mutex_unlock(&cache->mutex);
        if (stale) at_cache_node_release(cache, stale);
        return flight_make(cache, fresh, make, user, node, err);
    }
    pthread_mutex_unlock(&cache->mutex);
    if (spare) at_cache_node_release(cache, spare);
    at_free(cache->allocator, fresh);
    return status;
}

/* A job that was abandoned leaves its kernel to those who wait for it. */
attune_status at_memory_cache_get(at_memory_cache *cache, const at_key *key, at_cache_make_fn *make, void *user,
                                  at_cache_node **node, at_error *err) {
    for (bool is_other;;) {
        const attune_status status = get(cache, key, make, user, node, &is_other, err);
        if (status != ATTUNE_CANCELLED || !is_other || at_background_is_abandoned()) return status;
        at_error_clear(err);
    }
}

at_cache_node *at_memory_cache_peek(at_memory_cache *cache, const at_key *key) {
    pthread_mutex_lock(&cache->mutex);
    at_cache_node *found = node_search(cache, key);
    if (found) add_reference(found);
    pthread_mutex_unlock(&cache->mutex);
    return found;
}

void at_cache_node_release(at_memory_cache *cache, at_cache_node *node) {
    if (atomic_fetch_sub_explicit(&node->refs, 1, memory_order_acq_rel) == 1) cache->destroy(node);
}

/* ---- Whole cache ---- */

attune_status at_memory_cache_init(at_memory_cache *cache, const attune_allocator *allocator, uint64_t capacity,
                                   void (*destroy)(at_cache_node *node), void (*evicted)(const at_cache_node *node),
                                   at_error *err) {
    memset(cache, 0, sizeof *cache);
    cache->allocator = allocator;
    cache->capacity = capacity;
    cache->destroy = destroy;
    cache->evicted = evicted;
    cache->num_buckets = FIRST_BUCKETS;
    cache->buckets = at_alloc(allocator, FIRST_BUCKETS * sizeof *cache->buckets);
    if (!cache->buckets) return at_fail_memory(err, FIRST_BUCKETS * sizeof *cache->buckets);
    for (int i = 0; i < AT_CACHE_SHARDS; i++) atomic_flag_clear(&cache->shards[i].lock);
    pthread_mutex_init(&cache->mutex, NULL);
    return ATTUNE_OK;
}

void at_memory_cache_remove(at_memory_cache *cache, const at_key *key) {
    pthread_mutex_lock(&cache->mutex);
    at_cache_node *const node = node_search(cache, key);
    if (node) node_remove(cache, node);
    pthread_mutex_unlock(&cache->mutex);
    if (node) at_cache_node_release(cache, node);
}

void at_memory_cache_drop(at_memory_cache *cache) {
    at_cache_node *dropped = NULL;
    pthread_mutex_lock(&cache->mutex);
    while (cache->hand) {
        at_cache_node *node = cache->hand;
        node_remove(cache, node);
        node->chain = dropped;
        dropped = node;
    }
    pthread_mutex_unlock(&cache->mutex);
    release_chain(cache, dropped);
}

void at_memory_cache_free(at_memory_cache *cache) {
    at_memory_cache_drop(cache);
    for (int i = 0; i < AT_CACHE_SHARDS; i++) at_free(cache->allocator, cache->shards[i].buckets);
    at_free(cache->allocator, cache->buckets);
    pthread_mutex_destroy(&cache->mutex);
}

at_memory_cache_counts at_memory_cache_count(at_memory_cache *cache) {
    pthread_mutex_lock(&cache->mutex);
    at_memory_cache_counts counts = {
        .hits = cache->hits, .evictions = cache->evictions, .nodes = cache->count, .bytes = cache->bytes};
    pthread_mutex_unlock(&cache->mutex);
    for (int i = 0; i < AT_CACHE_SHARDS; i++) {
        shard_lock(&cache->shards[i]);
        counts.hits += cache->shards[i].hits;
        shard_unlock(&cache->shards[i]);
    }
    return counts;
}

/* ---- fork ---- */

void at_memory_cache_before_fork(at_memory_cache *cache) {
    pthread_mutex_lock(&cache->mutex);
    for (int i = 0; i < AT_CACHE_SHARDS; i++) shard_lock(&cache->shards[i]);
}

/* Kernels that the parent's other threads were making will never be ready, and no thread may wait for them. */
static void forget_flights_of_others(at_memory_cache *cache) {
    at_flight **link = &cache->flights;
    while (*link) {
        at_flight *flight = *link;
        if (pthread_equal(flight->maker, pthread_self())) {
            flight->users = 1;
            at_condition_init(&flight->landed);
            link = &flight->next;
        } else {
            *link = flight->next;
            at_free(cache->allocator, flight);
        }
    }
}

void at_memory_cache_after_fork(at_memory_cache *cache, bool is_child) {
    for (int i = 0; i < AT_CACHE_SHARDS; i++) shard_unlock(&cache->shards[i]);
    if (is_child) forget_flights_of_others(cache);
    pthread_mutex_unlock(&cache->mutex);
}
