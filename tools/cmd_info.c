/* attune info: what the machine and the build are. */
#include "table.h"
#include "tool.h"

#include <jansson.h>
#include <string.h>

typedef struct info_options {
    tool_common common;
    bool json;
} info_options;

static const struct argp_option options[] = {
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    info_options *const o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case TOOL_KEY_JSON: o->json = true; return 0;
    case ARGP_KEY_ARG: argp_error(state, "unexpected argument '%s'", argument); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static void print_text(const attune_machine_info *m) {
    const struct {
        const char *label, *value;
    } rows[] = {
        {"attune", attune_version()},
        {"cpu", m->cpu},
        {"isa", m->isa},
        {"runs", m->isas},
        {"llvm", m->llvm},
        {"cache", *m->cache_dir ? m->cache_dir : "off"},
        {"base", *m->cache_base ? m->cache_base : "none"},
        {"codegen", m->codegen_path},
        {"worker", m->worker_path},
        {"generator", m->generator_id},
    };
    table *const t = table_create("ll", NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        table_cell(t, "%s", rows[i].label);
        table_cell(t, "%s", rows[i].value);
    }
    table_cell(t, "threads");
    table_cell(t, "%u", m->max_workers);
    table_finish(t, stdout);
}

static int print_json(const attune_machine_info *m) {
    json_t *const isas = json_array();
    for (const char *word = m->isas; *word;) {
        const size_t length = strcspn(word, " ");
        if (length) json_array_append_new(isas, json_stringn(word, length));
        word += length + (word[length] == ' ');
    }
    return tool_print_json(json_pack("{s:i, s:s, s:s, s:s, s:o, s:s, s:s, s:s, s:s, s:s, s:s, s:i}", "schema", 1,
                                     "version", attune_version(), "cpu", m->cpu, "isa", m->isa, "isas", isas, "llvm",
                                     m->llvm, "cache_dir", m->cache_dir, "cache_base", m->cache_base, "codegen_path",
                                     m->codegen_path, "worker_path", m->worker_path, "generator_id", m->generator_id,
                                     "max_workers", (int)m->max_workers));
}

int cmd_info(int argc, char **argv) {
    static const struct argp argp = {options,
                                     parse,
                                     "",
                                     "Shows the CPU, the instruction sets attune can use on it, versions and paths.",
                                     tool_common_children,
                                     NULL,
                                     NULL};
    info_options o = {0};
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    attune_context *const context = tool_open_context(&o.common, 0, NULL);
    if (!context) return TOOL_FAILED;
    attune_machine_info machine = {.struct_size = sizeof machine};
    int code = TOOL_OK;
    if (attune_get_machine_info(context, &machine) != ATTUNE_OK)
        code = tool_library_error(NULL);
    else if (o.json)
        code = print_json(&machine);
    else
        print_text(&machine);
    attune_context_destroy(context);
    return code;
}
