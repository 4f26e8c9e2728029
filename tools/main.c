/* The `attune` command: the table of its subcommands. */
#include "common/commands.h"
#include "common/tool.h"

static const subcommand commands[] = {
    {"run", cmd_run, "compute attention on .npy files"},
    {"mha", cmd_mha, "compute a whole block, with weights from safetensors or .npy files"},
    {"compile", cmd_compile, "compile a problem into the cache, or show a stage of it"},
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

/* Names that others give to the same thing, and what a program of its own does. */
static const char in_lab[] =
    "is a command of attune-lab, which the sources build: attune-lab check, attune-lab conform";
static const char *const others[][2] = {
    {"benchmark", "bench"}, {"version", "info"}, {"build", "compile"}, {"precompile", "warm"},
    {"check", in_lab},      {"conform", in_lab}, {"test", in_lab},     {"verify", in_lab},
};

int main(int argc, char **argv) {
    static const program attune = {
        "attune",
        "Compiles, caches, runs and times multi-head-attention kernels for this CPU.",
        "; `man attune` explains all",
        commands,
        sizeof commands / sizeof *commands,
        others,
        sizeof others / sizeof *others,
    };
    return program_main(&attune, argc, argv);
}
