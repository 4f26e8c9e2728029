/* The independent truth: attention as include/attune.h defines it, in plain loops that share no code with the library.
 *
 * All of a call is read from where its arguments point, with the dims and strides that `tensors` (from attune_tensors)
 * has; that list is bookkeeping only, what the fields mean is written down here once more. Nothing is written there. */
#ifndef ATTUNE_TESTS_REF_ATTENTION_H
#define ATTUNE_TESTS_REF_ATTENTION_H

#include <attune.h>
#include <stdbool.h>

/* More than any problem has. */
enum { REF_MAX_TENSORS = 48 };

typedef struct ref_call {
    const attune_problem *problem;
    const attune_arguments *arguments;
    const attune_tensor *tensors;
    size_t count;
    const attune_mha_weights *weights; /* of a block: what packed_weights was made of, see ref_block.h */
    /* Types that K (rotated) and V are rounded to before anything is computed with them. ATTUNE_DTYPE_DEFAULT: they are
     * not. What goes through a cache is rounded to its type in any case. */
    attune_dtype k_rounding, v_rounding;
} ref_call;

/* One more type of tensors, for what lies between the steps of a block: long double. */
enum { REF_WIDE = ATTUNE_DTYPE_COUNT };

/* How large the numbers inside of a block are, those that are not finite left out, and so what rounding can do to them:
 * the losses are what one element can lose, in units of the arithmetic's epsilon. */
typedef struct ref_block_scale {
    double q_row, k_row; /* Euclidean lengths of the longest rows of q and of k as the scores see them */
    double value;        /* the largest element of V */
    double q_loss, k_loss, v_loss;
    double out_loss; /* of the output projection alone, */
    double out_gain; /* and how many times an error of all heads' results is in its result */
} ref_block_scale;

/* What the outputs should hold afterwards: dense, row-major in the order of each tensor's dims. What a call does not
 * write (tokens that no ragged entry owns, older keys of a cache) is what the output held before. */
typedef struct ref_result {
    long double *out, *lse, *weights;       /* NULL where the problem has no such tensor, */
    long double *k, *v, *k_scale, *v_scale; /* and these unless they are written to; k and v may be codes */
    /* The logarithm of each row of q over all its keys, [batch, heads, tokens], whether or not the problem wants it;
     * NULL if op is neither attention nor weights. What op = weights should get as lse. */
    long double *row_lse;
    /* For each of these rows whether a key that is not hidden has the score -infinity all the same, being infinite: the
     * weight 0 times a value that is not finite is then NaN, or nothing where a row's keys are cut in parts and all of
     * one are such. */
    bool *loses_key;
    ref_block_scale scale; /* of a block */
} ref_result;

/* In double throughout, long double where the arithmetic is f64. false: out of memory. Hidden keys are never read in K
 * or V (those of K are where the weights of hidden keys are asked for). */
bool ref_attention(const ref_call *call, ref_result *result);

/* What anyone would write first, in the problem's own precision (f32 or f64) with serial sums, rounded to the types of
 * the outputs: the yardstick for rounding errors. Where everything is bf16, what lies between the steps is, too: Q, K
 * and V as rotated or projected, P, and the heads that a block puts together; sums are f32. */
bool ref_attention_plain(const ref_call *call, ref_result *result);

void ref_result_free(ref_result *result);

/* Which elements of the storage of K, V, k_new and v_new reach the result: a byte for each, set to 1; NULL: not asked
 * for. With appended keys the places in the cache that are about to be overwritten are not among them. The arrays are
 * to be zeroed by the caller; with v_in_k those of K serve for V. Scales of heads are not looked at. */
typedef struct ref_seen {
    unsigned char *k, *v, *k_new, *v_new, *k_scale, *v_scale;
} ref_seen;
void ref_mark_seen(const ref_call *call, const ref_seen *seen);

/* One number of a tensor of any dtype, by its index into the storage; of a quantised cache a code. */
long double ref_load(attune_dtype dtype, const void *storage, int64_t index);
void ref_store(attune_dtype dtype, void *storage, int64_t index, long double value);
/* As a tensor of this type would give it back. */
long double ref_rounded(attune_dtype dtype, long double value);
size_t ref_dtype_bytes(attune_dtype dtype);

static inline bool ref_is_quantised(attune_dtype dtype) { return dtype == ATTUNE_I8 || dtype == ATTUNE_F8; }
/* What the code of a key (i, j, k: the indices of its row in k or v) is to be multiplied by; `scale` is k_scale or
 * v_scale, NULL if there is none. */
long double ref_scale(const attune_tensor *scale, const void *data, int64_t i, int64_t j, int64_t k);

#endif
