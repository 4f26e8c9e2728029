/* The memory cache by itself, with made-up objects: single flight, eviction, references, aliases. */
#include "cache/memory_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct object {
    at_cache_node node;
    uint32_t number;
} object;

static atomic_int made, destroyed, evicted;

static void destroy(at_cache_node *node) {
    atomic_fetch_add(&destroyed, 1);
    memset(node, 0xdd, sizeof *node);
    free(node);
}

static void note_eviction(const at_cache_node *node) {
    assert_int_not_equal(atomic_load(&node->refs), 0); /* it is still there */
    atomic_fetch_add(&evicted, 1);
}

static at_key key_of(uint32_t number) {
    at_key key = {.high = number * UINT64_C(0x9e3779b97f4a7c15), .low = number, .size = 4};
    memcpy(key.bytes, &number, 4);
    return key;
}

static attune_problem problem_of(int64_t number) {
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    problem.seq_q = number;
    return problem;
}

typedef struct maker {
    int sleep_us;
    attune_status failure;
} maker;

static attune_status make(void *user, const at_key *key, at_cache_node **node, at_error *err) {
    const maker *m = user;
    atomic_fetch_add(&made, 1);
    if (m->sleep_us) usleep((unsigned)m->sleep_us);
    if (m->failure) return at_fail(err, m->failure, "key %u cannot be made", key->bytes[0]);
    object *o = calloc(1, sizeof *o);
    atomic_init(&o->node.refs, 1);
    o->node.key = *key;
    o->node.bytes = 100;
    memcpy(&o->number, key->bytes, 4);
    *node = &o->node;
    return ATTUNE_OK;
}

static void start(at_memory_cache *cache, uint64_t capacity) {
    atomic_store(&made, 0);
    atomic_store(&destroyed, 0);
    atomic_store(&evicted, 0);
    assert_int_equal(at_memory_cache_init(cache, at_default_allocator(), capacity, destroy, note_eviction, NULL),
                     ATTUNE_OK);
}

static object *get(at_memory_cache *cache, uint32_t number, maker *m) {
    at_key key = key_of(number);
    at_cache_node *node = NULL;
    at_error err = {0};
    return at_memory_cache_get(cache, &key, make, m, &node, &err) == ATTUNE_OK ? (object *)node : NULL;
}

static void alias(at_memory_cache *cache, object *o, int64_t number) {
    const attune_problem problem = problem_of(number);
    at_memory_cache_alias(cache, &o->node, &problem, at_raw_key_hash(&problem));
}

static object *find(at_memory_cache *cache, int64_t number) {
    const attune_problem problem = problem_of(number);
    return (object *)at_memory_cache_find(cache, &problem, at_raw_key_hash(&problem));
}

static void hits_share_one_object(void **state) {
    (void)state;
    at_memory_cache cache;
    maker m = {0};
    start(&cache, 1000);
    object *a = get(&cache, 1, &m), *b = get(&cache, 1, &m), *c = get(&cache, 2, &m);
    assert_ptr_equal(a, b);
    assert_ptr_not_equal(a, c);
    assert_int_equal(atomic_load(&made), 2);
    assert_null(find(&cache, 7));
    alias(&cache, a, 7);
    object *d = find(&cache, 7);
    assert_ptr_equal(d, a);
    assert_int_equal(at_memory_cache_count(&cache).hits, 2);
    at_cache_node_release(&cache, &a->node);
    at_cache_node_release(&cache, &b->node);
    at_cache_node_release(&cache, &c->node);
    at_cache_node_release(&cache, &d->node);
    assert_int_equal(atomic_load(&destroyed), 0);
    at_memory_cache_free(&cache);
    assert_int_equal(atomic_load(&destroyed), 2);
}

static void eviction_spares_what_is_used(void **state) {
    (void)state;
    at_memory_cache cache;
    maker m = {0};
    start(&cache, 1000);
    object *held = get(&cache, 0, &m);
    alias(&cache, held, 0);
    for (uint32_t i = 1; i <= 100; i++) {
        object *o = get(&cache, i, &m);
        alias(&cache, o, i);
        at_cache_node_release(&cache, &o->node);
        assert_true(at_memory_cache_count(&cache).bytes <= 1000);
    }
    assert_int_equal(held->number, 0);
    object *again = find(&cache, 0);
    assert_ptr_equal(again, held); /* others could go, so this one did not have to */
    assert_int_equal(at_memory_cache_count(&cache).evictions, 91);
    assert_int_equal(evicted, 91);
    assert_int_equal(atomic_load(&destroyed), 91);
    int found = 0;
    for (uint32_t i = 1; i <= 100; i++) {
        object *o = find(&cache, i);
        if (!o) continue;
        assert_int_equal(o->number, i);
        at_cache_node_release(&cache, &o->node);
        found++;
    }
    assert_int_equal(found, 9);
    at_memory_cache_drop(&cache);
    assert_null(find(&cache, 0));
    assert_int_equal(held->number, 0); /* dropped, but still ours */
    at_cache_node_release(&cache, &again->node);
    at_cache_node_release(&cache, &held->node);
    assert_int_equal(atomic_load(&destroyed), 101);
    at_memory_cache_free(&cache);
}

/* When everything is in use the bound still holds for the table; the objects live until released. */
static void eviction_of_objects_in_use(void **state) {
    (void)state;
    at_memory_cache cache;
    maker m = {0};
    object *held[50];
    start(&cache, 1000);
    for (uint32_t i = 0; i < 50; i++) held[i] = get(&cache, i, &m);
    assert_true(at_memory_cache_count(&cache).bytes <= 1000);
    assert_int_equal(atomic_load(&destroyed), 0);
    for (uint32_t i = 0; i < 50; i++) {
        assert_int_equal(held[i]->number, i);
        at_cache_node_release(&cache, &held[i]->node);
    }
    at_memory_cache_free(&cache);
    assert_int_equal(atomic_load(&destroyed), 50);
}

static void aliases_are_bounded(void **state) {
    (void)state;
    at_memory_cache cache;
    maker m = {0};
    start(&cache, 1000);
    object *o = get(&cache, 1, &m);
    for (int64_t i = 0; i < 1000; i++) {
        alias(&cache, o, i);
        alias(&cache, o, i); /* a second time changes nothing */
    }
    int found = 0;
    for (int64_t i = 0; i < 1000; i++) {
        object *hit = find(&cache, i);
        if (!hit) continue;
        at_cache_node_release(&cache, &hit->node);
        found++;
        assert_true(i >= 1000 - AT_CACHE_MAX_ALIASES);
    }
    assert_int_equal(found, AT_CACHE_MAX_ALIASES);
    at_cache_node_release(&cache, &o->node);
    at_memory_cache_free(&cache);
}

/* ---- Threads ---- */

enum { THREADS = 32, KEYS = 1000 };

typedef struct worker {
    at_memory_cache *cache;
    maker *m;
    uint64_t seed;
    int failures;
} worker;

static uint64_t next_random(uint64_t *seed) {
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return *seed >> 33;
}

static void *ask_for_all(void *argument) {
    worker *w = argument;
    const uint32_t first = (uint32_t)next_random(&w->seed) % 50;
    for (uint32_t i = 0; i < KEYS; i++) {
        const uint32_t number = (first + i) % KEYS;
        object *o = get(w->cache, number, w->m);
        if (!o || o->number != number) w->failures++;
        if (o) at_cache_node_release(w->cache, &o->node);
    }
    return NULL;
}

static void *hit_and_miss(void *argument) {
    worker *w = argument;
    for (int i = 0; i < 3000; i++) {
        const uint32_t number = (uint32_t)next_random(&w->seed) % 40;
        object *o = find(w->cache, number);
        if (!o) {
            o = get(w->cache, number, w->m);
            if (o) alias(w->cache, o, number);
        }
        if (!o || o->number != number) w->failures++;
        if (o) at_cache_node_release(w->cache, &o->node);
        if (i % 1000 == 999) at_memory_cache_drop(w->cache);
    }
    return NULL;
}

static void *ask_once(void *argument) {
    worker *w = argument;
    w->failures = !get(w->cache, 5, w->m);
    return NULL;
}

static int run_threads(at_memory_cache *cache, maker *m, void *(*body)(void *)) {
    pthread_t threads[THREADS];
    worker workers[THREADS];
    int failures = 0;
    for (int t = 0; t < THREADS; t++) {
        workers[t] = (worker){cache, m, (uint64_t)t + 1, 0};
        assert_int_equal(pthread_create(&threads[t], NULL, body, &workers[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(threads[t], NULL);
        failures += workers[t].failures;
    }
    return failures;
}

static void each_key_is_made_once(void **state) {
    (void)state;
    at_memory_cache cache;
    maker slow = {.sleep_us = 500};
    start(&cache, UINT64_MAX);
    assert_int_equal(run_threads(&cache, &slow, ask_for_all), 0);
    assert_int_equal(atomic_load(&made), KEYS);
    assert_int_equal(at_memory_cache_count(&cache).nodes, KEYS);
    at_memory_cache_free(&cache);
    assert_int_equal(atomic_load(&destroyed), KEYS);
}

static void eviction_under_threads(void **state) {
    (void)state;
    at_memory_cache cache;
    maker m = {0};
    start(&cache, 1000); /* ten of the forty */
    assert_int_equal(run_threads(&cache, &m, hit_and_miss), 0);
    at_memory_cache_free(&cache);
    assert_int_equal(atomic_load(&destroyed), atomic_load(&made));
}

static void failure_reaches_all_and_is_forgotten(void **state) {
    (void)state;
    at_memory_cache cache;
    maker broken = {.sleep_us = 100000, .failure = ATTUNE_CODEGEN_FAILED}, fine = {0};
    start(&cache, 1000);
    assert_int_equal(run_threads(&cache, &broken, ask_once), THREADS);
    assert_true(atomic_load(&made) < THREADS); /* most waited for another's failure */
    at_key key = key_of(5);
    at_cache_node *node;
    at_error err = {0};
    broken.sleep_us = 0;
    assert_int_equal(at_memory_cache_get(&cache, &key, make, &broken, &node, &err), ATTUNE_CODEGEN_FAILED);
    assert_string_equal(err.message, "key 5 cannot be made");
    object *o = get(&cache, 5, &fine);
    assert_non_null(o);
    at_cache_node_release(&cache, &o->node);
    at_memory_cache_free(&cache);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hits_share_one_object),
        cmocka_unit_test(eviction_spares_what_is_used),
        cmocka_unit_test(eviction_of_objects_in_use),
        cmocka_unit_test(aliases_are_bounded),
        cmocka_unit_test(each_key_is_made_once),
        cmocka_unit_test(eviction_under_threads),
        cmocka_unit_test(failure_reaches_all_and_is_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
