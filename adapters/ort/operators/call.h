/* A call of a node: reads inputs, checks and describes tensors, creates outputs, and runs. An invalid call gets one
 * sentence, which ONNX Runtime raises as the node's error. */
#ifndef ATTUNE_ORT_CALL_H
#define ATTUNE_ORT_CALL_H

#include "node.h"
#include "ort/runner.h"
#include "ort/tensor.h"

enum { CALL_MAX_SCRATCH = 20 };

/* Queries, keys or values as [batch, heads, tokens, columns]. */
typedef struct heads {
    void *data;
    attune_dtype dtype;
    int64_t dims[4], strides[4];
} heads;

/* A mask or a bias over [batch, heads, queries, keys]; strides of 0 broadcast. */
typedef struct call_mask {
    const void *data;
    attune_dtype dtype;
    int64_t strides[4], columns;
} call_mask;

typedef struct call {
    node *n;
    ort_kernel_context *context;
    ort_place place;
    size_t num_inputs, num_outputs;
    int type;           /* of an EPContext node: of its first input */
    common_kind kind;   /* has the fields that follow from attributes; call_attend sets those of the tensors below */
    heads q, k, v, out; /* for a block: dims only, and the data of out */
    const void *x;      /* for a block: [batch, rows, columns], contiguous */
    heads k_cache, v_cache; /* data not NULL: k and v are appended to these, as the last keys */
    int64_t keys;           /* number of keys, including the appended ones */
    call_mask mask, bias;
    const int32_t *kv_lens, *causal_offsets, *position_ids;
    const float *sinks, *k_scale, *v_scale; /* scales of quantised k and v, see kind.kv_scales */
    const void *cos, *sin, *q_norm, *k_norm;
    int64_t rotary_positions;
    const tensor *users; /* tensors that functions read, in the order of their declarations */
    void *weights;
    void *scratch[CALL_MAX_SCRATCH];
    int num_scratch;
    int code; /* of the status, after a failure */
    char message[ATTUNE_MESSAGE_BYTES];
} call;

/* Compute a node of each operator. False after a failure. */
bool call_attention(call *c);
bool call_multi_head(call *c);
bool call_group_query(call *c);
bool call_block(call *c);
bool call_flex(call *c);
bool call_linear(call *c);
bool call_conv(call *c);

void call_begin(call *c, node *n, ort_kernel_context *context);
void call_free(call *c);

/* The status of a failed call. */
ort_status *call_failure(const call *c);

/* Records the first failure; returns false. */
__attribute__((format(printf, 2, 3))) bool call_fail(call *c, const char *format, ...);

/* ---- Tensors ---- */

/* Reads an input, which may be absent if it is optional. False only after a failure. */
bool call_input(call *c, size_t index, const char *name, bool is_optional, tensor *t);

/* Fails unless the input has `rank` dims, equal to `dims` (-1: any). */
bool call_expect(call *c, const char *name, const tensor *t, int rank, const int64_t *dims);

/* Prints dims as "2, any, 64"; -1 is any. */
const char *call_print_dims(int rank, const int64_t *dims, char text[128]);

/* Creates an output; *data is NULL if the model does not use it. */
bool call_output(call *c, size_t index, int rank, const int64_t *dims, void **data);

/* The same with its type, which is the first input's unless it has its own. t->is_given: the model uses it. */
bool call_output_tensor(call *c, size_t index, int rank, const int64_t *dims, tensor *t);

/* Allocates memory until the end of the call, aligned to 64 bytes; NULL after a failure. */
void *call_scratch(call *c, size_t bytes);

/* The tensor [batch, tokens, heads * columns] or, contiguous, [batch, heads, tokens, columns]. */
heads call_packed(const tensor *t, int64_t num_heads);
heads call_separate(void *data, attune_dtype dtype, int64_t batch, int64_t num_heads, int64_t tokens, int64_t columns);

/* Convert `count` elements of a type from and to f32. */
void call_widen(attune_dtype dtype, const void *from, int64_t count, float *to);
void call_narrow(attune_dtype dtype, const float *from, int64_t count, void *to);

/* Values as f32 or i32. NULL after a failure. */
const float *call_floats(call *c, const tensor *t, int64_t count);
const int32_t *call_indices(call *c, const char *name, const tensor *t, int64_t count, int64_t low, int64_t high);

/* Runs fn over [0, n) on the session's threads, or on this thread if `bytes` is small. */
void call_parallel(call *c, attune_range_fn *fn, void *argument, int64_t n, int64_t bytes);

/* ---- Caches ---- */

/* Copies `past` keys of each head to the front of a cache, unless they are there already. Sequence b then has
 * lengths[b] keys, or c->keys if lengths is NULL. With is_clean, the rest of a new cache becomes 0. */
void call_copy_past(call *c, const tensor *past, const heads *cache, const int32_t *lengths, int64_t fresh,
                    bool is_clean);

/* Makes `keys` the complete cache, past keys and then new ones, in present, or in scratch if that is NULL. False after
 * a failure. */
bool call_gather(call *c, const tensor *past, void *present, heads *keys);

/* Sets where positions begin if the first `past` keys are old: for causality, windows and rotary. */
bool call_set_positions(call *c, int64_t past);

/* ---- Running ---- */

/* Sets the bias over c->keys keys from a tensor whose dims, from the right, are 1 or the full size. */
bool call_any_bias(call *c, const char *name, const tensor *t);

/* Sets the mask from a key_padding_mask or a mask_index: lengths, or ones and zeros for keys, or for queries and keys.
 */
bool call_padding(call *c, const char *name, const tensor *t);

/* Sets the bias over c->keys keys from [batch or 1, heads or 1, queries, keys]. */
bool call_bias(call *c, const char *name, const tensor *t);

/* Computes the outputs. */
bool call_attend(call *c);

#endif
