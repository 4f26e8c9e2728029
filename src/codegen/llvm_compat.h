/* LLVM's C API, and the only place that handles differences between its major versions. */
#ifndef ATTUNE_CODEGEN_LLVM_COMPAT_H
#define ATTUNE_CODEGEN_LLVM_COMPAT_H

#include <llvm-c/Analysis.h>
#include <llvm-c/Core.h>
#include <llvm-c/Error.h>
#include <llvm-c/Support.h>
#include <llvm-c/Target.h>
#include <llvm-c/TargetMachine.h>
#include <llvm-c/Transforms/PassBuilder.h>
#include <llvm/Config/llvm-config.h>

#if LLVM_VERSION_MAJOR < 19
#error "attune needs LLVM 19 or newer"
#endif

#endif
