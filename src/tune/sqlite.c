/* Loads SQLite with dlopen when the first database is opened, once in a process. */
#include "tune/sqlite.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static const char LIBRARY[] = "libsqlite3.so.0";

static pthread_once_t once = PTHREAD_ONCE_INIT;
static tune_sqlite functions;
static char failure[ATTUNE_MESSAGE_BYTES / 2];

static void load(void) {
    static const struct {
        const char *name;
        size_t offset;
    } wanted[] = {
#define FUNCTION(member, name) {#name, offsetof(tune_sqlite, member)}
        FUNCTION(open, sqlite3_open_v2),
        FUNCTION(close, sqlite3_close_v2),
        FUNCTION(busy_timeout, sqlite3_busy_timeout),
        FUNCTION(limit, sqlite3_limit),
        FUNCTION(exec, sqlite3_exec),
        FUNCTION(errmsg, sqlite3_errmsg),
        FUNCTION(errstr, sqlite3_errstr),
        FUNCTION(system_errno, sqlite3_system_errno),
        FUNCTION(prepare, sqlite3_prepare_v2),
        FUNCTION(step, sqlite3_step),
        FUNCTION(reset, sqlite3_reset),
        FUNCTION(finalize, sqlite3_finalize),
        FUNCTION(bind_text, sqlite3_bind_text),
        FUNCTION(bind_int64, sqlite3_bind_int64),
        FUNCTION(bind_double, sqlite3_bind_double),
        FUNCTION(bind_blob, sqlite3_bind_blob),
        FUNCTION(column_text, sqlite3_column_text),
        FUNCTION(column_int64, sqlite3_column_int64),
        FUNCTION(column_double, sqlite3_column_double),
        FUNCTION(last_insert_rowid, sqlite3_last_insert_rowid),
    };
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(failure, sizeof failure, "%s", dlerror());
        return;
    }
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *const symbol = dlsym(library, wanted[i].name);
        if (!symbol) {
            snprintf(failure, sizeof failure, "%s has no %s", LIBRARY, wanted[i].name);
            return;
        }
        *(void **)((char *)&functions + wanted[i].offset) = symbol;
    }
}

const tune_sqlite *tune_sqlite_load(at_error *err) {
    pthread_once(&once, load);
    if (!failure[0]) return &functions;
    at_fail(err, ATTUNE_UNSUPPORTED, "tuning results need SQLite (Debian: libsqlite3-0): %s", failure);
    return NULL;
}
