/* Multi-head latent attention (MLA) as a block: projections, a cache of latents, attention and the output projection of
 * DeepSeek-V2 and V3, Kimi and their like (DeepSeek-AI, "DeepSeek-V2", 2024).
 *
 *     attune_mla_desc desc = ATTUNE_MLA_DESC_INIT;
 *     desc.embed_dim = 7168, desc.num_heads = 128, desc.q_lora_rank = 1536, desc.kv_lora_rank = 512;
 *     desc.qk_nope_head_dim = 128, desc.qk_rope_head_dim = 64, desc.v_head_dim = 128;
 *     desc.dtype = ATTUNE_BF16, desc.rope_interleaved = 1, desc.page_size = 64;
 *     attune_mla_weights weights = ATTUNE_MLA_WEIGHTS_INIT;
 *     weights.q_a_proj = …, weights.q_a_layernorm = …, …           // one layer's; copied
 *     attune_mla *mla;
 *     attune_mla_create(NULL, &desc, &weights, &mla);
 *
 *     attune_mla_step step = ATTUNE_MLA_STEP_INIT;                 // every step, for every layer
 *     step.batch = sequences, step.cu_seqlens = starts, step.kv_lens = lens;
 *     step.x.data = x, step.out.data = out, step.cos = cos, step.sin = sin, step.num_positions = positions;
 *     step.cache.data = pages, step.num_pages = num_pages, step.block_table = table, step.max_pages = columns;
 *     attune_mla_run(mla, &step);
 *
 * A token x becomes, with N for the RMS norm and R for the rotary embedding,
 *
 *     [q_nope, q_rope] = W_QB N(W_QA x)    for each head; without q_lora_rank W_Q x
 *     [c, k_rope]      = W_KVA x           one for all heads; the cache gets the row [c', k'] = [N(c), R(k_rope)]
 *     k = [W_UK c', k'], v = W_UV c'       for each head and each row of the cache; W_UK and W_UV are W_KVB
 *     out = W_O (attention of [q_nope, R(q_rope)] to the tokens up to this one, softmax_scale q k)
 *
 * Attention has two forms, and each sequence of a step is computed in the one with fewer multiply-adds:
 *
 *     absorbed     q' = q_nope W_UK attends to the rows of the cache themselves, and its output is multiplied by W_UV
 *     unabsorbed   k and v are computed from the cache for all tokens of the sequence
 *
 * With T new tokens of S in all, P = T S - T (T - 1) / 2 pairs of query and key, r = kv_lora_rank, n, e and v the dims
 * qk_nope_head_dim, qk_rope_head_dim and v_head_dim, a head needs
 *
 *     absorbed     T r (n + v) + P (2 r + e)
 *     unabsorbed   S r (n + v) + P (n + e + v)
 *
 * Errors: a status, and attune_last_message() has one sentence. If a call fails, it has written nothing, except with
 * ATTUNE_CANCELLED, or if a kernel could not be compiled. Sizes and strides are in elements. */
#ifndef ATTUNE_MLA_H
#define ATTUNE_MLA_H

#include "attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The form in which sequences are computed: the one with fewer multiply-adds for each, or always the same. */
typedef enum attune_mla_form {
    ATTUNE_MLA_BY_COST = 0,
    ATTUNE_MLA_ABSORBED,
    ATTUNE_MLA_UNABSORBED,
    ATTUNE_MLA_FORM_COUNT
} attune_mla_form;

typedef struct attune_mla_desc {
    size_t struct_size;
    int64_t embed_dim;        /* of x */
    int64_t out_dim;          /* of out; 0: embed_dim */
    int64_t num_heads;
    int64_t q_lora_rank;      /* 0: q_proj projects queries directly, without a low rank */
    int64_t kv_lora_rank;
    int64_t qk_nope_head_dim; /* columns of a head's q and k that are not rotated */
    int64_t qk_rope_head_dim; /* columns after them that are: an even number */
    int64_t v_head_dim;       /* 0: qk_nope_head_dim */
    attune_dtype dtype;       /* of x, weights, cache and out: f32 (default), bf16 or f16. Sums are f32 */
    int64_t page_size;        /* rows of a page of the cache: a multiple of 16; 0: the cache is contiguous */
    int rope_interleaved;     /* 1: columns 2 i and 2 i + 1 are a pair, as in DeepSeek's weights; 0: i and i + half */
    double softmax_scale;     /* ATTUNE_DEFAULT_SCALE: 1 / sqrt(qk_nope_head_dim + qk_rope_head_dim). A model with YaRN
                               * multiplies it by mscale^2 */
    double norm_eps;          /* of both RMS norms; 0: 1e-6 */
    attune_mla_form form;
    int reproducible;         /* 1: a row has the same bits in every batch and chunk. Not with ATTUNE_MLA_BY_COST */
    int has_ids;              /* 1: steps may list the keys of their tokens (DeepSeek-V3.2). Not with
                               * ATTUNE_MLA_UNABSORBED */
    uint32_t reserved;        /* 0 */
} attune_mla_desc;

#ifdef __cplusplus
#define ATTUNE_MLA_DESC_INIT attune_initial(attune_mla_desc_init)
#else
#define ATTUNE_MLA_DESC_INIT {.struct_size = sizeof(attune_mla_desc), .softmax_scale = __builtin_nan("")}
#endif

/* Writes the values of ATTUNE_MLA_DESC_INIT, for callers that have no macros. */
ATTUNE_API attune_status attune_mla_desc_init(attune_mla_desc *desc, size_t struct_size);

/* The weights of a layer, with the names that models have: contiguous matrices [outputs, inputs] and vectors of the
 * description's dtype. nope and rope are qk_nope_head_dim and qk_rope_head_dim. Biases may be NULL. */
typedef struct attune_mla_weights {
    size_t struct_size;
    const void *q_proj;        /* without q_lora_rank: [num_heads * (nope + rope), embed_dim] */
    const void *q_a_proj;      /* with it: [q_lora_rank, embed_dim] */
    const void *q_a_bias;      /* [q_lora_rank] */
    const void *q_a_layernorm; /* [q_lora_rank] */
    const void *q_b_proj;      /* [num_heads * (nope + rope), q_lora_rank] */
    const void *kv_a_proj;     /* kv_a_proj_with_mqa: [kv_lora_rank + rope, embed_dim] */
    const void *kv_a_bias;     /* [kv_lora_rank + rope] */
    const void *kv_a_layernorm;/* [kv_lora_rank] */
    const void *kv_b_proj;     /* [num_heads * (nope + v_head_dim), kv_lora_rank]: for each head W_UK, then W_UV */
    const void *o_proj;        /* [out_dim, num_heads * v_head_dim] */
    const void *o_bias;        /* [out_dim] */
} attune_mla_weights;

#define ATTUNE_MLA_WEIGHTS_INIT ATTUNE_RESULT_INIT(attune_mla_weights)

typedef struct attune_mla attune_mla;

/* Makes a block, which packs a copy of the weights. `context` as in attune_attention_create. Compiles nothing. A
 * failure sets *mla to NULL. */
ATTUNE_CHECKED attune_status attune_mla_create(attune_context *context, const attune_mla_desc *desc,
                                           const attune_mla_weights *weights, attune_mla **mla);

/* Ends it; no step may be running. NULL is fine. */
ATTUNE_API void attune_mla_destroy(attune_mla *mla);

/* Compiles the kernels for one token and for prompts now, or loads them from the cache. */
ATTUNE_CHECKED attune_status attune_mla_prepare(attune_mla *mla);

typedef struct attune_mla_step {
    size_t struct_size;
    int64_t batch;               /* sequences */
    int64_t seq;                 /* new tokens of each sequence, without cu_seqlens */
    const int32_t *cu_seqlens;   /* NULL, or [batch + 1], with pages only: sequence b has the tokens cu_seqlens[b] to
                                  * before cu_seqlens[b + 1]. A sequence may have no tokens */
    const int32_t *kv_lens;      /* [batch], the tokens of each sequence, new ones included. Without pages it may be
                                  * NULL, which means cache_rows for all */
    attune_view x;               /* [tokens, embed_dim], all sequences one after the other; `token` is the stride, 0:
                                  * contiguous */
    attune_mutable_view out;     /* [tokens, out_dim]; strides as of x */
    attune_mutable_view cache;   /* [num_pages, page_size, kv_lora_rank + rope], or [batch, cache_rows, ..]; `batch` and
                                  * `token` are the strides, both 0: contiguous. New tokens' rows are written */
    int64_t num_pages;
    const int32_t *block_table;  /* [batch, max_pages]: the pages of each sequence */
    int64_t max_pages;
    int64_t block_table_stride;  /* 0: max_pages */
    int64_t cache_rows;          /* without pages: rows of each sequence in the cache */
    const float *cos, *sin;      /* [num_positions, rope / 2] */
    int64_t num_positions;
    const int32_t *positions;    /* [tokens], each new token's row of cos and sin; NULL: its place in its sequence */
    uint32_t max_threads;        /* 0: all of the context's */
    const attune_runner *runner; /* NULL: the context's threads */
    const int *cancel;           /* NULL, or a flag that another thread sets to end the step */
    const int32_t *kv_ids;       /* NULL: a token attends to itself and all before it. With has_ids: contiguous [tokens,
                                  * num_ids], the keys to which each token attends, as numbers of tokens in its
                                  * sequence, new ones included; with reproducible in ascending order. The step is
                                  * computed in the absorbed form */
    int64_t num_ids;             /* at least 1 */
    const int32_t *kv_id_lens;   /* [tokens], the length of each list; NULL: num_ids. A token with an empty list gets
                                  * attention 0 in every head (out is then o_bias) */
} attune_mla_step;

#ifdef __cplusplus
#define ATTUNE_MLA_STEP_INIT attune_initial(attune_mla_step_init)
#else
#define ATTUNE_MLA_STEP_INIT {.struct_size = sizeof(attune_mla_step)}
#endif

ATTUNE_API attune_status attune_mla_step_init(attune_mla_step *step, size_t struct_size);

/* Computes out and appends to the cache. Pointers, lengths, tables and strides are checked before anything is written.
 * Any number of threads may call it at once, if their steps have no sequence in common. */
ATTUNE_CHECKED attune_status attune_mla_run(attune_mla *mla, const attune_mla_step *step);

/* The same, with the interpreter of loop IR for the kernels around attention: slow, with the same bits. Attention runs
 * as in attune_mla_run. For tests. */
ATTUNE_CHECKED attune_status attune_mla_run_interpreted(attune_mla *mla, const attune_mla_step *step);

#ifdef __cplusplus
}
#endif

#endif
