/* LLVM's options are global to the process. So compiles with the same options run together in a batch, and others wait
 * for the batch to end:
 *
 *     time ->   [avx512 | avx512]  [avx2 | avx2]  [avx512]        in the order of arrival */
#include "codegen/options.h"

#include "codegen/llvm_compat.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum option_set { NOT_SET, FOR_16_REGISTERS, FOR_32_REGISTERS } option_set;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static option_set current; /* the options that LLVM has now */
static uint64_t users;     /* compiles under way */
static uint64_t last_ticket, next_ticket = 1;

/* Passes of LLVM that hardly improve the emitter's code, because addresses are shared and hoisted already, and loops
 * are in their final order. They take a quarter of the compile time. The last three make code for 16 registers 1 %
 * faster each, so they are skipped only for targets with 32 registers. Both lists name the same options, so that each
 * undoes the other. They are set only if no one else in the process uses this LLVM (the Makefile says when). */
static void tell_llvm(option_set set) {
#if defined(ATTUNE_OWN_LLVM) && LLVM_VERSION_MAJOR == 19
#define ALWAYS                                                                                                         \
    "attune", "-disable-cgp", "-disable-constant-hoisting", "-disable-copyprop", "-disable-lsr",                       \
        "-disable-x86-domain-reassignment"
    static const char *const few[] = {ALWAYS, "-disable-machine-cse=false", "-disable-machine-licm=false",
                                      "-enable-misched=true"};
    static const char *const many[] = {ALWAYS, "-disable-machine-cse=true", "-disable-machine-licm=true",
                                       "-enable-misched=false"};
    LLVMParseCommandLineOptions(sizeof few / sizeof *few, set == FOR_32_REGISTERS ? many : few, NULL);
#else
    (void)set;
#endif
}

/* In the order of arrival, so that a stream of compiles for one target cannot starve another. */
void cg_options_enter(const at_target *target) {
    const option_set wanted = at_has_few_registers(target) ? FOR_16_REGISTERS : FOR_32_REGISTERS;
    pthread_mutex_lock(&mutex);
    const uint64_t ticket = ++last_ticket;
    while (ticket != next_ticket || (users && current != wanted)) pthread_cond_wait(&changed, &mutex);
    if (current != wanted) tell_llvm(wanted);
    current = wanted;
    users++;
    next_ticket++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

void cg_options_leave(void) {
    pthread_mutex_lock(&mutex);
    users--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}
