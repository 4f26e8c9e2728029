/* The `attune` command: finds the subcommand and hands it the rest of the line. */
#include "nearest.h"
#include "common/tool.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

typedef struct subcommand {
    const char *name;
    int (*main)(int argc, char **argv);
    const char *summary;
} subcommand;

static const subcommand subcommands[] = {
    {"run", cmd_run, "compute attention on .npy files"},
    {"mha", cmd_mha, "compute a whole block, with weights from safetensors or .npy files"},
    {"compile", cmd_compile, "compile a problem into the cache, or show a stage of it"},
    {"check", cmd_check, "test kernels against the interpreter and an f64 reference"},
    {"conform", cmd_conform, "run conformance cases of ONNX's attention operators"},
    {"bench", cmd_bench, "measure speed, as a share of what this CPU can do"},
    {"explain", cmd_explain, "show why a problem has its schedule, and where its time goes"},
    {"tune", cmd_tune, "find the fastest schedules by measuring"},
    {"sweep", cmd_sweep, "measure a grid of problems, warm from the cache"},
    {"warm", cmd_warm, "compile what a manifest names into the disk cache"},
    {"cache", cmd_cache, "look after the disk cache: list, verify, explain misses, copy"},
    {"bundle", cmd_bundle, "compile kernels ahead of time into a library for programs without attune"},
    {"info", cmd_info, "show CPU, instruction sets, versions and paths"},
    {"ir", cmd_ir, "run or show a kernel written in loop IR"},
};
enum { NUM_SUBCOMMANDS = sizeof subcommands / sizeof *subcommands };

static void print_help(FILE *stream) {
    fputs("Usage: attune COMMAND [ARGUMENT…]\n"
          "Compiles, caches, checks and times multi-head-attention kernels for this CPU.\n\n",
          stream);
    for (size_t i = 0; i < NUM_SUBCOMMANDS; i++)
        fprintf(stream, "  %-8s %s\n", subcommands[i].name, subcommands[i].summary);
    fputs("\nA problem is text: num_heads=12,seq_q=512,seq_kv=512,head_dim=64,is_causal=1\n"
          "`attune help COMMAND` explains one command; `man attune` explains all.\n"
          "Exit status: 0 ok, 1 failed or mismatched, 2 usage.\n",
          stream);
}

static void refuse_name(const char *name) {
    /* Names that others give to the same thing. */
    static const char *const others[][2] = {{"benchmark", "bench"}, {"test", "check"},     {"verify", "check"},
                                            {"version", "info"},
                                            {"build", "compile"},   {"precompile", "warm"}};
    const char *meant = NULL;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(others[i][0], name) == 0) meant = others[i][1];
    at_nearest nearest = at_nearest_to(name, strlen(name));
    for (size_t i = 0; i < NUM_SUBCOMMANDS; i++) at_nearest_try(&nearest, subcommands[i].name);
    if (!meant) meant = nearest.word;
    if (meant)
        tool_error("unknown command '%s'; did you mean %s? `attune --help` lists them all", name, meant);
    else
        tool_error("unknown command '%s'; `attune --help` lists them", name);
}

/* The exit code of a subcommand; TOOL_USAGE after a message if there is none of that name. */
static int run(const char *name, int argc, char **argv) {
    for (size_t i = 0; i < NUM_SUBCOMMANDS; i++) {
        if (strcmp(name, subcommands[i].name) != 0) continue;
        char title[32];
        snprintf(title, sizeof title, "attune %s", name);
        argv[0] = title;
        return tool_finish(subcommands[i].main(argc, argv));
    }
    refuse_name(name);
    return TOOL_USAGE;
}

/* `attune help COMMAND` is `attune COMMAND --help`. */
static int help(int argc, char **argv) {
    static char option[] = "--help";
    char *words[] = {argv[0], option, NULL};
    if (argc < 3 || (argc == 3 && strcmp(argv[2], "help") == 0)) {
        print_help(stdout);
        return tool_finish(TOOL_OK);
    }
    if (argc == 3) return run(argv[2], 2, words);
    tool_error("help explains one command, but '%s' follows '%s'", argv[3], argv[2]);
    return TOOL_USAGE;
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a failed write like any other, and files get cleaned up */
    argp_err_exit_status = TOOL_USAGE;
    if (argc < 2) {
        print_help(stderr);
        return TOOL_USAGE;
    }
    const char *const name = argv[1];
    if (strcmp(name, "help") == 0) return help(argc, argv);
    if (strcmp(name, "--help") == 0 || strcmp(name, "-?") == 0) {
        print_help(stdout);
        return tool_finish(TOOL_OK);
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        printf("attune %s\n", attune_version());
        return tool_finish(TOOL_OK);
    }
    return run(name, argc - 1, argv + 1);
}
