#include "plans.h"

#include "common/context.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

const bool common_has_stock = false;

enum { MAX_PLANS = 1024 };
static common_list plans;
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

typedef struct plan_key {
    const char *text;
    size_t length;
} plan_key;

static bool is_of(const common_link *entry, const void *wanted) {
    const plan_entry *const e = (const plan_entry *)entry;
    const plan_key *const key = wanted;
    return e->length == key->length && !memcmp(e->text, key->text, key->length);
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
    const plan_key key = {text, length};
    plan_entry *const found = (plan_entry *)common_find(&plans, is_of, &key);
    *status = ATTUNE_OK;
    if (found) return found;
    plan_entry *const e = make(text, length, status);
    if (!e || atomic_load(&num_plans) >= MAX_PLANS) return e;
    e->is_kept = 1;
    plan_entry *const kept = (plan_entry *)common_add(&plans, &e->link, is_of, &key);
    if (kept == e)
        atomic_fetch_add(&num_plans, 1);
    else
        discard(e);
    return kept;
}

void plans_release(plan_entry *entry) {
    if (entry && !entry->is_kept) discard(entry);
}
