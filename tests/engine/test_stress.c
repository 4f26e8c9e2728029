/* Many threads and processes at once, eviction under running kernels, and writers killed in mid-write. ATTUNE_STRESS=N
 * (default 1) multiplies the work; above 1 there are 1,000 keys and 1,000 kills. */
#define _GNU_SOURCE
#include "cache/disk_files.h"
#include "engine/create.h"
#include "support/engine/contexts.h"
#include "support/engine/fake_codegen.h"
#include "support/statuses.h"
#include "support/temp_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { THREADS = 32, KEYS = 40, MAX_KEYS = 1000 };

static int stress = 1;

static attune_context *context_with(fake_codegen *fake, const char *cache_dir, uint64_t memory_bytes) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    const at_context_hooks hooks = {.compile = fake_compile, .compile_user = fake};
    attune_context *context = NULL;
    options.cache_dir = cache_dir;
    options.memory_cache_bytes = memory_bytes;
    options.max_workers = 1;
    if (at_context_create(&options, &hooks, &context)) fprintf(stderr, "%s\n", attune_last_message());
    return context;
}

/* Different head dims are different kernels; other batch sizes are not. */
static attune_problem problem_of(int number, int batch) {
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    problem.batch = batch;
    problem.seq_q = 1 + number / 8;
    problem.seq_kv = 1 + number % 8;
    problem.head_dim = 4;
    return problem;
}

/* Compiles and runs; the number that the kernel wrote, or 0. */
static uint32_t run_once(attune_context *context, int number, int batch) {
    enum { FLOATS = 4 * (1 + MAX_KEYS / 8) * 4 }; /* of the largest problem of all */
    static const float input[FLOATS];
    float output[FLOATS];
    uint32_t marker = 0;
    attune_kernel *kernel;
    attune_arguments arguments;
    const attune_problem problem = problem_of(number, batch);
    if (attune_compile(context, &problem, NULL, &kernel)) return 0;
    if (attune_arguments_init(&arguments, &problem)) return 0;
    arguments.q.data = arguments.k.data = arguments.v.data = (void *)input;
    arguments.out.data = output;
    if (attune_run(context, kernel, &arguments) == ATTUNE_OK) memcpy(&marker, output, 4);
    attune_kernel_release(kernel);
    return marker;
}

/* The expected output of a problem's kernel. */
static uint32_t expected_of(attune_context *context, int number) {
    const attune_problem problem = problem_of(number, 1);
    void *text = NULL;
    size_t bytes = 0;
    if (attune_emit(context, &problem, NULL, ATTUNE_STAGE_LOWERED, &text, &bytes)) return 0;
    const uint32_t marker = fake_marker(text, bytes);
    attune_free(context, text);
    return marker;
}

/* ---- Threads ---- */

typedef struct worker {
    attune_context *context;
    const uint32_t *expected;
    uint64_t seed;
    int keys, rounds, wrong;
} worker;

static int next_random(uint64_t *seed, int below) {
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (int)((*seed >> 33) % (uint64_t)below);
}

static void *run_many(void *argument) {
    worker *w = argument;
    for (int i = 0; i < w->rounds; i++) {
        const int number = next_random(&w->seed, w->keys), batch = 1 + next_random(&w->seed, 4);
        if (run_once(w->context, number, batch) != w->expected[number]) w->wrong++;
        if (i % 100 == 99) attune_drop_memory_cache(w->context);
    }
    return NULL;
}

/* All keys once, from one of four places on: eight threads meet at each key, and four are compiled at a time. */
static void *run_each(void *argument) {
    worker *w = argument;
    const int first = (int)(w->seed % 4) * w->keys / 4;
    for (int i = 0; i < w->keys; i++) {
        const int number = (first + i) % w->keys, batch = 1 + next_random(&w->seed, 4);
        if (run_once(w->context, number, batch) != w->expected[number]) w->wrong++;
    }
    return NULL;
}

static void run_threads(attune_context *context, void *(*body)(void *), int keys, int rounds) {
    pthread_t threads[THREADS];
    worker workers[THREADS];
    uint32_t expected[MAX_KEYS];
    for (int k = 0; k < keys; k++) {
        expected[k] = expected_of(context, k);
        assert_int_not_equal(expected[k], 0);
    }
    for (int t = 0; t < THREADS; t++) {
        workers[t] = (worker){context, expected, (uint64_t)t + 1, keys, rounds, 0};
        assert_int_equal(pthread_create(&threads[t], NULL, body, &workers[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(threads[t], NULL);
        assert_int_equal(workers[t].wrong, 0);
    }
}

static void each_problem_is_compiled_once(void **state) {
    (void)state;
    const int keys = stress > 1 ? MAX_KEYS : KEYS;
    fake_codegen fake = {.sleep_us = stress > 1 ? 1000 : 20000};
    attune_context *context = context_with(&fake, "", 0);
    assert_non_null(context);
    run_threads(context, run_each, keys, 0);
    assert_int_equal(atomic_load(&fake.compiles), keys);
    const attune_statistics statistics = statistics_of(context);
    assert_int_equal(statistics.compiles, keys);
    assert_int_equal(statistics.memory_kernels, keys);
    print_message("%d threads, %d keys: %d compiles\n", THREADS, keys, atomic_load(&fake.compiles));
    attune_context_destroy(context);
}

/* Room for a handful of kernels, a disk to find them again, and threads that run kernels which others evict. */
static void eviction_while_kernels_run(void **state) {
    fake_codegen fake = {0};
    attune_context *context = context_with(&fake, *state, 40000);
    assert_non_null(context);
    run_threads(context, run_many, KEYS, 300 * stress);
    const attune_statistics statistics = statistics_of(context);
    assert_true(statistics.memory_evictions > 0);
    assert_true(statistics.disk_hits > 0);
    assert_int_equal(statistics.damaged_files, 0);
    assert_true(statistics.memory_code_bytes <= 40000);
    attune_context_destroy(context);
}

/* ---- Processes ---- */

static int use_directory(const char *dir, int rounds, uint64_t seed, uint64_t disk_bytes) {
    fake_codegen fake = {0};
    attune_context *context = context_with(&fake, dir, 0);
    if (!context) return 2;
    context->disk.capacity = disk_bytes;
    int wrong = 0;
    for (int i = 0; i < rounds; i++) {
        const int number = next_random(&seed, KEYS);
        const uint32_t marker = run_once(context, number, 1);
        if (!marker || marker != expected_of(context, number)) wrong = 1;
        attune_drop_memory_cache(context);
    }
    attune_statistics statistics = {.struct_size = sizeof statistics};
    if (attune_get_statistics(context, &statistics)) wrong = 3;
    if (statistics.damaged_files || statistics.disk_write_failures) wrong = 3;
    attune_context_destroy(context);
    return wrong;
}

static void processes_share(const char *dir, uint64_t disk_bytes) {
    enum { PROCESSES = 8 };
    pid_t children[PROCESSES];
    for (int p = 0; p < PROCESSES; p++) {
        children[p] = fork();
        if (children[p] == 0) _exit(use_directory(dir, 100 * stress, (uint64_t)p + 100, disk_bytes));
    }
    for (int p = 0; p < PROCESSES; p++) {
        int status = -1;
        assert_int_equal(waitpid(children[p], &status, 0), children[p]);
        assert_int_equal(status, 0);
    }
}

static void processes_share_one_directory(void **state) {
    processes_share(*state, UINT64_C(1) << 30);
    assert_int_equal(temp_dir_count(*state, "", ".attune"), KEYS);
}

static void processes_evict_what_others_read(void **state) {
    processes_share(*state, 10000);
    assert_in_range(temp_dir_count(*state, "", ".attune"), 1, KEYS - 1);
}

/* ---- Killed writers ---- */

/* Writes in small pieces, so that most kills fall between two of them. */
static ssize_t write_slowly(int fd, const void *data, size_t bytes) {
    usleep(20);
    return at_default_io()->write(fd, data, bytes > 64 ? 64 : bytes);
}

static at_key key_of(int64_t number) {
    at_machine machine;
    at_key key;
    attune_problem problem = ATTUNE_PROBLEM_INIT, canonical;
    problem.seq_q = getpid();
    problem.seq_kv = number;
    problem.head_dim = 8;
    if (mha_canonicalize(&problem, &canonical, NULL)) _exit(1);
    at_machine_init(&machine, at_target_find("avx2"), "zen4");
    at_key_make(&key, at_attention_of(&canonical), NULL, &machine);
    return key;
}

/* Says on `ready` when it begins. */
static void write_for_ever(const char *dir, bool unnamed, int ready) {
    _Alignas(64) uint8_t image[FAKE_IMAGE_BYTES];
    const size_t bytes = fake_image(image, 4, 16, 1);
    at_io io = *at_default_io();
    const at_log silent = {0};
    at_disk_cache cache;
    io.write = write_slowly;
    if (!unnamed) io.openat = no_tmpfile;
    at_disk_cache_init(&cache, dir, UINT64_C(1) << 30, at_default_allocator(), &io, &silent);
    if (write(ready, "", 1) != 1) _exit(1);
    for (int64_t i = 1;; i++) {
        const at_key key = key_of(i);
        const at_cache_file file = {.key = key.bytes,
                                    .key_bytes = key.size,
                                    .problem = "p",
                                    .schedule = "s",
                                    .isa = "i",
                                    .image = image,
                                    .image_bytes = bytes};
        at_disk_cache_write(&cache, &key, &file);
    }
}

static int count_bad(void *user, const attune_cache_file *file) {
    int *counts = user;
    counts[file->status != ATTUNE_OK]++;
    return 0;
}

static void killed_writers_leave_no_bad_file(void **state) {
    const int kills = stress > 1 ? 1000 : 60;
    const at_log silent = {0};
    uint64_t seed = 7;
    for (int k = 0; k < kills; k++) {
        int ready[2];
        char byte;
        assert_int_equal(pipe(ready), 0);
        const pid_t child = fork();
        if (child == 0) write_for_ever(*state, k % 2 == 0, ready[1]);
        assert_int_equal(read(ready[0], &byte, 1), 1);
        close(ready[0]);
        close(ready[1]);
        usleep(1000 + (unsigned)next_random(&seed, 4000));
        /* On a busy machine none has finished a file so far, so the last one gets time for it. */
        for (int i = 0; k == kills - 1 && i < 60000 && !temp_dir_count(*state, "", ".attune"); i++) usleep(1000);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, NULL, 0), child);
    }
    at_disk_cache cache;
    int counts[2] = {0};
    at_disk_cache_init(&cache, *state, UINT64_C(1) << 30, at_default_allocator(), at_default_io(), &silent);
    assert_int_equal(at_disk_cache_visit(&cache, count_bad, counts, NULL), ATTUNE_OK);
    print_message("%d kills: %d good files, %d bad\n", kills, counts[0], counts[1]);
    assert_true(counts[0] > 0);
    assert_int_equal(counts[1], 0);
    at_disk_cache_free(&cache);
}

#define WITH_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, temp_dir_setup, temp_dir_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH_DIRECTORY(processes_share_one_directory), /* before there are threads: it forks */
        WITH_DIRECTORY(processes_evict_what_others_read), WITH_DIRECTORY(killed_writers_leave_no_bad_file),
        cmocka_unit_test(each_problem_is_compiled_once),  WITH_DIRECTORY(eviction_while_kernels_run),
    };
    const char *wish = getenv("ATTUNE_STRESS");
    if (wish && atoi(wish) > 0) stress = atoi(wish);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
