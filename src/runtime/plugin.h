/* Loading libattune-codegen.so, into a process that compiles or into a worker. */
#ifndef ATTUNE_RUNTIME_PLUGIN_H
#define ATTUNE_RUNTIME_PLUGIN_H

#include "base/error.h"
#include "runtime/codegen_path.h"
#include "target/codegen_abi.h"

/* `file` is as at_codegen_find leaves it: no path fails, as does a plug-in of another build. `loader`, such as "this
 * library", names in the message who loads it. The plug-in is never unloaded: LLVM could not be loaded a second time in
 * one process. *exports does not change on failure. */
attune_status at_plugin_load(const at_codegen_file *file, const char *loader, const at_codegen_exports **exports,
                             at_error *err);

#endif
