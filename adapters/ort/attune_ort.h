/* The functions of libattune-ort.so. ONNX Runtime calls the first three by name. */
#ifndef ATTUNE_ORT_H
#define ATTUNE_ORT_H

#include "ort_abi.h"

#define ATTUNE_ORT_API __attribute__((visibility("default")))

/* Custom operators: in sessions with these options, attune computes all nodes of its operators. Called by
 * SessionOptions.register_custom_ops_library and OrtApi.RegisterCustomOpsLibrary_V2. */
ATTUNE_ORT_API ort_status *RegisterCustomOps(ort_session_options *options, const ort_base *base);

/* The execution provider: attune computes the nodes that it can, ONNX Runtime the others. Called by
 * register_execution_provider_library, and by OrtApi.RegisterExecutionProviderLibrary. */
ATTUNE_ORT_API ort_status *CreateEpFactories(const char *name, const ort_base *base, const ort_logger *logger,
                                             ort_factory **factories, size_t max_factories, size_t *num_factories);
ATTUNE_ORT_API ort_status *ReleaseEpFactory(ort_factory *factory);

/* Counters as lines "name count". Returns the length without the NUL, as snprintf does. */
ATTUNE_ORT_API size_t attune_ort_stats(char *text, size_t capacity);

#endif
