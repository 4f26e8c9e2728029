/* Elements of any type: whether they are finite, and what they are. */
#include "call/call_debug.h"
#include "ir/eval.h"

#include <string.h>

/* Where the exponent and the sign lie. F8 has no infinity: all ones are NaN. */
typedef struct format {
    uint64_t exponent, fraction, sign;
} format;

static const format formats[IR_ELEM_COUNT] = {
    [IR_F64] = {UINT64_C(0x7ff) << 52, (UINT64_C(1) << 52) - 1, UINT64_C(1) << 63},
    [IR_F32] = {0x7f800000, 0x007fffff, 0x80000000},
    [IR_F16] = {0x7c00, 0x03ff, 0x8000},
    [IR_BF16] = {0x7f80, 0x007f, 0x8000},
    [IR_F8] = {0x7f, 0x7f, 0x80},
};

bool at_debug_is_float(ir_elem elem) { return formats[elem].exponent != 0; }

static uint64_t bits_of(ir_elem elem, const void *element) {
    uint64_t wide = 0;
    uint32_t word;
    uint16_t half;
    switch (ir_elem_get(elem)->bytes) {
    case 8: memcpy(&wide, element, sizeof wide); return wide;
    case 4: memcpy(&word, element, sizeof word); return word;
    case 2: memcpy(&half, element, sizeof half); return half;
    default: return *(const uint8_t *)element;
    }
}

at_debug_value at_debug_value_of(ir_elem elem, const void *element) {
    const format *const f = &formats[elem];
    const uint64_t bits = bits_of(elem, element);
    if (!at_debug_is_float(elem) || (bits & f->exponent) != f->exponent) return AT_FINITE;
    if (bits & f->fraction) return AT_NAN;
    return bits & f->sign ? AT_SMALL : AT_LARGE;
}

#define ALL_FINITE(type)                                                                                               \
    do {                                                                                                               \
        const type *const bits = elements, exponent = (type)formats[elem].exponent;                                    \
        for (int64_t i = 0; i < count; i++) are &= (bits[i] & exponent) != exponent;                                   \
    } while (0)

bool at_debug_are_finite(ir_elem elem, const void *elements, int64_t count) {
    bool are = true;
    if (!at_debug_is_float(elem)) return true;
    switch (ir_elem_get(elem)->bytes) {
    case 8: ALL_FINITE(uint64_t); return are;
    case 4: ALL_FINITE(uint32_t); return are;
    case 2: ALL_FINITE(uint16_t); return are;
    default: ALL_FINITE(uint8_t); return are;
    }
}

const char *at_debug_value_name(at_debug_value value) {
    return value == AT_NAN ? "nan" : value == AT_LARGE ? "inf" : value == AT_SMALL ? "-inf" : "finite";
}

/* A bias of -inf hides a key; sinks and logarithms may be infinite. */
unsigned at_debug_forbidden(const mha_tensor *t) {
    switch (t->id) {
    case MHA_ATTN_BIAS: return AT_NAN | AT_LARGE;
    case MHA_SINKS:
    case MHA_LSE:
    case MHA_PARTS_LSE: return AT_NAN;
    default: return AT_NAN | AT_LARGE | AT_SMALL;
    }
}

double at_debug_number(ir_elem elem, const void *element) {
    _Alignas(64) unsigned char from[64] = {0}, to[64] = {0};
    const size_t bytes = ir_elem_get(elem)->bytes;
    double number = 0;
    memcpy(from, element, bytes);
    if (elem == IR_F64) {
        memcpy(&number, from, sizeof number);
    } else if (elem == IR_I8) {
        number = (int8_t)from[0];
    } else if (elem == IR_I32) {
        int32_t whole;
        memcpy(&whole, from, sizeof whole);
        number = whole;
    } else {
        float single;
        if (elem != IR_F32) ir_eval_cast(elem, IR_F32)(to, from, NULL, NULL, 1);
        memcpy(&single, elem == IR_F32 ? from : to, sizeof single);
        number = (double)single;
    }
    return number;
}
