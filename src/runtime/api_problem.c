/* The public functions on problems, schedules and arguments: mha does the work. */
#include "runtime/context.h"

attune_status attune_problem_parse(const char *text, attune_problem *problem) {
    at_error err = {0};
    if (!text || !problem)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_problem_parse was given NULL");
    else
        mha_problem_parse(text, problem, &err);
    return at_report(&err);
}

size_t attune_problem_print(const attune_problem *problem, char *text, size_t capacity) {
    if (capacity) text[0] = '\0';
    return problem ? mha_problem_print(problem, text, capacity) : 0;
}

attune_status attune_problem_check(const attune_problem *problem) {
    at_error err = {0};
    attune_problem canonical;
    if (!problem)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_problem_check was given NULL");
    else
        mha_canonicalize(problem, &canonical, &err);
    return at_report(&err);
}

double attune_problem_flops(const attune_problem *problem) {
    attune_problem canonical;
    return problem && mha_canonicalize(problem, &canonical, NULL) == ATTUNE_OK ? mha_problem_flops(&canonical) : 0;
}

attune_status attune_arguments_init(attune_arguments *arguments, const attune_problem *problem) {
    at_error err = {0};
    attune_problem canonical;
    at_signature signature;
    if (!arguments || !problem) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_arguments_init was given NULL");
    } else if (mha_canonicalize(problem, &canonical, &err) == ATTUNE_OK) {
        at_signature_init(&signature, &canonical);
        *arguments = signature.defaults;
    }
    return at_report(&err);
}

_Static_assert((int)ATTUNE_MAX_TENSORS >= (int)MHA_NUM_TENSORS, "every problem's tensors fit");

static attune_tensor public_tensor(const at_signature *s, const mha_tensor *t, const at_settled *settled,
                                   const int64_t strides[4]) {
    attune_tensor tensor = {.name = t->name,
                            .dtype = t->dtype,
                            .rank = t->rank,
                            .is_input = (t->access & IR_IN) != 0,
                            .is_output = (t->access & IR_OUT) != 0,
                            .pointer_offset = t->pointer};
    /* A matrix that all heads share has no dimension for them. */
    const int first = t->dims[0] == MHA_LOW_RANK_HEADS && !s->problem.low_rank_heads;
    tensor.rank -= first;
    for (int d = 0; d < tensor.rank; d++) {
        tensor.dims[d] = settled->sizes.of[t->dims[first + d]];
        tensor.strides[d] = strides[first + d];
    }
    return tensor;
}

attune_status attune_tensors(const attune_problem *problem, const attune_arguments *arguments,
                             attune_tensor tensors[ATTUNE_MAX_TENSORS], size_t *count) {
    at_error err = {0};
    attune_problem canonical;
    at_signature signature;
    at_settled settled;
    if (!problem || !tensors || !count) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_tensors was given NULL");
        return at_report(&err);
    }
    *count = 0;
    if (mha_canonicalize(problem, &canonical, &err)) return at_report(&err);
    at_signature_init(&signature, &canonical);
    if (at_call_settle(&signature, arguments ? arguments : &signature.defaults, &settled, &err)) return at_report(&err);
    for (size_t i = 0; i < signature.count; i++)
        tensors[i] = public_tensor(&signature, &signature.tensors[i], &settled, settled.strides[i]);
    *count = signature.count;
    return ATTUNE_OK;
}

attune_status attune_schedule_choose(const attune_context *context, const attune_problem *problem,
                                     attune_schedule *schedule) {
    at_error err = {0};
    attune_problem canonical;
    attune_schedule chosen = ATTUNE_SCHEDULE_INIT;
    if (!context || !problem || !schedule) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_schedule_choose was given NULL");
    } else if (mha_canonicalize(problem, &canonical, &err) == ATTUNE_OK) {
        mha_choose(&canonical, context->target, &chosen);
        at_copy_out(schedule, &chosen, sizeof chosen, "attune_schedule", &err);
    }
    return at_report(&err);
}

attune_status attune_schedule_check(const attune_context *context, const attune_problem *problem,
                                    const attune_schedule *schedule) {
    at_error err = {0};
    attune_problem canonical;
    if (!context || !problem || !schedule)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_schedule_check was given NULL");
    else if (mha_canonicalize(problem, &canonical, &err) == ATTUNE_OK)
        mha_schedule_check(&canonical, schedule, context->target, &err);
    return at_report(&err);
}

attune_status attune_schedule_parse(const char *text, attune_schedule *schedule) {
    at_error err = {0};
    if (!text || !schedule)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_schedule_parse was given NULL");
    else
        mha_schedule_parse(text, schedule, &err);
    return at_report(&err);
}

size_t attune_schedule_print(const attune_schedule *schedule, char *text, size_t capacity) {
    if (capacity) text[0] = '\0';
    return schedule ? mha_schedule_print(schedule, text, capacity) : 0;
}
