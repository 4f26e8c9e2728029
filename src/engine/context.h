/* What a context and a kernel hold. */
#ifndef ATTUNE_ENGINE_CONTEXT_H
#define ATTUNE_ENGINE_CONTEXT_H

#include "base/struct.h"
#include "cache/disk_cache.h"
#include "cache/memory_cache.h"
#include "cache/record.h"
#include "call/call.h"
#include "compiler/codegen_client.h"
#include "engine/bundles.h"
#include "engine/loader.h"
#include "engine/symbols.h"
#include "engine/tuned.h"
#include "host/log.h"
#include "host/report.h"
#include "machine/cpus.h"
#include "machine/machine.h"
#include "threads/background.h"
#include "threads/spare.h"
#include "threads/team.h"
#include "vm/vm.h"

typedef uintptr_t at_hidden_context; /* a pointer that leak checkers do not see */

struct attune_context {
    at_hidden_context following; /* in the list of the process (engine/fork.c) */
    attune_allocator allocator;
    const at_io *io;
    at_log log;
    const at_target *target;
    at_machine machine;
    at_machine_class machine_class;
    int allow_interpreter;
    bool machine_code_only;
    bool never_by_vm;    /* not for plans with a deadline either */
    bool has_tier0;      /* it may be used */
    bool checks;         /* every call (call/call_debug.h) */
    int64_t deadline_us; /* default of plans: ATTUNE_DEADLINE_US, or -1 */
    at_pool pool;
    at_team team; /* runs the calls that have no runner */
    at_spares spares;
    at_background background;
    at_codegen codegen;
    at_symbols symbols;
    at_disk_cache disk;
    at_memory_cache memory;
    at_tuning tuning;
    at_find_tuned_fn *find_tuned; /* NULL: none */
    at_bundles bundles;
    at_record record;
    _Atomic(attune_operator *) operators; /* registered by the user, the newest first */
    _Atomic int64_t failing_since; /* at_nanoseconds() when compiles began to fail, without a success since; 0: none */
    atomic_ullong disk_hits, compiles, compile_failures, stand_ins, pack_hits, bundle_hits, tier0_hits;
    char isas[64];
};

typedef struct at_kernel_phase {
    at_phase_fn *run;
    uint64_t scratch_bytes;
    const at_vm_phase *vm; /* instead of `run`, or NULL */
} at_kernel_phase;

/* As at_phase_fn. */
static inline void at_kernel_phase_run(const at_kernel_phase *phase, void *const *buffers, const int64_t *scalars,
                                       int64_t begin, int64_t end, void *scratch) {
    if (__builtin_expect(phase->vm != NULL, 0))
        at_vm_run(phase->vm, buffers, scalars, begin, end, scratch);
    else
        phase->run(buffers, scalars, begin, end, scratch);
}

/* A kernel's loop IR, kept if the interpreter may run it or the caller may list its parameters. */
typedef struct at_kernel_ir {
    at_arena arena;
    ir_kernel *kernel; /* lowered */
    attune_ir_parameter *parameters;
    size_t num_parameters, num_buffers, num_scalars;
} at_kernel_ir;

struct attune_kernel {
    at_cache_node node; /* first: the cache and the public handle share the object */
    attune_context *context;
    attune_engine engine;
    attune_origin origin;
    const at_target *target;
    double compile_ms;
    const char *tuning_class; /* for which the schedule was chosen or tuned */

    bool stands_in; /* of another tuning class: nothing could be compiled, or its own is not compiled yet */
    const at_bundle_kernel *tier0; /* the tier-0 kernel whose code it runs, or NULL */
    bool is_general;               /* its code is of the problem that the operator's find_general names */
    bool merges, falls;            /* tier 0: the last phase merges chunks of keys; later rows are computed first */

    const at_operator *op; /* NULL: a candidate of the tuner */
    attune_dtype arithmetic;
    at_signature signature; /* attention: of the first caller; others may differ in batch, heads and outer strides */
    mha_schedule schedule;

    at_code code;
    at_plan_fn *plan;
    at_vm_program *vm; /* NULL, or what runs in place of code and plan */
    uint32_t num_phases, num_shared;
    uint64_t max_scratch, code_bytes;
    at_symbol_handle *symbol;
    at_kernel_ir *ir; /* NULL unless kept */
    at_kernel_phase phases[];
};

/* Whether the kernel takes attune_arguments. Others take buffers and scalars. */
static inline bool at_kernel_is_attention(const attune_kernel *kernel) { return kernel->op == &at_attention; }

enum { AT_MOST_DEADLINE_US = 60000000 };

#endif
