/* The default parallel_for: pthreadpool, created by the first run that needs it. */
#ifndef ATTUNE_RUNTIME_POOL_H
#define ATTUNE_RUNTIME_POOL_H

#include <attune.h>
#include <pthread.h>
#include <stdbool.h>

typedef struct at_pool {
    uint32_t num_workers;
    pthread_mutex_t busy;        /* held by the run that has the threads */
    struct pthreadpool *threads; /* NULL until needed */
    long owner;                  /* process that made the threads: they do not survive fork() */
} at_pool;

void at_pool_init(at_pool *pool, uint32_t num_workers);
void at_pool_free(at_pool *pool);

/* An attune_parallel_for_fn; `user` is the at_pool. While another run has the threads, this one runs by itself. */
void at_pool_run(void *user, attune_range_fn *fn, void *argument, int64_t n);

/* How many threads this process may keep busy: the CPUs it may run on, cut by its cgroup's quota. At least 1. */
uint32_t at_pool_default_workers(void);

#endif
