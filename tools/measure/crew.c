/* Threads sleep between measurements, meet spinning at the beginning of each, and are timed from the first begin to the
 * last end. */
#define _GNU_SOURCE
#include "measure/crew.h"

#include "common/tool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

typedef struct member {
    struct crew *crew;
    pthread_t thread;
    uint32_t number;
    double start, end;
} member;

struct crew {
    uint32_t count, started; /* started: helper threads that exist */
    pthread_mutex_t lock;
    pthread_cond_t called;
    uint64_t round; /* under the lock; helpers wait for it to grow */
    bool stop;
    cpu_set_t allowed; /* the CPUs of the thread that made the crew */
    crew_fn *fn;
    void *argument;
    _Atomic uint32_t ready, finished;
    member members[];
};

/* Spins: waking up a member that slept here would take longer than some measurements. */
static void meet(_Atomic uint32_t *arrived, uint32_t count) {
    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < count) sched_yield();
}

static void work(crew *c, member *m) {
    meet(&c->ready, c->count);
    m->start = tool_now_us();
    c->fn(c->argument, m->number);
    m->end = tool_now_us();
}

/* Puts the calling thread on the CPU with this number among those it may use. Otherwise two sleeping members may wake
 * up on one CPU and stay there during a whole probe. */
static void stay_on(const cpu_set_t *allowed, uint32_t number) {
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, allowed) && number-- == 0) CPU_SET(cpu, &one);
    if (CPU_COUNT(&one)) sched_setaffinity(0, sizeof one, &one);
}

static void *helper_main(void *argument) {
    member *const m = argument;
    crew *const c = m->crew;
    stay_on(&c->allowed, m->number);
    for (uint64_t seen = 0;;) {
        pthread_mutex_lock(&c->lock);
        while (c->round == seen && !c->stop) pthread_cond_wait(&c->called, &c->lock);
        seen = c->round;
        const bool stop = c->stop;
        pthread_mutex_unlock(&c->lock);
        if (stop) return NULL;
        work(c, m);
        atomic_fetch_add(&c->finished, 1);
    }
}

double crew_run(crew *c, crew_fn *fn, void *argument) {
    atomic_store(&c->ready, 0);
    atomic_store(&c->finished, 0);
    pthread_mutex_lock(&c->lock);
    c->fn = fn;
    c->argument = argument;
    c->round++;
    pthread_cond_broadcast(&c->called);
    pthread_mutex_unlock(&c->lock);
    /* Afterwards the caller may move again: the threads of a pool need CPUs of their own, too. */
    if (c->count > 1) stay_on(&c->allowed, 0);
    work(c, &c->members[0]);
    meet(&c->finished, c->count);
    if (c->count > 1) sched_setaffinity(0, sizeof c->allowed, &c->allowed);
    /* The sum of the speeds: threads of a pool share out work as they finish, so one slow CPU does not decide. */
    double speed = 0;
    for (uint32_t i = 0; i < c->count; i++) speed += 1 / (c->members[i].end - c->members[i].start);
    return (double)c->count / speed;
}

crew *crew_create(uint32_t members) {
    crew *const c = calloc(1, sizeof *c + members * sizeof *c->members);
    if (!c) {
        tool_error("out of memory for %u threads", members);
        return NULL;
    }
    c->count = members;
    sched_getaffinity(0, sizeof c->allowed, &c->allowed);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->called, NULL);
    for (uint32_t i = 1; i < members; i++) {
        c->members[i].crew = c;
        c->members[i].number = i;
        if (pthread_create(&c->members[i].thread, NULL, helper_main, &c->members[i]) != 0) {
            tool_error("cannot start thread %u of a probe", i + 1);
            crew_destroy(c);
            return NULL;
        }
        c->started++;
    }
    return c;
}

void crew_destroy(crew *c) {
    if (!c) return;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_broadcast(&c->called);
    pthread_mutex_unlock(&c->lock);
    for (uint32_t i = 1; i <= c->started; i++) pthread_join(c->members[i].thread, NULL);
    pthread_cond_destroy(&c->called);
    pthread_mutex_destroy(&c->lock);
    free(c);
}
