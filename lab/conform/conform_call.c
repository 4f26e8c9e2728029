/* Views of a case's arrays become tensors of a call by their strides, without copies; a failure keeps its sentence. */
#include "conform/conform_call.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool conform_fail(conform_call *call, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(call->message, ATTUNE_MESSAGE_BYTES, format, list);
    va_end(list);
    return false;
}

/* ---- Inputs ---- */

static const char *name_of(const conform_call *call, int input) { return conform_input_name(call->c, input); }

bool conform_dtype_of(npy_type type, attune_dtype *dtype) {
    switch (type) {
    case NPY_F2: *dtype = ATTUNE_F16; return true;
    case NPY_V2: *dtype = ATTUNE_BF16; return true;
    case NPY_F4: *dtype = ATTUNE_F32; return true;
    case NPY_F8: *dtype = ATTUNE_F64; return true;
    default: return false;
    }
}

bool conform_float_type(conform_call *call, int input, attune_dtype *dtype) {
    const npy_type type = call->c->inputs[input].header.type;
    return conform_dtype_of(type, dtype) ||
           conform_fail(call, "%s is of dtype '%s'; it must be of '<f2', '<V2' (bfloat16), '<f4' or '<f8'",
                        name_of(call, input), npy_type_name(type));
}

bool conform_expect_type(conform_call *call, int input, npy_type type) {
    const npy_type have = call->c->inputs[input].header.type;
    return have == type || conform_fail(call, "%s is of dtype '%s'; it must be of '%s'", name_of(call, input),
                                        npy_type_name(have), npy_type_name(type));
}

bool conform_expect_shape(conform_call *call, int input, size_t rank, const int64_t *dims) {
    const npy_header *const h = &call->c->inputs[input].header;
    char have[NPY_SHAPE_TEXT], want[NPY_SHAPE_TEXT];
    return (h->rank == rank && memcmp(h->shape, dims, rank * sizeof *dims) == 0) ||
           conform_fail(call, "%s is of shape %s; it must be of shape %s", name_of(call, input),
                        npy_print_shape(h->rank, h->shape, have), npy_print_shape(rank, dims, want));
}

static void separate_strides(conform_view *view) {
    const int64_t *const d = view->dims;
    const int64_t strides[4] = {d[1] * d[2] * d[3], d[2] * d[3], d[3], 1};
    memcpy(view->strides, strides, sizeof strides);
}

static void packed_strides(conform_view *view) {
    const int64_t *const d = view->dims;
    const int64_t strides[4] = {d[2] * d[1] * d[3], d[3], d[1] * d[3], 1};
    memcpy(view->strides, strides, sizeof strides);
}

bool conform_view_input(conform_call *call, int input, int64_t heads, conform_view *view) {
    const npy_header *const h = &call->c->inputs[input].header;
    const char *const name = name_of(call, input);
    char shape[NPY_SHAPE_TEXT];
    npy_print_shape(h->rank, h->shape, shape);
    if (h->rank != 3 && h->rank != 4)
        return conform_fail(call, "%s is of shape %s; 3 or 4 dimensions are wanted", name, shape);
    for (size_t i = 0; i < h->rank; i++)
        if (h->shape[i] == 0) return conform_fail(call, "%s is of shape %s, which has no elements", name, shape);
    if (h->rank == 4) {
        memcpy(view->dims, h->shape, sizeof view->dims);
        separate_strides(view);
        return true;
    }
    if (!heads) return conform_fail(call, "%s has 3 dimensions, and no attribute gives its number of heads", name);
    if (h->shape[2] % heads)
        return conform_fail(call, "%s is of shape %s, which %lld heads do not divide", name, shape, (long long)heads);
    const int64_t dims[4] = {h->shape[0], heads, h->shape[1], h->shape[2] / heads};
    memcpy(view->dims, dims, sizeof dims);
    packed_strides(view);
    return true;
}

npy_array *conform_own(conform_call *call, npy_type type, size_t rank, const int64_t *dims) {
    npy_array *const array = &call->owned[call->num_owned];
    if (!npy_create(type, rank, dims, array, call->message)) return NULL;
    call->num_owned++;
    return array;
}

const int32_t *conform_indices(conform_call *call, int input, int64_t high) {
    const npy_array *const array = &call->c->inputs[input];
    if (array->header.type != NPY_I4 && !conform_expect_type(call, input, NPY_I8)) return NULL;
    npy_array *const indices = conform_own(call, NPY_I4, array->header.rank, array->header.shape);
    if (!indices) return NULL;
    for (size_t i = 0; i < array->header.count; i++) {
        const int64_t value =
            array->header.type == NPY_I8 ? ((const int64_t *)array->data)[i] : ((const int32_t *)array->data)[i];
        if (value < 0 || value > high) {
            conform_fail(call, "element %zu of %s is %lld; it must be from 0 to %lld", i, name_of(call, input),
                         (long long)value, (long long)high);
            return NULL;
        }
        ((int32_t *)indices->data)[i] = (int32_t)value;
    }
    return indices->data;
}

/* ---- Outputs ---- */

bool conform_create_output(conform_call *call, int output, npy_type type, bool packed, conform_view *view) {
    const int64_t *const d = view->dims;
    const int64_t rows[3] = {d[0], d[2], d[1] * d[3]};
    if (packed)
        packed_strides(view);
    else
        separate_strides(view);
    return npy_create(type, packed ? 3 : 4, packed ? rows : d, &call->outputs[output], call->message);
}

/* ---- The call ---- */

bool conform_call_create(const conform_case *c, conform_call *call, char message[ATTUNE_MESSAGE_BYTES]) {
    *call = (conform_call){.c = c, .problem = ATTUNE_PROBLEM_INIT, .message = message};
    call->arguments.struct_size = sizeof call->arguments;
    if (c->op == CONFORM_PROBLEM) return conform_problem(call);
    if (c->op == CONFORM_LINEAR_ATTENTION) return conform_linear(call);
    return c->op == CONFORM_ATTENTION ? conform_attention(call) : conform_rotary(call);
}

void conform_call_free(conform_call *call) {
    for (int i = 0; i < CONFORM_MAX_OUTPUTS; i++) npy_free(&call->outputs[i]);
    for (int i = 0; i < CONFORM_MAX_OWNED; i++) npy_free(&call->owned[i]);
}

static attune_status run(conform_call *call, attune_context *context, attune_engine engine) {
    if (call->c->op == CONFORM_LINEAR_ATTENTION) return conform_linear_run(call, context, engine);
    if (engine == ATTUNE_ENGINE_INTERPRETER)
        return attune_run_interpreted(context, &call->problem, NULL, &call->arguments);
    attune_kernel *kernel = NULL;
    attune_status status = attune_compile(context, &call->problem, NULL, &kernel);
    if (status == ATTUNE_OK) status = attune_run(context, kernel, &call->arguments);
    attune_kernel_release(kernel);
    return status;
}

bool conform_call_run(conform_call *call, attune_context *context, attune_engine engine) {
    for (int i = 0; i < CONFORM_MAX_OUTPUTS; i++) {
        /* A large number in every type: an element that was not written cannot pass for a result. */
        const npy_header *const h = &call->outputs[i].header;
        if (call->outputs[i].data) memset(call->outputs[i].data, 0x7a, h->count * npy_type_bytes(h->type));
    }
    if (call->c->op == CONFORM_ATTENTION) conform_attention_prepare(call);
    return run(call, context, engine) == ATTUNE_OK || conform_fail(call, "%s", attune_last_message());
}
