/* The functions of libattune-torch.so, which attune.torch calls by ctypes. PyTorch must be loaded before. */
#ifndef ATTUNE_TORCH_H
#define ATTUNE_TORCH_H

#include <stddef.h>

#define ATTUNE_TORCH_API __attribute__((visibility("default")))

/* Finds PyTorch and defines attune's operators, once. NULL, or a sentence about the failure. */
ATTUNE_TORCH_API const char *attune_torch_open(void);

/* Which operators of PyTorch are overridden: 1 scaled_dot_product_attention, 2 blocks; 4: kernels are reproducible.
 * Setting what is set already does nothing. NULL, or a sentence. Needs attune_torch_open. */
ATTUNE_TORCH_API const char *attune_torch_set_enabled(unsigned bits);
ATTUNE_TORCH_API unsigned attune_torch_enabled(void);

/* Counters as lines "name count". Returns the length without the NUL, as snprintf does. */
ATTUNE_TORCH_API size_t attune_torch_stats(char *text, size_t capacity);

/* The adapter's attune_context, which lives as long as the process; NULL if it cannot be made. */
ATTUNE_TORCH_API void *attune_torch_context(void);

#endif
