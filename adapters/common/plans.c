/* A hash table whose chains only grow in front, by compare-and-exchange: readers need no lock, and two threads that
 * add the same plan agree on the first. */
#include "plans.h"

#include "context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct plan_key {
    const void *bytes;
    size_t length;
    uint64_t hash;
    bool is_text;
} plan_key;

static uint64_t mix(uint64_t sum, uint64_t word) {
    sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
    return sum ^ sum >> 32;
}

/* Whole words first, as a memcpy of a length that is unknown when compiling would take most of the time. */
static uint64_t hash_of(const void *key, size_t length) {
    const char *bytes = key;
    uint64_t sum = 0, word;
    for (; length >= sizeof word; bytes += sizeof word, length -= sizeof word) {
        memcpy(&word, bytes, sizeof word);
        sum = mix(sum, word);
    }
    word = 0;
    memcpy(&word, bytes, length);
    return mix(sum, word);
}

typedef _Atomic(common_plan *) plan_list;

static common_plan *look(common_plan *p, const plan_key *key) {
    while (p && (p->hash != key->hash || p->length != key->length || memcmp(p->key, key->bytes, key->length)))
        p = p->next;
    return p;
}

/* Adds a plan with this key. If another thread has added one in the meantime, returns that one. */
static common_plan *add(plan_list *list, common_plan *p, const plan_key *key) {
    common_plan *first = atomic_load_explicit(list, memory_order_acquire);
    do {
        common_plan *const other = look(first, key);
        if (other) return other;
        p->next = first;
    } while (!atomic_compare_exchange_weak_explicit(list, &first, p, memory_order_acq_rel, memory_order_acquire));
    return p;
}

/* Does not change attune_last_message() if there is no plan. */
static void discard(common_plan *p) {
    if (p->plan) attune_plan_destroy(p->plan);
    free(p);
}

static bool is_refusal(attune_status status) {
    return status == ATTUNE_UNSUPPORTED || status == ATTUNE_INVALID_PROBLEM || status == ATTUNE_INVALID_ARGUMENT;
}

static attune_status describe(const common_plans *all, const plan_key *key, common_plan *p) {
    const attune_problem initial = ATTUNE_PROBLEM_INIT;
    p->problem = initial;
    if (key->is_text) return attune_problem_parse(&p->problem, p->key);
    common_describe(key->bytes, all->functions, &p->problem);
    return ATTUNE_OK;
}

/* Creates the problem and its plan; p has the reason of a failure. */
static void fill(const common_plans *all, const plan_key *key, common_plan *p) {
    attune_plan_options options = ATTUNE_PLAN_OPTIONS_INIT;
    if (common_engine.repeats) options.repeats = common_engine.repeats;
    options.background = common_engine.compiles_in_background;
    const char *const named = getenv("ATTUNE_DEADLINE_US");
    if (common_engine.never_waits && !(named && *named)) options.deadline_us = 0;
    p->status = describe(all, key, p);
    if (!p->status) p->status = attune_plan_create(p->context, &p->problem, &options, &p->plan);
    if (!p->status) p->status = attune_plan_arguments_init(p->plan, &p->arguments);
    if (p->status) snprintf(p->message, sizeof p->message, "%s", attune_last_message());
}

static common_plan *make(const common_plans *all, const plan_key *key, attune_status *status, const char **message) {
    attune_context *const context = all->context ? all->context : common_context(status, message);
    if (!context) return NULL;
    common_plan *const p = calloc(1, sizeof *p + key->length + 1);
    if (!p) {
        *status = ATTUNE_OUT_OF_MEMORY;
        *message = "there is no memory for a plan";
        return NULL;
    }
    memcpy(p->key, key->bytes, key->length);
    p->length = key->length;
    p->hash = key->hash;
    p->context = context;
    fill(all, key, p);
    return p;
}

/* Two threads may create the same plan at once; the later one is freed. A full table keeps no further plans. */
static common_plan *keep(common_plans *all, plan_list *bucket, const plan_key *key, common_plan *p) {
    if (p->status && !is_refusal(p->status)) return p;
    if (atomic_fetch_add(&all->count, 1) >= common_engine.max_plans) {
        atomic_fetch_sub(&all->count, 1);
        return p;
    }
    p->is_kept = true;
    common_plan *const kept = add(bucket, p, key);
    if (kept != p) {
        atomic_fetch_sub(&all->count, 1);
        discard(p);
    }
    return kept;
}

/* p, or NULL if it has failed. The message of a plan that is not in the table is attune_last_message() of this thread.
 */
static common_plan *judge(common_plan *p, attune_status *status, const char **message) {
    *status = p->status;
    if (!p->status) return p;
    *message = p->is_kept ? p->message : attune_last_message();
    common_plan_release(p);
    return NULL;
}

static bool is_full(const common_plans *all) {
    return common_engine.has_stock && atomic_load(&all->count) >= common_engine.max_plans;
}

static common_plan *find(common_plans *all, const plan_key *key, attune_status *status, const char **message) {
    plan_list *const bucket = &all->buckets[key->hash % COMMON_BUCKETS];
    common_plan *p = look(atomic_load_explicit(bucket, memory_order_acquire), key);
    if (p) return judge(p, status, message);
    if (is_full(all)) {
        *status = ATTUNE_UNSUPPORTED;
        *message = "there are too many kinds of calls in this process";
        return NULL;
    }
    p = make(all, key, status, message);
    return p ? judge(keep(all, bucket, key, p), status, message) : NULL;
}

common_plan *common_plan_of(common_plans *all, const common_kind *kind, attune_status *status, const char **message) {
    const plan_key key = {.bytes = kind, .length = sizeof *kind, .hash = hash_of(kind, sizeof *kind)};
    return find(all, &key, status, message);
}

common_plan *common_plan_of_text(common_plans *all, const char *text, size_t length, attune_status *status,
                                 const char **message) {
    const plan_key key = {.bytes = text, .length = length, .hash = hash_of(text, length), .is_text = true};
    return find(all, &key, status, message);
}

attune_status common_plan_run(const common_plan *p, const attune_arguments *arguments, const attune_runner *runner,
                              unsigned max_threads, const char **message) {
    attune_run_options options = ATTUNE_RUN_OPTIONS_INIT;
    options.runner = runner;
    options.max_threads = max_threads;
    const attune_status status = attune_plan_run(p->plan, arguments, &options);
    if (status) *message = attune_last_message();
    return status;
}

void common_plan_release(common_plan *p) {
    if (p && !p->is_kept) discard(p);
}

void common_plans_free(common_plans *all) {
    for (int i = 0; i < COMMON_BUCKETS; i++)
        for (common_plan *p = atomic_load(&all->buckets[i]), *next; p; p = next) {
            next = p->next;
            discard(p);
        }
}
