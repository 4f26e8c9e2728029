/* Kernels for lengths that come back. */
#include "plan/plan.h"

#include "problem/problem.h"

#include <string.h>
#include <unistd.h>

/* ---- Lengths ---- */

bool pl_lengths_of(const attune_plan *plan, const attune_arguments *a, pl_kind kind, pl_lengths *lengths) {
    if (atomic_load_explicit(&plan->is_complete, memory_order_relaxed) && !plan->num_special) return false;
    const int64_t given[PL_NUM_LENGTHS] = {a->seq_q, a->seq_kv, a->seq_new, a->num_rows};
    const int64_t queries = plan->is_open[PL_SEQ_Q] ? a->seq_q : plan->signature.problem.seq_q;
    if (kind != PL_MANY && plan->is_open[PL_SEQ_KV] && a->seq_kv != queries) return false; /* decoding */
    for (int i = 0; i < PL_NUM_LENGTHS; i++) {
        lengths->of[i] = plan->is_open[i] ? given[i] : -1;
        if (plan->is_open[i] && given[i] < 1) return false;
    }
    return true;
}

attune_kernel *pl_find_special(const attune_plan *plan, const pl_lengths *lengths) {
    const uint32_t count = atomic_load_explicit(&plan->num_special, memory_order_acquire);
    for (uint32_t i = 0; i < count; i++)
        if (!memcmp(&plan->special[i].lengths, lengths, sizeof *lengths)) return plan->special[i].kernel;
    return NULL;
}

/* ---- The kernel ---- */

/* A mask that is not the same for all entries of the batch, or all heads, has as many as the problem. */
static void fit_mask(int64_t dims[4], const attune_problem *p) {
    if (dims[0] > 1) dims[0] = p->batch;
    if (dims[1] > 1) dims[1] = p->num_heads;
}

/* A mask for one entry would be taken for the same mask for all, and the kernel serves calls of any batch. */
static int64_t at_least_two(int64_t count, int64_t mask_dim, int64_t bias_dim) {
    return count > 1 || (mask_dim <= 1 && bias_dim <= 1) ? count : 2;
}

/* The problem of a call: with its lengths, and with its batch, heads and strides, so that further calls of this kind
 * find themselves settled already. */
static void problem_of_call(const attune_plan *plan, const attune_arguments *a, const pl_lengths *lengths,
                            attune_problem *p) {
    const at_signature *s = &plan->signature;
    *p = s->problem;
    if (plan->is_open[PL_SEQ_Q]) {
        p->seq_q = lengths->of[PL_SEQ_Q];
        p->max_seq_q = 0;
        if (mha_keys_follow_queries(p)) p->seq_kv = p->seq_q;
        if (mha_is_self(p) && p->seq_new) p->seq_new = p->seq_q;
    }
    if (plan->is_open[PL_SEQ_KV]) {
        p->seq_kv = lengths->of[PL_SEQ_KV];
        p->max_seq_kv = 0;
    }
    if (plan->is_open[PL_SEQ_NEW]) p->seq_new = lengths->of[PL_SEQ_NEW];
    if (plan->is_open[PL_NUM_ROWS]) p->num_rows = lengths->of[PL_NUM_ROWS];
    p->batch = at_least_two(a->batch, p->attn_mask_dims[0], p->attn_bias_dims[0]);
    p->num_heads = at_least_two(a->num_heads, p->attn_mask_dims[1], p->attn_bias_dims[1]);
    p->num_kv_heads = p->num_heads * s->problem.num_kv_heads / s->problem.num_heads;
    fit_mask(p->attn_mask_dims, p);
    fit_mask(p->attn_bias_dims, p);
    for (size_t i = 0; i < s->count; i++)
        if (s->tensors[i].problem_strides)
            memcpy((char *)p + s->tensors[i].problem_strides, (const char *)a + s->tensors[i].arguments_strides,
                   (size_t)s->tensors[i].rank * sizeof(int64_t));
}

/* One thread at a time. A child of fork() may be without the thread that was at it. */
static bool begin(attune_plan *plan) {
    const int32_t self = (int32_t)getpid();
    int32_t found = atomic_load(&plan->promoter);
    return found != self && atomic_compare_exchange_strong(&plan->promoter, &found, self);
}

static void specialise(attune_plan *plan, const attune_arguments *a, const pl_lengths *lengths) {
    const uint32_t count = atomic_load(&plan->num_special);
    if (count >= plan->options.max_specialised || pl_find_special(plan, lengths)) return;
    attune_problem p;
    attune_kernel *kernel;
    problem_of_call(plan, a, lengths, &p);
    const attune_status status = attune_compile(plan->context, &p, NULL, &kernel);
    if (!status) {
        plan->special[count] = (pl_special){*lengths, kernel};
        atomic_store_explicit(&plan->num_special, count + 1, memory_order_release);
    }
    /* A kernel that strict mode refuses costs little, and other lengths may be cached. After other failures the plan
     * does not try again: a worker that hangs would hang every time. */
    const bool may_go_on = !status || status == ATTUNE_NOT_CACHED || status == ATTUNE_INVALID_PROBLEM;
    if (!may_go_on || plan->num_special == plan->options.max_specialised) atomic_store(&plan->is_complete, true);
}

/* ---- Counting ---- */

enum { COUNT_BITS = 16 };

static uint64_t hash_of(const pl_lengths *lengths) {
    uint64_t hash = 0;
    for (int i = 0; i < PL_NUM_LENGTHS; i++)
        hash = (hash ^ (uint64_t)lengths->of[i]) * UINT64_C(0x9e3779b97f4a7c15) ^ hash >> 29;
    return hash >> COUNT_BITS << COUNT_BITS;
}

/* Counts of several threads at once may be lost: the kernel then comes a call later. */
void pl_count_lengths(attune_plan *plan, const attune_arguments *a, const pl_lengths *lengths) {
    if (atomic_load_explicit(&plan->is_complete, memory_order_relaxed)) return;
    const uint64_t hash = hash_of(lengths), last = atomic_load_explicit(&plan->streak, memory_order_relaxed);
    const uint32_t most = plan->options.repeats, before = last >> COUNT_BITS == hash >> COUNT_BITS ? (uint16_t)last : 0;
    if (before >= most) return; /* it was tried */
    uint32_t calls = before + 1;
    if (calls == most && begin(plan)) {
        specialise(plan, a, lengths);
        atomic_store(&plan->promoter, 0);
    } else if (calls == most) {
        calls = before; /* another thread compiles: next time */
    }
    atomic_store_explicit(&plan->streak, hash | calls, memory_order_relaxed);
}
