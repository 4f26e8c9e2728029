/* A step of an index, followed by attention to the keys that it chooses. */
#include "attention/attention.h"
#include "base/fpenv.h"
#include "index/index.h"

#include <stdlib.h>
#include <string.h>

enum { LISTS = 2, OF_DLPACK_SIGNED = 0, ON_CPU = 1 };

/* The lists in attention's form: lengths [batch, seq_q], in a ragged batch [1, queries]; ids have one more dim. */
typedef struct lists {
    int64_t dims[LISTS + 1];
    attune_dltensor ids, lens;
} lists;

static attune_dltensor list_of(int32_t *data, int ndim, int64_t *dims) {
    return (attune_dltensor){.data = data,
                             .device_type = ON_CPU,
                             .ndim = ndim,
                             .dtype_code = OF_DLPACK_SIGNED,
                             .dtype_bits = 32,
                             .dtype_lanes = 1,
                             .shape = dims};
}

static void describe_lists(lists *l, const attune_index_step *s, int64_t queries, int64_t num_ids) {
    l->dims[0] = s->cu_seqlens_q ? 1 : s->batch;
    l->dims[1] = s->cu_seqlens_q ? queries : s->seq_q;
    l->dims[2] = num_ids;
    l->ids = list_of(s->ids, 3, l->dims);
    l->lens = list_of(s->lens, 2, l->dims);
}

/* What runs attention: an attention, or a plan of its step. */
typedef struct follower {
    attune_attention *attention; /* NULL: the plan */
    const attune_step_plan *plan;
} follower;

/* Adds the lists to the bindings of the attention's step. */
static attune_status attend(const follower *f, const attune_step *given, const lists *l, at_error *err) {
    attune_step step = *given;
    const size_t own = step.bindings ? step.num_bindings : 0;
    attune_binding *const bindings = calloc(own + LISTS, sizeof *bindings);
    if (!bindings) return at_fail_memory(err, (own + LISTS) * sizeof *bindings);
    if (own) memcpy(bindings, step.bindings, own * sizeof *bindings);
    bindings[own] = (attune_binding){"kv_ids", &l->ids};
    bindings[own + 1] = (attune_binding){"kv_id_lens", &l->lens};
    step.bindings = bindings, step.num_bindings = own + LISTS;
    const attune_status status =
        f->attention ? attune_attention_run(f->attention, &step) : attune_step_plan_run(f->plan, &step);
    if (status) at_fail(err, status, "%s", attune_last_message());
    free(bindings);
    return err->status;
}

static attune_status choose_and_attend(attune_index *index, const attune_index_step *given, const follower *f,
                                       const attune_step *step, at_error *err) {
    const int64_t num_ids = index->desc.num_ids;
    attune_index_step s = *given;
    int64_t queries;
    lists l;
    if (idx_count_queries(index, &s, &queries, err)) return err->status;
    const size_t bytes = (size_t)queries * ((size_t)num_ids + 1) * sizeof(int32_t);
    int32_t *const memory = malloc(bytes ? bytes : 1);
    if (!memory) return at_fail_memory(err, bytes);
    if (!s.ids) s.ids = memory;
    if (!s.lens) s.lens = memory + queries * num_ids;
    describe_lists(&l, &s, queries, num_ids);
    if (!idx_run_step(index, &s, false, err)) attend(f, step, &l, err);
    free(memory);
    return err->status;
}

static attune_status run(const char *function, attune_index *index, const attune_index_step *index_step,
                         const follower *f, const attune_step *step) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_index_step own;
    attune_step its;
    const void *const second = f->attention ? (const void *)f->attention : f->plan;
    if (!index || !index_step)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "%s was given no %s", function, index ? "step of it" : "index");
    else if (!at_copy_in(&idx_described.step, index_step, &own, &err) &&
             !an_take_step(function, "attention or plan", second, step, &its, &err))
        choose_and_attend(index, &own, f, &its, &err);
    return at_report(&err);
}

attune_status attune_index_attend(attune_index *index, const attune_index_step *index_step, attune_attention *attention,
                                  const attune_step *step) {
    return run("attune_index_attend", index, index_step, &(follower){.attention = attention}, step);
}

attune_status attune_index_attend_plan(attune_index *index, const attune_index_step *index_step,
                                       const attune_step_plan *plan, const attune_step *step) {
    return run("attune_index_attend_plan", index, index_step, &(follower){.plan = plan}, step);
}
