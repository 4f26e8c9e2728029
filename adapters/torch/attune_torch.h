/* The functions of libattune-torch.so, which attune.torch calls by ctypes. PyTorch must be loaded first. */
#ifndef ATTUNE_TORCH_H
#define ATTUNE_TORCH_H

#include <stddef.h>

#define ATTUNE_TORCH_API __attribute__((visibility("default")))

/* Finds PyTorch and defines attune's operators, once. Returns NULL, or a sentence after a failure. */
ATTUNE_TORCH_API const char *attune_torch_open(void);

/* Which operators of PyTorch are overridden: 1 scaled_dot_product_attention, 2 blocks; 4: kernels are reproducible. 8:
 * each call of a block compares all values of its weights with those that were packed, and not only their versions and
 * some of their values. Changes nothing after a failure. Returns NULL, or a sentence. Call attune_torch_open first. */
ATTUNE_TORCH_API const char *attune_torch_set_enabled(unsigned bits);

/* The kernels that PyTorch has, as the bits 1 and 2. The first call that enables one registers it, permanently, and
 * PyTorch warns. No thread may be running the operator then, as PyTorch frees its previous kernel. */
ATTUNE_TORCH_API unsigned attune_torch_registered(void);

/* Counters as lines "name count". Returns the length without the NUL, as snprintf does. */
ATTUNE_TORCH_API size_t attune_torch_stats(char *text, size_t capacity);

/* The adapter's attune_context, which is never destroyed; NULL if it could not be created. */
ATTUNE_TORCH_API void *attune_torch_context(void);

/* Writes an attune_runner (attune/context.h) of PyTorch's threads, as many as torch.get_num_threads() says for the
 * calling thread now. It stays valid until the process ends. Call attune_torch_open first. */
ATTUNE_TORCH_API void attune_torch_runner(void *runner);

/* Packed weights: drops those of a tensor, given as Tensor._cdata, or all (NULL). */
ATTUNE_TORCH_API void attune_torch_forget(const void *tensor);

/* Drops those of a tensor whose first element was at `data`, in memory that has been freed. */
ATTUNE_TORCH_API void attune_torch_forget_memory(const void *data);

/* Bytes of packed weights now, and their limit, 1 GiB by default. Setting it returns the previous limit. */
ATTUNE_TORCH_API size_t attune_torch_packed_bytes(void);
ATTUNE_TORCH_API size_t attune_torch_limit_packed(size_t bytes);

#endif
