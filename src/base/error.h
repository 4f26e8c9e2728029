/* One way to report a failure: a status, and one sentence that names the wrong value. */
#ifndef ATTUNE_BASE_ERROR_H
#define ATTUNE_BASE_ERROR_H

#include <attune.h>

typedef struct at_error {
    attune_status status;
    char message[ATTUNE_MESSAGE_BYTES];
} at_error;

/* Fills *err (which may be NULL) and returns `status`, so that a caller can write `return at_fail(...)`. The first
 * failure wins: an error that is already set stays, because later ones are its consequences. */
attune_status at_fail(at_error *err, attune_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The sentence for an allocation that was refused. It names the size. */
attune_status at_fail_memory(at_error *err, size_t bytes);

/* Fails unless a number that the caller calls `name` is within these bounds. */
attune_status at_check_size(const char *name, int64_t value, int64_t least, int64_t most, at_error *err);

void at_error_clear(at_error *err);

#endif
