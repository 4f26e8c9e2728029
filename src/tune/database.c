/* The statements of the tuning database, in SQL, and the functions around them. */
#define _GNU_SOURCE
#include "tune/database.h"

#include "base/memory.h"
#include "host/io.h"
#include "tune/new_file.h"
#include "tune/sqlite.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* SQLite may write in each public function, even in those that only look up, and no signal may end the host for that:
 * hence AT_HOLD_SIGNALS. */
struct tune_database {
    const attune_allocator *allocator;
    const char *path;
    const tune_sqlite *lib;
    sqlite3 *handle;
};

/* user_version of the file; "attu" in ASCII tells the file from other programs' databases. */
enum { VERSION = 3, APPLICATION_ID = 0x61747475, WAIT_MS = 5000, URI_BYTES = 3 * PATH_MAX + 32 };
enum { MOST_ROW_BYTES = 1 << 20 }; /* a problem's text takes thousands */

/* A search keeps its number wherever it is copied to; `at` is only the time of a clock. The checks keep divisors from
 * being text or 0. */
static const char schema[] =
    "CREATE TABLE search (id INTEGER PRIMARY KEY, number INTEGER NOT NULL, problem TEXT NOT NULL, key BLOB NOT NULL,"
    " isa TEXT NOT NULL, machine TEXT NOT NULL, cpu TEXT NOT NULL, threads INTEGER NOT NULL CHECK (threads BETWEEN 1 "
    "AND 4294967295),"
    " version TEXT NOT NULL, at INTEGER NOT NULL, kind BLOB NOT NULL,"
    " queries INTEGER NOT NULL CHECK (queries BETWEEN 1 AND 9223372036854775807),"
    " keys INTEGER NOT NULL CHECK (keys BETWEEN 1 AND 9223372036854775807),"
    " heads_per_kv_head INTEGER NOT NULL CHECK (heads_per_kv_head BETWEEN 1 AND 9223372036854775807));"
    "CREATE TABLE timing (search INTEGER NOT NULL REFERENCES search (id), schedule TEXT NOT NULL,"
    " seconds REAL NOT NULL, ratio REAL NOT NULL, pairs INTEGER NOT NULL, won INTEGER NOT NULL);"
    "CREATE INDEX search_by_key ON search (key, isa, machine, threads);"
    "CREATE INDEX search_by_kind ON search (kind, isa, machine, queries, keys);"
    "CREATE INDEX timing_by_search ON timing (search, won);";

/* ---- Failures ---- */

static attune_status status_of(int code) {
    switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_CONSTRAINT:
    case SQLITE_TOOBIG:
    case SQLITE_NOTADB: return ATTUNE_BAD_FILE;
    case SQLITE_NOMEM: return ATTUNE_OUT_OF_MEMORY;
    default: return ATTUNE_IO_ERROR;
    }
}

/* "disk I/O error" alone does not say that the disk is full. */
static attune_status fail(const tune_database *d, int code, const char *doing, at_error *err) {
    const int primary = code & 0xff;
    const int number = primary == SQLITE_IOERR || primary == SQLITE_CANTOPEN ? d->lib->system_errno(d->handle) : 0;
    return at_fail(err, status_of(code), "the tuning database %s could not be %s: %s%s%s", d->path, doing,
                   d->handle ? d->lib->errmsg(d->handle) : d->lib->errstr(code), number ? ": " : "",
                   number ? strerror(number) : "");
}

static attune_status execute(tune_database *d, const char *sql, const char *doing, at_error *err) {
    const int code = d->lib->exec(d->handle, sql, NULL, NULL, NULL);
    return code == SQLITE_OK ? ATTUNE_OK : fail(d, code, doing, err);
}

/* ---- Opening ---- */

static attune_status read_pragma(tune_database *d, const char *sql, int64_t *value, at_error *err) {
    sqlite3_stmt *statement = NULL;
    int code = d->lib->prepare(d->handle, sql, -1, &statement, NULL);
    if (code == SQLITE_OK) code = d->lib->step(statement);
    if (code == SQLITE_ROW) *value = d->lib->column_int64(statement, 0);
    d->lib->finalize(statement);
    return code == SQLITE_ROW ? ATTUNE_OK : fail(d, code, "read", err);
}

static const char *text_at(tune_database *d, sqlite3_stmt *statement, int column) {
    const unsigned char *text = d->lib->column_text(statement, column);
    return text ? (const char *)text : "";
}

static attune_status refuse_version(const char *path, int64_t application, int64_t version, at_error *err) {
    if (application != APPLICATION_ID)
        return at_fail(err, ATTUNE_BAD_FILE, "%s is a database, but not one of tuning results", path);
    return at_fail(
        err, ATTUNE_BAD_FILE,
        "%s has tuning results of version %lld, but this attune reads version %d: move the file away and tune again",
        path, (long long)version, VERSION);
}

/* Whether the next of the statements is this one; they are separated by semicolons. */
static bool take_statement(const char **statements, const char *sql) {
    const size_t length = strlen(sql);
    const bool is_next = length && !strncmp(*statements, sql, length) && (*statements)[length] == ';';
    *statements += is_next ? length + 1 : 0;
    return is_next;
}

/* Statements would run a view or a trigger with a name that they use, and it might never end. So the file must have the
 * tables and indexes that attune makes, word for word. */
static attune_status check_schema(tune_database *d, const char *select, at_error *err) {
    const char *expected = schema;
    bool is_ours = true;
    sqlite3_stmt *statement = NULL;
    int code = d->lib->prepare(d->handle, select, -1, &statement, NULL);
    if (code == SQLITE_OK) code = d->lib->step(statement);
    for (; code == SQLITE_ROW && is_ours; code = is_ours ? d->lib->step(statement) : SQLITE_DONE)
        is_ours = take_statement(&expected, text_at(d, statement, 0));
    const attune_status status = code == SQLITE_DONE ? ATTUNE_OK : fail(d, code, "read", err);
    d->lib->finalize(statement);
    if (status || (is_ours && !*expected)) return status;
    return at_fail(err, ATTUNE_BAD_FILE, "%s is marked as tuning results, but its tables are not those of attune",
                   d->path);
}

/* An existing file must be ours, unless it is empty. */
static attune_status look_at(tune_database *d, bool *is_new, at_error *err) {
    int64_t version = 0, application = 0, tables = 0;
    attune_status status = read_pragma(d, "PRAGMA user_version", &version, err);
    if (!status) status = read_pragma(d, "PRAGMA application_id", &application, err);
    if (!status) status = read_pragma(d, "SELECT count(*) FROM sqlite_schema", &tables, err);
    *is_new = !tables && !version && !application;
    if (status || *is_new) return status;
    if (version != VERSION || application != APPLICATION_ID) return refuse_version(d->path, application, version, err);
    return check_schema(d, "SELECT sql FROM main.sqlite_schema ORDER BY rowid", err);
}

/* Inside a transaction that keeps other processes out. One of them may have been first. */
static attune_status make_tables(tune_database *d, at_error *err) {
    bool is_new;
    attune_status status = execute(d, "BEGIN IMMEDIATE", "made", err);
    if (!status) status = look_at(d, &is_new, err);
    if (!status && is_new) status = execute(d, schema, "made", err);
    if (!status && is_new)
        status = execute(d, "PRAGMA user_version = 3; PRAGMA application_id = 1635021941", "made", err);
    return status ? status : execute(d, "COMMIT", "made", err);
}
_Static_assert(VERSION == 3 && APPLICATION_ID == 1635021941, "what the statement above says");

/* `is_fixed`: SQLite reads this file only. Otherwise it creates two more files for a database in WAL mode, even to read
 * it, and replays a journal that is in the directory, which may name any file of this user for deletion. */
static void print_uri(const char *path, bool is_fixed, char uri[URI_BYTES]) {
    char *to = uri + sprintf(uri, "file:");
    for (; *path; path++)
        to += isalnum((unsigned char)*path) || strchr("/._-", *path) ? sprintf(to, "%c", *path)
                                                                     : sprintf(to, "%%%02X", (unsigned char)*path);
    strcpy(to, is_fixed ? "?mode=ro&immutable=1" : "");
}

/* A reader takes no lock that others would wait for. */
static attune_status open_handle(tune_database *d, int flags, bool *is_empty, at_error *err) {
    const int usual = SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_PRIVATECACHE | SQLITE_OPEN_URI;
    const bool is_fixed = flags & TUNE_BASE || !(flags & TUNE_CREATE || tune_is_in_writable_directory(d->path));
    const int mode = is_fixed              ? SQLITE_OPEN_READONLY
                     : flags & TUNE_CREATE ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE
                                           : SQLITE_OPEN_READWRITE;
    char uri[URI_BYTES];
    print_uri(d->path, is_fixed, uri);
    const int code = d->lib->open(uri, &d->handle, mode | usual, NULL);
    if (code != SQLITE_OK) return fail(d, code, "opened", err);
    d->lib->busy_timeout(d->handle, WAIT_MS);
    d->lib->limit(d->handle, SQLITE_LIMIT_LENGTH, MOST_ROW_BYTES);
    static const char usual_settings[] =
        "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA synchronous = NORMAL";
    attune_status status = execute(d, usual_settings, "opened", err);
    /* In one transaction: otherwise another process may make the tables in between. */
    if (!status) status = execute(d, "BEGIN", "opened", err);
    if (!status) status = look_at(d, is_empty, err);
    if (!status) status = execute(d, "COMMIT", "opened", err);
    if (!status && *is_empty && !is_fixed) {
        *is_empty = false;
        status = make_tables(d, err);
    }
    /* With WAL readers do not wait. It changes a new file, and SQLite does not wait for that while others have the
     * file open: then a later process does it. */
    if (!status && flags & TUNE_CREATE) d->lib->exec(d->handle, "PRAGMA journal_mode = WAL", NULL, NULL, NULL);
    return status;
}

/* A new file gets its name when its tables are in it: a disk that is full leaves none that is empty. If another process
 * is first, its file counts. */
static attune_status make_file(const char *path, const tune_sqlite *lib, const attune_allocator *allocator,
                               at_error *err) {
    char beside[PATH_MAX], uri[URI_BYTES];
    const int file = tune_make_beside(path, true, beside);
    if (file < 0)
        return at_fail(err, ATTUNE_IO_ERROR, "the tuning database %s could not be made: %s", path, strerror(errno));
    close(file);
    tune_database d = {.allocator = allocator, .path = path, .lib = lib};
    print_uri(beside, false, uri);
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_PRIVATECACHE | SQLITE_OPEN_URI;
    const int code = lib->open(uri, &d.handle, flags, NULL);
    attune_status status = code == SQLITE_OK ? ATTUNE_OK : fail(&d, code, "made", err);
    /* Without a journal file, which would stay if the process ended here. If this fails, the database file is removed.
     */
    if (!status) status = execute(&d, "PRAGMA journal_mode = OFF", "made", err);
    if (!status) status = make_tables(&d, err);
    lib->close(d.handle);
    if (!status && !tune_give_name(beside, path) && errno != EEXIST)
        status = at_fail(err, ATTUNE_IO_ERROR, "the tuning database %s could not be made: %s", path, strerror(errno));
    unlink(beside); /* it is not there any more if it got its name */
    return status;
}

/* As with cache files: a regular file of this user, no link. A file of a base may be root's. */
static attune_status check_file(const char *path, int flags, bool *exists, at_error *err) {
    struct stat file;
    *exists = !lstat(path, &file);
    if (!*exists && errno == ENOENT) return ATTUNE_OK;
    const bool is_base = flags & TUNE_BASE;
    const char *const why = !*exists                                                     ? strerror(errno)
                            : !S_ISREG(file.st_mode)                                     ? "it is not a regular file"
                            : file.st_uid != geteuid() && !(is_base && file.st_uid == 0) ? "it belongs to another user"
                            : is_base && file.st_mode & 022                              ? "it can be written by others"
                                                                                         : NULL;
    if (!why) return ATTUNE_OK;
    return at_fail(err, ATTUNE_IO_ERROR, "the tuning database %s could not be opened: %s", path, why);
}

attune_status tune_database_open(const char *path, int flags, const attune_allocator *allocator,
                                 tune_database **database, at_error *err) {
    AT_HOLD_SIGNALS;
    bool exists, is_empty = false;
    *database = NULL;
    const attune_status usable = check_file(path, flags, &exists, err);
    if (usable || (!exists && !(flags & TUNE_CREATE))) return usable;
    if (flags & TUNE_CREATE && !tune_is_in_writable_directory(path))
        return at_fail(err, ATTUNE_IO_ERROR, "the tuning database %s cannot be written to: %s", path, strerror(errno));
    const tune_sqlite *lib = tune_sqlite_load(err);
    if (!lib) return ATTUNE_UNSUPPORTED;
    const attune_status made = exists ? ATTUNE_OK : make_file(path, lib, allocator, err);
    if (made) return made;
    tune_database *d = at_alloc(allocator, sizeof *d);
    if (!d) return at_fail_memory(err, sizeof *d);
    *d = (tune_database){.allocator = allocator, .path = path, .lib = lib};
    const attune_status status = open_handle(d, flags, &is_empty, err);
    if (status || is_empty)
        tune_database_close(d);
    else
        *database = d;
    return status;
}

void tune_database_close(tune_database *d) {
    if (!d) return;
    AT_HOLD_SIGNALS;
    d->lib->close(d->handle);
    at_free(d->allocator, d);
}

/* ---- Statements ---- */

/* Binds its arguments by type: s text, i integer (int64_t), d double, k the 16 bytes of a key. */
static int bind(tune_database *d, sqlite3_stmt *statement, const char *types, ...) {
    va_list values;
    int code = SQLITE_OK;
    va_start(values, types);
    for (int i = 1; *types && code == SQLITE_OK; i++, types++) switch (*types) {
        case 's': code = d->lib->bind_text(statement, i, va_arg(values, const char *), -1, SQLITE_TRANSIENT); break;
        case 'i': code = d->lib->bind_int64(statement, i, va_arg(values, int64_t)); break;
        case 'd': code = d->lib->bind_double(statement, i, va_arg(values, double)); break;
        default: code = d->lib->bind_blob(statement, i, va_arg(values, const uint64_t *), 16, SQLITE_TRANSIENT); break;
        }
    va_end(values);
    return code;
}

/* Runs a statement without results, and readies it for the next time. */
static int run(tune_database *d, sqlite3_stmt *statement, int bound) {
    if (bound != SQLITE_OK) return bound;
    const int code = d->lib->step(statement);
    d->lib->reset(statement);
    return code == SQLITE_DONE ? SQLITE_OK : code;
}

static int insert_timings(tune_database *d, int64_t search, const tune_timing *timings, size_t count,
                          ptrdiff_t winner) {
    sqlite3_stmt *statement = NULL;
    int code = d->lib->prepare(d->handle, "INSERT INTO timing VALUES (?, ?, ?, ?, ?, ?)", -1, &statement, NULL);
    for (size_t i = 0; i < count && code == SQLITE_OK; i++)
        code = run(d, statement,
                   bind(d, statement, "isddii", search, timings[i].schedule, timings[i].seconds, timings[i].ratio,
                        (int64_t)timings[i].pairs, (int64_t)((ptrdiff_t)i == winner)));
    d->lib->finalize(statement);
    return code;
}

/* A result whose time is in the future, because a clock was wrong, would stay the latest forever. It gets the present
 * time, and the new result a later one. */
static int end_future(tune_database *d, const tune_place *place, int64_t now) {
    static const char sql[] =
        "UPDATE search SET at = ?1 WHERE key = ?2 AND isa = ?3 AND machine = ?4 AND threads = ?5 AND at > ?1";
    sqlite3_stmt *statement = NULL;
    int code = d->lib->prepare(d->handle, sql, -1, &statement, NULL);
    if (code == SQLITE_OK)
        code = run(d, statement,
                   bind(d, statement, "ikssi", now, place->key, place->isa, place->machine, (int64_t)place->threads));
    d->lib->finalize(statement);
    return code;
}

static int insert_search(tune_database *d, const tune_place *place, const char *version, int64_t now) {
    static const char sql[] =
        "INSERT INTO search (number, problem, key, isa, machine, cpu, threads, version, at, kind,"
        " queries, keys, heads_per_kv_head) VALUES (random(), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    sqlite3_stmt *statement = NULL;
    int code = d->lib->prepare(d->handle, sql, -1, &statement, NULL);
    if (code == SQLITE_OK)
        code = run(d, statement,
                   bind(d, statement, "sksssisikiii", place->problem, place->key, place->isa, place->machine,
                        place->cpu, (int64_t)place->threads, version, now, place->kind, place->queries, place->keys,
                        place->heads_per_kv_head));
    d->lib->finalize(statement);
    return code;
}

attune_status tune_database_can_write(tune_database *d, at_error *err) {
    AT_HOLD_SIGNALS;
    return execute(d, "BEGIN IMMEDIATE; ROLLBACK", "written to", err);
}

attune_status tune_database_add(tune_database *d, const tune_place *place, const char *version,
                                const tune_timing *timings, size_t count, ptrdiff_t winner, at_error *err) {
    AT_HOLD_SIGNALS;
    attune_status status = execute(d, "BEGIN IMMEDIATE", "written to", err);
    if (status) return status;
    const int64_t now = time(NULL);
    int code = end_future(d, place, now);
    if (code == SQLITE_OK) code = insert_search(d, place, version, now);
    if (code == SQLITE_OK) code = insert_timings(d, d->lib->last_insert_rowid(d->handle), timings, count, winner);
    if (code == SQLITE_OK) code = d->lib->exec(d->handle, "COMMIT", NULL, NULL, NULL);
    if (code == SQLITE_OK) return ATTUNE_OK;
    fail(d, code, "written to", err);
    d->lib->exec(d->handle, "ROLLBACK", NULL, NULL, NULL);
    return status_of(code);
}

/* ---- Looking up ---- */

static attune_status visit_rows(tune_database *d, sqlite3_stmt *statement, int bound, tune_visit_fn *visit, void *user,
                                at_error *err) {
    int code = bound;
    bool ended = false;
    while (code == SQLITE_OK || (code == SQLITE_ROW && !ended)) {
        code = d->lib->step(statement);
        if (code != SQLITE_ROW) break;
        const tune_winner winner = {.problem = text_at(d, statement, 0),
                                    .schedule = text_at(d, statement, 1),
                                    .threads = (uint32_t)d->lib->column_int64(statement, 2),
                                    .ratio = d->lib->column_double(statement, 3),
                                    .when = d->lib->column_int64(statement, 4)};
        ended = visit(user, &winner) != 0;
    }
    const attune_status status = code == SQLITE_ROW || code == SQLITE_DONE ? ATTUNE_OK : fail(d, code, "read", err);
    d->lib->finalize(statement);
    return status;
}

#define WINNERS                                                                                                        \
    "SELECT problem, schedule, threads, ratio, at FROM search JOIN timing ON timing.search = search.id WHERE won = 1 " \
    "AND threads BETWEEN 1 AND 4294967295 "
/* The factor by which one number is larger than the other. */
#define FACTOR(column, value) "max(" column ", " value ") * 1.0 / min(" column ", " value ")"

attune_status tune_database_same(tune_database *d, const tune_place *place, tune_visit_fn *visit, void *user,
                                 at_error *err) {
    AT_HOLD_SIGNALS;
    static const char sql[] = WINNERS
        "AND key = ?1 AND isa = ?2 AND machine = ?3 ORDER BY " FACTOR("threads", "?4") ", at DESC, search.id DESC";
    sqlite3_stmt *statement = NULL;
    int code = d->lib->prepare(d->handle, sql, -1, &statement, NULL);
    if (code == SQLITE_OK)
        code = bind(d, statement, "kssi", place->key, place->isa, place->machine, (int64_t)place->threads);
    return visit_rows(d, statement, code, visit, user, err);
}

/* The range of the first factor bounds the rows that are looked at. */
attune_status tune_database_near(tune_database *d, const tune_place *place, double farthest, tune_visit_fn *visit,
                                 void *user, at_error *err) {
    AT_HOLD_SIGNALS;
#define DISTANCE FACTOR("queries", "?5") " * " FACTOR("keys", "?6") " * " FACTOR("heads_per_kv_head", "?7")
    static const char sql[] =
        WINNERS "AND kind = ?1 AND isa = ?2 AND machine = ?3 AND queries BETWEEN ?5 / ?8 AND ?5 * ?8 AND " DISTANCE
                " <= ?8 ORDER BY " FACTOR("threads", "?4") ", " DISTANCE ", at DESC, search.id DESC LIMIT 16";
    sqlite3_stmt *statement = NULL;
    int code = d->lib->prepare(d->handle, sql, -1, &statement, NULL);
    if (code == SQLITE_OK)
        code = bind(d, statement, "kssiiiid", place->kind, place->isa, place->machine, (int64_t)place->threads,
                    place->queries, place->keys, place->heads_per_kv_head, farthest);
    return visit_rows(d, statement, code, visit, user, err);
}

/* ---- Export and import ---- */

/* Runs one statement with a text in it. */
static attune_status run_with_text(tune_database *d, const char *sql, const char *text, const char *doing,
                                   at_error *err) {
    sqlite3_stmt *statement = NULL;
    int code = d->lib->prepare(d->handle, sql, -1, &statement, NULL);
    if (code == SQLITE_OK) code = run(d, statement, bind(d, statement, "s", text));
    const attune_status status = code == SQLITE_OK ? ATTUNE_OK : fail(d, code, doing, err);
    d->lib->finalize(statement);
    return status;
}

static attune_status fail_export(const char *path, at_error *err) {
    return at_fail(err, ATTUNE_IO_ERROR, "%s cannot be written: %s", path, strerror(errno));
}

static attune_status write_beside(tune_database *d, const char *path, const char *beside, int file, at_error *err) {
    char uri[URI_BYTES];
    print_uri(beside, false, uri);
    attune_status status = run_with_text(d, "VACUUM INTO ?", uri, "exported", err);
    if (!status && fsync(file)) status = fail_export(path, err);
    if (!status && !tune_give_name(beside, path))
        status = errno == EEXIST ? at_fail(err, ATTUNE_IO_ERROR, "%s exists already", path) : fail_export(path, err);
    return status;
}

/* A file that is at the path stays, also one that comes there meanwhile. */
attune_status tune_database_export(tune_database *d, const char *path, at_error *err) {
    AT_HOLD_SIGNALS;
    char resolved[PATH_MAX], beside[PATH_MAX];
    if (!tune_resolve_new(path, resolved)) return fail_export(path, err);
    const int file = tune_make_beside(resolved, false, beside);
    if (file < 0) return fail_export(path, err);
    const attune_status status = write_beside(d, resolved, beside, file, err);
    if (status) unlink(beside); /* a part of it, where the disk is full */
    close(file);
    return status;
}

static attune_status count_new(tune_database *d, const char *isa, const char *machine, uint64_t *taken,
                               uint64_t *of_here, at_error *err) {
    sqlite3_stmt *statement = NULL;
    int code =
        d->lib->prepare(d->handle, "SELECT count(*), sum(isa = ? AND machine = ?) FROM incoming", -1, &statement, NULL);
    if (code == SQLITE_OK) code = bind(d, statement, "ss", isa, machine);
    if (code == SQLITE_OK) code = d->lib->step(statement);
    if (code == SQLITE_ROW) {
        *taken = (uint64_t)d->lib->column_int64(statement, 0);
        *of_here = (uint64_t)d->lib->column_int64(statement, 1);
    }
    const attune_status status = code == SQLITE_ROW ? ATTUNE_OK : fail(d, code, "read", err);
    d->lib->finalize(statement);
    return status;
}

#define COLUMNS " number, problem, key, isa, machine, cpu, threads, version, at, kind, queries, keys, heads_per_kv_head"

/* A search is new if none here has the same number. Times in the future become the present one. The rows get the next
 * free ids. */
static const char take_in[] =
    "CREATE TEMP TABLE incoming AS SELECT row_number() OVER (ORDER BY s.id) + (SELECT coalesce(max(id), 0) FROM"
    " main.search) AS id, s.id AS old," COLUMNS " FROM other.search AS s WHERE NOT EXISTS (SELECT 1 FROM main.search"
    " AS m WHERE m.key = s.key AND m.isa = s.isa AND m.machine = s.machine AND m.threads = s.threads"
    " AND m.number = s.number);"
    "UPDATE incoming SET at = min(at, CAST(strftime('%s', 'now') AS INTEGER));"
    "INSERT INTO main.search SELECT id, " COLUMNS " FROM incoming;"
    "INSERT INTO main.timing SELECT incoming.id, schedule, seconds, ratio, pairs, won FROM other.timing JOIN incoming"
    " ON incoming.old = other.timing.search;";

/* The file that was attached as `other` is a database of this version. */
static attune_status check_other(tune_database *d, at_error *err) {
    int64_t version = 0, application = 0;
    attune_status status = read_pragma(d, "PRAGMA other.user_version", &version, err);
    if (!status) status = read_pragma(d, "PRAGMA other.application_id", &application, err);
    if (!status && (version != VERSION || application != APPLICATION_ID))
        status = refuse_version(d->path, application, version, err);
    return status ? status : check_schema(d, "SELECT sql FROM other.sqlite_schema ORDER BY rowid", err);
}

/* What SQLite would play back before it reads the file is not read, so without it the file may be incomplete. */
static attune_status check_beside(const char *path, const char *resolved, at_error *err) {
    static const char *const endings[] = {"-journal", "-wal"};
    char beside[PATH_MAX + 16];
    struct stat file;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        snprintf(beside, sizeof beside, "%s%s", resolved, endings[i]);
        if (!lstat(beside, &file) && (file.st_size || !S_ISREG(file.st_mode)))
            return at_fail(err, ATTUNE_BAD_FILE,
                           "%s is not read, because there is %s%s: the file is being written, or was not closed; "
                           "export the results to a file of their own",
                           path, path, endings[i]);
    }
    return ATTUNE_OK;
}

/* The file may come from anywhere: it is opened read-only, and as one that does not change. */
attune_status tune_database_import(tune_database *d, const char *path, const char *isa, const char *machine,
                                   uint64_t *taken, uint64_t *of_here, at_error *err) {
    AT_HOLD_SIGNALS;
    *taken = *of_here = 0;
    char uri[URI_BYTES], resolved[PATH_MAX]; /* SQLite follows no links now, not even on the way */
    if (!realpath(path, resolved) || access(resolved, R_OK))
        return at_fail(err, ATTUNE_IO_ERROR, "%s cannot be read: %s", path, strerror(errno));
    attune_status status = check_beside(path, resolved, err);
    if (status) return status;
    const char *const own = d->path;
    d->path = path; /* for messages */
    print_uri(resolved, true, uri);
    status = run_with_text(d, "ATTACH DATABASE ? AS other", uri, "read", err);
    d->path = own;
    if (status) return status;
    status = execute(d, "BEGIN IMMEDIATE", "imported into", err);
    d->path = path;
    if (!status) status = check_other(d, err); /* the transaction shows one state until it ends */
    d->path = own;
    if (!status) status = execute(d, take_in, "imported into", err);
    if (!status) status = count_new(d, isa, machine, taken, of_here, err);
    if (!status) status = execute(d, "DROP TABLE incoming; COMMIT", "imported into", err);
    if (status) d->lib->exec(d->handle, "ROLLBACK", NULL, NULL, NULL);
    d->lib->exec(d->handle, "DETACH DATABASE other", NULL, NULL, NULL);
    if (status) *taken = *of_here = 0;
    return status;
}
