/* One call of a function: its arguments, and the sentence of its failure. */
#ifndef ATTUNE_TVM_CALL_H
#define ATTUNE_TVM_CALL_H

#include "attune.h"
#include "tvm_ffi.h"

#include <stdbool.h>

typedef struct call {
    const char *name;
    const tvm_any *arguments;
    int32_t count;
    const char *kind; /* of the error; NULL: none so far */
    char message[ATTUNE_MESSAGE_BYTES + 64];
} call;

/* Notes a failure, if it is the first one; always false. */
bool call_fail(call *c, const char *kind, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Notes a failure unless TVM-FFI has the version whose values are read here; true after success. */
bool call_check_version(call *c);

/* Notes a failure of attune's own, with its sentence; always false. */
bool call_refuse(call *c, attune_status status, const char *message);

/* Notes the failure of the last call of attune; true after success. */
bool call_check(call *c, attune_status status);

/* Ends the call: raises the error, if there is one. */
int call_end(const call *c, tvm_any *result);

/* Arguments. An argument that is missing is as one that is None. */
bool call_has(const call *c, int32_t index);
bool call_text(call *c, int32_t index, const char *what, tvm_bytes *text);
bool call_tensor(call *c, int32_t index, const char *what, const attune_dltensor **tensor);
bool call_number(call *c, int32_t index, const char *what, double *number);
bool call_integer(call *c, int32_t index, const char *what, int64_t *number);

#endif
