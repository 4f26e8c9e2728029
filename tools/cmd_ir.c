/* attune ir: a kernel written in loop IR, run on .npy files or shown at any stage. */
#include "input.h"
#include "json_output.h"
#include "npy.h"
#include "table.h"
#include "tensors.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BINDINGS = 64 };

/* name=value as given. */
typedef struct binding {
    const char *name, *value;
    bool used;
} binding;

typedef struct ir_options {
    tool_common common;
    const char *file, *out;
    attune_engine engine;
    bool emits, dumps, checks, names_engine, json;
    attune_stage stage;
    binding arguments[MAX_BINDINGS], outputs[MAX_BINDINGS];
    size_t num_arguments, num_outputs;
} ir_options;

/* One parameter with its storage. */
typedef struct ir_value {
    const attune_ir_parameter *parameter;
    npy_array array; /* buffers; the data is written in place */
    void *original;  /* a copy of an inout buffer that came from a file, for the second engine */
} ir_value;

typedef struct ir_call {
    attune_context *context;
    attune_kernel *kernel;
    size_t count;
    ir_value *values; /* in the order of the parameters */
    void **buffers;
    int64_t *scalars;
    size_t num_buffers, num_scalars;
} ir_call;

static const struct argp_option options[] = {
    {"engine", TOOL_KEY_ENGINE, "jit|interp", 0, "Machine code (default) or the interpreter", 0},
    {"arg", TOOL_KEY_ARG, "NAME=VALUE", 0, "A number for a scalar, F.npy for a buffer", 0},
    {"out", TOOL_KEY_OUT, "NAME=F.npy", 0, "Write an output buffer here; others are summarised", 0},
    {"check", TOOL_KEY_CHECK, NULL, 0, "Run by both engines and compare the bits", 0},
    {"emit", TOOL_KEY_EMIT, "STAGE", 0, "Write ir, lowered, llvm, asm, obj or image instead of running", 0},
    TOOL_TARGET_OPTION,
    {"output", 'o', "FILE", 0, "Where --emit writes; - is standard output (default)", 0},
    {"dump-passes", TOOL_KEY_DUMP_PASSES, NULL, 0, "Print the IR after each pass to standard error", 0},
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

static void add_binding(struct argp_state *state, binding *list, size_t *count, char *text) {
    char *const equals = strchr(text, '=');
    if (!equals || equals == text || !equals[1]) argp_error(state, "'%s' is not NAME=VALUE", text);
    if (*count == MAX_BINDINGS) argp_error(state, "at most %d of these fit in one call", MAX_BINDINGS);
    *equals = 0;
    for (size_t i = 0; i < *count; i++)
        if (strcmp(list[i].name, text) == 0) argp_error(state, "'%s' is given twice", text);
    list[(*count)++] = (binding){text, equals + 1, false};
}

static error_t parse(int key, char *argument, struct argp_state *state) {
    ir_options *const o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case TOOL_KEY_ENGINE:
        o->engine = tool_parse_engine(state, argument);
        o->names_engine = true;
        return 0;
    case TOOL_KEY_ARG: add_binding(state, o->arguments, &o->num_arguments, argument); return 0;
    case TOOL_KEY_OUT: add_binding(state, o->outputs, &o->num_outputs, argument); return 0;
    case TOOL_KEY_CHECK: o->checks = true; return 0;
    case TOOL_KEY_EMIT:
        o->stage = tool_parse_stage(state, argument);
        o->emits = true;
        return 0;
    case 'o': o->out = argument; return 0;
    case TOOL_KEY_TARGET: o->common.target = argument; return 0;
    case TOOL_KEY_DUMP_PASSES: o->dumps = true; return 0;
    case TOOL_KEY_JSON: o->json = true; return 0;
    case ARGP_KEY_ARG:
        if (o->file) argp_error(state, "one file only, but '%s' follows '%s'", argument, o->file);
        o->file = argument;
        return 0;
    case ARGP_KEY_END:
        if (!o->file) argp_error(state, "a file with loop IR is needed; - is standard input");
        tool_check_target(state, &o->common, o->emits || o->dumps);
        if (o->out && !o->emits) argp_error(state, "-o needs --emit; --out NAME=F.npy writes a result");
        if (o->emits && (o->num_arguments || o->num_outputs || o->checks || o->names_engine))
            argp_error(state, "--emit runs nothing, so --arg, --out, --check and --engine make no sense with it");
        if (o->json && (o->emits || o->dumps))
            argp_error(state, "--json and %s exclude each other", o->emits ? "--emit" : "--dump-passes");
        for (size_t i = 0; o->json && i < o->num_outputs; i++)
            if (strcmp(o->outputs[i].value, "-") == 0) argp_error(state, "--json and --out both want standard output");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
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

static binding *find_binding(binding *list, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(list[i].name, name) == 0) {
            list[i].used = true;
            return &list[i];
        }
    return NULL;
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

static bool fill_buffer(ir_options *o, const ir_call *call, size_t index) {
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
    const binding *const given = find_binding(o->arguments, o->num_arguments, p->name);
    if (p->is_output && !given) return allocate_buffer(value, rank, dims, type); /* an inout buffer starts as zeros */
    if (!p->is_input) {
        tool_error("%s is an output: --out %s=F.npy writes it, --arg %s=%s makes no sense", p->name, p->name, p->name,
                   given->value);
        return false;
    }
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

static bool all_used(const binding *list, size_t count, const char *option) {
    for (size_t i = 0; i < count; i++)
        if (!list[i].used) {
            tool_error("--%s %s=%s: the kernel has no such parameter", option, list[i].name, list[i].value);
            return false;
        }
    return true;
}

static bool bind(ir_options *o, ir_call *call) {
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
        if (!parameters[i].is_buffer &&
            !read_scalar(&parameters[i], find_binding(o->arguments, o->num_arguments, parameters[i].name),
                         &call->scalars[call->num_scalars++]))
            return false;
    }
    for (size_t i = 0; i < call->count; i++) {
        if (!parameters[i].is_buffer) continue;
        if (!fill_buffer(o, call, i)) return false;
        call->buffers[call->num_buffers++] = call->values[i].array.data;
        if (parameters[i].is_output) find_binding(o->outputs, o->num_outputs, parameters[i].name);
    }
    return all_used(o->arguments, o->num_arguments, "arg") && all_used(o->outputs, o->num_outputs, "out");
}

static void unbind(ir_call *call) {
    for (size_t i = 0; call->values && i < call->count; i++) {
        npy_free(&call->values[i].array);
        free(call->values[i].original);
    }
    free(call->values);
    free(call->buffers);
    free(call->scalars);
}

/* ---- Running ---- */

static size_t data_bytes(const ir_value *value) {
    return value->array.header.count * npy_type_bytes(value->array.header.type);
}

static bool is_nan_at(const ir_value *value, const void *data, size_t at) {
    if (value->array.header.type == NPY_F4) return isnan(((const float *)data)[at]);
    return value->array.header.type == NPY_F8 && isnan(((const double *)data)[at]);
}

static bool same_output(const ir_value *value, const void *other) {
    const size_t width = npy_type_bytes(value->array.header.type);
    const char *const a = value->array.data, *const b = other;
    for (size_t i = 0; i < value->array.header.count; i++) {
        if (memcmp(a + i * width, b + i * width, width) == 0) continue;
        if (is_nan_at(value, a, i) && is_nan_at(value, b, i)) continue;
        tool_error("%s differs between the engines at element %zu", value->parameter->name, i);
        return false;
    }
    return true;
}

/* Runs the other engine on the original data and compares the outputs. */
static bool check(const ir_options *o, const ir_call *call) {
    const attune_engine other = o->engine == ATTUNE_ENGINE_JIT ? ATTUNE_ENGINE_INTERPRETER : ATTUNE_ENGINE_JIT;
    void **const buffers = calloc(call->num_buffers + 1, sizeof *buffers);
    bool good = buffers != NULL;
    size_t n = 0;
    for (size_t i = 0; good && i < call->count; i++) {
        const ir_value *const value = &call->values[i];
        if (!value->parameter->is_buffer) continue;
        buffers[n] = call->buffers[n];
        if (value->parameter->is_output) {
            buffers[n] = aligned_alloc(64, (data_bytes(value) + 64) & ~(size_t)63);
            good = buffers[n] != NULL;
            if (good && value->original)
                memcpy(buffers[n], value->original, data_bytes(value));
            else if (good)
                memset(buffers[n], 0, data_bytes(value));
        }
        n++;
    }
    if (!good) tool_error("out of memory for the check");
    if (good && attune_ir_run(call->context, call->kernel, other, buffers, call->scalars) != ATTUNE_OK) {
        tool_library_error(tool_engine_name(other));
        good = false;
    }
    n = 0;
    for (size_t i = 0; buffers && i < call->count; i++) {
        const ir_value *const value = &call->values[i];
        if (!value->parameter->is_buffer) continue;
        if (value->parameter->is_output) {
            good = good && same_output(value, buffers[n]);
            free(buffers[n]);
        }
        n++;
    }
    free(buffers);
    if (good && !o->json) printf("both engines give the same bits\n");
    return good;
}

enum { SHOWN = 8 }; /* elements of an output that is summarised */

static void summarise(const ir_value *value) {
    const npy_header *const h = &value->array.header;
    char shape[NPY_SHAPE_TEXT];
    printf("%s: %s %s", value->parameter->name, value->parameter->elem, npy_print_shape(h->rank, h->shape, shape));
    for (size_t i = 0; i < h->count && i < SHOWN; i++) {
        const void *const data = value->array.data;
        fputs(i ? " " : " = ", stdout);
        switch (h->type) {
        case NPY_F4: printf("%.7g", (double)((const float *)data)[i]); break;
        case NPY_F8: printf("%.16g", ((const double *)data)[i]); break;
        case NPY_I4: printf("%d", ((const int32_t *)data)[i]); break;
        case NPY_I8: printf("%lld", (long long)((const int64_t *)data)[i]); break;
        case NPY_I1: printf("%d", ((const int8_t *)data)[i]); break;
        case NPY_B1: printf("%s", ((const uint8_t *)data)[i] ? "true" : "false"); break;
        case NPY_U1: printf("%#04x", ((const uint8_t *)data)[i]); break;
        default: printf("%#06x", ((const uint16_t *)data)[i]); break;
        }
    }
    printf(h->count > SHOWN ? " …\n" : "\n");
}

/* Types that JSON has no numbers for as their bits. */
static json_t *element_json(const npy_array *array, size_t i) {
    const void *const data = array->data;
    switch (array->header.type) {
    case NPY_F4: return json_number((double)((const float *)data)[i]);
    case NPY_F8: return json_number(((const double *)data)[i]);
    case NPY_I4: return json_integer(((const int32_t *)data)[i]);
    case NPY_I8: return json_integer(((const int64_t *)data)[i]);
    case NPY_I1: return json_integer(((const int8_t *)data)[i]);
    case NPY_B1: return json_boolean(((const uint8_t *)data)[i]);
    case NPY_U1: return json_integer(((const uint8_t *)data)[i]);
    default: return json_integer(((const uint16_t *)data)[i]);
    }
}

static json_t *output_json(const ir_value *value, const char *file) {
    const npy_header *const h = &value->array.header;
    json_t *const shape = json_array(), *const first = json_array();
    for (size_t i = 0; i < h->rank; i++) json_array_append_new(shape, json_integer((json_int_t)h->shape[i]));
    for (size_t i = 0; i < h->count && i < SHOWN; i++) json_array_append_new(first, element_json(&value->array, i));
    return json_pack("{s:s, s:s, s:o, s:o, s:o}", "name", value->parameter->name, "type", value->parameter->elem,
                     "shape", shape, "first_values", first, "file", file ? tool_json_text(file) : json_null());
}

static int print_json(const ir_options *o, const ir_call *call) {
    json_t *const outputs = json_array();
    for (size_t i = 0; i < call->count; i++) {
        const ir_value *const value = &call->values[i];
        if (!value->parameter->is_buffer || !value->parameter->is_output) continue;
        const char *file = NULL;
        for (size_t k = 0; k < o->num_outputs && !file; k++)
            if (strcmp(o->outputs[k].name, value->parameter->name) == 0) file = o->outputs[k].value;
        json_array_append_new(outputs, output_json(value, file));
    }
    json_t *const body = json_pack("{s:o, s:s, s:o}", "file", tool_json_text(o->file), "engine",
                                   o->engine == ATTUNE_ENGINE_JIT ? "jit" : "interp", "outputs", outputs);
    /* A difference ended the command before. */
    if (body && o->checks) json_object_set_new(body, "same_bits", json_true());
    return json_print_for(call->context, 0, body);
}

static bool show_outputs(ir_options *o, const ir_call *call) {
    char message[ATTUNE_MESSAGE_BYTES];
    for (size_t i = 0; i < call->count; i++) {
        const ir_value *const value = &call->values[i];
        const npy_header *const h = &value->array.header;
        if (!value->parameter->is_buffer || !value->parameter->is_output) continue;
        const binding *const out = find_binding(o->outputs, o->num_outputs, value->parameter->name);
        if (!out) {
            if (!o->json) summarise(value);
        } else if (!npy_write(out->value, h->type, h->rank, h->shape, value->array.data, message)) {
            tool_error("%s", message);
            return false;
        }
    }
    return !o->json || print_json(o, call) == TOOL_OK;
}

/* The shapes that the library tells are dims; a parameter with strides of its own may need more memory than that. */
static bool has_strided_parameter(attune_context *context, const char *text, bool *strided) {
    void *data = NULL;
    size_t bytes = 0;
    if (attune_ir_emit(context, text, ATTUNE_STAGE_IR, &data, &bytes) != ATTUNE_OK) return false;
    const char *const body = strchr(data, '{'), *const word = strstr(data, " strides");
    *strided = word && (!body || word < body);
    attune_free(context, data);
    return true;
}

static int run(ir_options *o, attune_context *context, const char *text) {
    ir_call call = {.context = context};
    int code = TOOL_FAILED;
    bool strided = false;
    if (!has_strided_parameter(context, text, &strided)) return tool_library_error(o->file);
    if (strided) {
        tool_error("%s: a parameter has strides of its own; only contiguous arrays can be passed here", o->file);
        return TOOL_FAILED;
    }
    if (attune_ir_compile(context, text, &call.kernel) != ATTUNE_OK) return tool_library_error(o->file);
    if (bind(o, &call)) {
        if (attune_ir_run(context, call.kernel, o->engine, call.buffers, call.scalars) != ATTUNE_OK)
            tool_library_error(tool_engine_name(o->engine));
        else if ((!o->checks || check(o, &call)) && show_outputs(o, &call))
            code = TOOL_OK;
    }
    unbind(&call);
    attune_kernel_release(call.kernel);
    return code;
}

static int emit(const ir_options *o, attune_context *context, const char *text) {
    void *data = NULL;
    size_t bytes = 0;
    if (attune_ir_emit(context, text, o->stage, &data, &bytes) != ATTUNE_OK) return tool_library_error(o->file);
    const int code = tool_write_stage(o->stage, o->out, data, bytes);
    attune_free(context, data);
    return code;
}

int cmd_ir(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "FILE",
        "Runs a kernel written in loop IR (docs/ir.md), or shows it at any stage of compilation. Every parameter gets "
        "its value by --arg; outputs are allocated with the shape the kernel gives them.",
        tool_common_children,
        NULL,
        NULL};
    enum { MOST_BYTES = 64 << 20 }; /* a hundred times the largest kernel's */
    ir_options o = {0};
    char message[ATTUNE_MESSAGE_BYTES];
    size_t bytes = 0;
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    char *const text = tool_read_text(o.file, "kernels in loop IR", MOST_BYTES, &bytes, message);
    if (!text) {
        tool_error("%s", message);
        return TOOL_FAILED;
    }
    attune_context *const context = tool_open_context(&o.common, 0, NULL);
    int code = TOOL_FAILED;
    if (context) {
        code = o.dumps ? tool_dump_passes(context, text) : TOOL_OK;
        if (code == TOOL_OK && o.emits)
            code = emit(&o, context, text);
        else if (code == TOOL_OK && !o.dumps)
            code = run(&o, context, text);
    }
    attune_context_destroy(context);
    free(text);
    return code;
}
