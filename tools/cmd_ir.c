/* attune ir: a kernel written in loop IR, run on .npy files or shown at any stage. */
#include "common/input.h"
#include "loop_ir/ir_call.h"
#include "loop_ir/ir_params.h"
#include "common/json_output.h"
#include "common/npy.h"
#include "common/table.h"
#include "common/tensors.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct ir_options {
    tool_common common;
    const char *file;
    attune_engine engine;
    tool_emission emission;
    bool checks, names_engine, json;
    binding_list arguments, outputs, numbers;
} ir_options;

static const struct argp_option options[] = {
    {"engine", TOOL_KEY_ENGINE, "jit|vm|interp", 0, "Machine code (default), virtual machine or interpreter", 0},
    {"arg", TOOL_KEY_ARG, "NAME=VALUE", TOOL_REPEATS, "A number for a scalar, F.npy for a buffer", 0},
    {"set", TOOL_KEY_SET, "NAME=NUMBER", TOOL_REPEATS,
     "The number for a `param` line of the file, instead of the file's own", 0},
    {"out", TOOL_KEY_OUT, "NAME=F.npy", TOOL_REPEATS,
     "Write an output buffer here; the first values of others are printed", 0},
    {"check", TOOL_KEY_CHECK, NULL, 0, "Run machine code and interpreter, and compare the bits", 0},
    TOOL_EMIT_OPTIONS("running"),
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    ir_options *const o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case TOOL_KEY_ENGINE:
        o->engine = tool_parse_engine(state, argument);
        o->names_engine = true;
        return 0;
    case TOOL_KEY_ARG: bindings_add(state, &o->arguments, argument); return 0;
    case TOOL_KEY_SET: bindings_add(state, &o->numbers, argument); return 0;
    case TOOL_KEY_OUT: bindings_add(state, &o->outputs, argument); return 0;
    case TOOL_KEY_CHECK: o->checks = true; return 0;
    case TOOL_KEY_JSON: o->json = true; return 0;
    case ARGP_KEY_ARG: tool_take_one(state, "file", argument, &o->file); return 0;
    case ARGP_KEY_END:
        if (!o->file) argp_error(state, "a file with loop IR is needed; - is standard input");
        tool_check_emission(state, &o->common, &o->emission, o->json, "; --out NAME=F.npy writes a result");
        if (o->emission.emits && (o->arguments.count || o->outputs.count || o->checks || o->names_engine))
            argp_error(state, "--emit runs nothing, so --arg, --out, --check and --engine make no sense with it");
        for (size_t i = 0; o->json && i < o->outputs.count; i++)
            if (strcmp(o->outputs.items[i].value, "-") == 0)
                argp_error(state, "--json and --out both want standard output");
        return 0;
    default: return tool_parse_emission(state, key, argument, &o->common, &o->emission) ? 0 : ARGP_ERR_UNKNOWN;
    }
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

/* The engine to pass to the library: kernels of the virtual machine run as machine code does. */
static attune_engine ir_engine(const ir_options *o) {
    return o->engine == ATTUNE_ENGINE_VM ? ATTUNE_ENGINE_JIT : o->engine;
}

/* Runs the other engine on the original data and compares the outputs. */
static bool check(const ir_options *o, const ir_call *call) {
    const attune_engine other = o->engine != ATTUNE_ENGINE_INTERPRETER ? ATTUNE_ENGINE_INTERPRETER : ATTUNE_ENGINE_JIT;
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
        for (size_t k = 0; k < o->outputs.count && !file; k++)
            if (strcmp(o->outputs.items[k].name, value->parameter->name) == 0) file = o->outputs.items[k].value;
        json_array_append_new(outputs, output_json(value, file));
    }
    json_t *const body = json_pack("{s:o, s:s, s:o}", "file", tool_json_text(o->file), "engine",
                                   tool_engine_option(o->engine), "outputs", outputs);
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
        const binding *const out = bindings_find(&o->outputs, value->parameter->name);
        if (!out) {
            if (!o->json) summarise(value);
        } else if (!npy_write(out->value, h->type, h->rank, h->shape, value->array.data, message)) {
            tool_error("%s", message);
            return false;
        }
    }
    return !o->json || print_json(o, call) == TOOL_OK;
}

/* Names of outputs must be known before anything is written. */
static bool outputs_exist(ir_options *o, const ir_call *call) {
    for (size_t i = 0; i < call->count; i++)
        if (call->values[i].parameter->is_output) bindings_find(&o->outputs, call->values[i].parameter->name);
    return bindings_all_used(&o->outputs, "out", "the kernel has no such parameter");
}

static int run(ir_options *o, attune_context *context, const ir_params *params, const char *text) {
    ir_call call = {.context = context};
    int code = TOOL_FAILED;
    if (!ir_call_is_contiguous(context, text, o->file)) return TOOL_FAILED;
    if (ir_params_compile(params, context, text, &call.kernel) != ATTUNE_OK) return tool_library_error(o->file);
    if (ir_call_bind(&call, &o->arguments, false) && outputs_exist(o, &call)) {
        if (attune_ir_run(context, call.kernel, ir_engine(o), call.buffers, call.scalars) != ATTUNE_OK)
            tool_library_error(tool_engine_name(o->engine));
        else if ((!o->checks || check(o, &call)) && show_outputs(o, &call))
            code = TOOL_OK;
    }
    ir_call_free(&call);
    attune_kernel_release(call.kernel);
    return code;
}

static int emit(const ir_options *o, attune_context *context, const char *text) {
    void *data = NULL;
    size_t bytes = 0;
    if (attune_ir_emit(context, text, o->emission.stage, &data, &bytes) != ATTUNE_OK)
        return tool_library_error(o->file);
    const int code = tool_write_stage(o->emission.stage, o->emission.out, data, bytes);
    attune_free(context, data);
    return code;
}

static int work(ir_options *o, const ir_params *params, const char *text) {
    attune_context *const context = tool_open_context(&o->common, 0, NULL);
    if (!context) return TOOL_FAILED;
    int code = o->emission.dumps ? tool_dump_passes(context, text) : TOOL_OK;
    if (code == TOOL_OK && o->emission.emits)
        code = emit(o, context, text);
    else if (code == TOOL_OK && !o->emission.dumps)
        code = run(o, context, params, text);
    attune_context_destroy(context);
    return code;
}

int cmd_ir(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "FILE",
        "Runs a kernel written in loop IR (docs/ir.md), or shows it at any stage of compilation. Every parameter gets "
        "its value by --arg; outputs are allocated with the shape that the kernel declares.",
        tool_common_children,
        NULL,
        NULL};
    ir_options o = {0};
    ir_params params;
    tool_parse(&argp, argc, argv, &o);
    if (!ir_params_read(&params, o.file, &o.numbers)) return TOOL_FAILED;
    char *const text = ir_params_fill(&params, params.values);
    const int code = text ? work(&o, &params, text) : TOOL_FAILED;
    free(text);
    ir_params_free(&params);
    return code;
}
