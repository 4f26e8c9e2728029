/* attune's own operators, which are in no domain of ONNX Runtime. */
#ifndef ATTUNE_ORT_CUSTOM_OPS_H
#define ATTUNE_ORT_CUSTOM_OPS_H

#include "ort/adapter.h"

/* The domain that has them; never freed. */
ort_status *custom_ops_own(const ort_api *api, ort_domain **domain);

#endif
