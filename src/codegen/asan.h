/* AddressSanitizer for generated code, by LLVM's own pass. It exists only in the builds of `make asan-jit` and `make
 * asan-ubsan`, which define ATTUNE_JIT_ASAN, and is active if the environment has a variable of that name. Instrumented
 * code calls the sanitizer's runtime, so an image has addresses of the process that compiled it, and must not be
 * cached. This file does not use LLVM. */
#ifndef ATTUNE_CODEGEN_ASAN_H
#define ATTUNE_CODEGEN_ASAN_H

#include <stdbool.h>

enum { CG_ASAN_THUNK_BYTES = 16 };

#ifdef ATTUNE_JIT_ASAN
/* Whether generated code is instrumented. */
bool cg_asan(void);

/* Writes code that jumps to this function of the sanitizer's runtime. false: the runtime has no such function. */
bool cg_asan_thunk(const char *name, unsigned char thunk[CG_ASAN_THUNK_BYTES]);

#else
static inline bool cg_asan(void) { return false; }

static inline bool cg_asan_thunk(const char *name, unsigned char *thunk) {
    (void)name;
    (void)thunk;
    return false;
}
#endif

#endif
