/* The identity of this CPU; its features are in target.h. */
#ifndef ATTUNE_TARGET_CPU_H
#define ATTUNE_TARGET_CPU_H

#include "target/cpu_probe.h"

/* Read once, into static storage. */
const at_cpu_identity *at_cpu_identity_here(void);

/* "AMD EPYC": the CPU's own name, trimmed. Virtual machines of several generations have the same one. */
const char *at_cpu_name(void);

/* "AMD EPYC (family 25, model 17, stepping 1)": tells those apart. */
const char *at_cpu_description(void);

#endif
