/* The row of attune_problem. */
#include "operator/operator.h"
#include "operator/build.h"
#include "schedule/variant.h"
#include "schedule/schedule.h"

static const attune_problem *problem_of(at_operation operation) { return operation.problem; }

static size_t key(at_operation o, uint8_t bytes[AT_OPERATION_KEY_BYTES]) { return mha_key(problem_of(o), bytes); }

static size_t print(at_operation o, char *text, size_t capacity) {
    return mha_canonical_print(problem_of(o), text, capacity);
}

static const char *source(at_operation o) {
    (void)o;
    return NULL;
}

static attune_status schedule_check(at_operation o, const mha_schedule *schedule, const at_target *target,
                                    at_error *err) {
    return mha_schedule_check(problem_of(o), schedule, target, err);
}

static void schedule_choose(at_operation o, const at_target *target, const at_description *machine,
                            mha_schedule *schedule) {
    mha_choose(mha_read(problem_of(o)), target, machine, schedule);
}

static attune_status schedule_parse(at_operation o, const char *text, mha_schedule *schedule, at_error *err) {
    (void)o;
    return mha_schedule_parse(text, schedule, err);
}

static size_t schedule_print(at_operation o, const mha_schedule *schedule, char *text, size_t capacity) {
    (void)o;
    return mha_schedule_print(schedule, text, capacity);
}

static ir_kernel *build(at_arena *arena, at_operation o, const mha_schedule *schedule, const at_target *target,
                        at_error *err) {
    return mha_build(arena, problem_of(o), schedule, target, err);
}

static attune_dtype arithmetic(at_operation o, const mha_schedule *schedule, const at_target *target) {
    const attune_problem *p = problem_of(o);
    const bool decodes = schedule->strategy == MHA_D_LANES;
    const bool attends = decodes ? mha_decodes_by_pairs(p, target) : mha_attends_by_pairs(p, target);
    if (mha_projects_by_pairs(p, target) || attends) return ATTUNE_BF16;
    return p->softmax_precision == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
}

const at_operator at_attention = {.name = "attention", AT_OPERATOR_FUNCTIONS};
