/* A call of a function: its arguments, and the sentence of its failure. */
#ifndef ATTUNE_TVM_CALL_H
#define ATTUNE_TVM_CALL_H

#include "attune.h"
#include "tvm_ffi.h"

#include <stdbool.h>

typedef struct call {
    const char *name;
    const tvm_any *arguments;
    int32_t count;
    const char *kind; /* kind of the error; NULL: no error so far */
    char message[ATTUNE_MESSAGE_BYTES + 64];
} call;

/* Records a failure if it is the first one; returns false. */
bool call_fail(call *c, const char *kind, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Records a failure unless TVM-FFI has the version whose values are read here; returns true on success. */
bool call_check_version(call *c);

/* Records a failure of attune, with its sentence; returns false. */
bool call_refuse(call *c, attune_status status, const char *message);

/* Records the failure of the last call of attune; returns true on success. */
bool call_check(call *c, attune_status status);

/* Ends the call: raises the error, if there is one. */
int call_end(const call *c, tvm_any *result);

/* Arguments. A missing argument counts as None. */
bool call_has(const call *c, int32_t index);
bool call_text(call *c, int32_t index, const char *what, tvm_bytes *text);
bool call_tensor(call *c, int32_t index, const char *what, const attune_dltensor **tensor);
bool call_number(call *c, int32_t index, const char *what, double *number);
bool call_integer(call *c, int32_t index, const char *what, int64_t *number);

#endif
