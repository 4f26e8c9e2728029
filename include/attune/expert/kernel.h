/* Expert tier: most programs need attune/attention.h alone.
 *
 * Kernels: compiling a problem, the arguments of a call and its tensors, running it; block masks, which calls share. */
#ifndef ATTUNE_KERNEL_H
#define ATTUNE_KERNEL_H

#include "../context.h"
#include "problem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Kernels ---- */

typedef struct attune_kernel attune_kernel;

/* Gives a kernel for the problem: from memory, else from disk, else newly compiled. `schedule` is
 * text (attune/expert/schedule.h) and part of the cache key. NULL: attune takes the kernel that the cache holds, else
 * the tuner's schedule, else its own choice.
 *
 * Problems share a kernel if they differ only in batch, in the number of heads at equal group size, or in strides other
 * than the innermost: those are arguments of the kernel. A block's number of heads is compiled in, and so is the batch
 * of a block of few tokens (batch * seq_q at most 32), whose products are tiled for it.
 *
 * Threads that ask for the same new kernel at once compile it once. The caller owns one reference and gives it back
 * with attune_kernel_release. The calling thread needs 64 KiB of stack, however deeply functions are nested; so it does
 * for reading, checking and printing problems, for attune_emit, attune_run and attune_run_interpreted. pthread_cancel
 * takes effect after the compile. */
ATTUNE_CHECKED attune_status attune_compile(attune_context *context, const attune_problem *problem,
                                            const char *schedule, attune_kernel **kernel);

/* Gives a reference back; no call under this reference may be running. NULL is fine. Thread-safe. */
ATTUNE_API void attune_kernel_release(attune_kernel *kernel);

/* Which keys mask_mod shows to which queries, tile by tile; see attune_block_mask_create. */
typedef struct attune_block_mask attune_block_mask;

/* A size in attune_arguments, from seq_q to rotary_positions, that is not set. 0 is a size: empty. */
#define ATTUNE_NOT_SET (-1)

/* Tensors and run-time sizes of one call. Fill it with attune_arguments_init. Then set the tensors' data, and the sizes
 * that the problem leaves open: a call names and refuses such a size while it is ATTUNE_NOT_SET. A size that the
 * problem fixes must have that value or be ATTUNE_NOT_SET. Fields that the problem does not use are ignored. */
typedef struct attune_arguments {
    size_t struct_size;
    /* Strides are in the order of the tensor's dims in attune/expert/problem.h; the innermost is as compiled. */
    attune_view q;
    attune_mutable_view k, v;    /* written to only if the problem has seq_new */
    attune_mutable_view k_scale, v_scale; /* f32; written to only if the problem has seq_new and scales of tokens or
                                  * groups; minima come after them */
    attune_view k_new, v_new;
    attune_mutable_view out;
    attune_mutable_view lse;     /* read by op = weights */
    attune_mutable_view weights;
    attune_view attn_mask, attn_bias;
    attune_view x, x_kv, x_v;    /* the block: is_cross, v_embed_dim */
    attune_view tensors[ATTUNE_MAX_USER_TENSORS]; /* those that functions read, in the order of attune_problem.tensors;
                                  * the innermost stride is 1 */
    /* Contiguous tensors. */
    const int32_t *kv_lens, *causal_offsets, *cu_seqlens_q, *cu_seqlens_kv, *block_table;
    const float *alibi_slopes, *sinks;
    const void *cos, *sin;       /* contiguous for each sequence; see rotary_batch_stride */
    const int32_t *position_ids, *row_ids, *kv_ids, *kv_id_lens;
    const void *q_norm, *k_norm; /* with qk_norm_eps: the factors themselves; where a model stores w and means 1 + w, as
                                  * Gemma does, add 1 */
    const void *parts, *parts_lse;
    const void *packed_weights, *keys_low, *values_low;
    const attune_block_mask *block_mask; /* NULL, or what attune_block_mask_create made of mask_mod */
    void *workspace;             /* 64-byte aligned, or NULL: attune allocates it for the call */
    size_t workspace_bytes;
    /* Sizes and numbers, to the end. */
    int64_t batch, num_heads, num_kv_heads; /* num_heads / num_kv_heads must be as compiled; in a block, both */
    int64_t seq_q, seq_kv;       /* if dynamic: at most their bounds. If cu_seqlens, or kv_lens with pages, give the
                                  * lengths: an upper bound of them; ATTUNE_NOT_SET is the longest, provided no mask
                                  * and no weights have such a dim. Keys projected from x: seq_kv need not be set */
    int64_t seq_new, num_rows;   /* if dynamic. Ragged, or keys of x: as many new keys as there are queries */
    int64_t total_q, total_kv;   /* ragged: tokens in q and in k, v; at least the last of cu_seqlens */
    int64_t num_pages, max_pages;/* paged: pages in k and v, columns of block_table; see block_table_stride */
    int64_t mask_seq_kv, bias_seq_kv; /* columns of attn_mask, attn_bias. With short_masks and ATTUNE_DYNAMIC as last
                                       * dim: from 0 to seq_kv; otherwise those of the problem. ATTUNE_NOT_SET:
                                       * seq_kv */
    int64_t rotary_positions;    /* rows of cos and sin */
    int64_t rotary_batch_stride; /* elements from one sequence's cos and sin to the next; 0: the same for all */
    int64_t block_table_stride;  /* elements from one row of block_table to the next, which may be a view of a wider
                                  * table: at least max_pages. 0: max_pages */
    int64_t num_ids;             /* columns of kv_ids, if dynamic: at most 2^20 */
    double softmax_scale;        /* with has_softmax_scale: within +-1e38; ATTUNE_DEFAULT_SCALE, as initialised, is
                                  * 1 / sqrt(head_dim) */
} attune_arguments;

/* Sets sizes and strides to those of `problem`, and pointers to NULL. Sizes that the problem leaves open or does not
 * have become ATTUNE_NOT_SET. Writes struct_size bytes. */
ATTUNE_API attune_status attune_arguments_init_sized(attune_arguments *arguments, size_t struct_size,
                                                     const attune_problem *problem);

/* The same for the struct of this header. */
static inline attune_status attune_arguments_init(attune_arguments *arguments, const attune_problem *problem) {
    return attune_arguments_init_sized(arguments, sizeof *arguments, problem);
}

/* One tensor of a call, which attune_run reads or writes. */
typedef struct attune_tensor {
    const char *name;            /* of its field in attune_arguments; static storage. Of a user's tensor: its name, in
                                  * the caller's problem */
    attune_dtype dtype;
    int rank;                    /* at most 4 */
    int64_t dims[4], strides[4]; /* as used: contiguous strides filled in, 0 where broadcast */
    int is_input, is_output;
    size_t pointer_offset;       /* of the pointer in attune_arguments, in bytes */
} attune_tensor;

/* Lists the tensors of a problem in the order of the kernel's parameters. Writes at most `capacity` of them, and to
 * *count their number, which may be larger. tensors may be NULL if capacity is 0. The sizes are those of `arguments`;
 * its pointers are not read. With arguments NULL, dims that the problem leaves open are -1, and the strides of such a
 * tensor are the problem's, zeros meaning contiguous at run time. A failure sets *count to 0. The layout of
 * attune_tensor does not change within a major version: it comes in arrays and so has no struct_size. */
ATTUNE_CHECKED attune_status attune_tensors(const attune_problem *problem, const attune_arguments *arguments,
                                            attune_tensor *tensors, size_t capacity, size_t *count);

/* Makes a DLPack tensor the argument `name` (a name that attune_tensors gives). Sets its pointer, its strides, and
 * those of its dims that are sizes of the call and ATTUNE_NOT_SET so far. Copies and keeps nothing: the memory must
 * stay until the call is done. The caller knows whether it may be written to.
 *
 * The tensor must be in CPU memory. Its dtype must be the argument's (for bool also unsigned bytes). Its dims must be
 * those of attune_tensors, in number and order: permute a tensor [batch, seq, heads, dim] first, and view one of three
 * dimensions as four. A dim that differs from the compiled or set size is refused with both numbers. Bind the used part
 * of a cache that has room for more keys.
 *
 * batch, num_heads and num_kv_heads are never filled in, because attune_arguments_init has set them. If the call has
 * others, set them first. Arguments without strides in attune_arguments (cu_seqlens, kv_lens, block_table …) must be
 * contiguous. cos and sin are [batch or 1, positions, half], contiguous for each sequence. A tensor that repeats one
 * element along all dims is refused, because strides of 0 mean contiguous. A failure leaves *arguments as it was. */
ATTUNE_CHECKED attune_status attune_bind_dlpack(attune_arguments *arguments, const attune_kernel *kernel,
                                                const char *name, const attune_dltensor *tensor);

/* Bytes of workspace that attune_run needs for these arguments; their pointers are not read. */
ATTUNE_CHECKED attune_status attune_workspace_size(const attune_context *context, const attune_kernel *kernel,
                                                   const attune_arguments *arguments, size_t *bytes);

/* Computes the outputs. Inputs are never written. Outputs must not overlap inputs or each other. The check takes the
 * whole range from a tensor's first to its last element, except that tensors may interleave as columns of one packed
 * buffer (for example rows of q, k, v and out one after the other). The bits of the result do not depend on the number
 * of threads. Thread-safe: a kernel may run in many threads at once, each with its own workspace. A call of a few
 * microseconds stays on the caller's thread. */
ATTUNE_CHECKED attune_status attune_run(attune_context *context, const attune_kernel *kernel,
                                        const attune_arguments *arguments);

/* ---- Block masks ---- */

/* With many queries, a call with a mask_mod first makes a table: which keys any row of a tile attends to, and which all
 * rows do. This makes the table once, for all calls that have it as arguments.block_mask, as long as mask_mod gives the
 * same. Outputs have the same bits with and without it.
 *
 * `arguments` are those of such a call. They are checked as attune_run does; only the tensors that mask_mod reads, and
 * lengths, are read, and nothing is written. The table is [sequences, KV heads, tiles of rows, tiles of keys] of 20
 * bytes each, with one sequence and one head unless mask_mod depends on them; tiles are those of the kernel's schedule.
 * A kernel that needs no table (few queries or keys, a mask_mod that is causality or a window, the interpreter) gives a
 * mask without one, which is fine as well.
 *
 * A call refuses a mask that was made for another mask_mod, other lengths, another batch or number of heads that
 * mask_mod depends on, or by a kernel with another schedule. It cannot know whether the tensors of mask_mod still hold
 * what they did: make a new mask if they changed, or if lengths in cu_seqlens and kv_lens did and mask_mod has b, seq_q
 * or seq_kv. A plan ignores it, as it may change its kernels.
 *
 * The mask is the caller's: it must outlive the calls that have it. attune_block_mask_destroy may come after the end of
 * kernel and context, as long as the context's allocator works. Any number of threads may run calls with it at once. A
 * failure sets *mask to NULL. */
ATTUNE_CHECKED attune_status attune_block_mask_create(attune_context *context, const attune_kernel *kernel,
                                                      const attune_arguments *arguments, attune_block_mask **mask);

/* NULL is fine. */
ATTUNE_API void attune_block_mask_destroy(attune_block_mask *mask);

#ifdef __cplusplus
}
#endif

#endif
