/* What was tuned, found again: for the problem itself, for its neighbours, from a base; and kept whatever happens. */
#define _GNU_SOURCE
#include "runtime/kernel.h"
#include "schedule/schedule.h"
#include "support/problems.h"
#include "support/temp_dir.h"
#include "tune/database.h"
#include "tune/space.h"
#include "tune/sqlite.h"
#include "tune/tuning.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[TEMP_DIR_CHARS], base[TEMP_DIR_CHARS], path[TEMP_DIR_CHARS + 16], base_path[TEMP_DIR_CHARS + 16];
static char last_message[ATTUNE_MESSAGE_BYTES];
static int messages;
static bool is_fat;

static int set_up(void **state) {
    (void)state;
    temp_dir_make(dir);
    temp_dir_make(base);
    snprintf(path, sizeof path, "%s/tuning.db", dir);
    snprintf(base_path, sizeof base_path, "%s/tuning.db", base);
    messages = 0;
    is_fat = false;
    last_message[0] = '\0';
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    chmod(dir, 0700);
    chmod(base, 0700);
    temp_dir_remove(dir);
    temp_dir_remove(base);
    return 0;
}

static void keep_message(void *user, attune_log_level level, const char *message) {
    (void)user;
    if (level > ATTUNE_LOG_WARNING) return;
    snprintf(last_message, sizeof last_message, "%s", message);
    messages++;
}

static attune_context *open_context(const char *own, const char *other, uint32_t workers) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context;
    options.cache_dir = own;
    options.cache_base = other;
    options.max_workers = workers;
    options.log = keep_message;
    if (attune_context_create(&options, &context)) fail_msg("%s", attune_last_message());
    return context;
}

static tune_database *open_database(const char *file) {
    tune_database *d;
    at_error err = {0};
    if (tune_database_open(file, TUNE_CREATE, at_default_allocator(), &d, &err)) fail_msg("%s", err.message);
    return d;
}

/* With the library itself, as another process would. */
static void change(const char *file, const char *sql) {
    const tune_sqlite *const lib = tune_sqlite_load(NULL);
    sqlite3 *handle = NULL;
    assert_non_null(lib);
    assert_int_equal(lib->open(file, &handle, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    assert_int_equal(lib->exec(handle, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(lib->close(handle), SQLITE_OK);
}

/* What is larger cannot be written, as on a full disk. */
static void limit_files(rlim_t bytes) {
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* ---- Winners that were not measured ---- */

#define THERE "num_heads=2,seq_q=32,head_dim=16"

/* Three that the rules would not choose. */
static attune_schedule unusual(const attune_context *context, int which) {
    const attune_problem p = problem_canonical(THERE);
    attune_schedule schedule;
    mha_choose(&p, context->target, &context->machine_class.description, &schedule);
    if (which != 1) schedule.score_columns = schedule.score_columns == 1 ? 2 : 1;
    if (which != 0) schedule.value_keys = schedule.value_keys == 1 ? 2 : 1;
    assert_int_equal(mha_schedule_check(&p, &schedule, context->target, NULL), ATTUNE_OK);
    return schedule;
}

static void plant(const attune_context *context, const char *file, const char *problem, const attune_schedule *schedule,
                  double ratio) {
    const attune_problem p = problem_canonical(problem);
    char problem_text[2048], schedule_text[512];
    tune_place place;
    at_error err = {0};
    mha_schedule_print(schedule, schedule_text, sizeof schedule_text);
    at_tuning_place(context, at_attention_of(&p), problem_text, sizeof problem_text, &place);
    const tune_timing timing = {schedule_text, 1e-3, ratio, 9};
    tune_database *d = open_database(file);
    if (tune_database_add(d, &place, "v1", &timing, 1, 0, &err)) fail_msg("%s", err.message);
    tune_database_close(d);
}

/* The same with a text. */
static void plant_text(const attune_context *context, const char *problem, const char *schedule) {
    const attune_problem p = problem_canonical(problem);
    char problem_text[2048];
    tune_place place;
    at_error err = {0};
    at_tuning_place(context, at_attention_of(&p), problem_text, sizeof problem_text, &place);
    const tune_timing timing = {schedule, 1e-3, 0.5, 9};
    tune_database *d = open_database(path);
    if (tune_database_add(d, &place, "v1", &timing, 1, 0, &err)) fail_msg("%s", err.message);
    tune_database_close(d);
}

static bool finds(attune_context *context, const char *problem, attune_schedule *schedule) {
    const attune_problem p = problem_canonical(problem);
    *schedule = (attune_schedule)ATTUNE_SCHEDULE_INIT;
    return at_tuning_find(context, at_attention_of(&p), schedule);
}

static void assert_finds(attune_context *context, const char *problem, const attune_schedule *expected) {
    attune_schedule schedule;
    if (!finds(context, problem, &schedule)) fail_msg("nothing for %s: %s", problem, last_message);
    assert_memory_equal(&schedule, expected, AT_SCHEDULE_BYTES);
}

/* ---- Neighbours ---- */

static void only_lengths_and_heads_may_differ(void **state) {
    (void)state;
    attune_context *context = open_context(dir, "", 1);
    const attune_schedule s = unusual(context, 0);
    attune_schedule schedule;
    static const char *const alike[] = {THERE ",batch=3", "num_heads=2,seq_q=40,seq_kv=32,head_dim=16",
                                        "num_heads=7,seq_q=24,seq_kv=32,head_dim=16"};
    static const char *const unlike[] = {THERE ",is_causal=1",
                                         THERE ",window_left=8",
                                         THERE ",rotary_dim=16",
                                         THERE ",alibi_slopes=1",
                                         THERE ",sinks=1",
                                         THERE ",logits_soft_cap=30",
                                         THERE ",weights=softmax",
                                         THERE ",lse=1",
                                         THERE ",kv_lens=1",
                                         THERE ",kv_dtype=f16",
                                         THERE ",reproducible=1",
                                         THERE ",attn_mask=qk",
                                         THERE ",attn_bias=bhqk",
                                         THERE ",softmax_scale=0.3",
                                         THERE ",kv_dtype=i8,kv_scales=head",
                                         THERE ",k_strides=1:1:1:7",
                                         THERE ",seq_kv=dynamic"};
    plant(context, path, THERE, &s, 0.5);
    for (size_t i = 0; i < sizeof alike / sizeof *alike; i++) assert_finds(context, alike[i], &s);
    for (size_t i = 0; i < sizeof unlike / sizeof *unlike; i++)
        if (finds(context, unlike[i], &schedule)) fail_msg("%s", unlike[i]);
    assert_false(finds(context, "num_heads=2,seq_q=40,seq_kv=40,head_dim=16", &schedule)); /* 1.25 squared is far */
    attune_context_destroy(context);
}

/* Results of a version whose schedules had other fields are no error, here or for a neighbour. */
static void schedules_of_before_are_passed_over(void **state) {
    (void)state;
    attune_context *context = open_context(dir, "", 1);
    attune_schedule schedule;
    plant_text(context, THERE,
               "strategy=q_lanes,lanes=4,score_rows=6,score_vectors=2,score_unroll=4,value_rows=6,"
               "value_vectors=2,value_unroll=1,q_vectors=4,kv_tile=48,kv_chunk=0");
    assert_false(finds(context, THERE, &schedule));
    assert_false(finds(context, "num_heads=2,seq_q=40,seq_kv=32,head_dim=16", &schedule));
    assert_int_equal(messages, 0);
    const attune_schedule s = unusual(context, 0);
    plant(context, path, THERE, &s, 0.5);
    assert_finds(context, THERE, &s);
    attune_context_destroy(context);
}

/* Vectors of two lanes can have values by rows in one tile only: a neighbour with more keys takes columns. */
static void usual_choices_are_made_anew(void **state) {
    (void)state;
    attune_context *context = open_context(dir, "", 1);
    static const char there[] = "num_heads=2,seq_q=32,seq_kv=32,head_dim=16";
    static const char here[] = "num_heads=2,seq_q=32,seq_kv=36,head_dim=16";
    attune_schedule schedule;
    plant_text(context, there,
               "strategy=q_lanes,lanes=2,score_row_vectors=4,score_keys=2,score_columns=4,value_by=rows,"
               "value_row_vectors=4,value_columns=2,value_keys=2,task_row_vectors=4,kv_tile=32,kv_copy=converted,task_"
               "prefetch=none");
    assert_true(finds(context, there, &schedule));
    assert_int_equal(schedule.value_by, ATTUNE_VALUE_BY_ROWS);
    assert_true(finds(context, here, &schedule));
    assert_int_equal(schedule.value_by, ATTUNE_VALUE_BY_COLUMNS);
    attune_context_destroy(context);
}

static void open_lengths_are_near_by_their_bounds(void **state) {
    (void)state;
    attune_context *context = open_context(dir, "", 1);
    const char *const there = "num_heads=2,seq_q=32,seq_kv=dynamic,max_seq_kv=512,head_dim=16";
    const attune_schedule s = unusual(context, 0);
    attune_schedule schedule;
    plant(context, path, there, &s, 0.5);
    assert_finds(context, "num_heads=2,seq_q=32,seq_kv=dynamic,max_seq_kv=640,head_dim=16", &s);
    assert_false(finds(context, "num_heads=2,seq_q=32,seq_kv=dynamic,max_seq_kv=1024,head_dim=16", &schedule));
    assert_false(finds(context, "num_heads=2,seq_q=32,seq_kv=dynamic,head_dim=16", &schedule));
    assert_false(finds(context, "num_heads=2,seq_q=32,seq_kv=512,head_dim=16", &schedule));
    attune_context_destroy(context);
}

/* What a neighbour won must be more than what the model sees it lose on the way. */
static void a_neighbour_has_to_suit(void **state) {
    enum { SPACE = 3000 };
    static tune_candidate list[SPACE];
    static const char there_text[] = "num_heads=2,seq_q=96,seq_kv=96,head_dim=64";
    static const char here_text[] = "num_heads=2,seq_q=65,seq_kv=96,head_dim=64";
    (void)state;
    attune_context *context = open_context(dir, "", 1);
    const attune_problem there = problem_canonical(there_text), here = problem_canonical(here_text);
    const mha_machine machine = tune_machine_of(context);
    const size_t count = tune_space(&there, &machine, list, SPACE);
    attune_schedule usual_there, usual_here, schedule;
    const attune_schedule *worse = NULL;
    double change = 0;
    mha_choose(&there, context->target, &context->machine_class.description, &usual_there);
    mha_choose(&here, context->target, &context->machine_class.description, &usual_here);
    for (size_t i = 0; i < count && !worse; i++) {
        if (mha_schedule_check(&here, &list[i].schedule, context->target, NULL)) continue;
        change = mha_cost(&here, &machine, &list[i].schedule) / mha_cost(&here, &machine, &usual_here) /
                 (list[i].cost / mha_cost(&there, &machine, &usual_there));
        if (change > 1.06) worse = &list[i].schedule;
    }
    assert_non_null(worse);
    plant(context, path, there_text, worse, 1.03 / change);
    assert_finds(context, there_text, worse);
    assert_false(finds(context, here_text, &schedule));
    plant(context, path, there_text, worse, 0.97 / change);
    assert_finds(context, here_text, worse);
    attune_context_destroy(context);
}

/* ---- Order ---- */

typedef struct order {
    char schedules[64];
} order;

static int note(void *user, const tune_winner *winner) {
    order *const o = user;
    strcat(strcat(o->schedules, *o->schedules ? " " : ""), winner->schedule);
    return 0;
}

static const tune_place here = {"a problem", {1, 2}, "avx2", "a class", "a CPU", 4, {3, 4}, 100, 100, 2};

static void add(const char *file, tune_place place, const char *schedule, const char *sql) {
    at_error err = {0};
    const tune_timing timing = {schedule, 1e-3, 0.9, 9};
    tune_database *d = open_database(file);
    if (tune_database_add(d, &place, "v1", &timing, 1, 0, &err)) fail_msg("%s", err.message);
    tune_database_close(d);
    if (sql) change(file, sql);
}

#define EARLIER "UPDATE search SET at = at - 100 WHERE id = (SELECT max(id) FROM search)"

static void assert_same(const char *expected) {
    order o = {""};
    tune_database *d = open_database(path);
    assert_int_equal(tune_database_same(d, &here, note, &o, NULL), ATTUNE_OK);
    assert_string_equal(o.schedules, expected);
    tune_database_close(d);
}

static void assert_near(const char *expected) {
    order o = {""};
    tune_database *d = open_database(path);
    assert_int_equal(tune_database_near(d, &here, 1.5, note, &o, NULL), ATTUNE_OK);
    assert_string_equal(o.schedules, expected);
    tune_database_close(d);
}

static tune_place with_threads(uint32_t threads) {
    tune_place place = here;
    place.threads = threads;
    return place;
}

static tune_place of_lengths(int64_t queries, int64_t keys, int64_t heads) {
    tune_place place = here;
    place.key[0] += (uint64_t)(queries * 1000 + keys * 10 + heads);
    place.queries = queries;
    place.keys = keys;
    place.heads_per_kv_head = heads;
    return place;
}

static void the_nearest_number_of_threads_and_the_latest(void **state) {
    (void)state;
    tune_place elsewhere = here;
    add(path, with_threads(1), "one", NULL);
    add(path, with_threads(4), "four", NULL);
    add(path, with_threads(4), "older", EARLIER);
    add(path, with_threads(6), "six", NULL);
    add(path, with_threads(64), "many", NULL);
    elsewhere.machine = "another class";
    add(path, elsewhere, "elsewhere", NULL);
    assert_same("four older six one many");
}

static void the_nearest_neighbour(void **state) {
    (void)state;
    tune_place unlike = of_lengths(100, 101, 2), elsewhere = of_lengths(100, 101, 2), few = of_lengths(100, 101, 2);
    unlike.kind[1]++;
    elsewhere.isa = "avx512";
    few.threads = 2;
    add(path, of_lengths(120, 110, 2), "132", NULL);
    add(path, of_lengths(100, 90, 2), "111", NULL);
    add(path, of_lengths(90, 100, 2), "newer", NULL);
    add(path, of_lengths(100, 90, 2), "old", EARLIER);
    add(path, of_lengths(149, 100, 2), "149", NULL);
    add(path, of_lengths(151, 100, 2), "too-far", NULL);
    add(path, of_lengths(130, 130, 2), "too-far-both", NULL);
    add(path, of_lengths(100, 100, 4), "too-many-heads", NULL);
    add(path, unlike, "unlike", NULL);
    add(path, elsewhere, "elsewhere", NULL);
    add(path, few, "few-threads", NULL);
    assert_near("newer 111 old 132 149 few-threads");
}

static int count_visit(void *user, const tune_winner *winner) {
    (void)winner;
    return ++*(int *)user < 0;
}

/* Neighbours that do not suit cost a miss no more than sixteen looks. */
static void no_more_than_sixteen_are_asked(void **state) {
    (void)state;
    int visits = 0;
    for (int64_t i = 0; i < 20; i++) add(path, of_lengths(100 + i, 100, 2), "lanes=8", NULL);
    tune_database *d = open_database(path);
    assert_int_equal(tune_database_near(d, &here, 1.5, count_visit, &visits, NULL), ATTUNE_OK);
    tune_database_close(d);
    assert_int_equal(visits, 16);
}

/* What is brought from elsewhere is as old as it was there. */
static void an_older_import_does_not_override(void **state) {
    (void)state;
    at_error err = {0};
    uint64_t taken, of_here;
    add(base_path, here, "imported", EARLIER);
    add(path, here, "own", NULL);
    tune_database *d = open_database(path);
    if (tune_database_import(d, base_path, here.isa, here.machine, &taken, &of_here, &err)) fail_msg("%s", err.message);
    tune_database_close(d);
    assert_int_equal(of_here, 1);
    assert_same("own imported");
}

/* ---- The base ---- */

/* Not even root may write to a directory without permission, until this is taken back. */
static void obey_permissions(bool obeys) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {0};
    const uint32_t privileges = 1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH;
    assert_int_equal(syscall(SYS_capget, &header, data), 0);
    data[0].effective = obeys ? data[0].effective & ~privileges : data[0].effective | (data[0].permitted & privileges);
    assert_int_equal(syscall(SYS_capset, &header, data), 0);
}

static void a_base_is_found_and_not_touched(void **state) {
    (void)state;
    attune_context *context = open_context(base, "", 1);
    const attune_schedule s = unusual(context, 0);
    attune_schedule schedule;
    plant(context, base_path, THERE, &s, 0.5);
    attune_context_destroy(context);
    assert_int_equal(chmod(base, 0500), 0);
    obey_permissions(true);
    static const char *const own[] = {"", dir};
    for (int i = 0; i < 2; i++) {
        context = open_context(own[i], base, 1);
        assert_finds(context, THERE, &s);
        assert_finds(context, "num_heads=2,seq_q=40,seq_kv=32,head_dim=16", &s);
        assert_false(finds(context, "num_heads=2,seq_q=80,head_dim=16", &schedule));
        attune_context_destroy(context);
    }
    obey_permissions(false);
    assert_int_equal(messages, 0);
    assert_int_equal(temp_dir_count(base, "tuning.db", ""), 1);
    assert_int_equal(access(path, F_OK), -1);
}

static void an_exported_file_makes_a_base(void **state) {
    (void)state;
    attune_context *context = open_context(dir, "", 1);
    const attune_schedule s = unusual(context, 0);
    plant(context, path, THERE, &s, 0.5);
    if (attune_tuning_export(context, base_path)) fail_msg("%s", attune_last_message());
    attune_context_destroy(context);
    context = open_context("", base, 1);
    assert_finds(context, THERE, &s);
    attune_context_destroy(context);
}

/* A directory of one's own on a disk that is only read. */
static void a_read_only_directory_is_read(void **state) {
    (void)state;
    attune_context *context = open_context(dir, "", 1);
    const attune_schedule s = unusual(context, 0);
    plant(context, path, THERE, &s, 0.5);
    attune_context_destroy(context);
    assert_int_equal(chmod(dir, 0500), 0);
    obey_permissions(true);
    context = open_context(dir, "", 1);
    assert_finds(context, THERE, &s);
    at_error err = {0};
    tune_database *d;
    assert_int_equal(tune_database_open(path, TUNE_CREATE, at_default_allocator(), &d, &err), ATTUNE_IO_ERROR);
    assert_non_null(strstr(err.message, "tuning.db cannot be written to: Permission denied"));
    attune_context_destroy(context);
    obey_permissions(false);
    assert_int_equal(messages, 0);
}

/* Who is asked first: for the problem itself both, then for neighbours. */
static void the_problem_itself_in_a_base_comes_before_neighbours(void **state) {
    (void)state;
    attune_context *context = open_context(dir, base, 1);
    static const char near[] = "num_heads=2,seq_q=36,seq_kv=32,head_dim=16";
    const attune_schedule of_base = unusual(context, 0), of_own = unusual(context, 1), of_near = unusual(context, 2);
    plant(context, path, near, &of_near, 0.5);
    assert_finds(context, THERE, &of_near);
    plant(context, base_path, THERE, &of_base, 0.5);
    attune_context_destroy(context);
    context = open_context(dir, base, 1);
    assert_finds(context, THERE, &of_base);
    assert_finds(context, near, &of_near);
    plant(context, path, THERE, &of_own, 0.5);
    assert_finds(context, THERE, &of_own);
    attune_context_destroy(context);
}

static void a_base_that_others_can_write_is_not_read(void **state) {
    (void)state;
    attune_context *context = open_context(base, "", 1);
    const attune_schedule s = unusual(context, 0);
    attune_schedule schedule;
    plant(context, base_path, THERE, &s, 0.5);
    attune_context_destroy(context);
    assert_int_equal(chmod(base_path, 0666), 0);
    context = open_context(dir, base, 1);
    assert_false(finds(context, THERE, &schedule));
    assert_false(finds(context, THERE, &schedule));
    assert_int_equal(messages, 1);
    assert_non_null(strstr(last_message, "it can be written by others"));
    attune_context_destroy(context);
}

/* ---- What tuning does to cached kernels ---- */

enum { COUNT = 2 * 32 * 16 };
static float q[COUNT], k[COUNT], v[COUNT], out[COUNT];

static void make_call(attune_problem *problem, attune_arguments *arguments) {
    *problem = problem_parsed(THERE);
    arguments->struct_size = sizeof *arguments;
    assert_int_equal(attune_arguments_init(arguments, problem), ATTUNE_OK);
    for (int i = 0; i < COUNT; i++) {
        q[i] = (float)(i % 7) / 7;
        k[i] = (float)(i % 11) / 11;
        v[i] = (float)(i % 13) / 13;
    }
    arguments->q = q;
    arguments->k = k;
    arguments->v = v;
    arguments->out = out;
}

static attune_status tune(attune_context *context, attune_tune_progress_fn *progress, attune_tune_result *result) {
    attune_problem problem;
    attune_arguments arguments;
    attune_tune_options options = ATTUNE_TUNE_OPTIONS_INIT;
    make_call(&problem, &arguments);
    options.budget_seconds = 60;
    options.progress = progress;
    result->struct_size = sizeof *result;
    return attune_tune(context, &problem, &arguments, &options, result);
}

static int stop_at_once(void *user, const attune_tune_progress *progress) {
    (void)user, (void)progress;
    return 1;
}

static attune_schedule compiled(attune_context *context, const char *text) {
    const attune_problem problem = problem_parsed(text);
    attune_kernel *kernel;
    attune_kernel_info info = {.struct_size = sizeof info};
    if (attune_compile(context, &problem, NULL, &kernel)) fail_msg("%s", attune_last_message());
    assert_int_equal(attune_kernel_get_info(kernel, &info), ATTUNE_OK);
    attune_kernel_release(kernel);
    return info.schedule;
}

static void assert_compiled(attune_context *context, const attune_schedule *expected) {
    const attune_schedule schedule = compiled(context, THERE);
    assert_memory_equal(&schedule, expected, AT_SCHEDULE_BYTES);
}

static uint64_t memory_kernels(const attune_context *context) {
    attune_statistics s = {.struct_size = sizeof s};
    assert_int_equal(attune_get_statistics(context, &s), ATTUNE_OK);
    return s.memory_kernels;
}

static void other_kernels_stay_in_memory(void **state) {
    (void)state;
    attune_context *context = open_context(dir, "", 1);
    const attune_problem canonical = problem_canonical(THERE);
    const attune_schedule s = unusual(context, 0);
    at_error err = {0};
    compiled(context, THERE);
    compiled(context, "num_heads=2,seq_q=9,head_dim=16");
    assert_int_equal(memory_kernels(context), 2);
    if (at_kernel_replace(context, at_attention_of(&canonical), &s, &err)) fail_msg("%s", err.message);
    assert_int_equal(memory_kernels(context), 1);
    assert_compiled(context, &s);
    attune_context_destroy(context);
}

/* Where the disk is full the old one stays, and nothing half beside it. */
static void a_kernel_that_cannot_be_replaced_stays(void **state) {
    (void)state;
    attune_context *context = open_context(dir, "", 1);
    const attune_problem canonical = problem_canonical(THERE);
    const attune_schedule s = unusual(context, 0), before = compiled(context, THERE);
    at_error err = {0};
    limit_files(1024);
    const attune_status status = at_kernel_replace(context, at_attention_of(&canonical), &s, &err);
    limit_files(RLIM_INFINITY);
    assert_int_equal(status, ATTUNE_OK);
    assert_non_null(strstr(last_message, "cannot be written: File too large"));
    attune_context_destroy(context);
    assert_int_equal(temp_dir_count(dir, "", ""), 1);
    context = open_context(dir, "", 1);
    assert_compiled(context, &before);
    assert_int_equal(attune_cache_clear(context, NULL), ATTUNE_OK);
    attune_context_destroy(context);
}

static void without_a_disk_cache_kernels_stay(void **state) {
    (void)state;
    attune_context *context = open_context("", "", 1);
    attune_tune_result result;
    compiled(context, THERE);
    if (tune(context, stop_at_once, &result)) fail_msg("%s", attune_last_message());
    assert_int_equal(memory_kernels(context), 1);
    attune_context_destroy(context);
}

/* There is one cached kernel for all numbers of threads: that of the last tuning, which says so. */
static void the_last_tuning_wins_and_says_so(void **state) {
    (void)state;
    attune_context *one = open_context(dir, "", 1), *two = open_context(dir, "", 2);
    const attune_schedule of_one = unusual(one, 0), of_two = unusual(one, 1);
    attune_tune_result result;
    plant(one, path, THERE, &of_one, 0.5);
    assert_compiled(one, &of_one);
    attune_context_destroy(one);

    plant(two, path, THERE, &of_two, 0.5);
    if (tune(two, stop_at_once, &result)) fail_msg("%s", attune_last_message());
    assert_memory_not_equal(&result.schedule, &of_one, AT_SCHEDULE_BYTES);
    assert_int_equal(messages, 1);
    assert_non_null(strstr(last_message, "tuned with 1 thread, is replaced by one tuned with 2"));
    assert_compiled(two, &result.schedule);
    attune_context_destroy(two);

    messages = 0; /* and one more time back: nothing faster is found, and the winner of before returns */
    one = open_context(dir, "", 1);
    if (tune(one, stop_at_once, &result)) fail_msg("%s", attune_last_message());
    assert_compiled(one, &result.schedule);
    attune_context_destroy(one);
}

/* Without a winner for as many threads as there are, that for another number is better than none. */
static void winners_of_other_numbers_of_threads_count(void **state) {
    (void)state;
    attune_context *one = open_context(dir, "", 1), *two = open_context(dir, "", 2);
    const attune_schedule of_one = unusual(one, 0), of_two = unusual(one, 1);
    plant(one, path, THERE, &of_one, 0.5);
    assert_finds(two, THERE, &of_one);
    plant(two, path, THERE, &of_two, 0.5);
    assert_finds(two, THERE, &of_two);
    assert_finds(one, THERE, &of_one);
    attune_context_destroy(one);
    attune_context_destroy(two);
}

/* ---- What goes wrong ---- */

static int64_t count_of(const char *file, const char *sql) {
    const tune_sqlite *const lib = tune_sqlite_load(NULL);
    sqlite3 *handle = NULL;
    sqlite3_stmt *statement = NULL;
    assert_int_equal(lib->open(file, &handle, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    assert_int_equal(lib->prepare(handle, sql, -1, &statement, NULL), SQLITE_OK);
    assert_int_equal(lib->step(statement), SQLITE_ROW);
    const int64_t count = lib->column_int64(statement, 0);
    lib->finalize(statement);
    lib->close(handle);
    return count;
}

/* Every search has all of its timings. */
static void assert_whole(int64_t searches) {
    assert_int_equal(count_of(path, "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check = 'ok'"), 1);
    assert_int_equal(count_of(path, "SELECT count(*) FROM search"), searches);
    assert_int_equal(count_of(path, "SELECT count(*) FROM timing"), 3 * searches);
}

static bool add_three(tune_database *d) {
    static const tune_timing three[] = {{"a", 1e-3, 1.2, 5}, {"b", 1e-3, 0.8, 9}, {"c", 1e-3, 2, 1}};
    return tune_database_add(d, &here, "v1", three, 3, 1, NULL) == ATTUNE_OK;
}

static void writers_wait_for_each_other(void **state) {
    enum { ROUNDS = 12, WRITERS = 4, EACH = 6 };
    pid_t children[WRITERS];
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        for (int w = 0; w < WRITERS; w++) {
            children[w] = fork();
            if (children[w]) continue;
            bool good = true;
            for (int i = 0; i < EACH && good; i++) { /* opened anew each time, the first time when there is no file */
                tune_database *d;
                good = !tune_database_open(path, TUNE_CREATE, at_default_allocator(), &d, NULL) && add_three(d);
                tune_database_close(d);
            }
            _exit(good ? 0 : 1);
        }
        for (int w = 0; w < WRITERS; w++) {
            int status;
            assert_int_equal(waitpid(children[w], &status, 0), children[w]);
            assert_int_equal(status, 0);
        }
        assert_whole(WRITERS * EACH);
        assert_int_equal(unlink(path), 0);
    }
}

/* What add has returned from is there, what it was writing is there as a whole or not at all. */
static void a_killed_writer_leaves_whole_searches(void **state) {
    enum { ROUNDS = 12 };
    (void)state;
    int64_t done = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int ends[2];
        char byte;
        assert_int_equal(pipe(ends), 0);
        const pid_t child = fork();
        if (!child) {
            tune_database *d;
            if (tune_database_open(path, TUNE_CREATE, at_default_allocator(), &d, NULL)) _exit(1);
            while (add_three(d) && write(ends[1], "x", 1) == 1) continue;
            _exit(1);
        }
        close(ends[1]);
        assert_int_equal(read(ends[0], &byte, 1), 1);
        usleep((useconds_t)(round * 331));
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        for (done++; read(ends[0], &byte, 1) == 1;) done++;
        close(ends[0]);
        const int64_t there = count_of(path, "SELECT count(*) FROM search");
        assert_true(there == done || there == done + 1);
        assert_whole(there);
        done = there;
    }
}

static int fill_the_disk(void *user, const attune_tune_progress *progress) {
    (void)user, (void)progress;
    limit_files(4096);
    return 1;
}

static void a_disk_that_is_full_after_the_search(void **state) {
    (void)state;
    attune_context *context = open_context(dir, "", 1);
    attune_tune_result result;
    if (tune(context, stop_at_once, &result)) fail_msg("%s", attune_last_message());
    const attune_status status = tune(context, fill_the_disk, &result);
    limit_files(RLIM_INFINITY);
    assert_int_equal(status, ATTUNE_IO_ERROR);
    assert_non_null(strstr(attune_last_message(), "tuning.db could not be "));
    assert_non_null(strstr(attune_last_message(), ": File too large"));
    assert_int_equal(result.measured, 1);
    assert_int_equal(count_of(path, "SELECT count(*) FROM search"), 1);
    if (tune(context, stop_at_once, &result)) fail_msg("%s", attune_last_message()); /* there is room again */
    assert_int_equal(count_of(path, "SELECT count(*) FROM search"), 2);
    attune_context_destroy(context);
}

/* SIGXFSZ as it usually is: it would end the process. */
static void a_new_file_on_a_full_disk_leaves_nothing(void **state) {
    (void)state;
    static const rlim_t limits[] = {0, 4096, 12288};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        at_error err = {0};
        tune_database *d = NULL;
        limit_files(limits[i]);
        const attune_status status = tune_database_open(path, TUNE_CREATE, at_default_allocator(), &d, &err);
        limit_files(RLIM_INFINITY);
        assert_null(d);
        assert_int_equal(status, ATTUNE_IO_ERROR);
        assert_non_null(strstr(err.message, "tuning.db could not be made: disk I/O error"));
        assert_int_equal(temp_dir_count(dir, "", ""), 0);
    }
    tune_database_close(open_database(path));
    assert_int_equal(temp_dir_count(dir, "tmp-", ""), 0);
}

/* As the cache's own entries do, results make a directory again that somebody has removed. */
static void a_directory_that_was_removed(void **state) {
    (void)state;
    attune_context *context = open_context(dir, "", 1);
    attune_tune_result result;
    temp_dir_remove(dir);
    if (tune(context, stop_at_once, &result)) fail_msg("%s", attune_last_message());
    assert_int_equal(count_of(path, "SELECT count(*) FROM search"), 1);
    attune_context_destroy(context);
}

static void an_export_to_a_full_disk_leaves_nothing(void **state) {
    (void)state;
    at_error err = {0};
    add(path, here, "lanes=8", NULL);
    tune_database *d = open_database(path);
    limit_files(4096);
    const attune_status status = tune_database_export(d, base_path, &err);
    limit_files(RLIM_INFINITY);
    tune_database_close(d);
    assert_int_equal(status, ATTUNE_IO_ERROR);
    assert_non_null(strstr(err.message, "could not be exported"));
    assert_int_equal(temp_dir_count(base, "", ""), 0);
}

/* Known before the search, not after it. */
static void what_cannot_be_written_is_not_searched_for(void **state) {
    (void)state;
    attune_context *context = open_context(dir, "", 1);
    attune_tune_result result;
    assert_int_equal(chmod(dir, 0500), 0);
    obey_permissions(true);
    const attune_status status = tune(context, stop_at_once, &result);
    obey_permissions(false);
    assert_int_equal(status, ATTUNE_IO_ERROR);
    assert_non_null(strstr(attune_last_message(), "tuning.db cannot be written to: Permission denied"));
    assert_int_equal(chmod(dir, 0700), 0);

    tune_database_close(open_database(path));
    const tune_sqlite *const lib = tune_sqlite_load(NULL);
    sqlite3 *writer = NULL;
    assert_int_equal(lib->open(path, &writer, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    assert_int_equal(lib->exec(writer, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(tune(context, NULL, &result), ATTUNE_IO_ERROR);
    assert_non_null(strstr(attune_last_message(), "could not be written to: database is locked"));
    lib->close(writer);
    attune_context_destroy(context);
}

static void an_older_version_says_what_to_do(void **state) {
    (void)state;
    tune_database *d;
    at_error err = {0};
    tune_database_close(open_database(path));
    change(path, "PRAGMA user_version = 1");
    assert_int_equal(tune_database_open(path, 0, at_default_allocator(), &d, &err), ATTUNE_BAD_FILE);
    assert_non_null(strstr(err.message, "version 1, and this attune's have version 3: move it away"));
    change(path, "PRAGMA application_id = 7");
    at_error_clear(&err);
    assert_int_equal(tune_database_open(path, 0, at_default_allocator(), &d, &err), ATTUNE_BAD_FILE);
    assert_non_null(strstr(err.message, "not one of tuning results"));
}

/* Links on the way, and names that mean something to SQLite. */
static void files_are_where_paths_lead(void **state) {
    (void)state;
    char link_to_base[TEMP_DIR_CHARS + 16], link_to_file[TEMP_DIR_CHARS + 16], file[TEMP_DIR_CHARS + 32];
    char before[PATH_MAX];
    at_error err = {0};
    uint64_t taken, of_here;
    snprintf(link_to_base, sizeof link_to_base, "%s/base", dir);
    snprintf(link_to_file, sizeof link_to_file, "%s/file.db", dir);
    assert_int_equal(symlink(base, link_to_base), 0);
    assert_int_equal(symlink(base_path, link_to_file), 0);
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(base), 0);
    add(path, here, "lanes=8", NULL);
    tune_database *d = open_database(path);
    snprintf(file, sizeof file, "%s/tuning.db", link_to_base);
    if (tune_database_export(d, file, &err)) fail_msg("%s", err.message);
    if (tune_database_export(d, "file:a.db", &err)) fail_msg("%s", err.message);
    if (tune_database_export(d, "b.db", &err)) fail_msg("%s", err.message);
    assert_int_equal(access("file:a.db", F_OK) | access("b.db", F_OK), 0);
    assert_int_equal(temp_dir_count(base, "", ""), 3);
    snprintf(file, sizeof file, "/%s/b.db", base);
    const char *const from[] = {link_to_file, "file:a.db", "b.db", file};
    for (size_t i = 0; i < sizeof from / sizeof *from; i++)
        if (tune_database_import(d, from[i], here.isa, here.machine, &taken, &of_here, &err))
            fail_msg("%s", err.message);
    tune_database_close(d);
    assert_int_equal(chdir(before), 0);
}

static bool finish(pid_t child) {
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Of several exports to one file one is there in the end, whole, and the others say so. */
int __real_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
int __real_link(const char *from, const char *to);
int __wrap_link(const char *from, const char *to);

int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    return is_fat ? (errno = EINVAL, -1) : __real_renameat2(from_dir, from, to_dir, to, flags);
}

int __wrap_link(const char *from, const char *to) { return is_fat ? (errno = EPERM, -1) : __real_link(from, to); }

/* A file system without hard links, and without a rename that leaves what is there. */
static void files_on_fat(void **state) {
    at_error err = {0};
    (void)state;
    is_fat = true;
    for (int i = 0; i < 3; i++) add(path, here, "lanes=8", NULL);
    tune_database *d = open_database(path);
    if (tune_database_export(d, base_path, &err)) fail_msg("%s", err.message);
    assert_int_equal(tune_database_export(d, base_path, &err), ATTUNE_IO_ERROR);
    is_fat = false;
    assert_non_null(strstr(err.message, "exists already"));
    tune_database_close(d);
    assert_int_equal(count_of(base_path, "SELECT count(*) FROM search"), 3);
    assert_int_equal(temp_dir_count(base, "", ""), 1);
}

static void exports_do_not_take_each_other_away(void **state) {
    enum { ROUNDS = 20, EXPORTERS = 4 };
    (void)state;
    for (int i = 0; i < 30; i++) add(path, here, "lanes=8", NULL);
    for (int round = 0; round < ROUNDS; round++) {
        pid_t children[EXPORTERS];
        int good = 0;
        for (int i = 0; i < EXPORTERS; i++) {
            children[i] = fork();
            if (children[i]) continue;
            tune_database *d = open_database(path);
            at_error err = {0};
            const attune_status status = tune_database_export(d, base_path, &err);
            tune_database_close(d);
            _exit(!status ? 0 : strstr(err.message, "exists already") ? 1 : 2);
        }
        for (int i = 0; i < EXPORTERS; i++) good += finish(children[i]);
        assert_int_equal(good, 1);
        assert_int_equal(count_of(base_path, "SELECT count(*) FROM search"), 30);
        assert_int_equal(temp_dir_count(base, "", ""), 1);
        assert_int_equal(unlink(base_path), 0);
    }
}

/* A view in place of a table would be run by whoever asks the table, and this one never ends. */
static void what_a_file_brings_along_is_not_run(void **state) {
    static const char *const bad[] = {
        "DROP TABLE search; CREATE VIEW search AS WITH RECURSIVE r (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM r)"
        " SELECT id, id AS number, '' AS problem, x'' AS key, '' AS isa, '' AS machine, '' AS cpu, 1 AS threads, '' AS "
        "version,"
        " 1 AS at, x'' AS kind, 1 AS queries, 1 AS keys, 1 AS heads_per_kv_head FROM r",
        "CREATE TRIGGER t AFTER INSERT ON search BEGIN DELETE FROM search; END",
        "CREATE VIEW one AS SELECT 1",
        "DROP INDEX search_by_kind",
        "ALTER TABLE timing ADD COLUMN more TEXT",
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tune_database *d;
        at_error err = {0};
        uint64_t taken, of_here;
        add(base_path, here, "lanes=8", bad[i]);
        assert_int_equal(tune_database_open(base_path, 0, at_default_allocator(), &d, &err), ATTUNE_BAD_FILE);
        assert_non_null(strstr(err.message, "its tables are not those of attune"));
        at_error_clear(&err);
        d = open_database(path);
        assert_int_equal(tune_database_import(d, base_path, here.isa, here.machine, &taken, &of_here, &err),
                         ATTUNE_BAD_FILE);
        assert_non_null(strstr(err.message, base_path));
        assert_int_equal(taken, 0);
        tune_database_close(d);
        assert_int_equal(unlink(base_path), 0);
    }
    assert_int_equal(count_of(path, "SELECT count(*) FROM search"), 0);
}

/* Of a fleet's machines, which are alike and begin at the same time. */
static void searches_of_the_same_second_are_two(void **state) {
    (void)state;
    at_error err = {0};
    uint64_t taken, of_here;
    add(path, here, "mine", "UPDATE search SET at = 7");
    add(base_path, here, "theirs", "UPDATE search SET at = 7");
    tune_database *d = open_database(path);
    for (uint64_t i = 0; i < 2; i++) {
        if (tune_database_import(d, base_path, here.isa, here.machine, &taken, &of_here, &err))
            fail_msg("%s", err.message);
        assert_int_equal(taken, 1 - i);
    }
    tune_database_close(d);
    assert_same("theirs mine");
}

/* A clock that was wrong does not win for good: not over what is tuned after it, and not where it is imported. */
static void what_comes_from_the_future_is_of_now(void **state) {
    (void)state;
    at_error err = {0};
    uint64_t taken, of_here;
    add(path, here, "future", "UPDATE search SET at = 9223372036854775807");
    add(path, here, "now", NULL);
    assert_same("now future");
    assert_int_equal(unlink(path), 0);

    add(base_path, here, "future", "UPDATE search SET at = 9223372036854775807");
    tune_database *d = open_database(path);
    if (tune_database_import(d, base_path, here.isa, here.machine, &taken, &of_here, &err)) fail_msg("%s", err.message);
    tune_database_close(d);
    assert_int_equal(count_of(path, "SELECT at <= strftime('%s', 'now') + 0 FROM search"), 1);
}

/* There are no searches with no threads, neither among those that are kept nor among those that come in. */
static void searches_without_threads_do_not_count(void **state) {
    static const char *const bad[] = {"threads = 0", "threads = -4", "threads = 'four'", "keys = 0", "queries = ''"};
    char sql[128];
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        at_error err = {0};
        uint64_t taken, of_here;
        snprintf(sql, sizeof sql, "PRAGMA ignore_check_constraints = ON; UPDATE search SET %s", bad[i]);
        add(base_path, here, "bad", sql);
        tune_database *d = open_database(path);
        assert_int_equal(tune_database_import(d, base_path, here.isa, here.machine, &taken, &of_here, &err),
                         ATTUNE_BAD_FILE);
        assert_non_null(strstr(err.message, "CHECK constraint failed"));
        tune_database_close(d);
        assert_int_equal(unlink(base_path), 0);
    }
    add(path, here, "bad", "PRAGMA ignore_check_constraints = ON; UPDATE search SET threads = 0");
    add(path, here, "good", NULL);
    assert_same("good");
    assert_near("good");
}

/* Characters that mean something in a URI are only a name. */
static void a_strange_name_is_only_a_name(void **state) {
    (void)state;
    char strange[TEMP_DIR_CHARS + 64];
    at_error err = {0};
    uint64_t taken, of_here;
    snprintf(strange, sizeof strange, "%s/a b%%41?mode=memory#\xc3\xa9.db", base);
    add(strange, here, "lanes=8", NULL);
    assert_int_equal(access(strange, F_OK), 0);
    tune_database *d = open_database(path);
    if (tune_database_import(d, strange, here.isa, here.machine, &taken, &of_here, &err)) fail_msg("%s", err.message);
    assert_int_equal(taken, 1);
    tune_database_close(d);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(only_lengths_and_heads_may_differ),
        CASE(schedules_of_before_are_passed_over),
        CASE(usual_choices_are_made_anew),
        CASE(open_lengths_are_near_by_their_bounds),
        CASE(a_neighbour_has_to_suit),
        CASE(the_nearest_number_of_threads_and_the_latest),
        CASE(the_nearest_neighbour),
        CASE(no_more_than_sixteen_are_asked),
        CASE(an_older_import_does_not_override),
        CASE(a_base_is_found_and_not_touched),
        CASE(an_exported_file_makes_a_base),
        CASE(a_read_only_directory_is_read),
        CASE(the_problem_itself_in_a_base_comes_before_neighbours),
        CASE(a_base_that_others_can_write_is_not_read),
        CASE(other_kernels_stay_in_memory),
        CASE(a_kernel_that_cannot_be_replaced_stays),
        CASE(without_a_disk_cache_kernels_stay),
        CASE(the_last_tuning_wins_and_says_so),
        CASE(winners_of_other_numbers_of_threads_count),
        CASE(writers_wait_for_each_other),
        CASE(a_killed_writer_leaves_whole_searches),
        CASE(a_disk_that_is_full_after_the_search),
        CASE(a_new_file_on_a_full_disk_leaves_nothing),
        CASE(a_directory_that_was_removed),
        CASE(an_export_to_a_full_disk_leaves_nothing),
        CASE(what_cannot_be_written_is_not_searched_for),
        CASE(an_older_version_says_what_to_do),
        CASE(files_are_where_paths_lead),
        CASE(files_on_fat),
        CASE(exports_do_not_take_each_other_away),
        CASE(what_a_file_brings_along_is_not_run),
        CASE(searches_of_the_same_second_are_two),
        CASE(what_comes_from_the_future_is_of_now),
        CASE(searches_without_threads_do_not_count),
        CASE(a_strange_name_is_only_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
