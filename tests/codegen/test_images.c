/* An image depends on its target alone: not on the compiling CPU, on earlier or simultaneous compiles, or on the
 * process. */
#include "codegen/compile.h"
#include "engine/create.h"
#include "ir/text.h"
#include "support/engine/contexts.h"
#include "support/problems.h"
#include "support/temp_dir.h"

#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cmocka.h>

/* Products of long rows, whose registers LLVM would like to keep constants in; tiles and pairs of bf16. */
static const char *const problems[] = {
    "num_heads=2,seq_q=96,head_dim=40,is_causal=1",
    "num_heads=4,num_kv_heads=2,seq_q=1,seq_kv=300,head_dim=64,dtype=bf16",
    "num_heads=2,seq_q=24,head_dim=16,embed_dim=48,dtype=bf16",
};
enum { NUM_PROBLEMS = sizeof problems / sizeof *problems, MAX_TARGETS = 8 };

static size_t used_problems = NUM_PROBLEMS;

typedef struct images {
    uint64_t hash[MAX_TARGETS][NUM_PROBLEMS];
} images;

/* ---- A CPU with other features ---- */

static uint32_t masked_features;
static bool is_masked;

uint32_t __real_at_cpu_features(void);
uint32_t __wrap_at_cpu_features(void);
uint32_t __wrap_at_cpu_features(void) { return is_masked ? masked_features : __real_at_cpu_features(); }

/* ---- Compiling ---- */

static size_t count_targets(void) {
    size_t count = 0;
    while (at_targets()[count].name) count++;
    assert_true(count <= MAX_TARGETS);
    return count;
}

/* By the code generator in this program. */
static attune_status compile_here(void *user, const at_codegen_request *request, const attune_allocator *allocator,
                                  void **data, size_t *bytes, at_error *err) {
    (void)user, (void)allocator;
    at_arena arena;
    at_arena_init(&arena, NULL);
    const ir_kernel *kernel = ir_parse(&arena, request->ir, request->ir_bytes, err);
    if (kernel) cg_compile(kernel, at_target_find(request->target), (attune_stage)request->stage, data, bytes, err);
    at_arena_free(&arena);
    return err->status;
}

static attune_context *open_for(const at_target *target, attune_compile_mode mode, at_compile_fn *compile) {
    const at_context_hooks hooks = {.compile = compile};
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.target = target->name;
    options.cache_dir = options.cache_base = "";
    options.compile_mode = mode;
    options.max_workers = 1;
    return test_context(&options, &hooks);
}

static void compile_target(size_t number, attune_compile_mode mode, at_compile_fn *compile, images *all) {
    attune_context *context = open_for(&at_targets()[number], mode, compile);
    for (size_t i = 0; i < used_problems; i++) {
        const attune_problem problem = problem_parsed(problems[i]);
        void *image = NULL;
        size_t bytes = 0;
        if (attune_emit(context, &problem, NULL, ATTUNE_STAGE_IMAGE, &image, &bytes))
            fail_msg("%s: %s", at_targets()[number].name, attune_last_message());
        assert_true(bytes > 256);
        all->hash[number][i] = XXH3_64bits(image, bytes);
        attune_free(context, image);
    }
    attune_context_destroy(context);
}

static images compile_all(bool backwards, attune_compile_mode mode, at_compile_fn *compile) {
    const size_t count = count_targets();
    images all = {0};
    for (size_t i = 0; i < count; i++) compile_target(backwards ? count - 1 - i : i, mode, compile, &all);
    return all;
}

/* In a process of its own, whose LLVM has not been used: its first compile must not matter. */
static images compile_in_child(uint32_t features, bool backwards) {
    int fds[2], status = -1;
    images all = {0};
    assert_int_equal(pipe(fds), 0);
    const pid_t child = fork();
    if (child == 0) {
        is_masked = true;
        masked_features = features;
        all = compile_all(backwards, ATTUNE_COMPILE_IN_PROCESS, compile_here);
        _exit(write(fds[1], &all, sizeof all) != sizeof all);
    }
    close(fds[1]);
    assert_int_equal(read(fds[0], &all, sizeof all), sizeof all);
    close(fds[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    return all;
}

static void assert_same(const images *a, const images *b, const char *what) {
    for (size_t t = 0; t < count_targets(); t++)
        for (size_t i = 0; i < used_problems; i++)
            if (a->hash[t][i] != b->hash[t][i])
                fail_msg("%s: another image for %s: %s", what, at_targets()[t].name, problems[i]);
}

/* ---- Tests ---- */

static images expected;

static void whatever_the_cpu_has(void **state) {
    (void)state;
    expected = compile_in_child(AT_CPU_X86_64, false);
    for (size_t t = 0; t < count_targets(); t++) assert_int_not_equal(expected.hash[t][0], 0);
    const images all = compile_in_child(~0u, false);
    assert_same(&expected, &all, "a CPU with everything");
}

static void in_any_order(void **state) {
    (void)state;
    const images all = compile_in_child(~0u, true);
    assert_same(&expected, &all, "backwards");
}

static void by_the_worker(void **state) {
    (void)state;
    const images all = compile_all(true, ATTUNE_COMPILE_WORKER, NULL);
    assert_same(&expected, &all, "the worker");
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { CAN_BE_EMULATED = 0 }; /* qemu has no room for their shadow memory */
#else
enum { CAN_BE_EMULATED = 1 };
#endif

/* A worker that finds itself on a CPU without AVX. */
static void by_a_worker_on_an_older_cpu(void **state) {
    (void)state;
    static const char script[] = "#!/bin/sh\nexec qemu-x86_64 -cpu Nehalem '%s/../attune-codegen-worker'\n";
    char own[PATH_MAX], dir[TEMP_DIR_CHARS], path[TEMP_DIR_CHARS + 16];
    const ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    assert_true(n > 0);
    own[n] = '\0';
    *strrchr(own, '/') = '\0';
    if (!CAN_BE_EMULATED || system("command -v qemu-x86_64 >/dev/null")) {
        print_message("there is no qemu-x86_64 here, or it cannot run the worker\n");
        skip();
    }
    temp_dir_make(dir);
    snprintf(path, sizeof path, "%s/worker", dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fprintf(file, script, own) > 0);
    fclose(file);
    assert_int_equal(chmod(path, 0700), 0);
    setenv("ATTUNE_CODEGEN_WORKER", path, 1);
    used_problems = 1; /* emulation is slow */
    const images all = compile_all(false, ATTUNE_COMPILE_WORKER, NULL);
    unsetenv("ATTUNE_CODEGEN_WORKER");
    unlink(path);
    temp_dir_remove(dir);
    assert_same(&expected, &all, "a worker on an older CPU");
    used_problems = NUM_PROBLEMS;
}

static void by_the_plugin(void **state) {
    (void)state;
    const images all = compile_all(false, ATTUNE_COMPILE_IN_PROCESS, NULL);
    assert_same(&expected, &all, "the plug-in");
}

typedef struct crew_member {
    size_t target;
    images all;
} crew_member;

static void *compile_one_target(void *user) {
    crew_member *member = user;
    for (int round = 0; round < 2; round++)
        compile_target(member->target, ATTUNE_COMPILE_IN_PROCESS, compile_here, &member->all);
    return NULL;
}

static void beside_other_targets(void **state) {
    (void)state;
    const size_t count = count_targets();
    pthread_t threads[MAX_TARGETS];
    crew_member crew[MAX_TARGETS] = {0};
    for (size_t t = 0; t < count; t++) {
        crew[t].target = t;
        assert_int_equal(pthread_create(&threads[t], NULL, compile_one_target, &crew[t]), 0);
    }
    for (size_t t = 0; t < count; t++) pthread_join(threads[t], NULL);
    for (size_t t = 1; t < count; t++) memcpy(crew[0].all.hash[t], crew[t].all.hash[t], sizeof crew[t].all.hash[t]);
    assert_same(&expected, &crew[0].all, "six threads");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_the_cpu_has), cmocka_unit_test(in_any_order),
        cmocka_unit_test(by_the_worker),        cmocka_unit_test(by_a_worker_on_an_older_cpu),
        cmocka_unit_test(by_the_plugin),        cmocka_unit_test(beside_other_targets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
