/* One call of a node: inputs in, tensors checked and described, outputs made, and run. A call that is not sound is
 * refused with one sentence, which ONNX Runtime raises as the node's error. */
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
    int type;               /* of an EPContext node: of its first input */
    common_kind kind;       /* the fields that follow from attributes; call_attend sets those of the tensors below */
    heads q, k, v, out;     /* of a block the dims only, and the data of out */
    const void *x;          /* of a block: [batch, rows, columns], contiguous */
    heads k_cache, v_cache; /* data not NULL: k and v are appended to these, where their last keys are */
    int64_t keys;           /* that there are, the appended ones among them */
    call_mask mask, bias;
    const int32_t *kv_lens, *causal_offsets, *position_ids;
    const float *sinks, *k_scale, *v_scale; /* scales: of quantised k and v, as kind.kv_scales says */
    const void *cos, *sin, *q_norm, *k_norm;
    int64_t rotary_positions;
    const tensor *users; /* what functions read, in the order of their declarations */
    void *weights;
    void *scratch[CALL_MAX_SCRATCH];
    int num_scratch;
    int code; /* of the status, after a failure */
    char message[ATTUNE_MESSAGE_BYTES];
} call;

/* Each computes a node of its operator. False after a failure. */
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

/* Remembers the first failure; returns false. */
__attribute__((format(printf, 2, 3))) bool call_fail(call *c, const char *format, ...);

/* ---- Tensors ---- */

/* Reads an input, which may be missing if it is optional. False after a failure only. */
bool call_input(call *c, size_t index, const char *name, bool is_optional, tensor *t);

/* Fails unless the input has `rank` dims, which are those of `dims` (-1: any). */
bool call_expect(call *c, const char *name, const tensor *t, int rank, const int64_t *dims);

/* Dims as "2, any, 64"; -1 is any. */
const char *call_print_dims(int rank, const int64_t *dims, char text[128]);

/* Makes an output; *data is NULL if the model does not want it. */
bool call_output(call *c, size_t index, int rank, const int64_t *dims, void **data);

/* The same with its type, which is the first input's unless it has one of its own. t->is_given: the model wants it. */
bool call_output_tensor(call *c, size_t index, int rank, const int64_t *dims, tensor *t);

/* Memory for the rest of the call, aligned to 64 bytes; NULL after a failure. */
void *call_scratch(call *c, size_t bytes);

/* The tensor [batch, tokens, heads * columns] or, contiguous, [batch, heads, tokens, columns]. */
heads call_packed(const tensor *t, int64_t num_heads);
heads call_separate(void *data, attune_dtype dtype, int64_t batch, int64_t num_heads, int64_t tokens, int64_t columns);

/* `count` numbers of a type from and to f32. */
void call_widen(attune_dtype dtype, const void *from, int64_t count, float *to);
void call_narrow(attune_dtype dtype, const float *from, int64_t count, void *to);

/* Values as f32 or i32. NULL after a failure. */
const float *call_floats(call *c, const tensor *t, int64_t count);
const int32_t *call_indices(call *c, const char *name, const tensor *t, int64_t count, int64_t low, int64_t high);

/* Runs fn over [0, n) on the session's threads, or at once where `bytes` are few. */
void call_parallel(call *c, attune_range_fn *fn, void *argument, int64_t n, int64_t bytes);

/* ---- Caches ---- */

/* Copies `past` keys of each head to the front of a cache, unless they lie there already. Keys of sequence b are
 * lengths[b] afterwards, or c->keys if lengths is NULL; with is_clean the rest of a cache that is new becomes 0. */
void call_copy_past(call *c, const tensor *past, const heads *cache, const int32_t *lengths, int64_t fresh,
                    bool is_clean);

/* Makes `keys` the whole cache: past keys, then the new ones, all in present, or in scratch if that is NULL. False
 * after a failure. */
bool call_gather(call *c, const tensor *past, void *present, heads *keys);

/* Where positions begin, if the first `past` keys were there before: for causality, windows and rotary alike. */
bool call_set_positions(call *c, int64_t past);

/* ---- Running ---- */

/* Makes the bias over c->keys keys from a tensor whose dims from the right are each 1 or the full size. */
bool call_any_bias(call *c, const char *name, const tensor *t);

/* Makes the mask of a key_padding_mask or a mask_index: lengths, or ones and zeros for the keys of all queries or of
 * each. */
bool call_padding(call *c, const char *name, const tensor *t);

/* Makes the bias over c->keys keys from [batch or 1, heads or 1, queries, keys]. */
bool call_bias(call *c, const char *name, const tensor *t);

/* Computes the outputs. */
bool call_attend(call *c);

#endif
