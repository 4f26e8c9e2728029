/* tuning.db: either the bytes are the file, or (where they do not begin as a database does) they are lines for the
 * tables of one that attune has made: a line holds the columns of a winner, separated by semicolons and stored in any
 * type. Whatever the file holds, a schedule that is found suits the problem, and a refusal has a message. */
#define _GNU_SOURCE
#include "files.h"

#include "engine/kernel.h"
#include "schedule/schedule.h"
#include "tune/database.h"
#include "tune/sqlite.h"
#include "tune/tuning.h"

#include <unistd.h>

static const char problem_text[] = "num_heads=2,seq_q=12,head_dim=8";
enum { NUM_COLUMNS = 9, TEXT_BYTES = 2048 };

typedef struct place {
    char path[FUZZ_PATH_CHARS];
    attune_context *context;
} place;

static place make_place(const char *name) {
    place made;
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    char directory[FUZZ_PATH_CHARS];
    fuzz_path(name, directory);
    snprintf(made.path, sizeof made.path, "%.300s/tuning.db", directory);
    options.cache_dir = directory;
    options.max_workers = 1;
    options.machine = "generic";
    FUZZ_REQUIRE(attune_context_create(&options, &made.context) == ATTUNE_OK);
    return made;
}

static void remove_database(const place *here) {
    static const char *const ends[] = {"", "-wal", "-shm", "-journal"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char path[FUZZ_PATH_CHARS + 16];
        snprintf(path, sizeof path, "%s%s", here->path, ends[i]);
        unlink(path);
    }
    here->context->tuning.own.is_absent = false;
}

static attune_problem wanted(void) {
    attune_problem problem = ATTUNE_PROBLEM_INIT, canonical;
    FUZZ_REQUIRE(mha_problem_parse(problem_text, &problem, NULL) == ATTUNE_OK);
    FUZZ_REQUIRE(mha_canonicalize(&problem, &canonical, NULL) == ATTUNE_OK);
    return canonical;
}

/* ---- Rows ---- */

/* What makes it slow is left out; what makes it hostile is let in. */
static const char prepare_sql[] =
    "PRAGMA synchronous = OFF; PRAGMA ignore_check_constraints = ON; PRAGMA journal_mode = MEMORY";
static void require(int code) { FUZZ_REQUIRE(code == SQLITE_OK || code == SQLITE_DONE); }

/* Binds what has the form of a number as one: SQLite would keep other text in a column of numbers. */
static int bind_any(const tune_sqlite *lib, sqlite3_stmt *statement, int index, const char *text) {
    char *end;
    const double value = strtod(text, &end);
    if (end == text || *end || value != value) return lib->bind_text(statement, index, text, -1, SQLITE_TRANSIENT);
    if (value > -9e18 && value < 9e18 && value == (double)(int64_t)value)
        return lib->bind_int64(statement, index, (int64_t)value);
    return lib->bind_double(statement, index, value);
}

/* schedule;problem;threads;at;queries;keys;heads_per_kv_head;ratio;won */
static void insert_row(const tune_sqlite *lib, sqlite3_stmt *search, sqlite3_stmt *timing, const tune_place *at,
                       int number, char *line) {
    const char *columns[NUM_COLUMNS] = {"", problem_text, "1", "1", "12", "12", "1", "0.5", "1"};
    for (int i = 0; i < NUM_COLUMNS && line; i++) {
        char *const column = strsep(&line, ";");
        if (*column) columns[i] = column;
    }
    const int64_t is_near = strcmp(columns[1], problem_text) != 0;
    require(lib->bind_int64(search, 1, number));
    require(lib->bind_text(search, 2, columns[1], -1, SQLITE_TRANSIENT));
    require(lib->bind_blob(search, 3, is_near ? "" : (const char *)at->key, is_near ? 0 : 16, SQLITE_TRANSIENT));
    require(lib->bind_text(search, 4, at->isa, -1, SQLITE_TRANSIENT));
    require(lib->bind_text(search, 5, at->machine, -1, SQLITE_TRANSIENT));
    require(lib->bind_blob(search, 6, at->kind, 16, SQLITE_TRANSIENT));
    for (int i = 0; i < 5; i++) require(bind_any(lib, search, 7 + i, columns[2 + i]));
    FUZZ_REQUIRE(lib->step(search) == SQLITE_DONE);
    lib->reset(search);
    require(lib->bind_int64(timing, 1, number));
    require(bind_any(lib, timing, 2, columns[0]));
    require(bind_any(lib, timing, 3, columns[7]));
    require(bind_any(lib, timing, 4, columns[8]));
    FUZZ_REQUIRE(lib->step(timing) == SQLITE_DONE);
    lib->reset(timing);
}

static void insert_rows(const place *here, const char *path, char *text) {
    const tune_sqlite *const lib = tune_sqlite_load(NULL);
    char problem[TEXT_BYTES];
    sqlite3 *handle = NULL;
    sqlite3_stmt *search = NULL, *timing = NULL;
    tune_place at;
    const attune_problem canonical = wanted();
    at_tuning_place(here->context, at_attention_of(&canonical), problem, sizeof problem, &at);
    require(lib->open(path, &handle, SQLITE_OPEN_READWRITE, NULL));
    require(lib->exec(handle, prepare_sql, NULL, NULL, NULL));
    require(lib->exec(handle, "BEGIN", NULL, NULL, NULL));
    require(lib->prepare(handle,
                         "INSERT INTO search (id, number, problem, key, isa, machine, cpu, kind, version, threads, at, "
                         "queries, keys, heads_per_kv_head) VALUES (?1, ?1, ?2, ?3, ?4, ?5, '', ?6, '', ?7, ?8, ?9, "
                         "?10, ?11)",
                         -1, &search, NULL));
    require(lib->prepare(handle, "INSERT INTO timing VALUES (?1, ?2, 1.0, ?3, 1, ?4)", -1, &timing, NULL));
    int number = 0;
    for (char *line; (line = strsep(&text, "\n"));) insert_row(lib, search, timing, &at, ++number, line);
    require(lib->exec(handle, "COMMIT", NULL, NULL, NULL));
    lib->finalize(search);
    lib->finalize(timing);
    lib->close(handle);
}

/* The bytes of a database without rows. */
static const uint8_t *empty_database(const place *here, size_t *size) {
    static uint8_t bytes[1 << 17];
    static size_t count;
    if (!count) {
        tune_database *database;
        at_error err = {0};
        FUZZ_REQUIRE(tune_database_open(here->path, TUNE_CREATE, NULL, &database, &err) == ATTUNE_OK);
        tune_database_close(database);
        FILE *const file = fopen(here->path, "rb");
        FUZZ_REQUIRE(file && (count = fread(bytes, 1, sizeof bytes, file)) > 0);
        fclose(file);
        bytes[18] = bytes[19] = 1; /* no write-ahead log, which would be two more files */
    }
    *size = count;
    return bytes;
}

/* ---- Reading ---- */

static void find(const place *here) {
    mha_schedule schedule = {0};
    at_error err = {0};
    const attune_problem canonical = wanted();
    if (at_tuning_find(here->context, at_attention_of(&canonical), &schedule))
        FUZZ_REQUIRE(mha_schedule_check(&canonical, &schedule, here->context->target, &err) == ATTUNE_OK);
}

static void import(const place *here, const char *from) {
    uint64_t taken = 7, of_here = 7;
    if (attune_tuning_import(here->context, from, &taken, &of_here))
        FUZZ_REQUIRE(taken == 0 && of_here == 0 && attune_last_message()[0] != '\0');
    FUZZ_REQUIRE(of_here <= taken);
    find(here);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static place read_from, import_into;
    if (!read_from.context) {
        read_from = make_place("read");
        import_into = make_place("import");
    }
    size_t empty_size;
    const uint8_t *const empty = empty_database(&read_from, &empty_size);
    remove_database(&read_from);
    if (size >= 6 && memcmp(data, "SQLite", 6) == 0) {
        fuzz_write(read_from.path, data, size);
    } else {
        char *const text = fuzz_text(data, size);
        fuzz_write(read_from.path, empty, empty_size);
        insert_rows(&read_from, read_from.path, text);
        free(text);
    }
    find(&read_from);
    if (size % 4 == 0) {
        remove_database(&import_into);
        import(&import_into, read_from.path);
    }
    return 0;
}
