/* Jumps to the sanitizer's runtime, which may be out of reach of a direct call from an image:
 *
 *     image: call thunk -> thunk: jmp *[next 8 bytes] -> __asan_report_load4 of this process */
#include "codegen/asan.h"

#include <stdlib.h>
#include <string.h>

/* The functions that LLVM's pass may call: reports of accesses that inline code has checked, and the runtime's own
 * checks, which the pass uses in functions with very many accesses. */
#define ACCESSES(X, kind) X(kind##1) X(kind##2) X(kind##4) X(kind##8) X(kind##16)
#define OF_FIXED_SIZE(X)                                                                                               \
    ACCESSES(X, __asan_report_load)                                                                                    \
    ACCESSES(X, __asan_report_store)                                                                                   \
    ACCESSES(X, __asan_load)                                                                                           \
    ACCESSES(X, __asan_store)
#define OF_ANY_SIZE(X) X(__asan_report_load_n) X(__asan_report_store_n) X(__asan_loadN) X(__asan_storeN)

#define DECLARE_FIXED(function) void function(void *address);
#define DECLARE_ANY(function)   void function(void *address, long size);
OF_FIXED_SIZE(DECLARE_FIXED)
OF_ANY_SIZE(DECLARE_ANY)

#define ENTRY(function) {#function, (void (*)(void))function},
static const struct {
    const char *name;
    void (*address)(void);
} functions[] = {OF_FIXED_SIZE(ENTRY) OF_ANY_SIZE(ENTRY)};

bool cg_asan(void) { return getenv("ATTUNE_JIT_ASAN") != NULL; }

bool cg_asan_thunk(const char *name, unsigned char thunk[CG_ASAN_THUNK_BYTES]) {
    /* jmp *[rip + 2]; ud2; the address. */
    static const unsigned char jump[] = {0xff, 0x25, 2, 0, 0, 0, 0x0f, 0x0b};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        if (strcmp(functions[i].name, name) != 0) continue;
        memcpy(thunk, jump, sizeof jump);
        memcpy(thunk + sizeof jump, &functions[i].address, sizeof functions[i].address);
        return true;
    }
    return false;
}
