#define _GNU_SOURCE
#include "pictures/draw_load.h"

#include "install_dirs.h"
#include "common/tool.h"
#include "trusted.h"

#include <attune.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

static const char file_name[] = "libattune-draw.so";

typedef struct draw_file {
    char path[PATH_MAX];          /* "": there is none */
    char refused[PATH_MAX + 192]; /* a sentence about the last file that is not trusted; "": there was none */
} draw_file;

static bool try_directory(const char *directory, const char *below, uid_t code_owner, draw_file *file) {
    char why[128], path[PATH_MAX];
    const int length = snprintf(path, sizeof path, "%s%s/%s", directory, below, file_name);
    if (length > 0 && (size_t)length < sizeof path && realpath(path, file->path)) {
        if (at_is_trusted(file->path, code_owner, why, sizeof why)) return true;
        snprintf(file->refused, sizeof file->refused, "%s is not used: %s", file->path, why);
    }
    file->path[0] = '\0';
    return false;
}

/* In the directory of `code`, which runs already, and in attune/ there. */
static bool try_beside(char code[PATH_MAX], draw_file *file) {
    struct stat status;
    if (stat(code, &status)) return false;
    char *const slash = strrchr(code, '/');
    if (!slash) return false;
    *slash = '\0';
    return try_directory(code, "", status.st_uid, file) || try_directory(code, "/attune", status.st_uid, file);
}

/* The rules are the code generator's (src/runtime/codegen_path.h): the file becomes code of this process. A process
 * with raised privileges looks only where `make install` puts it. */
static void find(draw_file *file) {
    char code[PATH_MAX];
    Dl_info library;
    file->path[0] = file->refused[0] = '\0';
    if (!getauxval(AT_SECURE)) {
        const ssize_t length = readlink("/proc/self/exe", code, sizeof code - 1);
        code[length > 0 ? length : 0] = '\0';
        if (length > 0 && try_beside(code, file)) return;
        /* A relative name may mean another file by now. */
        if (dladdr((void *)(size_t)attune_version, &library) && library.dli_fname && library.dli_fname[0] == '/' &&
            realpath(library.dli_fname, code) && try_beside(code, file))
            return;
    }
    try_directory(ATTUNE_PLUGIN_DIR, "", 0, file);
}

static void *load(const char *symbol) {
    draw_file found;
    const char *const named = secure_getenv("ATTUNE_DRAW");
    find(&found);
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
