/* The index of sparse attention (the "lightning indexer"): the top-k keys that a query attends to, as DeepSeek V3.2 and
 * GLM 5 choose them.
 *
 *     attune_index_desc desc = ATTUNE_INDEX_DESC_INIT;
 *     desc.num_heads = 64, desc.head_dim = 128, desc.num_ids = 2048, desc.dtype = ATTUNE_BF16;
 *     desc.is_causal = 1, desc.page_size = 64;
 *     attune_index *index;
 *     attune_index_create(NULL, &desc, &index);
 *
 *     attune_index_step step = ATTUNE_INDEX_STEP_INIT;            // every step, for every layer
 *     step.batch = sequences, step.cu_seqlens_q = starts, step.kv_lens = lens;
 *     step.block_table = table, step.max_pages = columns, step.num_pages = pages;
 *     step.q.data = q, step.k.data = key_pages, step.w.data = w, step.ids = ids, step.lens = id_lens;
 *     attune_index_run(index, &step);
 *
 * A query has a vector q_h and a weight w_h for each of num_heads heads, and a key has one vector k, which all heads
 * share. The score of a key is
 *
 *     score = sum of w_h max(0, q_h . k)          of i8 and f8: k_scale * sum of (w_h q_scale_h) max(0, q_h . k)
 *
 * (DeepSeek-AI, "DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models", 2025.) The num_ids keys with the
 * highest scores are chosen, or all visible keys if there are not more. The choice is exact: of two keys with equal
 * scores the first one is chosen, -0 equals 0, and NaN is below all numbers. ids are numbers of keys in their sequence,
 * in ascending order. Attention takes them as kv_ids, with lens as kv_id_lens.
 *
 * Sums are f32, and so are products of f32 and f16. bf16 and f8 are multiplied by pairs of bf16 where the CPU has the
 * instruction. Products of i8 and their sums are exact. Scores and ids have the same bits in every batch and layout,
 * and for every number of threads. On another instruction set sums may have another order.
 *
 * Errors: a status, and attune_last_message() has one sentence. If a call fails, it has written nothing, except with
 * ATTUNE_CANCELLED. Sizes and strides are in elements. */
#ifndef ATTUNE_INDEX_H
#define ATTUNE_INDEX_H

#include "attention.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct attune_index_desc {
    size_t struct_size;
    int64_t num_heads;    /* of q and w, at most 256 */
    int64_t head_dim;     /* of q and k, at most 512 */
    int64_t num_ids;      /* the k of the top-k, at most 65536 */
    attune_dtype dtype;   /* of q and k: f32 (default), bf16, f16, or i8 or f8 (E4M3) with scales */
    attune_dtype w_dtype; /* f32 (default), bf16 or f16 */
    int is_causal;        /* 1: no key after a query is visible. The last query of a sequence is at its last key */
    int64_t page_size;    /* keys of a page; 0: keys are contiguous */
    int has_scores;       /* 1: scores are written, too */
} attune_index_desc;

#ifdef __cplusplus
#define ATTUNE_INDEX_DESC_INIT attune_initial(attune_index_desc_init)
#else
#define ATTUNE_INDEX_DESC_INIT {.struct_size = sizeof(attune_index_desc)}
#endif

/* Writes the values of ATTUNE_INDEX_DESC_INIT, for callers that have no macros. */
ATTUNE_API attune_status attune_index_desc_init(attune_index_desc *desc, size_t struct_size);

typedef struct attune_index attune_index;

/* Makes an index, which copies the description. `context` as in attune_attention_create. Compiles nothing. A failure
 * sets *index to NULL. */
ATTUNE_CHECKED attune_status attune_index_create(attune_context *context, const attune_index_desc *desc,
                                                 attune_index **index);

/* Ends it; no step may be running. NULL is fine. */
ATTUNE_API void attune_index_destroy(attune_index *index);

/* Compiles the kernel now, or loads it from the cache, so that no step waits. */
ATTUNE_CHECKED attune_status attune_index_prepare(attune_index *index);

/* The comment of a view has its dims, then the members of attune_view that are its strides. If these are all 0, the
 * tensor is contiguous in the order of its dims. Elements of a row are contiguous in any case. */
typedef struct attune_index_step {
    size_t struct_size;
    int64_t batch;                  /* sequences */
    int64_t seq_q;                  /* queries of each sequence, without cu_seqlens_q */
    int64_t seq_kv;                 /* keys of each sequence in k, without cu_seqlens_kv and pages */
    const int32_t *cu_seqlens_q;    /* NULL, or [batch + 1]: sequence b has the queries cu_seqlens_q[b] to before
                                     * cu_seqlens_q[b + 1] of q, w, q_scale, ids, lens and scores */
    const int32_t *cu_seqlens_kv;   /* NULL, or [batch + 1]: the same of k and k_scale. Not with pages or kv_lens */
    const int32_t *kv_lens;         /* NULL, or [batch], the keys of each sequence; required with pages */
    const int32_t *block_table;     /* with pages: [batch, max_pages], the pages of each sequence */
    int64_t block_table_stride;     /* elements from one row to the next; 0: max_pages */
    int64_t max_pages, num_pages;   /* columns of block_table; pages of k */
    attune_view q;                  /* [batch, seq_q, num_heads, head_dim], with cu_seqlens_q [queries, num_heads,
                                     * head_dim]: batch, token, head */
    attune_view k;                  /* [batch, seq_kv, head_dim], [keys, head_dim], or [num_pages, page_size,
                                     * head_dim]: batch, token */
    attune_view w;                  /* [batch, seq_q, num_heads], or [queries, num_heads]: batch, token */
    attune_view q_scale;            /* with i8 and f8: f32, the dims of w; 0 or above */
    attune_view k_scale;            /* with i8 and f8: f32, the dims of k without head_dim; 0 or above */
    int32_t *ids;                   /* output, contiguous: [batch, seq_q, num_ids], or [queries, num_ids]. Unused places
                                     * are -1 */
    int32_t *lens;                  /* output, or NULL: [batch, seq_q], or [queries], the number of ids */
    float *scores;                  /* output, with has_scores: the dims of ids. Unused places are -infinity */
    uint32_t max_threads;           /* 0: all of the context's */
    const attune_runner *runner;    /* NULL: the context's threads */
    const int *cancel;              /* NULL, or a flag that another thread sets to end the step */
} attune_index_step;

#ifdef __cplusplus
#define ATTUNE_INDEX_STEP_INIT attune_initial(attune_index_step_init)
#else
#define ATTUNE_INDEX_STEP_INIT {.struct_size = sizeof(attune_index_step)}
#endif

ATTUNE_API attune_status attune_index_step_init(attune_index_step *step, size_t struct_size);

/* Writes ids, lens and scores. Pointers, lengths, pages and strides are checked before anything is written. Any number
 * of threads may call it at once. */
ATTUNE_CHECKED attune_status attune_index_run(attune_index *index, const attune_index_step *step);

/* The same by the interpreter of the kernel's loop IR: slow, bit for bit the same result. For tests. */
ATTUNE_CHECKED attune_status attune_index_run_interpreted(attune_index *index, const attune_index_step *step);

/* Equals attune_index_run of index_step, then attune_attention_run of `step` with two more bindings: kv_ids, the ids of
 * the index, and kv_id_lens, its lens. ids and lens of index_step may be NULL if you do not need them. The attention
 * has `extra` kv_ids=query,has_kv_id_lens=1, and the layout thd if index_step has cu_seqlens_q. If the attention
 * refuses its step, ids, lens and scores have been written. */
ATTUNE_CHECKED attune_status attune_index_attend(attune_index *index, const attune_index_step *index_step,
                                                 attune_attention *attention, const attune_step *step);

/* The same with a planned step: equals attune_index_run of index_step, then attune_step_plan_run of `step` with these
 * two bindings. The plan is made once for all layers, without lists. */
ATTUNE_CHECKED attune_status attune_index_attend_plan(attune_index *index, const attune_index_step *index_step,
                                                      const attune_step_plan *plan, const attune_step *step);

#ifdef __cplusplus
}
#endif

#endif
