/* Kernels for lengths that come back. */
#include "plan/plan.h"

#include "problem/problem.h"

#include <string.h>

/* ---- The problem of a key ---- */

static void fix_lengths(const attune_plan *plan, const pl_key *key, attune_problem *p) {
    *p = plan->signature.problem;
    if (plan->is_open[PL_SEQ_Q]) {
        p->seq_q = key->lengths[PL_SEQ_Q];
        p->max_seq_q = 0;
        if (mha_keys_follow_queries(p)) p->seq_kv = p->seq_q;
        if (mha_is_self(p) && p->seq_new) p->seq_new = p->seq_q;
    }
    if (plan->is_open[PL_SEQ_KV]) {
        p->seq_kv = key->lengths[PL_SEQ_KV];
        p->max_seq_kv = 0;
    }
    if (plan->is_open[PL_SEQ_NEW]) p->seq_new = key->lengths[PL_SEQ_NEW];
    if (plan->is_open[PL_NUM_ROWS]) p->num_rows = key->lengths[PL_NUM_ROWS];
}

static int64_t *strides_of(const mha_tensor *t, attune_problem *p) {
    return (int64_t *)(void *)((char *)p + t->problem_strides);
}

/* The kernel depends on the innermost strides, which are the plan's. The others are examples: those of contiguous
 * tensors, times the innermost one. The plan's own may not fit the lengths. */
static attune_status lay_out(const at_signature *s, attune_problem *p) {
    attune_problem contiguous;
    for (size_t i = 0; i < s->count; i++)
        if (s->tensors[i].problem_strides)
            memset(strides_of(&s->tensors[i], p), 0, (size_t)s->tensors[i].rank * sizeof(int64_t));
    const attune_status status = mha_canonicalize(p, &contiguous, NULL);
    if (status) return status;
    *p = contiguous;
    for (size_t i = 0; i < s->count; i++) {
        const mha_tensor *t = &s->tensors[i];
        if (!t->problem_strides || t->inner_stride == 1) continue;
        int64_t *strides = strides_of(t, p);
        for (int d = 0; d < t->rank; d++) strides[d] *= t->inner_stride ? t->inner_stride : 1;
        strides[t->rank - 1] = t->inner_stride;
    }
    return ATTUNE_OK;
}

/* The problem follows from plan and key, so any call with the key may provide the kernel. */
static attune_status problem_of(const attune_plan *plan, const pl_key *key, attune_problem *p) {
    fix_lengths(plan, key, p);
    if (key->batch > 0) p->batch = key->batch;
    if (p->attn_mask_dims[0] > 1) p->attn_mask_dims[0] = p->batch;
    if (p->attn_bias_dims[0] > 1) p->attn_bias_dims[0] = p->batch;
    return lay_out(&plan->signature, p);
}

/* ---- The key of a call ---- */

/* A block's kernel is for its number of tokens if these are few. All calls of many tokens share one, so they get the
 * same batch here. A mask for one sequence would be the same for all sequences. */
static int64_t batch_of(const attune_plan *plan, const pl_key *key, int64_t given) {
    attune_problem p;
    fix_lengths(plan, key, &p);
    const int64_t least = p.attn_mask_dims[0] > 1 || p.attn_bias_dims[0] > 1 ? 2 : 1;
    p.batch = given > least ? given : least;
    if (mha_few_rows(&p)) return p.batch;
    for (p.batch = least; mha_few_rows(&p);) p.batch *= 2;
    return p.batch;
}

bool pl_key_of(const attune_plan *plan, const attune_arguments *a, pl_kind kind, pl_key *key) {
    if (atomic_load_explicit(&plan->is_complete, memory_order_relaxed) && !plan->num_special) return false;
    const int64_t given[PL_NUM_LENGTHS] = {a->seq_q, a->seq_kv, a->seq_new, a->num_rows};
    const int64_t queries = plan->is_open[PL_SEQ_Q] ? a->seq_q : plan->signature.problem.seq_q;
    if (kind <= PL_FEW && plan->is_open[PL_SEQ_KV] && a->seq_kv != queries) return false; /* decoding */
    for (int i = 0; i < PL_NUM_LENGTHS; i++) {
        key->lengths[i] = plan->is_open[i] ? given[i] : -1;
        if (plan->is_open[i] && given[i] < 1) return false;
    }
    key->batch = plan->signature.problem.op == ATTUNE_MHA ? batch_of(plan, key, a->batch) : -1;
    return true;
}

const pl_special *pl_find_special(const attune_plan *plan, const pl_key *key) {
    const uint32_t count = atomic_load_explicit(&plan->num_special, memory_order_acquire);
    for (uint32_t i = 0; i < count; i++)
        if (!memcmp(&plan->special[i]->key, key, sizeof *key)) return plan->special[i];
    return NULL;
}

/* ---- The kernel ---- */

/* ATTUNE_UNSUPPORTED: it is not worth while. */
static attune_status make(const attune_plan *plan, const attune_arguments *a, pl_kind kind, const pl_key *key,
                          pl_special **out) {
    attune_problem p;
    attune_status status = problem_of(plan, key, &p);
    if (status) return status;
    if (!pl_is_worth(plan, kind, &p)) return ATTUNE_UNSUPPORTED;
    pl_special *made = at_alloc(&plan->context->allocator, sizeof *made);
    if (!made) return ATTUNE_OUT_OF_MEMORY;
    status = attune_compile(plan->context, &p, NULL, &made->kernel);
    if (status) {
        at_free(&plan->context->allocator, made);
        return status;
    }
    if (made->kernel->node.made_again_at || (plan->deadline_us >= 0 && !at_kernel_is_own(made->kernel))) {
        attune_kernel_release(made->kernel);
        at_free(&plan->context->allocator, made);
        return ATTUNE_CODEGEN_MISSING;
    }
    made->key = *key;
    made->layout.arguments = *a;
    at_layout_settle(&made->kernel->signature, &made->layout);
    pl_tell_swap(plan, made->kernel, &p);
    *out = made;
    return ATTUNE_OK;
}

void pl_specialise(attune_plan *plan, const attune_arguments *a, pl_kind kind, const pl_key *key) {
    const uint32_t count = atomic_load(&plan->num_special);
    if (count >= plan->options.max_specialised || pl_find_special(plan, key)) return;
    const attune_status status = make(plan, a, kind, key, &plan->special[count]);
    if (!status) atomic_store_explicit(&plan->num_special, count + 1, memory_order_release);
    /* If strict mode refuses a kernel, little is lost, and other lengths may be cached: the plan goes on. After other
     * failures it does not try again, because a worker that hangs would hang every time. */
    const bool may_go_on =
        !status || status == ATTUNE_NOT_CACHED || status == ATTUNE_INVALID_PROBLEM || status == ATTUNE_UNSUPPORTED;
    if (!may_go_on || plan->num_special == plan->options.max_specialised) atomic_store(&plan->is_complete, true);
}

/* ---- Counting ---- */

enum { COUNT_BITS = 16 };

static uint64_t hash_of(const pl_key *key) {
    uint64_t hash = (uint64_t)key->batch;
    for (int i = 0; i < PL_NUM_LENGTHS; i++)
        hash = (hash ^ (uint64_t)key->lengths[i]) * UINT64_C(0x9e3779b97f4a7c15) ^ hash >> 29;
    return hash >> COUNT_BITS << COUNT_BITS;
}

static void promote(attune_plan *plan, const attune_arguments *a, pl_kind kind, const pl_key *key) {
    if (plan->is_background) {
        plan->job_is_special = true;
        plan->job_kind = kind;
        plan->job_key = *key;
        plan->job_arguments = *a;
        pl_submit(plan);
    } else {
        pl_specialise(plan, a, kind, key);
        pl_end(plan);
    }
}

/* Counts of several threads at once may be lost: the kernel then comes one call later. */
void pl_count_key(attune_plan *plan, const attune_arguments *a, pl_kind kind, const pl_key *key) {
    if (atomic_load_explicit(&plan->is_complete, memory_order_relaxed)) return;
    /* The kernel of all lengths comes first. */
    if (plan->deadline_us >= 0 && !plan->kernels[kind] && !plan->next_try[kind]) return;
    const uint64_t hash = hash_of(key), last = atomic_load_explicit(&plan->streak, memory_order_relaxed);
    const uint32_t most = plan->options.repeats, before = last >> COUNT_BITS == hash >> COUNT_BITS ? (uint16_t)last : 0;
    if (before >= most) return; /* it was tried */
    uint32_t calls = before + 1;
    if (calls == most && pl_begin(plan)) {
        promote(plan, a, kind, key);
    } else if (calls == most) {
        calls = before; /* another thread compiles: next time */
    }
    atomic_store_explicit(&plan->streak, hash | calls, memory_order_relaxed);
}
