/* attune info: describes the machine and the build. */
#include "common/table.h"
#include "common/json_output.h"
#include "common/tool.h"
#include "description_fields.h"

#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096, REFUSAL_BYTES = PATH_BYTES + ATTUNE_MESSAGE_BYTES + 16 };

typedef struct info_options {
    tool_common common;
    bool json, probe, machine;
} info_options;

static const struct argp_option options[] = {
    {"probe-machine", TOOL_KEY_PROBE_MACHINE, NULL, 0,
     "Measure a CPU that attune does not know, and store its nearest tuning class beside the cache", 0},
    {"machine", TOOL_KEY_MACHINE, NULL, 0,
     "Show the numbers that describe the machine and by which schedules are chosen", 0},
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    info_options *const o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case TOOL_KEY_JSON: o->json = true; return 0;
    case TOOL_KEY_PROBE_MACHINE: o->probe = true; return 0;
    case TOOL_KEY_MACHINE: o->machine = true; return 0;
    case ARGP_KEY_ARG: argp_error(state, "unexpected argument '%s'", argument); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* A path; or `none`; or `refused` and why. */
static const char *directory(const char *path, const char *none, const char *refused, const char *why,
                             char text[REFUSAL_BYTES]) {
    if (*path || !*why) return *path ? path : none;
    snprintf(text, REFUSAL_BYTES, "%s: %s", refused, why);
    return text;
}

/* A file of the installation, and why it is not used. */
static const char *file(const char *path, const char *why, char text[REFUSAL_BYTES]) {
    if (!*why) return *path ? path : "none";
    snprintf(text, REFUSAL_BYTES, "%.*s%snot used: %s", PATH_BYTES - 1, path, *path ? ", " : "", why);
    return text;
}

/* A class of its own, for numbers that no class of the table has. */
static bool is_custom(const char *machine) { return !strncmp(machine, "custom-", strlen("custom-")); }

/* How the tuning class was found. */
static const char *source_of(const attune_machine_info *m) {
    if (!strcmp(m->machine_source, "cpu") && !strcmp(m->machine, "generic")) return "attune does not know this CPU";
    if (!strcmp(m->machine_source, "cpu")) return "found by the CPU's family and model";
    if (!strcmp(m->machine_source, "probe"))
        return is_custom(m->machine) ? "measured by the probe" : "the nearest one, found by the probe";
    if (is_custom(m->machine))
        return !strcmp(m->machine_source, "option") ? "numbers of the program" : "numbers of ATTUNE_MACHINE";
    return !strcmp(m->machine_source, "option") ? "named by the program" : "named by ATTUNE_MACHINE";
}

/* Why the code generator, its worker and the built-in kernels are not used, such as files of another build; else empty.
 * They are loaded to find out. */
typedef struct refusals {
    char codegen[ATTUNE_MESSAGE_BYTES], worker[ATTUNE_MESSAGE_BYTES], tier0[ATTUNE_MESSAGE_BYTES];
} refusals;

static void note(void *to, attune_log_level level, const char *message) {
    if (level == ATTUNE_LOG_WARNING) snprintf(to, ATTUNE_MESSAGE_BYTES, "%s", message);
}

/* One without caches, whose warnings go to `warning`, if that is not NULL. It waits 5 s for a silent worker, not 30. */
static attune_context *context_by(attune_compile_mode mode, char *warning) {
    attune_context_options wish = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context = NULL;
    wish.cache_dir = wish.cache_base = wish.cache_pack = wish.record = "";
    wish.compile_mode = mode;
    wish.compile_timeout_ms = 5000;
    wish.strict = -1;
    wish.max_workers = 1;
    wish.log = warning ? note : NULL;
    wish.log_user = warning;
    if (attune_context_create(&wish, &context)) tool_library_error(NULL);
    return context;
}

/* With a worker, the message names the code generator if that is at fault, else the worker is. */
static void ask_codegen(const attune_problem *problem, const attune_machine_info *m, refusals *r) {
    const char *const mode = getenv("ATTUNE_COMPILE");
    void *code = NULL;
    size_t bytes;
    if (!*m->codegen_path || (mode && !strcmp(mode, "never"))) return;
    attune_context *const context = context_by(ATTUNE_COMPILE_DEFAULT, NULL);
    if (context && attune_emit(context, problem, NULL, ATTUNE_STAGE_ASM, &code, &bytes)) {
        const char *const why = attune_last_message();
        const bool is_worker = mode && !strcmp(mode, "worker") && !strstr(why, m->codegen_path);
        snprintf(is_worker ? r->worker : r->codegen, ATTUNE_MESSAGE_BYTES, "%s", why);
    }
    attune_free(context, code);
    attune_context_destroy(context);
}

/* A context without a compiler warns of nothing else. */
static void ask_tier0(const attune_problem *problem, refusals *r) {
    attune_kernel *kernel = NULL;
    attune_context *const context = context_by(ATTUNE_COMPILE_NEVER, r->tier0);
    if (context && attune_compile(context, problem, NULL, &kernel)) tool_library_error(NULL);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}

static refusals find_refusals(const attune_machine_info *m) {
    refusals r = {0};
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    problem.num_heads = problem.seq_q = problem.head_dim = 1;
    ask_codegen(&problem, m, &r);
    ask_tier0(&problem, &r);
    return r;
}

static void print_text(const attune_machine_info *m, const refusals *r) {
    char class[sizeof m->machine_source + 128];
    snprintf(class, sizeof class, "%s (%s)", m->machine, source_of(m));
    char cache[REFUSAL_BYTES], base[REFUSAL_BYTES], pack[REFUSAL_BYTES], codegen[REFUSAL_BYTES], worker[REFUSAL_BYTES];
    const struct {
        const char *label, *value;
    } rows[] = {
        {"attune", attune_version()},
        {"cpu", m->cpu_description},
        {"machine", class},
        {"isa", m->isa},
        {"runs", m->isas},
        {"llvm", m->llvm},
        {"cache", directory(m->cache_dir, "off", "off", m->cache_refusal, cache)},
        {"base", directory(m->cache_base, "none", "not used", m->cache_base_refusal, base)},
        {"pack", directory(m->cache_pack, "none", "not used", m->cache_pack_refusal, pack)},
        {"codegen", file(m->codegen_path, r->codegen, codegen)},
        {"worker", file(m->worker_path, r->worker, worker)},
        {"generator", m->generator_id},
    };
    table *const t = table_create("ll", NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        table_cell(t, "%s", rows[i].label);
        table_cell(t, "%s", rows[i].value);
    }
    if (*r->tier0) {
        table_cell(t, "tier 0");
        table_cell(t, "%s", r->tier0);
    }
    table_cell(t, "threads");
    table_cell(t, "%u", m->max_workers);
    table_finish(t, stdout);
}

static int print_json(const attune_machine_info *m, const refusals *r) {
    json_t *const isas = json_array();
    for (const char *word = m->isas; *word;) {
        const size_t length = strcspn(word, " ");
        if (length) json_array_append_new(isas, json_stringn(word, length));
        word += length + (word[length] == ' ');
    }
    return json_print(m, 0,
                      json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "machine_source",
                                m->machine_source, "isas", isas, "cache_dir", tool_json_text(m->cache_dir),
                                "cache_base", tool_json_text(m->cache_base), "cache_refusal",
                                tool_json_text(m->cache_refusal), "cache_base_refusal",
                                tool_json_text(m->cache_base_refusal), "cache_pack", tool_json_text(m->cache_pack),
                                "cache_pack_refusal", tool_json_text(m->cache_pack_refusal), "codegen_path",
                                tool_json_text(m->codegen_path), "worker_path", tool_json_text(m->worker_path),
                                "codegen_refusal", tool_json_text(r->codegen), "worker_refusal",
                                tool_json_text(r->worker), "tier0_refusal", tool_json_text(r->tier0)));
}

static int print(const info_options *o, const attune_machine_info *m) {
    const refusals r = find_refusals(m);
    if (o->json) return print_json(m, &r);
    print_text(m, &r);
    return TOOL_OK;
}

/* ---- The description ---- */

enum { FIELDS = sizeof at_description_fields / sizeof *at_description_fields };

/* Splits "width=32,fma=2,..." into the values of the fields; returns whether all are there, in their order. */
static bool split(const char *description, const char *values[FIELDS], size_t lengths[FIELDS]) {
    for (size_t i = 0; i < FIELDS; i++) {
        const size_t name = strlen(at_description_fields[i].name);
        if (strncmp(description, at_description_fields[i].name, name) || description[name] != '=') return false;
        values[i] = description + name + 1;
        lengths[i] = strcspn(values[i], ",");
        description = values[i] + lengths[i] + (values[i][lengths[i]] == ',');
    }
    return !*description;
}

/* Whole numbers as such; sizes in bytes. */
static json_t *number_of(const char *text) {
    char *end;
    double value = strtod(text, &end);
    static const char suffixes[] = "KMG";
    const char *const suffix = *end && *end != ',' ? strchr(suffixes, *end) : NULL;
    for (const char *s = suffixes; suffix && s <= suffix; s++) value *= 1024;
    const json_int_t whole = (json_int_t)value;
    return (double)whole == value ? json_integer(whole) : json_real(value);
}

static int show_description(const info_options *o, const attune_machine_info *m) {
    const char *values[FIELDS];
    size_t lengths[FIELDS];
    if (!split(m->machine_description, values, lengths)) {
        tool_error("the library describes the machine in another form: %s", m->machine_description);
        return TOOL_FAILED;
    }
    if (o->json) {
        json_t *const numbers = json_object();
        for (size_t i = 0; i < FIELDS; i++)
            json_object_set_new(numbers, at_description_fields[i].name, number_of(values[i]));
        return json_print(m, 0,
                          json_pack("{s:s, s:s, s:o}", "machine_source", m->machine_source, "text",
                                    m->machine_description, "description", numbers));
    }
    printf("%s (%s)\n\n", m->machine, source_of(m));
    table *const t = table_create("lrl", NULL);
    for (size_t i = 0; i < FIELDS; i++) {
        table_cell(t, "%s", at_description_fields[i].name);
        table_cell(t, "%.*s", (int)lengths[i], values[i]);
        table_cell(t, "%s", at_description_fields[i].meaning);
    }
    table_finish(t, stdout);
    printf("\nATTUNE_MACHINE takes such numbers, too: %s\n", m->machine_description);
    return TOOL_OK;
}

/* ---- The probe ---- */

static int probe_as_json(const attune_machine_probe *p, const attune_machine_info *m) {
    return json_print(m, 0,
                      json_pack("{s:f, s:f, s:f, s:s, s:s, s:b}", "fma", p->fma, "fma_wide", p->fma_wide, "add", p->add,
                                "machine", p->machine, "text", p->description, "kept", p->is_kept));
}

static int probe(const info_options *o, attune_context *context, const attune_machine_info *m) {
    attune_machine_probe p = {.struct_size = sizeof p};
    const attune_status status = attune_probe_machine(context, &p);
    const bool is_measured = status == ATTUNE_OK || status == ATTUNE_IO_ERROR; /* then it could not be kept */
    if (!is_measured) return tool_library_error(NULL);
    if (o->json) {
        const int printed = probe_as_json(&p, m);
        return status ? tool_library_error(NULL) : printed;
    }
    table *const t = table_create("ll", NULL);
    table_cell(t, "multiply-adds");
    table_cell(t, "%.2f times as fast if independent", p.fma);
    if (p.fma_wide > 0) {
        table_cell(t, "of 512 bits");
        table_cell(t, "%.2f times", p.fma_wide);
    }
    table_cell(t, "additions");
    table_cell(t, "have %.2f times the latency of multiply-adds", p.add);
    table_cell(t, "tuning class");
    table_cell(t, "%s", p.machine);
    table_cell(t, "described as");
    table_cell(t, "%s", p.description);
    table_finish(t, stdout);
    if (status) return tool_library_error(NULL);
    if (!p.is_kept)
        printf("not stored, because the disk cache is off; set ATTUNE_MACHINE=%s instead\n",
               is_custom(p.machine) ? p.description : p.machine);
    else if (!strcmp(m->machine_source, "cpu") && strcmp(m->machine, "generic"))
        printf("stored beside the cache, but not used: by its family and model this CPU is %s\n", m->machine);
    else
        printf("stored beside the cache\n");
    return TOOL_OK;
}

int cmd_info(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "",
        "Shows the CPU, the instruction sets that attune can use on it, versions and paths.",
        tool_common_children,
        NULL,
        NULL};
    info_options o = {0};
    tool_parse(&argp, argc, argv, &o);
    attune_context *const context = tool_open_context(&o.common, 0, NULL);
    if (!context) return TOOL_FAILED;
    attune_machine_info machine = {.struct_size = sizeof machine};
    int code = TOOL_OK;
    if (attune_get_machine_info(context, &machine) != ATTUNE_OK)
        code = tool_library_error(NULL);
    else if (o.probe)
        code = probe(&o, context, &machine);
    else if (o.machine)
        code = show_description(&o, &machine);
    else
        code = print(&o, &machine);
    attune_context_destroy(context);
    return code;
}
