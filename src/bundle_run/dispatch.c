/* Which code of a kernel runs on this CPU. */
#include "bundle_run/run.h"
#include "target/cpu_probe.h"
#include "target/target.h"
#include "target/tuning_class.h"

#include <string.h>

static bool runs_on(const at_bundle_code *code, uint32_t features) {
    if (code->required & ~features) return false;
    return !(code->required & AT_CPU_AMX_BF16) || at_cpu_request_tiles();
}

static const at_bundle_code *best_of(const at_bundle_kernel *kernel, uint32_t features) {
    const at_cpu_identity cpu = at_cpu_probe_identity();
    const char *const machine = at_class_of(&cpu);
    const at_bundle_code *const end = at_bundle_codes(kernel) + kernel->num_codes;
    for (const at_bundle_code *code = at_bundle_codes(kernel); code < end; code++)
        if (runs_on(code, features)) return at_bundle_nearest(code, end, machine);
    return NULL;
}

static at_bundle_state *state_of(const at_bundle_kernel *kernel) {
    return (at_bundle_state *)(uintptr_t)at_bundle_to(&kernel->state);
}

/* Several threads may find out at once: all find the same. */
const at_bundle_code *at_bundle_code_of(const at_bundle_kernel *kernel) {
    at_bundle_state *const state = state_of(kernel);
    const at_bundle_code *code = __atomic_load_n(&state->code, __ATOMIC_ACQUIRE);
    if (code) return code;
    code = best_of(kernel, at_cpu_probe_features());
    __atomic_store_n(&state->code, code, __ATOMIC_RELEASE);
    return code;
}

const char *at_bundle_target(const at_bundle_kernel *kernel) {
    const at_bundle_code *code = at_bundle_code_of(kernel);
    return code ? at_bundle_code_name(code) : NULL;
}

/* NULL: the kernel has no such code, or this CPU cannot run it. */
static const at_bundle_code *find_named(const at_bundle_kernel *kernel, const char *name, uint32_t features) {
    const at_bundle_code *const codes = at_bundle_codes(kernel);
    for (uint32_t i = 0; i < kernel->num_codes; i++)
        if (!strcmp(at_bundle_code_name(&codes[i]), name)) return runs_on(&codes[i], features) ? &codes[i] : NULL;
    return NULL;
}

int at_bundle_use(const char *target, const at_bundle *bundle) {
    const uint32_t features = at_cpu_probe_features();
    for (uint32_t k = 0; target && k < bundle->num_kernels; k++)
        if (!find_named(&bundle->kernels[k], target, features)) return ATTUNE_UNSUPPORTED;
    for (uint32_t k = 0; k < bundle->num_kernels; k++) {
        const at_bundle_kernel *kernel = &bundle->kernels[k];
        const at_bundle_code *code = target ? find_named(kernel, target, features) : best_of(kernel, features);
        __atomic_store_n(&state_of(kernel)->code, code, __ATOMIC_RELEASE);
    }
    return ATTUNE_OK;
}
