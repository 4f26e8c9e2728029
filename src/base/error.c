/* The first failure stays: a second at_fail on the same error changes nothing. */
#include "base/error.h"

#include "base/plain_text.h"

attune_status at_fail(at_error *err, attune_status status, const char *format, ...) {
    if (!err || err->status != ATTUNE_OK) return status;
    err->status = status;
    va_list args;
    va_start(args, format);
    at_vprint(err->message, sizeof err->message, format, args);
    va_end(args);
    return status;
}

attune_status at_fail_memory(at_error *err, size_t bytes) {
    return at_fail(err, ATTUNE_OUT_OF_MEMORY, "out of memory: an allocation of %zu bytes was refused", bytes);
}

attune_status at_check_size(const char *name, int64_t value, int64_t least, int64_t most, at_error *err) {
    if (value >= least && value <= most) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is %lld; it must be from %lld to %lld", name, (long long)value,
                   (long long)least, (long long)most);
}

void at_error_clear(at_error *err) {
    err->status = ATTUNE_OK;
    err->message[0] = '\0';
}
