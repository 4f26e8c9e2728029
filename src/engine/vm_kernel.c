/* Kernels of the virtual machine, which serve where there is no machine code and no compiler. */
#include "engine/kernel.h"

attune_status at_kernel_from_vm(attune_context *context, const ir_kernel *lowered, attune_kernel **out, at_error *err) {
    at_vm_program *program;
    *out = NULL;
    if (!at_target_runs_here(context->target))
        return at_fail(err, ATTUNE_UNSUPPORTED, "this CPU cannot run kernels for %s", context->target->name);
    attune_status status = at_vm_translate(lowered, context->target, &context->allocator, &program, err);
    if (!status) status = at_kernel_blank(context, at_vm_num_phases(program), out, err);
    if (status) {
        at_free(&context->allocator, program);
        return status;
    }
    attune_kernel *const kernel = *out;
    kernel->engine = ATTUNE_ENGINE_VM;
    kernel->vm = program;
    kernel->num_phases = at_vm_num_phases(program);
    kernel->num_shared = at_vm_num_shared(program);
    kernel->code_bytes = at_vm_bytes(program);
    for (uint32_t p = 0; p < kernel->num_phases; p++) {
        const at_vm_phase *phase = at_vm_phase_of(program, p);
        kernel->phases[p] = (at_kernel_phase){.vm = phase, .scratch_bytes = at_vm_scratch_bytes(phase)};
        if (kernel->phases[p].scratch_bytes > kernel->max_scratch)
            kernel->max_scratch = kernel->phases[p].scratch_bytes;
    }
    kernel->node.bytes = sizeof *kernel + kernel->code_bytes;
    return ATTUNE_OK;
}
