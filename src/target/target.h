/* The table of instruction sets that attune generates code for, and the features of this CPU. */
#ifndef ATTUNE_TARGET_TARGET_H
#define ATTUNE_TARGET_TARGET_H

#include "base/error.h"
#include "target/cpu_features.h"

#include <stdbool.h>

/* Operations that the IR may use on a target (see the NEEDS_* traits of ir/ops.def), and facts that builders may rely
 * on. */
enum {
    AT_TARGET_FMA = 1,       /* fused multiply-add */
    AT_TARGET_ROUND = 2,     /* rint is one instruction */
    AT_TARGET_SCALEF = 4,    /* ldexp on float vectors is one instruction */
    AT_TARGET_LANE_MASK = 8, /* mask registers: masked loads and selects are free */
    AT_TARGET_BF16_DOT = 16,
    AT_TARGET_TILES = 32,    /* matrix registers: the IR's tile statements */
    AT_TARGET_BYTE_DOT = 64, /* dot4 is one instruction; elsewhere it is several */
    AT_TARGET_LOOKUP = 128   /* lookup, in tables of up to 128 bytes */
};

typedef struct at_target {
    const char *name; /* "avx512", "avx2", "x86-64", "aarch64", …: as in ATTUNE_ISA and in keys */
    const char *llvm_triple;
    const char *llvm_cpu;      /* for code selection and scheduling; never from the user */
    const char *llvm_features; /* "+avx2,+fma,…" */
    uint32_t flags;            /* AT_TARGET_* */
    uint32_t required;         /* AT_CPU_* that code for it needs */
    uint8_t vector_bytes;
    uint8_t vector_registers;
} at_target;

/* 16, as on x86-64 before AVX-512, in place of 32. */
static inline bool at_has_few_registers(const at_target *target) { return target->vector_registers < 32; }

/* Best first; ends with a NULL name. */
const at_target *at_targets(void);

const at_target *at_target_find(const char *name); /* NULL if unknown */

/* The features this CPU and its operating system offer (CPUID and XCR0, or the auxiliary vector), read once. */
uint32_t at_cpu_features(void);

/* "avx2 fma": their names, in the order of the bits, separated by spaces. Returns `text`. */
enum { AT_CPU_FEATURES_TEXT = 128 };
const char *at_cpu_feature_names(uint32_t features, char text[AT_CPU_FEATURES_TEXT]);

/* Call this before running code that needs these features; false if it cannot run. Linux gives a process tile registers
 * only on request, and then needs larger signal stacks (sigaltstack(2)): so never ask without need. */
bool at_cpu_request(uint32_t features);

/* The target `name`; NULL: that of ATTUNE_ISA; without it or empty: the best this CPU can run. Unknown is
 * ATTUNE_INVALID_ARGUMENT and one this CPU cannot run is ATTUNE_UNSUPPORTED, each with the list of targets. */
attune_status at_target_select(const char *name, const at_target **target, at_error *err);

/* Any target by its name, whether or not it runs here; unknown is ATTUNE_INVALID_ARGUMENT, with the list of targets. */
attune_status at_target_named(const char *name, const at_target **target, at_error *err);

bool at_target_runs_here(const at_target *target);

#endif
