/* The stages of a kernel as compile and ir show them. */
#define _GNU_SOURCE
#include "common/tool.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void print_pass(void *user, const char *pass, const char *text) {
    char **const previous = user;
    /* Most passes leave most kernels alone; saying so keeps a dump readable. */
    if (*previous && strcmp(*previous, text) == 0) {
        fprintf(stderr, "# after %s: unchanged\n", pass);
        return;
    }
    fprintf(stderr, "# after %s\n%s\n", pass, text);
    free(*previous);
    *previous = strdup(text);
}

int tool_dump_passes(attune_context *context, const char *text) {
    char *previous = NULL;
    const attune_status status = attune_ir_dump_passes(context, text, print_pass, &previous);
    free(previous);
    return status == ATTUNE_OK ? TOOL_OK : tool_library_error(NULL);
}

int tool_write_stage(attune_stage stage, const char *path, const void *data, size_t bytes) {
    char message[ATTUNE_MESSAGE_BYTES];
    const char *const target = path ? path : "-";
    if (stage >= ATTUNE_STAGE_OBJECT && strcmp(target, "-") == 0 && isatty(STDOUT_FILENO)) {
        tool_error("this stage is binary and standard output a terminal; name a file with -o");
        return TOOL_USAGE;
    }
    if (tool_write_file(target, "", 0, data, bytes, message)) return TOOL_OK;
    tool_error("%s", message);
    return TOOL_FAILED;
}
