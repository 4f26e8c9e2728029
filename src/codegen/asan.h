/* AddressSanitizer over generated code, by LLVM's own pass: only in the build of `make asan-jit` and `make asan-ubsan`,
 * which defines ATTUNE_JIT_ASAN, and there only where the environment has a variable of that name. The instrumented
 * code calls the sanitizer's runtime, so that an image holds addresses of the process that made it: it is for that
 * process alone, and for no cache. In every other build nothing of this exists. Knows nothing of LLVM. */
#ifndef ATTUNE_CODEGEN_ASAN_H
#define ATTUNE_CODEGEN_ASAN_H

#include <stdbool.h>

enum { CG_ASAN_THUNK_BYTES = 16 };

#ifdef ATTUNE_JIT_ASAN
/* Whether generated code is instrumented. */
bool cg_asan(void);

/* Writes code that jumps to this function of the sanitizer's runtime. false: the runtime has none of that name. */
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
