#include "site.h"

#include "runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SITES = 4096 };

struct site {
    common_link link; /* first */
    uint64_t key[SITE_KEY_WORDS];
    size_t key_bytes;
    attune_arguments arguments;
    attune_plan *plan; /* NULL: attune does not support the problem, for the reason below */
    attune_problem problem;
    attune_status status;
    char message[ATTUNE_MESSAGE_BYTES];
};

static common_list *bucket_of(site_table *table, const void *key) {
    uint64_t word, sum = 0;
    for (size_t i = 0; i < table->key_bytes; i += sizeof word) {
        memcpy(&word, (const char *)key + i, sizeof word);
        sum = (sum ^ word) * 0x9e3779b97f4a7c15u, sum ^= sum >> 32;
    }
    return &table->buckets[(uint32_t)sum % SITE_BUCKETS];
}

static site *make(const site_table *table, const void *key) {
    site *const s = adapter_context() ? calloc(1, sizeof *s) : NULL;
    if (!s) return NULL;
    memcpy(s->key, key, table->key_bytes);
    s->key_bytes = table->key_bytes;
    const attune_problem initial = ATTUNE_PROBLEM_INIT;
    s->problem = initial;
    table->describe(key, &s->problem);
    s->status = adapter_plan(&s->problem, &s->plan);
    if (!s->status) s->status = attune_plan_arguments_init(s->plan, &s->arguments);
    if (s->status) snprintf(s->message, sizeof s->message, "%s", attune_last_message());
    return s;
}

/* All keys of a table have one size. */
static bool is_of(const common_link *entry, const void *key) {
    const site *const s = (const site *)entry;
    return !memcmp(s->key, key, s->key_bytes);
}

/* Two threads may make one site at once; the later one is freed. */
site *site_find(site_table *table, const void *key) {
    common_list *const bucket = bucket_of(table, key);
    site *s = (site *)common_find(bucket, is_of, key);
    if (s || atomic_load(&table->num_sites) >= MAX_SITES || !(s = make(table, key))) return s;
    site *const kept = (site *)common_add(bucket, &s->link, is_of, key);
    if (kept == s) {
        atomic_fetch_add(&table->num_sites, 1);
    } else {
        attune_plan_destroy(adapter_context(), s->plan);
        free(s);
    }
    return kept;
}

const attune_problem *site_problem(const site *s) { return &s->problem; }

void site_arguments(const site *s, attune_arguments *arguments) { *arguments = s->arguments; }

attune_status site_run(site *s, const attune_arguments *arguments, const char **message) {
    *message = s->message;
    if (s->status) return s->status;
    const attune_runner runner = torch_runner();
    attune_run_options options = ATTUNE_RUN_OPTIONS_INIT;
    options.runner = &runner;
    const attune_status status = attune_plan_run(adapter_context(), s->plan, arguments, &options);
    if (status) *message = attune_last_message();
    return status;
}
