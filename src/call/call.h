/* One call of a problem's kernel: sizes and strides are settled, arguments are checked, and all are in the kernel's
 * order.
 *
 * call.c calls call_sizes.c (run-time sizes), call_tables.c (values of index tensors), call_strides.c (strides and
 * extents) and call_overlap.c (tensors that must not share memory). Most calls have the sizes and strides of the
 * problem itself, or of a call before (at_layout), and the first three were done for these. */
#ifndef ATTUNE_CALL_CALL_H
#define ATTUNE_CALL_CALL_H

#include "layer/packed_weights.h"
#include "problem/signature.h"

/* Sizes and strides of one call, and values that follow from them. */
typedef struct at_settled {
    mha_sizes sizes;
    int64_t strides[MHA_NUM_TENSORS][4]; /* by place in the table, as all arrays below */
    uint64_t bytes[MHA_NUM_TENSORS];     /* bytes from the first element to the end of the last; 0: there is none */
    int64_t scalars[MHA_MAX_SCALARS];
    double flops;
    bool is_empty; /* no output has elements, so there is nothing to do */
} at_settled;

/* Arguments whose sizes and strides are settled once, for all calls that repeat them. */
typedef struct at_layout {
    attune_arguments arguments;
    bool is_settled; /* false: each call is settled by itself, because its tables matter or because it is refused */
    bool has_tables; /* its index tensors were checked, and every call that it is given for has these */
    at_settled settled;
} at_layout;

/* Tensors of tier 0's code that the problem lacks: an lse that nobody reads, sinks of -inf, and lists that describe a
 * batch which is not ragged, or has no pages. They have no new keys. */
typedef enum at_added {
    AT_ADDED_LSE,
    AT_ADDED_SINKS,
    AT_ADDED_LENS,
    AT_ADDED_STARTS,
    AT_ADDED_TABLE,
    AT_NUM_ADDED
} at_added;

/* Data that all calls of a problem share. */
typedef struct at_signature {
    attune_problem problem; /* canonical */
    size_t count, num_scalars;
    mha_tensor tensors[MHA_NUM_TENSORS];
    signed char place[MHA_NUM_TENSORS]; /* the place of a tensor in the table, or -1 */
    uint8_t element[MHA_NUM_TENSORS];   /* bytes of an element, by place in the table; a power of two */
    mha_sizes compiled;
    mha_parameters parameters;
    mha_parameters taken; /* by the code: a kernel of tier 0 is told what the problem fixes */
    bool is_of_other;     /* the code is of another problem, and its tensors are tensors[order[0 … num_taken - 1]].
                           * Those from tensors[count] on the problem has not: they are made for the call */
    bool folds_group;     /* it takes the heads of a group as the queries of one head; the call has one query */
    bool adds[AT_NUM_ADDED];
    uint8_t num_taken, lse_scalar; /* the number of the scalar that is the outermost stride of an added lse */
    uint8_t order[MHA_NUM_TENSORS];
    mha_packed_id packed_id;  /* for a block: the header that its weights must have */
    bool has_position;        /* the positions of queries matter */
    bool has_sequence_tables; /* index tensors make sequences differ */
    at_layout initial;        /* of the arguments from attune_arguments_init */
} at_signature;

/* The same problem, computed by the code of a more general problem. */
void at_signature_take(at_signature *signature, const attune_problem *code, bool folds_group);

/* Bytes of an added tensor, which exists if adds[which]. -1: too many. */
int64_t at_call_added_bytes(const at_signature *signature, at_added which, const int64_t *scalars);

/* The buffers for such code. added: memory for each added tensor, which is filled. Returns their number. */
size_t at_call_taken_buffers(const at_signature *signature, void *const *buffers, const int64_t *scalars,
                             void *const added[AT_NUM_ADDED], void **taken);

/* A caller's arguments. Members that an older program lacks have the values of attune_arguments_init. */
at_struct at_arguments_struct(const at_signature *signature);

void at_signature_init(at_signature *signature, const attune_problem *canonical);
/* After a copy: the names of a user's tensors are those in the signature's own problem. */
void at_signature_moved(at_signature *signature);

/* Settles the sizes and strides of a call, and reads no pointer. Sizes that only index tensors give are at their upper
 * bounds. */
attune_status at_call_settle(const at_signature *signature, const attune_arguments *arguments, at_settled *settled,
                             at_error *err);

/* Settles layout->arguments, a whole struct. Only index tensors may be read again in a call that repeats them. */
void at_layout_settle(const at_signature *signature, at_layout *layout);

/* attune_bind_dlpack and attune_plan_bind. */
attune_status at_bind(const at_signature *signature, attune_arguments *arguments, const char *name,
                      const attune_dltensor *tensor, at_error *err);

/* Sets the size of a call that has this name. */
attune_status at_set_size(const at_signature *signature, attune_arguments *arguments, const char *name, int64_t value,
                          at_error *err);

/* Sets the number of a call that has this name. */
attune_status at_set_number(const at_signature *signature, attune_arguments *arguments, const char *name, double value,
                            at_error *err);

/* Everything about a call, checked. */
typedef struct at_call {
    void *buffers[MHA_NUM_TENSORS];
    void *workspace; /* the caller's, or NULL */
    size_t workspace_bytes;
    const attune_block_mask *block_mask; /* the caller's, or NULL */
    const at_settled *settled;           /* `own`, or that of a layout */
    at_settled own;
} at_call;

/* likely: a layout of this signature that the call may repeat, or NULL. It must outlive the call. */
attune_status at_call_make(const at_signature *signature, const at_layout *likely, const attune_arguments *arguments,
                           at_call *call, at_error *err);

/* ---- The parts ---- */

/* Sizes of the longest sequence. They are at their upper bounds until they are found in index tensors. */
typedef struct at_open {
    bool q, kv;
} at_open;

/* All sizes except those that follow from open ones. */
attune_status at_sizes_begin(const at_signature *signature, const attune_arguments *arguments, mha_sizes *sizes,
                             at_open *open, at_error *err);
/* The other sizes, when SEQ_Q and SEQ_KV are known. */
attune_status at_sizes_finish(const at_signature *signature, const attune_arguments *arguments, mha_sizes *sizes,
                              at_error *err);

/* The numbers of queries and keys of the longest sequence. */
typedef struct at_longest {
    int64_t q, kv;
} at_longest;

/* Checks lengths, pages and positions of all sequences of the batch against the sizes. Open sizes are upper bounds. */
attune_status at_tables_check_sequences(const at_signature *signature, const attune_arguments *arguments,
                                        const mha_sizes *sizes, at_longest *longest, at_error *err);
/* Elements between two rows of block_table. */
attune_status at_tables_row(const attune_arguments *arguments, const mha_sizes *sizes, int64_t *row, at_error *err);
/* Checks position_ids and row_ids. */
attune_status at_tables_check_ids(const at_signature *signature, const attune_arguments *arguments,
                                  const mha_sizes *sizes, at_error *err);

/* Strides and extents; scalars and flops follow. */
attune_status at_strides_settle(const at_signature *signature, const attune_arguments *arguments, at_settled *settled,
                                at_error *err);

/* Checks that no output shares an element with another tensor. */
attune_status at_overlap_check(const at_signature *signature, const at_settled *settled, void *const *buffers,
                               at_error *err);

/* Checks the pointer to a tensor that has elements: not NULL, and aligned to its element. */
attune_status at_call_pointer(const mha_tensor *tensor, const attune_arguments *arguments, const void **pointer,
                              at_error *err);

static inline size_t at_element_bytes(const mha_tensor *t) { return ir_elem_get(t->elem)->bytes; }

static inline const mha_tensor *at_signature_tensor(const at_signature *signature, mha_tensor_id id) {
    return signature->place[id] < 0 ? NULL : &signature->tensors[(int)signature->place[id]];
}

#endif
