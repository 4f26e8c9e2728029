/* Checking a call of a kernel that was written in loop IR: pointers and scalars. */
#ifndef ATTUNE_CALL_IR_CALL_H
#define ATTUNE_CALL_IR_CALL_H

#include "base/error.h"
#include "ir/ir.h"

/* Whether they suit the kernel, as attune_ir_run wants them. */
attune_status at_ir_check_call(const ir_kernel *kernel, void *const *buffers, const int64_t *scalars, at_error *err);

/* The bytes of one of its buffers; the call was checked. */
attune_status at_ir_buffer_bytes(const ir_kernel *kernel, const ir_buffer *buffer, const int64_t *scalars,
                                 int64_t *bytes, at_error *err);

#endif
