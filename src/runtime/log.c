#include "runtime/log.h"

#include "base/plain_text.h"

#include <stdarg.h>
#include <stdio.h>

void at_log_printf(const at_log *log, attune_log_level level, const char *format, ...) {
    if (!log->fn) return;
    char message[ATTUNE_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    at_vprint(message, sizeof message, format, args);
    va_end(args);
    log->fn(log->user, level, message);
}

void at_log_event(const at_log *log, attune_event event) {
    if (!log->event) return;
    event.struct_size = sizeof event;
    if (!event.key) event.key = "";
    if (!event.problem) event.problem = "";
    if (!event.message) event.message = "";
    log->event(log->event_user, &event);
}
