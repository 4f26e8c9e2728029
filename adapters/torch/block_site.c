#include "block_site.h"

#include "runner.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 64, MAX_SITES = 1024, MAX_SPECIAL = 8, REPEATS = 3, FEW_TOKENS = 32 };

/* A kernel for one length, made after REPEATS calls in a row with it. The batch is part of kernels for few tokens. */
typedef struct special {
    int64_t batch, length;
    attune_kernel *kernel;
} special;

struct block_site {
    block_key key;
    block_site *next;
    attune_problem problem;
    attune_arguments arguments;
    _Atomic(attune_kernel *) kernel; /* for any length */
    _Atomic(special *) specials[MAX_SPECIAL];
    /* Of the last calls without a special kernel. Races between threads only delay a kernel. */
    atomic_int_fast64_t last_batch, last_length;
    atomic_int repeats;
    atomic_bool is_making;
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
    block_site *const s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->key = *key;
    describe(key, &s->problem);
    if (attune_arguments_init(&s->arguments, &s->problem)) s->arguments.struct_size = 0; /* running says why */
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

const attune_problem *block_site_problem(const block_site *s) { return &s->problem; }

void block_site_arguments(const block_site *s, attune_arguments *arguments) { *arguments = s->arguments; }

static attune_status general_kernel(block_site *s, attune_context *context, attune_kernel **kernel) {
    attune_kernel *none = NULL;
    *kernel = atomic_load_explicit(&s->kernel, memory_order_acquire);
    if (*kernel) return ATTUNE_OK;
    const attune_status status = attune_compile(context, &s->problem, NULL, kernel);
    if (status || atomic_compare_exchange_strong(&s->kernel, &none, *kernel)) return status;
    attune_kernel_release(*kernel); /* another thread was faster: it is the same kernel */
    *kernel = none;
    return ATTUNE_OK;
}

static attune_kernel *special_kernel(block_site *s, int64_t batch, int64_t length) {
    for (int i = 0; i < MAX_SPECIAL; i++) {
        const special *const one = atomic_load_explicit(&s->specials[i], memory_order_acquire);
        if (!one) break;
        if (one->length == length && (!one->batch || one->batch == batch)) return one->kernel;
    }
    return NULL;
}

static special *make_special(const block_site *s, attune_context *context, int64_t batch, int64_t length) {
    special *const one = calloc(1, sizeof *one);
    if (!one) return NULL;
    attune_problem p = s->problem;
    const bool is_small = batch * length <= FEW_TOKENS;
    if (is_small) p.batch = batch;
    if (s->key.mask_per_batch) p.attn_mask_dims[0] = p.batch;
    p.seq_q = length;
    if (s->key.mask_per_row) p.attn_mask_dims[2] = length;
    if (s->key.has_mask) p.attn_mask_dims[3] = length;
    one->batch = is_small ? batch : 0;
    one->length = length;
    if (!attune_compile(context, &p, NULL, &one->kernel)) return one;
    free(one);
    return NULL;
}

/* Counts calls of one length in a row, and makes a kernel for it. Without one the general kernel goes on. */
static void learn(block_site *s, attune_context *context, int64_t batch, int64_t length) {
    const bool again = atomic_exchange(&s->last_length, length) == length;
    if (!(atomic_exchange(&s->last_batch, batch) == batch && again)) atomic_store(&s->repeats, 0);
    if (s->key.is_ragged || atomic_fetch_add(&s->repeats, 1) + 1 != REPEATS) return;
    if (atomic_exchange(&s->is_making, true)) return;
    for (int i = 0; i < MAX_SPECIAL; i++)
        if (!atomic_load(&s->specials[i])) {
            special *const one = make_special(s, context, batch, length);
            if (one) atomic_store_explicit(&s->specials[i], one, memory_order_release);
            break;
        }
    atomic_store(&s->is_making, false);
}

attune_status block_site_run(block_site *s, const attune_arguments *arguments) {
    attune_context *const context = adapter_context();
    if (!context) return ATTUNE_INTERNAL;
    attune_kernel *kernel = special_kernel(s, arguments->batch, arguments->seq_q);
    if (!kernel) {
        const attune_status status = general_kernel(s, context, &kernel);
        if (status) return status;
        learn(s, context, arguments->batch, arguments->seq_q);
    }
    const attune_runner runner = torch_runner();
    attune_run_options options = ATTUNE_RUN_OPTIONS_INIT;
    options.runner = &runner;
    return attune_run_with(context, kernel, arguments, &options);
}
