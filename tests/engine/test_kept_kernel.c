/* The compile of an operator's kernel fails, so a fallback runs, and a later compile succeeds. A call that runs the
 * fallback meanwhile can go on, and every call has the same bits. `make tsan` watches how one kernel replaces the
 * other.
 */
#include "described/described.h"
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

/* So large that a runner gets a call's tasks. */
enum { HEADS = 4, DIM = 128, OUT = HEADS * DIM };
enum { THREADS = 4, OBJECTS = 3, AFTER = 20, MOST_SECONDS = 300 };

static atomic_int failing;

/* As if the process had no file descriptor left. */
static int no_descriptors(int domain, int type, int protocol, int fds[2]) {
    if (!failing) return at_default_io()->socketpair(domain, type, protocol, fds);
    errno = EMFILE;
    return -1;
}

static attune_context *context;
static attune_linear *objects[OBJECTS];
static atomic_int calls, ended;

/* ---- Memory of the context ---- */

static attune_kernel *watched; /* a kernel */
static bool is_freed;          /* whether it has been */

static void *take(void *user, size_t bytes, size_t align) {
    (void)user;
    return at_alloc_aligned(NULL, bytes, align);
}

static void give_back(void *user, void *memory) {
    (void)user;
    if (memory && memory == watched) is_freed = true;
    at_free(NULL, memory);
}

/* ---- Objects and their steps ---- */

typedef attune_status run_fn(attune_linear *linear, const attune_linear_step *step);

/* One token, from a state of zeros. runner: NULL, or what executes its tasks. */
static attune_status step_with(run_fn *run, attune_linear *linear, const attune_runner *runner, float out[OUT]) {
    float row[OUT], states[OUT * DIM] = {0};
    for (int i = 0; i < OUT; i++) row[i] = (float)(i % 7 - 3) / 16;
    attune_linear_step step = ATTUNE_LINEAR_STEP_INIT;
    step.batch = step.seq = 1;
    step.q.data = step.k.data = step.v.data = row;
    step.out.data = out, step.state.data = states;
    step.runner = runner;
    return run(linear, &step);
}

static attune_status step_by(run_fn *run, attune_linear *linear, float out[OUT]) {
    return step_with(run, linear, NULL, out);
}

static void open_all(void) {
    static at_io io;
    static const attune_allocator allocator = {take, give_back, NULL};
    const attune_context_options options = {.struct_size = sizeof options,
                                            .cache_dir = "",
                                            .max_workers = 1,
                                            .compile_mode = ATTUNE_COMPILE_WORKER,
                                            .allocator = &allocator};
    const at_context_hooks hooks = {.io = &io};
    attune_linear_desc desc = ATTUNE_LINEAR_DESC_INIT;
    failing = 1;
    io = *at_default_io();
    io.socketpair = no_descriptors;
    assert_ok(at_context_create(&options, &hooks, &context));
    context->has_tier0 = false;
    desc.num_heads = HEADS, desc.head_dim = DIM;
    for (int i = 0; i < OBJECTS; i++) assert_ok(attune_linear_create(context, &desc, &objects[i]));
}

static void close_all(void) {
    for (int i = 0; i < OBJECTS; i++) attune_linear_destroy(objects[i]);
    attune_context_destroy(context);
}

/* ---- One call during another ---- */

typedef struct replacement {
    at_kept_kernel *kept;
    float out[OUT];
    attune_status status;
    bool is_other; /* the object has another kernel now */
} replacement;

/* A call that comes when the compile may be tried again, and succeeds. */
static void *replace(void *argument) {
    replacement *const r = argument;
    failing = 0;
    watched->node.made_again_at = 1; /* long ago */
    atomic_store(&r->kept->made_again_at, 1);
    r->status = step_by(attune_linear_run, objects[0], r->out);
    r->is_other = atomic_load(&r->kept->now) != watched;
    return NULL;
}

/* Before the tasks of a call begin, another thread lets a kernel replace the one that the call runs. */
static void replace_and_run(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, replace, user)) return;
    pthread_join(thread, NULL);
    fn(argument, 0, n, 0);
}

static at_kept_kernel *kept_of(attune_linear *linear) {
    at_described *const object = (at_described *)linear;
    int used = 0;
    while (used < AT_MOST_KERNELS && !atomic_load(&object->kernels[used].now)) used++;
    assert_in_range(used, 0, AT_MOST_KERNELS - 1);
    return &object->kernels[used];
}

static void a_fallback_lives_as_long_as_its_object(void **state) {
    (void)state;
    float expected[OUT], out[OUT];
    replacement r = {0};
    const attune_runner runner = {
        .struct_size = sizeof runner, .parallel_for = replace_and_run, .user = &r, .max_workers = 2};
    open_all();
    assert_ok(step_by(attune_linear_run, objects[0], expected));
    r.kept = kept_of(objects[0]);
    watched = atomic_load(&r.kept->now);
    is_freed = false;
    assert_ok(step_with(attune_linear_run, objects[0], &runner, out));
    assert_ok(r.status);
    assert_true(r.is_other);
    assert_false(is_freed);
    assert_memory_equal(out, expected, sizeof out);
    assert_memory_equal(r.out, expected, sizeof out);
    close_all();
    assert_true(is_freed);
    watched = NULL;
}

/* ---- Many calls ---- */

/* Until the compile has succeeded, and some calls longer. Returns what went wrong, or NULL. */
static const char *run_until_compiled(const float *expected) {
    const time_t begun = time(NULL);
    for (int left = AFTER; left; left -= atomic_load(&context->compiles) != 0)
        for (int i = 0; i < OBJECTS; i++) {
            float out[OUT];
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
    float expected[OUT];
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fallback_lives_as_long_as_its_object),
        cmocka_unit_test(threads_meet_where_a_kernel_is_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
