#define _GNU_SOURCE
#include "draw_load.h"

#include "install_dirs.h"
#include "tool.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char file_name[] = "libattune-draw.so";

/* Beside the command, as in a build directory, or where `make install` puts it; "" if it is in neither. */
static void find(char path[PATH_MAX]) {
    static const char *const below[] = {"", ATTUNE_PLUGIN_FROM_BIN "/"};
    char command[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", command, sizeof command - 1);
    path[0] = '\0';
    if (length <= 0) return;
    command[length] = '\0';
    char *const slash = strrchr(command, '/');
    if (slash) slash[1] = '\0';
    for (size_t i = 0; i < sizeof below / sizeof *below; i++) {
        const int needed = snprintf(path, PATH_MAX, "%s%s%s", command, below[i], file_name);
        if (needed < PATH_MAX && access(path, R_OK) == 0) return;
        path[0] = '\0';
    }
}

static void *load(const char *symbol) {
    char found[PATH_MAX];
    const char *const named = secure_getenv("ATTUNE_DRAW");
    find(found);
    const char *const path = named && *named ? named : found;
    if (!*path) {
        tool_error("pictures are drawn by %s, which was not found; install it or set ATTUNE_DRAW to its path",
                   file_name);
        return NULL;
    }
    void *const handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *const why = dlerror();
        tool_error("%s, which draws pictures with cairo, could not be loaded: %s", file_name, why ? why : path);
        return NULL;
    }
    void *const found_symbol = dlsym(handle, symbol);
    if (!found_symbol) tool_error("%s does not draw pictures for this version of attune: it has no %s", path, symbol);
    return found_symbol;
}

draw_fn *draw_load(void) {
    draw_fn *draw;
    *(void **)&draw = load(DRAW_SYMBOL);
    return draw;
}

chart_fn *chart_load(void) {
    chart_fn *draw;
    *(void **)&draw = load(CHART_SYMBOL);
    return draw;
}
