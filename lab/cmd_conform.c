/* attune-lab conform: runs the conformance cases of ONNX's operators that lie below folders. */
#define _GNU_SOURCE
#include "lab.h"
#include "conform/conform_call.h"
#include "common/json_output.h"
#include "common/tool.h"

#include <ctype.h>
#include <errno.h>
#include <fts.h>
#include <stdlib.h>
#include <string.h>

typedef struct conform_options {
    tool_common common;
    char **folders; /* in argv */
    int num_folders;
    bool engines[2]; /* by attune_engine */
    bool verbose;
    json_t *cases; /* results as objects; NULL: they are printed as lines */
    bool json;
} conform_options;

static const struct argp_option options[] = {
    {"engine", TOOL_KEY_ENGINE, "jit|interp|both", 0, "Machine code, the interpreter, or one after the other (default)",
     0},
    {"verbose", 'v', NULL, 0, "Name the cases that pass, too", 0},
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON, with all cases", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    conform_options *const o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case TOOL_KEY_ENGINE:
        o->engines[ATTUNE_ENGINE_JIT] = o->engines[ATTUNE_ENGINE_INTERPRETER] = true;
        if (strcmp(argument, "both") == 0) return 0;
        if (strcmp(argument, "jit") != 0 && strcmp(argument, "interp") != 0)
            argp_error(state, "--engine is 'jit', 'interp' or 'both', not '%s'", argument);
        o->engines[ATTUNE_ENGINE_JIT] = strcmp(argument, "jit") == 0;
        o->engines[ATTUNE_ENGINE_INTERPRETER] = strcmp(argument, "interp") == 0;
        return 0;
    case 'v': o->verbose = true; return 0;
    case TOOL_KEY_JSON: o->json = true; return 0;
    case ARGP_KEY_ARGS:
        o->folders = state->argv + state->next;
        o->num_folders = state->argc - state->next;
        return 0;
    case ARGP_KEY_NO_ARGS: argp_error(state, "a folder with cases is needed"); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* ---- One case ---- */

static bool run_engines(const conform_options *o, attune_context *context, const conform_case *c,
                        char message[ATTUNE_MESSAGE_BYTES]) {
    char detail[ATTUNE_MESSAGE_BYTES];
    conform_call call;
    bool passed = conform_call_create(c, &call, message);
    for (int engine = 0; passed && engine < 2; engine++) {
        if (!o->engines[engine]) continue;
        call.message = detail;
        passed = conform_call_run(&call, context, (attune_engine)engine) && conform_compare(c, call.outputs, detail);
        if (!passed)
            snprintf(message, ATTUNE_MESSAGE_BYTES, "%s: %.*s", tool_engine_name((attune_engine)engine),
                     ATTUNE_MESSAGE_BYTES - 32, detail);
    }
    conform_call_free(&call);
    return passed;
}

/* One line on stdout. File names and messages may hold anything, the line no control character. */
static void print_line(const char *verdict, const char *path, const char *message) {
    char *line = NULL;
    if (asprintf(&line, "%s %s%s%s", verdict, path, *message ? ": " : "", message) < 0) line = NULL;
    for (char *at = line; at && *at; at++)
        if (iscntrl((unsigned char)*at)) *at = '?';
    puts(line ? line : "out of memory");
    free(line);
}

static bool run_case(const conform_options *o, attune_context *context, const char *json_path) {
    char message[ATTUNE_MESSAGE_BYTES] = "";
    conform_case c;
    const bool passed = conform_case_read(json_path, &c, message) && run_engines(o, context, &c, message);
    conform_case_free(&c);
    /* The folder is the case's name. */
    char *const folder = strndup(json_path, (size_t)(strrchr(json_path, '/') - json_path));
    const char *const name = folder ? folder : json_path;
    if (o->cases) {
        json_array_append_new(o->cases, json_pack("{s:o, s:b, s:o}", "case", tool_json_text(name), "passed",
                                                  (int)passed, "message", tool_json_text(message)));
        if (!passed) tool_error("%s: %s", name, message);
    } else if (!passed || o->verbose) {
        print_line(passed ? "passed" : "failed", name, message);
    }
    free(folder);
    return passed;
}

/* ---- All of them ---- */

typedef struct conform_counts {
    size_t passed, failed;
    bool is_unreadable; /* a folder could not be searched */
} conform_counts;

static int by_name(const FTSENT **left, const FTSENT **right) { return strcmp((*left)->fts_name, (*right)->fts_name); }

static void run_folder(const conform_options *o, attune_context *context, char *folder, conform_counts *counts) {
    char *const roots[] = {folder, NULL};
    FTS *const walk = fts_open(roots, FTS_LOGICAL | FTS_NOCHDIR, by_name);
    FTSENT *entry;
    while (walk && (errno = 0, entry = fts_read(walk))) {
        switch (entry->fts_info) {
        case FTS_DNR:
        case FTS_ERR:
        case FTS_NS:
            tool_error("%s: cannot search: %s", entry->fts_path, strerror(entry->fts_errno));
            counts->is_unreadable = true;
            break;
        case FTS_D:
        case FTS_DC:
        case FTS_DP: break;
        default:
            if (entry->fts_level == 0) {
                tool_error("%s is not a folder", entry->fts_path);
                counts->is_unreadable = true;
            } else if (strcmp(entry->fts_name, "case.json") == 0) {
                if (run_case(o, context, entry->fts_path))
                    counts->passed++;
                else
                    counts->failed++;
            }
        }
    }
    if (errno) {
        tool_error("%s: cannot search: %s", folder, strerror(errno));
        counts->is_unreadable = true;
    }
    if (walk) fts_close(walk);
}

static int report(const conform_options *o, attune_context *context, const conform_counts *counts) {
    const bool is_good = counts->passed && !counts->failed && !counts->is_unreadable;
    int code = TOOL_OK;
    if (!counts->passed && !counts->failed && !counts->is_unreadable)
        tool_error("there is no case.json below the folders");
    if (o->cases)
        code = json_print_for(context, 0,
                              json_pack("{s:I, s:I, s:O}", "passed", (json_int_t)counts->passed, "failed",
                                        (json_int_t)counts->failed, "cases", o->cases));
    else
        printf("%zu passed, %zu failed\n", counts->passed, counts->failed);
    return is_good ? code : TOOL_FAILED;
}

int cmd_conform(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "DIR...",
        "Runs every case below the folders: a case.json that names an operator of ONNX (Attention of opset 23 to 25, "
        "or RotaryEmbedding) and its attributes, or a problem, and .npy files with inputs and the outputs they give. "
        "Prints a line for each case that fails; the last line is \"N passed, N failed\".",
        tool_common_children,
        NULL,
        NULL};
    conform_options o = {.engines = {true, true}};
    conform_counts counts = {0};
    tool_parse(&argp, argc, argv, &o);
    attune_context *const context = tool_open_context(&o.common, 0, NULL);
    if (!context) return TOOL_FAILED;
    if (o.json) o.cases = json_array();
    for (int i = 0; i < o.num_folders; i++) run_folder(&o, context, o.folders[i], &counts);
    const int code = report(&o, context, &counts);
    json_decref(o.cases);
    attune_context_destroy(context);
    return code;
}
