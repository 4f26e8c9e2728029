/* From scheduled to lowered IR: verify, the passes in their order, verify again at the stricter level. */
#include "ir/passes.h"
#include "ir/verify.h"

/* Unrolling is last, so that the other passes insert code once and not into each copy. */
static const struct {
    const char *name;
    ir_kernel *(*run)(const ir_kernel *kernel, const at_target *target, at_error *err);
} passes[] = {
    {"lower_math", ir_pass_lower_math},
    {"lower_lets", ir_pass_lower_lets},
    {"legalize", ir_pass_legalize},
    {"unroll", ir_pass_unroll},
};

ir_kernel *ir_lower(const ir_kernel *kernel, const at_target *target, ir_observe_fn *observe, void *user,
                    at_error *err) {
    if (ir_verify(kernel, IR_SCHEDULED, target, err) != ATTUNE_OK) return NULL;
    if (observe) observe(user, "scheduled", kernel);
    ir_kernel *lowered = (ir_kernel *)kernel;
    for (size_t i = 0; i < sizeof passes / sizeof passes[0]; i++) {
        lowered = passes[i].run(lowered, target, err);
        if (!lowered) return NULL;
        if (observe) observe(user, passes[i].name, lowered);
    }
    return ir_verify(lowered, IR_LOWERED, target, err) == ATTUNE_OK ? lowered : NULL;
}
