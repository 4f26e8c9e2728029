#include "site.h"

#include "common/context.h"

#include <stdlib.h>
#include <string.h>

const bool common_has_stock = false;

enum { BUCKETS = 256, MAX_SITES = 4096 };
static common_list buckets[BUCKETS];
static atomic_uint num_sites;

typedef struct site_key {
    const char *text;
    size_t length;
} site_key;

static common_list *bucket_of(const char *text, size_t length) {
    uint32_t sum = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < length; i++) sum = (sum ^ (unsigned char)text[i]) * 16777619u;
    return &buckets[(sum ^ sum >> 16) % BUCKETS];
}

static bool is_of(const common_link *entry, const void *wanted) {
    const site *const s = (const site *)entry;
    const site_key *const key = wanted;
    return s->length == key->length && !memcmp(s->text, key->text, key->length);
}

static void discard(site *s) {
    attune_plan_destroy(common_context(NULL, NULL), s->plan);
    free(s);
}

static site *make(const char *text, size_t length, attune_status *status, const char **message) {
    attune_context *const c = common_context(status, message);
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
    if (!*status) *status = attune_plan_create(c, &s->problem, NULL, &s->plan);
    if (!*status) *status = attune_arguments_init(&s->arguments, &s->problem);
    if (!*status) return s;
    *message = attune_last_message();
    attune_plan_destroy(c, s->plan);
    free(s);
    return NULL;
}

/* Two threads may make one site at once; the later one is freed. */
static site *keep(common_list *bucket, site *s) {
    const site_key key = {s->text, s->length};
    if (atomic_fetch_add(&num_sites, 1) >= MAX_SITES) {
        atomic_fetch_sub(&num_sites, 1);
        return s;
    }
    s->is_kept = true;
    site *const kept = (site *)common_add(bucket, &s->link, is_of, &key);
    if (kept != s) {
        atomic_fetch_sub(&num_sites, 1);
        discard(s);
    }
    return kept;
}

site *site_find(const char *text, size_t length, attune_status *status, const char **message) {
    common_list *const bucket = bucket_of(text, length);
    const site_key key = {text, length};
    site *s = (site *)common_find(bucket, is_of, &key);
    if (s) return s;
    s = make(text, length, status, message);
    return s ? keep(bucket, s) : NULL;
}

void site_release(site *s) {
    if (!s->is_kept) discard(s);
}
