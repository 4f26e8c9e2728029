/* How many threads this process may keep busy. */
#ifndef ATTUNE_MACHINE_CPUS_H
#define ATTUNE_MACHINE_CPUS_H

#include <stdint.h>

/* The number of CPUs that the calling thread may run on, limited by the CPU quotas of its cgroups (v1 and v2). At least
 * 1. */
uint32_t at_cpus_allowed(void);

/* The smallest quota of the groups in `groups` (a file like /proc/self/cgroup) below `root` (like /sys/fs/cgroup), in
 * whole CPUs, rounded up; 0: there is none. */
uint32_t at_cgroup_quota(const char *groups, const char *root);

#endif
