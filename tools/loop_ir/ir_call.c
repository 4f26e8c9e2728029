/* Walks the parameters of a kernel in their order: each takes the value that was given for its name, or one that is
 * drawn. */
#include "loop_ir/ir_call.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- Lists of NAME=VALUE ---- */

void bindings_add(struct argp_state *state, binding_list *list, char *text) {
    char *const equals = strchr(text, '=');
    if (!equals || equals == text || !equals[1]) argp_error(state, "'%s' is not NAME=VALUE", text);
    if (list->count == MAX_BINDINGS) argp_error(state, "at most %d of these fit in one call", MAX_BINDINGS);
    *equals = 0;
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].name, text) == 0) argp_error(state, "'%s' is given twice", text);
    list->items[list->count++] = (binding){text, equals + 1, false};
}

binding *bindings_find(binding_list *list, const char *name) {
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].name, name) == 0) {
            list->items[i].used = true;
            return &list->items[i];
        }
    return NULL;
}

bool bindings_all_used(const binding_list *list, const char *option, const char *what) {
    for (size_t i = 0; i < list->count; i++)
        if (!list->items[i].used) {
            tool_error("--%s %s=%s: %s", option, list->items[i].name, list->items[i].value, what);
            return false;
        }
    return true;
}

/* ---- Values for the parameters ---- */

static bool type_of_elem(const char *elem, npy_type *type) {
    static const struct {
        const char *elem;
        npy_type type;
    } map[] = {
        {"f32", NPY_F4}, {"f64", NPY_F8},  {"i32", NPY_I4}, {"i64", NPY_I8}, {"idx", NPY_I8},
        {"f16", NPY_F2}, {"bf16", NPY_V2}, {"f8", NPY_U1},  {"i8", NPY_I1},  {"bool", NPY_B1},
    };
    for (size_t i = 0; i < sizeof map / sizeof *map; i++)
        if (strcmp(map[i].elem, elem) == 0) {
            *type = map[i].type;
            return true;
        }
    tool_error("there is no .npy type for elements of type %s", elem);
    return false;
}

static bool read_scalar(const attune_ir_parameter *parameter, const binding *given, int64_t *bits) {
    if (!given) {
        tool_error("parameter %s: %s needs a value: --arg %s=…", parameter->name, parameter->elem, parameter->name);
        return false;
    }
    char *end = NULL;
    bool good = true;
    errno = 0;
    if (parameter->elem[0] == 'f') {
        const double value = strtod(given->value, &end);
        const float narrow = (float)value;
        *bits = 0;
        if (strcmp(parameter->elem, "f32") == 0)
            memcpy(bits, &narrow, sizeof narrow);
        else
            memcpy(bits, &value, sizeof value);
    } else {
        *bits = strtoll(given->value, &end, 0);
        good = !errno && (strcmp(parameter->elem, "i32") != 0 || (*bits >= INT32_MIN && *bits <= INT32_MAX));
    }
    if (good && end != given->value && !*end) return true;
    tool_error("'%s' is no value for the parameter %s: %s", given->value, parameter->name, parameter->elem);
    return false;
}

static bool read_buffer(ir_value *value, const binding *given, size_t rank, const int64_t *dims, npy_type type) {
    char message[ATTUNE_MESSAGE_BYTES], have[NPY_SHAPE_TEXT], want[NPY_SHAPE_TEXT];
    if (!npy_read(given->value, &value->array, message)) {
        tool_error("%s", message);
        return false;
    }
    const npy_header *const h = &value->array.header;
    if (h->type == type && h->rank == rank && memcmp(h->shape, dims, rank * sizeof *dims) == 0) return true;
    tool_error("%s: %s of shape %s, but the parameter %s: %s is %s of shape %s", given->value, npy_type_name(h->type),
               npy_print_shape(h->rank, h->shape, have), value->parameter->name, value->parameter->elem,
               npy_type_name(type), npy_print_shape(rank, dims, want));
    return false;
}

static bool allocate_buffer(ir_value *value, size_t rank, const int64_t *dims, npy_type type) {
    npy_header *const h = &value->array.header;
    size_t bytes = npy_type_bytes(type);
    *h = (npy_header){.type = type, .rank = rank, .count = 1};
    bool overflows = false;
    for (size_t i = 0; i < rank; i++) {
        h->shape[i] = dims[i];
        overflows |= dims[i] < 0 || __builtin_mul_overflow(bytes, (size_t)dims[i], &bytes);
        h->count *= (size_t)dims[i];
    }
    char shape[NPY_SHAPE_TEXT];
    if (!overflows && bytes < PTRDIFF_MAX - 64) value->array.data = aligned_alloc(64, (bytes + 64) & ~(size_t)63);
    if (value->array.data) {
        memset(value->array.data, 0, bytes);
        return true;
    }
    tool_error("cannot allocate %s, %s of shape %s", value->parameter->name, value->parameter->elem,
               npy_print_shape(rank, dims, shape));
    return false;
}

/* Numbers as a model's, between -1 and 1. */
static bool draw_buffer(ir_value *value, size_t rank, const int64_t *dims, npy_type type) {
    static tool_random random = {1};
    if (!allocate_buffer(value, rank, dims, type)) return false;
    for (size_t i = 0; i < value->array.header.count; i++) {
        const double number = (double)tool_random_range(&random, -(1 << 20), 1 << 20) / (1 << 20);
        const float narrow = (float)number;
        if (type == NPY_F8)
            ((double *)value->array.data)[i] = number;
        else
            ((float *)value->array.data)[i] = narrow;
    }
    return true;
}

static bool fill_buffer(ir_call *call, binding_list *arguments, bool draws, size_t index) {
    ir_value *const value = &call->values[index];
    const attune_ir_parameter *const p = value->parameter;
    int64_t dims[NPY_MAX_RANK] = {0};
    size_t rank = 0;
    npy_type type = NPY_F4;
    if (attune_ir_shape(call->kernel, index, call->scalars, dims, &rank) != ATTUNE_OK) {
        tool_library_error(p->name);
        return false;
    }
    if (!type_of_elem(p->elem, &type)) return false;
    const binding *const given = bindings_find(arguments, p->name);
    /* An inout buffer starts as zeros, except for tuning: products with 0 would be the same for all schedules. */
    if (p->is_output && !given && !(draws && p->is_input)) return allocate_buffer(value, rank, dims, type);
    if (!p->is_input) {
        tool_error("%s is an output: --out %s=F.npy writes it, --arg %s=%s makes no sense", p->name, p->name, p->name,
                   given->value);
        return false;
    }
    if (!given && draws && (type == NPY_F4 || type == NPY_F8)) return draw_buffer(value, rank, dims, type);
    if (!given) {
        tool_error("input %s: %s needs a file: --arg %s=F.npy", p->name, p->elem, p->name);
        return false;
    }
    if (!read_buffer(value, given, rank, dims, type)) return false;
    if (!p->is_output) return true;
    const size_t bytes = value->array.header.count * npy_type_bytes(type);
    value->original = malloc(bytes + 1);
    if (value->original)
        memcpy(value->original, value->array.data, bytes);
    else
        tool_error("out of memory for a copy of %s", p->name);
    return value->original != NULL;
}

bool ir_call_bind(ir_call *call, binding_list *arguments, bool draws) {
    const attune_ir_parameter *parameters = NULL;
    if (attune_ir_parameters(call->kernel, &parameters, &call->count) != ATTUNE_OK) {
        tool_library_error(NULL);
        return false;
    }
    call->values = calloc(call->count + 1, sizeof *call->values);
    call->buffers = calloc(call->count + 1, sizeof *call->buffers);
    call->scalars = calloc(call->count + 1, sizeof *call->scalars);
    if (!call->values || !call->buffers || !call->scalars) {
        tool_error("out of memory");
        return false;
    }
    /* Scalars first: the shapes of the buffers depend on them. */
    for (size_t i = 0; i < call->count; i++) {
        call->values[i].parameter = &parameters[i];
        if (!parameters[i].is_buffer && !read_scalar(&parameters[i], bindings_find(arguments, parameters[i].name),
                                                     &call->scalars[call->num_scalars++]))
            return false;
    }
    for (size_t i = 0; i < call->count; i++) {
        if (!parameters[i].is_buffer) continue;
        if (!fill_buffer(call, arguments, draws, i)) return false;
        call->buffers[call->num_buffers++] = call->values[i].array.data;
    }
    return bindings_all_used(arguments, "arg", "the kernel has no such parameter");
}

void ir_call_free(ir_call *call) {
    for (size_t i = 0; call->values && i < call->count; i++) {
        npy_free(&call->values[i].array);
        free(call->values[i].original);
    }
    free(call->values);
    free(call->buffers);
    free(call->scalars);
}

bool ir_call_is_contiguous(attune_context *context, const char *text, const char *file) {
    void *data = NULL;
    size_t bytes = 0;
    if (attune_ir_emit(context, text, ATTUNE_STAGE_IR, &data, &bytes) != ATTUNE_OK) {
        tool_library_error(file);
        return false;
    }
    const char *const body = strchr(data, '{'), *const word = strstr(data, " strides");
    const bool is_strided = word && (!body || word < body);
    attune_free(context, data);
    if (is_strided)
        tool_error("%s: a parameter has strides of its own; only contiguous arrays can be passed here", file);
    return !is_strided;
}
