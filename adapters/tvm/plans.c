#include "plans.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PLANS = 1024 };
static _Atomic(plan_entry *) plans;
static atomic_uint num_plans;

static attune_context *context;

static void create_context(void) {
    if (attune_context_create(NULL, &context)) context = NULL;
}

attune_context *plans_context(attune_status *status) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, create_context);
    /* Asked again for the sentence, which belongs to the thread. */
    attune_context *other = NULL;
    *status = context ? ATTUNE_OK : attune_context_create(NULL, &other);
    if (!context && !*status) attune_context_destroy(other), *status = ATTUNE_INTERNAL;
    return context;
}

static void discard(plan_entry *entry) {
    attune_plan_destroy(context, entry->plan);
    free(entry);
}

static plan_entry *look(plan_entry *e, const char *text, size_t length) {
    while (e && (e->length != length || memcmp(e->text, text, length))) e = e->next;
    return e;
}

static plan_entry *make(const char *text, size_t length, attune_status *status) {
    attune_context *const c = plans_context(status);
    if (!c) return NULL;
    plan_entry *const e = calloc(1, sizeof *e + length + 1);
    *status = ATTUNE_OUT_OF_MEMORY;
    if (!e) return NULL;
    memcpy(e->text, text, length);
    e->length = length;
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    *status = attune_problem_parse(e->text, &problem);
    if (!*status) *status = attune_plan_create(c, &problem, NULL, &e->plan);
    if (!*status) return e;
    free(e);
    return NULL;
}

/* Two threads may make one plan at once; the later one is destroyed. */
plan_entry *plans_find(const char *text, size_t length, attune_status *status) {
    plan_entry *first = atomic_load_explicit(&plans, memory_order_acquire), *found = look(first, text, length);
    *status = ATTUNE_OK;
    if (found) return found;
    plan_entry *const e = make(text, length, status);
    if (!e || atomic_load(&num_plans) >= MAX_PLANS) return e;
    e->is_kept = 1;
    do {
        found = look(first, text, length);
        if (found) {
            discard(e);
            return found;
        }
        e->next = first;
    } while (!atomic_compare_exchange_weak_explicit(&plans, &first, e, memory_order_acq_rel, memory_order_acquire));
    atomic_fetch_add(&num_plans, 1);
    return e;
}

void plans_release(plan_entry *entry) {
    if (entry && !entry->is_kept) discard(entry);
}
