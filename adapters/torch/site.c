#include "site.h"

#include "runner.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 256, MAX_SITES = 4096 };

struct site {
    site_key key;
    site *next;
    attune_arguments arguments;
    attune_plan *plan; /* NULL: attune does not support the problem, for the reason below */
    attune_status status;
    char message[ATTUNE_MESSAGE_BYTES];
};

static _Atomic(site *) buckets[BUCKETS];
static atomic_uint num_sites;

_Static_assert(sizeof(site_key) % 8 == 0, "keys are hashed by words");

static uint32_t hash(const site_key *key) {
    uint64_t words[sizeof *key / 8], sum = 0;
    memcpy(words, key, sizeof words);
    for (size_t i = 0; i < sizeof words / 8; i++) sum = (sum ^ words[i]) * 0x9e3779b97f4a7c15u, sum ^= sum >> 32;
    return (uint32_t)sum % BUCKETS;
}

static void set_mask(const site_mask *mask, const attune_problem *problem, int64_t dims[4]) {
    if (!mask->dtype) return;
    /* Batch and heads are arguments: a stride of 0 broadcasts. A mask of one element has no strides other than 0,
     * which would mean contiguous, so it says so by its dims. */
    dims[0] = mask->is_single ? 1 : problem->batch;
    dims[1] = mask->is_single ? 1 : problem->num_heads;
    dims[2] = mask->rows ? ATTUNE_DYNAMIC : 1;
    dims[3] = mask->columns ? ATTUNE_DYNAMIC : 1;
}

/* Two of each, so that nothing is taken as broadcast. The kernel serves any number. */
static void describe(const site_key *key, attune_problem *problem) {
    const attune_problem initial = ATTUNE_PROBLEM_INIT;
    *problem = initial;
    problem->batch = 2;
    problem->num_kv_heads = 2;
    problem->num_heads = 2 * (int64_t)key->group;
    problem->seq_q = ATTUNE_DYNAMIC;
    problem->seq_kv = ATTUNE_DYNAMIC;
    problem->head_dim = key->head_dim;
    problem->head_dim_v = key->head_dim_v;
    problem->dtype = key->dtype;
    problem->k_dtype = problem->v_dtype = key->kv_dtype;
    if (key->kv_dtype == ATTUNE_I8) problem->k_scales = problem->v_scales = ATTUNE_SCALES_TOKEN;
    problem->has_softmax_scale = key->has_scale;
    problem->logits_soft_cap = key->soft_cap;
    problem->is_causal = key->is_causal;
    problem->causal_align = key->bottom_right ? ATTUNE_BOTTOM_RIGHT : ATTUNE_TOP_LEFT;
    problem->window_left = key->window_left;
    problem->window_right = key->window_right;
    problem->has_sinks = key->has_sinks;
    problem->has_kv_lens = key->has_kv_lens;
    problem->has_lse = key->lse_stride != 0;
    if (key->lse_stride > 1)
        memcpy(problem->lse_strides, (int64_t[]){1 << 20, 1, key->lse_stride}, sizeof problem->lse_strides);
    if (key->appends) problem->seq_new = key->appends == SITE_APPENDS_ONE ? 1 : ATTUNE_DYNAMIC;
    problem->reproducible = key->reproducible;
    set_mask(&key->mask, problem, problem->attn_mask_dims);
    set_mask(&key->bias, problem, problem->attn_bias_dims);
    problem->bias_dtype = key->bias.dtype;
}

static site *make(const site_key *key) {
    site *const s = adapter_context() ? calloc(1, sizeof *s) : NULL;
    if (!s) return NULL;
    attune_problem problem;
    s->key = *key;
    describe(key, &problem);
    s->status = adapter_plan(&problem, &s->plan);
    if (!s->status) s->status = attune_plan_arguments_init(s->plan, &s->arguments);
    if (s->status) snprintf(s->message, sizeof s->message, "%s", attune_last_message());
    return s;
}

static site *look(site *s, const site_key *key) {
    while (s && memcmp(&s->key, key, sizeof *key)) s = s->next;
    return s;
}

/* There is no lock, which fork() could leave locked. Two threads may make one site at once; the later one is freed. */
site *site_find(const site_key *key) {
    _Atomic(site *) *const bucket = &buckets[hash(key)];
    site *first = atomic_load_explicit(bucket, memory_order_acquire), *s = look(first, key);
    if (s || atomic_load(&num_sites) >= MAX_SITES || !(s = make(key))) return s;
    do {
        site *const other = look(first, key);
        if (other) {
            attune_plan_destroy(adapter_context(), s->plan);
            free(s);
            return other;
        }
        s->next = first;
    } while (!atomic_compare_exchange_weak_explicit(bucket, &first, s, memory_order_acq_rel, memory_order_acquire));
    atomic_fetch_add(&num_sites, 1);
    return s;
}

bool site_is_default_scale(double scale, int32_t head_dim) { return isnan(scale) || scale == 1 / sqrt(head_dim); }

void site_arguments(const site *s, attune_arguments *arguments) { *arguments = s->arguments; }

attune_status site_run(site *s, const attune_arguments *arguments, const char **message) {
    if (s->status) {
        *message = s->message;
        return s->status;
    }
    const attune_runner runner = torch_runner();
    attune_run_options options = ATTUNE_RUN_OPTIONS_INIT;
    options.runner = &runner;
    const attune_status status = attune_plan_run(adapter_context(), s->plan, arguments, &options);
    if (status) *message = attune_last_message();
    return status;
}

attune_dtype site_dtype(int32_t dtype) {
    return dtype == torch.f32       ? ATTUNE_F32
           : dtype == torch.bf16    ? ATTUNE_BF16
           : dtype == torch.f16     ? ATTUNE_F16
           : dtype == torch.f64     ? ATTUNE_F64
           : dtype == torch.boolean ? ATTUNE_BOOL
           : dtype == torch.i8      ? ATTUNE_I8
                                    : ATTUNE_DTYPE_DEFAULT;
}

bool site_mask_of(const torch_view *view, const int64_t sizes[4], site_mask *mask, int64_t strides[4]) {
    const int missing = 4 - view->rank;
    for (int i = 0; i < 4; i++) {
        const int64_t size = i < missing ? 1 : view->sizes[i - missing];
        if (size != 1 && size != sizes[i]) return false;
        strides[i] = size == 1 ? 0 : view->strides[i - missing];
    }
    if (strides[3] > 1) return false;
    mask->dtype = (uint8_t)site_dtype(view->dtype);
    mask->rows = strides[2] != 0;
    mask->columns = strides[3] != 0;
    mask->is_single = !strides[0] && !strides[1] && !strides[2] && !strides[3];
    return true;
}

bool site_strides(const torch_view *view, int64_t strides[4]) {
    if (view->strides[3] != 1 && view->sizes[3] != 1) return false;
    memcpy(strides, view->strides, 3 * sizeof *strides);
    strides[3] = 1;
    return true;
}
