/* Messages to the embedder's log function; silent when there is none. */
#ifndef ATTUNE_RUNTIME_LOG_H
#define ATTUNE_RUNTIME_LOG_H

#include <attune.h>

typedef struct at_log {
    attune_log_fn *fn;
    void *user;
} at_log;

void at_log_printf(const at_log *log, attune_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
