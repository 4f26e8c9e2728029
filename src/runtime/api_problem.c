/* The public functions on problems, schedules and arguments: mha does the work. */
#include "runtime/context.h"

#include <string.h>

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
    attune_problem p;
    if (!arguments || !problem) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_arguments_init was given NULL");
        return at_report(&err);
    }
    if (mha_canonicalize(problem, &p, &err)) return at_report(&err);
    *arguments = (attune_arguments){
        .struct_size = sizeof *arguments, .batch = p.batch, .num_heads = p.num_heads, .num_kv_heads = p.num_kv_heads};
    memcpy(arguments->q_strides, p.q_strides, sizeof p.q_strides);
    memcpy(arguments->k_strides, p.k_strides, sizeof p.k_strides);
    memcpy(arguments->v_strides, p.v_strides, sizeof p.v_strides);
    memcpy(arguments->out_strides, p.out_strides, sizeof p.out_strides);
    memcpy(arguments->lse_strides, p.lse_strides, sizeof p.lse_strides);
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
