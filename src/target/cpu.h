/* The identity of this CPU; its features are in target.h. */
#ifndef ATTUNE_TARGET_CPU_H
#define ATTUNE_TARGET_CPU_H

#include <stdbool.h>
#include <stdint.h>

/* The identity of a CPU. x86: CPUID's vendor, display family, display model, stepping. Arm: "" and the implementer,
 * part and variant of MIDR. All 0 if unknown. */
typedef struct at_cpu_identity {
    bool is_arm;
    char vendor[13]; /* "AuthenticAMD", "GenuineIntel" */
    uint32_t family, model, stepping;
} at_cpu_identity;

/* Read once, into static storage. */
const at_cpu_identity *at_cpu_identity_here(void);

/* "AMD EPYC": the CPU's own name, trimmed. Virtual machines of several generations have the same one. */
const char *at_cpu_name(void);

/* "AMD EPYC (family 25, model 17, stepping 1)": tells those apart. */
const char *at_cpu_description(void);

#endif
