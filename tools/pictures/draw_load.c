#define _GNU_SOURCE
#include "pictures/draw_load.h"

#include "common/plugin_file.h"
#include "common/tool.h"

#include <dlfcn.h>
#include <stdlib.h>

static const char file_name[] = "libattune-draw.so";

static void *load(const char *symbol) {
    tool_file found;
    const char *const named = secure_getenv("ATTUNE_DRAW");
    tool_file_find(file_name, &found);
    const char *const path = named && *named ? named : found.path;
    if (!*path && found.refused[0]) {
        tool_error("%s", found.refused);
        return NULL;
    }
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
