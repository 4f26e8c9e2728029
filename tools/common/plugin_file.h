/* Files of attune that the command loads or starts: plug-ins and helpers. */
#ifndef ATTUNE_TOOLS_PLUGIN_FILE_H
#define ATTUNE_TOOLS_PLUGIN_FILE_H

#include <limits.h>

typedef struct tool_file {
    char path[PATH_MAX];          /* "": there is none */
    char refused[PATH_MAX + 192]; /* a sentence about the last file that is not trusted; "": there was none */
} tool_file;

/* Looks beside the command, beside the library, in attune/ there, and where `make install` puts such files. */
void tool_file_find(const char *name, tool_file *file);

#endif
