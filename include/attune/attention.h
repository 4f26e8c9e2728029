/* Attention for engines: describe it once, then run a step on the tensors of each call. Start here.
 *
 *     attune_attention_desc desc = ATTUNE_ATTENTION_DESC_INIT;
 *     desc.num_heads = 32, desc.num_kv_heads = 8, desc.head_dim = 128;
 *     desc.dtype = ATTUNE_BF16, desc.is_causal = 1;
 *     desc.kv = ATTUNE_KV_PAGED, desc.page_size = 16, desc.appends = 1;
 *     attune_attention *attention;
 *     attune_attention_create(NULL, &desc, &attention);
 *
 *     attune_step step = ATTUNE_STEP_INIT;                        // every step, for every layer
 *     step.batch = sequences;
 *     step.q.data = q, step.k.data = k, step.v.data = v, step.out.data = out;
 *     step.k_cache.data = k_pages, step.v_cache.data = v_pages, step.num_pages = num_pages;
 *     step.cu_seqlens_q = starts, step.kv_lens = lens;
 *     step.block_table = table, step.max_pages = columns;
 *     attune_attention_run(attention, &step);
 *
 * An attention has a kernel for sequences that decode, and one for prompts. It compiles them before the first step that
 * needs them, or loads them from the cache. docs/plans.md says how kernels are chosen, attune_attention_get_info what
 * ran. `extra` adds fields of problems as text (attune/expert/problem.h).
 *
 * Errors: a status, and attune_last_message() has one sentence. If a call fails, it has written nothing, except with
 * ATTUNE_CANCELLED. Sizes and strides are in elements. Caches of i4 and caches with inline scales have strides in
 * bytes; attune_cache_size has them. */
#ifndef ATTUNE_ATTENTION_H
#define ATTUNE_ATTENTION_H

#include "context.h"
#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The description ---- */

/* The order of a tensor's dims in memory, if its view has no strides. */
typedef enum attune_layout {
    ATTUNE_THD = 0, /* q [tokens, heads, dim]: the sequences of a batch one after the other, as cu_seqlens_q says.
                     * Caches: [pages, page_size, kv_heads, dim] */
    ATTUNE_BSHD,    /* q [batch, seq, heads, dim]; caches [batch or pages, seq or page_size, kv_heads, dim] */
    ATTUNE_BHSD     /* q [batch, heads, seq, dim]; caches [batch or pages, kv_heads, seq or page_size, dim] */
} attune_layout;

/* Where keys and values are. */
typedef enum attune_kv {
    ATTUNE_KV_TENSORS = 0, /* k and v of the step have all keys; with thd cu_seqlens_kv divides them */
    ATTUNE_KV_CACHE,       /* k_cache and v_cache have room for seq_kv keys of each sequence; the first kv_lens count.
                            * Not with thd: use a paged cache with one page for each sequence */
    ATTUNE_KV_PAGED        /* k_cache and v_cache in pages, which block_table lists; kv_lens counts keys */
} attune_kv;

typedef struct attune_attention_desc {
    size_t struct_size;
    int64_t num_heads;
    int64_t num_kv_heads;   /* divides num_heads; 0: num_heads */
    int64_t head_dim;
    int64_t head_dim_v;     /* 0: head_dim */
    attune_dtype dtype;     /* of q, k, v and out: f32 (default), f16, bf16 or f64 */
    attune_layout layout;
    int is_causal;          /* 1: a query attends to no key after it. The last query of a sequence is at its last key */
    int64_t window_left;    /* keys before the query that it attends to; -1: all */
    int64_t window_right;   /* keys after the query that it attends to; -1: all */
    double softmax_scale;   /* ATTUNE_DEFAULT_SCALE: 1 / sqrt(head_dim) */
    attune_kv kv;
    int64_t page_size;      /* keys of a page, with ATTUNE_KV_PAGED */
    attune_dtype kv_dtype;  /* type of the caches; with ATTUNE_KV_TENSORS, of k and v. Default: dtype. May also be
                             * i8, f8 or i4, which are quantised */
    attune_scales kv_scales;/* of quantised keys and values; see attune/types.h */
    int appends;            /* 1: a step writes k and v behind each sequence's cached keys, and attends to them, too.
                             * kv_lens includes them */
    int has_lse;            /* 1: a step also writes lse, the logarithm of the sum of exponentials */
    int reproducible;       /* 1: a row has the same bits in every batch, chunk and kind of step */
    const char *extra;      /* NULL, or more fields of the problem: "logits_soft_cap=30,has_sinks=1". They override the
                             * members above. Not allowed: op, batch, lengths, is_ragged, has_kv_lens, page_size,
                             * embed_dim and softmax_scale=dynamic. Its tensors are the step's bindings */
    int64_t deadline_us;    /* the most microseconds that a step waits for a compile. After them a slower fallback
                             * computes until the kernel is there. 0: no step waits. -1: ATTUNE_DEADLINE_US, else a
                             * step waits as long as the compile takes */
} attune_attention_desc;

#ifdef __cplusplus
#define ATTUNE_ATTENTION_DESC_INIT attune_initial(attune_attention_desc_init)
#else
#define ATTUNE_ATTENTION_DESC_INIT                                                                       \
    { .struct_size = sizeof(attune_attention_desc), .window_left = -1, .window_right = -1,               \
      .softmax_scale = __builtin_nan(""), .deadline_us = -1 }
#endif

/* Writes the values of ATTUNE_ATTENTION_DESC_INIT, for callers that have no macros. */
ATTUNE_API attune_status attune_attention_desc_init(attune_attention_desc *desc, size_t struct_size);

typedef struct attune_attention attune_attention;

/* Makes an attention, which copies what it needs of `desc`. `context` owns threads and caches and must outlive it.
 * NULL: the context of attune_shared_context. Compiles nothing; with a deadline it looks for a kernel that exists
 * already. A failure sets *attention to NULL. */
ATTUNE_CHECKED attune_status attune_attention_create(attune_context *context, const attune_attention_desc *desc,
                                                     attune_attention **attention);

/* Destroys an attention. No step may be running. NULL is fine. */
ATTUNE_API void attune_attention_destroy(attune_attention *attention);

/* Compiles the kernels for decoding and for prompts now, or loads them from the cache, so that no step waits. */
ATTUNE_CHECKED attune_status attune_attention_prepare(attune_attention *attention);

/* The problem's canonical text, which `attune explain` and the other headers take. Like snprintf it returns the length,
 * and writes at most `capacity` bytes with the NUL. */
ATTUNE_API size_t attune_attention_problem(const attune_attention *attention, char *text, size_t capacity);

/* ---- A step ---- */

/* A tensor of `extra`, by its name in attune/expert/problem.h, which has the dims: attn_bias, sinks, cos … */
typedef struct attune_binding {
    const char *name;
    const attune_dltensor *tensor;
} attune_binding;

/* Tensors are views (attune/types.h). Elements of a row are contiguous, so `column` is 0 or 1. If the other three
 * strides are 0, too, a tensor is contiguous in the order of the description's layout. */
typedef struct attune_step {
    size_t struct_size;
    int64_t batch;                  /* sequences */
    int64_t seq_q;                  /* bshd, bhsd: queries of each sequence. thd: not read */
    int64_t seq_kv;                 /* ATTUNE_KV_TENSORS: keys of each sequence; ATTUNE_KV_CACHE: those that the cache
                                     * has room for. thd, ATTUNE_KV_PAGED: not read */
    attune_view q;
    attune_view k, v;               /* ATTUNE_KV_TENSORS: the keys; appends: those to append, as many as queries */
    attune_mutable_view k_cache, v_cache;   /* written to only if the attention appends */
    attune_mutable_view k_scale, v_scale;   /* f32, scales of quantised keys and values. In every layout: of heads
                                             * [kv_heads], of tokens [batch or pages, kv_heads, keys], of groups one
                                             * dim more */
    attune_mutable_view out;        /* [.., head_dim_v] */
    attune_mutable_view lse;        /* has_lse: f32 [batch, heads, seq_q], with thd [heads, tokens] */
    const int32_t *cu_seqlens_q;    /* thd: [batch + 1]; sequence b has the queries cu_seqlens_q[b] to before
                                     * cu_seqlens_q[b + 1]. Rows of no sequence are not written */
    const int32_t *cu_seqlens_kv;   /* thd with ATTUNE_KV_TENSORS: the same of k and v; NULL: cu_seqlens_q */
    const int32_t *kv_lens;         /* caches: [batch], the keys of each sequence, appended ones included */
    const int32_t *block_table;     /* ATTUNE_KV_PAGED: [batch, max_pages], the pages of each sequence. A page
                                     * to which a sequence appends must not be used by another; only the debug mode
                                     * (attune/context.h) checks that */
    int64_t block_table_stride;     /* elements from one row to the next; 0: max_pages */
    int64_t max_pages, num_pages;   /* columns of block_table; pages of the caches */
    const attune_binding *bindings; /* the tensors of `extra` */
    size_t num_bindings;
    uint32_t max_threads;           /* 0: all of the context's */
    const attune_runner *runner;    /* NULL: the context's threads */
    const int *cancel;              /* NULL, or a flag that another thread sets to end the step */
    void *workspace;                /* 64-byte aligned; NULL: allocated for the step */
    size_t workspace_bytes;
} attune_step;

#ifdef __cplusplus
#define ATTUNE_STEP_INIT attune_initial(attune_step_init)
#else
#define ATTUNE_STEP_INIT { .struct_size = sizeof(attune_step) }
#endif

ATTUNE_API attune_status attune_step_init(attune_step *step, size_t struct_size);

/* Computes out (and lse), and appends if `appends` is set. Everything is checked before anything is written: null
 * pointers, lengths, pages in the block table, strides that make two elements coincide, tensors that overlap.
 * Thread-safe, also for steps of one attention at once. A row has the same bits for every number of threads. */
ATTUNE_CHECKED attune_status attune_attention_run(attune_attention *attention, const attune_step *step);

/* Bytes of workspace with which attune_attention_run of this step allocates nothing. Tensors and kv_lens may be NULL;
 * cu_seqlens are read. */
ATTUNE_CHECKED attune_status attune_attention_workspace_size(attune_attention *attention, const attune_step *step,
                                                             size_t *bytes);

/* ---- A step planned once ---- */

/* All layers of a model attend to the same lengths in a step. A step plan checks and divides the work of a step once:
 *
 *     attune_step_plan *plan;
 *     attune_step_plan_create(attention, &step, &plan);           // lengths and tables
 *     for (each layer) {
 *         step.q.data = q, …, step.k_cache.data = k_pages[layer], …
 *         attune_step_plan_run(plan, &step);                      // tensors
 *     }
 *     attune_step_plan_destroy(plan);
 */
typedef struct attune_step_plan attune_step_plan;

/* Plans a step. Checks and copies batch, seq_q, seq_kv, cu_seqlens_q, cu_seqlens_kv, kv_lens, block_table with its
 * stride, max_pages and num_pages, so the caller may change them afterwards. Other members are not read, and tensors
 * may be NULL. The attention must outlive the plan. A failure sets *plan to NULL. */
ATTUNE_CHECKED attune_status attune_step_plan_create(attune_attention *attention, const attune_step *step,
                                                     attune_step_plan **plan);

/* Equals attune_attention_run of a step with the plan's lengths and tables, bit for bit. Tensors, their strides,
 * bindings, max_threads, runner, cancel and workspace may change from run to run. Members that the plan fixes are not
 * read; caches must have at least num_pages pages. The first run divides the work, and compiles missing kernels; later
 * runs with the same strides use that. Thread-safe, also for runs of one plan at once. */
ATTUNE_CHECKED attune_status attune_step_plan_run(const attune_step_plan *plan, const attune_step *step);

/* Bytes of workspace with which attune_step_plan_run of this step allocates nothing, if all runs have its strides. Data
 * may be NULL. */
ATTUNE_CHECKED attune_status attune_step_plan_workspace_size(const attune_step_plan *plan, const attune_step *step,
                                                             size_t *bytes);

/* Destroys a plan. No run may be under way. NULL is fine. */
ATTUNE_API void attune_step_plan_destroy(attune_step_plan *plan);

/* ---- What has run ---- */

/* Kernels that the steps of an attention have run, by the code that they have. A step runs one for each kind of
 * sequence: one where all decode, two or more where prompts come as well. Failed steps do not count. */
typedef struct attune_attention_info {
    size_t struct_size;
    uint64_t compiled_calls; /* machine code for this attention, just compiled or from a cache, a pack or a bundle */
    uint64_t tier0_calls;    /* tier 0: machine code that attune brings along */
    uint64_t vm_calls;       /* the virtual machine, several times slower, or the interpreter (allow_interpreter) */
    int is_ready;           /* 1: no step waits for a compile: there is a kernel or a fallback for each kind */
} attune_attention_info;

#define ATTUNE_ATTENTION_INFO_INIT ATTUNE_RESULT_INIT(attune_attention_info)

/* The counts so far, of all threads and step plans. What one step ran is the difference of two calls around it.
 * Thread-safe. */
ATTUNE_CHECKED attune_status attune_attention_get_info(const attune_attention *attention, attune_attention_info *info);

/* ---- Sizes of caches ---- */

/* How large the caches are. */
typedef struct attune_cache_size {
    size_t struct_size;
    size_t k_bytes, v_bytes;             /* of k_cache and v_cache */
    size_t k_scale_bytes, v_scale_bytes; /* of k_scale and v_scale; 0: there is none */
    int64_t k_row, v_row;                /* of one key of one head: elements, or bytes where strides are in bytes */
} attune_cache_size;

#define ATTUNE_CACHE_SIZE_INIT ATTUNE_RESULT_INIT(attune_cache_size)

/* The sizes of contiguous caches of `pages` pages, or of `pages` sequences of `seq_kv` keys. A paged attention does not
 * read seq_kv. ATTUNE_INVALID_ARGUMENT: the attention has no cache. */
ATTUNE_CHECKED attune_status attune_attention_cache_size(const attune_attention *attention, int64_t pages,
                                                         int64_t seq_kv, attune_cache_size *size);

#ifdef __cplusplus
}
#endif

#endif
