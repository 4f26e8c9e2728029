/* The `attune-lab` command: what tests kernels, for those who work on attune. */
#include "common/commands.h"
#include "lab.h"

static const subcommand commands[] = {
    {"check", cmd_check, "test kernels against the interpreter and an f64 reference"},
    {"conform", cmd_conform, "run conformance cases of ONNX's attention operators"},
};

int main(int argc, char **argv) {
    static const char *const others[][2] = {{"test", "check"}, {"verify", "check"}};
    static const program lab = {
        "attune-lab",
        "Tests the kernels of attune: compares machine code, interpreter and reference.",
        "",
        commands,
        sizeof commands / sizeof *commands,
        others,
        sizeof others / sizeof *others,
    };
    return program_main(&lab, argc, argv);
}
