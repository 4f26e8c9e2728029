/* Lays out the workspace of a call, with checks for overflow. Only a call that has a phase of several tasks needs
 * scratch for several workers. */
#include "call/workspace.h"

#include <stdbool.h>

static bool add_aligned(size_t *total, uint64_t bytes) {
    uint64_t sum;
    if (__builtin_add_overflow((uint64_t)*total, bytes, &sum) || sum > PTRDIFF_MAX - AT_WORKSPACE_ALIGN) return false;
    *total = (size_t)((sum + AT_WORKSPACE_ALIGN - 1) & ~(uint64_t)(AT_WORKSPACE_ALIGN - 1));
    return true;
}

static uint32_t workers_needed(uint32_t max_workers, const at_code_shape *code, const int64_t *plan) {
    for (uint32_t p = 0; p < code->num_phases; p++)
        if (plan[p] > 1) return max_workers;
    return 1;
}

attune_status at_code_size(const at_code_shape *code, uint32_t max_workers, const int64_t plan[AT_PLAN_WORDS],
                           size_t *bytes, at_error *err) {
    size_t total = 0;
    bool fits = true;
    for (uint32_t s = 0; s < code->num_shared; s++) {
        const int64_t shared = plan[code->num_phases + s];
        fits = fits && shared >= 0 && add_aligned(&total, (uint64_t)shared);
    }
    uint64_t scratch;
    fits = fits && !__builtin_mul_overflow(code->max_scratch, workers_needed(max_workers, code, plan), &scratch) &&
           add_aligned(&total, scratch);
    if (!fits) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the workspace of these sizes exceeds the address space");
    *bytes = total;
    return ATTUNE_OK;
}

size_t at_code_place_shared(const at_code_shape *code, const int64_t *plan, void *workspace, void **shared) {
    size_t offset = 0;
    for (uint32_t s = 0; s < code->num_shared; s++) {
        shared[s] = (char *)workspace + offset;
        add_aligned(&offset, (uint64_t)plan[code->num_phases + s]);
    }
    return offset;
}

attune_status at_workspace_check(const void *workspace, size_t bytes, size_t needed, at_error *err) {
    if (!workspace) return ATTUNE_OK;
    if ((uintptr_t)workspace % AT_WORKSPACE_ALIGN)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the workspace (%p) is not aligned to %d bytes", workspace,
                       AT_WORKSPACE_ALIGN);
    if (bytes >= needed) return ATTUNE_OK;
    return at_fail(err, ATTUNE_WORKSPACE_TOO_SMALL, "the workspace has %zu bytes; this call needs %zu", bytes, needed);
}
