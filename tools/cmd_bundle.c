/* attune bundle: compiles a manifest's kernels ahead of time into a library and its header. */
#define _GNU_SOURCE
#include "common/interruption.h"
#include "common/json_output.h"
#include "common/manifest.h"
#include "common/tensors.h"

#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__aarch64__)
#define USUAL_TARGETS "aarch64"
#else
#define USUAL_TARGETS "avx512_bf16,avx512,avx2,x86-64"
#endif

/* The kernels for one architecture. */
typedef struct library {
    bool is_arm;
    char *targets, *output;
    attune_bundle_files files;
} library;

typedef struct bundle_options {
    tool_common common;
    manifest list;
    const char *output, *header, *name, *targets;
    bool is_shared, is_json, kernels_only;
    library libraries[2]; /* that of the first target first */
    size_t num_libraries;
    attune_bundle_kernel *kernels; /* of attention */
    attune_bundle_description *descriptions;
    size_t num_kernels, num_descriptions;
} bundle_options;

static const struct argp_option options[] = {
    {"output", 'o', "FILE", 0, "The library to write: libmodel.a, or with --shared libmodel.so", 0},
    {"header", TOOL_KEY_HEADER, "FILE", 0, "The C header to write", 0},
    {"name", TOOL_KEY_NAME, "NAME", 0, "What the names of all functions begin with", 0},
    {"targets", TOOL_KEY_TARGETS, "TARGET[:CLASS],...", 0,
     "Instruction sets to compile for (default: " USUAL_TARGETS ")", 0},
    {"shared", TOOL_KEY_SHARED, NULL, 0, "Link a shared library, by the system's ld or $LD", 0},
    {"kernels-only", TOOL_KEY_KERNELS_ONLY, NULL, 0,
     "Leave out functions and header, for programs that use attune_context_add_bundle", 0},
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    bundle_options *const o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case 'o': o->output = argument; return 0;
    case TOOL_KEY_HEADER: o->header = argument; return 0;
    case TOOL_KEY_NAME: o->name = argument; return 0;
    case TOOL_KEY_TARGETS: o->targets = argument; return 0;
    case TOOL_KEY_SHARED: o->is_shared = true; return 0;
    case TOOL_KEY_KERNELS_ONLY: o->kernels_only = true; return 0;
    case TOOL_KEY_JSON: o->is_json = true; return 0;
    case ARGP_KEY_ARG:
        if (!manifest_add_argument(&o->list, argument)) exit(TOOL_FAILED);
        return 0;
    case ARGP_KEY_END:
        if (!o->list.count) argp_error(state, "a MANIFEST is needed: a file of problems, or problems");
        if (!o->output) argp_error(state, "-o FILE is needed: the library to write");
        if (!o->header && !o->kernels_only) argp_error(state, "--header=FILE is needed: the C header to write");
        if (o->header && o->kernels_only) argp_error(state, "with --kernels-only there is no --header");
        if (!o->name) argp_error(state, "--name=NAME is needed: what the names of all functions begin with");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* ---- Libraries ---- */

/* "libmodel.a" to "libmodel-aarch64.a". NULL: out of memory. */
static char *name_for(const char *output, bool is_arm) {
    const char *const slash = strrchr(output, '/'), *const dot = strchr(slash ? slash + 1 : output, '.');
    const char *const end = dot ? dot : output + strlen(output);
    char *name;
    const int bytes = asprintf(&name, "%.*s-%s%s", (int)(end - output), output, is_arm ? "aarch64" : "x86_64", end);
    return bytes < 0 ? NULL : name;
}

static library *library_for(bundle_options *o, bool is_arm) {
    for (size_t i = 0; i < o->num_libraries; i++)
        if (o->libraries[i].is_arm == is_arm) return &o->libraries[i];
    library *const added = &o->libraries[o->num_libraries++];
    added->is_arm = is_arm;
    added->output = o->num_libraries == 1 ? strdup(o->output) : name_for(o->output, is_arm);
    return added;
}

/* Hands targets out to the library of their architecture. */
static bool split_targets(bundle_options *o) {
    bool is_arm = false;
    for (const char *word = o->targets;; word++) {
        const size_t length = strcspn(word, ",");
        if (length) is_arm = !strncmp(word, "aarch64", 7);
        library *const of = library_for(o, is_arm);
        char *const before = of->targets;
        if (asprintf(&of->targets, "%s%s%.*s", before ? before : "", before ? "," : "", (int)length, word) < 0)
            of->targets = NULL;
        free(before);
        if (!of->targets || !of->output) return false;
        word += length;
        if (!*word) return true;
    }
}

/* ---- A shared library ---- */

static int wait_for(pid_t child, const char *program) {
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return TOOL_FAILED;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return TOOL_OK;
    tool_error("%s could not link the library", program);
    return TOOL_FAILED;
}

/* The linker of the architecture: its name says for which it is, unless it is the machine's own. */
static const char *linker_for(bool is_arm) {
    const char *const wanted = getenv("LD");
    if (wanted && *wanted) return wanted;
#if defined(__aarch64__)
    return is_arm ? "ld" : "x86_64-linux-gnu-ld";
#else
    return is_arm ? "aarch64-linux-gnu-ld" : "ld";
#endif
}

static int link_shared(const library *l, const char *archive) {
    extern char **environ;
    const char *const program = linker_for(l->is_arm), *const base = strrchr(l->output, '/');
    const char *const words[] = {program,
                                 "-shared",
                                 "--eh-frame-hdr",
                                 "-z",
                                 "relro",
                                 "-z",
                                 "now",
                                 "-z",
                                 "separate-code",
                                 "-soname",
                                 base ? base + 1 : l->output,
                                 "-o",
                                 l->output,
                                 "--whole-archive",
                                 archive,
                                 NULL};
    pid_t child;
    const int failure = posix_spawnp(&child, program, NULL, NULL, (char *const *)words, environ);
    if (!failure) return wait_for(child, program);
    tool_error("--shared needs a linker, and %s could not be started: %s", program, strerror(failure));
    return TOOL_FAILED;
}

static int write_file(const char *path, const void *data, size_t bytes) {
    char message[ATTUNE_MESSAGE_BYTES];
    if (tool_write_file(path, NULL, 0, data, bytes, message)) return TOOL_OK;
    tool_error("%s", message);
    return TOOL_FAILED;
}

/* The archive lies beside the library while it is linked. */
static int write_shared(const library *l) {
    char archive[4096];
    if (snprintf(archive, sizeof archive, "%s.%ld.a", l->output, (long)getpid()) >= (int)sizeof archive) {
        tool_error("the path %.100s... is too long", l->output);
        return TOOL_FAILED;
    }
    if (write_file(archive, l->files.library, l->files.library_bytes)) return TOOL_FAILED;
    const int code = link_shared(l, archive);
    unlink(archive);
    return code;
}

/* ---- The whole ---- */

/* One header serves all: it does not depend on targets. */
static int write_files(const bundle_options *o) {
    interruption_catch(); /* Ctrl-C ends the linker, too, but leaves no archive */
    for (size_t i = 0; i < o->num_libraries; i++) {
        const library *const l = &o->libraries[i];
        if (o->is_shared ? write_shared(l) : write_file(l->output, l->files.library, l->files.library_bytes))
            return TOOL_FAILED;
    }
    const attune_bundle_files *const files = &o->libraries[0].files;
    return o->kernels_only ? TOOL_OK : write_file(o->header, files->header, files->header_bytes);
}

static json_t *list_kernels(const bundle_options *o) {
    json_t *const list = json_array();
    for (size_t i = 0; list && i < o->num_kernels; i++) {
        char *const problem = problem_text(o->kernels[i].problem);
        json_array_append_new(list, json_pack("{s:s, s:s?}", "name", o->kernels[i].name, "problem", problem));
        free(problem);
    }
    for (size_t i = 0; list && i < o->num_descriptions; i++)
        json_array_append_new(
            list, json_pack("{s:s, s:s}", "name", o->descriptions[i].name, "problem", o->descriptions[i].text));
    return list;
}

static int print_json(const bundle_options *o, const attune_context *context) {
    json_t *const list = list_kernels(o), *const libraries = json_array();
    size_t bytes = 0;
    for (size_t i = 0; libraries && i < o->num_libraries; i++) {
        const library *const l = &o->libraries[i];
        bytes += l->files.library_bytes;
        json_array_append_new(libraries, json_pack("{s:s, s:s, s:I}", "file", l->output, "targets", l->targets, "bytes",
                                                   (json_int_t)l->files.library_bytes));
    }
    json_t *const body = json_pack("{s:s, s:s, s:o, s:o, s:I, s:I}", "name", o->name, "targets", o->targets, "kernels",
                                   list, "libraries", libraries, "library_bytes", (json_int_t)bytes, "header_bytes",
                                   (json_int_t)o->libraries[0].files.header_bytes);
    return json_print_for(context, 0, body);
}

static int make_and_write(bundle_options *o, attune_context *context) {
    int code = TOOL_OK;
    for (size_t i = 0; i < o->num_libraries && !code; i++) {
        attune_bundle_options wish = ATTUNE_BUNDLE_OPTIONS_INIT;
        wish.name = o->name;
        wish.targets = o->libraries[i].targets;
        wish.kernels_only = o->kernels_only;
        wish.descriptions = o->descriptions, wish.num_descriptions = o->num_descriptions;
        if (!attune_bundle_make(context, &wish, o->kernels, o->num_kernels, &o->libraries[i].files)) continue;
        tool_library_error(NULL);
        code = TOOL_FAILED;
    }
    if (!code) code = write_files(o);
    if (!code && o->is_json) code = print_json(o, context);
    for (size_t i = 0; i < o->num_libraries; i++) {
        attune_free(context, o->libraries[i].files.library);
        attune_free(context, o->libraries[i].files.header);
    }
    return code;
}

/* Kernels without a name are k0, k1 and so on, by their place in the manifest. */
static int bundle(bundle_options *o, attune_context *context) {
    const size_t count = o->list.count;
    char(*const numbered)[24] = calloc(count, sizeof *numbered);
    int code = TOOL_FAILED;
    o->kernels = calloc(count, sizeof *o->kernels);
    o->descriptions = calloc(count, sizeof *o->descriptions);
    if (o->kernels && o->descriptions && numbered) {
        for (size_t i = 0; i < count; i++) {
            const manifest_kernel *wanted = &o->list.kernels[i];
            snprintf(numbered[i], sizeof numbered[i], "k%zu", i);
            const char *const name = wanted->name ? wanted->name : numbered[i];
            if (wanted->is_described)
                o->descriptions[o->num_descriptions++] = (attune_bundle_description){name, wanted->text};
            else
                o->kernels[o->num_kernels++] = (attune_bundle_kernel){name, &wanted->problem, wanted->schedule};
        }
        code = make_and_write(o, context);
    } else {
        tool_error("out of memory");
    }
    free(o->kernels);
    free(o->descriptions);
    free(numbered);
    return code;
}

/* A file must not be written over another one, and a linker makes libraries of one architecture. */
static bool are_apart(const bundle_options *o) {
    for (size_t i = 0; o->header && i < o->num_libraries; i++) {
        if (strcmp(o->header, o->libraries[i].output) != 0) continue;
        tool_error("%s is named both as a library and as the header", o->header);
        return false;
    }
    const char *const linker = getenv("LD");
    if (!o->is_shared || o->num_libraries < 2 || !linker || !*linker) return true;
    tool_error(
        "the targets are of two architectures, but LD names one linker, %s: make one bundle for each architecture",
        linker);
    return false;
}

/* Described kernels are not called by functions of the header. */
static bool has_functions_for_all(const bundle_options *o) {
    for (size_t i = 0; i < o->list.count && !o->kernels_only; i++) {
        const manifest_kernel *const wanted = &o->list.kernels[i];
        const int op = (int)strcspn(wanted->text, ",");
        if (!wanted->is_described) continue;
        if (wanted->line)
            tool_error("line %d is a description (%.*s): its bundle needs --kernels-only", wanted->line, op,
                       wanted->text);
        else
            tool_error("%s is a description: its bundle needs --kernels-only", wanted->text);
        return false;
    }
    return true;
}

/* Whether all files can be written, before anything is compiled. */
static bool can_write(bundle_options *o) {
    if (!split_targets(o)) {
        tool_error("out of memory");
        return false;
    }
    if (!are_apart(o) || !has_functions_for_all(o)) return false;
    for (size_t i = 0; i < o->num_libraries; i++)
        if (!tool_can_write(o->libraries[i].output)) return false;
    return !o->header || tool_can_write(o->header);
}

int cmd_bundle(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "MANIFEST|PROBLEM...",
        "Compiles kernels into a static library and a C header, for programs that have neither attune nor a compiler. "
        "A MANIFEST has a line `NAME: PROBLEM` or `NAME: PROBLEM | SCHEDULE` for each kernel; kernels without a name, "
        "as in a file that ATTUNE_RECORD=FILE wrote, are k0, k1, .... With --kernels-only a PROBLEM may also be a "
        "description of another operator: op=linear,.... TARGETs of another architecture than the first make a second "
        "library, named like FILE with -aarch64 or -x86_64 before its suffix.",
        tool_common_children,
        NULL,
        NULL};
    bundle_options o = {.targets = USUAL_TARGETS};
    tool_parse(&argp, argc, argv, &o);
    attune_context *const context = can_write(&o) ? tool_open_context(&o.common, 0, NULL) : NULL;
    const int code = context ? bundle(&o, context) : TOOL_FAILED;
    if (context) attune_context_destroy(context);
    for (size_t i = 0; i < o.num_libraries; i++) {
        free(o.libraries[i].targets);
        free(o.libraries[i].output);
    }
    manifest_free(&o.list);
    return code;
}
