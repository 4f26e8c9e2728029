/* Several threads run one operator while the compile that has failed so far succeeds: each call has the same bits,
 * whichever kernel it takes. `make tsan` watches how one kernel replaces the other. */
#include "engine/create.h"
#include "host/io.h"
#include "support/statuses.h"

#include <attune/linear.h>

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { THREADS = 4, OBJECTS = 3, DIM = 4, AFTER = 20, MOST_SECONDS = 300 };

static atomic_int failing = 1;

/* As if the process had no file descriptor left. */
static int no_descriptors(int domain, int type, int protocol, int fds[2]) {
    if (!failing) return at_default_io()->socketpair(domain, type, protocol, fds);
    errno = EMFILE;
    return -1;
}

static attune_context *context;
static attune_linear *objects[OBJECTS];
static atomic_int calls, ended;

typedef attune_status run_fn(attune_linear *linear, const attune_linear_step *step);

/* One token, from a state of zeros. */
static attune_status step_by(run_fn *run, attune_linear *linear, float out[DIM]) {
    float row[DIM] = {0.5f, -1, 0.25f, 3}, states[DIM * DIM] = {0};
    attune_linear_step step = ATTUNE_LINEAR_STEP_INIT;
    step.batch = step.seq = 1;
    step.q.data = step.k.data = step.v.data = row;
    step.out.data = out, step.state.data = states;
    return run(linear, &step);
}

static void open_all(void) {
    static at_io io;
    const attune_context_options options = {
        .struct_size = sizeof options, .cache_dir = "", .max_workers = 1, .compile_mode = ATTUNE_COMPILE_WORKER};
    const at_context_hooks hooks = {.io = &io};
    attune_linear_desc desc = ATTUNE_LINEAR_DESC_INIT;
    io = *at_default_io();
    io.socketpair = no_descriptors;
    assert_ok(at_context_create(&options, &hooks, &context));
    context->has_tier0 = false;
    desc.num_heads = 1, desc.head_dim = DIM;
    for (int i = 0; i < OBJECTS; i++) assert_ok(attune_linear_create(context, &desc, &objects[i]));
}

static void close_all(void) {
    for (int i = 0; i < OBJECTS; i++) attune_linear_destroy(objects[i]);
    attune_context_destroy(context);
}

/* Until the compile has succeeded, and some calls longer. Returns what went wrong, or NULL. */
static const char *run_until_compiled(const float *expected) {
    const time_t begun = time(NULL);
    for (int left = AFTER; left; left -= atomic_load(&context->compiles) != 0)
        for (int i = 0; i < OBJECTS; i++) {
            float out[DIM];
            atomic_fetch_add(&calls, 1);
            if (step_by(attune_linear_run, objects[i], out)) return "a call failed";
            if (memcmp(out, expected, sizeof out)) return "a call gave other bits";
            if (time(NULL) - begun > MOST_SECONDS) return "the compile did not succeed";
        }
    return NULL;
}

static void *run_all(void *argument) {
    const char *const why = run_until_compiled(argument);
    atomic_fetch_add(&ended, 1);
    return (void *)why;
}

static void threads_meet_where_a_kernel_is_replaced(void **state) {
    (void)state;
    float expected[DIM];
    pthread_t threads[THREADS];
    open_all();
    assert_ok(step_by(attune_linear_run_interpreted, objects[0], expected));
    for (int t = 0; t < THREADS; t++) assert_int_equal(pthread_create(&threads[t], NULL, run_all, expected), 0);
    while (atomic_load(&calls) < 2 * THREADS * OBJECTS && !atomic_load(&ended))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    failing = 0; /* the next try comes after a second */
    for (int t = 0; t < THREADS; t++) {
        void *why;
        pthread_join(threads[t], &why);
        if (why) fail_msg("%s", (const char *)why);
    }
    close_all();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_meet_where_a_kernel_is_replaced)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
