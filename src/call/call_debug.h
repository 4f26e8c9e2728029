/* The checks of a context with `check` (ATTUNE_CHECK=1), which no other call pays for: pages that an appending sequence
 * shares with another one, and NaN and infinities in inputs that can reach an output.
 *
 * call_debug.c looks for pages, and goes through the table of tensors; call_debug_rows.c and call_debug_inputs.c check
 * one of these; call_debug_sight.c knows which rows count; call_debug_values.c reads elements. */
#ifndef ATTUNE_CALL_CALL_DEBUG_H
#define ATTUNE_CALL_CALL_DEBUG_H

#include "call/call.h"
#include "problem/problem_functions.h"

/* Checks a call that at_call_make has made; nothing is written. ATTUNE_INVALID_ARGUMENT with a sentence that names
 * tensor, index and value; or ATTUNE_OUT_OF_MEMORY. */
attune_status at_call_debug(const attune_allocator *allocator, const at_signature *signature, const at_call *call,
                            at_error *err);

/* ---- The parts ---- */

/* A call, its index tensors (NULL where it has none), and its functions (NULL: there are none). */
typedef struct at_debug {
    const at_signature *s;
    const attune_problem *p;
    const at_settled *settled;
    void *const *buffers;
    const int64_t *size;
    const int32_t *cu_q, *cu_kv, *kv_lens, *offsets, *pages, *ids, *wanted_rows, *listed, *list_lens;
    int64_t page_stride; /* of block_table, from sequence to sequence */
    ex_program *functions;
} at_debug;

/* One sequence of the batch. */
typedef struct at_debug_sequence {
    int64_t number, queries, keys, new_keys;
    int64_t position; /* of its query 0 */
} at_debug_sequence;

/* What the rows of a tensor are. */
typedef enum at_debug_row { AT_QUERY_ROW, AT_KEY_ROW, AT_NEW_KEY_ROW } at_debug_row;

at_debug_sequence at_debug_sequence_of(const at_debug *d, int64_t number);

/* Whether query i of this head attends to key j. */
bool at_debug_attends(const at_debug *d, const at_debug_sequence *q, int64_t head, int64_t i, int64_t j);

/* The same of key j; if keys are listed, of the one at place j of the query's list. */
bool at_debug_scores(const at_debug *d, const at_debug_sequence *q, int64_t head, int64_t i, int64_t j);

/* Whether the weights have scores of hidden keys, too, so that all rows of this tensor count. */
bool at_debug_shows_all(const at_debug *d, mha_tensor_id id);

/* Whether a row of the tensor can reach an output. head: of the tensor's; -1: it has no heads. */
bool at_debug_row_counts(const at_debug *d, const at_debug_sequence *q, const mha_tensor *t, at_debug_row kind,
                         int64_t head, int64_t row);

/* The tensor at a place of the table. */
attune_status at_debug_check_rows(const at_debug *d, size_t place, at_error *err);
attune_status at_debug_check_bias(const at_debug *d, size_t place, at_error *err);
attune_status at_debug_check_angles(const at_debug *d, size_t place, at_error *err);
attune_status at_debug_check_packed(const at_debug *d, size_t place, at_error *err);
/* All elements of it. */
attune_status at_debug_check_whole(const at_debug *d, size_t place, at_error *err);

/* What is wrong with an element. AT_SMALL: minus infinity. */
typedef enum at_debug_value { AT_FINITE = 0, AT_NAN = 1, AT_LARGE = 2, AT_SMALL = 4 } at_debug_value;

bool at_debug_is_float(ir_elem elem);
at_debug_value at_debug_value_of(ir_elem elem, const void *element);
/* Whether elements side by side are finite. */
bool at_debug_are_finite(ir_elem elem, const void *elements, int64_t count);
/* The sentence: "ATTUNE_CHECK: q[0, 1, 2, 3] is nan", and what else there is to say. */
attune_status at_debug_fail(at_error *err, const mha_tensor *t, const int64_t index[4], at_debug_value value,
                            const char *what);
/* "nan", "inf" or "-inf". */
const char *at_debug_value_name(at_debug_value value);
/* Values that an element of the tensor may not have, as bits. */
unsigned at_debug_forbidden(const mha_tensor *t);

/* A finite element as a number. */
double at_debug_number(ir_elem elem, const void *element);

#endif
