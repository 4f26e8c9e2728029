/* The last message is kept by each thread for itself. */
#include "host/report.h"

#include <stdio.h>

const char *attune_status_name(attune_status status) {
    static const char *const names[ATTUNE_STATUS_COUNT] = {
        [ATTUNE_OK] = "ok",
        [ATTUNE_INVALID_ARGUMENT] = "invalid argument",
        [ATTUNE_INVALID_PROBLEM] = "invalid problem",
        [ATTUNE_INVALID_SCHEDULE] = "invalid schedule",
        [ATTUNE_INVALID_IR] = "invalid loop IR",
        [ATTUNE_UNSUPPORTED] = "unsupported",
        [ATTUNE_OUT_OF_MEMORY] = "out of memory",
        [ATTUNE_WORKSPACE_TOO_SMALL] = "workspace too small",
        [ATTUNE_IO_ERROR] = "input/output error",
        [ATTUNE_BAD_FILE] = "bad file",
        [ATTUNE_CODEGEN_MISSING] = "code generator missing",
        [ATTUNE_CODEGEN_FAILED] = "code generation failed",
        [ATTUNE_NO_EXEC_MEMORY] = "no executable memory",
        [ATTUNE_CHECK_FAILED] = "check failed",
        [ATTUNE_INTERNAL] = "internal error",
        [ATTUNE_NOT_CACHED] = "not cached",
        [ATTUNE_CANCELLED] = "cancelled",
    };
    return (unsigned)status < ATTUNE_STATUS_COUNT ? names[status] : "unknown status";
}

static _Thread_local char last_message[ATTUNE_MESSAGE_BYTES];

const char *attune_last_message(void) { return last_message; }

attune_status at_report(const at_error *err) {
    if (err->status) snprintf(last_message, sizeof last_message, "%s", err->message);
    return err->status;
}
