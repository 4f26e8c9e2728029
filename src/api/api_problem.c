/* The public functions on problems, schedules and arguments. src/problem and src/schedule do the work. */
#include "base/fpenv.h"
#include "engine/context.h"
#include "problem/problem_sight.h"
#include "schedule/schedule.h"

#include <string.h>

attune_status attune_problem_init(attune_problem *problem, size_t struct_size) {
    at_error err = {0};
    at_struct_init(&mha_problem_struct, problem, struct_size, &err);
    return at_report(&err);
}

attune_status attune_problem_parse(attune_problem *problem, const char *text) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (!text || !problem)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_problem_parse was given NULL");
    else
        mha_problem_parse(text, problem, &err);
    return at_report(&err);
}

size_t attune_problem_print(const attune_problem *problem, char *text, size_t capacity) {
    AT_DEFAULT_FPENV;
    if (capacity) text[0] = '\0';
    return problem ? mha_problem_print(problem, text, capacity) : 0;
}

attune_status attune_problem_check(const attune_problem *problem) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_problem canonical;
    if (!problem)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_problem_check was given NULL");
    else
        mha_canonicalize(problem, &canonical, &err);
    return at_report(&err);
}

double attune_problem_flops(const attune_problem *problem) {
    AT_DEFAULT_FPENV;
    attune_problem canonical;
    return problem && mha_canonicalize(problem, &canonical, NULL) == ATTUNE_OK ? mha_problem_flops(&canonical) : 0;
}

static attune_status check_queries(const mha_queries *q, at_error *err) {
    const struct {
        const char *name;
        int64_t value, least, most;
    } values[] = {{"seq_q", q->seq_q, 0, INT32_MAX},
                  {"seq_kv", q->seq_kv, 0, INT32_MAX},
                  {"causal_offset", q->causal_offset, INT32_MIN, INT32_MAX},
                  {"end", q->end, 0, q->seq_q},
                  {"begin", q->begin, 0, q->end}};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (values[i].value < values[i].least || values[i].value > values[i].most)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is %lld; it must be from %lld to %lld", values[i].name,
                           (long long)values[i].value, (long long)values[i].least, (long long)values[i].most);
    return ATTUNE_OK;
}

attune_status attune_sight_of(const attune_problem *problem, int64_t seq_q, int64_t seq_kv, int64_t causal_offset,
                              int64_t begin, int64_t end, attune_sight *sight) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_problem canonical;
    const mha_queries queries = {seq_q, seq_kv, causal_offset, begin, end};
    if (!problem || !sight) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_sight_of was given NULL");
    } else if (!mha_canonicalize(problem, &canonical, &err) && !check_queries(&queries, &err)) {
        const attune_sight full = mha_sight_of_queries(&canonical, &queries);
        at_copy_out(sight, &full, sizeof full, "attune_sight", &err);
    }
    return at_report(&err);
}

attune_status attune_arguments_init_sized(attune_arguments *arguments, size_t struct_size,
                                          const attune_problem *problem) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_problem canonical;
    at_signature signature;
    if (!arguments || !problem) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_arguments_init was given NULL");
    } else if (mha_canonicalize(problem, &canonical, &err) == ATTUNE_OK) {
        at_signature_init(&signature, &canonical);
        const at_struct kind = at_arguments_struct(&signature);
        at_struct_init(&kind, arguments, struct_size, &err);
    }
    return at_report(&err);
}

static attune_tensor public_tensor(const at_signature *s, const mha_tensor *t, const int64_t dims[4],
                                   const int64_t strides[4]) {
    attune_tensor tensor = {.name = t->name,
                            .dtype = t->dtype,
                            .rank = t->rank,
                            .is_input = (t->access & IR_IN) != 0,
                            .is_output = (t->access & IR_OUT) != 0,
                            .pointer_offset = t->pointer};
    const int first = mha_is_headless(&s->problem, t);
    tensor.rank -= first;
    memcpy(tensor.dims, dims + first, (size_t)tensor.rank * sizeof *dims);
    memcpy(tensor.strides, strides + first, (size_t)tensor.rank * sizeof *strides);
    return tensor;
}

/* As far as the problem tells: strides of a tensor with an open dim are those of the problem. */
static attune_status tensor_of_problem(const at_signature *s, const mha_tensor *t, const mha_sizes *sizes,
                                       attune_tensor *tensor, at_error *err) {
    const attune_problem *p = &s->problem;
    int64_t dims[4] = {0}, strides[4] = {0};
    bool is_open = false;
    if (t->problem_strides) memcpy(strides, (const char *)p + t->problem_strides, (size_t)t->rank * sizeof *strides);
    for (int d = 0; d < t->rank; d++) {
        dims[d] = sizes->of[t->dims[d]];
        is_open = is_open || dims[d] < 0;
    }
    const attune_status status = is_open ? ATTUNE_OK : mha_settle_strides(p, t, dims, strides, err);
    *tensor = public_tensor(s, t, dims, strides);
    return status;
}

static attune_status tensors_of_problem(const at_signature *s, attune_tensor *tensors, at_error *err) {
    mha_sizes sizes = s->compiled;
    sizes.of[MHA_BATCH] = s->problem.batch;
    sizes.of[MHA_KV_HEADS] = s->problem.num_kv_heads;
    mha_derive_sizes(&s->problem, &sizes);
    for (size_t i = 0; i < s->count; i++)
        if (tensor_of_problem(s, &s->tensors[i], &sizes, &tensors[i], err)) return err->status;
    return ATTUNE_OK;
}

static attune_status tensors_of_call(const at_signature *s, const attune_arguments *arguments, attune_tensor *tensors,
                                     at_error *err) {
    at_settled settled;
    if (at_call_settle(s, arguments, &settled, err)) return ATTUNE_INVALID_ARGUMENT;
    for (size_t i = 0; i < s->count; i++) {
        const mha_tensor *t = &s->tensors[i];
        int64_t dims[4] = {0};
        for (int d = 0; d < t->rank; d++) dims[d] = settled.sizes.of[t->dims[d]];
        tensors[i] = public_tensor(s, t, dims, settled.strides[i]);
    }
    return ATTUNE_OK;
}

attune_status attune_tensors(const attune_problem *problem, const attune_arguments *arguments, attune_tensor *tensors,
                             size_t capacity, size_t *count) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_problem canonical;
    at_signature signature;
    attune_tensor all[MHA_NUM_TENSORS];
    if (!problem || !count || (capacity && !tensors)) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_tensors was given NULL");
        return at_report(&err);
    }
    *count = 0;
    if (mha_canonicalize(problem, &canonical, &err)) return at_report(&err);
    at_signature_init(&signature, &canonical);
    if (arguments ? tensors_of_call(&signature, arguments, all, &err) : tensors_of_problem(&signature, all, &err))
        return at_report(&err);
    *count = signature.count;
    for (size_t i = 0; i < signature.count && i < capacity; i++) {
        const mha_tensor_id id = signature.tensors[i].id;
        tensors[i] = all[i];
        if (id >= MHA_USER_TENSORS) tensors[i].name = problem->tensors[id - MHA_USER_TENSORS].name;
    }
    return ATTUNE_OK;
}

attune_status attune_schedule_choose(const attune_context *context, const attune_problem *problem, const char *schedule,
                                     char *text, size_t capacity) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_problem canonical;
    mha_schedule chosen;
    char all[ATTUNE_SCHEDULE_BYTES];
    if (!context || !problem || (capacity && !text)) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_schedule_choose was given NULL");
        return at_report(&err);
    }
    if (mha_canonicalize(problem, &canonical, &err) ||
        mha_schedule_of(schedule ? schedule : "", &canonical, context->target, &context->machine_class.description,
                        &chosen, &err))
        return at_report(&err);
    const size_t length = mha_schedule_print(&chosen, all, sizeof all);
    if (capacity && length >= capacity)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "the schedule's text needs %zu bytes, but capacity is %zu", length + 1,
                capacity);
    else if (capacity)
        memcpy(text, all, length + 1);
    return at_report(&err);
}
