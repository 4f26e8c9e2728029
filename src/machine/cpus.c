/* The smaller of two limits: CPUs of the affinity mask, and the quota of the cgroup or of a group above it. */
#define _GNU_SOURCE
#include "machine/cpus.h"

#include "host/io.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_WORKERS = 1024 };

/* ---- cgroups ---- */

/* The numbers at the beginning of a file. "max" is not a number. */
static int read_numbers(const char *directory, const char *file, long long *first, long long *second) {
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", directory, file) >= sizeof path) return 0;
    FILE *stream = at_io_stream(path);
    if (!stream) return 0;
    const int fields = fscanf(stream, "%lld %lld", first, second);
    fclose(stream);
    return fields > 0 ? fields : 0;
}

static uint32_t whole_cpus(long long quota, long long period) {
    if (quota <= 0 || period <= 0) return 0;
    const long long cpus = (quota - 1) / period + 1;
    return cpus < MOST_WORKERS ? (uint32_t)cpus : MOST_WORKERS;
}

/* Version 2 has both numbers in one file, version 1 has a file for each. */
static uint32_t quota_of_directory(const char *directory) {
    long long quota = 0, period = 0, unused;
    if (read_numbers(directory, "cpu.max", &quota, &period) == 2) return whole_cpus(quota, period);
    if (read_numbers(directory, "cpu.cfs_quota_us", &quota, &unused) < 1) return 0;
    if (read_numbers(directory, "cpu.cfs_period_us", &period, &unused) < 1) return 0;
    return whole_cpus(quota, period);
}

static uint32_t tighter(uint32_t a, uint32_t b) { return !a || (b && b < a) ? b : a; }

/* The group and all groups above it: a quota holds for everything below its group. */
static uint32_t quota_upwards(const char *root, const char *group) {
    char path[PATH_MAX];
    uint32_t quota = 0;
    if ((size_t)snprintf(path, sizeof path, "%s%s", root, group) >= sizeof path) return 0;
    for (;;) {
        quota = tighter(quota, quota_of_directory(path));
        char *const slash = strrchr(path, '/');
        if (!slash || (size_t)(slash - path) < strlen(root)) return quota;
        *slash = '\0';
    }
}

/* Whether a list of controllers separated by commas, as "cpu,cpuacct", has one. */
static int has_controller(const char *list, const char *name) {
    const size_t length = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, name, length) && (at[length] == ',' || !at[length])) return 1;
    return 0;
}

/* A line is ID:CONTROLLERS:GROUP; that of version 2 names no controllers. A container may see the host's name of its
 * group while its mounted root is the group itself: then only the root has the quota. */
static uint32_t quota_of_line(char *line, const char *root) {
    char *const controllers = strchr(line, ':');
    char *const group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) return 0;
    *group = '\0';
    if (!controllers[1]) return quota_upwards(root, group + 1);
    if (!has_controller(controllers + 1, "cpu")) return 0;
    char mount[PATH_MAX];
    static const char *const names[] = {"cpu", "cpu,cpuacct"};
    uint32_t quota = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((size_t)snprintf(mount, sizeof mount, "%s/%s", root, names[i]) < sizeof mount)
            quota = tighter(quota, quota_upwards(mount, group + 1));
    return quota;
}

uint32_t at_cgroup_quota(const char *groups, const char *root) {
    char line[PATH_MAX];
    uint32_t quota = 0;
    FILE *stream = at_io_stream(groups);
    if (!stream) return 0;
    while (fgets(line, sizeof line, stream)) {
        line[strcspn(line, "\n")] = '\0';
        quota = tighter(quota, quota_of_line(line, root));
    }
    fclose(stream);
    return quota;
}

/* ---- All limits ---- */

uint32_t at_cpus_allowed(void) {
    cpu_set_t cpus;
    uint32_t allowed = 1;
    if (!sched_getaffinity(0, sizeof cpus, &cpus)) {
        allowed = (uint32_t)CPU_COUNT(&cpus);
    } else { /* more CPUs than the set has room for */
        const long online = sysconf(_SC_NPROCESSORS_ONLN);
        if (online > 0) allowed = (uint32_t)online;
    }
    const uint32_t quota = allowed > 1 ? at_cgroup_quota("/proc/self/cgroup", "/sys/fs/cgroup") : 0;
    if (quota && quota < allowed) allowed = quota;
    if (allowed > MOST_WORKERS) allowed = MOST_WORKERS;
    return allowed ? allowed : 1;
}
