/* Looks beside the command, beside the library, and where it was installed, and believes a file only if nobody else
 * could have written it. */
#define _GNU_SOURCE
#include "common/plugin_file.h"

#include "trusted.h"

#include <attune.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

/* Where an installed command looks last; the one in the build directory has no such place. */
#ifndef ATTUNE_PLUGIN_DIR
#define ATTUNE_PLUGIN_DIR ""
#endif

static bool try_directory(const char *name, const char *directory, const char *below, uid_t code_owner,
                          tool_file *file) {
    char why[128], path[PATH_MAX];
    const int length = snprintf(path, sizeof path, "%s%s/%s", directory, below, name);
    if (length > 0 && (size_t)length < sizeof path && realpath(path, file->path)) {
        if (at_is_trusted(file->path, code_owner, why, sizeof why)) return true;
        snprintf(file->refused, sizeof file->refused, "%s is not used: %s", file->path, why);
    }
    file->path[0] = '\0';
    return false;
}

/* In the directory of `code`, which runs already, and in attune/ there. */
static bool try_beside(const char *name, char code[PATH_MAX], tool_file *file) {
    struct stat status;
    if (stat(code, &status)) return false;
    char *const slash = strrchr(code, '/');
    if (!slash) return false;
    *slash = '\0';
    return try_directory(name, code, "", status.st_uid, file) ||
           try_directory(name, code, "/attune", status.st_uid, file);
}

/* The rules are the code generator's (src/compiler/codegen_path.h): the file becomes code of this process. A process
 * with raised privileges looks only where `make install` puts it. */
void tool_file_find(const char *name, tool_file *file) {
    char code[PATH_MAX];
    Dl_info library;
    file->path[0] = file->refused[0] = '\0';
    if (!getauxval(AT_SECURE)) {
        const ssize_t length = readlink("/proc/self/exe", code, sizeof code - 1);
        code[length > 0 ? length : 0] = '\0';
        if (length > 0 && try_beside(name, code, file)) return;
        /* A relative name may mean another file by now. */
        if (dladdr((void *)(size_t)attune_version, &library) && library.dli_fname && library.dli_fname[0] == '/' &&
            realpath(library.dli_fname, code) && try_beside(name, code, file))
            return;
    }
    if (*ATTUNE_PLUGIN_DIR) try_directory(name, ATTUNE_PLUGIN_DIR, "", 0, file);
}
