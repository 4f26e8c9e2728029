/* Asks the CPU itself. These neither lock nor remember: the library asks once (target.h, cpu.h), and so does the run
 * time of a bundle. */
#ifndef ATTUNE_TARGET_CPU_PROBE_H
#define ATTUNE_TARGET_CPU_PROBE_H

#include "target/cpu.h"

/* AT_CPU_* of this CPU and its operating system. */
uint32_t at_cpu_probe_features(void);

at_cpu_identity at_cpu_probe_identity(void);

/* Asks Linux for the state of tile registers; see at_cpu_request. */
bool at_cpu_request_tiles(void);

#endif
