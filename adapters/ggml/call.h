/* A call of attune for neighbouring streams of a node: its kind, by which its kernel is found, and its arguments. */
#ifndef ATTUNE_GGML_CALL_H
#define ATTUNE_GGML_CALL_H

#include "kernels.h"
#include "mask.h"
#include "node.h"

/* Neighbouring streams of a node, which one call computes. */
typedef struct ggml_call {
    const ggml_node *node;
    mask_rows rows;        /* what the mask of each stream says */
    int64_t first, count;  /* the streams */
    const uint16_t *mask;  /* f16, of the first stream; NULL: none */
    int64_t mask_stride;   /* from row to row, in elements */
    mask_alibi alibi;      /* whether the mask has ALiBi's distances */
    const int32_t *lens;   /* keys of each stream; NULL: all have rows.keys */
    const int32_t *table;  /* listed keys. MASK_LISTS: [rows, mask_columns]; MASK_GROUPS: [groups, mask_columns] */
    const void *list_bias; /* biases of MASK_LISTS. f16 [rows, mask_columns]; with slopes f32 [heads, rows, …] */
    const float *slopes;   /* ALiBi's slope of each head */
    const void *k_rows, *v_rows; /* converted rows, [streams, KV heads, keys of the node, row]; NULL: not converted */
} ggml_call;

/* The kind of the call, whose rows.class is not MASK_EMPTY. */
void call_kind(const ggml_call *call, ggml_kind *kind);

/* Sets the sizes, tensors and strides of `a`, a copy of plan->arguments. */
void call_bind(const ggml_call *call, const ggml_kind *kind, attune_arguments *a);

/* Neighbouring rows of a stream that attend to the same keys. A kernel for one row computes them: for one query head of
 * each group, the rows are passed as the heads of a single row. */
typedef struct call_rows {
    int64_t stream;     /* 0: the call's first */
    int64_t begin, end; /* rows begin to end - 1 */
    int64_t lo, hi;     /* keys lo to hi - 1, counted from rows.begin of the call */
} call_rows;

/* The kind of such rows, whose group is their number, and the arguments for query head `head` of each group. */
void call_rows_kind(const ggml_call *call, const call_rows *rows, ggml_kind *kind);
void call_rows_bind(const ggml_call *call, const call_rows *rows, int64_t head, const ggml_kind *kind,
                    attune_arguments *a);

#endif
