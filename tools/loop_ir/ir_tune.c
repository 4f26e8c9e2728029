/* The library's tuner compiles and times combinations of the numbers; here is what it gets from the file, and how
 * its result is told. */
#include "loop_ir/ir_tune.h"

#include "loop_ir/ir_params.h"

#include <stdlib.h>
#include <string.h>

static void print_numbers(const ir_params *params, const int32_t *numbers, char *text, size_t capacity) {
    size_t n = 0;
    for (size_t i = 0; i < params->count && n < capacity; i++)
        n += (size_t)snprintf(text + n, capacity - n, "%s%s=%d", i ? "," : "", params->params[i].name, (int)numbers[i]);
}

static bool tell(const char *file, const ir_params *params, const int32_t *numbers, const attune_tune_result *result,
                 json_t *list) {
    char schedule[IR_MAX_PARAMS * (IR_PARAM_NAME + 16)] = "";
    print_numbers(params, numbers, schedule, sizeof schedule);
    const tune_report report = {.problem = file, .schedule = schedule, .result = *result};
    bool is_good = !result->wrong;
    if (!list) {
        tune_report_print(&report);
    } else if (json_array_append_new(list, tune_report_json(&report))) {
        tool_error("%s: the result cannot be printed: out of memory", file);
        is_good = false;
    }
    tune_report_warn(&report);
    if (result->wrong)
        tool_error("%s: with some numbers the kernel has other parameters or gives other bits than with the usual "
                   "ones; these were left out: %llu, the first %s",
                   file, (unsigned long long)result->wrong, result->wrong_schedule);
    return is_good;
}

static bool search(ir_call *call, attune_operator *op, const char *file, const ir_params *params,
                   binding_list *arguments, const attune_tune_options *options, json_t *list) {
    attune_tune_result result = {.struct_size = sizeof result};
    int32_t numbers[IR_MAX_PARAMS] = {0};
    if (!ir_call_bind(call, arguments, true)) return false;
    const bool is_good =
        attune_operator_tune(op, params->problem, call->buffers, call->scalars, options, numbers, &result) == ATTUNE_OK;
    tool_end_progress();
    if (!is_good) tool_library_error("tuning");
    return (is_good || result.space) && tell(file, params, numbers, &result, list) && is_good;
}

bool ir_tune(attune_context *context, const char *file, binding_list *arguments, const attune_tune_options *options,
             json_t *list) {
    ir_call call = {.context = context};
    binding_list none = {.count = 0};
    attune_operator *op;
    ir_params params;
    if (!ir_params_read(&params, file, &none)) return false;
    char *const text = ir_params_fill(&params, params.values);
    bool is_good = text && ir_call_is_contiguous(context, text, file);
    if (is_good && !params.count) {
        tool_error("%s: there is nothing to choose: the file has no line 'param NAME = NUMBER in NUMBER, …'", file);
        is_good = false;
    }
    if (is_good && (ir_params_operator(&params, context, &op) != ATTUNE_OK ||
                    attune_operator_compile(op, params.problem, NULL, &call.kernel) != ATTUNE_OK)) {
        tool_library_error(file);
        is_good = false;
    }
    is_good = is_good && search(&call, op, file, &params, arguments, options, list);
    ir_call_free(&call);
    attune_kernel_release(call.kernel);
    free(text);
    ir_params_free(&params);
    return is_good;
}
