/* A program of several subcommands: finds the one that is named and hands it the rest of the line. */
#ifndef ATTUNE_TOOLS_COMMANDS_H
#define ATTUNE_TOOLS_COMMANDS_H

#include <stddef.h>

typedef struct subcommand {
    const char *name;
    int (*main)(int argc, char **argv); /* argv[0] is "PROGRAM NAME". An exit code */
    const char *summary;
} subcommand;

typedef struct program {
    const char *name, *purpose, *notes; /* `notes` end the help */
    const subcommand *commands;
    size_t num_commands;
    /* A name and what stands for it: a command, or a sentence if it begins with "is ". */
    const char *const (*others)[2];
    size_t num_others;
} program;

/* What main returns: an exit code. argp ends the process on a usage error. */
int program_main(const program *program, int argc, char **argv);

#endif
