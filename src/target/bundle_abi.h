/* The contract between the data of a bundle (src/bundle writes it), the run time that is part of a bundle
 * (src/bundle_run), and a library that takes kernels from a bundle.
 *
 * All of it is constant, and lies in the program as `attune bundle` wrote it; what a process finds out lies in
 * at_bundle_state. Pointers are the only relocations. */
#ifndef ATTUNE_TARGET_BUNDLE_ABI_H
#define ATTUNE_TARGET_BUNDLE_ABI_H

#include "target/kernel_abi.h"

enum { AT_BUNDLE_VERSION = 2 };

typedef struct at_bundle_phase {
    at_phase_fn *run;
    uint64_t scratch_bytes;
} at_bundle_phase;

/* A kernel's code for one target and tuning class. */
typedef struct at_bundle_code {
    const char *target, *machine; /* "avx512", "zen5" */
    const char *name;             /* as it was asked for: "avx512:zen5", or "avx512" of the generic class */
    const char *schedule;         /* as text */
    at_plan_fn *plan;
    const at_bundle_phase *phases;
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
    const char *name;                     /* as in the manifest: "attn" */
    const char *problem;                  /* as text */
    const struct at_signature *signature; /* call/call.h */
    const at_bundle_field *fields;
    const at_bundle_code *codes; /* in the order of the table of targets, best first */
    at_bundle_state *state;
    uint32_t num_fields, num_codes;
    uint32_t is_described; /* the problem is a text that begins with op= (described/described.h); no functions */
    uint32_t reserved;
} at_bundle_kernel;

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
