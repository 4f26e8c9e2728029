/* Asks ONNX Runtime for the type, the dims and the data of a value; dims beyond TENSOR_MAX_RANK are counted, not
 * read. */
#include "tensor.h"

ort_status *tensor_read(const ort_api *api, const ort_value *value, tensor *t) {
    ort_shape *shape;
    size_t rank = 0;
    *t = (tensor){.is_given = true};
    ort_status *status = api->GetTensorTypeAndShape(value, &shape);
    if (status) return status;
    status = api->GetDimensionsCount(shape, &rank);
    if (!status) status = api->GetTensorElementType(shape, &t->type);
    t->rank = (int)rank;
    t->dtype = adapter_dtype(t->type);
    if (!status && rank <= TENSOR_MAX_RANK) status = api->GetDimensions(shape, t->dims, rank);
    api->ReleaseTensorTypeAndShapeInfo(shape);
    return status ? status : api->GetTensorMutableData((ort_value *)(uintptr_t)value, &t->data);
}

int64_t tensor_count(const tensor *t) {
    int64_t count = 1;
    for (int i = 0; i < t->rank; i++) count *= t->dims[i];
    return count;
}
