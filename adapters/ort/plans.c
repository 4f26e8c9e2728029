#include "plans.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A node has a few kinds of calls: prompts and single tokens, masks of several shapes. */
enum { MAX_PLANS = 256 };

struct plan {
    common_link link; /* first */
    plan_key key;
    attune_plan *plan;
    attune_arguments arguments;
};

static void set_mask(const plan_mask *mask, attune_problem *problem, int64_t dims[4]) {
    if (!mask->dtype) return;
    /* Batch and heads are arguments: a stride of 0 broadcasts. */
    dims[0] = problem->batch;
    dims[1] = problem->num_heads;
    dims[2] = mask->rows ? ATTUNE_DYNAMIC : 1;
    dims[3] = mask->columns ? ATTUNE_DYNAMIC : 1;
    if (mask->is_short) problem->short_masks = 1;
}

/* Its keys are those of x, and its number of heads is compiled in. */
static void describe_block(const plan_key *key, attune_problem *problem) {
    problem->num_heads = problem->num_kv_heads = key->num_heads;
    problem->seq_kv = 0;
    problem->k_dtype = problem->v_dtype = ATTUNE_DTYPE_DEFAULT;
    problem->embed_dim = key->embed_dim;
    problem->out_dim = key->out_dim;
    problem->no_out_projection = !key->out_dim;
}

/* Two of each, so that nothing is taken as broadcast. The kernel serves any number. */
static void describe(const plan_key *key, attune_problem *problem) {
    problem->batch = 2;
    problem->num_kv_heads = 2;
    problem->num_heads = 2 * (int64_t)key->group;
    problem->seq_q = ATTUNE_DYNAMIC;
    problem->seq_kv = ATTUNE_DYNAMIC;
    problem->head_dim = key->head_dim;
    problem->head_dim_v = key->head_dim_v;
    problem->dtype = problem->k_dtype = key->dtype;
    problem->v_dtype = key->v_dtype;
    problem->softmax_scale = key->scale;
    problem->logits_soft_cap = key->soft_cap;
    problem->is_causal = key->is_causal;
    problem->causal_align = key->bottom_right ? ATTUNE_BOTTOM_RIGHT : ATTUNE_TOP_LEFT;
    problem->has_causal_offsets = key->has_causal_offsets;
    problem->window_left = key->window_left;
    problem->window_right = key->window_right;
    problem->has_sinks = key->has_sinks;
    problem->has_kv_lens = key->has_kv_lens;
    if (key->appends) problem->seq_new = key->appends_one ? 1 : ATTUNE_DYNAMIC;
    /* Positions of the caller's are those of queries and new keys alike, so there are as many of both. */
    if (key->appends_one && key->has_position_ids) problem->seq_q = 1;
    problem->rotary_dim = key->rotary_dim;
    problem->rotary_interleaved = key->rotary_interleaved;
    problem->has_position_ids = key->has_position_ids;
    problem->weights_mode = key->weights_mode;
    if (key->is_f64) problem->softmax_precision = ATTUNE_F64;
    if (key->embed_dim) describe_block(key, problem);
    set_mask(&key->mask, problem, problem->attn_mask_dims);
    set_mask(&key->bias, problem, problem->attn_bias_dims);
    problem->bias_dtype = key->bias.dtype;
}

/* Their tensors have dims of batch and heads. */
static void describe_functions(const attune_problem *from, const plan_key *key, attune_problem *problem) {
    problem->batch = key->batch;
    problem->num_heads = key->num_heads;
    problem->num_kv_heads = key->num_heads / key->group;
    memcpy(problem->tensors, from->tensors, sizeof problem->tensors);
    memcpy(problem->score_mod, from->score_mod, sizeof problem->score_mod);
    memcpy(problem->mask_mod, from->mask_mod, sizeof problem->mask_mod);
    memcpy(problem->prob_mod, from->prob_mod, sizeof problem->prob_mod);
}

static plan *make(const plans *all, const plan_key *key, char message[ATTUNE_MESSAGE_BYTES]) {
    plan *const p = calloc(1, sizeof *p);
    if (!p) {
        snprintf(message, ATTUNE_MESSAGE_BYTES, "there is no memory for a plan");
        return NULL;
    }
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    p->key = *key;
    describe(key, &problem);
    if (all->functions) describe_functions(all->functions, key, &problem);
    attune_status status = attune_plan_create(all->context, &problem, NULL, &p->plan);
    if (!status) status = attune_plan_arguments_init(p->plan, &p->arguments);
    if (!status) return p;
    snprintf(message, ATTUNE_MESSAGE_BYTES, "%s", attune_last_message());
    attune_plan_destroy(all->context, p->plan);
    free(p);
    return NULL;
}

static bool is_of(const common_link *entry, const void *key) {
    return !memcmp(&((const plan *)entry)->key, key, sizeof(plan_key));
}

/* Two threads may make one plan at once; the later one is freed. */
plan *plans_find(plans *all, const plan_key *key, char message[ATTUNE_MESSAGE_BYTES]) {
    plan *p = (plan *)common_find(&all->list, is_of, key);
    if (p) return p;
    if (atomic_load(&all->count) >= MAX_PLANS) {
        snprintf(message, ATTUNE_MESSAGE_BYTES, "it has had %d kinds of calls, of other widths or masks", MAX_PLANS);
        return NULL;
    }
    p = make(all, key, message);
    if (!p) return NULL;
    plan *const kept = (plan *)common_add(&all->list, &p->link, is_of, key);
    if (kept == p) {
        atomic_fetch_add(&all->count, 1);
    } else {
        attune_plan_destroy(all->context, p->plan);
        free(p);
    }
    return kept;
}

void plans_free(plans *all) {
    for (plan *p = (plan *)atomic_load(&all->list), *next; p; p = next) {
        next = (plan *)p->link.next;
        attune_plan_destroy(all->context, p->plan);
        free(p);
    }
}

void plan_arguments(const plan *p, attune_arguments *arguments) { *arguments = p->arguments; }

attune_status plan_run(const plans *all, plan *p, const attune_arguments *arguments, const attune_runner *runner) {
    attune_run_options options = ATTUNE_RUN_OPTIONS_INIT;
    options.runner = runner;
    return attune_plan_run(all->context, p->plan, arguments, &options);
}
