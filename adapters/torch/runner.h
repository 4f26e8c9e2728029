/* PyTorch's threads as attune's runner. */
#ifndef ATTUNE_TORCH_RUNNER_H
#define ATTUNE_TORCH_RUNNER_H

#include "attune.h"

/* A runner with as many workers as PyTorch has threads for the calling thread now (torch.get_num_threads()). */
attune_runner torch_runner(void);

#endif
