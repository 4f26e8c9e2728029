#include "support/engine/contexts.h"
#include "support/engine/tuning_db.h"

#include "schedule/schedule.h"
#include "support/problems.h"
#include "tune/sqlite.h"
#include "tune/tuning.h"

#include <linux/capability.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

char own_dir[TEMP_DIR_CHARS], base_dir[TEMP_DIR_CHARS], own_db[TEMP_DIR_CHARS + 16], base_db[TEMP_DIR_CHARS + 16];

int tuning_db_set_up(void **state) {
    (void)state;
    temp_dir_make(own_dir);
    temp_dir_make(base_dir);
    snprintf(own_db, sizeof own_db, "%s/tuning.db", own_dir);
    snprintf(base_db, sizeof base_db, "%s/tuning.db", base_dir);
    forget_messages();
    return 0;
}

int tuning_db_tear_down(void **state) {
    (void)state;
    chmod(own_dir, 0700);
    chmod(base_dir, 0700);
    temp_dir_remove(own_dir);
    temp_dir_remove(base_dir);
    return 0;
}

attune_context *open_context(const char *own, const char *other, uint32_t workers) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.cache_dir = own;
    options.cache_base = other;
    options.max_workers = workers;
    options.log = keep_message;
    return test_context(&options, NULL);
}

tune_database *open_database(const char *file) {
    tune_database *d;
    at_error err = {0};
    if (tune_database_open(file, TUNE_CREATE, at_default_allocator(), &d, &err)) fail_msg("%s", err.message);
    return d;
}

void change(const char *file, const char *sql) {
    const tune_sqlite *const lib = tune_sqlite_load(NULL);
    sqlite3 *handle = NULL;
    assert_non_null(lib);
    assert_int_equal(lib->open(file, &handle, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    assert_int_equal(lib->exec(handle, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(lib->close(handle), SQLITE_OK);
}

void limit_files(rlim_t bytes) {
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

void obey_permissions(bool obeys) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {0};
    const uint32_t privileges = 1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH;
    assert_int_equal(syscall(SYS_capget, &header, data), 0);
    data[0].effective = obeys ? data[0].effective & ~privileges : data[0].effective | (data[0].permitted & privileges);
    assert_int_equal(syscall(SYS_capset, &header, data), 0);
}

/* A usual choice is made anew for a neighbour. It is the same there, as stripes of one vector leave no rest of its
 * rows. */
static void take_short_stripes(const attune_problem *p, const attune_context *context, mha_schedule *s) {
    s->score_row_vectors = s->value_row_vectors = s->task_row_vectors = 1;
    s->value_by = MHA_VALUE_AUTO;
    mha_schedule_settle(p, context->target, &context->machine_class.description, s);
}

mha_schedule unusual(const attune_context *context, int which) {
    const attune_problem p = problem_canonical(THERE);
    mha_schedule schedule;
    mha_choose(mha_read(&p), context->target, &context->machine_class.description, &schedule);
    take_short_stripes(&p, context, &schedule);
    if (which != 1) schedule.score_columns = schedule.score_columns == 1 ? 2 : 1;
    if (which != 0) schedule.value_keys = schedule.value_keys == 1 ? 2 : 1;
    assert_int_equal(mha_schedule_check(&p, &schedule, context->target, NULL), ATTUNE_OK);
    return schedule;
}

void plant(const attune_context *context, const char *file, const char *problem, const mha_schedule *schedule,
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

bool finds(attune_context *context, const char *problem, mha_schedule *schedule) {
    const attune_problem p = problem_canonical(problem);
    *schedule = (mha_schedule){0};
    return at_tuning_find(context, at_attention_of(&p), schedule);
}

void assert_finds(attune_context *context, const char *problem, const mha_schedule *expected) {
    mha_schedule schedule;
    if (!finds(context, problem, &schedule)) fail_msg("nothing for %s: %s", problem, last_message);
    assert_true(mha_schedule_same(&schedule, expected));
}

const tune_place a_place = {"a problem", {1, 2}, "avx2", "a class", "a CPU", 4, {3, 4}, 100, 100, 2};

void add(const char *file, tune_place place, const char *schedule, const char *sql) {
    at_error err = {0};
    const tune_timing timing = {schedule, 1e-3, 0.9, 9};
    tune_database *d = open_database(file);
    if (tune_database_add(d, &place, "v1", &timing, 1, 0, &err)) fail_msg("%s", err.message);
    tune_database_close(d);
    if (sql) change(file, sql);
}

typedef struct order {
    char schedules[64];
} order;

static int note(void *user, const tune_winner *winner) {
    order *const o = user;
    strcat(strcat(o->schedules, *o->schedules ? " " : ""), winner->schedule);
    return 0;
}

void assert_same(const char *expected) {
    order o = {""};
    tune_database *d = open_database(own_db);
    assert_int_equal(tune_database_same(d, &a_place, note, &o, NULL), ATTUNE_OK);
    assert_string_equal(o.schedules, expected);
    tune_database_close(d);
}

void assert_near(const char *expected) {
    order o = {""};
    tune_database *d = open_database(own_db);
    assert_int_equal(tune_database_near(d, &a_place, 1.5, note, &o, NULL), ATTUNE_OK);
    assert_string_equal(o.schedules, expected);
    tune_database_close(d);
}

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
    arguments->q.data = q;
    arguments->k.data = k;
    arguments->v.data = v;
    arguments->out.data = out;
}

attune_status tune_there(attune_context *context, attune_tune_progress_fn *progress, attune_tune_result *result) {
    attune_problem problem;
    attune_arguments arguments;
    attune_tune_options options = ATTUNE_TUNE_OPTIONS_INIT;
    make_call(&problem, &arguments);
    options.budget_seconds = 60;
    options.progress = progress;
    result->struct_size = sizeof *result;
    return attune_tune(context, &problem, &arguments, &options, result);
}

int stop_at_once(void *user, const attune_tune_progress *progress) {
    (void)user, (void)progress;
    return 1;
}
