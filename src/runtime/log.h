/* Messages to the host's log function, and events to its event function. Without such a function nothing happens. No
 * lock is held while one of them runs. */
#ifndef ATTUNE_RUNTIME_LOG_H
#define ATTUNE_RUNTIME_LOG_H

#include <attune.h>

typedef struct at_log {
    attune_log_fn *fn;
    void *user;
    attune_event_fn *event;
    void *event_user;
} at_log;

void at_log_printf(const at_log *log, attune_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Completes the event by its struct_size, and by "" for texts that are not given. */
void at_log_event(const at_log *log, attune_event event);

#endif
