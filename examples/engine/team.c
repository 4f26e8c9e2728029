/* Threads that run the same program, and wait for each other at barriers. */
#include "engine.h"

#include <pthread.h>
#include <sched.h>

enum { SPINS = 4000, MOST_THREADS = 64 };

typedef struct member {
    void (*program)(void *user, int thread);
    void *user;
    int thread;
} member;

static void *start(void *argument) {
    const member *m = argument;
    m->program(m->user, m->thread);
    return NULL;
}

void team_run(team *t, void (*program)(void *user, int thread), void *user) {
    pthread_t threads[MOST_THREADS];
    member members[MOST_THREADS];
    if (t->num_threads < 1 || t->num_threads > MOST_THREADS) die("threads must be from 1 to %d", MOST_THREADS);
    for (int i = 0; i < t->num_threads; i++) {
        members[i] = (member){program, user, i};
        if (i && pthread_create(&threads[i], NULL, start, &members[i])) die("no more threads");
    }
    start(&members[0]);
    for (int i = 1; i < t->num_threads; i++) pthread_join(threads[i], NULL);
}

/* The last thread to arrive lets the others go. A thread that waits for long gives its CPU away. */
void team_barrier(team *t) {
    const unsigned epoch = atomic_load_explicit(&t->epoch, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&t->arrived, 1, memory_order_acq_rel) == t->num_threads - 1) {
        atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&t->next, 0, memory_order_relaxed);
        atomic_store_explicit(&t->epoch, epoch + 1, memory_order_release);
        return;
    }
    for (int spins = 0; atomic_load_explicit(&t->epoch, memory_order_acquire) == epoch; spins++)
        if (spins > SPINS) sched_yield();
}

bool team_take(team *t, int64_t all, int64_t count, int64_t *begin, int64_t *end) {
    *begin = atomic_fetch_add_explicit(&t->next, count, memory_order_relaxed);
    *end = *begin + count < all ? *begin + count : all;
    return *begin < all;
}

void team_execute(team *t, int thread, attune_call *call) {
    const uint32_t phases = attune_call_num_phases(call); /* after the last barrier the call may be gone */
    for (uint32_t phase = 0; phase < phases; phase++) {
        const int64_t tasks = attune_call_num_tasks(call, phase), few = tasks / (8 * t->num_threads);
        int64_t begin, end;
        while (team_take(t, tasks, few ? few : 1, &begin, &end))
            check(attune_call_execute(call, phase, begin, end, (uint32_t)thread));
        team_barrier(t);
    }
    if (thread == 0) check(attune_call_end(call));
}
