/* The functions of SQLite that the tuning database needs, found in the library when it is first loaded. */
#ifndef ATTUNE_TUNE_SQLITE_H
#define ATTUNE_TUNE_SQLITE_H

#include "base/error.h"

#include <sqlite3.h>

typedef struct tune_sqlite {
    __typeof__(sqlite3_open_v2) *open;
    __typeof__(sqlite3_close_v2) *close;
    __typeof__(sqlite3_busy_timeout) *busy_timeout;
    __typeof__(sqlite3_limit) *limit;
    __typeof__(sqlite3_exec) *exec;
    __typeof__(sqlite3_errmsg) *errmsg;
    __typeof__(sqlite3_errstr) *errstr;
    __typeof__(sqlite3_system_errno) *system_errno;
    __typeof__(sqlite3_prepare_v2) *prepare;
    __typeof__(sqlite3_step) *step;
    __typeof__(sqlite3_reset) *reset;
    __typeof__(sqlite3_finalize) *finalize;
    __typeof__(sqlite3_bind_text) *bind_text;
    __typeof__(sqlite3_bind_int64) *bind_int64;
    __typeof__(sqlite3_bind_double) *bind_double;
    __typeof__(sqlite3_bind_blob) *bind_blob;
    __typeof__(sqlite3_column_text) *column_text;
    __typeof__(sqlite3_column_int64) *column_int64;
    __typeof__(sqlite3_column_double) *column_double;
    __typeof__(sqlite3_last_insert_rowid) *last_insert_rowid;
} tune_sqlite;

/* The same for all threads, and never unloaded. NULL with a sentence if there is no such library. */
const tune_sqlite *tune_sqlite_load(at_error *err);

#endif
