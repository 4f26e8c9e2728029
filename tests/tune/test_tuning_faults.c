/* Results of tuning are kept whatever happens: writers that are killed, full disks, files by others. */

#include "support/engine/tuning_db.h"
#include "tune/sqlite.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static bool is_fat;

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
    assert_int_equal(count_of(own_db, "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check = 'ok'"), 1);
    assert_int_equal(count_of(own_db, "SELECT count(*) FROM search"), searches);
    assert_int_equal(count_of(own_db, "SELECT count(*) FROM timing"), 3 * searches);
}

static bool add_three(tune_database *d) {
    static const tune_timing three[] = {{"a", 1e-3, 1.2, 5}, {"b", 1e-3, 0.8, 9}, {"c", 1e-3, 2, 1}};
    return tune_database_add(d, &a_place, "v1", three, 3, 1, NULL) == ATTUNE_OK;
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
                good = !tune_database_open(own_db, TUNE_CREATE, at_default_allocator(), &d, NULL) && add_three(d);
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
        assert_int_equal(unlink(own_db), 0);
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
            if (tune_database_open(own_db, TUNE_CREATE, at_default_allocator(), &d, NULL)) _exit(1);
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
        const int64_t there = count_of(own_db, "SELECT count(*) FROM search");
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
    attune_context *context = open_context(own_dir, "", 1);
    attune_tune_result result;
    if (tune_there(context, stop_at_once, &result)) fail_msg("%s", attune_last_message());
    const attune_status status = tune_there(context, fill_the_disk, &result);
    limit_files(RLIM_INFINITY);
    assert_int_equal(status, ATTUNE_IO_ERROR);
    assert_non_null(strstr(attune_last_message(), "tuning.db could not be "));
    assert_non_null(strstr(attune_last_message(), ": File too large"));
    assert_int_equal(result.measured, 1);
    assert_int_equal(count_of(own_db, "SELECT count(*) FROM search"), 1);
    if (tune_there(context, stop_at_once, &result)) fail_msg("%s", attune_last_message()); /* there is room again */
    assert_int_equal(count_of(own_db, "SELECT count(*) FROM search"), 2);
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
        const attune_status status = tune_database_open(own_db, TUNE_CREATE, at_default_allocator(), &d, &err);
        limit_files(RLIM_INFINITY);
        assert_null(d);
        assert_int_equal(status, ATTUNE_IO_ERROR);
        assert_non_null(strstr(err.message, "tuning.db could not be made: disk I/O error"));
        assert_int_equal(temp_dir_count(own_dir, "", ""), 0);
    }
    tune_database_close(open_database(own_db));
    assert_int_equal(temp_dir_count(own_dir, "tmp-", ""), 0);
}

/* As the cache's own entries do, results make a directory again that somebody has removed. */
static void a_directory_that_was_removed(void **state) {
    (void)state;
    attune_context *context = open_context(own_dir, "", 1);
    attune_tune_result result;
    temp_dir_remove(own_dir);
    if (tune_there(context, stop_at_once, &result)) fail_msg("%s", attune_last_message());
    assert_int_equal(count_of(own_db, "SELECT count(*) FROM search"), 1);
    attune_context_destroy(context);
}

static void an_export_to_a_full_disk_leaves_nothing(void **state) {
    (void)state;
    at_error err = {0};
    add(own_db, a_place, "lanes=8", NULL);
    tune_database *d = open_database(own_db);
    limit_files(4096);
    const attune_status status = tune_database_export(d, base_db, &err);
    limit_files(RLIM_INFINITY);
    tune_database_close(d);
    assert_int_equal(status, ATTUNE_IO_ERROR);
    assert_non_null(strstr(err.message, "could not be exported"));
    assert_int_equal(temp_dir_count(base_dir, "", ""), 0);
}

/* Known before the search, not after it. */
static void what_cannot_be_written_is_not_searched_for(void **state) {
    (void)state;
    attune_context *context = open_context(own_dir, "", 1);
    attune_tune_result result;
    assert_int_equal(chmod(own_dir, 0500), 0);
    obey_permissions(true);
    const attune_status status = tune_there(context, stop_at_once, &result);
    obey_permissions(false);
    assert_int_equal(status, ATTUNE_IO_ERROR);
    assert_non_null(strstr(attune_last_message(), "tuning.db cannot be written to: Permission denied"));
    assert_int_equal(chmod(own_dir, 0700), 0);

    tune_database_close(open_database(own_db));
    const tune_sqlite *const lib = tune_sqlite_load(NULL);
    sqlite3 *writer = NULL;
    assert_int_equal(lib->open(own_db, &writer, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    assert_int_equal(lib->exec(writer, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(tune_there(context, NULL, &result), ATTUNE_IO_ERROR);
    assert_non_null(strstr(attune_last_message(), "could not be written to: database is locked"));
    lib->close(writer);
    attune_context_destroy(context);
}

static void an_older_version_says_what_to_do(void **state) {
    (void)state;
    tune_database *d;
    at_error err = {0};
    tune_database_close(open_database(own_db));
    change(own_db, "PRAGMA user_version = 1");
    assert_int_equal(tune_database_open(own_db, 0, at_default_allocator(), &d, &err), ATTUNE_BAD_FILE);
    assert_non_null(strstr(err.message, "version 1, but this attune reads version 3: move the file away"));
    change(own_db, "PRAGMA application_id = 7");
    at_error_clear(&err);
    assert_int_equal(tune_database_open(own_db, 0, at_default_allocator(), &d, &err), ATTUNE_BAD_FILE);
    assert_non_null(strstr(err.message, "not one of tuning results"));
}

/* Links on the way, and names that mean something to SQLite. */
static void files_are_where_paths_lead(void **state) {
    (void)state;
    char link_to_base[TEMP_DIR_CHARS + 16], link_to_file[TEMP_DIR_CHARS + 16], file[TEMP_DIR_CHARS + 32];
    char before[PATH_MAX];
    at_error err = {0};
    uint64_t taken, of_here;
    snprintf(link_to_base, sizeof link_to_base, "%s/base", own_dir);
    snprintf(link_to_file, sizeof link_to_file, "%s/file.db", own_dir);
    assert_int_equal(symlink(base_dir, link_to_base), 0);
    assert_int_equal(symlink(base_db, link_to_file), 0);
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(base_dir), 0);
    add(own_db, a_place, "lanes=8", NULL);
    tune_database *d = open_database(own_db);
    snprintf(file, sizeof file, "%s/tuning.db", link_to_base);
    if (tune_database_export(d, file, &err)) fail_msg("%s", err.message);
    if (tune_database_export(d, "file:a.db", &err)) fail_msg("%s", err.message);
    if (tune_database_export(d, "b.db", &err)) fail_msg("%s", err.message);
    assert_int_equal(access("file:a.db", F_OK) | access("b.db", F_OK), 0);
    assert_int_equal(temp_dir_count(base_dir, "", ""), 3);
    snprintf(file, sizeof file, "/%s/b.db", base_dir);
    const char *const from[] = {link_to_file, "file:a.db", "b.db", file};
    for (size_t i = 0; i < sizeof from / sizeof *from; i++)
        if (tune_database_import(d, from[i], a_place.isa, a_place.machine, &taken, &of_here, &err))
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
    for (int i = 0; i < 3; i++) add(own_db, a_place, "lanes=8", NULL);
    tune_database *d = open_database(own_db);
    if (tune_database_export(d, base_db, &err)) fail_msg("%s", err.message);
    assert_int_equal(tune_database_export(d, base_db, &err), ATTUNE_IO_ERROR);
    is_fat = false;
    assert_non_null(strstr(err.message, "exists already"));
    tune_database_close(d);
    assert_int_equal(count_of(base_db, "SELECT count(*) FROM search"), 3);
    assert_int_equal(temp_dir_count(base_dir, "", ""), 1);
}

static void exports_do_not_take_each_other_away(void **state) {
    enum { ROUNDS = 20, EXPORTERS = 4 };
    (void)state;
    for (int i = 0; i < 30; i++) add(own_db, a_place, "lanes=8", NULL);
    for (int round = 0; round < ROUNDS; round++) {
        pid_t children[EXPORTERS];
        int good = 0;
        for (int i = 0; i < EXPORTERS; i++) {
            children[i] = fork();
            if (children[i]) continue;
            tune_database *d = open_database(own_db);
            at_error err = {0};
            const attune_status status = tune_database_export(d, base_db, &err);
            tune_database_close(d);
            _exit(!status ? 0 : strstr(err.message, "exists already") ? 1 : 2);
        }
        for (int i = 0; i < EXPORTERS; i++) good += finish(children[i]);
        assert_int_equal(good, 1);
        assert_int_equal(count_of(base_db, "SELECT count(*) FROM search"), 30);
        assert_int_equal(temp_dir_count(base_dir, "", ""), 1);
        assert_int_equal(unlink(base_db), 0);
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
        add(base_db, a_place, "lanes=8", bad[i]);
        assert_int_equal(tune_database_open(base_db, 0, at_default_allocator(), &d, &err), ATTUNE_BAD_FILE);
        assert_non_null(strstr(err.message, "its tables are not those of attune"));
        at_error_clear(&err);
        d = open_database(own_db);
        assert_int_equal(tune_database_import(d, base_db, a_place.isa, a_place.machine, &taken, &of_here, &err),
                         ATTUNE_BAD_FILE);
        assert_non_null(strstr(err.message, base_db));
        assert_int_equal(taken, 0);
        tune_database_close(d);
        assert_int_equal(unlink(base_db), 0);
    }
    assert_int_equal(count_of(own_db, "SELECT count(*) FROM search"), 0);
}

/* A file is no larger than its rows, but a row might take gigabytes of memory. */
static void rows_that_are_too_long_are_refused(void **state) {
    (void)state;
    tune_database *d;
    at_error err = {0};
    uint64_t taken, of_here;
    add(base_db, a_place, "lanes=8", "UPDATE search SET problem = hex(zeroblob(600000))");
    d = open_database(own_db);
    assert_int_equal(tune_database_import(d, base_db, a_place.isa, a_place.machine, &taken, &of_here, &err),
                     ATTUNE_BAD_FILE);
    assert_non_null(strstr(err.message, "too big"));
    assert_int_equal(taken, 0);
    tune_database_close(d);
    assert_int_equal(count_of(own_db, "SELECT count(*) FROM search"), 0);
}

/* Of a fleet's machines, which are alike and begin at the same time. */
static void searches_of_the_same_second_are_two(void **state) {
    (void)state;
    at_error err = {0};
    uint64_t taken, of_here;
    add(own_db, a_place, "mine", "UPDATE search SET at = 7");
    add(base_db, a_place, "theirs", "UPDATE search SET at = 7");
    tune_database *d = open_database(own_db);
    for (uint64_t i = 0; i < 2; i++) {
        if (tune_database_import(d, base_db, a_place.isa, a_place.machine, &taken, &of_here, &err))
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
    add(own_db, a_place, "future", "UPDATE search SET at = 9223372036854775807");
    add(own_db, a_place, "now", NULL);
    assert_same("now future");
    assert_int_equal(unlink(own_db), 0);

    add(base_db, a_place, "future", "UPDATE search SET at = 9223372036854775807");
    tune_database *d = open_database(own_db);
    if (tune_database_import(d, base_db, a_place.isa, a_place.machine, &taken, &of_here, &err))
        fail_msg("%s", err.message);
    tune_database_close(d);
    assert_int_equal(count_of(own_db, "SELECT at <= strftime('%s', 'now') + 0 FROM search"), 1);
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
        add(base_db, a_place, "bad", sql);
        tune_database *d = open_database(own_db);
        assert_int_equal(tune_database_import(d, base_db, a_place.isa, a_place.machine, &taken, &of_here, &err),
                         ATTUNE_BAD_FILE);
        assert_non_null(strstr(err.message, "CHECK constraint failed"));
        tune_database_close(d);
        assert_int_equal(unlink(base_db), 0);
    }
    add(own_db, a_place, "bad", "PRAGMA ignore_check_constraints = ON; UPDATE search SET threads = 0");
    add(own_db, a_place, "good", NULL);
    assert_same("good");
    assert_near("good");
}

/* Characters that mean something in a URI are only a name. */
static void a_strange_name_is_only_a_name(void **state) {
    (void)state;
    char strange[TEMP_DIR_CHARS + 64];
    at_error err = {0};
    uint64_t taken, of_here;
    snprintf(strange, sizeof strange, "%s/a b%%41?mode=memory#\xc3\xa9.db", base_dir);
    add(strange, a_place, "lanes=8", NULL);
    assert_int_equal(access(strange, F_OK), 0);
    tune_database *d = open_database(own_db);
    if (tune_database_import(d, strange, a_place.isa, a_place.machine, &taken, &of_here, &err))
        fail_msg("%s", err.message);
    assert_int_equal(taken, 1);
    tune_database_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
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
        CASE(rows_that_are_too_long_are_refused),
        CASE(searches_of_the_same_second_are_two),
        CASE(what_comes_from_the_future_is_of_now),
        CASE(searches_without_threads_do_not_count),
        CASE(a_strange_name_is_only_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
