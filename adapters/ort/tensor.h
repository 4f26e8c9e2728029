/* A tensor of ONNX Runtime: its element type, dims and data. */
#ifndef ATTUNE_ORT_TENSOR_H
#define ATTUNE_ORT_TENSOR_H

#include "adapter.h"

enum { TENSOR_MAX_RANK = 5 };

/* An absent tensor is all zeros. */
typedef struct tensor {
    bool is_given;
    int type; /* of ONNX Runtime */
    attune_dtype dtype;
    int rank;
    int64_t dims[TENSOR_MAX_RANK];
    void *data;
} tensor;

/* Reads a value. With more dims than TENSOR_MAX_RANK only the rank is set. */
ort_status *tensor_read(const ort_api *api, const ort_value *value, tensor *t);

int64_t tensor_count(const tensor *t); /* of elements */

#endif
