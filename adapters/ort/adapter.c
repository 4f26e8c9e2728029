/* What the rest of the adapter shares: the interface of ONNX Runtime, its element types, and what attune calls itself
 * there. */
#include "adapter.h"

#include "attune_ort.h"
#include "common/context.h"

#include <stdio.h>
#include <stdlib.h>

size_t attune_ort_stats(char *text, size_t capacity) { return adapter_counters(text, capacity); }

/* ONNX Runtime has stock kernels, but cannot use them for a node that attune has claimed. Each node has a table of
 * plans, for a few kinds of calls: prompts and single tokens, masks of several shapes. */
const common_engine_info common_engine = {.has_threads = true, .max_plans = 256};

/* ---- ONNX Runtime ---- */

const ort_api *adapter_open(const ort_base *base, uint32_t version, ort_status **status) {
    /* The version is read first, because requesting an unknown version makes ONNX Runtime print to stderr. */
    unsigned major = 0, minor = 0;
    const char *const have = base->GetVersionString();
    *status = NULL;
    if (have && sscanf(have, "%u.%u", &major, &minor) == 2 && (major > 1 || (major == 1 && minor >= version))) {
        const ort_api *const api = base->GetApi(version);
        if (api) return api;
    }
    char message[160];
    snprintf(message, sizeof message, "attune needs ONNX Runtime 1.%u or newer for this; this one is %s", version,
             have ? have : "of an unknown version");
    const ort_api *const oldest = base->GetApi(1);
    if (oldest) *status = oldest->CreateStatus(ORT_NOT_IMPLEMENTED, message);
    return NULL;
}

attune_dtype adapter_dtype(int type) {
    switch (type) {
    case ORT_FLOAT: return ATTUNE_F32;
    case ORT_FLOAT16: return ATTUNE_F16;
    case ORT_BFLOAT16: return ATTUNE_BF16;
    case ORT_DOUBLE: return ATTUNE_F64;
    case ORT_BOOL: return ATTUNE_BOOL;
    case ORT_INT32: return ATTUNE_I32;
    default: return ATTUNE_DTYPE_DEFAULT;
    }
}

size_t adapter_type_bytes(attune_dtype dtype) {
    switch (dtype) {
    case ATTUNE_F64: return 8;
    case ATTUNE_F32:
    case ATTUNE_I32: return 4;
    case ATTUNE_F16:
    case ATTUNE_BF16: return 2;
    default: return 1;
    }
}
