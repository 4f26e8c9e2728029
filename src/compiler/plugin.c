/* dlopen, and two checks: the version of the interface, and the hash of the sources that both were built from. */
#include "compiler/plugin.h"

#include "generator_id.h"

#include <dlfcn.h>
#include <string.h>

static attune_status check_exports(const at_codegen_exports *exports, const char *path, const char *loader,
                                   at_error *err) {
    if (!exports || exports->abi != AT_CODEGEN_ABI)
        return at_fail(err, ATTUNE_CODEGEN_MISSING, "the code generator %.200s has interface version %u, %s %d", path,
                       exports ? exports->abi : 0, loader, AT_CODEGEN_ABI);
    if (strcmp(exports->generator_id, ATTUNE_GENERATOR_ID))
        return at_fail(err, ATTUNE_CODEGEN_MISSING, "the code generator %.200s is of build %.40s, %s of %.40s", path,
                       exports->generator_id, loader, ATTUNE_GENERATOR_ID);
    return ATTUNE_OK;
}

attune_status at_plugin_load(const at_codegen_file *file, const char *loader, const at_codegen_exports **exports,
                             at_error *err) {
    const char *path = file->path;
    if (!path[0] && file->refused[0]) return at_fail(err, ATTUNE_CODEGEN_MISSING, "%s", file->refused);
    if (!path[0])
        return at_fail(err, ATTUNE_CODEGEN_MISSING,
                       "libattune-codegen.so was not found, so nothing can be compiled; install it or set "
                       "ATTUNE_CODEGEN to its path");
    if (at_codegen_check(file, err)) return err->status;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *why = dlerror();
        return at_fail(err, ATTUNE_CODEGEN_MISSING, "the code generator could not be loaded: %s", why ? why : "");
    }
    at_codegen_exports_fn *function = NULL;
    *(void **)&function = dlsym(handle, AT_CODEGEN_SYMBOL);
    if (!function)
        return at_fail(err, ATTUNE_CODEGEN_MISSING, "%.300s is no code generator of attune: it has no %s", path,
                       AT_CODEGEN_SYMBOL);
    const at_codegen_exports *found = function();
    const attune_status status = check_exports(found, path, loader, err);
    if (!status) *exports = found;
    return status;
}
