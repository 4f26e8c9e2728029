/* XLA's threads as attune's runner. */
#ifndef ATTUNE_JAX_RUNNER_H
#define ATTUNE_JAX_RUNNER_H

#include "attune.h"
#include "xla_ffi.h"

/* A runner for the calls of one frame, to which it refers. Without a thread pool it has one worker, the caller. */
attune_runner xla_runner(const xla_call_frame *frame);

#endif
