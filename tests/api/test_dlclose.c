/* A host that unloads the library while it has threads, as an engine does that drops its plug-ins. */
#include <attune.h>

#include "support/temp_dir.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { HEADS = 16, ROWS = 64, DIM = 32, FLOATS = HEADS * ROWS * DIM };

/* The functions that the host looks up by name. The program itself holds a copy of attune, which is not the one under
 * test. */
static struct {
    attune_status (*create)(const attune_context_options *, attune_context **);
    attune_status (*compile)(attune_context *, const attune_problem *, const char *, attune_kernel **);
    attune_status (*init)(attune_arguments *, size_t, const attune_problem *);
    attune_status (*run)(attune_context *, const attune_kernel *, const attune_arguments *);
} library;

static void *load(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/libattune.so.0", getenv("BUILD"));
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) fail_msg("%s", dlerror());
    *(void **)&library.create = dlsym(handle, "attune_context_create");
    *(void **)&library.compile = dlsym(handle, "attune_compile");
    *(void **)&library.init = dlsym(handle, "attune_arguments_init_sized");
    *(void **)&library.run = dlsym(handle, "attune_run");
    assert_non_null(library.create);
    assert_non_null(library.compile);
    assert_non_null(library.init);
    assert_non_null(library.run);
    assert_ptr_not_equal((void *)library.run, (void *)attune_run);
    return handle;
}

static void threads_survive_the_library(void **state) {
    static float memory[4 * FLOATS];
    void *handle = load();
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    attune_arguments arguments;
    attune_context *context;
    attune_kernel *kernel;
    options.cache_dir = *state;
    options.max_workers = 3;
    problem.num_heads = HEADS;
    problem.seq_q = ROWS;
    problem.head_dim = DIM;
    assert_int_equal(library.create(&options, &context), ATTUNE_OK);
    assert_int_equal(library.compile(context, &problem, NULL, &kernel), ATTUNE_OK);
    assert_int_equal(library.init(&arguments, sizeof arguments, &problem), ATTUNE_OK);
    arguments.q.data = memory;
    arguments.k.data = memory + FLOATS;
    arguments.v.data = memory + 2 * FLOATS;
    arguments.out.data = memory + 3 * FLOATS;
    for (int i = 0; i < 50; i++) assert_int_equal(library.run(context, kernel, &arguments), ATTUNE_OK);
    assert_int_equal(dlclose(handle), 0); /* the context has not been destroyed: its threads sleep or spin */
    usleep(2000);
    for (int i = 0; i < 50; i++) assert_int_equal(library.run(context, kernel, &arguments), ATTUNE_OK);
    assert_ptr_equal(load(), handle); /* it was there all the time */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(threads_survive_the_library, temp_dir_setup, temp_dir_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
