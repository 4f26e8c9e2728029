/* Asks the CPU itself. These neither lock nor remember: the library asks once (target.h, cpu.h), and so does the run
 * time of a bundle. */
#ifndef ATTUNE_TARGET_CPU_PROBE_H
#define ATTUNE_TARGET_CPU_PROBE_H

#include <stdbool.h>
#include <stdint.h>

/* The identity of a CPU. x86: CPUID's vendor, display family, display model, stepping. Arm: "" and the implementer,
 * part and variant of MIDR. All 0 if unknown. */
typedef struct at_cpu_identity {
    bool is_arm;
    char vendor[13]; /* "AuthenticAMD", "GenuineIntel" */
    uint32_t family, model, stepping;
} at_cpu_identity;

/* AT_CPU_* of this CPU and its operating system. */
uint32_t at_cpu_probe_features(void);

at_cpu_identity at_cpu_probe_identity(void);

/* Asks Linux for the state of tile registers; see at_cpu_request. */
bool at_cpu_request_tiles(void);

#endif
