/* The independent truth: attention as attune/expert/problem.h defines it, in plain loops that share no code with the
 * library.
 *
 * A call's tensors are read through its arguments, with the dims and strides of `tensors` (from attune_tensors). That
 * list is bookkeeping only: the meaning of the fields is written down here once more. Nothing is written to the
 * arguments. */
#ifndef ATTUNE_REF_ATTENTION_H
#define ATTUNE_REF_ATTENTION_H

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
    /* Types that K (rotated) and V are rounded to before anything is computed with them. ATTUNE_DTYPE_DEFAULT: not
     * rounded. Rows that go through a cache are rounded to its type in any case. */
    attune_dtype k_rounding, v_rounding;
    /* The storage of k and v as the call that is checked has left it; NULL: it is not known. Where a number that is
     * appended lies so near to the border between two of the cache's numbers, or codes, that an error of k_error
     * (v_error) may put it on either side, the side that was taken is right, and the results are computed with that. */
    const void *k_taken, *v_taken;
    double k_error, v_error;
} ref_call;

/* One more type of tensors, for the intermediate values of a block: long double. */
enum { REF_WIDE = ATTUNE_DTYPE_COUNT };

/* The magnitude of the finite numbers inside a block, and so the effect of rounding: the losses are those of one
 * element, in units of the arithmetic's epsilon. */
typedef struct ref_block_scale {
    double q_row, k_row; /* Euclidean lengths of the longest rows of q and of k as the scores see them */
    double value;        /* the largest element of V */
    double q_loss, k_loss, v_loss;
    double out_loss; /* of the output projection alone, */
    double out_gain; /* and how many times an error of all heads' results is in its result */
} ref_block_scale;

/* The expected outputs: dense, row-major in the order of each tensor's dims. Elements that a call does not write
 * (tokens that no ragged sequence owns, older keys of a cache) have the output's old values. */
typedef struct ref_result {
    long double *out, *lse, *weights;       /* NULL where the problem has no such tensor, */
    long double *k, *v, *k_scale, *v_scale; /* and these unless they are written to; k and v may be codes */
    /* The logarithm of each row of q over all its keys, [batch, heads, tokens], whether or not the problem wants it;
     * NULL if op is neither attention nor weights. It is the right lse for op = weights. */
    long double *row_lse;
    /* For each of these rows whether a key that is not hidden has the score -infinity all the same, being infinite: the
     * weight 0 times a value that is not finite is then NaN, or nothing where a row's keys are cut in parts and all of
     * one are such. */
    bool *loses_key;
    ref_block_scale scale;   /* of a block */
    double largest_modified; /* of the scores that score_mod has given, without a sign; 0: none */
    double most_mixed;       /* the largest sum of a row of what prob_mod has given, without signs; 0: none */
    bool knows_caches;       /* ref_call.k_taken was given */
} ref_result;

/* In double throughout, long double where the arithmetic is f64. false: out of memory. Hidden keys are never read in K
 * or V (those of K are where the weights of hidden keys are asked for). */
bool ref_attention(const ref_call *call, ref_result *result);

/* A plain implementation, in the problem's own precision (f32 or f64) with serial sums, rounded to the types of the
 * outputs: the yardstick for rounding errors. If everything is bf16, so are the intermediate values: Q, K and V as
 * rotated or projected, P, and the heads that a block puts together; sums are f32. */
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
/* The value after it was stored in a tensor of this type and loaded again. */
long double ref_rounded(attune_dtype dtype, long double value);
size_t ref_dtype_bytes(attune_dtype dtype);

/* Whether a kernel may round Q, K, V and probabilities to bf16, though they are not all of it. */
bool ref_may_round(const attune_problem *problem);

static inline bool ref_is_quantised(attune_dtype dtype) {
    return dtype == ATTUNE_I8 || dtype == ATTUNE_F8 || dtype == ATTUNE_I4;
}
/* The factor of a key's code (i, j, k: the indices of its row in k or v); `scale` is k_scale or
 * v_scale, NULL if there is none. */
long double ref_scale(const attune_tensor *scale, const void *data, int64_t i, int64_t j, int64_t k);

#endif
