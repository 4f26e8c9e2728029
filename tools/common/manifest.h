/* Lists of problems: arguments of a command, or files with a problem in each line, as ATTUNE_RECORD writes them. */
#ifndef ATTUNE_TOOLS_MANIFEST_H
#define ATTUNE_TOOLS_MANIFEST_H

#include "common/tool.h"

typedef struct manifest_kernel {
    attune_problem problem; /* unless is_described */
    bool is_described;      /* `text` names a kernel by a description (attune/expert/description.h) */
    bool has_failed;        /* it could not be compiled */
    char *name;             /* of a line `name: problem`; NULL: it has none */
    char *text;             /* of the problem, as it was given */
    char *schedule;         /* as attune_compile takes it; NULL: there is none */
    int line;               /* in its file, from 1; 0: it was an argument */
} manifest_kernel;

typedef struct manifest {
    manifest_kernel *kernels;
    size_t count, capacity;
    bool only_attention; /* descriptions are refused; those in files are left out */
    size_t left_out;
} manifest;

/* Adds `problem` or `problem | schedule`, each perhaps after `name:`. A description adds all of its kernels, with their
 * own texts and names. All of these print a message and return false on failure. */
bool manifest_add(manifest *list, const char *text, const char *file, int line);

/* Calls `take` for each line of a file; empty lines and text after a # are skipped. "-" is stdin. A file
 * without any is refused. */
typedef bool manifest_line_fn(void *user, const char *text, const char *file, int line);
bool manifest_each_line(const char *path, manifest_line_fn *take, void *user);

/* Adds the kernels of a file's lines. */
bool manifest_add_file(manifest *list, const char *path);

/* Adds those of an argument: with a '=' in it a problem, any other is a file. */
bool manifest_add_argument(manifest *list, const char *argument);

/* Gets the kernel, as attune_compile does. */
attune_status manifest_compile(attune_context *context, const manifest_kernel *wanted, attune_kernel **kernel);

void manifest_free_kernel(manifest_kernel *wanted);
void manifest_free(manifest *list);

#endif
