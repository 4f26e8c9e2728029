/* A message is formatted once, then goes to the host's function, its event function and stderr, each by its own
 * level. */
#define _GNU_SOURCE
#include "host/log.h"

#include "base/plain_text.h"
#include "host/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- The level ---- */

static const char *const levels[ATTUNE_STDERR_COUNT] = {[ATTUNE_STDERR_NONE] = "none",
                                                        [ATTUNE_STDERR_ERROR] = "error",
                                                        [ATTUNE_STDERR_WARNING] = "warning",
                                                        [ATTUNE_STDERR_INFO] = "info",
                                                        [ATTUNE_STDERR_DEBUG] = "debug"};

static attune_status settle_level(attune_stderr *level, at_error *err) {
    const char *const named = getenv("ATTUNE_LOG");
    if ((unsigned)*level >= ATTUNE_STDERR_COUNT)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "stderr_level is %d, which is no attune_stderr", (int)*level);
    if (*level != ATTUNE_STDERR_DEFAULT) return ATTUNE_OK;
    *level = ATTUNE_STDERR_NONE;
    if (!named || !*named) return ATTUNE_OK;
    for (int i = ATTUNE_STDERR_NONE; i < ATTUNE_STDERR_COUNT; i++) {
        if (strcmp(named, levels[i]) && (named[0] != '0' + i - ATTUNE_STDERR_NONE || named[1])) continue;
        *level = (attune_stderr)i;
        return ATTUNE_OK;
    }
    return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                   "ATTUNE_LOG is '%.40s'; it must be error, warning, info, debug or none, or 0 to 4", named);
}

/* No program is started with a close-on-exec stderr: such a descriptor 2 is a file or socket that was opened later,
 * after stderr was closed. */
static bool is_stderr(const at_log *log, struct stat *now) {
    const int flags = fcntl(STDERR_FILENO, F_GETFD);
    return flags >= 0 && !(flags & FD_CLOEXEC) && !at_io_stat(log->io, STDERR_FILENO, now);
}

attune_status at_log_init(at_log *log, const attune_context_options *options, const at_io *io, at_error *err) {
    *log = (at_log){.fn = options->log,
                    .user = options->log_user,
                    .event = options->event,
                    .event_user = options->event_user,
                    .io = io,
                    .level = options->stderr_level};
    const attune_status status = settle_level(&log->level, err);
    if (status || log->level == ATTUNE_STDERR_NONE) return status;
    log->began = at_nanoseconds();
    if (!is_stderr(log, &log->opened)) log->level = ATTUNE_STDERR_NONE;
    return ATTUNE_OK;
}

static attune_stderr stderr_level(attune_log_level level) { return (attune_stderr)(ATTUNE_STDERR_ERROR + (int)level); }

/* Of a kind that no message tells; others are for the event function alone. */
static attune_stderr event_level(attune_event_kind kind) {
    switch (kind) {
    case ATTUNE_EVENT_MISS:
    case ATTUNE_EVENT_SWAPPED:
    case ATTUNE_EVENT_TIER0_HIT: return ATTUNE_STDERR_INFO;
    case ATTUNE_EVENT_DISK_HIT:
    case ATTUNE_EVENT_BUNDLE_HIT:
    case ATTUNE_EVENT_EVICTED: return ATTUNE_STDERR_DEBUG;
    default: return ATTUNE_STDERR_COUNT;
    }
}

bool at_log_wants(const at_log *log, attune_log_level level) { return log->fn || log->level >= stderr_level(level); }

bool at_log_wants_event(const at_log *log, attune_event_kind kind) {
    return log->event || log->level >= event_level(kind);
}

/* ---- Lines ---- */

enum { LINE = 1024 };

/* One write, so that lines of several threads and processes do not mix. */
static void write_line(const at_log *log, attune_stderr level, const char *text) {
    char line[LINE];
    struct stat now;
    const int reason = errno;
    if (!is_stderr(log, &now) || now.st_ino != log->opened.st_ino || now.st_dev != log->opened.st_dev) {
        errno = reason;
        return;
    }
    const int64_t milliseconds = (at_nanoseconds() - log->began) / 1000000;
    int length = at_print(line, sizeof line, "attune[%ld] %" PRId64 ".%03d %s: %s", (long)getpid(), milliseconds / 1000,
                          (int)(milliseconds % 1000), levels[level], text);
    if (length >= LINE) {
        length = LINE - 1;
        memcpy(line + LINE - 4, "...", 3);
    }
    for (int i = 0; i < length; i++)
        if ((unsigned char)line[i] < ' ' || line[i] == 127) line[i] = ' ';
    line[length] = '\n';
    ssize_t written;
    do written = log->io->write(STDERR_FILENO, line, (size_t)length + 1);
    while (written < 0 && errno == EINTR);
    errno = reason;
}

void at_log_printf(const at_log *log, attune_log_level level, const char *format, ...) {
    char message[ATTUNE_MESSAGE_BYTES];
    va_list args;
    if (!at_log_wants(log, level)) return;
    va_start(args, format);
    at_vprint(message, sizeof message, format, args);
    va_end(args);
    at_log_line(log, level, "%s", message);
    if (log->fn) log->fn(log->user, level, message);
}

void at_log_line(const at_log *log, attune_log_level level, const char *format, ...) {
    char text[LINE];
    va_list args;
    if (log->level < stderr_level(level)) return;
    va_start(args, format);
    at_vprint(text, sizeof text, format, args);
    va_end(args);
    write_line(log, stderr_level(level), text);
}

static void write_event(const at_log *log, const attune_event *event) {
    static const char *const words[ATTUNE_EVENT_COUNT] = {
        [ATTUNE_EVENT_MISS] = "is in no cache",
        [ATTUNE_EVENT_DISK_HIT] = "is from the disk cache",
        [ATTUNE_EVENT_EVICTED] = "has left the memory cache",
        [ATTUNE_EVENT_SWAPPED] = "is used by a plan from now on",
        [ATTUNE_EVENT_BUNDLE_HIT] = "is from a bundle",
        [ATTUNE_EVENT_TIER0_HIT] = "has a fallback",
    };
    char text[LINE], time[40] = "";
    if (event->milliseconds > 0) at_print(time, sizeof time, " after %.1f ms", event->milliseconds);
    at_print(text, sizeof text, "kernel %s %s%s%s%s%s%s", event->key, words[event->kind], time,
             *event->message ? ": " : "", event->message, *event->problem ? ": " : "", event->problem);
    write_line(log, event_level(event->kind), text);
}

void at_log_event(const at_log *log, attune_event event) {
    event.struct_size = sizeof event;
    if (!event.key) event.key = "";
    if (!event.problem) event.problem = "";
    if (!event.message) event.message = "";
    if (log->level >= event_level(event.kind)) write_event(log, &event);
    if (log->event) log->event(log->event_user, &event);
}
