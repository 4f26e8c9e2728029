/* Messages to the host's log function, events to its event function, and lines for stderr (ATTUNE_LOG). Without any of
 * these nothing happens. No lock is held while a function of the host runs. */
#ifndef ATTUNE_HOST_LOG_H
#define ATTUNE_HOST_LOG_H

#include "base/error.h"
#include "host/io.h"

#include <stdbool.h>

typedef struct at_log {
    attune_log_fn *fn;
    void *user;
    attune_event_fn *event;
    void *event_user;
    const at_io *io;
    attune_stderr level; /* of lines for stderr; never ATTUNE_STDERR_DEFAULT once it is settled */
    struct stat opened;  /* the file that is stderr */
    int64_t began;       /* at_nanoseconds() */
} at_log;

/* Reads ATTUNE_LOG if the options have no level. `io` must outlive the log. */
attune_status at_log_init(at_log *log, const attune_context_options *options, const at_io *io, at_error *err);

/* Whether messages of this level, or events of this kind, are of use to anybody: texts for them take time. */
bool at_log_wants(const at_log *log, attune_log_level level);
bool at_log_wants_event(const at_log *log, attune_event_kind kind);

void at_log_printf(const at_log *log, attune_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A line for stderr alone. */
void at_log_line(const at_log *log, attune_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Completes the event by its struct_size, and by "" for texts that are not given. */
void at_log_event(const at_log *log, attune_event event);

#endif
