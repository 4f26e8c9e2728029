/* attune bundle: compiles a manifest's kernels ahead of time into a library and its header. */
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

typedef struct bundle_options {
    tool_common common;
    manifest list;
    const char *output, *header, *name, *targets;
    bool is_shared, is_json, kernels_only;
} bundle_options;

static const struct argp_option options[] = {
    {"output", 'o', "FILE", 0, "The library to write: libNAME.a, or with --shared libNAME.so", 0},
    {"header", TOOL_KEY_HEADER, "FILE", 0, "The C header to write", 0},
    {"name", TOOL_KEY_NAME, "NAME", 0, "What the names of all functions begin with", 0},
    {"targets", TOOL_KEY_TARGETS, "TARGET[:CLASS],...", 0,
     "Instruction sets to compile for (default: " USUAL_TARGETS ")", 0},
    {"shared", TOOL_KEY_SHARED, NULL, 0, "Link a shared library, by the system's ld or $LD", 0},
    {"kernels-only", TOOL_KEY_KERNELS_ONLY, NULL, 0,
     "For attune_context_add_bundle alone: without functions and header", 0},
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

/* ---- A shared library ---- */

static int wait_for(pid_t child, const char *program) {
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return TOOL_FAILED;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return TOOL_OK;
    tool_error("%s could not link the library", program);
    return TOOL_FAILED;
}

/* The linker of the archive's architecture: its name says for which it is, unless it is the machine's own. */
static const char *linker_for(const char *targets) {
    const char *const wanted = getenv("LD");
    if (wanted && *wanted) return wanted;
#if defined(__aarch64__)
    return strncmp(targets, "aarch64", 7) ? "x86_64-linux-gnu-ld" : "ld";
#else
    return strncmp(targets, "aarch64", 7) ? "ld" : "aarch64-linux-gnu-ld";
#endif
}

static int link_shared(const bundle_options *o, const char *archive) {
    extern char **environ;
    const char *const program = linker_for(o->targets), *const base = strrchr(o->output, '/');
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
                                 base ? base + 1 : o->output,
                                 "-o",
                                 o->output,
                                 "--whole-archive",
                                 archive,
                                 NULL};
    pid_t child;
    const int failure = posix_spawnp(&child, program, NULL, NULL, (char *const *)words, environ);
    if (!failure) return wait_for(child, program);
    tool_error("--shared needs a linker, and %s could not be started: %s", program, strerror(failure));
    return TOOL_FAILED;
}

/* The archive lies beside the library while it is linked. */
static int write_shared(const bundle_options *o, const attune_bundle_files *files, char *message) {
    char archive[4096];
    if (snprintf(archive, sizeof archive, "%s.%ld.a", o->output, (long)getpid()) >= (int)sizeof archive) {
        tool_error("the path %.100s... is too long", o->output);
        return TOOL_FAILED;
    }
    if (!tool_write_file(archive, NULL, 0, files->library, files->library_bytes, message)) {
        tool_error("%s", message);
        return TOOL_FAILED;
    }
    const int code = link_shared(o, archive);
    unlink(archive);
    return code;
}

/* ---- The whole ---- */

static int write_files(const bundle_options *o, const attune_bundle_files *files) {
    char message[ATTUNE_MESSAGE_BYTES];
    interruption_catch(); /* Ctrl-C ends the linker, too, but leaves no archive */
    if (o->is_shared && write_shared(o, files, message)) return TOOL_FAILED;
    if ((o->is_shared || tool_write_file(o->output, NULL, 0, files->library, files->library_bytes, message)) &&
        (o->kernels_only || tool_write_file(o->header, NULL, 0, files->header, files->header_bytes, message)))
        return TOOL_OK;
    tool_error("%s", message);
    return TOOL_FAILED;
}

static int print_json(const bundle_options *o, const attune_context *context, const attune_bundle_kernel *kernels,
                      const attune_bundle_files *files) {
    json_t *const list = json_array();
    for (size_t i = 0; list && i < o->list.count; i++) {
        char *const problem = problem_text(kernels[i].problem);
        json_array_append_new(list, json_pack("{s:s, s:s?}", "name", kernels[i].name, "problem", problem));
        free(problem);
    }
    json_t *const body =
        json_pack("{s:s, s:s, s:o, s:I, s:I}", "name", o->name, "targets", o->targets, "kernels", list, "library_bytes",
                  (json_int_t)files->library_bytes, "header_bytes", (json_int_t)files->header_bytes);
    return json_print_for(context, 0, body);
}

/* Kernels without a name are k0, k1 and so on, by their place in the manifest. */
static int bundle(const bundle_options *o, attune_context *context) {
    const size_t count = o->list.count;
    attune_bundle_kernel *const kernels = calloc(count, sizeof *kernels);
    char(*const numbered)[24] = calloc(count, sizeof *numbered);
    int code = TOOL_FAILED;
    if (kernels && numbered) {
        for (size_t i = 0; i < count; i++) {
            const manifest_entry *entry = &o->list.entries[i];
            snprintf(numbered[i], sizeof numbered[i], "k%zu", i);
            kernels[i] =
                (attune_bundle_kernel){entry->name ? entry->name : numbered[i], &entry->problem, entry->schedule};
        }
        attune_bundle_options wish = ATTUNE_BUNDLE_OPTIONS_INIT;
        attune_bundle_files files;
        wish.name = o->name;
        wish.targets = o->targets;
        wish.kernels_only = o->kernels_only;
        if (attune_bundle_make(context, &wish, kernels, count, &files) != ATTUNE_OK) {
            tool_library_error(NULL);
        } else {
            code = write_files(o, &files);
            if (code == TOOL_OK && o->is_json) code = print_json(o, context, kernels, &files);
            attune_free(context, files.library);
            attune_free(context, files.header);
        }
    } else {
        tool_error("out of memory");
    }
    free(kernels);
    free(numbered);
    return code;
}

int cmd_bundle(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "MANIFEST|PROBLEM...",
        "Compiles kernels into a static library and a C header, for programs that have neither attune nor a compiler. "
        "A MANIFEST has a line `NAME: PROBLEM` or `NAME: PROBLEM | SCHEDULE` for each kernel; without a name, as "
        "ATTUNE_RECORD=FILE writes lines, they are k0, k1, .... All TARGETs are of one architecture.",
        tool_common_children,
        NULL,
        NULL};
    bundle_options o = {.targets = USUAL_TARGETS};
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    if (!tool_can_write(o.output) || (o.header && !tool_can_write(o.header))) return TOOL_FAILED;
    attune_context *const context = tool_open_context(&o.common, 0, NULL);
    const int code = context ? bundle(&o, context) : TOOL_FAILED;
    if (context) attune_context_destroy(context);
    manifest_free(&o.list);
    return code;
}
