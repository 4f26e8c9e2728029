/* Which blocks of keys matter to which queries: an estimate for attention over blocks of keys (Xu et al., "XAttention:
 * Block Sparse Attention with Antidiagonal Scoring", 2025).
 *
 *     attune_blocks_desc desc = ATTUNE_BLOCKS_DESC_INIT;
 *     desc.num_heads = 32, desc.num_kv_heads = 8, desc.head_dim = 128, desc.is_causal = 1;
 *     desc.block_size = 128, desc.stride = 16;
 *     attune_blocks *blocks;
 *     attune_blocks_create(NULL, &desc, &blocks);
 *
 *     attune_blocks_step step = ATTUNE_BLOCKS_STEP_INIT;
 *     step.batch = 1, step.seq_q = queries, step.seq_kv = keys;
 *     step.q.data = q, step.k.data = k, step.shares = shares;
 *     attune_blocks_run(blocks, &step);
 *
 * The scores are cut into squares of stride x stride. Only those on the antidiagonal of a square are computed:
 *
 *     sum(i, j) = sum of q[i stride + stride - 1 - u] . k[j stride + u] over u from 0 to before stride
 *
 * softmax(softmax_scale / stride * sum) over j estimates the probabilities of keys. The share of a key block is the sum
 * of its probabilities, averaged over the squares of the row block. So the shares of a row block add up to 1, unless
 * one of its squares has no visible key, which counts as 0 in the mean. Tokens that the last square lacks count as
 * zeros. Sums are f32. bf16 is multiplied by pairs where the CPU has the instruction. The result is the same for every
 * number of threads.
 *
 * An attention over the chosen blocks reads a table of them, which attune_blocks_from_lists and attune_blocks_from_csr
 * make from lists. Its `extra` is, if a sequence has at most 64 blocks of 128 tokens,
 *
 *     tensors="blocks:bool[h, 64, 64]",
 *     mask_mod="blocks[h, clamp((q + seq_kv - seq_q) // 128), clamp(kv // 128)]"
 *
 * where the sum is the position of a query, because q counts from the first query of the step.
 *
 * Errors: a status, and attune_last_message() has one sentence. If a call fails, it has written nothing, except with
 * ATTUNE_CANCELLED. Sizes and strides are in elements. */
#ifndef ATTUNE_BLOCKS_H
#define ATTUNE_BLOCKS_H

#include "attention.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct attune_blocks_desc {
    size_t struct_size;
    int64_t num_heads;    /* of q, at most 1024 */
    int64_t num_kv_heads; /* of k; divides num_heads. 0: as many */
    int64_t head_dim;     /* of q and k, at most 512 */
    int64_t block_size;   /* queries of a row block, and keys of a key block; at most 65536 */
    int64_t stride;       /* divides block_size; stride * head_dim is at most 32768 */
    attune_dtype dtype;   /* of q and k: f32 (default), bf16 or f16 */
    int is_causal;        /* 1: the last query is at the last key, and no key after a query is visible */
    double softmax_scale; /* of the attention; ATTUNE_DEFAULT_SCALE: 1 / sqrt(head_dim) */
} attune_blocks_desc;

#ifdef __cplusplus
#define ATTUNE_BLOCKS_DESC_INIT attune_initial(attune_blocks_desc_init)
#else
#define ATTUNE_BLOCKS_DESC_INIT {.struct_size = sizeof(attune_blocks_desc), .softmax_scale = __builtin_nan("")}
#endif

/* Writes the values of ATTUNE_BLOCKS_DESC_INIT, for callers that have no macros. */
ATTUNE_API attune_status attune_blocks_desc_init(attune_blocks_desc *desc, size_t struct_size);

typedef struct attune_blocks attune_blocks;

/* Makes an estimator, which copies the description. `context` as in attune_attention_create. Compiles nothing. A
 * failure sets *blocks to NULL. */
ATTUNE_CHECKED attune_status attune_blocks_create(attune_context *context, const attune_blocks_desc *desc,
                                                  attune_blocks **blocks);

/* Ends it; no step may be running. NULL is fine. */
ATTUNE_API void attune_blocks_destroy(attune_blocks *blocks);

/* Compiles the kernel for steps of up to seq_kv keys now, or loads it from the cache, so that such a step does not
 * wait. There is one kernel for up to 64 key blocks, one for up to 512, one for up to 4096, and one for up to 32768; a
 * step with more is ATTUNE_INVALID_ARGUMENT. */
ATTUNE_CHECKED attune_status attune_blocks_prepare(attune_blocks *blocks, int64_t seq_kv);

/* A view whose three strides are 0 is contiguous, [batch, heads, tokens, head_dim]. Elements of a row are contiguous in
 * any case. */
typedef struct attune_blocks_step {
    size_t struct_size;
    int64_t batch;               /* sequences */
    int64_t seq_q, seq_kv;       /* tokens of each sequence. With is_causal their difference is a multiple of stride */
    attune_view q;               /* [batch, num_heads, seq_q, head_dim] */
    attune_view k;               /* [batch, num_kv_heads, seq_kv, head_dim] */
    float *shares;               /* output, contiguous [batch, num_heads, row blocks, key blocks], where the numbers of
                                  * blocks are seq_q and seq_kv divided by block_size, rounded up */
    uint32_t max_threads;        /* 0: all of the context's */
    const attune_runner *runner; /* NULL: the context's threads */
    const int *cancel;           /* NULL, or a flag that another thread sets to end the step */
} attune_blocks_step;

#ifdef __cplusplus
#define ATTUNE_BLOCKS_STEP_INIT attune_initial(attune_blocks_step_init)
#else
#define ATTUNE_BLOCKS_STEP_INIT {.struct_size = sizeof(attune_blocks_step)}
#endif

ATTUNE_API attune_status attune_blocks_step_init(attune_blocks_step *step, size_t struct_size);

/* Writes shares. Any number of threads may call it at once. */
ATTUNE_CHECKED attune_status attune_blocks_run(attune_blocks *blocks, const attune_blocks_step *step);

/* The same by the interpreter of the kernel's loop IR: slow, bit for bit the same result. For tests. */
ATTUNE_CHECKED attune_status attune_blocks_run_interpreted(attune_blocks *blocks, const attune_blocks_step *step);

/* Writes the table [rows, columns] of lists [rows, places]: 1 for each key block in the list of the row, otherwise 0. A
 * row is a row block of a head. A list may have any order, and -1 in unused places. If a number is out of range it
 * writes nothing and returns ATTUNE_INVALID_ARGUMENT. */
ATTUNE_CHECKED attune_status attune_blocks_from_lists(const int32_t *lists, int64_t rows, int64_t places,
                                                      int64_t columns, uint8_t *table);

/* The same for CSR: row r has the key blocks indices[indptr[r]] to before indices[indptr[r + 1]]. indptr is [rows + 1],
 * begins with 0 and never falls. */
ATTUNE_CHECKED attune_status attune_blocks_from_csr(const int32_t *indptr, const int32_t *indices, int64_t rows,
                                                    int64_t columns, uint8_t *table);

#ifdef __cplusplus
}
#endif

#endif
