/* Loads libattune-codegen.so, for a process that compiles or for a worker. */
#ifndef ATTUNE_COMPILER_PLUGIN_H
#define ATTUNE_COMPILER_PLUGIN_H

#include "base/error.h"
#include "compiler/codegen_path.h"
#include "target/codegen_abi.h"

/* `file` is from at_codegen_find. Fails if it has no path, or if the plug-in is of another build. `loader`, such as
 * "this library", is the subject of the message. The plug-in is never unloaded, because LLVM could not be loaded a
 * second time in one process. *exports does not change on failure. */
attune_status at_plugin_load(const at_codegen_file *file, const char *loader, const at_codegen_exports **exports,
                             at_error *err);

#endif
