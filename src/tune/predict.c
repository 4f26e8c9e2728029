/* Why a schedule is chosen, for people and for plans: what the model expects of it, and which rules decided. */
#include "base/fpenv.h"
#include "engine/context.h"
#include "schedule/choose.h"
#include "schedule/corrections.h"
#include "schedule/cost.h"
#include "tune/space.h"
#include "tune/tuning.h"

attune_status attune_schedule_predict(attune_context *context, const attune_problem *problem, const char *schedule,
                                      attune_prediction *prediction) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_problem canonical;
    mha_schedule own = {0};
    if (!context || !problem || !prediction) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_schedule_predict was given NULL");
        return at_report(&err);
    }
    if (mha_canonicalize(problem, &canonical, &err)) return at_report(&err);
    attune_prediction full = {.struct_size = sizeof full};
    full.is_tuned = !schedule && at_tuning_find(context, at_attention_of(&canonical), &own);
    if (!full.is_tuned && mha_schedule_of(schedule ? schedule : "", &canonical, context->target,
                                          &context->machine_class.description, &own, &err))
        return at_report(&err);
    mha_schedule_print(&own, full.schedule, sizeof full.schedule);
    const mha_machine machine = tune_machine_of(context);
    const mha_costs costs = mha_costs_of(&canonical, &machine, &own);
    full.scores = costs.scores;
    full.softmax = costs.softmax;
    full.values = costs.values;
    full.tasks = costs.tasks;
    full.products = costs.products;
    full.flops_per_cycle = mha_peak_flops(&canonical, &machine);
    at_copy_out(prediction, &full, sizeof full, "attune_prediction", &err);
    return at_report(&err);
}

/* ---- Reasons ---- */

static void tell(const attune_problem *canonical, const mha_machine *machine, const mha_schedule *instead, int row,
                 attune_reason *reason) {
    const mha_correction_row *const r = mha_correction_row_of(row);
    mha_schedule chosen;
    reason->row = row;
    reason->line = r->line;
    reason->subject = r->of;
    reason->condition = r->when;
    reason->factor = r->factor;
    reason->evidence = r->evidence;
    if (mha_schedule_check(canonical, instead, machine->target, NULL)) return;
    mha_schedule_print(instead, reason->schedule, sizeof reason->schedule);
    mha_choose(mha_read(canonical), machine->target, machine->description, &chosen);
    reason->cost = mha_cost(canonical, machine, instead) / mha_cost(canonical, machine, &chosen);
}

attune_status attune_schedule_reason(attune_context *context, const attune_problem *problem, int after,
                                     attune_reason *reason) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_problem canonical;
    if (!context || !problem || !reason) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_schedule_reason was given NULL");
        return at_report(&err);
    }
    if (after < 0) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "rows are counted from 1 on, so none is after row %d", after);
        return at_report(&err);
    }
    if (mha_canonicalize(problem, &canonical, &err)) return at_report(&err);
    const mha_machine machine = tune_machine_of(context);
    attune_reason full = {.struct_size = sizeof full};
    mha_schedule instead;
    const int row = mha_next_reason(after, mha_read(&canonical), &machine, &instead);
    if (row) tell(&canonical, &machine, &instead, row, &full);
    at_copy_out(reason, &full, sizeof full, "attune_reason", &err);
    return at_report(&err);
}
