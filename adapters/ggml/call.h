/* The kind of a call, and its arguments. */
#ifndef ATTUNE_GGML_CALL_H
#define ATTUNE_GGML_CALL_H

#include "kernels.h"
#include "mask.h"
#include "node.h"

/* Neighbouring streams of a node that one call computes. */
typedef struct ggml_call {
    const ggml_node *node;
    mask_rows rows;              /* of each stream */
    int64_t first, count;        /* streams */
    const uint16_t *mask;        /* of the first stream; NULL: none */
    int64_t mask_stride;         /* numbers from row to row */
    mask_alibi alibi;            /* whether the mask is ALiBi's */
    const int32_t *lens;         /* by stream; NULL: all have rows.keys keys */
    const int32_t *table;        /* MASK_LISTS: [rows of the node, mask_columns]; MASK_GROUPS: [rows.groups, …] */
    const void *list_bias;       /* MASK_LISTS with biases: as `table`, f16; with slopes one for each head, f32 */
    const float *slopes;         /* by head */
    const void *k_rows, *v_rows; /* converted, [streams, KV heads, keys of the node, row]; NULL: as they lie */
} ggml_call;

/* The kind. rows.class is not MASK_EMPTY. */
void call_kind(const ggml_call *call, ggml_kind *kind);

/* Sets everything of `a`, which begins as plan->arguments. */
void call_bind(const ggml_call *call, const ggml_kind *kind, attune_arguments *a);

/* Neighbouring rows of a stream that see the same keys, lo to hi - 1 from the call's first key on. For one query head
 * of each group, they may be computed as the heads of a single row. */
typedef struct call_rows {
    int64_t stream, begin, end; /* stream: of the call's */
    int64_t lo, hi;
} call_rows;

/* The kind, whose group is the number of rows, and the arguments for query head `head` of each group. */
void call_rows_kind(const ggml_call *call, const call_rows *rows, ggml_kind *kind);
void call_rows_bind(const ggml_call *call, const call_rows *rows, int64_t head, const ggml_kind *kind,
                    attune_arguments *a);

#endif
