/* attune tune --ir: the numbers of a file of loop IR that are fastest. */
#ifndef ATTUNE_TOOLS_IR_TUNE_H
#define ATTUNE_TOOLS_IR_TUNE_H

#include "loop_ir/ir_call.h"
#include "measure/tune_report.h"

/* Searches, and shows the result as text or appends it to the list. Buffers of f32 or f64 that are read and have no
 * argument are random. `options` as for attune_operator_tune. false after a message. */
bool ir_tune(attune_context *context, const char *file, binding_list *arguments, const attune_tune_options *options,
             json_t *list);

#endif
