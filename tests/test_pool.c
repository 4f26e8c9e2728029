/* The pool of threads where the system has too few to give. */
#define _GNU_SOURCE
#include "runtime/pool.h"

#include <dlfcn.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORKERS = 16, TASKS = 1000 };

static atomic_int threads_left;

/* Takes the place of libc's: fails as under a limit on processes, which root would not feel. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    if (atomic_fetch_sub(&threads_left, 1) <= 0) {
        atomic_fetch_add(&threads_left, 1);
        return EAGAIN;
    }
    return real(thread, attributes, start, argument);
}

/* A thread that has ended makes room for another. */
int pthread_join(pthread_t thread, void **result) {
    int (*real)(pthread_t, void **) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_join");
    const int status = real(thread, result);
    if (!status) atomic_fetch_add(&threads_left, 1);
    return status;
}

static void count(void *argument, int64_t begin, int64_t end, uint32_t worker) {
    assert_true(worker < WORKERS);
    for (int64_t i = begin; i < end; i++) atomic_fetch_add(&((atomic_int *)argument)[i], 1);
}

static void all_tasks_run_with(int threads) {
    static atomic_int done[TASKS];
    at_pool pool;
    for (int i = 0; i < TASKS; i++) atomic_store(&done[i], 0);
    atomic_store(&threads_left, threads);
    at_pool_init(&pool, WORKERS);
    alarm(60); /* ends the test where it would hang */
    at_pool_run(&pool, count, done, TASKS);
    at_pool_run(&pool, count, done, TASKS);
    alarm(0);
    at_pool_free(&pool);
    for (int i = 0; i < TASKS; i++) assert_int_equal(atomic_load(&done[i]), 2);
}

static void every_number_of_threads_does(void **state) {
    (void)state;
    all_tasks_run_with(0);
    all_tasks_run_with(1);
    all_tasks_run_with(WORKERS / 2);
    all_tasks_run_with(10 * WORKERS);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_number_of_threads_does)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
