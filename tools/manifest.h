/* Lists of problems: arguments of a command, or files with a problem in each line, as ATTUNE_RECORD writes them. */
#ifndef ATTUNE_TOOLS_MANIFEST_H
#define ATTUNE_TOOLS_MANIFEST_H

#include "tool.h"

typedef struct manifest_entry {
    attune_problem problem;
    attune_schedule schedule;
    bool has_schedule;
    char *text; /* of the problem, as it was given */
    int line;   /* in its file, from 1; 0: it was an argument */
} manifest_entry;

typedef struct manifest {
    manifest_entry *entries;
    size_t count, capacity;
} manifest;

/* `problem` or `problem | schedule`. All of these print a message and return false on failure. */
bool manifest_add(manifest *list, const char *text, const char *file, int line);

/* One in a line; empty lines do not count, nor does what follows a #. "-" is stdin. A file without any is refused. */
bool manifest_add_file(manifest *list, const char *path);

/* What has a '=' in it is a problem, anything else a file. */
bool manifest_add_argument(manifest *list, const char *argument);

void manifest_free(manifest *list);

#endif
