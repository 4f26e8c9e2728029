/* Each miss appends one line to the record, unless its key has been recorded by this context. */
#define _GNU_SOURCE
#include "cache/record.h"
#include "operator/own.h"
#include "schedule/schedule.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void at_record_init(at_record *r, const attune_context_options *options, const at_io *io, const at_log *log) {
    const char *path = options->record ? options->record : secure_getenv("ATTUNE_RECORD");
    const char *strict = options->strict > 0 ? "1" : options->strict < 0 ? "0" : getenv("ATTUNE_STRICT");
    r->io = io;
    r->log = log;
    r->is_strict = strict && strcmp(strict, "1") == 0;
    r->path[0] = '\0';
    for (size_t i = 0; i < AT_RECORD_SLOTS; i++) atomic_init(&r->recorded[i], 0);
    if (strict && *strict && strcmp(strict, "1") && strcmp(strict, "0"))
        at_log_printf(log, ATTUNE_LOG_WARNING, "ATTUNE_STRICT is '%.40s'; it must be 1 or 0, and is taken as 0",
                      strict);
    if (!path || !*path) return;
    if (strlen(path) < sizeof r->path)
        strcpy(r->path, path);
    else
        at_log_printf(log, ATTUNE_LOG_WARNING, "nothing is recorded: the path is longer than a path can be");
}

/* "problem" or "problem | schedule"; the length, or 0 if it does not fit. */
static size_t print_line(at_operation operation, const mha_schedule *schedule, char *line, size_t capacity) {
    size_t length = operation.op->print(operation, line, capacity);
    if (length >= capacity || !schedule) return length < capacity ? length : 0;
    length += (size_t)snprintf(line + length, capacity - length, " | ");
    if (length >= capacity) return 0;
    length += operation.op->schedule_print(operation, schedule, line + length, capacity - length);
    return length < capacity ? length : 0;
}

/* false: the last line was cut, by a full disk or the end of a process. */
static bool ends_with_line(const at_io *io, const char *path) {
    struct stat file;
    char last = '\n';
    const int fd = at_io_open(io, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0);
    if (fd < 0) return true;
    if (!fstat(fd, &file) && S_ISREG(file.st_mode) && file.st_size && pread(fd, &last, 1, file.st_size - 1) != 1)
        last = '\n';
    close(fd);
    return last == '\n';
}

/* Whether it is the first miss of this key, which has a slot of its own unless all of those in question are taken. */
static bool is_first_miss(at_record *r, const at_key *key) {
    for (size_t i = 0; i < AT_RECORD_PROBES; i++) {
        atomic_ullong *const slot = &r->recorded[(key->high + i) % AT_RECORD_SLOTS];
        unsigned long long taken_by = 0;
        if (atomic_compare_exchange_strong(slot, &taken_by, key->low)) return true;
        if (taken_by == key->low) return false;
    }
    return atomic_exchange(&r->recorded[key->high % AT_RECORD_SLOTS], key->low) != key->low;
}

void at_record_miss(at_record *r, const at_key *key, at_operation operation, const mha_schedule *schedule) {
    char text[MHA_PROBLEM_TEXT + AT_SCHEDULE_TEXT + 8], *const line = text + 1;
    if (!r->path[0] || !is_first_miss(r, key)) return;
    const size_t comment = at_is_of_attune(operation.op) ? 0 : 2; /* commands cannot make the others */
    memcpy(line, "# ", comment);
    size_t length = print_line(operation, schedule, line + comment, sizeof text - 2 - comment);
    if (!length) return;
    length += comment;
    text[0] = line[length] = '\n';
    const bool is_whole = ends_with_line(r->io, r->path);
    /* O_NONBLOCK: a FIFO without a reader must not hang. */
    const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    const int fd = at_io_open(r->io, AT_FDCWD, r->path, flags, 0644);
    if (fd < 0 || at_io_write_all(r->io, fd, is_whole ? line : text, length + (is_whole ? 1 : 2)))
        at_log_printf(r->log, ATTUNE_LOG_WARNING, "a miss could not be recorded in %s: %s", r->path, strerror(errno));
    if (fd >= 0) close(fd);
}

attune_status at_record_allow(const at_record *r, const at_key *key, at_operation operation,
                              const mha_schedule *schedule, at_error *err) {
    char name[AT_NAME_CHARS + 1], line[400];
    if (!r->is_strict) return ATTUNE_OK;
    at_key_name(key, name);
    if (!print_line(operation, schedule, line, sizeof line)) strcpy(line + sizeof line - 4, "...");
    return at_fail(err, ATTUNE_NOT_CACHED, "ATTUNE_STRICT: kernel %s is not cached: %s", name, line);
}
