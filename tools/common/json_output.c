/* Builds a document by jansson and prints it in one piece. */
#include "common/json_output.h"

#include "common/input.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

/* In UTC, so that files of several machines sort by it. */
static void print_date(char text[32]) {
    const time_t now = time(NULL);
    struct tm broken;
    if (!gmtime_r(&now, &broken) || !strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", &broken)) *text = '\0';
}

static json_t *header(const attune_machine_info *m, uint32_t threads) {
    char date[32];
    print_date(date);
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:s, s:s, s:s, s:s, s:I, s:s}", "version", attune_version(), "cpu",
                     m->cpu, "cpu_description", m->cpu_description, "cpu_family", (json_int_t)m->cpu_family,
                     "cpu_model", (json_int_t)m->cpu_model, "cpu_stepping", (json_int_t)m->cpu_stepping, "machine",
                     m->machine, "isa", m->isa, "llvm", m->llvm, "generator", m->generator_id, "threads",
                     (json_int_t)(threads ? threads : m->max_workers), "date", date);
}

json_t *json_document(const attune_machine_info *machine, uint32_t threads, json_t *body) {
    json_t *document = body ? json_pack("{s:i, s:o}", "schema", JSON_SCHEMA, "header", header(machine, threads)) : NULL;
    if (document && json_object_update(document, body) != 0) {
        json_decref(document);
        document = NULL;
    }
    json_decref(body);
    return document;
}

int json_print(const attune_machine_info *machine, uint32_t threads, json_t *body) {
    return tool_print_json(json_document(machine, threads, body));
}

int json_print_for(const attune_context *context, uint32_t threads, json_t *body) {
    attune_machine_info machine = {.struct_size = sizeof machine};
    if (attune_get_machine_info(context, &machine) == ATTUNE_OK) return json_print(&machine, threads, body);
    json_decref(body);
    return tool_library_error(NULL);
}

char *json_file_text(const json_t *document) {
    return document ? json_dumps(document, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) : NULL;
}

json_t *json_read(const char *path, const char *what, const char *each) {
    enum { MOST_BYTES = 256 << 20 };
    char message[ATTUNE_MESSAGE_BYTES];
    json_error_t why;
    size_t bytes;
    char *const text = tool_read_text(path, what, MOST_BYTES, &bytes, message);
    json_t *const file = text ? json_loadb(text, bytes, 0, &why) : NULL;
    if (!text)
        tool_error("%s", message);
    else if (!file)
        tool_error("%s is no %s: line %d: %s", path, each, why.line, why.text);
    free(text);
    return file;
}

json_t *json_number(double value) { return isfinite(value) ? json_real(value) : json_null(); }
