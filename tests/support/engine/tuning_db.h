/* Files of tuning results in tests: a cache directory of one's own and a base, what stands in them, and what is found.
 */
#ifndef ATTUNE_TESTS_TUNING_DB_H
#define ATTUNE_TESTS_TUNING_DB_H

#include "engine/kernel.h"
#include "support/engine/contexts.h"
#include "support/temp_dir.h"
#include "tune/database.h"

#include <sys/resource.h>

/* The two directories of a test, and the files of results in them. */
extern char own_dir[TEMP_DIR_CHARS], base_dir[TEMP_DIR_CHARS];
extern char own_db[TEMP_DIR_CHARS + 16], base_db[TEMP_DIR_CHARS + 16];

int tuning_db_set_up(void **state);
int tuning_db_tear_down(void **state);
#define CASE(name) cmocka_unit_test_setup_teardown(name, tuning_db_set_up, tuning_db_tear_down)

/* The directories of the context ("": none), and its number of workers. */
attune_context *open_context(const char *own, const char *base, uint32_t workers);
tune_database *open_database(const char *file);

/* Runs SQL by the library itself, as another process would. */
void change(const char *file, const char *sql);

/* What is larger cannot be written, as on a full disk. */
void limit_files(rlim_t bytes);

/* Not even root may write to a directory without permission, until this is taken back. */
void obey_permissions(bool obeys);

/* ---- Winners that were not measured ---- */

#define THERE "num_heads=2,seq_q=32,head_dim=16"

/* Schedules 0 to 2 of THERE that would not be chosen. */
mha_schedule unusual(const attune_context *context, int which);

/* Adds a search to the file whose winner took `ratio` of the usual schedule's time. */
void plant(const attune_context *context, const char *file, const char *problem, const mha_schedule *schedule,
           double ratio);
bool finds(attune_context *context, const char *problem, mha_schedule *schedule);
void assert_finds(attune_context *context, const char *problem, const mha_schedule *expected);

/* A place of no real problem, and a search there that one schedule has won; then runs SQL unless it is NULL. */
extern const tune_place a_place;
void add(const char *file, tune_place place, const char *schedule, const char *sql);

/* The schedules that have won there, or near it, in the order in which they are tried. */
void assert_same(const char *expected);
void assert_near(const char *expected);

/* ---- Tuning ---- */

/* Tunes THERE. */
attune_status tune_there(attune_context *context, attune_tune_progress_fn *progress, attune_tune_result *result);
int stop_at_once(void *user, const attune_tune_progress *progress);

#endif
