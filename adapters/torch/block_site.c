#include "block_site.h"

#include "runner.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 64, MAX_SITES = 1024 };

struct block_site {
    block_key key;
    block_site *next;
    attune_problem problem;
    attune_plan *plan;
    attune_arguments arguments;
    attune_status status; /* of making the plan */
    char message[ATTUNE_MESSAGE_BYTES];
};

static _Atomic(block_site *) buckets[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t num_sites;

_Static_assert(sizeof(block_key) % 8 == 0, "keys are hashed by words");

static uint32_t hash(const block_key *key) {
    uint64_t words[sizeof *key / 8], sum = 0;
    memcpy(words, key, sizeof words);
    for (size_t i = 0; i < sizeof words / 8; i++) sum = (sum ^ words[i]) * 0x9e3779b97f4a7c15u, sum ^= sum >> 32;
    return (uint32_t)sum % BUCKETS;
}

/* Two batch entries, so that nothing is taken as broadcast. The kernel serves any number. */
static void describe(const block_key *key, attune_problem *p) {
    const attune_problem initial = ATTUNE_PROBLEM_INIT;
    *p = initial;
    p->batch = 2;
    p->num_heads = key->num_heads;
    p->embed_dim = key->embed_dim;
    p->dtype = key->dtype;
    p->seq_q = ATTUNE_DYNAMIC;
    p->is_causal = key->is_causal;
    p->has_kv_lens = key->has_lengths;
    p->is_ragged = key->is_ragged;
    if (key->has_weights) p->weights_mode = ATTUNE_WEIGHTS_SOFTMAX;
    p->weights_average = key->average_weights;
    if (!key->has_mask) return;
    p->attn_mask_dims[0] = key->mask_per_batch ? p->batch : 1;
    p->attn_mask_dims[1] = key->mask_per_head ? p->num_heads : 1;
    p->attn_mask_dims[2] = key->mask_per_row ? ATTUNE_DYNAMIC : 1;
    p->attn_mask_dims[3] = ATTUNE_DYNAMIC;
}

static block_site *make(const block_key *key) {
    block_site *const s = adapter_context() ? calloc(1, sizeof *s) : NULL;
    if (!s) return NULL;
    s->key = *key;
    describe(key, &s->problem);
    s->status = adapter_plan(&s->problem, &s->plan);
    if (!s->status) s->status = attune_plan_arguments_init(s->plan, &s->arguments);
    if (s->status) snprintf(s->message, sizeof s->message, "%s", attune_last_message());
    return s;
}

static block_site *look(block_site *s, const block_key *key) {
    while (s && memcmp(&s->key, key, sizeof *key)) s = s->next;
    return s;
}

block_site *block_site_find(const block_key *key) {
    _Atomic(block_site *) *const bucket = &buckets[hash(key)];
    block_site *s = look(atomic_load_explicit(bucket, memory_order_acquire), key);
    if (s) return s;
    pthread_mutex_lock(&lock);
    s = look(atomic_load_explicit(bucket, memory_order_relaxed), key);
    if (!s && num_sites < MAX_SITES && (s = make(key))) {
        num_sites++;
        s->next = atomic_load_explicit(bucket, memory_order_relaxed);
        atomic_store_explicit(bucket, s, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return s;
}

/* ---- fork ---- */

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }

void block_site_open(void) {
    static bool is_open;
    /* The context comes first: what watches fork() last is told first, and threads with this lock may need to enter the
     * context before they release it. */
    if (!is_open && adapter_context()) is_open = !pthread_atfork(before_fork, after_fork, after_fork);
}

/* ---- Running ---- */

const attune_problem *block_site_problem(const block_site *s) { return &s->problem; }

void block_site_arguments(const block_site *s, attune_arguments *arguments) { *arguments = s->arguments; }

attune_status block_site_run(block_site *s, const attune_arguments *arguments, const char **message) {
    *message = s->message;
    if (s->status) return s->status;
    const attune_runner runner = torch_runner();
    attune_run_options options = ATTUNE_RUN_OPTIONS_INIT;
    options.runner = &runner;
    const attune_status status = attune_plan_run(adapter_context(), s->plan, arguments, &options);
    if (status) *message = attune_last_message();
    return status;
}
