/* libattune-ort.so: attune as kernels of ONNX Runtime. This is internal; ONNX Runtime and Python call the functions of
 * exports.map. */
#ifndef ATTUNE_ORT_ADAPTER_H
#define ATTUNE_ORT_ADAPTER_H

#include "attune.h"
#include "common/counters.h"
#include "ort_abi.h"

/* The table of functions of an ONNX Runtime that is at least of this version of the interface (ORT_VERSION_OPS …).
 * Otherwise NULL, and *status is a sentence that ONNX Runtime raises. */
const ort_api *adapter_open(const ort_base *base, uint32_t version, ort_status **status);

/* attune's dtype for an element type of ONNX Runtime; 0 if there is none. */
attune_dtype adapter_dtype(int type);
size_t adapter_type_bytes(attune_dtype dtype);

#endif
