/* Tuning: the space of schedules, the statistics of pairs, the database, and a search from end to end. */
#define _GNU_SOURCE
#include "engine/kernel.h"
#include "schedule/schedule.h"
#include "support/engine/contexts.h"
#include "support/problems.h"
#include "support/statuses.h"
#include "support/temp_dir.h"
#include "tune/database.h"
#include "tune/paired_times.h"
#include "tune/space.h"
#include "tune/sqlite.h"
#include "tune/tuning.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- Space ---- */

enum { SPACE = 3000 };

static tune_candidate list[SPACE], around[128];

static const char *const shapes[] = {
    "num_heads=12,seq_q=128,head_dim=64",
    "num_heads=8,seq_q=16,head_dim=32",
    "num_heads=8,seq_q=64,head_dim=32",
    "num_heads=32,seq_q=512,head_dim=128",
    "num_heads=16,seq_q=1024,head_dim=64,is_causal=1",
    "num_heads=12,seq_q=197,head_dim=64",
    "num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=4096,head_dim=128",
    "num_heads=20,seq_q=500,seq_kv=487,head_dim=80",
    "seq_q=-1,seq_kv=-1,head_dim=64",
    "embed_dim=768,num_heads=12,seq_q=512",
};

static void every_shape_has_a_large_space(void **state) {
    (void)state;
    for (const at_target *target = at_targets(); target->name; target++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            const attune_problem p = problem_canonical(shapes[i]);
            const mha_machine machine = {target, usual_machine(target)};
            const size_t count = tune_space(&p, &machine, list, SPACE);
            if (count < 500) fail_msg("%s, %s: %zu schedules", target->name, shapes[i], count);
            if (i == 0 && target->vector_registers == 32) assert_true(count >= SPACE - 2); /* there are many more */
            for (size_t k = 0; k < count; k++) {
                at_error err = {0};
                if (mha_schedule_check(&p, &list[k].schedule, target, &err)) fail_msg("%s", err.message);
                assert_true(isfinite(list[k].cost) && list[k].cost > 0);
                if (k) assert_true(list[k].cost >= list[k - 1].cost);
                if (k) assert_memory_not_equal(&list[k].schedule, &list[k - 1].schedule, sizeof list->schedule);
            }
        }
}

static void a_small_list_holds_the_best_of_a_large_one(void **state) {
    (void)state;
    const attune_problem p = problem_canonical(shapes[0]);
    const mha_machine machine = {at_target_find("avx2"), usual_machine(at_target_find("avx2"))};
    tune_candidate few[10];
    assert_true(tune_space(&p, &machine, list, SPACE) > 10);
    const size_t count = tune_space(&p, &machine, few, 10);
    assert_true(count > 0 && count <= 10);
    for (size_t k = 0; k < count; k++) assert_memory_equal(&few[k].schedule, &list[k].schedule, sizeof few->schedule);
}

static int numbers_that_differ(const mha_schedule *a, const mha_schedule *b) {
    const int32_t *x = &a->lanes, *y = &b->lanes;
    int count = 0;
    for (; x < (const int32_t *)(a + 1); x++, y++) count += *x != *y;
    return count;
}

static void neighbours_differ_by_a_step(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const attune_problem p = problem_canonical(shapes[i]);
        const at_target *target = at_target_find("avx512");
        const mha_machine machine = {target, usual_machine(target)};
        mha_schedule from;
        mha_choose(mha_read(&p), target, usual_machine(target), &from);
        const size_t count = tune_neighbours(&p, &machine, &from, around, sizeof around / sizeof *around);
        assert_true(count >= 5);
        for (size_t k = 0; k < count; k++) {
            assert_int_equal(mha_schedule_check(&p, &around[k].schedule, target, NULL), ATTUNE_OK);
            const int differ = numbers_that_differ(&around[k].schedule, &from);
            assert_true(differ >= 1 && differ <= 4); /* those that must divide one another come along */
        }
    }
}

/* Sums of narrow heads stay in registers and have several streams, which do not divide another number of keys. */
static void held_values_have_neighbours_in_memory(void **state) {
    (void)state;
    const attune_problem p = problem_canonical("num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=512,head_dim=48");
    const mha_machine machine = {at_target_find("avx2"), usual_machine(at_target_find("avx2"))};
    mha_schedule from;
    mha_choose(mha_read(&p), machine.target, machine.description, &from);
    assert_true(from.value_keys == 1 && from.value_streams > 1);
    const size_t count = tune_neighbours(&p, &machine, &from, around, sizeof around / sizeof *around);
    size_t others = 0;
    for (size_t k = 0; k < count; k++) others += around[k].schedule.value_keys > 1;
    assert_true(others > 0);
}

static void the_model_knows_what_is_bad(void **state) {
    (void)state;
    const attune_problem p = problem_canonical("num_heads=12,seq_q=512,head_dim=64");
    const at_target *target = at_target_find("avx2");
    const mha_machine machine = {target, usual_machine(target)};
    mha_schedule good, bad;
    mha_choose(mha_read(&p), target, usual_machine(target), &good);
    const double cost = mha_cost(&p, &machine, &good);
    static const char *const worse[] = {"score_keys=1,score_row_vectors=1,task_row_vectors=1,value_row_vectors=1",
                                        "value_columns=1,value_row_vectors=1", "kv_tile=8", "score_keys=12,kv_tile=96"};
    for (size_t i = 0; i < sizeof worse / sizeof *worse; i++) {
        at_error err = {0};
        bad = good;
        if (mha_schedule_parse(worse[i], &bad, &err) || mha_schedule_check(&p, &bad, target, &err))
            fail_msg("%s", err.message);
        assert_true(mha_cost(&p, &machine, &bad) > 1.1 * cost);
    }
}

/* ---- Pairs ---- */

static uint64_t random_state = 1;

static double random_unit(void) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(random_state >> 11) / 9007199254740992.0;
}

/* About normal. */
static double noise(double width) {
    double sum = 0;
    for (int i = 0; i < 12; i++) sum += random_unit();
    return (sum - 6) * width;
}

/* The verdict on a candidate that takes `ratio` of the incumbent's time, in a search of this noise; one pair in ten is
 * wild. */
static tune_verdict verdict_of(double ratio, double width, size_t *pairs_taken) {
    tune_pairs pairs = {0};
    tune_verdict verdict = TUNE_GO_ON;
    while (verdict == TUNE_GO_ON) {
        const double wild = random_unit() < 0.1 ? noise(1) : 0;
        pairs.logs[pairs.count++] = log(ratio) + noise(width) + wild;
        verdict = tune_pairs_judge(&pairs, width);
    }
    *pairs_taken = pairs.count;
    return verdict;
}

static int faster_of(double ratio, double width, int trials, double *mean_pairs) {
    int faster = 0;
    size_t sum = 0, taken;
    for (int i = 0; i < trials; i++) {
        faster += verdict_of(ratio, width, &taken) == TUNE_FASTER;
        sum += taken;
    }
    *mean_pairs = (double)sum / trials;
    return faster;
}

static void noise_does_not_choose(void **state) {
    (void)state;
    double pairs;
    random_state = 1;
    assert_in_range(faster_of(1.0, 0.01, 2000, &pairs), 0, 40);
    assert_in_range(faster_of(1.0, 0.05, 2000, &pairs), 0, 40);
    assert_in_range(faster_of(1.0, 0.2, 2000, &pairs), 0, 40);
    assert_in_range(faster_of(1.02, 0.02, 2000, &pairs), 0, 4);
}

static void clear_cases_are_decided_soon(void **state) {
    (void)state;
    double pairs;
    random_state = 1;
    assert_true(faster_of(0.9, 0.01, 500, &pairs) > 480);
    assert_true(pairs < 14);
    assert_true(faster_of(0.97, 0.01, 500, &pairs) > 400);
    assert_int_equal(faster_of(2.0, 0.02, 500, &pairs), 0);
    assert_true(pairs < 2);
    assert_int_equal(faster_of(1.2, 0.01, 500, &pairs), 0);
    assert_true(pairs < 5);
}

/* On a busy machine pairs differ by more than candidates do. */
static void what_is_detectable_is_found(void **state) {
    (void)state;
    static const double widths[] = {0.005, 0.03, 0.1, 0.2};
    double pairs;
    random_state = 3;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        const double gain = tune_detectable(widths[i], TUNE_MAX_PAIRS);
        const int found = faster_of(1 - gain, widths[i], 1000, &pairs);
        if (found < 880) fail_msg("noise %g: %d of 1000 gains of %g were found", widths[i], found, gain);
        if (i > 1) assert_true(faster_of(1 - gain / 2, widths[i], 1000, &pairs) < 500);
    }
    assert_true(tune_detectable(0.1, TUNE_MAX_PAIRS) < 0.085);
    assert_true(tune_detectable(0.1, TUNE_USUAL_PAIRS) > 0.1);
    assert_true(tune_detectable(0.1, 1) == 1 && tune_detectable(10, 9) <= 1);
}

/* Whatever the ratios are. */
static void noise_is_that_of_the_pairs(void **state) {
    (void)state;
    tune_noise all = {0};
    random_state = 5;
    assert_true(tune_noise_of(&all) == 0);
    for (int candidate = 0; candidate < 200; candidate++) {
        tune_pairs pairs = {0};
        const double ratio = 0.5 + 2 * random_unit();
        while (pairs.count < 5) {
            pairs.logs[pairs.count++] = log(ratio) + noise(0.04);
            tune_noise_add(&all, &pairs);
        }
    }
    assert_true(tune_noise_of(&all) > 0.033 && tune_noise_of(&all) < 0.047);
}

static void an_interval_holds_the_ratio(void **state) {
    (void)state;
    int held = 0;
    random_state = 7;
    for (int i = 0; i < 500; i++) {
        tune_pairs pairs = {.count = 33};
        for (int k = 0; k < 33; k++) pairs.logs[k] = log(0.95) + noise(0.03);
        const tune_ratio r = tune_pairs_ratio(&pairs);
        assert_true(r.low <= r.ratio && r.ratio <= r.high);
        held += r.low <= 0.95 && 0.95 <= r.high;
    }
    assert_true(held > 480);
    const tune_pairs two = {.count = 2, .logs = {0, 0}};
    assert_true(tune_pairs_ratio(&two).low == 0 && isinf(tune_pairs_ratio(&two).high));
}

/* ---- Database ---- */

static char dir[TEMP_DIR_CHARS], path[TEMP_DIR_CHARS + 16], other_path[TEMP_DIR_CHARS + 16];

static int set_up(void **state) {
    (void)state;
    temp_dir_make(dir);
    snprintf(path, sizeof path, "%s/tuning.db", dir);
    snprintf(other_path, sizeof other_path, "%s/other.db", dir);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    temp_dir_remove(dir);
    return 0;
}

static const tune_place here = {"seq_q=8,head_dim=8", {1, 2}, "avx2", "a class", "a CPU", 1, {3, 4}, 8, 8, 1};
static const tune_timing three[] = {{"lanes=4", 2e-3, 1.25, 5}, {"lanes=8", 1e-3, 0.8, 9}, {"lanes=2", 3e-3, 2, 1}};

static tune_database *open_database(const char *file) {
    tune_database *d;
    at_error err = {0};
    if (tune_database_open(file, TUNE_CREATE, at_default_allocator(), &d, &err)) fail_msg("%s", err.message);
    assert_non_null(d);
    return d;
}

static void add(tune_database *d, const tune_place *place, ptrdiff_t winner) {
    at_error err = {0};
    if (tune_database_add(d, place, "v1", three, 3, winner, &err)) fail_msg("%s", err.message);
}

static int keep_first(void *user, const tune_winner *winner) {
    snprintf(user, 64, "%s", winner->schedule);
    return 1;
}

static void assert_best(tune_database *d, const tune_place *place, const char *expected) {
    char schedule[64] = "";
    assert_int_equal(tune_database_same(d, place, keep_first, schedule, NULL), ATTUNE_OK);
    assert_string_equal(schedule, expected);
}

static void the_latest_winner_is_the_best(void **state) {
    (void)state;
    tune_database *d = open_database(path);
    assert_best(d, &here, "");
    add(d, &here, -1);
    assert_best(d, &here, "");
    add(d, &here, 1);
    assert_best(d, &here, "lanes=8");
    add(d, &here, 0);
    assert_best(d, &here, "lanes=4");
    tune_place elsewhere = here;
    elsewhere.machine = "another class";
    assert_best(d, &elsewhere, "");
    elsewhere = here;
    elsewhere.key[1]++;
    assert_best(d, &elsewhere, "");
    tune_database_close(d);
    d = open_database(path);
    assert_best(d, &here, "lanes=4");
    tune_database_close(d);
}

static void results_travel(void **state) {
    (void)state;
    at_error err = {0};
    uint64_t taken, of_here;
    tune_database *d = open_database(path);
    tune_place elsewhere = here;
    elsewhere.machine = "another class";
    add(d, &here, 1);
    add(d, &elsewhere, 2);
    assert_int_equal(tune_database_export(d, other_path, &err), ATTUNE_OK);
    assert_int_equal(tune_database_export(d, other_path, &err), ATTUNE_IO_ERROR); /* it exists */
    tune_database_close(d);
    unlink(path);
    d = open_database(path);
    at_error_clear(&err);
    if (tune_database_import(d, other_path, here.isa, here.machine, &taken, &of_here, &err))
        fail_msg("%s", err.message);
    assert_int_equal(taken, 2);
    assert_int_equal(of_here, 1);
    assert_best(d, &here, "lanes=8");
    assert_best(d, &elsewhere, "lanes=2");
    if (tune_database_import(d, other_path, here.isa, here.machine, &taken, &of_here, &err))
        fail_msg("%s", err.message);
    assert_int_equal(taken, 0); /* all of it is known */
    tune_database_close(d);
}

static void assert_does_not_open(const char *file, int flags, attune_status expected, const char *part) {
    at_error err = {0};
    tune_database *d;
    assert_int_equal(tune_database_open(file, flags, at_default_allocator(), &d, &err), expected);
    assert_null(d);
    if (!strstr(err.message, part)) fail_msg("'%s' is not in: %s", part, err.message);
}

static void damaged_and_foreign_files_are_refused(void **state) {
    (void)state;
    tune_database *d;
    assert_int_equal(tune_database_open(path, 0, at_default_allocator(), &d, NULL), ATTUNE_OK);
    assert_null(d); /* there is none */
    file_write(path, "this is no database, but long enough to look at", 47);
    assert_does_not_open(path, TUNE_CREATE, ATTUNE_BAD_FILE, "not a database");
    unlink(path);
    d = open_database(path);
    for (int i = 0; i < 50; i++) add(d, &here, 1);
    tune_database_close(d);
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(truncate(path, status.st_size / 2), 0);
    at_error err = {0};
    char schedule[64];
    attune_status result = tune_database_open(path, 0, at_default_allocator(), &d, &err);
    if (!result) result = tune_database_same(d, &here, keep_first, schedule, &err);
    assert_int_equal(result, ATTUNE_BAD_FILE);
    tune_database_close(d);
    unlink(path);
    d = open_database(path);
    tune_database_close(d);
    /* user_version is the big-endian number at 60 */
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, 63, SEEK_SET);
    fputc(9, f);
    fclose(f);
    assert_does_not_open(path, 0, ATTUNE_BAD_FILE, "version 9");
    assert_does_not_open(dir, TUNE_CREATE, ATTUNE_IO_ERROR, "not a regular file");
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_does_not_open(path, 0, ATTUNE_IO_ERROR, "not a regular file");
    unlink(path);
    assert_int_equal(symlink(other_path, path), 0);
    assert_does_not_open(path, TUNE_CREATE, ATTUNE_IO_ERROR, "not a regular file");
    unlink(path);
    if (geteuid()) return;
    tune_database_close(open_database(path));
    assert_int_equal(chown(path, 1, 1), 0);
    assert_does_not_open(path, 0, ATTUNE_IO_ERROR, "belongs to another user");
}

/* Whoever looks something up waits for no writer, and is told what was there before. */
static void readers_do_not_wait_for_writers(void **state) {
    (void)state;
    at_error err = {0};
    tune_database *d = open_database(path);
    add(d, &here, 1);
    const tune_sqlite *lib = tune_sqlite_load(&err);
    sqlite3 *writer = NULL;
    assert_non_null(lib);
    assert_int_equal(lib->open(path, &writer, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    assert_int_equal(lib->exec(writer, "BEGIN IMMEDIATE; DELETE FROM timing", NULL, NULL, NULL), SQLITE_OK);
    const time_t before = time(NULL);
    tune_database *reader = open_database(path);
    assert_best(reader, &here, "lanes=8");
    tune_database_close(reader);
    assert_true(time(NULL) - before < 4);
    assert_int_equal(lib->close(writer), SQLITE_OK);
    assert_best(d, &here, "lanes=8");
    tune_database_close(d);
}

/* A file that was made by hand has numbers as large as they come, and a schema that wants to run something. */
static void a_hostile_file_does_no_harm(void **state) {
    (void)state;
    at_error err = {0};
    uint64_t taken, of_here;
    tune_database *d = open_database(other_path);
    add(d, &here, 1);
    tune_database_close(d);
    const tune_sqlite *lib = tune_sqlite_load(&err);
    sqlite3 *hostile = NULL;
    assert_int_equal(lib->open(other_path, &hostile, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    assert_int_equal(lib->exec(hostile,
                               "UPDATE timing SET search = 9223372036854775807;"
                               "UPDATE search SET id = 9223372036854775807",
                               NULL, NULL, NULL),
                     SQLITE_OK);
    lib->close(hostile);
    d = open_database(path);
    add(d, &here, 0);
    if (tune_database_add(d, &here, "v1", three, 3, -1, &err)) fail_msg("%s", err.message);
    at_error_clear(&err);
    tune_place elsewhere = here;
    elsewhere.threads = 7;
    add(d, &elsewhere, 0);
    sqlite3 *changer = NULL; /* the same search, of another second */
    assert_int_equal(lib->open(path, &changer, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    assert_int_equal(lib->exec(changer, "UPDATE search SET at = at - 100", NULL, NULL, NULL), SQLITE_OK);
    lib->close(changer);
    if (tune_database_import(d, other_path, here.isa, here.machine, &taken, &of_here, &err))
        fail_msg("%s", err.message);
    assert_int_equal(taken, 1);
    assert_best(d, &here, "lanes=8");
    add(d, &here, 0);
    assert_best(d, &here, "lanes=4"); /* what comes later is still later */
    tune_database_close(d);
}

/* ---- A whole search ---- */

enum { HEADS = 2, LENGTH = 32, DIM = 16, COUNT = HEADS * LENGTH * DIM };

static float q[COUNT], k[COUNT], v[COUNT], out[COUNT];
static const char small_problem[] = "num_heads=2,seq_q=32,head_dim=16";

static attune_context *open_context(void) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.cache_dir = dir;
    options.max_workers = 1;
    return test_context(&options, NULL);
}

static void fill_arguments(attune_problem *problem, attune_arguments *arguments) {
    *problem = problem_parsed(small_problem);
    arguments->struct_size = sizeof *arguments;
    assert_int_equal(attune_arguments_init(arguments, problem), ATTUNE_OK);
    for (int i = 0; i < COUNT; i++) {
        q[i] = (float)noise(1);
        k[i] = (float)noise(1);
        v[i] = (float)noise(1);
    }
    arguments->q.data = q;
    arguments->k.data = k;
    arguments->v.data = v;
    arguments->out.data = out;
}

static int stop_after_some(void *user, const attune_tune_progress *progress) {
    int *const calls = user;
    assert_true(progress->measured > 0 && progress->space > 0);
    return ++*calls >= 20;
}

static void a_search_measures_and_keeps(void **state) {
    (void)state;
    attune_context *context = open_context();
    attune_problem problem;
    attune_arguments arguments;
    int calls = 0;
    fill_arguments(&problem, &arguments);
    attune_tune_options options = ATTUNE_TUNE_OPTIONS_INIT;
    options.budget_seconds = 60;
    options.progress = stop_after_some;
    options.progress_user = &calls;
    attune_tune_result result = {.struct_size = sizeof result};
    if (attune_tune(context, &problem, &arguments, &options, &result)) fail_msg("%s", attune_last_message());
    assert_int_equal(calls, 20);
    assert_true(result.measured >= 15 && result.wrong == 0 && result.failed == 0);
    assert_true(result.ratio_low <= result.ratio && result.ratio <= result.ratio_high);
    assert_true(result.threads == 1 && result.seconds_before > 0 && result.seconds_after > 0);
    assert_true(result.is_faster || result.seconds_after == result.seconds_before);
    assert_true(result.spread_before >= 0 && result.spread_after >= 0 && result.noise > 0);
    assert_true(result.detectable > 0 && result.detectable <= 1);
    assert_true(result.interrupted >= 0 && result.interrupted <= 1);
    assert_int_equal(attune_schedule_choose(context, &problem, result.schedule, NULL, 0), ATTUNE_OK);
    attune_context_destroy(context);
    assert_int_equal(access(path, F_OK), 0);
}

/* Runs everything in the thread that asks, and takes its time. */
typedef struct slow_pool {
    double budget, deadline;
    int runs, late_runs;
} slow_pool;

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void run_slowly(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    slow_pool *const pool = user;
    const struct timespec pause = {0, 4000000};
    /* The search began before its first run, so its time is over before this. */
    if (!pool->runs) pool->deadline = seconds_now() + pool->budget * 1.1;
    nanosleep(&pause, NULL);
    fn(argument, 0, n, 0);
    pool->runs++;
    pool->late_runs += seconds_now() > pool->deadline;
}

/* However long samples take: when the time is over, no more than a pair is finished. */
static void a_search_ends_when_its_time_is_over(void **state) {
    (void)state;
    slow_pool pool = {0};
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context;
    const attune_problem problem = problem_parsed("num_heads=8,seq_q=64,head_dim=16");
    attune_arguments arguments;
    static float large[4][8 * 64 * 16]; /* a call that is worth more than one thread */
    assert_int_equal(attune_arguments_init(&arguments, &problem), ATTUNE_OK);
    arguments.q.data = large[0];
    arguments.k.data = large[1];
    arguments.v.data = large[2];
    arguments.out.data = large[3];
    options.cache_dir = dir;
    const attune_runner runner = {
        .struct_size = sizeof runner, .parallel_for = run_slowly, .user = &pool, .max_workers = 2};
    options.runner = &runner;
    context = test_context(&options, NULL);
    attune_tune_options how = ATTUNE_TUNE_OPTIONS_INIT;
    how.budget_seconds = pool.budget = 0.4;
    attune_tune_result result = {.struct_size = sizeof result};
    if (attune_tune(context, &problem, &arguments, &how, &result)) fail_msg("%s", attune_last_message());
    assert_true(pool.runs > 0);
    assert_in_range(pool.late_runs, 0, 12);
    attune_context_destroy(context);
}

static sqlite3 *writer;

static int lock_meanwhile(void *user, const attune_tune_progress *progress) {
    const tune_sqlite *const lib = user;
    (void)progress;
    if (writer) return 1;
    assert_int_equal(lib->open(path, &writer, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    assert_int_equal(lib->exec(writer, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    return 1;
}

static void what_cannot_be_kept_is_told(void **state) {
    (void)state;
    at_error err = {0};
    attune_context *context = open_context();
    attune_problem problem;
    attune_arguments arguments;
    fill_arguments(&problem, &arguments);
    const tune_sqlite *lib = tune_sqlite_load(&err);
    attune_tune_options options = ATTUNE_TUNE_OPTIONS_INIT;
    options.budget_seconds = 60;
    options.progress = lock_meanwhile;
    options.progress_user = (void *)lib;
    attune_tune_result result = {.struct_size = sizeof result};
    writer = NULL;
    assert_int_equal(attune_tune(context, &problem, &arguments, &options, &result), ATTUNE_IO_ERROR);
    assert_non_null(strstr(attune_last_message(), "locked"));
    assert_int_equal(result.measured, 1);
    assert_int_equal(attune_schedule_choose(context, &problem, result.schedule, NULL, 0), ATTUNE_OK);
    lib->close(writer);
    attune_context_destroy(context);
}

/* score_columns of the schedule that the interpreter and attune_emit take where none is given. */
static int32_t shown_unroll(attune_context *context, const attune_problem *canonical) {
    at_arena arena;
    at_built built;
    at_error err = {0};
    at_arena_init(&arena, &context->allocator);
    if (at_build_as_cached(context, &arena, at_attention_of(canonical), NULL, &built, &err))
        fail_msg("%s", err.message);
    at_arena_free(&arena);
    return built.schedule.score_columns;
}

/* What won is what everybody gets, in this process and in the next; without a cached kernel, too. */
static void a_winner_is_used(void **state) {
    (void)state;
    attune_context *context = open_context();
    const attune_problem canonical = problem_canonical(small_problem);
    at_error err = {0};
    mha_schedule slow;
    mha_choose(mha_read(&canonical), context->target, &context->machine_class.description, &slow);
    attune_kernel *kernel = kernel_of(context, &canonical);
    attune_kernel_release(kernel);
    const int32_t usual = slow.score_columns;
    slow.score_columns = usual == 1 ? 2 : 1;
    char text[512];
    mha_schedule_print(&slow, text, sizeof text);

    tune_place place;
    char problem_text[2048];
    at_tuning_place(context, at_attention_of(&canonical), problem_text, sizeof problem_text, &place);
    tune_database *d = open_database(path);
    const tune_timing timing = {text, 1e-3, 0.5, 9};
    if (tune_database_add(d, &place, "v1", &timing, 1, 0, &err)) fail_msg("%s", err.message);
    tune_database_close(d);
    attune_context_destroy(context);

    context = open_context();
    attune_kernel_info info = {.struct_size = sizeof info};
    kernel = kernel_of(context, &canonical);
    assert_int_equal(attune_kernel_get_info(kernel, &info), ATTUNE_OK);
    assert_int_equal(info.origin, ATTUNE_FROM_DISK); /* a hit asks no database */
    assert_int_equal(schedule_read(info.schedule).score_columns, usual);
    assert_int_equal(shown_unroll(context, &canonical), usual); /* what is shown is what runs, from memory */
    attune_kernel_release(kernel);
    attune_drop_memory_cache(context);
    assert_int_equal(shown_unroll(context, &canonical), usual); /* and from disk */
    assert_int_equal(attune_cache_clear(context, NULL), ATTUNE_OK);
    assert_int_equal(shown_unroll(context, &canonical), slow.score_columns); /* what a miss is going to be */
    kernel = kernel_of(context, &canonical);
    assert_int_equal(attune_kernel_get_info(kernel, &info), ATTUNE_OK);
    assert_int_equal(info.origin, ATTUNE_FROM_COMPILER);
    assert_int_equal(schedule_read(info.schedule).score_columns, slow.score_columns);
    attune_kernel_release(kernel);

    /* a neighbour of nearly that length, and one that is not near */
    const attune_problem near = problem_canonical("num_heads=4,seq_q=40,head_dim=16,seq_kv=32");
    kernel = kernel_of(context, &near);
    assert_int_equal(attune_kernel_get_info(kernel, &info), ATTUNE_OK);
    assert_int_equal(schedule_read(info.schedule).score_columns, slow.score_columns);
    attune_kernel_release(kernel);
    const attune_problem far = problem_canonical("num_heads=2,seq_q=512,head_dim=16");
    kernel = kernel_of(context, &far);
    assert_int_equal(attune_kernel_get_info(kernel, &info), ATTUNE_OK);
    mha_schedule expected;
    mha_choose(mha_read(&far), context->target, &context->machine_class.description, &expected);
    assert_int_equal(schedule_read(info.schedule).score_columns, expected.score_columns);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}

static void a_replaced_kernel_is_found_by_all(void **state) {
    (void)state;
    attune_context *context = open_context();
    const attune_problem canonical = problem_canonical(small_problem);
    mha_schedule other;
    at_error err = {0};
    attune_kernel *kernel = kernel_of(context, &canonical);
    attune_kernel_release(kernel);
    mha_choose(mha_read(&canonical), context->target, &context->machine_class.description, &other);
    other.score_columns = other.score_columns == 1 ? 2 : 1;
    if (at_kernel_replace(context, at_attention_of(&canonical), &other, &err)) fail_msg("%s", err.message);
    for (int round = 0; round < 2; round++) {
        kernel = kernel_of(context, &canonical);
        const attune_kernel_info info = kernel_info_of(kernel);
        assert_int_equal(info.origin, ATTUNE_FROM_DISK);
        assert_int_equal(schedule_read(info.schedule).score_columns, other.score_columns);
        attune_kernel_release(kernel);
        attune_context_destroy(context);
        context = open_context();
    }
    attune_context_destroy(context);
}

/* The directory may be reached by a link, and the process may go elsewhere: the database stays where the cache is. */
static void the_database_is_where_the_cache_is(void **state) {
    (void)state;
    char link[TEMP_DIR_CHARS + 16], below[TEMP_DIR_CHARS + 32], home[1024], command[2 * TEMP_DIR_CHARS + 32];
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context;
    attune_problem problem;
    attune_arguments arguments;
    attune_tune_options how = ATTUNE_TUNE_OPTIONS_INIT;
    attune_tune_result result = {.struct_size = sizeof result};
    how.budget_seconds = 0.05;
    fill_arguments(&problem, &arguments);
    snprintf(link, sizeof link, "%s/link", dir);
    snprintf(below, sizeof below, "%s/c", link);
    assert_int_equal(symlink(dir, link), 0);
    options.cache_dir = below;
    assert_int_equal(attune_context_create(&options, &context), ATTUNE_OK);
    if (attune_tune(context, &problem, &arguments, &how, &result)) fail_msg("%s", attune_last_message());
    attune_context_destroy(context);

    assert_non_null(getcwd(home, sizeof home));
    assert_int_equal(chdir(below), 0);
    options.cache_dir = ".";
    assert_int_equal(attune_context_create(&options, &context), ATTUNE_OK);
    assert_int_equal(chdir(home), 0);
    assert_int_equal(attune_tuning_export(context, other_path), ATTUNE_OK);
    attune_context_destroy(context);
    snprintf(command, sizeof command, "rm -r '%s/c' '%s/link'", dir, dir);
    assert_int_equal(system(command), 0);
}

static void bad_arguments_are_refused(void **state) {
    (void)state;
    attune_context *context = open_context();
    attune_problem problem;
    attune_arguments arguments;
    fill_arguments(&problem, &arguments);
    attune_tune_options options = ATTUNE_TUNE_OPTIONS_INIT;
    attune_tune_result result = {.struct_size = sizeof result};
    assert_int_equal(attune_tuning_export(context, other_path), ATTUNE_INVALID_ARGUMENT);
    assert_non_null(strstr(attune_last_message(), "nothing has been tuned"));
    assert_int_equal(attune_tune(context, &problem, NULL, NULL, &result), ATTUNE_INVALID_ARGUMENT);
    options.budget_seconds = 0.01;
    assert_int_equal(attune_tune(context, &problem, &arguments, &options, &result), ATTUNE_INVALID_ARGUMENT);
    assert_non_null(strstr(attune_last_message(), "0.01"));
    options.budget_seconds = NAN;
    assert_int_equal(attune_tune(context, &problem, &arguments, &options, &result), ATTUNE_INVALID_ARGUMENT);
    options = (attune_tune_options)ATTUNE_TUNE_OPTIONS_INIT;
    options.struct_size--;
    assert_int_equal(attune_tune(context, &problem, &arguments, &options, &result), ATTUNE_INVALID_ARGUMENT);
    arguments.q.data = NULL;
    assert_int_equal(attune_tune(context, &problem, &arguments, NULL, &result), ATTUNE_INVALID_ARGUMENT);
    assert_int_equal(attune_tuning_import(context, other_path, NULL, NULL), ATTUNE_IO_ERROR);
    file_write(other_path, "x", 1);
    assert_int_equal(attune_tuning_import(context, other_path, NULL, NULL), ATTUNE_BAD_FILE);
    attune_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_has_a_large_space),
        cmocka_unit_test(a_small_list_holds_the_best_of_a_large_one),
        cmocka_unit_test(neighbours_differ_by_a_step),
        cmocka_unit_test(held_values_have_neighbours_in_memory),
        cmocka_unit_test(the_model_knows_what_is_bad),
        cmocka_unit_test(noise_does_not_choose),
        cmocka_unit_test(clear_cases_are_decided_soon),
        cmocka_unit_test(what_is_detectable_is_found),
        cmocka_unit_test(noise_is_that_of_the_pairs),
        cmocka_unit_test(an_interval_holds_the_ratio),
        cmocka_unit_test_setup_teardown(the_latest_winner_is_the_best, set_up, tear_down),
        cmocka_unit_test_setup_teardown(results_travel, set_up, tear_down),
        cmocka_unit_test_setup_teardown(damaged_and_foreign_files_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(readers_do_not_wait_for_writers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_hostile_file_does_no_harm, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_search_measures_and_keeps, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_search_ends_when_its_time_is_over, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_cannot_be_kept_is_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_winner_is_used, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_replaced_kernel_is_found_by_all, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_database_is_where_the_cache_is, set_up, tear_down),
        cmocka_unit_test_setup_teardown(bad_arguments_are_refused, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
