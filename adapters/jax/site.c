#include "site.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The context ---- */

static attune_context *context;
static attune_status context_status;
static char context_message[ATTUNE_MESSAGE_BYTES];
static atomic_uint_fast64_t counts[SITE_NUM_EVENTS];

static void on_event(void *user, const attune_event *event) {
    (void)user;
    if (event->kind == ATTUNE_EVENT_COMPILE_END && !event->status) atomic_fetch_add(&counts[SITE_COMPILED], 1);
    if (event->kind == ATTUNE_EVENT_DISK_HIT) atomic_fetch_add(&counts[SITE_READ], 1);
}

uint64_t site_count(site_event event) { return atomic_load(&counts[event]); }

static void serially(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    (void)user;
    fn(argument, 0, n, 0);
}

static void create_context(void) {
    /* Calls pass XLA's threads. With a runner of its own the context has no pool either. */
    const attune_runner alone = {.struct_size = sizeof alone, .parallel_for = serially, .max_workers = 1};
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.runner = &alone;
    options.event = on_event;
    context_status = attune_context_create(&options, &context);
    if (context_status) snprintf(context_message, sizeof context_message, "%s", attune_last_message());
}

attune_context *site_context(attune_status *status, const char **message) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, create_context);
    *status = context_status;
    *message = context_message;
    return context;
}

/* ---- The table ---- */

enum { BUCKETS = 256, MAX_SITES = 4096 };
static _Atomic(site *) buckets[BUCKETS];
static atomic_uint num_sites;

static _Atomic(site *) *bucket_of(const char *text, size_t length) {
    uint32_t sum = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < length; i++) sum = (sum ^ (unsigned char)text[i]) * 16777619u;
    return &buckets[(sum ^ sum >> 16) % BUCKETS];
}

static site *look(site *s, const char *text, size_t length) {
    while (s && (s->length != length || memcmp(s->text, text, length))) s = s->next;
    return s;
}

static void discard(site *s) {
    attune_kernel_release(s->kernel);
    free(s);
}

static site *make(const char *text, size_t length, attune_status *status, const char **message) {
    attune_context *const c = site_context(status, message);
    if (!c) return NULL;
    site *const s = calloc(1, sizeof *s + length + 1);
    if (!s) {
        *status = ATTUNE_OUT_OF_MEMORY;
        *message = "there is no memory for a kernel's arguments";
        return NULL;
    }
    memcpy(s->text, text, length);
    s->length = length;
    const attune_problem initial = ATTUNE_PROBLEM_INIT;
    s->problem = initial;
    *status = attune_problem_parse(s->text, &s->problem);
    if (!*status) *status = attune_compile(c, &s->problem, NULL, &s->kernel);
    if (!*status) *status = attune_arguments_init(&s->arguments, &s->problem);
    if (!*status) return s;
    *message = attune_last_message();
    free(s);
    return NULL;
}

/* Two threads may make one site at once; the later one is freed. */
static site *keep(_Atomic(site *) *bucket, site *s) {
    site *first = atomic_load_explicit(bucket, memory_order_acquire);
    if (atomic_fetch_add(&num_sites, 1) >= MAX_SITES) {
        atomic_fetch_sub(&num_sites, 1);
        return s;
    }
    s->is_kept = true;
    do {
        site *const other = look(first, s->text, s->length);
        if (other) {
            atomic_fetch_sub(&num_sites, 1);
            discard(s);
            return other;
        }
        s->next = first;
    } while (!atomic_compare_exchange_weak_explicit(bucket, &first, s, memory_order_acq_rel, memory_order_acquire));
    return s;
}

site *site_find(const char *text, size_t length, attune_status *status, const char **message) {
    _Atomic(site *) *const bucket = bucket_of(text, length);
    site *s = look(atomic_load_explicit(bucket, memory_order_acquire), text, length);
    if (s) return s;
    s = make(text, length, status, message);
    return s ? keep(bucket, s) : NULL;
}

void site_release(site *s) {
    if (!s->is_kept) discard(s);
}
