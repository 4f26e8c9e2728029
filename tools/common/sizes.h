/* The run-time sizes of a call, where the problem leaves them open: "seq_q=37,seq_kv=512". */
#ifndef ATTUNE_TOOLS_SIZES_H
#define ATTUNE_TOOLS_SIZES_H

#include "common/tool.h"

/* As the fields of attune_arguments; ATTUNE_NOT_SET where not named. */
typedef struct call_sizes {
    int64_t seq_q, seq_kv, seq_new, num_rows, total_q, total_kv, num_pages, max_pages, mask_seq_kv, bias_seq_kv,
        rotary_positions, rotary_batch_stride, num_ids;
    double softmax_scale; /* not a size, but left to the call as well; NaN where not named */
} call_sizes;

#define CALL_SIZES_NONE {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, ATTUNE_DEFAULT_SCALE}

/* Reads pairs separated by commas; fields not named keep their values. false after a message. */
bool sizes_parse(const char *text, call_sizes *sizes);

/* Those that are set, in the same form; "" if there are none. */
enum { SIZES_TEXT = 512 };
const char *sizes_print(const call_sizes *sizes, char text[SIZES_TEXT]);

/* Whether the problem leaves this one to the call. Its defaults must be filled in. */
bool sizes_are_open(const attune_problem *problem, int index);

/* Whether each one that is set is open, or is the size that the problem has anyway. false after a message. */
bool sizes_check(const call_sizes *sizes, const attune_problem *problem);

/* The same. If the number of rows of the rotary embedding is not given, there are as many as its positions can need. */
call_sizes sizes_settled(const call_sizes *sizes, const attune_problem *problem);
/* "seq_kv" */
const char *sizes_name(int index);

/* Copies those that are set into the arguments: the others stay as attune_arguments_init set them. */
void sizes_apply(const call_sizes *sizes, attune_arguments *arguments);

/* All sizes in a row, for code that treats them alike. */
enum { NUM_CALL_SIZES = offsetof(call_sizes, softmax_scale) / sizeof(int64_t) };
int64_t *sizes_at(call_sizes *sizes, int index);

#endif
