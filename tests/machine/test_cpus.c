/* The CPU quotas of cgroups, read from directories made up here. */
#define _GNU_SOURCE
#include "machine/cpus.h"
#include "support/temp_dir.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

/* Makes the file and the directories on its way. */
static void write_file(const char *root, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        if (mkdir(path, 0700)) assert_int_equal(errno, EEXIST);
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static uint32_t quota(const char *root, const char *groups) {
    char path[512];
    write_file(root, "groups", groups);
    snprintf(path, sizeof path, "%s/groups", root);
    return at_cgroup_quota(path, root);
}

static int make_root(void **state) {
    char *root = malloc(TEMP_DIR_CHARS);
    temp_dir_make(root);
    *state = root;
    return 0;
}

/* The directories below it go with it. */
static int remove_root(void **state) {
    temp_dir_remove_all(*state);
    free(*state);
    return 0;
}

static void version_2(void **state) {
    const char *root = *state;
    assert_int_equal(quota(root, "0::/a/b\n"), 0);
    write_file(root, "a/b/cpu.max", "max 100000\n");
    assert_int_equal(quota(root, "0::/a/b\n"), 0);
    write_file(root, "a/b/cpu.max", "250000 100000\n");
    assert_int_equal(quota(root, "0::/a/b\n"), 3); /* rounded up */
    write_file(root, "a/cpu.max", "100000 100000\n");
    assert_int_equal(quota(root, "0::/a/b\n"), 1); /* the limit of the group above holds here */
    write_file(root, "a/cpu.max", "400000 100000\n");
    assert_int_equal(quota(root, "0::/a/b\n"), 3);
    assert_int_equal(quota(root, "0::/a\n"), 4);
    write_file(root, "cpu.max", "200000 100000\n"); /* a container sees its own group as the root */
    assert_int_equal(quota(root, "0::/\n"), 2);
    assert_int_equal(quota(root, "0::/not/there\n"), 2);
}

static void version_1(void **state) {
    const char *root = *state;
    const char *groups = "5:memory:/x\n4:cpu,cpuacct:/x/y\n1:name=systemd:/x\n";
    assert_int_equal(quota(root, groups), 0);
    write_file(root, "cpu,cpuacct/x/y/cpu.cfs_quota_us", "-1\n");
    write_file(root, "cpu,cpuacct/x/y/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota(root, groups), 0);
    write_file(root, "cpu,cpuacct/x/y/cpu.cfs_quota_us", "150000\n");
    assert_int_equal(quota(root, groups), 2);
    write_file(root, "cpu,cpuacct/x/cpu.cfs_quota_us", "100000\n");
    write_file(root, "cpu,cpuacct/x/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota(root, groups), 1);
    write_file(root, "memory/x/cpu.cfs_quota_us", "1\n"); /* of no controller of CPUs */
    assert_int_equal(quota(root, "5:memory:/x\n2:cpuset:/x\n"), 0);
    write_file(root, "cpu/z/cpu.cfs_quota_us", "700000\n");
    write_file(root, "cpu/z/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota(root, "3:cpuacct,cpu:/z\n"), 7);
}

static void nonsense_is_no_quota(void **state) {
    const char *root = *state;
    static const char *const texts[] = {"", "x\n", "0 100000\n", "100000 0\n", "-5 -5\n", "99999999999999999999 1\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_file(root, "g/cpu.max", texts[i]);
        const uint32_t found = quota(root, "0::/g\n");
        if (found && i < 5) fail_msg("%u CPUs of \"%s\"", found, texts[i]);
    }
    assert_int_equal(quota(root, "no colon\n1:one\n\n"), 0);
    assert_int_equal(at_cgroup_quota("/nowhere/at/all", root), 0);
}

static void affinity_counts(void **state) {
    (void)state;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &before) && !CPU_COUNT(&one)) CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(at_cpus_allowed(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_in_range(at_cpus_allowed(), 1, CPU_COUNT(&before));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(version_2, make_root, remove_root),
        cmocka_unit_test_setup_teardown(version_1, make_root, remove_root),
        cmocka_unit_test_setup_teardown(nonsense_is_no_quota, make_root, remove_root),
        cmocka_unit_test(affinity_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
