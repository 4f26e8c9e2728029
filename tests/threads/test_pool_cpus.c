/* Where the threads of a pool may run, on a machine of four CPUs that this program pretends to have. */
#define _GNU_SOURCE
#include "threads/pool.h"

#include <dlfcn.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

enum { CPUS = 4, TASKS = 16, ALL = (1 << CPUS) - 1 };

/* CPUs as bits: those of the calling thread, of the pool's only thread, and those that a new thread is to have. */
static struct {
    int cpu, caller, helper, asked;
    bool is_forbidden; /* to choose the CPUs of a thread */
} machine;

static int bits_of(const cpu_set_t *set) {
    int bits = 0;
    for (int cpu = 0; cpu < CPUS; cpu++) bits |= CPU_ISSET(cpu, set) ? 1 << cpu : 0;
    return bits;
}

static int give(int bits, cpu_set_t *set) {
    CPU_ZERO(set);
    for (int cpu = 0; cpu < CPUS; cpu++)
        if (bits >> cpu & 1) CPU_SET(cpu, set);
    return 0;
}

/* They take the place of libc's. */
int sched_getcpu(void) { return machine.cpu; }

int sched_getaffinity(pid_t process, size_t bytes, cpu_set_t *set) {
    (void)process, (void)bytes;
    return give(machine.caller, set);
}

int pthread_getaffinity_np(pthread_t thread, size_t bytes, cpu_set_t *set) {
    (void)thread, (void)bytes;
    return give(machine.helper, set);
}

int pthread_setaffinity_np(pthread_t thread, size_t bytes, const cpu_set_t *set) {
    (void)thread, (void)bytes;
    machine.helper = bits_of(set);
    return 0;
}

int pthread_attr_setaffinity_np(pthread_attr_t *attributes, size_t bytes, const cpu_set_t *set) {
    (void)attributes;
    machine.asked = bytes ? bits_of(set) : 0;
    return 0;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    if (machine.asked && machine.is_forbidden) return EPERM;
    machine.helper = machine.asked ? machine.asked : machine.caller;
    return real(thread, attributes, start, argument);
}

static void do_nothing(void *argument, int64_t begin, int64_t end, uint32_t worker) {
    (void)argument, (void)begin, (void)end, (void)worker;
}

/* The CPUs of the helper after a run of a caller on a CPU, which may use these CPUs; long after the last run. */
static int after_run(at_pool *pool, int cpu, int caller) {
    machine.cpu = cpu, machine.caller = caller;
    atomic_store(&pool->avoided_at, 0);
    atomic_store(&pool->alone_until, 0);
    at_pool_run(pool, do_nothing, NULL, TASKS, 2, AT_LONG_WORK, 0);
    assert_int_equal(atomic_load(&pool->num_threads), 1);
    return machine.helper;
}

static void open_pool(at_pool *pool) {
    machine.cpu = 0, machine.caller = ALL, machine.is_forbidden = false;
    at_pool_init(pool, at_default_allocator(), 2);
}

static void helpers_keep_off_the_callers_cpu(void **state) {
    (void)state;
    at_pool pool;
    open_pool(&pool);
    assert_int_equal(after_run(&pool, 2, ALL), ALL & ~4);
    assert_int_equal(after_run(&pool, 2, ALL), ALL & ~4);
    assert_int_equal(after_run(&pool, 0, ALL), ALL & ~1);
    at_pool_free(&pool);
}

/* Else a caller that binds itself would share its CPU with them, and leave another one idle. */
static void helpers_of_a_bound_caller_may_run_anywhere(void **state) {
    (void)state;
    at_pool pool;
    open_pool(&pool);
    assert_int_equal(after_run(&pool, 0, 1), ALL);
    assert_int_equal(after_run(&pool, 0, ALL), ALL & ~1);
    assert_int_equal(after_run(&pool, 0, 1), ALL & ~1);
    assert_int_equal(after_run(&pool, 3, 8), ALL);
    assert_int_equal(after_run(&pool, 3, ALL), ALL & ~8);
    at_pool_free(&pool);
}

/* As by taskset -a, also where these CPUs are those that the pool has chosen. */
static void helpers_that_somebody_binds_stay_there(void **state) {
    (void)state;
    for (int chosen = 1; chosen < ALL; chosen++) {
        at_pool pool;
        open_pool(&pool);
        assert_int_equal(after_run(&pool, 0, ALL), ALL & ~1);
        machine.helper = chosen;
        for (int cpu = 0; cpu < CPUS; cpu++)
            if (chosen >> cpu & 1) assert_int_equal(after_run(&pool, cpu, chosen), chosen);
        at_pool_free(&pool);
    }
}

static void a_helper_starts_where_nobody_may_choose(void **state) {
    (void)state;
    at_pool pool;
    open_pool(&pool);
    machine.is_forbidden = true;
    assert_int_equal(after_run(&pool, 0, ALL), ALL);
    assert_int_equal(after_run(&pool, 1, ALL), ALL);
    at_pool_free(&pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(helpers_keep_off_the_callers_cpu),
        cmocka_unit_test(helpers_of_a_bound_caller_may_run_anywhere),
        cmocka_unit_test(helpers_that_somebody_binds_stay_there),
        cmocka_unit_test(a_helper_starts_where_nobody_may_choose),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
