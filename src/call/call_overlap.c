/* Outputs must not share memory with any other tensor. */
#include "call/call.h"

#include <inttypes.h>

typedef struct range {
    const mha_tensor *tensor;
    const mha_sizes *sizes;
    const int64_t *strides;
    uint64_t element;
    uintptr_t begin, end;
} range;

static range range_of(const at_signature *s, const at_settled *settled, void *const *buffers, size_t i) {
    const uintptr_t begin = (uintptr_t)buffers[i];
    return (range){.tensor = &s->tensors[i],
                   .sizes = &settled->sizes,
                   .strides = settled->strides[i],
                   .element = at_element_bytes(&s->tensors[i]),
                   .begin = begin,
                   .end = begin + settled->bytes[i]};
}

/* Bytes from the first element of a tensor to the end of the last one that is reached without those steps that are
 * multiples of the period. */
static uint64_t reach(const range *r, uint64_t period) {
    uint64_t bytes = r->element;
    for (int d = 0; d < r->tensor->rank; d++) {
        const uint64_t step = (uint64_t)r->strides[d] * r->element;
        if (step % period) bytes += (uint64_t)(r->sizes->of[r->tensor->dims[d]] - 1) * step;
    }
    return bytes;
}

/* Whether two tensors in one range of memory share no element, like columns of one packed buffer. The test takes each
 * stride of the output as a period. All dimensions whose stride is no multiple of the period must span less than it,
 * and the addresses of both tensors, modulo the period, must be in disjoint intervals. The test may not recognise some
 * tensors that share nothing. */
static bool interleaved(const range *output, const range *other) {
    for (int d = 0; d < output->tensor->rank; d++) {
        const uint64_t period = (uint64_t)output->strides[d] * output->element;
        if (output->sizes->of[output->tensor->dims[d]] == 1 || period == 0) continue;
        /* The distance from the output's first element to that of the other tensor, modulo the period. */
        const uint64_t distance = other->begin >= output->begin
                                      ? (other->begin - output->begin) % period
                                      : (period - (output->begin - other->begin) % period) % period;
        if (distance >= reach(output, period) && period - distance >= reach(other, period)) return true;
    }
    return false;
}

attune_status at_overlap_check(const at_signature *s, const at_settled *settled, void *const *buffers, at_error *err) {
    for (size_t i = 0; i < s->count; i++) {
        if (!(s->tensors[i].access & IR_OUT) || !settled->bytes[i]) continue;
        const uintptr_t begin = (uintptr_t)buffers[i], end = begin + settled->bytes[i];
        for (size_t j = 0; j < s->count; j++) {
            const uintptr_t first = (uintptr_t)buffers[j];
            if (j == i || begin >= first + settled->bytes[j] || first >= end) continue;
            const range output = range_of(s, settled, buffers, i), other = range_of(s, settled, buffers, j);
            if (interleaved(&output, &other)) continue;
            return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                           "the output %s overlaps %s: they lie at 0x%" PRIxPTR " to 0x%" PRIxPTR " and 0x%" PRIxPTR
                           " to 0x%" PRIxPTR,
                           output.tensor->name, other.tensor->name, output.begin, output.end, other.begin, other.end);
        }
    }
    return ATTUNE_OK;
}
