/* The contract between the data of a bundle (src/bundle writes it), the run time that is part of a bundle
 * (src/bundle_run), and a library that takes kernels from a bundle.
 *
 * All of it is constant, and lies in the program as `attune bundle` wrote it; what a process finds out lies in
 * at_bundle_state. Kernels and codes have offsets in place of pointers, so the dynamic linker has nothing to do for
 * them, and processes share their pages. They must not be copied. */
#ifndef ATTUNE_TARGET_BUNDLE_ABI_H
#define ATTUNE_TARGET_BUNDLE_ABI_H

#include "target/kernel_abi.h"

enum { AT_BUNDLE_VERSION = 3 };

/* Bytes from the offset itself to what it leads to; 0: NULL. */
typedef int32_t at_bundle_offset;

static inline const void *at_bundle_to(const at_bundle_offset *offset) {
    return *offset ? (const void *)((uintptr_t)offset + (uintptr_t)(intptr_t)*offset) : NULL;
}

typedef struct at_bundle_phase {
    at_bundle_offset run; /* at_phase_fn */
    uint32_t reserved;
    uint64_t scratch_bytes;
} at_bundle_phase;

/* A kernel's code for one target and tuning class. */
typedef struct at_bundle_code {
    at_bundle_offset target, machine; /* texts: "avx512", "zen5" */
    at_bundle_offset name;            /* as it was asked for: "avx512:zen5", or "avx512" of the generic class */
    at_bundle_offset schedule;        /* text */
    at_bundle_offset plan;            /* at_plan_fn */
    at_bundle_offset phases;          /* at_bundle_phase[num_phases] */
    uint64_t max_scratch, code_bytes;
    uint32_t required; /* AT_CPU_* */
    uint32_t num_phases, num_shared, reserved;
} at_bundle_code;

/* One member of a kernel's arguments, and its place in attune_arguments. Offsets and bytes. */
typedef struct at_bundle_field {
    uint16_t from, to, bytes, reserved;
} at_bundle_field;

/* What a process finds out: the code in use, which any thread may set, or NULL. */
typedef struct at_bundle_state {
    const at_bundle_code *code;
} at_bundle_state;

typedef struct at_bundle_kernel {
    at_bundle_offset name;      /* as in the manifest: "attn" */
    at_bundle_offset problem;   /* text */
    at_bundle_offset signature; /* at_signature (call/call.h) */
    at_bundle_offset fields;    /* at_bundle_field[num_fields] */
    at_bundle_offset codes;     /* at_bundle_code[num_codes], in the order of the table of targets, best first */
    at_bundle_offset state;     /* at_bundle_state, which can be written */
    uint32_t num_fields, num_codes;
    uint32_t is_described; /* the problem is a text that begins with op= (described/described.h); no functions */
    uint32_t reserved;
} at_bundle_kernel;

static inline const char *at_bundle_name(const at_bundle_kernel *kernel) { return at_bundle_to(&kernel->name); }
static inline const char *at_bundle_problem(const at_bundle_kernel *kernel) { return at_bundle_to(&kernel->problem); }
static inline const at_bundle_code *at_bundle_codes(const at_bundle_kernel *kernel) {
    return at_bundle_to(&kernel->codes);
}
static inline const at_bundle_field *at_bundle_fields(const at_bundle_kernel *kernel) {
    return at_bundle_to(&kernel->fields);
}

static inline const char *at_bundle_code_target(const at_bundle_code *code) { return at_bundle_to(&code->target); }
static inline const char *at_bundle_code_machine(const at_bundle_code *code) { return at_bundle_to(&code->machine); }
static inline const char *at_bundle_code_name(const at_bundle_code *code) { return at_bundle_to(&code->name); }
static inline const char *at_bundle_code_schedule(const at_bundle_code *code) { return at_bundle_to(&code->schedule); }
static inline at_plan_fn *at_bundle_code_plan(const at_bundle_code *code) {
    return (at_plan_fn *)(uintptr_t)at_bundle_to(&code->plan);
}
static inline const at_bundle_phase *at_bundle_code_phase(const at_bundle_code *code, uint32_t number) {
    return (const at_bundle_phase *)at_bundle_to(&code->phases) + number;
}
static inline at_phase_fn *at_bundle_phase_run(const at_bundle_phase *phase) {
    return (at_phase_fn *)(uintptr_t)at_bundle_to(&phase->run);
}

/* What a program names. It has pointers, as a program may have a copy of its own. */
typedef struct at_bundle {
    uint32_t version; /* AT_BUNDLE_VERSION */
    uint32_t num_kernels;
    const char *name;         /* that begins the names of its functions */
    const char *generator_id; /* of the library that wrote it */
    const at_bundle_kernel *kernels;
} at_bundle;

/* Among the codes of one target, from `first` on: that of the tuning class, else of the nearest one. */
const at_bundle_code *at_bundle_nearest(const at_bundle_code *first, const at_bundle_code *end, const char *machine);

/* Bytes of a call that is executed in parts. The headers of bundles have a struct of this size. */
enum { AT_BUNDLE_CALL_BYTES = 8192 };

#endif
