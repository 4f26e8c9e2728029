/* ONNX Runtime's threads as attune's runner. */
#ifndef ATTUNE_ORT_RUNNER_H
#define ATTUNE_ORT_RUNNER_H

#include "attune.h"
#include "ort_abi.h"

/* Where a call runs: valid during ONNX Runtime's call of a kernel. */
typedef struct ort_place {
    const ort_api *api;
    const ort_kernel_context *context;
} ort_place;

/* A runner on the threads of the call's session. `place` must stay valid until the call is done. */
attune_runner ort_runner(const ort_place *place);

#endif
