/* How many threads this process may keep busy. */
#ifndef ATTUNE_RUNTIME_CPUS_H
#define ATTUNE_RUNTIME_CPUS_H

#include <stdint.h>

/* The CPUs that the calling thread may run on, cut by the CPU quotas of its cgroups (v1 and v2). At least 1. */
uint32_t at_cpus_allowed(void);

/* The tightest quota in whole CPUs, rounded up, that the groups of `groups` (a file as /proc/self/cgroup) have below
 * `root` (as /sys/fs/cgroup); 0: there is none. */
uint32_t at_cgroup_quota(const char *groups, const char *root);

#endif
