/* The strides and extents of a call's tensors. */
#include "call/call.h"

static attune_status settle_one(const at_signature *s, const attune_arguments *a, size_t i, at_settled *out,
                                at_error *err) {
    const mha_tensor *t = &s->tensors[i];
    int64_t dims[4] = {0}, *strides = out->strides[i], elements;
    at_error why;
    at_error_clear(&why);
    for (int d = 0; d < t->rank; d++) {
        dims[d] = out->sizes.of[t->dims[d]];
        strides[d] = t->has_strides ? mha_strides_in(a, t)[d] : 0;
    }
    if (mha_settle_strides(&s->problem, t, dims, strides, &why))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s", why.message);
    if (strides[t->rank - 1] != t->inner_stride)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "the innermost stride of %s is %lld; the kernel was compiled for %lld", t->name,
                       (long long)strides[t->rank - 1], (long long)t->inner_stride);
    if (t->id == MHA_COS || t->id == MHA_SIN) {
        strides[0] = a->rotary_batch_stride;
        if (strides[0] < 0 || strides[0] > MHA_MAX_STRIDE)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "rotary_batch_stride is %lld; it must be from 0 to %lld",
                           (long long)strides[0], (long long)MHA_MAX_STRIDE);
    }
    if (t->id == MHA_BLOCK_TABLE && at_tables_row(a, &out->sizes, &strides[0], err)) return ATTUNE_INVALID_ARGUMENT;
    if (mha_extent(t, dims, strides, &elements, &why)) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s", why.message);
    out->bytes[i] = (uint64_t)elements * at_element_bytes(t);
    return ATTUNE_OK;
}

attune_status at_strides_settle(const at_signature *s, const attune_arguments *a, at_settled *out, at_error *err) {
    for (size_t i = 0; i < s->count; i++) {
        const attune_status status = settle_one(s, a, i, out, err);
        if (status) return status;
    }
    return ATTUNE_OK;
}
