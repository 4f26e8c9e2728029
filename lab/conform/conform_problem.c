/* A problem as it is: its text, and its tensors by their names. */
#include "conform/conform_call.h"

#include <string.h>

enum { MOST_TENSORS = 64 };

/* ATTUNE_DTYPE_DEFAULT: attune has no such tensors. */
static attune_dtype dtype_of(npy_type type) {
    attune_dtype dtype;
    if (conform_dtype_of(type, &dtype)) return dtype;
    return type == NPY_I4   ? ATTUNE_I32
           : type == NPY_I1 ? ATTUNE_I8
           : type == NPY_B1 ? ATTUNE_BOOL
                            : ATTUNE_DTYPE_DEFAULT;
}

static npy_type type_of(attune_dtype dtype) {
    return dtype == ATTUNE_F64 ? NPY_F8 : dtype == ATTUNE_F16 ? NPY_F2 : dtype == ATTUNE_BF16 ? NPY_V2 : NPY_F4;
}

static void set_pointer(conform_call *call, const attune_tensor *t, void *data) {
    memcpy((char *)&call->arguments + t->pointer_offset, &data, sizeof data);
}

/* Files are in C order; so must the tensor be. */
static bool is_dense(const attune_tensor *t) {
    int64_t stride = 1;
    for (int d = t->rank - 1; d >= 0; d--) {
        if (t->dims[d] != 1 && t->strides[d] != stride) return false;
        stride *= t->dims[d];
    }
    return true;
}

static bool take_input(conform_call *call, const attune_tensor *t) {
    const npy_array *const inputs = call->c->inputs;
    int i = 0;
    while (i < CONFORM_MAX_INPUTS && (!call->c->input_names[i] || strcmp(call->c->input_names[i], t->name) != 0)) i++;
    if (i == CONFORM_MAX_INPUTS) return conform_fail(call, "the problem has a tensor '%s'; the case does not", t->name);
    if (dtype_of(inputs[i].header.type) != t->dtype)
        return conform_fail(call, "%s is of dtype '%s', which the problem does not say", t->name,
                            npy_type_name(inputs[i].header.type));
    if (!conform_expect_shape(call, i, (size_t)t->rank, t->dims)) return false;
    set_pointer(call, t, inputs[i].data);
    return true;
}

static bool make_output(conform_call *call, const attune_tensor *t) {
    for (int i = 0; i < CONFORM_MAX_OUTPUTS; i++) {
        const char *const name = conform_output_name(CONFORM_PROBLEM, i);
        if (!name || strcmp(name, t->name) != 0) continue;
        if (!npy_create(type_of(t->dtype), (size_t)t->rank, t->dims, &call->outputs[i], call->message)) return false;
        set_pointer(call, t, call->outputs[i].data);
        return true;
    }
    return conform_fail(call, "a case cannot have the output %s", t->name);
}

/* Each input of the case must be a tensor of the problem, so that none is passed over. */
static bool knows_inputs(conform_call *call, const attune_tensor *list, size_t count) {
    for (int i = 0; i < CONFORM_MAX_INPUTS && call->c->input_names[i]; i++) {
        size_t n = 0;
        while (n < count && !(list[n].is_input && strcmp(list[n].name, call->c->input_names[i]) == 0)) n++;
        if (n == count) return conform_fail(call, "the problem has no input '%.100s'", call->c->input_names[i]);
    }
    return true;
}

bool conform_problem(conform_call *call) {
    attune_tensor list[MOST_TENSORS];
    size_t count = 0;
    if (attune_problem_parse(&call->problem, call->c->problem) != ATTUNE_OK ||
        attune_arguments_init(&call->arguments, &call->problem) != ATTUNE_OK ||
        attune_tensors(&call->problem, &call->arguments, list, MOST_TENSORS, &count) != ATTUNE_OK)
        return conform_fail(call, "%s", attune_last_message());
    if (count > MOST_TENSORS) return conform_fail(call, "the problem has more than %d tensors", MOST_TENSORS);
    for (size_t i = 0; i < count; i++) {
        if (!is_dense(&list[i])) return conform_fail(call, "%s has strides, which a case cannot have", list[i].name);
        if (list[i].is_input && list[i].is_output)
            return conform_fail(call, "%s is written to, which a case cannot say", list[i].name);
        if (!(list[i].is_output ? make_output(call, &list[i]) : take_input(call, &list[i]))) return false;
    }
    return knows_inputs(call, list, count);
}
