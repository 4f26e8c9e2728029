/* attune compile: one problem into the cache, or one stage of it into a file. */
#include "common/tensors.h"
#include "common/json_output.h"
#include "common/table.h"

#include <stdlib.h>

typedef struct compile_options {
    tool_common common;
    const char *problem, *schedule;
    tool_emission emission;
    bool json;
    bool is_described;     /* the problem is a description, with one kernel */
    attune_problem parsed; /* else */
} compile_options;

static const struct argp_option options[] = {
    TOOL_EMIT_OPTIONS("caching"),
    {"schedule", TOOL_KEY_SCHEDULE, "K=V,...", 0, "Change the chosen schedule", 0},
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    compile_options *const o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case TOOL_KEY_SCHEDULE: o->schedule = argument; return 0;
    case TOOL_KEY_JSON: o->json = true; return 0;
    case ARGP_KEY_ARG: tool_take_one(state, "problem", argument, &o->problem); return 0;
    case ARGP_KEY_END:
        if (!o->problem) argp_error(state, "a problem is needed, such as num_heads=12,seq_q=512,head_dim=64");
        tool_check_emission(state, &o->common, &o->emission, o->json, "");
        return 0;
    default: return tool_parse_emission(state, key, argument, &o->common, &o->emission) ? 0 : ARGP_ERR_UNKNOWN;
    }
}

static int emit_stage(const compile_options *o, attune_context *context, attune_stage stage, void **data,
                      size_t *bytes) {
    const attune_status status = o->is_described ? attune_description_emit(context, o->problem, stage, data, bytes)
                                                 : attune_emit(context, &o->parsed, o->schedule, stage, data, bytes);
    return status ? tool_library_error(NULL) : TOOL_OK;
}

static int emit(const compile_options *o, attune_context *context) {
    void *data = NULL;
    size_t bytes = 0;
    int code = TOOL_OK;
    if (o->emission.dumps) {
        code = emit_stage(o, context, ATTUNE_STAGE_IR, &data, &bytes);
        if (code != TOOL_OK) return code;
        code = tool_dump_passes(context, data);
        attune_free(context, data);
    }
    if (code != TOOL_OK || !o->emission.emits) return code;
    code = emit_stage(o, context, o->emission.stage, &data, &bytes);
    if (code != TOOL_OK) return code;
    code = tool_write_stage(o->emission.stage, o->emission.out, data, bytes);
    attune_free(context, data);
    return code;
}

/* The text of the problem as the library has it; NULL: out of memory. */
static char *whole_text(const compile_options *o) {
    char *const text = o->is_described ? malloc(ATTUNE_DESCRIPTION_BYTES) : problem_text(&o->parsed);
    if (text && o->is_described &&
        attune_description_kernel(o->problem, 0, text, ATTUNE_DESCRIPTION_BYTES, NULL) != ATTUNE_OK)
        *text = '\0';
    return text;
}

static int show(const compile_options *o, const attune_context *context, const attune_kernel_info *info, double us) {
    size_t packed = 0; /* bytes of a block's weights */
    if (!o->is_described && o->parsed.embed_dim && attune_packed_weights_size(&o->parsed, &packed) != ATTUNE_OK)
        return tool_library_error(NULL);
    char *const text = whole_text(o);
    char a[TABLE_NUMBER_BYTES], b[TABLE_NUMBER_BYTES];
    int code = TOOL_OK;
    if (!text) {
        tool_error("out of memory");
        code = TOOL_FAILED;
    } else if (o->json) {
        json_t *const j = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:f, s:f, s:i, s:I, s:I}", "problem", text,
                                    "schedule", info->schedule, "key", info->key, "isa", info->isa, "machine",
                                    info->machine, "origin", tool_origin_name(info->origin), "acquire_ms", us * 1e-3,
                                    "compile_ms", info->compile_ms, "phases", (int)info->num_phases, "code_bytes",
                                    (json_int_t)info->code_bytes, "scratch_bytes", (json_int_t)info->scratch_bytes);
        if (j && packed) json_object_set_new(j, "packed_weights_bytes", json_integer((json_int_t)packed));
        code = json_print_for(context, 0, j);
    } else {
        table *const t = table_create("ll", NULL);
        table_cell(t, "problem");
        table_cell(t, "%s", text);
        table_cell(t, "key");
        table_cell(t, "%s", info->key);
        table_cell(t, "kernel");
        table_cell(t, "%s, for %s, %s of code in %u phase%s, %s of scratch a thread", info->isa, info->machine,
                   table_bytes(info->code_bytes, a), info->num_phases, info->num_phases == 1 ? "" : "s",
                   table_bytes(info->scratch_bytes, b));
        if (packed) {
            table_cell(t, "weights");
            table_cell(t, "%s packed", table_bytes(packed, a));
        }
        table_cell(t, "schedule");
        table_cell(t, "%s", info->schedule);
        table_cell(t, "from");
        table_cell(t, "%s in %s", tool_origin_place(info->origin), table_time(us, a));
        table_finish(t, stdout);
    }
    free(text);
    return code;
}

static int compile(const compile_options *o, attune_context *context) {
    attune_kernel *kernel = NULL;
    attune_kernel_info info = {.struct_size = sizeof info};
    const double start = tool_now_us();
    if (o->is_described ? attune_description_compile(context, o->problem, &kernel)
                        : attune_compile(context, &o->parsed, o->schedule, &kernel))
        return tool_library_error(NULL);
    const double us = tool_now_us() - start;
    const int code =
        attune_kernel_get_info(kernel, &info) == ATTUNE_OK ? show(o, context, &info, us) : tool_library_error(NULL);
    attune_kernel_release(kernel);
    return code;
}

static bool read_problem(compile_options *o) {
    size_t kernels;
    if (attune_description_kernel(o->problem, 0, NULL, 0, &kernels)) return tool_library_error(NULL), false;
    o->is_described = kernels > 0;
    if (o->is_described && o->schedule) return tool_error("a description has no schedule"), false;
    return o->is_described || problem_from_text(o->problem, &o->parsed);
}

int cmd_compile(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "PROBLEM",
        "Compiles a problem into the cache and says where the kernel came from, or writes one stage of it. A PROBLEM "
        "may also be the description of another operator: op=linear,...,kernel=few.",
        tool_common_children,
        NULL,
        NULL};
    compile_options o = {0};
    tool_parse(&argp, argc, argv, &o);
    if (!read_problem(&o)) return TOOL_FAILED;
    attune_context *const context = tool_open_context(&o.common, 0, NULL);
    if (!context) return TOOL_FAILED;
    const int code = o.emission.emits || o.emission.dumps ? emit(&o, context) : compile(&o, context);
    attune_context_destroy(context);
    return code;
}
